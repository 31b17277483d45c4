// SPDX-License-Identifier: Apache-2.0
// Verifies what a transport does when the other end is no transport: garbage on both ports, wrong and silent strangers,
// truncated and damaged frames, lies about arenas and descriptors. The link goes with a cause, the transport stays and
// serves others.
#include "datapath/address.h"
#include "datapath/block.h"
#include "datapath/greeting.h"
#include "datapath/socket.h"
#include "pair.h"

#include <errno.h>
#include <poll.h>
#include <sys/mman.h>

// A stage 0 made by hand, talking to transport 1 of a pair.
typedef struct {
  int fd;
} impostor_t;

static void dial(const char *text, impostor_t *impostor) {
  bl_address_t address;
  bl_error_t err;
  *impostor = (impostor_t){0};
  CHECK_OK(bl_address_parse(text, &address, &err), err);
  CHECK_OK(bl_socket_connect(&address, &impostor->fd, &err), err);
}

static bool ready(int fd, short events) {
  struct pollfd wait = {.fd = fd, .events = events};
  return poll(&wait, 1, 20000) == 1;
}

// Writes all; false when the transport closed the connection meanwhile.
static bool say_bytes(impostor_t *impostor, const void *bytes, size_t size_bytes) {
  const uint8_t *at = bytes;
  while (size_bytes > 0) {
    assert_true(ready(impostor->fd, POLLOUT));
    struct iovec part = {.iov_base = (void *)at, .iov_len = size_bytes};
    ssize_t sent = bl_socket_send(impostor->fd, &part, 1, NULL, 0);
    if (sent < 0 && errno != EAGAIN) {
      return false;
    }
    at += sent > 0 ? sent : 0;
    size_bytes -= sent > 0 ? (size_t)sent : 0;
  }
  return true;
}

static void say(impostor_t *impostor, bl_frame_t frame, const void *body) {
  uint8_t header[BL_FRAME_HEADER_BYTES];
  bl_frame_encode(&frame, header);
  say_bytes(impostor, header, sizeof header);
  if (body != NULL) {
    say_bytes(impostor, body, frame.body_bytes);
  }
}

// Reads exactly `size_bytes`; false at the end of the connection.
static bool hear_bytes(impostor_t *impostor, void *bytes, size_t size_bytes) {
  uint8_t *at = bytes;
  while (size_bytes > 0) {
    if (!ready(impostor->fd, POLLIN)) {
      fail_msg("the transport neither answered nor closed");
    }
    ssize_t got = recv(impostor->fd, at, size_bytes, 0);
    if (got == 0 || (got < 0 && errno != EAGAIN)) {
      return false;
    }
    at += got > 0 ? got : 0;
    size_bytes -= got > 0 ? (size_t)got : 0;
  }
  return true;
}

static void hear(impostor_t *impostor, bl_frame_t *frame, void *body) {
  uint8_t header[BL_FRAME_HEADER_BYTES];
  const char *reason = "none";
  assert_true(hear_bytes(impostor, header, sizeof header));
  assert_int_equal(bl_frame_decode(header, frame, &reason), BL_OK);
  if (frame->body_bytes > 0) {
    assert_true(hear_bytes(impostor, body, frame->body_bytes));
  }
}

static void expect_closed(impostor_t *impostor) {
  uint8_t byte;
  while (hear_bytes(impostor, &byte, 1)) {
  }
  close(impostor->fd);
}

static bl_greeting_t greeting_for(const pair_t *pair, bl_path_t path) {
  bl_greeting_t greeting = {.stage = 0, .peer = 1, .path = path};
  memcpy(greeting.token, bl_transport_token(pair->transport[1]), sizeof greeting.token);
  return greeting;
}

static void greet(impostor_t *impostor, const bl_greeting_t *greeting) {
  uint8_t body[BL_FRAME_GREETING_BYTES];
  bl_greeting_encode(greeting, body);
  say(impostor, (bl_frame_t){.kind = BL_FRAME_GREET, .body_bytes = sizeof body}, body);
}

