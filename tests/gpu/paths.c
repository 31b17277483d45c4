// SPDX-License-Identifier: Apache-2.0
// Data paths of GPU memory between two processes on the first GPU, and what they stand on, in the same run:
//
//   gpu-paths ipc     a peer's memory is imported (BALLAST_CUDA_LEGACY_IPC=1: by name); copies by the copy engine of 1 to 256 MiB, against copies in own memory
//   gpu-paths edges   tensors of the size of those between stages, each side pulling the other's with its copy engine: both ways at
//                     once, byte for byte, twice out of the same buffers; how fast, as a share of copies in own memory; then the
//                     peer is killed in the middle, and what is pulled is whole all the same
//   gpu-paths nccl    blocks over two-rank communicators, both ways, byte for byte; then the peer is killed in the middle
//                     and the other side must end with the cause within its deadline. Ranks that share a GPU go over
//                     sockets: this proves logic, not speed
//   gpu-paths stress  twelve channels between two processes, six each way, all in use at once, given to NCCL in other orders
//                     at the two ends; blocks from some bytes to 4 MiB, byte for byte
//
// Exit code 77 with the reason where there is no GPU, or no NCCL.
#include "datapath/device_path.h"
#include "datapath/mover.h"
#include "datapath/nccl/engine.h"
#include "datapath/peer_memory.h"
#include "datapath/puller.h"
#include "datapath/socket.h"
#include "device/open.h"
#include "sys/clock.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define ARENA_BYTES (UINT64_C(512) << 20)
#define BLOCK_BYTES (UINT64_C(8) << 20)
#define BLOCKS      12u
#define ROUNDS      9u
#define PEER_FD     3
#define EDGES       6u                   // tensors of one round
#define EDGE_BYTES  (UINT64_C(32) << 20) // the largest: 2048 positions of hidden 8192 in bf16
#define CHANNELS    12u                  // of the stress
#define TURNS       24u                  // blocks over each of them
#define AT_ONCE     6u
#define TURN_BYTES  (UINT64_C(4) << 20)
#define DEADLINE_NS (UINT64_C(10) * BL_NS_PER_S)

static bl_device_t *device;
static const bl_device_path_t *path;

static void must(bl_status_t status, const bl_error_t *err, const char *what) {
  if (status != BL_OK) {
    fprintf(stderr, "%s: %s\n", what, err->text);
    _exit(1); // threads of NCCL go on
  }
}

static void skip(const char *why) {
  printf("SKIPPED: %s\n", why);
  exit(77);
}

static void open_gpu(void) {
  bl_error_t err = {0};
  if (bl_device_open(BL_DEVICE_CUDA, 0, &device, &err) != BL_OK || (path = bl_device_path_of(device, &err)) == NULL) {
    skip(err.text);
  }
}

static bl_arena_t new_arena(uint64_t bytes) {
  bl_arena_t arena;
  bl_error_t err = {0};
  must(bl_arena_create(device, NULL, BL_MEMORY_SLOTS, BL_ARENA_SHAREABLE, bytes, &arena, &err), &err, "memory");
  return arena;
}

// This program as the peer, on the other end of *fd.
static pid_t start_peer(const char *command, int *fd) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) {
    perror("socketpair");
    exit(1);
  }
  pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(pair[1], PEER_FD);
    execl("/proc/self/exe", "gpu-paths", command, (char *)NULL);
    _exit(127);
  }
  close(pair[1]);
  *fd = pair[0];
  return pid;
}

static void say(int fd, const void *bytes, size_t count) {
  if (write(fd, bytes, count) != (ssize_t)count) {
    fprintf(stderr, "the peer is gone\n");
    exit(1);
  }
}

static void hear(int fd, void *bytes, size_t count) {
  if (recv(fd, bytes, count, MSG_WAITALL) != (ssize_t)count) {
    fprintf(stderr, "the peer ended\n");
    exit(1);
  }
}

