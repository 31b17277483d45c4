// SPDX-License-Identifier: Apache-2.0
// libballast-cuda.so of the device that is not there: memory, streams, events.
//
// Troubles of a machine, by the environment, in the CUDA back end's own words: LATE_DRIVER=0 (none) or 12040 (of CUDA
// 12.4), LATE_DEVICES=0, LATE_CAPABILITY=75. LATE_COPY_US: how long a copy from the device takes. LATE_BESIDE_MIB: memory that
// libraries take beside what is planned. LATE_CLOSED: memory cannot be handed out. LATE_WHOLE_RANGES=1: ranges are there as a whole, as where memory has names.
#include "datapath/device_path.h"
#include "datapath/nccl/environment.h"
#include "device/cuda/verdict.h"
#include "device/libraries.h"
#include "device/module.h"
#include "device/open.h"
#include "device/profiler.h"
#include "fake_gpu/fake_module.h"
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

// ---- which task took how long (device/profiler.h)

static struct {
  pthread_mutex_t mutex;
  bool on;
  bl_kernel_sums_t sums;
} profile = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static bl_status_t profile_start(bl_device_t *device, bl_error_t *err) {
  (void)device;
  (void)err;
  pthread_mutex_lock(&profile.mutex);
  profile.on = true;
  pthread_mutex_unlock(&profile.mutex);
  return BL_OK;
}

static bl_status_t profile_stop(bl_device_kernel_t *kernels, size_t capacity, size_t *count, uint64_t *total_ns,
                                bl_error_t *err) {
  pthread_mutex_lock(&profile.mutex);
  profile.on = false;
  bl_status_t status = bl_kernel_sums_take(&profile.sums, kernels, capacity, count, total_ns, err);
  pthread_mutex_unlock(&profile.mutex);
  return status;
}

