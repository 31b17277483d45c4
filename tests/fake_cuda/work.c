// SPDX-License-Identifier: Apache-2.0
// Streams and events: what they are given happens when somebody waits or asks.
#include "fake_cuda/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LAUNCHED 65536u

typedef struct event {
  bool live, timed;
  uint64_t posted, done; // records that were queued, and that happened
  uint64_t counted;      // the record that somebody was counted as waiting for
  uint64_t at_ns;
  struct stream *stream; // of the last record
} event_t;

typedef enum { COPY, FILL, LAUNCH, RECORD, AWAIT } kind_t;

typedef struct piece {
  kind_t kind;
  uint64_t to, from, bytes; // COPY, FILL
  uint8_t *staged;          // COPY: bytes of ordinary memory, taken when it was queued
  uint8_t value;            // of FILL
  event_t *event;
  uint64_t ticket; // of the event
  const char *kernel;
  fake_use_t uses[FAKE_USES];
  unsigned use_count;
  struct piece *next;
} piece_t;

typedef struct stream {
  bool live, of_thread; // of_thread: nobody makes or destroys it
  piece_t *first, *last;
  bool running; // being looked at: a circle of waits ends here
  struct stream *next;
} stream_t;

static stream_t *streams; // all that ever were
static stream_t legacy = {.live = true};
static __thread stream_t *per_thread;
static const char *launched[LAUNCHED];
static uint64_t launched_count;
static uint64_t events_live;

static stream_t *new_stream(void) {
  stream_t *made = calloc(1, sizeof *made);
  made->live = true;
  made->next = streams;
  streams = made;
  return made;
}

static stream_t *find_stream(CUstream handle, const char *what) {
  if (handle == CU_STREAM_PER_THREAD) {
    if (per_thread == NULL) {
      per_thread = new_stream();
      per_thread->of_thread = true;
    }
    return per_thread;
  }
  if (handle == NULL || handle == CU_STREAM_LEGACY) {
    return &legacy;
  }
  for (stream_t *s = streams; s != NULL; s = s->next) {
    if ((CUstream)s == handle) {
      if (!s->live) {
        (void)fake_broken("%s: the stream was destroyed", what);
        return NULL;
      }
      return s;
    }
  }
  (void)fake_broken("%s: no such stream", what);
  return NULL;
}

static event_t *find_event(CUevent handle, const char *what) {
  event_t *event = (event_t *)handle; // never freed: a destroyed one is known
  if (event == NULL || !event->live) {
    (void)fake_broken("%s: no such event, or it was destroyed", what);
    return NULL;
  }
  return event;
}

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

// ---- doing it

static void move(uint64_t to, uint64_t from, const uint8_t *staged, uint64_t bytes) {
  while (bytes > 0) {
    uint64_t part = bytes;
    uint8_t *there = fake_bytes(to, &part, true, "a copy");
    const uint8_t *here = staged != NULL ? staged : there != NULL ? fake_bytes(from, &part, false, "a copy") : NULL;
    if (there == NULL || here == NULL) {
      return;
    }
    memmove(there, here, part);
    to += part;
    from += part;
    staged = staged != NULL ? staged + part : NULL;
    bytes -= part;
  }
}

static void set(uint64_t to, uint8_t value, uint64_t bytes) {
  while (bytes > 0) {
    uint64_t part = bytes;
    uint8_t *there = fake_bytes(to, &part, true, "a fill");
    if (there == NULL) {
      return;
    }
    memset(there, value, part);
    to += part;
    bytes -= part;
  }
}

static bool run_one(stream_t *stream);

// Until that record has happened. False: it waits for something that only the CPU can do.
static bool run_to(event_t *event, uint64_t ticket) {
  while (event->done < ticket) {
    if (event->stream == NULL || !run_one(event->stream)) {
      return false;
    }
  }
  return true;
}