static uint8_t pattern(uint64_t block, uint64_t i) {
  return (uint8_t)((i * 2654435761u >> 7) + block * 31);
}

static uint8_t *fill_host(uint64_t block) {
  uint8_t *bytes = malloc(BLOCK_BYTES);
  for (uint64_t i = 0; i < BLOCK_BYTES; i++) {
    bytes[i] = pattern(block, i);
  }
  return bytes;
}

// ---- ipc

static void show_memory(int fd, int memory) {
  uint8_t byte = 'y';
  struct iovec part = {.iov_base = &byte, .iov_len = 1};
  if (bl_socket_send(fd, &part, 1, &memory, 1) != 1) {
    fprintf(stderr, "the peer is gone\n");
    exit(1);
  }
}

static bl_peer_memory_t see_memory(int fd, uint64_t bytes) {
  int fds[BL_SOCKET_MAX_DESCRIPTORS];
  size_t fd_count = 0;
  char byte;
  bl_peer_memory_t memory;
  bl_error_t err = {0};
  if (bl_socket_receive(fd, &byte, 1, fds, &fd_count) != 1 || fd_count != 1) {
    fprintf(stderr, "the peer shows no memory\n");
    exit(1);
  }
  must(bl_peer_memory_open(&memory, device, fds[0], bytes, &err), &err, "import");
  close(fds[0]);
  return memory;
}

static int export_memory(void) {
  open_gpu();
  bl_error_t err = {0};
  bl_arena_t arena = new_arena(ARENA_BYTES);
  uint8_t *bytes = fill_host(5), byte;
  must(bl_device_copy(device, NULL, arena.base, bytes, BLOCK_BYTES, &err), &err, "copy");
  show_memory(PEER_FD, arena.fd);
  return read(PEER_FD, &byte, 1) == 0 ? 0 : 1;
}

static double rate(bl_mover_t *mover, uint8_t *to, const uint8_t *from, uint64_t bytes) {
  bl_error_t err = {0};
  uint64_t best_ns = UINT64_MAX;
  for (unsigned i = 0; i < ROUNDS; i++) {
    uint64_t start_ns = bl_clock_now_ns();
    must(bl_mover_copy(mover, to, from, bytes, &err), &err, "copy");
    uint64_t took_ns = bl_clock_now_ns() - start_ns;
    best_ns = took_ns < best_ns ? took_ns : best_ns;
  }
  return (double)bytes / (double)best_ns;
}

static int import_memory(void) {
  open_gpu();
  bl_error_t err = {0};
  if (path->exports(device, &err) != BL_OK) {
    skip(err.text);
  }
  int peer;
  pid_t pid = start_peer("export", &peer);
  bl_peer_memory_t memory = see_memory(peer, ARENA_BYTES);
  bl_arena_t own = new_arena(2 * ARENA_BYTES);
  uint8_t *expected = fill_host(5), *found = malloc(BLOCK_BYTES);
  bl_mover_t *mover;
  must(bl_mover_create(device, &mover, &err), &err, "mover");
  must(bl_mover_copy(mover, own.base, memory.base, BLOCK_BYTES, &err), &err, "copy");
  must(bl_device_copy(device, NULL, found, own.base, BLOCK_BYTES, &err), &err, "copy");
  if (memcmp(found, expected, BLOCK_BYTES) != 0) {
    fprintf(stderr, "other bytes came\n");
    return 1;
  }
  printf("%simported memory is %s\n", path->legacy_ipc != NULL && path->legacy_ipc(device) ? "by legacy IPC: " : "",
         memory.imported.writable ? "writable: the driver maps nothing read-only" : "read-only");
  for (uint64_t mib = 1; mib <= 256; mib *= 4) {
    double bare = rate(mover, own.base, own.base + ARENA_BYTES, mib << 20);
    double pulled = rate(mover, own.base, memory.base, mib << 20);
    printf("%4llu MiB: pulled %7.1f GB/s, bare %7.1f GB/s, %.0f %%\n", (unsigned long long)mib, pulled, bare,
           100 * pulled / bare);
  }
  kill(pid, SIGKILL); // its memory is ours as long as we have it
  waitpid(pid, NULL, 0);
  bool same = true;
  if (path->legacy_ipc == NULL || !path->legacy_ipc(device)) { // names of memory do not promise it
    must(bl_mover_copy(mover, own.base, memory.base, BLOCK_BYTES, &err), &err, "a copy after the peer's death");
    must(bl_device_copy(device, NULL, found, own.base, BLOCK_BYTES, &err), &err, "copy");
    same = memcmp(found, expected, BLOCK_BYTES) == 0;
    printf("%s imported memory of a dead peer is readable\n", same ? "ok" : "FAILED:");
  }
  bl_peer_memory_close(&memory);
  bl_mover_destroy(mover);
  bl_arena_destroy(&own);
  bl_device_close(device);
  free(expected);
  free(found);
  return same ? 0 : 1;
}

