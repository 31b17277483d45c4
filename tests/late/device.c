// SPDX-License-Identifier: Apache-2.0
// libballast-cuda.so of the device that is not there: memory, streams, events.
#include "datapath/device_path.h"
#include "device/module.h"
#include "device/open.h"
#include "fake_gpu/nccl.h"
#include "late/late.h"
#include "sys/clock.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define DELAY_NS    20000u // before each task, and up to four times that
#define PLACE_BYTES (64u << 10)
#define TOTAL_BYTES (8ull << 30)

struct bl_device_event {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  uint64_t recorded, done; // how often
  uint64_t time_ns;        // of the last done
};

typedef struct {
  bl_device_t device;
  _Atomic uint64_t used_bytes;
} late_device_t;

// ---- streams

static void *serve(void *context) {
  bl_device_stream_t *stream = context;
  pthread_mutex_lock(&stream->mutex);
  for (;;) {
    while (stream->count == 0 && !stream->stop) {
      pthread_cond_wait(&stream->changed, &stream->mutex);
    }
    if (stream->count == 0) {
      break;
    }
    late_task_t task = stream->tasks[stream->first];
    pthread_mutex_unlock(&stream->mutex);
    struct timespec delay = {.tv_nsec = DELAY_NS * (1 + stream->done % 4)};
    nanosleep(&delay, NULL);
    task.run(task.arguments);
    pthread_mutex_lock(&stream->mutex);
    stream->first = (stream->first + 1) % LATE_TASKS;
    stream->count--;
    stream->done++;
    pthread_cond_broadcast(&stream->changed);
  }
  pthread_mutex_unlock(&stream->mutex);
  return NULL;
}

static bl_status_t stream_create(bl_device_t *device, bl_device_stream_kind_t kind, bl_device_stream_t **stream,
                                 bl_error_t *err) {
  (void)device;
  (void)kind;
  bl_device_stream_t *made = calloc(1, sizeof *made);
  made->tasks = calloc(LATE_TASKS, sizeof *made->tasks);
  pthread_mutex_init(&made->mutex, NULL);
  pthread_cond_init(&made->changed, NULL);
  if (pthread_create(&made->thread, NULL, serve, made) != 0) {
    return bl_error_set(err, BL_EXHAUSTED, "no thread for a stream");
  }
  *stream = made;
  return BL_OK;
}

static void stream_destroy(bl_device_t *device, bl_device_stream_t *stream) {
  (void)device;
  pthread_mutex_lock(&stream->mutex);
  stream->stop = true;
  pthread_cond_broadcast(&stream->changed);
  pthread_mutex_unlock(&stream->mutex);
  pthread_join(stream->thread, NULL);
  pthread_cond_destroy(&stream->changed);
  pthread_mutex_destroy(&stream->mutex);
  free(stream->tasks);
  free(stream);
}

// ---- events

static bl_status_t event_create(bl_device_t *device, bool timed, bl_device_event_t **event, bl_error_t *err) {
  (void)device;
  (void)timed;
  (void)err;
  *event = calloc(1, sizeof **event);
  pthread_mutex_init(&(*event)->mutex, NULL);
  pthread_cond_init(&(*event)->changed, NULL);
  return BL_OK;
}

static void event_destroy(bl_device_t *device, bl_device_event_t *event) {
  (void)device;
  pthread_cond_destroy(&event->changed);
  pthread_mutex_destroy(&event->mutex);
  free(event);
}

typedef struct {
  bl_device_event_t *event;
  uint64_t number;
} event_task_t;

static void reach(void *arguments) {
  const event_task_t *task = arguments;
  pthread_mutex_lock(&task->event->mutex);
  task->event->done = task->number;
  task->event->time_ns = bl_clock_now_ns();
  pthread_cond_broadcast(&task->event->changed);
  pthread_mutex_unlock(&task->event->mutex);
}

static bl_status_t event_record(bl_device_t *device, bl_device_event_t *event, bl_device_stream_t *stream,
                                bl_error_t *err) {
  (void)device;
  (void)err;
  pthread_mutex_lock(&event->mutex);
  event_task_t task = {event, ++event->recorded};
  pthread_mutex_unlock(&event->mutex);
  late_put(stream, reach, &task, sizeof task);
  return BL_OK;
}

static void await(void *arguments) {
  const event_task_t *task = arguments;
  pthread_mutex_lock(&task->event->mutex);
  while (task->event->done < task->number) {
    pthread_cond_wait(&task->event->changed, &task->event->mutex);
  }
  pthread_mutex_unlock(&task->event->mutex);
}

static bl_status_t stream_wait_event(bl_device_t *device, bl_device_stream_t *stream, bl_device_event_t *event,
                                     bl_error_t *err) {
  (void)device;
  (void)err;
  pthread_mutex_lock(&event->mutex);
  event_task_t task = {event, event->recorded};
  pthread_mutex_unlock(&event->mutex);
  late_put(stream, await, &task, sizeof task);
  return BL_OK;
}