// The next piece of a stream, if it can happen now.
static bool run_one(stream_t *stream) {
  piece_t *piece = stream->first;
  if (piece == NULL || stream->running) {
    return false;
  }
  stream->running = true;
  bool can = true;
  if (piece->kind == AWAIT) {
    can = run_to(piece->event, piece->ticket);
  }
  stream->running = false;
  if (!can) {
    return false;
  }
  switch (piece->kind) {
  case COPY:
    move(piece->to, piece->from, piece->staged, piece->bytes);
    break;
  case FILL:
    set(piece->to, piece->value, piece->bytes);
    break;
  case LAUNCH:
    for (unsigned i = 0; i < piece->use_count; i++) {
      (void)fake_may_use(piece->uses[i].address, piece->uses[i].bytes, piece->uses[i].writes, piece->kernel);
    }
    fake_results(piece->kernel, piece->uses, piece->use_count);
    break;
  case RECORD:
    piece->event->done = piece->ticket;
    piece->event->at_ns = now_ns();
    break;
  case AWAIT:
    break;
  }
  stream->first = piece->next;
  if (stream->first == NULL) {
    stream->last = NULL;
  }
  free(piece->staged);
  free(piece);
  return true;
}

static piece_t *put(stream_t *stream, kind_t kind) {
  piece_t *piece = calloc(1, sizeof *piece);
  piece->kind = kind;
  if (stream->last != NULL) {
    stream->last->next = piece;
  } else {
    stream->first = piece;
  }
  stream->last = piece;
  return piece;
}

// The CPU waits, giving up the lock so that others can do what the stream waits for.
static void drain(stream_t *stream) {
  while (stream->first != NULL) {
    if (!run_one(stream)) {
      fake_unlock();
      nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
      fake_lock();
    }
  }
}

void fake_work_drain(void) {
  fake_figures.host_waits++;
  for (stream_t *s = streams; s != NULL; s = s->next) {
    drain(s);
  }
  drain(&legacy);
}