// ---- edges

static _Atomic unsigned ended;

// One side of it: what it sends lies in the first half of `own`, what it gets in the second.
typedef struct {
  int fd; // to the other side
  unsigned side;
  bl_arena_t own;
  bl_peer_memory_t peer;
  bl_puller_t *puller;
  bl_pull_t pulls[EDGES];
} edges_t;

static void edges_open(edges_t *edges, int fd, unsigned side) {
  bl_error_t err = {0};
  *edges = (edges_t){.fd = fd, .side = side, .own = new_arena(2 * EDGES * EDGE_BYTES)};
  show_memory(fd, edges->own.fd);
  edges->peer = see_memory(fd, edges->own.bytes);
  must(bl_puller_create(device, &edges->puller, &err), &err, "puller");
}

static void edges_close(edges_t *edges) {
  bl_puller_destroy(edges->puller);
  bl_peer_memory_close(&edges->peer);
  bl_arena_destroy(&edges->own);
}

// The other side is as far as this one.
static void rendezvous(const edges_t *edges) {
  char byte = 'y';
  say(edges->fd, &byte, 1);
  hear(edges->fd, &byte, 1);
}

static void pulled(bl_pull_t *pull, const bl_error_t *err) {
  (void)pull;
  must(err->status, err, "pull");
  ended++;
}

static void begin_pulls(edges_t *edges, const uint8_t *from, uint64_t bytes) {
  ended = 0;
  for (unsigned i = 0; i < EDGES; i++) {
    edges->pulls[i] = (bl_pull_t){.to = edges->own.base + (EDGES + i) * EDGE_BYTES,
                                  .from = from + i * EDGE_BYTES,
                                  .bytes = bytes,
                                  .over = pulled};
    bl_puller_post(edges->puller, &edges->pulls[i]);
  }
}

static void await_pulls(void) {
  while (ended < EDGES) {
    usleep(20);
  }
}

// GB/s of one round.
static double pull_all(edges_t *edges, const uint8_t *from, uint64_t bytes) {
  const uint64_t start_ns = bl_clock_now_ns();
  begin_pulls(edges, from, bytes);
  await_pulls();
  return (double)(EDGES * bytes) / (double)(bl_clock_now_ns() - start_ns);
}

static uint64_t edge_seed(unsigned side, unsigned turn, unsigned i) {
  return side * 100u + turn * 10u + i;
}

static void fill_edges(const edges_t *edges, unsigned turn, uint64_t bytes, uint8_t *host) {
  bl_error_t err = {0};
  for (unsigned i = 0; i < EDGES; i++) {
    for (uint64_t b = 0; b < bytes; b++) {
      host[b] = pattern(edge_seed(edges->side, turn, i), b);
    }
    must(bl_device_copy(device, NULL, edges->own.base + i * EDGE_BYTES, host, bytes, &err), &err, "copy");
  }
}

