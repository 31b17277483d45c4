// SPDX-License-Identifier: Apache-2.0
// Two transports in one process, connected, with an arena each: the ground that most tests of the data path stand on.
#ifndef BALLAST_TESTS_DATAPATH_PAIR_H
#define BALLAST_TESTS_DATAPATH_PAIR_H

#include "base/random.h"
#include "datapath/boundary.h"
#include "sys/clock.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define PAIR_ARENA_BYTES (24ull << 20)
#define CHECK_OK(call, err)                                                                                            \
  do {                                                                                                                 \
    bl_status_t check_status = (call);                                                                                 \
    if (check_status != BL_OK) {                                                                                       \
      fail_msg("%s is %s: %s", #call, bl_status_name(check_status), (err).text);                                       \
    }                                                                                                                  \
  } while (0)

// Far beyond what any step of a test takes, also under sanitizers on a busy machine.
static inline uint64_t soon(void) {
  return bl_clock_now_ns() + 120ull * BL_NS_PER_S;
}

typedef struct {
  char folder[64];
  bl_arena_t arena[2];
  bl_transport_t *transport[2];
  bl_transport_options_t options[2];
  bool notes_only;
  char unix_path[2][96];
} pair_t;

static inline void pair_peer(const pair_t *pair, int side, bl_transport_peer_t *peer) {
  const bl_transport_t *transport = pair->transport[side];
  *peer = (bl_transport_peer_t){.stage = side,
                                .unix_address = bl_transport_unix_address(transport),
                                .tcp_address = bl_transport_tcp_address(transport),
                                .machine = bl_transport_machine(transport),
                                .notes_only = pair->notes_only};
  memcpy(peer->token, bl_transport_token(transport), sizeof peer->token);
}

// The transports, listening but not connected. Change pair->options between pair_init and pair_listen.
static inline void pair_init(pair_t *pair) {
  memset(pair, 0, sizeof *pair);
  strcpy(pair->folder, "/tmp/ballast-test-XXXXXX");
  assert_non_null(mkdtemp(pair->folder));
  for (int i = 0; i < 2; i++) {
    bl_error_t err;
    CHECK_OK(bl_arena_create(bl_device_host(), NULL, BL_MEMORY_EDGES, BL_ARENA_SHAREABLE, PAIR_ARENA_BYTES,
                             &pair->arena[i], &err),
             err);
    snprintf(pair->unix_path[i], sizeof pair->unix_path[i], "%s/%d.sock", pair->folder, i);
    pair->options[i] = (bl_transport_options_t){.stage = i,
                                                .unix_path = pair->unix_path[i],
                                                .tcp_host = "127.0.0.1",
                                                .arenas = &pair->arena[i],
                                                .arena_count = 1};
  }
}

static inline void pair_listen(pair_t *pair) {
  for (int i = 0; i < 2; i++) {
    bl_error_t err;
    CHECK_OK(bl_transport_create(&pair->options[i], &pair->transport[i], &err), err);
  }
}

typedef struct {
  const pair_t *pair;
  int side;
  bl_path_t path;
  bl_status_t status;
  bl_error_t err;
} pair_connect_t;

static inline void *pair_connect_side(void *argument) {
  pair_connect_t *connect = argument;
  bl_transport_peer_t peer;
  pair_peer(connect->pair, !connect->side, &peer);
  connect->status = bl_transport_connect_wait(connect->pair->transport[connect->side], &peer, 1, connect->path, soon(),
                                              &connect->err);
  return NULL;
}

static inline void pair_connect(pair_t *pair, bl_path_t path) {
  pair_connect_t sides[2] = {{.pair = pair, .side = 0, .path = path}, {.pair = pair, .side = 1, .path = path}};
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, pair_connect_side, &sides[1]), 0);
  pair_connect_side(&sides[0]);
  pthread_join(thread, NULL);
  for (int i = 0; i < 2; i++) {
    CHECK_OK(sides[i].status, sides[i].err);
  }
}

static inline void pair_begin(pair_t *pair, uint64_t attempt) {
  for (int i = 0; i < 2; i++) {
    bl_error_t err;
    CHECK_OK(bl_transport_begin(pair->transport[i], attempt, &err), err);
  }
}

static inline void pair_open(pair_t *pair, bl_path_t path) {
  pair_init(pair);
  pair_listen(pair);
  pair_connect(pair, path);
}

static inline void pair_close(pair_t *pair) {
  for (int i = 0; i < 2; i++) {
    bl_transport_destroy(pair->transport[i]);
    bl_arena_destroy(&pair->arena[i]);
  }
  assert_int_equal(rmdir(pair->folder), 0); // the transports have removed their socket files
}

static inline void pattern_fill(uint8_t *bytes, uint64_t size_bytes, uint64_t seed) {
  for (uint64_t i = 0; i < size_bytes; i++) {
    bytes[i] = (uint8_t)((i * 2654435761u) >> 13 ^ (i >> 3) ^ seed * 97);
  }
}

static inline void pattern_check(const uint8_t *bytes, uint64_t size_bytes, uint64_t seed, const char *what) {
  for (uint64_t i = 0; i < size_bytes; i++) {
    uint8_t want = (uint8_t)((i * 2654435761u) >> 13 ^ (i >> 3) ^ seed * 97);
    if (bytes[i] != want) {
      fail_msg("%s: byte %llu of %llu is 0x%02x, expected 0x%02x", what, (unsigned long long)i,
               (unsigned long long)size_bytes, bytes[i], want);
    }
  }
}

#endif
