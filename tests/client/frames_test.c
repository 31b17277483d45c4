// SPDX-License-Identifier: Apache-2.0
// Verifies what a store makes of bad frames on its data path (lib/datapath/block_frame.h): greetings of somebody else,
// tokens out of date or of another session, sizes of zero or beyond, a load before a seal, a second seal, memory that is
// not sealed, chunks out of place or changed, broken headers, frames cut short. Each gets its status or ends the
// connection, and what another session holds stays as it was. Quotas under a hundred threads.
#include "client/fixture.h"

#include "datapath/block.h"
#include "datapath/block_frame.h"
#include "datapath/socket.h"
#include "lease/reason.h"
#include "store/raw_wire.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>

typedef struct session {
  raw_input_t input;
  char tcp[64];
  uint64_t rooms[2], generations[2];
} session_t;

typedef struct world {
  fixture_t *fixture;
  bl_loop_t *loop;
  bl_rpc_t *rpc;
  raw_store_t raw;
  session_t ours;
  bl_client_t *other; // holds a block meanwhile
  uint64_t other_room;
} world_t;

// ---- sessions ----------------------------------------------------------------------------------------------------------

static void ask(world_t *world, raw_verb_t verb, raw_input_t *input, raw_output_t *output) {
  input->acknowledged = input->sequence;
  input->sequence++;
  if (raw_call(&world->raw, verb, input, output) != BL_OK) {
    fail_msg("%s", world->raw.err.text);
  }
}

static session_t open_session(world_t *world, uint32_t stage) {
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
    session.rooms[i] = output.items[i].id;
    session.generations[i] = output.items[i].generation;
  }
  return session;
}

static int set_up_world(void **state) {
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
  reserve(world.other, GRANULE, 1, &world.other_room);
  fill(world.fixture->slots.base, GRANULE, 99);
  must(bl_client_evict(world.other, world.other_room, world.fixture->slots.base, GRANULE, NULL, &err), &err);
  world.ours = open_session(&world, 1);
  *state = &world;
  return 0;
}

// What the other session holds is as it was.
static int tear_down_world(void **state) {
  world_t *world = *state;
  bl_error_t err = {0};
  uint8_t *slot = world->fixture->slots.base, *expected = slot + GRANULE;
  must(bl_client_load(world->other, world->other_room, slot, GRANULE, &err), &err);
  fill(expected, GRANULE, 99);
  assert_memory_equal(slot, expected, GRANULE);
  bl_client_close(world->other);
  bl_rpc_channel_destroy(world->raw.channel);
  bl_rpc_destroy(world->rpc);
  bl_loop_destroy(world->loop);
  return tear_down((void **)&world->fixture);
}

// ---- connections -------------------------------------------------------------------------------------------------------

static int connect_to(const char *address) {
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

static void send_bytes(int fd, const void *bytes, size_t count, int passed) {
  struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = count};
  (void)bl_socket_send(fd, &part, 1, &passed, passed >= 0 ? 1 : 0); // the store may have hung up
}

static void send_frame(int fd, const bl_block_frame_t *frame, const void *body, int passed) {
  uint8_t bytes[BL_BLOCK_FRAME_BYTES + BL_BLOCK_CHUNK_BYTES];
  bl_block_frame_encode(frame, bytes);
  memcpy(bytes + BL_BLOCK_FRAME_BYTES, body, body != NULL ? frame->body_bytes : 0);
  send_bytes(fd, bytes, BL_BLOCK_FRAME_BYTES + (body != NULL ? frame->body_bytes : 0), passed);
}