static void check_edges(const edges_t *edges, unsigned turn, uint64_t bytes, uint8_t *host) {
  bl_error_t err = {0};
  for (unsigned i = 0; i < EDGES; i++) {
    must(bl_device_copy(device, NULL, host, edges->own.base + (EDGES + i) * EDGE_BYTES, bytes, &err), &err, "copy");
    for (uint64_t b = 0; b < bytes; b++) {
      if (host[b] != pattern(edge_seed(!edges->side, turn, i), b)) {
        fprintf(stderr, "tensor %u of %llu bytes came changed at byte %llu\n", i, (unsigned long long)bytes,
                (unsigned long long)b);
        exit(1);
      }
    }
  }
}

// What both sides do. Gives what went each way while both pulled, GB/s.
static double swap_edges(edges_t *edges, uint64_t bytes, uint8_t *host) {
  double rate = 0;
  for (unsigned turn = 0; turn < 2; turn++) {
    fill_edges(edges, turn, bytes, host);
    rendezvous(edges); // offered
    const double now = pull_all(edges, edges->peer.base, bytes);
    rate = now > rate ? now : rate;
    rendezvous(edges); // taken: the buffers may be filled anew
    check_edges(edges, turn, bytes, host);
  }
  return rate;
}

static const uint64_t edge_sizes[] = {UINT64_C(1) << 20, UINT64_C(8) << 20, EDGE_BYTES};
#define EDGE_SIZES (sizeof edge_sizes / sizeof edge_sizes[0])

static int edges_peer(void) {
  edges_t edges;
  open_gpu();
  uint8_t *host = malloc(EDGE_BYTES);
  edges_open(&edges, PEER_FD, 1);
  for (size_t s = 0; s < EDGE_SIZES; s++) {
    (void)swap_edges(&edges, edge_sizes[s], host);
    rendezvous(&edges); // the other side has measured
  }
  pause();
  return 1;
}

static int swap_with_peer(void) {
  open_gpu();
  bl_error_t err = {0};
  if (path->exports(device, &err) != BL_OK) {
    skip(err.text);
  }
  edges_t edges;
  int peer;
  pid_t pid = start_peer("edges-peer", &peer);
  uint8_t *host = malloc(EDGE_BYTES);
  edges_open(&edges, peer, 0);
  for (size_t s = 0; s < EDGE_SIZES; s++) {
    const uint64_t bytes = edge_sizes[s];
    const double both = swap_edges(&edges, bytes, host);
    double bare = 0, alone = 0;
    for (unsigned i = 0; i < ROUNDS; i++) { // by turns
      const double own = pull_all(&edges, edges.own.base, bytes), theirs = pull_all(&edges, edges.peer.base, bytes);
      bare = own > bare ? own : bare;
      alone = theirs > alone ? theirs : alone;
    }
    rendezvous(&edges);
    printf("%4llu MiB a tensor: pulled %7.1f GB/s, both ways at once %7.1f GB/s each, bare %7.1f GB/s, %.0f %%\n",
           (unsigned long long)(bytes >> 20), alone, both, bare, 100 * alone / bare);
  }
  const bool lasts = path->legacy_ipc == NULL || !path->legacy_ipc(device); // names of memory do not promise it
  if (lasts) {
    begin_pulls(&edges, edges.peer.base, EDGE_BYTES);
  }
  kill(pid, SIGKILL);
  waitpid(pid, NULL, 0);
  if (lasts) {
    await_pulls();
    check_edges(&edges, 1, EDGE_BYTES, host);
    printf("ok what is pulled from a peer that dies in the middle is whole\n");
  }
  edges_close(&edges);
  bl_device_close(device);
  free(host);
  printf("ok %u tensors each way, twice, of each size\n", EDGES);
  return 0;
}

// ---- nccl

static bl_nccl_engine_t *engine;

static void over(bl_nccl_transfer_t *transfer) {
  (void)transfer;
  ended++;
}

static void stuck(void *context, const bl_error_t *err) {
  (void)context;
  fprintf(stderr, "%s\n", err->text);
  _exit(1);
}