static const char *address_of(const pair_t *pair, bl_path_t path) {
  return path == BL_PATH_SHM ? bl_transport_unix_address(pair->transport[1])
                             : bl_transport_tcp_address(pair->transport[1]);
}

// A correct handshake: the link to stage 0 is up when this returns.
static void shake_hands(const pair_t *pair, bl_path_t path, impostor_t *impostor) {
  bl_frame_t frame;
  uint8_t body[BL_FRAME_GREETING_BYTES];
  dial(address_of(pair, path), impostor);
  bl_greeting_t greeting = greeting_for(pair, path);
  greet(impostor, &greeting);
  hear(impostor, &frame, body);
  assert_int_equal(frame.kind, BL_FRAME_WELCOME);
  say(impostor, (bl_frame_t){.kind = BL_FRAME_READY}, NULL);
  bl_transport_path_t shown = {0};
  uint64_t end = soon();
  while (bl_transport_paths(pair->transport[1], &shown, 1) == 0 || !shown.connected) {
    assert_true(bl_clock_now_ns() < end);
  }
}

// Waits until the transport gave the link up and returns why.
static void expect_lost(const pair_t *pair, const char *why) {
  bl_transport_path_t shown = {.connected = true};
  uint64_t end = soon();
  while (shown.connected) {
    assert_int_equal(bl_transport_paths(pair->transport[1], &shown, 1), 1);
    assert_true(bl_clock_now_ns() < end);
  }
  if (strstr(shown.reason, why) == NULL) {
    fail_msg("the link was lost because \"%s\", expected \"%s\"", shown.reason, why);
  }
}

static void open_alone(pair_t *pair) {
  pair_init(pair);
  pair_listen(pair);
}

// The proof that nothing above has harmed the transport.
static void still_serves(pair_t *pair, bl_path_t path, uint64_t attempt) {
  bl_error_t err;
  uint8_t to[16] = {0};
  bl_tensor_key_t key = {.boundary = 9};
  pair_connect(pair, path);
  pair_begin(pair, attempt);
  memset(pair->arena[0].base, 0x5a, sizeof to);
  CHECK_OK(bl_transport_post_receive(pair->transport[1], 0, key, to, sizeof to, &err), err);
  CHECK_OK(bl_transport_post_send(pair->transport[0], 1, key, pair->arena[0].base, sizeof to, &err), err);
  CHECK_OK(bl_transport_wait_received(pair->transport[1], 0, key, soon(), &err), err);
  assert_int_equal(to[15], 0x5a);
}

static void garbage_on_both_ports(void **state) {
  (void)state;
  pair_t pair;
  open_alone(&pair);
  for (bl_path_t path = BL_PATH_SHM; path <= BL_PATH_TCP; path++) {
    impostor_t impostor;
    uint8_t noise[4096];
    const char *request =
        "GET / HTTP/1.1\r\nHost: ballast\r\nUser-Agent: a browser that is lost, and says so at length\r\n\r\n";
    dial(address_of(&pair, path), &impostor);
    say_bytes(&impostor, request, strlen(request));
    expect_closed(&impostor);
    for (uint64_t round = 0; round < 8; round++) {
      for (size_t i = 0; i < sizeof noise; i++) {
        noise[i] = (uint8_t)bl_random_bits(round, i);
      }
      dial(address_of(&pair, path), &impostor);
      say_bytes(&impostor, noise, sizeof noise);
      expect_closed(&impostor);
    }
    dial(address_of(&pair, path), &impostor); // half a header, then gone
    say_bytes(&impostor, noise, 40);
    close(impostor.fd);
    dial(address_of(&pair, path), &impostor); // a valid frame of the wrong kind
    say(&impostor, (bl_frame_t){.kind = BL_FRAME_READY}, NULL);
    expect_closed(&impostor);
  }
  assert_true(bl_transport_counters(pair.transport[1]).links_refused >= 18);
  still_serves(&pair, BL_PATH_SHM, 1);
  pair_close(&pair);
}