static void run_task(late_task_t *task) {
  const uint64_t start_ns = bl_clock_now_ns();
  task->run(task->arguments);
  if (task->name != NULL) {
    pthread_mutex_lock(&profile.mutex);
    if (profile.on) {
      bl_kernel_sums_add(&profile.sums, task->name, bl_clock_now_ns() - start_ns, 1);
    }
    pthread_mutex_unlock(&profile.mutex);
  }
}

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
    run_task(&task);
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
  late_put(stream, NULL, reach, &task, sizeof task);
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
  late_put(stream, NULL, await, &task, sizeof task);
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
  const uint64_t used_bytes = late->used_bytes;
  if (used_bytes + arena->bytes > TOTAL_BYTES) {
    return bl_cuda_verdict_memory("late", arena->bytes, TOTAL_BYTES - used_bytes, TOTAL_BYTES, err);
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

static int trouble(const char *variable, int usual) {
  const char *text = getenv(variable);
  return text != NULL ? atoi(text) : usual;
}

static bl_status_t memory(bl_device_t *device, uint64_t *free_bytes, uint64_t *total_bytes, bl_error_t *err) {
  (void)err;
  *total_bytes = TOTAL_BYTES;
  *free_bytes = TOTAL_BYTES - ((late_device_t *)device)->used_bytes;
  // What libraries take once everything is planned, which the first question finds still free.
  static _Atomic unsigned asked;
  const uint64_t beside = (uint64_t)trouble("LATE_BESIDE_MIB", 0) << 20;
  if (asked++ > 0) {
    *free_bytes -= beside < *free_bytes ? beside : *free_bytes;
  }
  return BL_OK;
}

typedef struct {
  void *to;
  const void *from; // NULL: fill
  uint64_t bytes;
  int value;
  bool slow;
} move_t;

static void move(void *arguments) {
  const move_t *task = arguments;
  if (task->slow) {
    usleep((useconds_t)trouble("LATE_COPY_US", 0));
  }
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
  task.slow = late_is_device(from) && !late_is_device(to);
  if (stream == NULL) {
    move(&task);
  } else {
    late_put(stream, task.from == NULL ? "fill" : "copy", move, &task, sizeof task);
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
    late_put(stream, task.from == NULL ? "fill" : "copy", move, &task, sizeof task);
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

static bl_cuda_findings_t look(void) {
  bl_cuda_findings_t findings = {.runtime = 13000, .driver = trouble("LATE_DRIVER", 13000), .result_text = "no error"};
  findings.count = findings.driver >= findings.runtime ? trouble("LATE_DEVICES", 1) : 0;
  findings.result = findings.driver < findings.runtime ? BL_CUDA_INSUFFICIENT_DRIVER
                    : findings.count == 0              ? BL_CUDA_NO_DEVICE
                                                       : 0;
  return findings;
}

static const char *describe_driver(void) {
  return "no driver at all";
}

static bl_status_t list(bl_device_summary_t *summaries, uint32_t capacity, uint32_t *count, bl_error_t *err) {
  const bl_cuda_findings_t findings = look();
  *count = 0;
  bl_status_t status = bl_cuda_verdict(&findings, err);
  if (status != BL_OK) {
    return status;
  }
  *count = (uint32_t)findings.count;
  for (uint32_t i = 0; i < capacity && i < *count; i++) {
    summaries[i] = (bl_device_summary_t){
        .ordinal = i, .name = "late", .address = "nowhere", .total_bytes = TOTAL_BYTES, .major = 9};
  }
  return BL_OK;
}

static bl_status_t open_device(uint32_t ordinal, bl_device_t **device, bl_error_t *err) {
  const bl_cuda_findings_t findings = look();
  const int capability = trouble("LATE_CAPABILITY", 90);
  bl_status_t status = bl_cuda_verdict(&findings, err);
  status = status == BL_OK ? bl_cuda_verdict_ordinal(&findings, ordinal, err) : status;
  status = status == BL_OK ? bl_cuda_verdict_capability("late", capability / 10, capability % 10, err) : status;
  if (status != BL_OK) {
    return status;
  }
  late_device_t *late = calloc(1, sizeof *late);
  late->device =
      (bl_device_t){.ops = &ops, .place_bytes = PLACE_BYTES, .whole_ranges = trouble("LATE_WHOLE_RANGES", 0) != 0};
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
  return getenv("LATE_CLOSED") == NULL ? BL_OK
                                       : bl_error_set(err, BL_UNIMPLEMENTED, "what is not there keeps its memory");
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
  const bool kill = buffer != NULL && planted("kill");
  if (kill || (buffer != NULL && planted("stall"))) {
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

static void queue_collective(bl_device_stream_t *stream, void (*run)(void *arguments), const void *arguments,
                             size_t bytes) {
  late_put(stream, "collective", run, arguments, bytes);
}

static bl_status_t nccl(bl_device_t *device, bool shared_gpu, const bl_nccl_api_t **api, bl_error_t *err) {
  static bl_nccl_api_t table;
  char gpu[BL_GPU_BYTES];
  bl_nccl_set_environment(shared_gpu);
  if (getenv("LATE_NCCL_MISSING") != NULL) {
    return bl_error_set(err, BL_UNIMPLEMENTED, "there is no NCCL either");
  }
  name_gpu(device, gpu);
  real_nccl = fake_nccl_api(bytes_of, gpu);
  fake_nccl_queue = queue_collective;
  table = *real_nccl;
  table.launch = launch;
  table.over = over;
  *api = &table;
  return BL_OK;
}

static bl_status_t reaches(bl_device_t *device, const char *gpu, bl_error_t *err) {
  char own[BL_GPU_BYTES];
  name_gpu(device, own);
  return strcmp(own, gpu) == 0 ? BL_OK : bl_error_set(err, BL_UNIMPLEMENTED, "it is no device of this machine");
}

static bl_status_t nccl_version(int *version, bl_error_t *err) {
  return fake_nccl_version(nccl, version, err);
}

static bool version_of(const char *library, char text[BL_DEVICE_LIBRARY_VERSION_BYTES]) {
  strcpy(text, "0.1");
  return strcmp(library, "driver") == 0 || strcmp(library, "cuda") == 0;
}

static const void *interface(const char *name, size_t table_bytes) {
  static const bl_device_profiler_t profiler = {.start = profile_start, .stop = profile_stop};
  static const bl_device_versions_t versions = {.version = version_of};
  static const bl_device_driver_t driver = {
      .describe = describe_driver, .list = list, .open = open_device, .close = close_device};
  static const bl_device_path_t path = {.gpu = name_gpu,
                                        .exports = exports,
                                        .reaches = reaches,
                                        .import = import,
                                        .release = release,
                                        .pin = pin,
                                        .unpin = unpin,
                                        .nccl = nccl,
                                        .nccl_version = nccl_version};
  static const fake_interface_t tables[] = {
      FAKE_INTERFACE("device", driver), FAKE_INTERFACE(BL_DEVICE_PATH_INTERFACE, path),
      FAKE_INTERFACE(BL_DEVICE_LIBRARIES_INTERFACE, versions), FAKE_INTERFACE(BL_DEVICE_PROFILER_INTERFACE, profiler)};
  return fake_interface(tables, sizeof tables / sizeof tables[0], name, table_bytes);
}

FAKE_MODULE("threads", interface);
