// SPDX-License-Identifier: Apache-2.0
// A store, a session of it by hand, frame by frame (lib/datapath/frame.h), and a client that holds a block meanwhile,
// which must come to no harm.
#ifndef TESTS_CLIENT_RAW_WORLD_H
#define TESTS_CLIENT_RAW_WORLD_H

#include "client/fixture.h"

#include "datapath/block.h"
#include "datapath/greeting.h"
#include "datapath/socket.h"
#include "lease/reason.h"
#include "store/raw_wire.h"

#include <errno.h>
#include <poll.h>

typedef struct session {
  raw_input_t input;
  char tcp[64];
  uint64_t slots[2], generations[2];
} session_t;

typedef struct world {
  fixture_t *fixture;
  bl_loop_t *loop;
  bl_rpc_t *rpc;
  raw_store_t raw;
  session_t ours;
  bl_client_t *other; // holds a block meanwhile
  uint64_t other_slot;
} world_t;

// ---- sessions -------------------------------------------------------------------------------------------------------

static inline void ask(world_t *world, raw_call_kind_t kind, raw_input_t *input, raw_output_t *output) {
  input->acknowledged = input->sequence;
  input->sequence++;
  if (raw_call(&world->raw, kind, input, output) != BL_OK) {
    fail_msg("%s", world->raw.err.text);
  }
}

static inline session_t open_session(world_t *world, uint32_t stage) {
  session_t session = {.input = {.job = "job", .stage = stage, .arena_bytes = 256 * GRANULE, .id_bytes = {7}}};
  session.input.id_bytes[1] = (uint8_t)stage;
  raw_output_t output;
  assert_int_equal(raw_call(&world->raw, RAW_OPEN, &session.input, &output), BL_OK);
  session.input.session = output.session;
  memcpy(session.input.key, output.key, RAW_ID);
  memcpy(session.input.incarnation, output.incarnation, RAW_ID);
  snprintf(session.tcp, sizeof session.tcp, "%s", output.data_tcp_address);
  session.input.plan = 1;
  session.input.bytes = 4 * GRANULE;
  session.input.count = 2;
  ask(world, RAW_RESERVE, &session.input, &output);
  assert_int_equal(output.count, 2);
  for (int i = 0; i < 2; i++) {
    session.slots[i] = output.items[i].id;
    session.generations[i] = output.items[i].generation;
  }
  return session;
}

static inline int set_up_world(void **state) {
  static world_t world;
  world = (world_t){0};
  bl_error_t err = {0};
  if (set_up((void **)&world.fixture) != 0 || bl_loop_create(&world.loop, &err) != BL_OK ||
      bl_rpc_create(world.loop, &world.rpc, &err) != BL_OK ||
      bl_rpc_channel_create(world.rpc, world.fixture->store.address, NULL, &world.raw.channel, &err) != BL_OK) {
    return -1;
  }
  world.raw.loop = world.loop;
  world.other = must_open(world.fixture, 9);
  reserve(world.other, GRANULE, 1, &world.other_slot);
  fill(world.fixture->buffers.base, GRANULE, 99);
  must(bl_client_evict(world.other, world.other_slot, world.fixture->buffers.base, GRANULE, NULL, &err), &err);
  world.ours = open_session(&world, 1);
  *state = &world;
  return 0;
}

// What the other session holds is as it was.
static inline int tear_down_world(void **state) {
  world_t *world = *state;
  bl_error_t err = {0};
  uint8_t *buffer = world->fixture->buffers.base, *expected = buffer + GRANULE;
  must(bl_client_load(world->other, world->other_slot, buffer, GRANULE, &err), &err);
  fill(expected, GRANULE, 99);
  assert_memory_equal(buffer, expected, GRANULE);
  bl_client_close(world->other);
  bl_rpc_channel_destroy(world->raw.channel);
  bl_rpc_destroy(world->rpc);
  bl_loop_destroy(world->loop);
  return tear_down((void **)&world->fixture);
}

// ---- connections ----------------------------------------------------------------------------------------------------

static inline int connect_to(const char *address) {
  bl_address_t where;
  bl_error_t err = {0};
  int fd = -1;
  must(bl_address_parse(address, &where, &err), &err);
  must(bl_socket_connect(&where, &fd, &err), &err);
  struct pollfd ready = {.fd = fd, .events = POLLOUT};
  assert_int_equal(poll(&ready, 1, 60000), 1);
  bl_socket_set_blocking(fd);
  struct timeval limit = {.tv_sec = 60};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  return fd;
}

