// SPDX-License-Identifier: Apache-2.0
// A GPU that is none, as the module libballast-cuda.so of a folder of its own (BALLAST_MODULES): what the data paths of
// device memory need, over memory of the host, across processes. It is strict where a GPU is:
//
//   - Addresses of its memory are not mapped: whoever touches one with the CPU dies. Copies go over hidden maps.
//   - A stream does nothing until somebody asks: what was queued happens, one piece after the other, when events are
//     queried, as late as can be.
//   - Descriptors of its memory are no memfds that the host's paths would take; what is imported can only be read.
//
// In the environment: FAKE_GPU_CLOSED: memory cannot be handed out. FAKE_GPU_COUNT: devices, 2 if it is not set.
// FAKE_GPU_FIRST: which of the machine's is the first that this process sees, 0 if it is not set. FAKE_GPU_ALONE: the one
// that has no way to others. NCCL is as real as the rest (nccl.h); FAKE_NCCL_MISSING: there is none. FAKE_GPU_LEGACY: memory
// is handed out by name, as a part of an allocation (device/ticket.h). FAKE_GPU_COPY_MS: how long each piece of a stream takes;
// its bytes move at the end.
#include "device/module.h"
#include "base/bytes.h"
#include "datapath/device_path.h"
#include "datapath/nccl/environment.h"
#include "device/open.h"
#include "device/ticket.h"
#include "fake_gpu/fake_module.h"
#include "fake_gpu/nccl.h"
#include "sys/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PLACE_BYTES (UINT64_C(2) << 20)
#define RANGES      4096u
#define MEMORY_NAME "fake-gpu-" // and the GPU's number

typedef struct gpu {
  bl_device_t device; // first
  uint32_t number;    // of the machine's
  char description[64];
} gpu_t;

// Addresses that the CPU may not touch, and where their bytes are.
static struct {
  pthread_mutex_t mutex;
  struct {
    const uint8_t *base;
    uint8_t *hidden;
    uint64_t bytes;
    bool readable_only;
  } ranges[RANGES];
} memory = {.mutex = PTHREAD_MUTEX_INITIALIZER};

struct bl_device_event {
  bl_device_stream_t *stream;
  uint64_t after; // pieces that must have been done
};

typedef struct piece {
  void *to;
  const void *from; // NULL: fill
  uint64_t bytes;
  uint8_t value;
  uint64_t since_ns; // that it is looked at
  struct piece *next;
} piece_t;

struct bl_device_stream {
  pthread_mutex_t mutex;
  piece_t *first, *last;
  uint64_t queued, done;
};

static void add_range(const uint8_t *base, uint8_t *hidden, uint64_t bytes, bool readable_only) {
  pthread_mutex_lock(&memory.mutex);
  for (unsigned i = 0; i < RANGES; i++) {
    if (memory.ranges[i].base == NULL) {
      memory.ranges[i].base = base;
      memory.ranges[i].hidden = hidden;
      memory.ranges[i].bytes = bytes;
      memory.ranges[i].readable_only = readable_only;
      pthread_mutex_unlock(&memory.mutex);
      return;
    }
  }
  abort();
}

static uint8_t *take_range(const uint8_t *base) {
  uint8_t *hidden = NULL;
  pthread_mutex_lock(&memory.mutex);
  for (unsigned i = 0; i < RANGES && hidden == NULL; i++) {
    if (memory.ranges[i].base == base) {
      hidden = memory.ranges[i].hidden;
      memory.ranges[i].base = NULL;
    }
  }
  pthread_mutex_unlock(&memory.mutex);
  return hidden;
}

// Where the bytes of an address are; ordinary memory is where it is. Never across an end.
static uint8_t *translate(const void *address, uint64_t bytes, bool writes) {
  uint8_t *at = (uint8_t *)(uintptr_t)address;
  pthread_mutex_lock(&memory.mutex);
  for (unsigned i = 0; i < RANGES; i++) {
    const uint8_t *base = memory.ranges[i].base;
    if (base != NULL && at >= base && at < base + memory.ranges[i].bytes) {
      if (bytes > (uint64_t)(base + memory.ranges[i].bytes - at) || (writes && memory.ranges[i].readable_only)) {
        fprintf(stderr, "fake GPU: a copy beyond its memory, or into a peer's\n");
        abort();
      }
      at = memory.ranges[i].hidden + (at - base);
      break;
    }
  }
  pthread_mutex_unlock(&memory.mutex);
  return at;
}