static bool receive_bytes(int fd, void *bytes, size_t count) {
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

static char words[BL_BLOCK_CHUNK_BYTES + 1]; // of the last frame that had some

// The next frame; false: the store has hung up.
static bool receive_frame(int fd, bl_block_frame_t *frame) {
  uint8_t header[BL_BLOCK_FRAME_BYTES], body[BL_BLOCK_CHUNK_BYTES];
  const char *reason;
  if (!receive_bytes(fd, header, sizeof header) || bl_block_frame_decode(header, frame, &reason) != BL_OK ||
      !receive_bytes(fd, body, frame->body_bytes)) {
    return false;
  }
  snprintf(words, sizeof words, "%.*s", (int)frame->body_bytes, (const char *)body);
  return true;
}

static bl_block_greeting_t greeting_of(const session_t *session, bool shm) {
  bl_block_greeting_t greeting = {.session = session->input.session, .shm = shm};
  memcpy(greeting.key, session->input.key, RAW_ID);
  memcpy(greeting.incarnation, session->input.incarnation, RAW_ID);
  return greeting;
}

// The status of the welcome; the connection is closed unless `fd` is wanted.
static bl_status_t greet(const char *address, const bl_block_greeting_t *greeting, int *out) {
  int fd = connect_to(address);
  uint8_t body[BL_BLOCK_GREETING_BYTES];
  bl_block_greeting_encode(greeting, body);
  send_frame(fd, &(bl_block_frame_t){.kind = BL_BLOCK_GREET, .body_bytes = sizeof body}, body, -1);
  bl_block_frame_t welcome;
  assert_true(receive_frame(fd, &welcome));
  assert_int_equal(welcome.kind, BL_BLOCK_WELCOME);
  if (out != NULL) {
    *out = fd;
  } else {
    close(fd);
  }
  return welcome.status;
}

// A request under the session's next number; its answer.
static bl_block_frame_t request(int fd, session_t *session, bl_block_frame_t frame) {
  bl_block_frame_t answer = {0};
  frame.acknowledged = session->input.sequence;
  frame.sequence = ++session->input.sequence;
  send_frame(fd, &frame, NULL, -1);
  assert_true(receive_frame(fd, &answer));
  assert_int_equal(answer.kind, BL_BLOCK_ANSWER);
  assert_int_equal(answer.sequence, frame.sequence);
  return answer;
}

// A request is refused for this reason, and the answer says so.
static void expect_refusal(int fd, session_t *session, bl_block_frame_t frame, bl_lease_reason_t reason) {
  assert_int_equal(request(fd, session, frame).status, bl_lease_reason_status(reason));
  assert_non_null(strstr(words, bl_lease_reason_text(reason)));
}

static bool is_hung_up(int fd) {
  bl_block_frame_t frame;
  while (receive_frame(fd, &frame)) {
    assert_int_equal(frame.kind, BL_BLOCK_BYE); // a last word
  }
  close(fd);
  return true;
}

// ---- greetings ---------------------------------------------------------------------------------------------------------

static void test_greetings(void **state) {
  world_t *world = *state;
  const char *address = world->fixture->store.data_address;
  bl_block_greeting_t good = greeting_of(&world->ours, true), bad = good;
  bad.key[3] ^= 1;
  assert_int_equal(greet(address, &bad, NULL), BL_DENIED);
  bad = good;
  bad.incarnation[15] ^= 128;
  assert_int_equal(greet(address, &bad, NULL), BL_FENCED);
  bad = good;
  bad.session += UINT64_C(1) << 40;
  assert_true(greet(address, &bad, NULL) != BL_OK);
  bad.session = UINT64_MAX;
  assert_int_equal(greet(address, &bad, NULL), BL_NOT_FOUND);
  bad = good;
  bad.shm = false;
  assert_int_equal(greet(address, &bad, NULL), BL_INVALID);
  assert_int_equal(greet(world->ours.tcp, &good, NULL), BL_INVALID);
  int fd = connect_to(address); // not a word of greeting
  send_frame(fd, &(bl_block_frame_t){.kind = BL_BLOCK_LOAD, .sequence = 1, .id = 1, .generation = 1}, NULL, -1);
  assert_true(is_hung_up(fd));
  assert_int_equal(greet(address, &good, &fd), BL_OK);
  uint8_t body[BL_BLOCK_GREETING_BYTES];
  bl_block_greeting_encode(&good, body);
  send_frame(fd, &(bl_block_frame_t){.kind = BL_BLOCK_GREET, .body_bytes = sizeof body}, body, -1);
  assert_true(is_hung_up(fd)); // greeted twice
  int first, second;
  assert_int_equal(greet(address, &good, &first), BL_OK);
  assert_int_equal(greet(address, &good, &second), BL_OK); // the holder connects anew
  assert_true(is_hung_up(first));
  send_frame(second, &(bl_block_frame_t){.kind = BL_BLOCK_ANSWER, .sequence = 1}, NULL, -1);
  assert_true(is_hung_up(second)); // not for a store
}

// ---- requests on shm ---------------------------------------------------------------------------------------------------

static bl_status_t show(int fd, uint32_t source, uint64_t bytes, int passed) {
  bl_block_frame_t shown;
  send_frame(fd, &(bl_block_frame_t){.kind = BL_BLOCK_SHOW, .source = source, .bytes = bytes}, NULL, passed);
  assert_true(receive_frame(fd, &shown));
  assert_int_equal(shown.kind, BL_BLOCK_SHOWN);
  assert_int_equal(shown.source, source);
  return shown.status;
}

static void test_requests(void **state) {
  world_t *world = *state;
  session_t *ours = &world->ours;
  const bl_arena_t *slots = &world->fixture->slots;
  bl_block_greeting_t greeting = greeting_of(ours, true);
  int fd, unsealed = memfd_create("unsealed", MFD_CLOEXEC);
  assert_int_equal(ftruncate(unsealed, 65536), 0);
  assert_int_equal(greet(world->fixture->store.data_address, &greeting, &fd), BL_OK);
  assert_int_equal(show(fd, 0, 65536, unsealed), BL_DENIED);
  close(unsealed);
  assert_int_equal(show(fd, 0, GRANULE, -1), BL_INVALID); // no descriptor
  assert_int_equal(show(fd, 0, UINT64_C(1) << 39, slots->fd), BL_INVALID);
  assert_int_equal(show(fd, 0, slots->bytes, slots->fd), BL_OK);
  assert_int_equal(show(fd, 0, slots->bytes, slots->fd), BL_PRECONDITION);

  bl_block_frame_t load = {.kind = BL_BLOCK_LOAD, .id = ours->rooms[0], .generation = ours->generations[0]};
  bl_block_frame_t evict = load, release = load;
  evict.kind = BL_BLOCK_EVICT;
  evict.bytes = 1000;
  evict.checksum = bl_block_checksum(slots->base, 1000);
  release.kind = BL_BLOCK_RELEASE;
  expect_refusal(fd, ours, load, BL_LEASE_STATE); // before it is sealed
  bl_block_frame_t bad = evict;
  bad.bytes = 0;
  assert_int_equal(request(fd, ours, bad).status, BL_INVALID);
  bad.bytes = 5 * GRANULE; // of 4
  expect_refusal(fd, ours, bad, BL_LEASE_BAD_BYTES);
  bad = evict;
  bad.offset = slots->bytes - 999;
  assert_int_equal(request(fd, ours, bad).status, BL_INVALID);
  bad = evict;
  bad.source = 1; // not shown
  assert_int_equal(request(fd, ours, bad).status, BL_INVALID);
  bad = evict;
  bad.generation += 3;
  expect_refusal(fd, ours, bad, BL_LEASE_NO_LEASE); // never granted
  bad.id = 65000;
  expect_refusal(fd, ours, bad, BL_LEASE_NO_LEASE);
  bad = load;
  bad.id = world->other_room;
  bad.generation = 1;
  expect_refusal(fd, ours, bad, BL_LEASE_NOT_YOURS); // another's
  bad.kind = BL_BLOCK_RELEASE;
  expect_refusal(fd, ours, bad, BL_LEASE_NOT_YOURS);
  bad = evict;
  bad.checksum ^= 1;
  expect_refusal(fd, ours, bad, BL_LEASE_CHECKSUM);
  expect_refusal(fd, ours, evict, BL_LEASE_GENERATION); // that use of the room is over
  evict.generation = load.generation = release.generation = ++ours->generations[0];
  assert_int_equal(request(fd, ours, evict).status, BL_OK);
  expect_refusal(fd, ours, evict, BL_LEASE_STATE); // sealed
  bl_block_frame_t answer = request(fd, ours, load);
  assert_int_equal(answer.status, BL_OK);
  assert_int_equal(answer.bytes, 1000);
  load.sequence = ours->input.sequence; // asked again: the same answer
  load.acknowledged = ours->input.sequence - 1;
  send_frame(fd, &load, NULL, -1);
  bl_block_frame_t again;
  assert_true(receive_frame(fd, &again) && again.status == BL_OK && again.offset == answer.offset);
  bad = release; // the number of another request
  bad.sequence = ours->input.sequence;
  bad.acknowledged = ours->input.sequence - 1;
  send_frame(fd, &bad, NULL, -1);
  assert_true(receive_frame(fd, &again) && again.status == BL_PRECONDITION);
  assert_int_equal(request(fd, ours, release).status, BL_OK);
  expect_refusal(fd, ours, load, BL_LEASE_GENERATION);
  close(fd);
}

// ---- headers -----------------------------------------------------------------------------------------------------------

static void test_broken_headers(void **state) {
  world_t *world = *state;
  bl_block_greeting_t greeting = greeting_of(&world->ours, true);
  uint8_t header[BL_BLOCK_FRAME_BYTES];
  bl_block_frame_t release = {.kind = BL_BLOCK_RELEASE, .sequence = 1000, .id = world->other_room, .generation = 1};
  for (size_t i = 0; i < sizeof header; i++) { // one flipped bit anywhere
    int fd;
    assert_int_equal(greet(world->fixture->store.data_address, &greeting, &fd), BL_OK);
    bl_block_frame_encode(&release, header);
    header[i] ^= (uint8_t)(1u << (i % 8));
    send_bytes(fd, header, sizeof header, -1);
    assert_true(is_hung_up(fd));
  }
  static const uint32_t sizes[] = {BL_BLOCK_CHUNK_BYTES + 1, 1u << 30, UINT32_MAX}; // and bodies of too much
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    int fd;
    assert_int_equal(greet(world->fixture->store.data_address, &greeting, &fd), BL_OK);
    bl_block_frame_t data = {
        .kind = BL_BLOCK_DATA, .sequence = 1000, .bytes = UINT64_C(1) << 40, .body_bytes = sizes[i]};
    bl_block_frame_encode(&data, header);
    send_bytes(fd, header, sizeof header, -1);
    assert_true(is_hung_up(fd));
  }
  for (size_t length = 1; length < sizeof header; length += 13) { // and cut short
    int fd;
    assert_int_equal(greet(world->fixture->store.data_address, &greeting, &fd), BL_OK);
    bl_block_frame_encode(&release, header);
    send_bytes(fd, header, length, -1);
    shutdown(fd, SHUT_WR);
    assert_true(is_hung_up(fd));
  }
}