static inline void send_bytes(int fd, const void *bytes, size_t count, int passed) {
  struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = count};
  (void)bl_socket_send(fd, &part, 1, &passed, passed >= 0 ? 1 : 0); // the store may have hung up
}

static inline void send_frame(int fd, const bl_frame_t *frame, const void *body, int passed) {
  uint8_t bytes[BL_FRAME_HEADER_BYTES + BL_FRAME_CHUNK_BYTES];
  bl_frame_encode(frame, bytes);
  const size_t body_bytes = body != NULL ? frame->body_bytes : 0;
  if (body_bytes > 0) {
    memcpy(bytes + BL_FRAME_HEADER_BYTES, body, body_bytes);
  }
  send_bytes(fd, bytes, BL_FRAME_HEADER_BYTES + body_bytes, passed);
}

static inline bool receive_bytes(int fd, void *bytes, size_t count) {
  size_t done = 0;
  while (done < count) {
    ssize_t got = recv(fd, (uint8_t *)bytes + done, count - done, 0);
    if (got < 0 && errno == EAGAIN) {
      fail_msg("the store does not answer");
    }
    if (got <= 0) {
      return false;
    }
    done += (size_t)got;
  }
  return true;
}

static char words[BL_FRAME_CHUNK_BYTES + 1]; // of the last frame that had some

// The next frame; false: the store has hung up.
static inline bool receive_frame(int fd, bl_frame_t *frame) {
  uint8_t header[BL_FRAME_HEADER_BYTES], body[BL_FRAME_CHUNK_BYTES];
  const char *reason;
  if (!receive_bytes(fd, header, sizeof header) || bl_frame_decode(header, frame, &reason) != BL_OK ||
      !receive_bytes(fd, body, frame->body_bytes)) {
    return false;
  }
  snprintf(words, sizeof words, "%.*s", (int)frame->body_bytes, (const char *)body);
  return true;
}

static inline bl_greeting_t greeting_of(const session_t *session, bool shm) {
  bl_greeting_t greeting = {.session = session->input.session, .path = shm ? BL_PATH_SHM : BL_PATH_TCP};
  memcpy(greeting.own_token, session->input.key, RAW_ID);
  memcpy(greeting.token, session->input.incarnation, RAW_ID);
  return greeting;
}

// What the store made of it: BL_OK is a welcome; the connection is closed unless `fd` is wanted.
static inline bl_status_t greet(const char *address, const bl_greeting_t *greeting, int *out) {
  int fd = connect_to(address);
  uint8_t body[BL_FRAME_GREETING_BYTES];
  bl_greeting_encode(greeting, body);
  send_frame(fd, &(bl_frame_t){.kind = BL_FRAME_GREET, .body_bytes = sizeof body}, body, -1);
  bl_frame_t welcome;
  assert_true(receive_frame(fd, &welcome));
  assert_int_equal(welcome.kind, welcome.status == BL_OK ? BL_FRAME_WELCOME : BL_FRAME_BYE);
  if (out != NULL) {
    *out = fd;
  } else {
    close(fd);
  }
  return welcome.status;
}

// A request under the session's next number; its answer.
static inline bl_frame_t request(int fd, session_t *session, bl_frame_t frame) {
  bl_frame_t answer = {0};
  frame.acknowledged = session->input.sequence;
  frame.sequence = ++session->input.sequence;
  send_frame(fd, &frame, NULL, -1);
  assert_true(receive_frame(fd, &answer));
  assert_int_equal(answer.kind, BL_FRAME_ANSWER);
  assert_int_equal(answer.sequence, frame.sequence);
  return answer;
}

// A request is refused for this reason, and the answer says so.
static inline void expect_refusal(int fd, session_t *session, bl_frame_t frame, bl_lease_reason_t reason) {
  assert_int_equal(request(fd, session, frame).status, bl_lease_reason_status(reason));
  assert_non_null(strstr(words, bl_lease_reason_text(reason)));
}

static inline bool is_hung_up(int fd) {
  bl_frame_t frame;
  while (receive_frame(fd, &frame)) {
    assert_int_equal(frame.kind, BL_FRAME_BYE); // a last word
  }
  close(fd);
  return true;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_world, tear_down_world)

#endif