static bl_status_t event_query(bl_device_t *device, bl_device_event_t *event, bool *done, bl_error_t *err) {
  (void)device;
  (void)err;
  pthread_mutex_lock(&event->mutex);
  *done = event->done == event->recorded;
  pthread_mutex_unlock(&event->mutex);
  return BL_OK;
}

static bl_status_t event_elapsed(bl_device_t *device, bl_device_event_t *from, bl_device_event_t *to, uint64_t *ns,
                                 bl_error_t *err) {
  (void)device;
  (void)err;
  *ns = to->time_ns - from->time_ns;
  return BL_OK;
}

// ---- memory

static bl_status_t arena_map(bl_device_t *device, bl_arena_t *arena, bl_error_t *err) {
  late_device_t *late = (late_device_t *)device;
  bl_device_t *host = bl_device_host();
  if (bl_arena_kind_is_staging(arena->kind)) {
    return host->ops->arena_map(host, arena, err);
  }
  if (late->used_bytes + arena->bytes > TOTAL_BYTES) {
    return bl_error_set(err, BL_EXHAUSTED, "a device that is not there has %llu bytes", TOTAL_BYTES);
  }
  const bl_arena_kind_t kind = arena->kind;
  arena->kind = bl_arena_kind_is_shareable(kind) ? BL_ARENA_SHAREABLE : BL_ARENA_PRIVATE;
  arena->place = arena->place == NULL ? NULL : late_real(arena->place);
  bl_status_t status = host->ops->arena_map(host, arena, err);
  arena->kind = kind;
  if (status == BL_OK) {
    late->used_bytes += arena->bytes;
    arena->base = (uint8_t *)((uintptr_t)arena->base | LATE_BIT);
  }
  return status;
}

static void arena_unmap(bl_device_t *device, bl_arena_t *arena) {
  late_device_t *late = (late_device_t *)device;
  bl_device_t *host = bl_device_host();
  if (late_is_device(arena->base)) {
    late->used_bytes -= arena->bytes;
    arena->base = late_real(arena->base);
  }
  host->ops->arena_unmap(host, arena);
}

static bl_status_t range_reserve(bl_device_t *device, uint64_t bytes, uint8_t **base, bl_error_t *err) {
  (void)device;
  bl_status_t status = bl_device_host()->ops->range_reserve(bl_device_host(), bytes, base, err);
  if (status == BL_OK) {
    *base = (uint8_t *)((uintptr_t)*base | LATE_BIT);
  }
  return status;
}

static void range_release(bl_device_t *device, uint8_t *base, uint64_t bytes) {
  (void)device;
  bl_device_host()->ops->range_release(bl_device_host(), late_real(base), bytes);
}

static bl_status_t memory(bl_device_t *device, uint64_t *free_bytes, uint64_t *total_bytes, bl_error_t *err) {
  (void)err;
  *total_bytes = TOTAL_BYTES;
  *free_bytes = TOTAL_BYTES - ((late_device_t *)device)->used_bytes;
  return BL_OK;
}

typedef struct {
  void *to;
  const void *from; // NULL: fill
  uint64_t bytes;
  int value;
} move_t;

static void move(void *arguments) {
  const move_t *task = arguments;
  if (task->from == NULL) {
    memset(task->to, task->value, task->bytes);
  } else {
    memcpy(task->to, task->from, task->bytes);
  }
}

static bl_status_t copy(bl_device_t *device, bl_device_stream_t *stream, void *to, const void *from, uint64_t bytes,
                        bl_error_t *err) {
  (void)device;
  (void)err;
  move_t task = {.to = late_real(to), .from = late_real(from), .bytes = bytes};
  if (stream == NULL) {
    move(&task);
  } else {
    late_put(stream, move, &task, sizeof task);
  }
  return BL_OK;
}

static bl_status_t fill(bl_device_t *device, bl_device_stream_t *stream, void *to, uint8_t value, uint64_t bytes,
                        bl_error_t *err) {
  (void)device;
  (void)err;
  move_t task = {.to = late_real(to), .bytes = bytes, .value = value};
  if (stream == NULL) {
    move(&task);
  } else {
    late_put(stream, move, &task, sizeof task);
  }
  return BL_OK;
}

// ---- the device

static const char *describe(const bl_device_t *device) {
  (void)device;
  return "a device that is not there, 8.00 GiB";
}

static const bl_device_ops_t ops = {.name = "cuda",
                                    .arena_map = arena_map,
                                    .arena_unmap = arena_unmap,
                                    .range_reserve = range_reserve,
                                    .range_release = range_release,
                                    .copy = copy,
                                    .fill = fill,
                                    .describe = describe,
                                    .memory = memory,
                                    .stream_create = stream_create,
                                    .stream_destroy = stream_destroy,
                                    .stream_wait_event = stream_wait_event,
                                    .event_create = event_create,
                                    .event_destroy = event_destroy,
                                    .event_record = event_record,
                                    .event_query = event_query,
                                    .event_elapsed = event_elapsed};

static const char *describe_driver(void) {
  return "no driver at all";
}

static bl_status_t list(bl_device_summary_t *summaries, uint32_t capacity, uint32_t *count, bl_error_t *err) {
  (void)err;
  *count = 1;
  if (capacity > 0) {
    summaries[0] = (bl_device_summary_t){.name = "late", .address = "nowhere", .total_bytes = TOTAL_BYTES, .major = 9};
  }
  return BL_OK;
}