// ---- chunks on tcp -----------------------------------------------------------------------------------------------------

// The next use of our first room, announced; the connection that its bytes are expected on.
static int announce(world_t *world, uint64_t bytes) {
  session_t *ours = &world->ours;
  bl_block_greeting_t greeting = greeting_of(ours, false);
  int fd;
  assert_int_equal(greet(ours->tcp, &greeting, &fd), BL_OK);
  bl_block_frame_t evict = {.kind = BL_BLOCK_EVICT,
                            .sequence = ours->input.sequence + 1,
                            .acknowledged = ours->input.sequence,
                            .id = ours->rooms[0],
                            .generation = ours->generations[0],
                            .bytes = bytes};
  ours->input.sequence++;
  send_frame(fd, &evict, NULL, -1);
  return fd;
}

static void send_chunk(int fd, const session_t *session, uint64_t bytes, uint64_t offset, uint32_t count,
                       uint64_t checksum, const uint8_t *from) {
  bl_block_frame_t chunk = {.kind = BL_BLOCK_DATA,
                            .sequence = session->input.sequence,
                            .bytes = bytes,
                            .offset = offset,
                            .body_bytes = count,
                            .checksum = checksum};
  send_frame(fd, &chunk, from, -1);
}

static void test_chunks(void **state) {
  world_t *world = *state;
  session_t *ours = &world->ours;
  const uint8_t *from = world->fixture->slots.base;
  bl_block_frame_t answer;
  int fd = announce(world, 2000);
  send_chunk(fd, ours, 2000, 0, 2000, bl_block_checksum(from, 2000) ^ 1, from); // changed on the way
  assert_true(receive_frame(fd, &answer));
  assert_int_equal(answer.status, BL_DATA_LOSS);
  assert_int_equal(answer.generation, ++ours->generations[0]);
  close(fd);
  fd = announce(world, 2000);
  send_chunk(fd, ours, 2000, 1000, 1000, 0, from); // not the beginning
  assert_true(is_hung_up(fd));
  ours->generations[0]++; // that use is over
  fd = announce(world, 2000);
  send_chunk(fd, ours, 3000, 0, 3000, 0, from); // of another size
  assert_true(is_hung_up(fd));
  ours->generations[0]++;
  fd = announce(world, 2000);
  send_chunk(fd, ours, 2000, 0, 1000, bl_block_checksum(from, 1000), from); // and nothing more
  close(fd);
  ours->generations[0]++;
  raw_output_t lease;
  uint64_t start_ns = bl_clock_now_ns();
  do { // the store sees the end in its own time
    lease = (raw_output_t){0};
    raw_input_t get = {.id = ours->rooms[0]};
    assert_int_equal(raw_call(&world->raw, RAW_GET, &get, &lease), BL_OK);
    assert_true(bl_clock_now_ns() - start_ns < FREE_AGAIN_NS);
  } while (lease.items[0].generation != ours->generations[0]);
  fd = announce(world, 2000);
  bl_block_frame_t stray = {.kind = BL_BLOCK_DATA, .sequence = 9999, .bytes = 500, .body_bytes = 500};
  send_frame(fd, &stray, from, -1); // of a request that is not there: read away
  send_chunk(fd, ours, 2000, 0, 2000, bl_block_checksum(from, 2000), from);
  assert_true(receive_frame(fd, &answer));
  assert_int_equal(answer.status, BL_OK);
  bl_block_frame_t load = {.kind = BL_BLOCK_LOAD,
                           .sequence = ours->input.sequence + 1,
                           .acknowledged = ours->input.sequence,
                           .id = ours->rooms[0],
                           .generation = ours->generations[0]};
  ours->input.sequence++;
  send_frame(fd, &load, NULL, -1);
  assert_true(receive_frame(fd, &answer));
  assert_int_equal(answer.kind, BL_BLOCK_DATA);
  assert_int_equal(answer.checksum, bl_block_checksum(from, 2000));
  assert_true(receive_frame(fd, &answer));
  assert_int_equal(answer.status, BL_OK);
  close(fd);
}