static bool overlaps(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

static bool stream_uses(const stream_t *stream, uint64_t address, uint64_t bytes) {
  for (const piece_t *p = stream->first; p != NULL; p = p->next) {
    if ((p->kind == COPY || p->kind == FILL) &&
        (overlaps(p->to, p->bytes, address, bytes) ||
         (p->kind == COPY && p->staged == NULL && overlaps(p->from, p->bytes, address, bytes)))) {
      return true;
    }
    for (unsigned i = 0; p->kind == LAUNCH && i < p->use_count; i++) {
      if (overlaps(p->uses[i].address, p->uses[i].bytes, address, bytes)) {
        return true;
      }
    }
  }
  return false;
}

bool fake_work_uses(uint64_t address, uint64_t bytes) {
  bool uses = stream_uses(&legacy, address, bytes);
  for (const stream_t *s = streams; s != NULL && !uses; s = s->next) {
    uses = stream_uses(s, address, bytes);
  }
  return uses;
}

void fake_work_leaks(void) {
  fake_figures.live_streams = 0;
  for (const stream_t *s = streams; s != NULL; s = s->next) {
    fake_figures.live_streams += s->live && !s->of_thread;
  }
  fake_figures.live_events = events_live;
}

// ---- what is asked for

static CUresult copy(uint64_t to, uint64_t from, uint64_t bytes, CUstream handle) {
  stream_t *stream = find_stream(handle, "a copy");
  if (stream == NULL || !fake_may_use(to, bytes, true, "a copy") || !fake_may_use(from, bytes, false, "a copy")) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (bytes == 0) {
    return CUDA_SUCCESS;
  }
  const bool takes = fake_place(from) == FAKE_PAGEABLE, waits = fake_place(to) == FAKE_PAGEABLE;
  if ((takes || waits) && !stream->of_thread && stream->first != NULL) { // legal: but then the CPU does not go on
    return fake_broken("a copy on a stream: %#llx is ordinary memory, not pinned",
                       (unsigned long long)(takes ? from : to));
  }
  fake_figures.copies++;
  fake_figures.pageable_copies += takes || waits;
  piece_t *piece = put(stream, COPY);
  piece->to = to;
  piece->from = from;
  piece->bytes = bytes;
  if (takes) {
    piece->staged = malloc(bytes);
    memcpy(piece->staged, (const void *)from, bytes);
  }
  if (waits) {
    fake_figures.host_waits++;
    drain(stream);
  }
  return CUDA_SUCCESS;
}

static CUresult fill(uint64_t to, uint8_t value, uint64_t bytes, CUstream handle) {
  stream_t *stream = find_stream(handle, "a fill");
  if (stream == NULL || !fake_may_use(to, bytes, true, "a fill")) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (fake_place(to) == FAKE_PAGEABLE) {
    return fake_broken("a fill: %#llx is ordinary memory", (unsigned long long)to);
  }
  fake_figures.fills++;
  piece_t *piece = put(stream, FILL);
  piece->to = to;
  piece->value = value;
  piece->bytes = bytes;
  return CUDA_SUCCESS;
}

CUresult fake_work_launch(CUstream handle, const char *kernel, const fake_use_t *uses, unsigned count) {
  stream_t *stream = find_stream(handle, kernel);
  if (stream == NULL) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  for (unsigned i = 0; i < count; i++) {
    if (fake_place(uses[i].address) == FAKE_PAGEABLE) {
      return fake_broken("%s: an argument, %#llx, is neither memory of the device nor pinned", kernel,
                         (unsigned long long)uses[i].address);
    }
    if (!fake_may_use(uses[i].address, uses[i].bytes, uses[i].writes, kernel)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  fake_figures.launches++;
  launched[launched_count++ % LAUNCHED] = kernel;
  piece_t *piece = put(stream, LAUNCH);
  piece->kernel = kernel;
  piece->use_count = count < FAKE_USES ? count : FAKE_USES;
  memcpy(piece->uses, uses, piece->use_count * sizeof uses[0]);
  return CUDA_SUCCESS;
}

FAKE_EXPORT uint64_t fake_cuda_launched(const char **names, uint64_t capacity);
uint64_t fake_cuda_launched(const char **names, uint64_t capacity) {
  fake_lock();
  const uint64_t count = launched_count < LAUNCHED ? launched_count : LAUNCHED;
  for (uint64_t i = 0; i < count && i < capacity; i++) {
    names[i] = launched[i];
  }
  launched_count = 0;
  fake_unlock();
  return count;
}

// ---- streams

static CUresult stream_create(CUstream *handle, unsigned flags) {
  if (flags > CU_STREAM_NON_BLOCKING) {
    return fake_broken("cuStreamCreate: flags %u", flags);
  }
  *handle = (CUstream)new_stream();
  return CUDA_SUCCESS;
}

static CUresult stream_destroy(CUstream handle) {
  stream_t *stream = find_stream(handle, "cuStreamDestroy");
  if (stream == NULL || stream == &legacy || stream->of_thread) {
    return fake_broken("cuStreamDestroy: not a stream that was made");
  }
  stream->live = false; // what it was given happens still
  return CUDA_SUCCESS;
}

static CUresult stream_wait(CUstream handle, CUevent event_handle, unsigned flags) {
  stream_t *stream = find_stream(handle, "cuStreamWaitEvent");
  event_t *event = find_event(event_handle, "cuStreamWaitEvent");
  if (stream == NULL || event == NULL || flags != 0) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (event->posted > event->done) {
    piece_t *piece = put(stream, AWAIT);
    piece->event = event;
    piece->ticket = event->posted;
  }
  return CUDA_SUCCESS;
}

static CUresult stream_synchronize(CUstream handle) {
  stream_t *stream = find_stream(handle, "cuStreamSynchronize");
  if (stream == NULL) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  fake_figures.host_waits++;
  drain(stream);
  return CUDA_SUCCESS;
}

// ---- events

static CUresult event_create(CUevent *handle, unsigned flags) {
  event_t *event = calloc(1, sizeof *event);
  event->live = true;
  event->timed = (flags & CU_EVENT_DISABLE_TIMING) == 0;
  events_live++;
  *handle = (CUevent)event;
  return CUDA_SUCCESS;
}

static CUresult event_destroy(CUevent handle) {
  event_t *event = find_event(handle, "cuEventDestroy");
  if (event == NULL) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  event->live = false;
  events_live--;
  return CUDA_SUCCESS;
}

static CUresult event_record(CUevent handle, CUstream stream_handle) {
  event_t *event = find_event(handle, "cuEventRecord");
  stream_t *stream = find_stream(stream_handle, "cuEventRecord");
  if (event == NULL || stream == NULL) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (event->posted > event->done && event->stream != stream) {
    // Those who wait for the record before this one would have to find it in the other stream.
    while (event->done < event->posted && run_one(event->stream)) {
    }
  }
  event->stream = stream;
  piece_t *piece = put(stream, RECORD);
  piece->event = event;
  piece->ticket = ++event->posted;
  return CUDA_SUCCESS;
}

static CUresult event_query(CUevent handle) {
  event_t *event = find_event(handle, "cuEventQuery");
  if (event == NULL) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (event->done >= event->posted) {
    return CUDA_SUCCESS;
  }
  fake_figures.host_waits += event->counted != event->posted;
  event->counted = event->posted;
  (void)run_one(event->stream);
  return CUDA_ERROR_NOT_READY;
}

static CUresult event_elapsed(float *ms, CUevent from_handle, CUevent to_handle) {
  const event_t *from = find_event(from_handle, "cuEventElapsedTime"),
                *to = find_event(to_handle, "cuEventElapsedTime");
  if (from == NULL || to == NULL || !from->timed || !to->timed || from->posted == 0 || to->posted == 0) {
    return fake_broken("cuEventElapsedTime: an event without times, or that was never recorded");
  }
  if (from->done < from->posted || to->done < to->posted) {
    return CUDA_ERROR_NOT_READY;
  }
  *ms = (float)((double)to->at_ns - (double)from->at_ns) * 1e-6f;
  return CUDA_SUCCESS;
}

// ---- under the lock

#define LOCKED(call)                                                                                                   \
  fake_lock();                                                                                                         \
  const CUresult result = call;                                                                                        \
  fake_unlock();                                                                                                       \
  return result

CUresult fake_work_copy(uint64_t to, uint64_t from, uint64_t bytes, CUstream stream) {
  LOCKED(copy(to, from, bytes, stream));
}
CUresult fake_work_fill(uint64_t to, uint8_t value, uint64_t bytes, CUstream stream) {
  LOCKED(fill(to, value, bytes, stream));
}
CUresult fake_work_stream_create(CUstream *stream, unsigned flags) {
  LOCKED(stream_create(stream, flags));
}
CUresult fake_work_stream_destroy(CUstream stream) {
  LOCKED(stream_destroy(stream));
}
CUresult fake_work_stream_synchronize(CUstream stream) {
  LOCKED(stream_synchronize(stream));
}
CUresult fake_work_stream_wait(CUstream stream, CUevent event, unsigned flags) {
  LOCKED(stream_wait(stream, event, flags));
}
CUresult fake_work_event_create(CUevent *event, unsigned flags) {
  LOCKED(event_create(event, flags));
}
CUresult fake_work_event_destroy(CUevent event) {
  LOCKED(event_destroy(event));
}
CUresult fake_work_event_record(CUevent event, CUstream stream) {
  LOCKED(event_record(event, stream));
}
CUresult fake_work_event_query(CUevent event) {
  LOCKED(event_query(event));
}
CUresult fake_work_event_elapsed(float *ms, CUevent from, CUevent to) {
  LOCKED(event_elapsed(ms, from, to));
}

// Of the driver: asked for by name. One copy, on a stream that was made.
FAKE_EXPORT CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
                                           CUmemcpyAttributes *attributes, size_t *first, size_t attribute_count,
                                           CUstream stream) {
  (void)attributes, (void)first, (void)attribute_count;
  LOCKED(count != 1 || stream == NULL ? fake_broken("cuMemcpyBatchAsync: several copies, or on the default stream")
                                      : copy(to[0], from[0], bytes[0], stream));
}