static void open_engine(void) {
  const bl_nccl_api_t *api;
  bl_error_t err = {0};
  open_gpu();
  if (path->nccl(device, true, &api, &err) != BL_OK) {
    skip(err.text);
  }
  printf("NCCL %d\n", api->version);
  fflush(stdout);
  bl_nccl_engine_options_t options = {.api = api, .deadlines = {.transfer_ns = DEADLINE_NS}, .on_stuck = stuck};
  must(bl_nccl_engine_create(&options, &engine, &err), &err, "engine");
}

// The way out and the way in of one side; made in one order by both.
static void open_ways(uint8_t ids[2][BL_NCCL_ID_BYTES], int first, bl_nccl_channel_t *ways[2]) {
  bl_error_t err = {0};
  for (int w = 0; w < 2; w++) {
    bl_nccl_channel_options_t options = {.name = w == first ? "out" : "in", .rank = w == first ? 0 : 1};
    memcpy(options.id, ids[w], BL_NCCL_ID_BYTES);
    must(bl_nccl_channel_open(engine, &options, &ways[w], &err), &err, "channel");
    must(bl_nccl_channel_wait(ways[w], bl_clock_now_ns() + 60 * (uint64_t)BL_NS_PER_S, &err), &err, "channel");
  }
}

static void post(bl_nccl_channel_t *way, bl_nccl_transfer_t *transfer, uint8_t *at, uint64_t bytes) {
  bl_error_t err = {0};
  *transfer = (bl_nccl_transfer_t){.buffer = at, .bytes = bytes, .over = over};
  must(bl_nccl_channel_post(way, transfer, &err), &err, "post");
}

static void wait_ended(unsigned count) {
  uint64_t until_ns = bl_clock_now_ns() + 12 * DEADLINE_NS;
  while (ended < count) {
    if (bl_clock_now_ns() > until_ns) {
      fprintf(stderr, "a transfer neither ended nor failed\n");
      exit(1);
    }
    usleep(200);
  }
}

// What comes in goes out again; then it receives no more, and waits to be killed.
static int echo(void) {
  open_engine();
  uint8_t ids[2][BL_NCCL_ID_BYTES];
  bl_nccl_channel_t *ways[2];
  bl_arena_t arena = new_arena(BLOCKS * BLOCK_BYTES);
  bl_nccl_transfer_t in[BLOCKS], out[BLOCKS];
  hear(PEER_FD, ids, sizeof ids);
  open_ways(ids, 1, ways);
  for (unsigned i = 0; i < BLOCKS; i++) {
    post(ways[0], &in[i], arena.base + i * BLOCK_BYTES, BLOCK_BYTES);
  }
  wait_ended(BLOCKS);
  for (unsigned i = 0; i < BLOCKS; i++) {
    post(ways[1], &out[i], arena.base + i * BLOCK_BYTES, BLOCK_BYTES);
  }
  wait_ended(2 * BLOCKS);
  char byte = 'y';
  say(PEER_FD, &byte, 1);
  pause();
  return 1;
}