// ---- quotas ------------------------------------------------------------------------------------------------------------

#define ASKERS      100
#define QUOTA       128 // granules
#define ASKED_PLANS 4   // per session, each with a size of its own

typedef struct asker {
  bl_client_t *client;
  uint64_t plan;
  bl_error_t err;
} asker_t;

static void *ask_for_room(void *argument) {
  asker_t *asker = argument;
  bl_client_demand_t demand = {.bytes = asker->plan * GRANULE, .count = 1};
  asker->err.status = bl_client_reserve(asker->client, asker->plan, &demand, 1, &asker->err);
  return NULL;
}

// A hundred threads at the boundary of a quota that was set while the job runs: never a byte beyond it.
static void test_quota(void **state) {
  world_t *world = *state;
  raw_input_t quota = {.job = "job", .bytes = QUOTA * GRANULE};
  raw_output_t output;
  assert_int_equal(raw_call(&world->raw, RAW_QUOTA, &quota, &output), BL_OK);
  assert_int_equal(raw_call(&world->raw, RAW_STATUS, &(raw_input_t){0}, &output), BL_OK);
  uint64_t before = output.held_bytes, granted = 0;
  static asker_t askers[ASKERS];
  pthread_t threads[ASKERS];
  for (uint32_t i = 0; i < ASKERS; i++) {
    askers[i] = (asker_t){.plan = 1 + i % ASKED_PLANS};
    askers[i].client = i % ASKED_PLANS == 0 ? must_open(world->fixture, 20 + i) : askers[i - i % ASKED_PLANS].client;
  }
  for (unsigned i = 0; i < ASKERS; i++) {
    assert_int_equal(pthread_create(&threads[i], NULL, ask_for_room, &askers[i]), 0);
  }
  for (unsigned i = 0; i < ASKERS; i++) {
    pthread_join(threads[i], NULL);
    if (askers[i].err.status == BL_OK) {
      granted += askers[i].plan * GRANULE;
    } else if (askers[i].err.status != BL_EXHAUSTED || strstr(askers[i].err.text, "quota of the job") == NULL) {
      fail_msg("%s", askers[i].err.text);
    }
  }
  assert_int_equal(raw_call(&world->raw, RAW_STATUS, &(raw_input_t){0}, &output), BL_OK);
  assert_int_equal(output.held_bytes, before + granted);
  assert_true(output.held_bytes <= QUOTA * GRANULE);
  assert_true(output.held_bytes > (QUOTA - ASKED_PLANS) * GRANULE); // and none was refused that fitted
  for (unsigned i = 0; i < ASKERS; i += ASKED_PLANS) {
    bl_client_close(askers[i].client);
  }
}