static bl_status_t open_device(uint32_t ordinal, bl_device_t **device, bl_error_t *err) {
  if (ordinal > 0) {
    return bl_error_set(err, BL_NOT_FOUND, "device %u: there is only one, and it is not there", ordinal);
  }
  late_device_t *late = calloc(1, sizeof *late);
  late->device = (bl_device_t){.ops = &ops, .place_bytes = PLACE_BYTES};
  *device = &late->device;
  return BL_OK;
}

static void close_device(bl_device_t *device) {
  free(device);
}

// ---- data paths: what is handed out are memfds of the host, which every process can map

static void name_gpu(bl_device_t *device, char text[BL_GPU_BYTES]) {
  (void)device;
  strcpy(text, "GPU-late");
}

static bl_status_t exports(bl_device_t *device, bl_error_t *err) {
  (void)device;
  (void)err;
  return BL_OK;
}

static bl_status_t import(bl_device_t *device, int fd, uint64_t bytes, bl_device_memory_t *imported, bl_error_t *err) {
  (void)device;
  (void)fd;
  (void)bytes;
  (void)imported;
  return bl_error_set(err, BL_DENIED, "this is no memory of a device that is not there");
}

static void release(bl_device_t *device, bl_device_memory_t *imported) {
  (void)device;
  (void)imported;
}

static bl_status_t pin(bl_device_t *device, const void *base, uint64_t bytes, bl_error_t *err) {
  (void)device;
  (void)base;
  (void)bytes;
  return bl_error_set(err, BL_UNIMPLEMENTED, "copies are slow anyway");
}

static void unpin(bl_device_t *device, const void *base) {
  (void)device;
  (void)base;
}

static uint8_t *bytes_of(const void *address, uint64_t bytes, bool writes) {
  (void)bytes;
  (void)writes;
  return late_is_device(address) ? late_real(address) : NULL;
}

// Faults that a test plants while a process runs: a file PID.stall or PID.kill in the folder LATE_NCCL_FAULTS makes the
// process stop in the middle of its next transfer, for ever, or be killed there.
static const bl_nccl_api_t *real_nccl;
static atomic_bool dies;

static bool planted(const char *what) {
  const char *folder = getenv("LATE_NCCL_FAULTS");
  char path[512];
  snprintf(path, sizeof path, "%s/%ld.%s", folder != NULL ? folder : "", (long)getpid(), what);
  return folder != NULL && unlink(path) == 0;
}

static bl_nccl_result_t launch(const bl_nccl_api_t *api, bl_nccl_comm_t *comm, void *buffer, uint64_t bytes,
                               uint32_t ticket, char *text) {
  const bool kill = planted("kill");
  if (kill || planted("stall")) {
    atomic_store(&fake_nccl_faults.stall, atomic_load(&fake_nccl_faults.transfers) + 1);
  }
  bl_nccl_result_t result = real_nccl->launch(api, comm, buffer, bytes, ticket, text);
  atomic_store(&dies, atomic_load(&dies) || kill);
  return result;
}

static bl_nccl_result_t over(const bl_nccl_api_t *api, bl_nccl_comm_t *comm, uint32_t ticket, char *text) {
  static unsigned asked;
  if (atomic_load(&dies) && ++asked > 100) { // half of the bytes have moved
    raise(SIGKILL);
  }
  return real_nccl->over(api, comm, ticket, text);
}

static bl_status_t nccl(bl_device_t *device, bool shared_gpu, const bl_nccl_api_t **api, bl_error_t *err) {
  static bl_nccl_api_t table;
  (void)device;
  (void)shared_gpu;
  if (getenv("LATE_NCCL_MISSING") != NULL) {
    return bl_error_set(err, BL_UNIMPLEMENTED, "there is no NCCL either");
  }
  real_nccl = fake_nccl_api(bytes_of);
  table = *real_nccl;
  table.launch = launch;
  table.over = over;
  *api = &table;
  return BL_OK;
}

static const void *interface(const char *name, size_t table_bytes) {
  static const bl_device_driver_t driver = {
      .describe = describe_driver, .list = list, .open = open_device, .close = close_device};
  static const bl_device_path_t path = {.gpu = name_gpu,
                                        .exports = exports,
                                        .import = import,
                                        .release = release,
                                        .pin = pin,
                                        .unpin = unpin,
                                        .nccl = nccl};
  if (strcmp(name, BL_DEVICE_PATH_INTERFACE) == 0) {
    return table_bytes == sizeof path ? &path : NULL;
  }
  return strcmp(name, "device") == 0 && table_bytes == sizeof driver ? &driver : NULL;
}

extern const bl_module_info_t bl_module;
BL_MODULE_EXPORT const bl_module_info_t bl_module = {.abi = BL_MODULE_ABI,
                                                     .info_bytes = sizeof bl_module,
                                                     .name = "cuda",
                                                     .version = BALLAST_VERSION,
                                                     .built_with = "threads",
                                                     .interface = interface};
