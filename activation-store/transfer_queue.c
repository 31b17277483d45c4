// SPDX-License-Identifier: Apache-2.0
#include "transfer_queue.h"

#include "base/minmax.h"
#include "loop/timer.h"
#include "sys/clock.h"

#include <stdlib.h>
#include <sys/queue.h>

#define STALLED_MAX 64 // with more of them at a time, some block others

typedef struct entry {
  TAILQ_ENTRY(entry) queued;
  bl_queued_request_t request;
  uint64_t asked_ns;
} entry_t;

struct bl_transfer_queue {
  void (*serve)(void *context, const bl_queued_request_t *request);
  void *context;
  bl_timer_t *timer;
  TAILQ_HEAD(, entry) requests; // that wait for the link
  uint64_t bytes_per_second;    // 0: unlimited
  uint64_t free_ns;             // with a rate: when the bytes of all turns so far have passed
  bool busy;                    // with `current`
  bool starting;                // waiting requests are being started
  bl_queued_request_t current;
  uint64_t stalled[STALLED_MAX]; // sessions that did not finish a transfer in time, until they finish one; 0: unused
  uint32_t stalled_next;
};

static bool is_stalled(const bl_transfer_queue_t *queue, uint64_t session) {
  bool found = false;
  for (uint32_t i = 0; i < STALLED_MAX; i++) {
    found = found || queue->stalled[i] == session;
  }
  return found && session != 0;
}

static void set_stalled(bl_transfer_queue_t *queue, uint64_t session) {
  queue->stalled[queue->stalled_next++ % STALLED_MAX] = session;
}

static void clear_stalled(bl_transfer_queue_t *queue, uint64_t session) {
  for (uint32_t i = 0; i < STALLED_MAX; i++) {
    queue->stalled[i] = queue->stalled[i] == session ? 0 : queue->stalled[i];
  }
}

static bool is_about(const bl_queued_request_t *request, uint64_t session, uint64_t id) {
  return request->session == session && request->frame.id == id;
}

static bool is_current(const bl_transfer_queue_t *queue, uint64_t session, uint64_t id) {
  return queue->busy && is_about(&queue->current, session, id);
}

static bool has_rate(const bl_transfer_queue_t *queue) {
  return queue->bytes_per_second != 0;
}

// ---- the waiting requests -------------------------------------------------------------------------------------------

static uint32_t count_of(const bl_transfer_queue_t *queue, uint64_t session) {
  uint32_t count = 0;
  const entry_t *entry;
  TAILQ_FOREACH(entry, &queue->requests, queued) {
    count += entry->request.session == session ? 1 : 0;
  }
  return count;
}

// False: the session has too many already, or no memory.
static bool append(bl_transfer_queue_t *queue, const bl_queued_request_t *request) {
  entry_t *entry = count_of(queue, request->session) < BL_TRANSFER_QUEUE_SESSION_MAX ? malloc(sizeof *entry) : NULL;
  if (entry == NULL) {
    return false;
  }
  entry->request = *request;
  entry->asked_ns = bl_clock_now_ns();
  TAILQ_INSERT_TAIL(&queue->requests, entry, queued);
  return true;
}

static void drop(bl_transfer_queue_t *queue, entry_t *entry) {
  TAILQ_REMOVE(&queue->requests, entry, queued);
  free(entry);
}

// Returns the first waiting request about this slot, which has one at a time. NULL: none.
static entry_t *find(const bl_transfer_queue_t *queue, uint64_t session, uint64_t id) {
  entry_t *entry;
  TAILQ_FOREACH(entry, &queue->requests, queued) {
    if (is_about(&entry->request, session, id)) {
      return entry;
    }
  }
  return NULL;
}

// Returns whether the request waits: it was resent over another connection.
static bool is_waiting(const bl_transfer_queue_t *queue, const bl_queued_request_t *request) {
  const entry_t *entry;
  TAILQ_FOREACH(entry, &queue->requests, queued) {
    if (is_about(&entry->request, request->session, request->frame.id) &&
        entry->request.frame.sequence == request->frame.sequence) {
      return true;
    }
  }
  return false;
}

// ---- the link -------------------------------------------------------------------------------------------------------

static void occupy(bl_transfer_queue_t *queue, const bl_queued_request_t *request, uint64_t timer_ms) {
  queue->busy = true;
  queue->current = *request;
  bl_timer_start(queue->timer, timer_ms, 0);
}

// Occupies the link until the bytes of the request would have passed, after those before them. The timer is late, but
// the link is as fast as its rate says.
static void occupy_at_rate(bl_transfer_queue_t *queue, const bl_queued_request_t *request, uint64_t asked_ns) {
  const uint64_t now_ns = bl_clock_now_ns();
  queue->free_ns =
      bl_max_u64(queue->free_ns, asked_ns) + (uint64_t)((double)request->bytes / (double)queue->bytes_per_second * 1e9);
  occupy(queue, request, queue->free_ns > now_ns ? (queue->free_ns - now_ns + BL_NS_PER_MS / 2) / BL_NS_PER_MS : 0);
}

