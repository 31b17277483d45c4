// SPDX-License-Identifier: Apache-2.0
// The data path compared with its underlying mechanism in the same run. On the host: tensors between two stages; shm is
// compared with a plain memcpy of the same bytes from the same kind of map, tcp with a bare loop over a loopback
// socket. On a GPU: blocks to a store and back (path_device.h). Pairs are interleaved; results are medians of their
// ratios.
#ifdef BALLAST_BENCH_PATH
#include "bench.h"

#include "bare_socket.h"
#include "base/bytes.h"
#include "base/sort.h"
#include "datapath/boundary.h"
#include "datapath/shared_map.h"
#include "measure.h"
#include "path_device.h"
#include "program.h"
#include "sys/clock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAIRS_MAX   99
#define TENSORS_MAX 1024
#define DEADLINE_NS (60ull * BL_NS_PER_S)

typedef struct {
  int64_t pairs, in_flight, sample_bytes, tensor_bytes, product, pace;
  int path; // index into path_names
  char *device, *store_device;
} settings_t;

static const char *const path_names[] = {"all", "shm", "tcp", "cuda-ipc", "nccl", NULL}; // all: BL_PATH_AUTO

static const bl_option_t rows[] = {
    {.name = "device",
     .type = BL_OPTION_TEXT,
     .offset = offsetof(settings_t, device),
     .preset = "host",
     .argument = "host|cuda:N",
     .help = "Whose memory: the host's (tensors between stages), or that of GPU N (evict and load between it and a "
             "store)."},
    {.name = "store-device",
     .type = BL_OPTION_TEXT,
     .offset = offsetof(settings_t, store_device),
     .argument = "cuda:N",
     .help = "The store's GPU. Default: the same as --device; NCCL then goes over sockets."},
    BL_BENCH_ENUM(settings_t, path, "path", path_names, "all", "One path; all are those that the device has."),
    BL_BENCH_PAIRS(settings_t, pairs, "15", PAIRS_MAX, "path and reference"),
    BL_BENCH_INT(settings_t, in_flight, "in-flight", "2", 1, 16, "Tensors posted at once."),
    BL_BENCH_BYTES(settings_t, tensor_bytes, "tensor", "0", 0, 1 << 30,
                   "Size of a tensor or block; 0: 3 MiB, 16 MiB and 64 MiB one after the other."),
    BL_BENCH_BYTES(settings_t, sample_bytes, "sample", "256 MiB", 1 << 20, 1ll << 34, "Bytes moved per sample."),
    BL_BENCH_INT(
        settings_t, product, "product", "4096", 0, 1 << 16,
        "With --device cuda:N: what blocks of the largest size cost matrix products [N, N] that go on meanwhile; "
        "0: not measured."),
    BL_BENCH_INT(
        settings_t, pace, "pace", "4600", 1, 1 << 24,
        "Floating-point operations for each byte that is moved: a LLaMA 65B stage of four tensor-parallel parts "
        "that parks every block. Beside it blocks without a pause are measured."),
};

static const bl_flags_t flags = {.program = "ballast-bench path",
                                 .usage = "[options]",
                                 .about = "Times the data paths of a device against what they stand on: memcpy, a bare "
                                          "socket, a bare copy.",
                                 .table = {rows, sizeof rows / sizeof rows[0], "command line"}};

// Two stages in one process. Buffers rotate over `in_flight` slots on both sides.
typedef struct {
  const settings_t *settings;
  uint64_t tensor_bytes;
  uint32_t tensors; // per sample
  bl_arena_t source, destination;
  bl_transport_t *transports[2];
  char folder[64];
  uint64_t attempt;
  bl_shared_map_t map; // of the source, read-only, as a peer maps it
  bl_bare_socket_t bare;
} bench_t;

static bl_tensor_key_t key_of(uint32_t tensor) {
  return (bl_tensor_key_t){.direction = BL_FORWARD, .micro_batch = tensor};
}

static uint64_t place(const bench_t *bench, uint32_t tensor) {
  return tensor % (uint32_t)bench->settings->in_flight * bench->tensor_bytes;
}

static bl_status_t post_pair(bench_t *bench, uint32_t tensor, bl_error_t *err) {
  uint64_t at = place(bench, tensor);
  bl_status_t status = bl_transport_post_receive(bench->transports[1], 0, key_of(tensor), bench->destination.base + at,
                                                 bench->tensor_bytes, err);
  if (status != BL_OK) {
    return status;
  }
  return bl_transport_post_send(bench->transports[0], 1, key_of(tensor), bench->source.base + at, bench->tensor_bytes,
                                err);
}