// ---- memory --------------------------------------------------------------------------------------------------------------

static bl_status_t failed(bl_error_t *err, const char *what) {
  return bl_error_set(err, BL_EXHAUSTED, "%s: %s", what, strerror(errno));
}

static bool is_staging(const bl_arena_t *arena) {
  return bl_arena_kind_is_staging(arena->kind);
}

static bool is_legacy(void) {
  return getenv("FAKE_GPU_LEGACY") != NULL;
}

// A ticket for the memory behind `fd`, in which it begins after one place.
static bl_status_t name_memory(bl_arena_t *arena, int fd, bl_error_t *err) {
  bl_memory_ticket_t ticket = {.offset_bytes = PLACE_BYTES, .bytes = arena->bytes};
  snprintf((char *)ticket.name, sizeof ticket.name, "/proc/%ld/fd/%d", (long)getpid(), fd);
  return bl_memory_ticket_write(&ticket, &arena->fd, err);
}

static bl_status_t arena_map(bl_device_t *device, bl_arena_t *arena, bl_error_t *err) {
  char name[32];
  snprintf(name, sizeof name, MEMORY_NAME "%u", ((const gpu_t *)(const void *)device)->number);
  if (is_staging(arena)) {
    return bl_device_host()->ops->arena_map(bl_device_host(), arena, err);
  }
  const uint64_t before = is_legacy() ? PLACE_BYTES : 0;
  arena->mapped_bytes = bl_align_up(arena->bytes, PLACE_BYTES);
  int fd = memfd_create(name, MFD_CLOEXEC); // sealed against sealing: nobody takes it for an arena of the host
  if (fd < 0 || ftruncate(fd, (off_t)(before + arena->mapped_bytes)) != 0) {
    return failed(err, "memory of the fake GPU");
  }
  uint8_t *hidden = mmap(NULL, arena->mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)before);
  uint8_t *base = arena->place;
  if (base == NULL) {
    base = mmap(NULL, arena->mapped_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  if (hidden == MAP_FAILED || base == MAP_FAILED) {
    close(fd);
    return failed(err, "memory of the fake GPU");
  }
  add_range(base, hidden, arena->mapped_bytes, false);
  arena->base = base;
  arena->handle = 0;
  if (!bl_arena_kind_is_shareable(arena->kind)) {
    close(fd);
    arena->fd = -1;
    return BL_OK;
  }
  if (is_legacy()) {
    arena->handle = (uint64_t)fd;
    return name_memory(arena, fd, err);
  }
  arena->fd = fd;
  return BL_OK;
}

static void arena_unmap(bl_device_t *device, bl_arena_t *arena) {
  (void)device;
  if (is_staging(arena)) {
    bl_device_host()->ops->arena_unmap(bl_device_host(), arena);
    return;
  }
  munmap(take_range(arena->base), arena->mapped_bytes);
  if (arena->place == NULL) {
    munmap(arena->base, arena->mapped_bytes);
  }
  if (arena->fd >= 0) {
    close(arena->fd);
  }
  if (arena->handle != 0) {
    close((int)arena->handle);
  }
}

static bl_status_t range_reserve(bl_device_t *device, uint64_t bytes, uint8_t **base, bl_error_t *err) {
  (void)device;
  uint8_t *reserved =
      mmap(NULL, bl_align_up(bytes, PLACE_BYTES), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) {
    return failed(err, "addresses of the fake GPU");
  }
  *base = reserved;
  return BL_OK;
}

static void range_release(bl_device_t *device, uint8_t *base, uint64_t bytes) {
  (void)device;
  munmap(base, bl_align_up(bytes, PLACE_BYTES));
}

// ---- streams and events ----------------------------------------------------------------------------------------------------

static void run(const piece_t *piece) {
  uint8_t *to = translate(piece->to, piece->bytes, true);
  if (piece->from == NULL) {
    memset(to, piece->value, piece->bytes);
  } else {
    memcpy(to, translate(piece->from, piece->bytes, false), piece->bytes);
  }
}

static uint32_t number_of(const char *variable, uint32_t preset) {
  const char *text = getenv(variable);
  return text != NULL ? (uint32_t)strtoul(text, NULL, 10) : preset;
}

// Mutex held. Does the oldest piece that is queued, if it has taken its time.
static void advance(bl_device_stream_t *stream) {
  piece_t *piece = stream->first;
  const uint64_t now_ns = bl_clock_now_ns();
  if (piece != NULL && piece->since_ns == 0) {
    piece->since_ns = now_ns;
  }
  if (piece != NULL && now_ns - piece->since_ns >= number_of("FAKE_GPU_COPY_MS", 0) * BL_NS_PER_MS) {
    stream->first = piece->next;
    stream->last = stream->first == NULL ? NULL : stream->last;
    run(piece);
    free(piece);
    stream->done++;
  }
}

static bl_status_t queue(bl_device_stream_t *stream, piece_t piece) {
  if (stream == NULL) {
    run(&piece);
    return BL_OK;
  }
  piece_t *queued = malloc(sizeof *queued);
  *queued = piece;
  queued->next = NULL;
  pthread_mutex_lock(&stream->mutex);
  if (stream->last != NULL) {
    stream->last->next = queued;
  } else {
    stream->first = queued;
  }
  stream->last = queued;
  stream->queued++;
  pthread_mutex_unlock(&stream->mutex);
  return BL_OK;
}

static bl_status_t copy(bl_device_t *device, bl_device_stream_t *stream, void *to, const void *from, uint64_t bytes,
                        bl_error_t *err) {
  (void)device;
  (void)err;
  return queue(stream, (piece_t){.to = to, .from = from, .bytes = bytes});
}

static bl_status_t fill(bl_device_t *device, bl_device_stream_t *stream, void *to, uint8_t value, uint64_t bytes,
                        bl_error_t *err) {
  (void)device;
  (void)err;
  return queue(stream, (piece_t){.to = to, .bytes = bytes, .value = value});
}

static bl_status_t stream_create(bl_device_t *device, bl_device_stream_kind_t kind, bl_device_stream_t **stream,
                                 bl_error_t *err) {
  (void)device;
  (void)kind;
  (void)err;
  *stream = calloc(1, sizeof **stream);
  pthread_mutex_init(&(*stream)->mutex, NULL);
  return BL_OK;
}

static void stream_destroy(bl_device_t *device, bl_device_stream_t *stream) {
  (void)device;
  while (stream->first != NULL) {
    advance(stream);
  }
  pthread_mutex_destroy(&stream->mutex);
  free(stream);
}

static bl_status_t event_query(bl_device_t *device, bl_device_event_t *event, bool *done, bl_error_t *err) {
  (void)device;
  (void)err;
  bl_device_stream_t *stream = event->stream;
  *done = true;
  if (stream != NULL) {
    pthread_mutex_lock(&stream->mutex);
    *done = stream->done >= event->after;
    if (!*done) {
      advance(stream);
    }
    pthread_mutex_unlock(&stream->mutex);
  }
  return BL_OK;
}

static bl_status_t stream_wait_event(bl_device_t *device, bl_device_stream_t *stream, bl_device_event_t *event,
                                     bl_error_t *err) {
  (void)stream;
  for (bool done = false; !done;) { // what it waits for happens now; it itself happens later
    (void)event_query(device, event, &done, err);
  }
  return BL_OK;
}

static bl_status_t event_create(bl_device_t *device, bool timed, bl_device_event_t **event, bl_error_t *err) {
  (void)device;
  (void)timed;
  (void)err;
  *event = calloc(1, sizeof **event);
  return BL_OK;
}

static void event_destroy(bl_device_t *device, bl_device_event_t *event) {
  (void)device;
  free(event);
}

static bl_status_t event_record(bl_device_t *device, bl_device_event_t *event, bl_device_stream_t *stream,
                                bl_error_t *err) {
  (void)device;
  (void)err;
  pthread_mutex_lock(&stream->mutex);
  event->stream = stream;
  event->after = stream->queued;
  pthread_mutex_unlock(&stream->mutex);
  return BL_OK;
}

static bl_status_t event_elapsed(bl_device_t *device, bl_device_event_t *from, bl_device_event_t *to, uint64_t *ns,
                                 bl_error_t *err) {
  (void)device;
  (void)from;
  (void)to;
  (void)err;
  *ns = 1;
  return BL_OK;
}

static const char *describe(const bl_device_t *device) {
  return ((const gpu_t *)(const void *)device)->description;
}

static const bl_device_ops_t ops = {.name = "cuda",
                                    .arena_map = arena_map,
                                    .arena_unmap = arena_unmap,
                                    .range_reserve = range_reserve,
                                    .range_release = range_release,
                                    .copy = copy,
                                    .fill = fill,
                                    .describe = describe,
                                    .stream_create = stream_create,
                                    .stream_destroy = stream_destroy,
                                    .stream_wait_event = stream_wait_event,
                                    .event_create = event_create,
                                    .event_destroy = event_destroy,
                                    .event_record = event_record,
                                    .event_query = event_query,
                                    .event_elapsed = event_elapsed};

// ---- the driver ------------------------------------------------------------------------------------------------------------

static uint32_t count_of(void) {
  return number_of("FAKE_GPU_COUNT", 2);
}

static uint32_t first(void) {
  return number_of("FAKE_GPU_FIRST", 0);
}

static const char *driver_describe(void) {
  return "a fake GPU";
}

static bl_status_t list(bl_device_summary_t *summaries, uint32_t capacity, uint32_t *count, bl_error_t *err) {
  (void)err;
  *count = count_of();
  for (uint32_t i = 0; i < *count && i < capacity; i++) {
    summaries[i] = (bl_device_summary_t){.ordinal = i, .name = "Fake GPU", .total_bytes = 1u << 30, .major = 9};
    summaries[i].uuid[15] = (uint8_t)(first() + i);
  }
  return BL_OK;
}

static bl_status_t open_gpu(uint32_t ordinal, bl_device_t **device, bl_error_t *err) {
  if (ordinal >= count_of()) {
    return bl_error_set(err, BL_NOT_FOUND, "device %u: there are %u fake GPUs", ordinal, count_of());
  }
  gpu_t *gpu = calloc(1, sizeof *gpu);
  gpu->device = (bl_device_t){.ops = &ops, .place_bytes = PLACE_BYTES};
  gpu->number = first() + ordinal;
  snprintf(gpu->description, sizeof gpu->description, "fake GPU %u", gpu->number);
  *device = &gpu->device;
  return BL_OK;
}

static void close_gpu(bl_device_t *device) {
  free(device);
}

// ---- data paths ------------------------------------------------------------------------------------------------------------

static void name_gpu(bl_device_t *device, char text[BL_GPU_BYTES]) {
  snprintf(text, BL_GPU_BYTES, "GPU-fake-%u", ((const gpu_t *)(const void *)device)->number);
}

static bl_status_t reaches(bl_device_t *device, const char *gpu, bl_error_t *err) {
  const uint32_t own = ((const gpu_t *)(const void *)device)->number, alone = number_of("FAKE_GPU_ALONE", UINT32_MAX);
  unsigned other;
  if (sscanf(gpu, "GPU-fake-%u", &other) != 1 || other < first() || other >= first() + count_of()) {
    return bl_error_set(err, BL_UNIMPLEMENTED, "this process sees %u GPUs, and not that one", count_of());
  }
  return own == other || (own != alone && other != alone)
             ? BL_OK
             : bl_error_set(err, BL_UNIMPLEMENTED, "the machine has no peer access between fake GPUs %u and %u", own,
                            other);
}

static bl_status_t exports(bl_device_t *device, bl_error_t *err) {
  (void)device;
  return getenv("FAKE_GPU_CLOSED") == NULL ? BL_OK
                                           : bl_error_set(err, BL_UNIMPLEMENTED, "this fake GPU keeps its memory");
}

// Whether memory behind a descriptor is of a GPU that this process sees.
static bool is_seen(int fd) {
  char link[64], target[128];
  unsigned number;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, target, sizeof target - 1);
  target[length < 0 ? 0 : length] = '\0';
  return sscanf(target, "/memfd:" MEMORY_NAME "%u", &number) != 1 ||
         (number >= first() && number < first() + count_of());
}