static void wrong_greetings_hear_why(void **state) {
  (void)state;
  pair_t pair;
  open_alone(&pair);
  for (int wrong = 0; wrong < 5; wrong++) {
    bl_path_t path = BL_PATH_TCP;
    bl_greeting_t greeting = greeting_for(&pair, path);
    bl_status_t expected = BL_INVALID;
    switch (wrong) {
    case 0:
      greeting.token[0] ^= 0x80;
      expected = BL_UNAUTHENTICATED;
      break;
    case 1:
      greeting.peer = 2;
      break;
    case 2:
      greeting.stage = 1;
      break;
    case 3:
      greeting.path = BL_PATH_SHM; // over tcp
      break;
    default:
      path = BL_PATH_SHM; // arenas without descriptors
      greeting.path = BL_PATH_SHM;
      greeting.arena_count = 2;
      greeting.arena_bytes[0] = greeting.arena_bytes[1] = 4096;
      break;
    }
    impostor_t impostor;
    bl_frame_t frame;
    uint8_t body[BL_FRAME_GREETING_BYTES];
    dial(address_of(&pair, path), &impostor);
    greet(&impostor, &greeting);
    hear(&impostor, &frame, body);
    assert_int_equal(frame.kind, BL_FRAME_BYE);
    assert_int_equal(frame.status, expected);
    assert_true(frame.body_bytes > 0);
    expect_closed(&impostor);
  }
  assert_int_equal(bl_transport_counters(pair.transport[1]).links_refused, 5);
  still_serves(&pair, BL_PATH_TCP, 1);
  pair_close(&pair);
}

static void arenas_that_could_shrink_are_refused(void **state) {
  (void)state;
  pair_t pair;
  open_alone(&pair);
  impostor_t impostor;
  bl_frame_t frame = {.kind = BL_FRAME_GREET, .body_bytes = BL_FRAME_GREETING_BYTES};
  uint8_t body[BL_FRAME_GREETING_BYTES], header[BL_FRAME_HEADER_BYTES];
  int fd = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  assert_int_equal(ftruncate(fd, 4096), 0);
  bl_greeting_t greeting = greeting_for(&pair, BL_PATH_SHM);
  greeting.arena_count = 1;
  greeting.arena_bytes[0] = 4096;
  bl_greeting_encode(&greeting, body);
  bl_frame_encode(&frame, header);
  dial(address_of(&pair, BL_PATH_SHM), &impostor);
  struct iovec parts[2] = {{.iov_base = header, .iov_len = sizeof header}, {.iov_base = body, .iov_len = sizeof body}};
  assert_int_equal(bl_socket_send(impostor.fd, parts, 2, &fd, 1), sizeof header + sizeof body);
  hear(&impostor, &frame, body);
  assert_int_equal(frame.kind, BL_FRAME_BYE);
  assert_int_equal(frame.status, BL_DENIED);
  expect_closed(&impostor);

  greeting.arena_bytes[0] = 1ull << 30; // sealed, but smaller than announced
  bl_greeting_encode(&greeting, body);
  frame = (bl_frame_t){.kind = BL_FRAME_GREET, .body_bytes = BL_FRAME_GREETING_BYTES};
  bl_frame_encode(&frame, header);
  dial(address_of(&pair, BL_PATH_SHM), &impostor);
  assert_int_equal(bl_socket_send(impostor.fd, parts, 2, &pair.arena[0].fd, 1), sizeof header + sizeof body);
  hear(&impostor, &frame, body);
  assert_int_equal(frame.kind, BL_FRAME_BYE);
  assert_int_equal(frame.status, BL_INVALID);
  expect_closed(&impostor);
  close(fd);
  still_serves(&pair, BL_PATH_SHM, 1);
  pair_close(&pair);
}