// Moves one sample through the transports.
static bl_status_t run_path(bench_t *bench, double *seconds, bl_error_t *err) {
  uint32_t window = (uint32_t)bench->settings->in_flight;
  bench->attempt++;
  bl_status_t status = bl_transport_begin(bench->transports[0], bench->attempt, err);
  status = status != BL_OK ? status : bl_transport_begin(bench->transports[1], bench->attempt, err);
  uint64_t start = bl_clock_now_ns(), deadline = start + DEADLINE_NS;
  for (uint32_t i = 0; status == BL_OK && i < bench->tensors + window; i++) {
    if (i >= window) {
      status = bl_transport_wait_received(bench->transports[1], 0, key_of(i - window), deadline, err);
      status =
          status != BL_OK ? status : bl_transport_wait_sent(bench->transports[0], 1, key_of(i - window), deadline, err);
    }
    if (status == BL_OK && i < bench->tensors) {
      status = post_pair(bench, i, err);
    }
  }
  *seconds = (double)(bl_clock_now_ns() - start) * 1e-9;
  return status;
}

static bl_status_t run_memcpy(bench_t *bench, double *seconds, bl_error_t *err) {
  (void)err;
  uint64_t start = bl_clock_now_ns();
  for (uint32_t i = 0; i < bench->tensors; i++) {
    memcpy(bench->destination.base + place(bench, i), bench->map.base + place(bench, i), bench->tensor_bytes);
    __asm__ volatile("" : : "r"(bench->destination.base) : "memory"); // the compiler must keep every copy
  }
  *seconds = (double)(bl_clock_now_ns() - start) * 1e-9;
  return BL_OK;
}

static bl_status_t run_socket(bench_t *bench, double *seconds, bl_error_t *err) {
  bl_bare_run_t run = {.from = bench->source.base,
                       .to = bench->destination.base,
                       .bytes = bench->tensor_bytes,
                       .count = bench->tensors,
                       .places = (uint32_t)bench->settings->in_flight};
  return bl_bare_socket_run(&bench->bare, &run, seconds, err);
}

static void on_connected(void *user, bl_status_t status, const bl_error_t *err) {
  (void)user;
  (void)status;
  (void)err; // the other side gets the same error
}

static bl_status_t connect_hubs(bench_t *bench, bl_path_t path, bl_error_t *err) {
  bl_transport_peer_t peers[2];
  uint64_t deadline = bl_clock_now_ns() + 10ull * BL_NS_PER_S;
  for (int i = 0; i < 2; i++) {
    peers[i] = (bl_transport_peer_t){.stage = i,
                                     .unix_address = bl_transport_unix_address(bench->transports[i]),
                                     .tcp_address = bl_transport_tcp_address(bench->transports[i]),
                                     .machine = bl_transport_machine(bench->transports[i])};
    memcpy(peers[i].token, bl_transport_token(bench->transports[i]), sizeof peers[i].token);
  }
  // The link of the higher stage is ready last.
  bl_status_t status =
      bl_transport_connect(bench->transports[0], &peers[1], 1, path, deadline, on_connected, NULL, err);
  return status != BL_OK ? status : bl_transport_connect_wait(bench->transports[1], &peers[0], 1, path, deadline, err);
}

static bl_status_t open_hubs(bench_t *bench, bl_path_t path, bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (int i = 0; i < 2 && status == BL_OK; i++) {
    char socket_path[80];
    snprintf(socket_path, sizeof socket_path, "%s/%d", bench->folder, i);
    bl_transport_options_t options = {.stage = i,
                                      .unix_path = socket_path,
                                      .tcp_host = "127.0.0.1",
                                      .arenas = &bench->source,
                                      .arena_count = i == 0 ? 1 : 0};
    status = bl_transport_create(&options, &bench->transports[i], err);
  }
  return status != BL_OK ? status : connect_hubs(bench, path, err);
}

static void close_bench(bench_t *bench) {
  for (int i = 0; i < 2; i++) {
    bl_transport_destroy(bench->transports[i]);
  }
  bl_bare_socket_close(&bench->bare);
  bl_shared_map_close(&bench->map);
  bl_arena_destroy(&bench->source);
  bl_arena_destroy(&bench->destination);
  rmdir(bench->folder);
}

static bl_status_t open_bench(bench_t *bench, const settings_t *settings, uint64_t tensor_bytes, bl_path_t path,
                              bl_error_t *err) {
  uint64_t tensors = (uint64_t)settings->sample_bytes / tensor_bytes,
           bytes = (uint64_t)settings->in_flight * tensor_bytes;
  *bench = (bench_t){.settings = settings, .tensor_bytes = tensor_bytes, .bare.fds = {-1, -1}};
  bench->source.fd = bench->destination.fd = -1;
  bench->tensors = tensors < 1 ? 1 : tensors > TENSORS_MAX ? TENSORS_MAX : (uint32_t)tensors;
  const char *parent = getenv("TMPDIR");
  snprintf(bench->folder, sizeof bench->folder, "%.40s/ballast-bench-XXXXXX", parent != NULL ? parent : "/tmp");
  if (mkdtemp(bench->folder) == NULL) {
    return bl_error_set(err, BL_IO, "a temporary folder %s: %s", bench->folder, strerror(errno));
  }
  bl_device_t *host = bl_device_host();
  bl_status_t status = bl_arena_create(host, NULL, BL_MEMORY_EDGES, BL_ARENA_SHAREABLE, bytes, &bench->source, err);
  if (status == BL_OK) {
    status = bl_arena_create(host, NULL, BL_MEMORY_EDGES, BL_ARENA_SHAREABLE, bytes, &bench->destination, err);
  }
  if (status == BL_OK) {
    memset(bench->source.base, 0x5a, bytes);
    status = open_hubs(bench, path, err);
  }
  if (status == BL_OK) {
    status = path == BL_PATH_SHM ? bl_shared_map_open(&bench->map, bench->source.fd, bytes, err)
                                 : bl_bare_socket_open(&bench->bare, false, err);
  }
  return status;
}