// ---- flow ----------------------------------------------------------------------------------------------------------------

#define FLOW_BLOCK (4 * GRANULE) // as large as a room and as a chunk, and all that may be in flight

static void send_block(int fd, const bl_block_frame_t *evict, const uint8_t *block) {
  bl_block_frame_t data = {.kind = BL_BLOCK_DATA,
                           .sequence = evict->sequence,
                           .bytes = FLOW_BLOCK,
                           .checksum = bl_block_checksum(block, FLOW_BLOCK),
                           .body_bytes = (uint32_t)FLOW_BLOCK};
  send_frame(fd, &data, block, -1);
}

// --flow holds over the data connection: a block beyond it is refused and told when to come again, and what is in flight
// goes on; once that is over, it is taken.
static void test_flow(void **state) {
  world_t *world = *state;
  session_t *ours = &world->ours;
  static uint8_t block[FLOW_BLOCK];
  fill(block, sizeof block, 5);
  bl_block_greeting_t greeting = greeting_of(ours, false);
  int fd;
  assert_int_equal(greet(ours->tcp, &greeting, &fd), BL_OK);
  bl_block_frame_t evicts[2], answer = {0};
  for (int i = 0; i < 2; i++) {
    evicts[i] = (bl_block_frame_t){.kind = BL_BLOCK_EVICT,
                                   .id = ours->rooms[i],
                                   .generation = ours->generations[i],
                                   .bytes = FLOW_BLOCK,
                                   .acknowledged = ours->input.sequence,
                                   .sequence = ours->input.sequence + 1 + (uint64_t)i};
    send_frame(fd, &evicts[i], NULL, -1);
  }
  ours->input.sequence += 2;
  assert_true(receive_frame(fd, &answer)); // the second: the first waits for its bytes
  assert_int_equal(answer.sequence, evicts[1].sequence);
  assert_int_equal(answer.status, BL_EXHAUSTED);
  assert_true(answer.retry_after_ms > 0);
  send_block(fd, &evicts[0], block);
  assert_true(receive_frame(fd, &answer));
  assert_int_equal(answer.sequence, evicts[0].sequence);
  assert_int_equal(answer.status, BL_OK);
  evicts[1].acknowledged = ours->input.sequence;
  evicts[1].sequence = ++ours->input.sequence;
  send_frame(fd, &evicts[1], NULL, -1);
  send_block(fd, &evicts[1], block);
  assert_true(receive_frame(fd, &answer));
  assert_int_equal(answer.sequence, evicts[1].sequence);
  assert_int_equal(answer.status, BL_OK);
  close(fd);
}