// Starts waiting requests, as long as the link is free. A request that frees it while it is served leaves the next one
// to the loop here: otherwise the stack would grow with the number of requests.
static void start_next(bl_transfer_queue_t *queue) {
  entry_t *first;
  if (queue->starting) {
    return;
  }
  queue->starting = true;
  while (!queue->busy && (first = TAILQ_FIRST(&queue->requests)) != NULL) {
    const bl_queued_request_t request = first->request;
    const uint64_t asked_ns = first->asked_ns;
    drop(queue, first);
    if (has_rate(queue)) {
      occupy_at_rate(queue, &request, asked_ns);
      continue;
    }
    if (!is_stalled(queue, request.session)) {
      occupy(queue, &request, BL_TRANSFER_QUEUE_TIMEOUT_MS);
    }
    queue->serve(queue->context, &request); // may free the link
  }
  queue->starting = false;
}

static void free_link(bl_transfer_queue_t *queue) {
  queue->busy = false;
  queue->current = (bl_queued_request_t){0};
  bl_timer_stop(queue->timer);
  start_next(queue);
}

// With a rate: serves the request that occupied the link.
static void serve_current(bl_transfer_queue_t *queue) {
  const bl_queued_request_t request = queue->current;
  free_link(queue);
  queue->serve(queue->context, &request);
}

// The timer is active only while the link is busy.
static void on_timer(bl_timer_t *timer, void *context) {
  (void)timer;
  bl_transfer_queue_t *queue = context;
  if (has_rate(queue)) {
    serve_current(queue);
  } else {
    set_stalled(queue, queue->current.session);
    free_link(queue);
  }
}

// ---- creation -------------------------------------------------------------------------------------------------------

bl_status_t bl_transfer_queue_create(bl_loop_t *loop, uint64_t bytes_per_second,
                                     void (*serve)(void *context, const bl_queued_request_t *request), void *context,
                                     bl_transfer_queue_t **queue, bl_error_t *err) {
  bl_transfer_queue_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the link of a store");
  }
  *made = (bl_transfer_queue_t){.serve = serve, .context = context, .bytes_per_second = bytes_per_second};
  TAILQ_INIT(&made->requests);
  bl_status_t status = bl_timer_create(loop, on_timer, made, &made->timer, err);
  if (status != BL_OK) {
    free(made);
    return status;
  }
  *queue = made;
  return BL_OK;
}

void bl_transfer_queue_destroy(bl_transfer_queue_t *queue) {
  if (queue == NULL) {
    return;
  }
  entry_t *next;
  for (entry_t *entry = TAILQ_FIRST(&queue->requests); entry != NULL; entry = next) {
    next = TAILQ_NEXT(entry, queued);
    free(entry);
  }
  bl_timer_destroy(queue->timer);
  free(queue);
}

// ---- requests -------------------------------------------------------------------------------------------------------

static bool ask_at_rate(bl_transfer_queue_t *queue, const bl_queued_request_t *request) {
  const bool again = is_current(queue, request->session, request->frame.id) &&
                     queue->current.frame.sequence == request->frame.sequence;
  if (again || is_waiting(queue, request)) {
    return false;
  }
  if (!append(queue, request)) {
    return true;
  }
  start_next(queue);
  return false;
}

static bool ask_unlimited(bl_transfer_queue_t *queue, const bl_queued_request_t *request) {
  if (is_waiting(queue, request)) {
    return false;
  }
  if (is_current(queue, request->session, request->frame.id) || is_stalled(queue, request->session)) {
    return true;
  }
  if (!queue->busy) {
    occupy(queue, request, BL_TRANSFER_QUEUE_TIMEOUT_MS);
    return true;
  }
  return !append(queue, request);
}

bool bl_transfer_queue_ask(bl_transfer_queue_t *queue, const bl_queued_request_t *request) {
  return has_rate(queue) ? ask_at_rate(queue, request) : ask_unlimited(queue, request);
}

void bl_transfer_queue_hurry(bl_transfer_queue_t *queue, uint64_t session, uint64_t id) {
  if (has_rate(queue) && is_current(queue, session, id)) {
    serve_current(queue); // its bytes still count as those of the link
    return;
  }
  entry_t *entry = find(queue, session, id);
  if (entry != NULL) {
    const bl_queued_request_t request = entry->request;
    drop(queue, entry);
    queue->serve(queue->context, &request);
  }
}

void bl_transfer_queue_end(bl_transfer_queue_t *queue, uint64_t session, uint64_t id, uint64_t generation) {
  clear_stalled(queue, session);
  if (!has_rate(queue) && queue->busy && queue->current.frame.id == id &&
      queue->current.frame.generation == generation) {
    free_link(queue);
  }
}

void bl_transfer_queue_forget(bl_transfer_queue_t *queue, uint64_t session) {
  entry_t *next;
  for (entry_t *entry = TAILQ_FIRST(&queue->requests); entry != NULL; entry = next) {
    next = TAILQ_NEXT(entry, queued);
    if (entry->request.session == session) {
      drop(queue, entry);
    }
  }
  clear_stalled(queue, session);
  if (queue->busy && queue->current.session == session) {
    free_link(queue);
  }
}