static void crowds_of_strangers_are_bounded(void **state) {
  (void)state;
  pair_t pair;
  open_alone(&pair);
  static impostor_t crowd[BL_TRANSPORT_MAX_PEERS + 24];
  const size_t count = sizeof crowd / sizeof *crowd;
  for (size_t i = 0; i < count; i++) {
    dial(address_of(&pair, BL_PATH_TCP), &crowd[i]);
  }
  uint64_t end = soon();
  while (bl_transport_counters(pair.transport[1]).links_refused < 24) { // the oldest beyond the limit go at once
    assert_true(bl_clock_now_ns() < end);
  }
  still_serves(&pair, BL_PATH_TCP, 1); // a stage is not kept out meanwhile
  for (size_t i = 0; i < count; i++) { // the silent ones when their time for a handshake is over
    expect_closed(&crowd[i]);
  }
  still_serves(&pair, BL_PATH_TCP, 2);
  pair_close(&pair);
}

#define CHUNK 1000ull

static bl_frame_t data_frame(const uint8_t *body, uint32_t body_bytes) {
  return (bl_frame_t){.kind = BL_FRAME_DATA,
                      .attempt = 1,
                      .key = {.micro_batch = 2},
                      .bytes = 2 * CHUNK,
                      .body_bytes = body_bytes,
                      .checksum = bl_block_checksum(body, body_bytes)};
}

static void damage_on_tcp_is_found(void **state) {
  (void)state;
  bl_error_t err;
  const bl_tensor_key_t key = {.micro_batch = 2};
  uint8_t chunk[CHUNK], to[2 * CHUNK];
  pattern_fill(chunk, CHUNK, 1);
  for (int damage = 0; damage < 6; damage++) {
    pair_t pair;
    impostor_t impostor;
    bl_frame_t frame;
    open_alone(&pair);
    shake_hands(&pair, BL_PATH_TCP, &impostor);
    CHECK_OK(bl_transport_begin(pair.transport[1], 1, &err), err);
    CHECK_OK(bl_transport_post_receive(pair.transport[1], 0, key, to, sizeof to, &err), err);
    hear(&impostor, &frame, NULL);
    assert_int_equal(frame.kind, BL_FRAME_CREDIT);
    assert_int_equal(frame.bytes, sizeof to);
    bl_frame_t data = data_frame(chunk, CHUNK);
    bl_status_t expected = BL_INTERNAL;
    const char *why = "";
    switch (damage) {
    case 0: // one bit of the payload
      chunk[517] ^= 4;
      say(&impostor, data, chunk);
      chunk[517] ^= 4;
      expected = BL_DATA_LOSS;
      why = "arrived damaged";
      break;
    case 1: // the first half is right, then the connection ends inside the second
      say(&impostor, data, chunk);
      data.offset = CHUNK;
      say(&impostor, data, NULL);
      say_bytes(&impostor, chunk, CHUNK / 2);
      shutdown(impostor.fd, SHUT_RDWR);
      expected = BL_UNAVAILABLE;
      why = "closed the connection";
      break;
    case 2: // no credit for this one
      data.key.micro_batch = 3;
      say(&impostor, data, chunk);
      why = "sends data without credit";
      break;
    case 3: // out of order
      data.offset = 5;
      say(&impostor, data, chunk);
      why = "out of order";
      break;
    case 4: // of a block
      data.sequence = 7;
      say(&impostor, data, chunk);
      why = "not expected now";
      break;
    default: { // a bit of a header
      uint8_t header[BL_FRAME_HEADER_BYTES];
      bl_frame_encode(&data, header);
      header[13] ^= 1;
      say_bytes(&impostor, header, sizeof header);
      why = "header checksum";
      break;
    }
    }
    assert_int_equal(bl_transport_wait_received(pair.transport[1], 0, key, soon(), &err), expected);
    expect_lost(&pair, why);
    close(impostor.fd);
    still_serves(&pair, BL_PATH_TCP, 2);
    pair_close(&pair);
  }
}