static bl_status_t import_from(int fd, uint64_t at, uint64_t bytes, bl_device_memory_t *imported, bl_error_t *err) {
  struct stat info;
  if (!is_seen(fd)) {
    return bl_error_set(err, BL_UNIMPLEMENTED, "it is of a GPU not seen here");
  }
  uint64_t mapped_bytes = bl_align_up(bytes, PLACE_BYTES);
  if (fstat(fd, &info) != 0 || (uint64_t)info.st_size < at + mapped_bytes) {
    return bl_error_set(err, BL_INVALID, "no memory of a fake GPU, or less than %llu bytes", (unsigned long long)bytes);
  }
  uint8_t *hidden = mmap(NULL, mapped_bytes, PROT_READ, MAP_SHARED, fd, (off_t)at);
  uint8_t *base = mmap(NULL, mapped_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (hidden == MAP_FAILED || base == MAP_FAILED) {
    return failed(err, "importing");
  }
  add_range(base, hidden, mapped_bytes, true);
  *imported = (bl_device_memory_t){.base = base, .mapped_bytes = mapped_bytes};
  return BL_OK;
}

static bl_status_t import(bl_device_t *device, int fd, uint64_t bytes, bl_device_memory_t *imported, bl_error_t *err) {
  (void)device;
  bl_memory_ticket_t ticket;
  if (!bl_memory_ticket_read(fd, &ticket)) {
    return import_from(fd, 0, bytes, imported, err);
  }
  ticket.name[sizeof ticket.name - 1] = '\0';
  int named = ticket.bytes >= bytes ? open((const char *)ticket.name, O_RDONLY | O_CLOEXEC) : -1;
  if (named < 0) {
    return bl_error_set(err, BL_INVALID, "no memory of a fake GPU is called so, or it is smaller");
  }
  bl_status_t status = import_from(named, ticket.offset_bytes, bytes, imported, err);
  close(named);
  return status;
}

static bool legacy_ipc(bl_device_t *device) {
  (void)device;
  return is_legacy();
}

static void release(bl_device_t *device, bl_device_memory_t *imported) {
  (void)device;
  munmap(take_range(imported->base), imported->mapped_bytes);
  munmap((void *)(uintptr_t)imported->base, imported->mapped_bytes);
  *imported = (bl_device_memory_t){0};
}

static bl_status_t pin(bl_device_t *device, const void *base, uint64_t bytes, bl_error_t *err) {
  (void)device;
  (void)base;
  (void)bytes;
  (void)err;
  return BL_OK;
}

static void unpin(bl_device_t *device, const void *base) {
  (void)device;
  (void)base;
}

static bl_status_t nccl(bl_device_t *device, bool shared_gpu, const bl_nccl_api_t **api, bl_error_t *err) {
  char gpu[BL_GPU_BYTES];
  bl_nccl_set_environment(shared_gpu);
  if (getenv("FAKE_NCCL_MISSING") != NULL) {
    return bl_error_set(err, BL_UNIMPLEMENTED, "this fake GPU has no NCCL");
  }
  if (device != NULL) { // else only the version is asked for
    name_gpu(device, gpu);
  }
  *api = fake_nccl_api(translate, device != NULL ? gpu : NULL);
  return BL_OK;
}

static bl_status_t nccl_version(int *version, bl_error_t *err) {
  return fake_nccl_version(nccl, version, err);
}

static const void *interface(const char *name, size_t table_bytes) {
  static const bl_device_driver_t driver = {
      .describe = driver_describe, .list = list, .open = open_gpu, .close = close_gpu};
  static const bl_device_path_t path = {.gpu = name_gpu,
                                        .exports = exports,
                                        .reaches = reaches,
                                        .legacy_ipc = legacy_ipc,
                                        .import = import,
                                        .release = release,
                                        .pin = pin,
                                        .unpin = unpin,
                                        .nccl = nccl,
                                        .nccl_version = nccl_version};
  static const fake_interface_t tables[] = {FAKE_INTERFACE("device", driver),
                                            FAKE_INTERFACE(BL_DEVICE_PATH_INTERFACE, path),
                                            FAKE_INTERFACE(FAKE_NCCL_INTERFACE, fake_nccl_faults)};
  return fake_interface(tables, sizeof tables / sizeof tables[0], name, table_bytes);
}

FAKE_MODULE("nothing", interface);