static int exchange(void) {
  open_engine();
  uint8_t ids[2][BL_NCCL_ID_BYTES];
  bl_nccl_channel_t *ways[2];
  bl_error_t err = {0};
  int peer;
  char byte;
  pid_t pid = start_peer("echo", &peer);
  for (int w = 0; w < 2; w++) {
    must(bl_nccl_engine_new_id(engine, ids[w], &err), &err, "id");
  }
  say(peer, ids, sizeof ids);
  open_ways(ids, 0, ways);
  bl_arena_t arena = new_arena(2 * BLOCKS * BLOCK_BYTES);
  bl_nccl_transfer_t out[BLOCKS], in[BLOCKS];
  uint64_t start_ns = bl_clock_now_ns();
  for (unsigned i = 0; i < BLOCKS; i++) {
    uint8_t *bytes = fill_host(i);
    must(bl_device_copy(device, NULL, arena.base + i * BLOCK_BYTES, bytes, BLOCK_BYTES, &err), &err, "copy");
    free(bytes);
    post(ways[0], &out[i], arena.base + i * BLOCK_BYTES, BLOCK_BYTES);
    post(ways[1], &in[i], arena.base + (BLOCKS + i) * BLOCK_BYTES, BLOCK_BYTES);
  }
  wait_ended(2 * BLOCKS);
  for (unsigned i = 0; i < BLOCKS; i++) {
    uint8_t *expected = fill_host(i), *found = malloc(BLOCK_BYTES);
    must(bl_device_copy(device, NULL, found, arena.base + (BLOCKS + i) * BLOCK_BYTES, BLOCK_BYTES, &err), &err, "copy");
    if (in[i].status != BL_OK || memcmp(expected, found, BLOCK_BYTES) != 0) {
      fprintf(stderr, "block %u came back changed: %s\n", i, bl_status_name(in[i].status));
      return 1;
    }
    free(expected);
    free(found);
  }
  printf("ok %u blocks there and back in %.2f s\n", BLOCKS, (double)(bl_clock_now_ns() - start_ns) * 1e-9);
  hear(peer, &byte, 1);
  ended = 0;
  // Which the peer never receives, and more than NCCL takes into buffers of its own: several MiB a channel.
  post(ways[0], &out[0], arena.base, BLOCKS * BLOCK_BYTES);
  usleep(200000);
  kill(pid, SIGKILL);
  waitpid(pid, NULL, 0);
  start_ns = bl_clock_now_ns();
  wait_ended(1);
  (void)bl_nccl_channel_state(ways[0], &err);
  printf("%s a peer that dies in the middle, after %.2f s: %s\n",
         out[0].status != BL_OK ? "ok" : "FAILED:", (double)(bl_clock_now_ns() - start_ns) * 1e-9, err.text);
  bl_nccl_channel_close(ways[0]);
  bl_nccl_channel_close(ways[1]);
  bl_nccl_engine_destroy(engine);
  return out[0].status != BL_OK ? 0 : 1;
}

// ---- stress

static uint64_t turn_bytes(unsigned channel, unsigned turn) {
  static const uint64_t sizes[] = {16, TURN_BYTES, 65536, 4097, 1 << 20, 1, 300000};
  return sizes[(channel * 5 + turn) % (sizeof sizes / sizeof sizes[0])];
}

static uint64_t turn_seed(unsigned channel, unsigned turn) {
  return channel * 1000u + turn;
}