static void lies_on_shm_are_refused(void **state) {
  (void)state;
  bl_error_t err;
  const bl_tensor_key_t key = {.micro_batch = 2};
  uint8_t to[64];
  const char *const whys[] = {"outside of its arenas", "was not offered", "of the other path",
                              "announces a tensor twice"};
  for (int lie = 0; lie < 4; lie++) {
    pair_t pair;
    impostor_t impostor;
    open_alone(&pair);
    shake_hands(&pair, BL_PATH_SHM, &impostor); // it has no arenas at all
    CHECK_OK(bl_transport_begin(pair.transport[1], 1, &err), err);
    CHECK_OK(bl_transport_post_receive(pair.transport[1], 0, key, to, sizeof to, &err), err);
    bl_frame_t frame = {.kind = BL_FRAME_OFFER, .attempt = 1, .key = key, .bytes = sizeof to};
    if (lie == 1) {
      frame.kind = BL_FRAME_ACK;
    } else if (lie == 2) {
      frame.kind = BL_FRAME_CREDIT;
    } else if (lie == 3) {
      impostor_t honest; // stage 0 again, this time with an arena
      uint8_t header[BL_FRAME_HEADER_BYTES], body[BL_FRAME_GREETING_BYTES];
      bl_greeting_t greeting = greeting_for(&pair, BL_PATH_SHM);
      greeting.arena_count = 1;
      greeting.arena_bytes[0] = 4096;
      bl_frame_t said = {.kind = BL_FRAME_GREET, .body_bytes = BL_FRAME_GREETING_BYTES};
      bl_greeting_encode(&greeting, body);
      bl_frame_encode(&said, header);
      dial(address_of(&pair, BL_PATH_SHM), &honest);
      struct iovec parts[2] = {{.iov_base = header, .iov_len = sizeof header},
                               {.iov_base = body, .iov_len = sizeof body}};
      assert_true(bl_socket_send(honest.fd, parts, 2, &pair.arena[0].fd, 1) > 0);
      hear(&honest, &said, body);
      say(&honest, (bl_frame_t){.kind = BL_FRAME_READY}, NULL);
      expect_closed(&impostor); // the new link replaces the old
      impostor = honest;
      frame.attempt = 9;
      say(&impostor, frame, NULL);
    }
    say(&impostor, frame, NULL);
    expect_lost(&pair, whys[lie]);
    close(impostor.fd);
    still_serves(&pair, BL_PATH_SHM, 2);
    pair_close(&pair);
  }
}

// A peer that announces without end is cut off; its descriptors after the handshake are not taken either.
static void floods_are_cut_off(void **state) {
  (void)state;
  pair_t pair;
  impostor_t impostor;
  pair_init(&pair);
  pair.options[1].max_in_flight = 8;
  pair_listen(&pair);
  shake_hands(&pair, BL_PATH_TCP, &impostor);
  for (uint32_t i = 0; i < 9; i++) {
    say(&impostor, (bl_frame_t){.kind = BL_FRAME_CREDIT, .attempt = 5, .key = {.micro_batch = i}, .bytes = 8}, NULL);
  }
  expect_lost(&pair, "more tensors than fit in flight");
  close(impostor.fd);
  still_serves(&pair, BL_PATH_TCP, 1);
  pair_close(&pair);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(garbage_on_both_ports),
      cmocka_unit_test(wrong_greetings_hear_why),
      cmocka_unit_test(arenas_that_could_shrink_are_refused),
      cmocka_unit_test(crowds_of_strangers_are_bounded),
      cmocka_unit_test(damage_on_tcp_is_found),
      cmocka_unit_test(lies_on_shm_are_refused),
      cmocka_unit_test(floods_are_cut_off),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