// The client keeps to it by itself: many blocks at once arrive, none is refused.
static void test_flow_of_a_client(void **state) {
  world_t *world = *state;
  uint8_t *slots = world->fixture->slots.base;
  bl_client_t *client = must_open(world->fixture, 5);
  uint64_t rooms[ROOMS];
  bl_client_ticket_t tickets[ROOMS];
  bl_error_t err = {0};
  raw_output_t output;
  reserve(client, FLOW_BLOCK, ROOMS, rooms);
  fill(slots, ROOMS * FLOW_BLOCK, 6);
  assert_int_equal(raw_call(&world->raw, RAW_STATUS, &(raw_input_t){0}, &output), BL_OK);
  const uint64_t before = raw_count(&output, "credit");
  for (int i = 0; i < ROOMS; i++) {
    must(bl_client_evict_start(client, rooms[i], slots + (uint64_t)i * FLOW_BLOCK, FLOW_BLOCK, NULL, &tickets[i], &err),
         &err);
  }
  for (int i = 0; i < ROOMS; i++) {
    must(bl_client_wait(client, tickets[i], UINT64_MAX, &err), &err);
  }
  for (int i = 0; i < ROOMS; i++) {
    must(bl_client_load_start(client, rooms[i], slots + (uint64_t)i * FLOW_BLOCK, FLOW_BLOCK, &tickets[i], &err), &err);
  }
  for (int i = 0; i < ROOMS; i++) {
    must(bl_client_wait(client, tickets[i], UINT64_MAX, &err), &err);
  }
  assert_int_equal(raw_call(&world->raw, RAW_STATUS, &(raw_input_t){0}, &output), BL_OK);
  assert_int_equal(raw_count(&output, "credit"), before);
  bl_client_close(client);
}

static int set_up_flow(void **state) {
  static char bytes[24];
  snprintf(bytes, sizeof bytes, "%lu", (unsigned long)FLOW_BLOCK);
  store_flow = bytes;
  int failed = set_up_world(state);
  store_flow = "0";
  return failed;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_world, tear_down_world)

int main(void) {
  store_ttl = store_grace = "60";
  const struct CMUnitTest tests[] = {
      TEST(test_greetings),
      TEST(test_requests),
      TEST(test_broken_headers),
      TEST(test_chunks),
      TEST(test_quota),
      cmocka_unit_test_setup_teardown(test_flow, set_up_flow, tear_down_world),
      cmocka_unit_test_setup_teardown(test_flow_of_a_client, set_up_flow, tear_down_world),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