// What this end does: `side` 0 sends over the even channels and goes up, 1 over the odd ones and down.
static int use_channels(unsigned side, uint8_t ids[CHANNELS][BL_NCCL_ID_BYTES]) {
  bl_error_t err = {0};
  bl_nccl_channel_t *ways[CHANNELS];
  static bl_nccl_transfer_t transfers[AT_ONCE][CHANNELS];
  bl_arena_t arena = new_arena(AT_ONCE * CHANNELS * TURN_BYTES);
  uint8_t *bytes = malloc(TURN_BYTES);
  for (unsigned w = 0; w < CHANNELS; w++) { // made in one order by both
    bl_nccl_channel_options_t options = {.name = w % 2 == side ? "out" : "in", .rank = w % 2 == side ? 0 : 1};
    memcpy(options.id, ids[w], BL_NCCL_ID_BYTES);
    must(bl_nccl_channel_open(engine, &options, &ways[w], &err), &err, "channel");
    must(bl_nccl_channel_wait(ways[w], bl_clock_now_ns() + 60 * (uint64_t)BL_NS_PER_S, &err), &err, "channel");
  }
  for (unsigned turn = 0; turn < TURNS; turn += AT_ONCE) {
    for (unsigned w = side; w < CHANNELS; w += 2) {
      for (unsigned i = 0; i < AT_ONCE; i++) {
        const uint64_t size = turn_bytes(w, turn + i);
        for (uint64_t b = 0; b < size; b++) {
          bytes[b] = pattern(turn_seed(w, turn + i), b);
        }
        must(bl_device_copy(device, NULL, arena.base + (i * CHANNELS + w) * TURN_BYTES, bytes, size, &err), &err,
             "copy");
      }
    }
    ended = 0;
    for (unsigned n = 0; n < CHANNELS * AT_ONCE; n++) {
      const unsigned i = n / CHANNELS, w = side == 0 ? n % CHANNELS : CHANNELS - 1 - n % CHANNELS;
      transfers[i][w] = (bl_nccl_transfer_t){
          .buffer = arena.base + (i * CHANNELS + w) * TURN_BYTES, .bytes = turn_bytes(w, turn + i), .over = over};
      must(bl_nccl_channel_post(ways[w], &transfers[i][w], &err), &err, "post");
    }
    wait_ended(CHANNELS * AT_ONCE);
    for (unsigned n = 0; n < CHANNELS * AT_ONCE; n++) {
      const unsigned i = n / CHANNELS, w = n % CHANNELS;
      const uint64_t size = turn_bytes(w, turn + i);
      bool same = transfers[i][w].status == BL_OK;
      if (same) {
        must(bl_device_copy(device, NULL, bytes, arena.base + (i * CHANNELS + w) * TURN_BYTES, size, &err), &err,
             "copy");
      }
      for (uint64_t b = 0; b < size && same; b++) {
        same = bytes[b] == pattern(turn_seed(w, turn + i), b);
      }
      if (!same) {
        (void)bl_nccl_channel_state(ways[w], &err);
        fprintf(stderr, "block %u of channel %u: %s: %s\n", turn + i, w, bl_status_name(transfers[i][w].status),
                err.text);
        return 1;
      }
    }
  }
  for (unsigned w = 0; w < CHANNELS; w++) {
    bl_nccl_channel_close(ways[w]);
  }
  bl_nccl_engine_destroy(engine);
  bl_arena_destroy(&arena);
  free(bytes);
  return 0;
}

static int stress_peer(void) {
  static uint8_t ids[CHANNELS][BL_NCCL_ID_BYTES];
  char byte = 'y';
  open_engine();
  hear(PEER_FD, ids, sizeof ids);
  const int result = use_channels(1, ids);
  say(PEER_FD, &byte, 1);
  return result;
}

static int stress(void) {
  static uint8_t ids[CHANNELS][BL_NCCL_ID_BYTES];
  bl_error_t err = {0};
  int peer, status = 0;
  char byte;
  open_engine();
  pid_t pid = start_peer("stress-peer", &peer);
  for (unsigned w = 0; w < CHANNELS; w++) {
    must(bl_nccl_engine_new_id(engine, ids[w], &err), &err, "id");
  }
  say(peer, ids, sizeof ids);
  const uint64_t start_ns = bl_clock_now_ns();
  const int result = use_channels(0, ids);
  if (result == 0) {
    hear(peer, &byte, 1);
    waitpid(pid, &status, 0);
    printf("ok %u channels, %u blocks each, in %.2f s\n", CHANNELS, TURNS,
           (double)(bl_clock_now_ns() - start_ns) * 1e-9);
  }
  return result != 0 ? result : status != 0;
}

int main(int argc, char **argv) {
  const char *command = argc == 2 ? argv[1] : "";
  const struct {
    const char *name;
    int (*run)(void);
  } commands[] = {{"ipc", import_memory},     {"export", export_memory},   {"edges", swap_with_peer},
                  {"edges-peer", edges_peer}, {"nccl", exchange},          {"echo", echo},
                  {"stress", stress},         {"stress-peer", stress_peer}};
  for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
    if (strcmp(command, commands[i].name) == 0) {
      return commands[i].run();
    }
  }
  fprintf(stderr, "gpu-paths ipc | edges | nccl | stress\n");
  return 2;
}