static bl_status_t compare(const settings_t *settings, uint64_t tensor_bytes, bl_path_t path, bl_error_t *err) {
  double ours[PAIRS_MAX], reference[PAIRS_MAX], ratio[PAIRS_MAX];
  bench_t bench;
  bl_status_t (*run_reference)(bench_t *, double *, bl_error_t *) = path == BL_PATH_SHM ? run_memcpy : run_socket;
  size_t pairs = (size_t)settings->pairs;
  bl_status_t status = open_bench(&bench, settings, tensor_bytes, path, err);
  double unused; // the first pair warms up
  status = status != BL_OK ? status : run_path(&bench, &unused, err);
  status = status != BL_OK ? status : run_reference(&bench, &unused, err);
  for (size_t i = 0; i < pairs && status == BL_OK; i++) {
    bool first = i % 2 == 0; // alternates, so that neither always runs second
    status = first ? run_path(&bench, &ours[i], err) : run_reference(&bench, &reference[i], err);
    if (status == BL_OK) {
      status = first ? run_reference(&bench, &reference[i], err) : run_path(&bench, &ours[i], err);
    }
    ratio[i] = status == BL_OK ? reference[i] / ours[i] : 0;
  }
  if (status == BL_OK) {
    double gigabytes = (double)bench.tensors * (double)tensor_bytes * 1e-9;
    char size[BL_BYTES_TEXT];
    printf("%s %-9s %lld in flight: %6.2f GB/s, %s %6.2f GB/s, median ratio %.3f over %zu pairs\n", bl_path_name(path),
           bl_bytes_format(tensor_bytes, size), (long long)settings->in_flight, gigabytes / bl_median(ours, pairs),
           path == BL_PATH_SHM ? "memcpy" : "bare socket", gigabytes / bl_median(reference, pairs),
           bl_median(ratio, pairs), pairs);
    fflush(stdout);
  }
  close_bench(&bench);
  return status;
}

static size_t sizes_of(const settings_t *settings, uint64_t sizes[3]) {
  sizes[0] = settings->tensor_bytes > 0 ? (uint64_t)settings->tensor_bytes : 3u << 20;
  sizes[1] = 16u << 20;
  sizes[2] = 64u << 20;
  return settings->tensor_bytes > 0 ? 1 : 3;
}

static bl_status_t measure_host(const settings_t *settings, bl_error_t *err) {
  uint64_t sizes[3];
  const size_t count = sizes_of(settings, sizes);
  bl_status_t status = BL_OK;
  if (settings->path > BL_PATH_TCP) {
    return bl_error_set(err, BL_INVALID, "--path %s moves memory of GPUs: give --device cuda:N",
                        path_names[settings->path]);
  }
  for (bl_path_t path = BL_PATH_SHM; path <= BL_PATH_TCP; path++) {
    for (size_t i = 0; i < count && status == BL_OK && (settings->path == BL_PATH_AUTO || settings->path == (int)path);
         i++) {
      status = compare(settings, sizes[i], path, err);
    }
  }
  return status;
}

#ifdef BALLAST_BENCH_STORE
static bl_status_t measure_device(const settings_t *settings, bl_error_t *err) {
  uint64_t sizes[3];
  const size_t count = sizes_of(settings, sizes);
  bl_path_device_options_t options = {.device = settings->device,
                                      .store_device = settings->store_device,
                                      .path = (bl_path_t)settings->path,
                                      .pairs = (unsigned)settings->pairs,
                                      .flops_per_byte = (double)settings->pace};
  bl_status_t status = BL_OK;
  for (size_t i = 0; i < count && status == BL_OK; i++) {
    options.bytes = sizes[i];
    options.product = i + 1 == count ? (uint64_t)settings->product : 0;
    status = bl_path_device_measure(&options, err);
  }
  return status;
}
#else
static bl_status_t measure_device(const settings_t *settings, bl_error_t *err) {
  return bl_error_set(err, BL_UNIMPLEMENTED, "--device %s: this build has no stores", settings->device);
}
#endif

static bl_status_t run(const void *values, bl_error_t *err) {
  const settings_t *settings = values;
  return strcmp(settings->device, "host") == 0 ? measure_host(settings, err) : measure_device(settings, err);
}

int bl_bench_path(int argc, char **argv) {
  settings_t settings;
  return bl_bench_program(&flags, &settings, run, argc, argv);
}
#endif
