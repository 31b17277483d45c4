// SPDX-License-Identifier: Apache-2.0
// Verifies what a store makes of bad frames on its data path (lib/datapath/frame.h): greetings of somebody else,
// tokens out of date or of another session, sizes of zero or beyond, a load before a seal, a second seal, memory that
// is not sealed, chunks out of place or changed, broken headers, frames cut short, without end or byte by byte, strangers
// that say nothing. Each gets its status or ends the connection, and what another session holds stays as it was.
#include "client/raw_world.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

// ---- greetings ------------------------------------------------------------------------------------------------------

static void test_greetings(void **state) {
  world_t *world = *state;
  const char *address = world->fixture->store.data_address;
  bl_greeting_t good = greeting_of(&world->ours, true), bad = good;
  bad.own_token[3] ^= 1;
  assert_int_equal(greet(address, &bad, NULL), BL_DENIED);
  bad = good;
  bad.token[15] ^= 128;
  assert_int_equal(greet(address, &bad, NULL), BL_FENCED);
  bad = good;
  bad.session += UINT64_C(1) << 40;
  assert_true(greet(address, &bad, NULL) != BL_OK);
  bad.session = UINT64_MAX;
  assert_int_equal(greet(address, &bad, NULL), BL_NOT_FOUND);
  bad = good;
  bad.path = BL_PATH_TCP;
  assert_int_equal(greet(address, &bad, NULL), BL_INVALID);
  assert_int_equal(greet(world->ours.tcp, &good, NULL), BL_INVALID);
  int fd = connect_to(address); // not a word of greeting
  send_frame(fd, &(bl_frame_t){.kind = BL_FRAME_LOAD, .sequence = 1, .id = 1, .generation = 1}, NULL, -1);
  assert_true(is_hung_up(fd));
  assert_int_equal(greet(address, &good, &fd), BL_OK);
  uint8_t body[BL_FRAME_GREETING_BYTES];
  bl_greeting_encode(&good, body);
  send_frame(fd, &(bl_frame_t){.kind = BL_FRAME_GREET, .body_bytes = sizeof body}, body, -1);
  assert_true(is_hung_up(fd)); // greeted twice
  int first, second;
  assert_int_equal(greet(address, &good, &first), BL_OK);
  assert_int_equal(greet(address, &good, &second), BL_OK); // the holder connects anew
  assert_true(is_hung_up(first));
  send_frame(second, &(bl_frame_t){.kind = BL_FRAME_ANSWER, .sequence = 1}, NULL, -1);
  assert_true(is_hung_up(second)); // not for a store
}

// ---- requests on shm ------------------------------------------------------------------------------------------------

static bl_status_t show(int fd, uint32_t source, uint64_t bytes, int passed) {
  bl_frame_t shown;
  send_frame(fd, &(bl_frame_t){.kind = BL_FRAME_REGISTER, .region = source, .bytes = bytes}, NULL, passed);
  assert_true(receive_frame(fd, &shown));
  assert_int_equal(shown.kind, BL_FRAME_REGISTERED);
  assert_int_equal(shown.region, source);
  return shown.status;
}

static void test_requests(void **state) {
  world_t *world = *state;
  session_t *ours = &world->ours;
  const bl_arena_t *buffers = &world->fixture->buffers;
  bl_greeting_t greeting = greeting_of(ours, true);
  int fd, unsealed = memfd_create("unsealed", MFD_CLOEXEC);
  assert_int_equal(ftruncate(unsealed, 65536), 0);
  assert_int_equal(greet(world->fixture->store.data_address, &greeting, &fd), BL_OK);
  assert_int_equal(show(fd, 0, 65536, unsealed), BL_DENIED);
  close(unsealed);
  assert_int_equal(show(fd, 0, GRANULE, -1), BL_INVALID); // no descriptor
  assert_int_equal(show(fd, 0, UINT64_C(1) << 39, buffers->fd), BL_INVALID);
  assert_int_equal(show(fd, 0, buffers->bytes, buffers->fd), BL_OK);
  assert_int_equal(show(fd, 0, buffers->bytes, buffers->fd), BL_PRECONDITION);

  bl_frame_t load = {.kind = BL_FRAME_LOAD, .id = ours->slots[0], .generation = ours->generations[0]};
  bl_frame_t evict = load, release = load;
  evict.kind = BL_FRAME_EVICT;
  evict.bytes = 1000;
  evict.checksum = bl_block_checksum(buffers->base, 1000);
  release.kind = BL_FRAME_RELEASE;
  expect_refusal(fd, ours, load, BL_LEASE_STATE); // before it is sealed
  bl_frame_t bad = evict;
  bad.bytes = 0;
  assert_int_equal(request(fd, ours, bad).status, BL_INVALID);
  bad.bytes = 5 * GRANULE; // of 4
  expect_refusal(fd, ours, bad, BL_LEASE_BAD_BYTES);
  bad = evict;
  bad.offset = buffers->bytes - 999;
  assert_int_equal(request(fd, ours, bad).status, BL_INVALID);
  bad = evict;
  bad.region = 1; // not shown
  assert_int_equal(request(fd, ours, bad).status, BL_INVALID);
  bad = evict;
  bad.generation += 3;
  expect_refusal(fd, ours, bad, BL_LEASE_NO_LEASE); // never granted
  bad.id = 65000;
  expect_refusal(fd, ours, bad, BL_LEASE_NO_LEASE);
  bad = load;
  bad.id = world->other_slot;
  bad.generation = 1;
  expect_refusal(fd, ours, bad, BL_LEASE_NOT_YOURS); // another's
  bad.kind = BL_FRAME_RELEASE;
  expect_refusal(fd, ours, bad, BL_LEASE_NOT_YOURS);
  bad = evict;
  bad.checksum ^= 1;
  expect_refusal(fd, ours, bad, BL_LEASE_CHECKSUM);
  expect_refusal(fd, ours, evict, BL_LEASE_GENERATION); // that use of the slot is over
  evict.generation = load.generation = release.generation = ++ours->generations[0];
  assert_int_equal(request(fd, ours, evict).status, BL_OK);
  expect_refusal(fd, ours, evict, BL_LEASE_STATE); // sealed
  bl_frame_t answer = request(fd, ours, load);
  assert_int_equal(answer.status, BL_OK);
  assert_int_equal(answer.bytes, 1000);
  load.sequence = ours->input.sequence; // asked again: the same answer
  load.acknowledged = ours->input.sequence - 1;
  send_frame(fd, &load, NULL, -1);
  bl_frame_t again;
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

// ---- headers --------------------------------------------------------------------------------------------------------

static void test_broken_headers(void **state) {
  world_t *world = *state;
  bl_greeting_t greeting = greeting_of(&world->ours, true);
  uint8_t header[BL_FRAME_HEADER_BYTES];
  bl_frame_t release = {.kind = BL_FRAME_RELEASE, .sequence = 1000, .id = world->other_slot, .generation = 1};
  for (size_t i = 0; i < sizeof header; i++) { // one flipped bit anywhere
    int fd;
    assert_int_equal(greet(world->fixture->store.data_address, &greeting, &fd), BL_OK);
    bl_frame_encode(&release, header);
    header[i] ^= (uint8_t)(1u << (i % 8));
    send_bytes(fd, header, sizeof header, -1);
    assert_true(is_hung_up(fd));
  }
  static const uint32_t sizes[] = {BL_FRAME_CHUNK_BYTES + 1, 1u << 30, UINT32_MAX}; // and bodies of too much
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    int fd;
    assert_int_equal(greet(world->fixture->store.data_address, &greeting, &fd), BL_OK);
    bl_frame_t data = {.kind = BL_FRAME_DATA, .sequence = 1000, .bytes = UINT64_C(1) << 40, .body_bytes = sizes[i]};
    bl_frame_encode(&data, header);
    send_bytes(fd, header, sizeof header, -1);
    assert_true(is_hung_up(fd));
  }
  for (size_t length = 1; length < sizeof header; length += 13) { // and cut short
    int fd;
    assert_int_equal(greet(world->fixture->store.data_address, &greeting, &fd), BL_OK);
    bl_frame_encode(&release, header);
    send_bytes(fd, header, length, -1);
    shutdown(fd, SHUT_WR);
    assert_true(is_hung_up(fd));
  }
}

// ---- chunks on tcp --------------------------------------------------------------------------------------------------

// The next use of our first slot, announced; the connection that its bytes are expected on.
static int announce(world_t *world, uint64_t bytes) {
  session_t *ours = &world->ours;
  bl_greeting_t greeting = greeting_of(ours, false);
  int fd;
  assert_int_equal(greet(ours->tcp, &greeting, &fd), BL_OK);
  bl_frame_t evict = {.kind = BL_FRAME_EVICT,
                      .sequence = ours->input.sequence + 1,
                      .acknowledged = ours->input.sequence,
                      .id = ours->slots[0],
                      .generation = ours->generations[0],
                      .bytes = bytes};
  ours->input.sequence++;
  send_frame(fd, &evict, NULL, -1);
  return fd;
}

static void send_chunk(int fd, const session_t *session, uint64_t bytes, uint64_t offset, uint32_t count,
                       uint64_t checksum, const uint8_t *from) {
  bl_frame_t chunk = {.kind = BL_FRAME_DATA,
                      .sequence = session->input.sequence,
                      .bytes = bytes,
                      .offset = offset,
                      .body_bytes = count,
                      .checksum = checksum};
  send_frame(fd, &chunk, from, -1);
}

static uint64_t generation_of(world_t *world, uint64_t slot) {
  raw_output_t lease = {0};
  raw_input_t get = {.id = slot};
  assert_int_equal(raw_call(&world->raw, RAW_GET, &get, &lease), BL_OK);
  return lease.items[0].generation;
}

static void test_chunks(void **state) {
  world_t *world = *state;
  session_t *ours = &world->ours;
  const uint8_t *from = world->fixture->buffers.base;
  bl_frame_t answer;
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
  WAIT_FOR(generation_of(world, ours->slots[0]) == ours->generations[0]); // the store sees the end in its own time
  fd = announce(world, 2000);
  bl_frame_t stray = {.kind = BL_FRAME_DATA, .sequence = 9999, .bytes = 500, .body_bytes = 500};
  send_frame(fd, &stray, from, -1); // of a request that is not there: read away
  send_chunk(fd, ours, 2000, 0, 2000, bl_block_checksum(from, 2000), from);
  assert_true(receive_frame(fd, &answer));
  assert_int_equal(answer.status, BL_OK);
  bl_frame_t load = {.kind = BL_FRAME_LOAD,
                     .sequence = ours->input.sequence + 1,
                     .acknowledged = ours->input.sequence,
                     .id = ours->slots[0],
                     .generation = ours->generations[0]};
  ours->input.sequence++;
  send_frame(fd, &load, NULL, -1);
  assert_true(receive_frame(fd, &answer));
  assert_int_equal(answer.kind, BL_FRAME_DATA);
  assert_int_equal(answer.checksum, bl_block_checksum(from, 2000));
  assert_true(receive_frame(fd, &answer));
  assert_int_equal(answer.status, BL_OK);
  close(fd);
}

// ---- frames without end ---------------------------------------------------------------------------------------------

typedef struct flood {
  int fd;
  atomic_bool over;
} flood_t;

static void *send_strays(void *context) {
  flood_t *flood = context;
  enum { FRAMES = 512, FRAME_BYTES = BL_FRAME_HEADER_BYTES + 1 };
  static uint8_t strays[FRAMES * FRAME_BYTES];
  for (size_t i = 0; i < FRAMES; i++) {
    bl_frame_encode(&(bl_frame_t){.kind = BL_FRAME_DATA, .sequence = 9999, .bytes = 1, .body_bytes = 1},
                    strays + i * FRAME_BYTES);
  }
  while (!atomic_load(&flood->over)) {
    send_bytes(flood->fd, strays, sizeof strays, -1); // blocks: the stream has no gaps
  }
  return NULL;
}

// A holder that never stops sending does not keep the store from serving others.
static void test_without_end(void **state) {
  world_t *world = *state;
  bl_greeting_t greeting = greeting_of(&world->ours, false);
  flood_t flood = {0};
  assert_int_equal(greet(world->ours.tcp, &greeting, &flood.fd), BL_OK);
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, send_strays, &flood), 0);
  bl_status_t status = BL_OK;
  for (int i = 0; i < 20 && status == BL_OK; i++) {
    raw_output_t output;
    status = raw_call(&world->raw, RAW_STATUS, &(raw_input_t){0}, &output);
  }
  atomic_store(&flood.over, true);
  pthread_join(thread, NULL);
  close(flood.fd);
  assert_int_equal(status, BL_OK);
}

// Sends one byte after the other of a chunk, which is larger than the test is long.
static void *trickle(void *context) {
  flood_t *flood = context;
  for (unsigned i = 1; i < BL_FRAME_CHUNK_BYTES && !atomic_load(&flood->over); i++) {
    send_bytes(flood->fd, "x", 1, -1);
    usleep(100);
  }
  return NULL;
}

// A block that comes byte by byte does not keep the transfer thread from other holders.
static void test_byte_by_byte(void **state) {
  world_t *world = *state;
  flood_t flood = {.fd = announce(world, BL_FRAME_CHUNK_BYTES)};
  const bl_frame_t chunk = {.kind = BL_FRAME_DATA,
                            .sequence = world->ours.input.sequence,
                            .bytes = BL_FRAME_CHUNK_BYTES,
                            .body_bytes = BL_FRAME_CHUNK_BYTES};
  send_frame(flood.fd, &chunk, NULL, -1);
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, trickle, &flood), 0);
  bl_client_options_t options = options_of(world->fixture, 11);
  options.deadline_ms = 15000;
  bl_client_t *client = NULL;
  bl_error_t err = {0};
  const bl_status_t status = bl_client_open(&options, &client, &err);
  if (status == BL_OK) {
    uint64_t slot;
    reserve(client, GRANULE, 1, &slot);
    must(bl_client_evict(client, slot, world->fixture->buffers.base, GRANULE, NULL, &err), &err);
    bl_client_close(client);
  }
  atomic_store(&flood.over, true);
  pthread_join(thread, NULL);
  close(flood.fd);
  must(status, &err);
}

// Strangers that connect and say nothing do not keep a holder out.
static void test_silent_strangers(void **state) {
  world_t *world = *state;
  const bl_greeting_t greeting = greeting_of(&world->ours, false);
  int fds[200];
  for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++) {
    fds[i] = connect_to(world->ours.tcp);
  }
  assert_int_equal(greet(world->ours.tcp, &greeting, NULL), BL_OK);
  for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++) {
    close(fds[i]);
  }
}

int main(void) {
  store_ttl = store_grace = "60";
  const struct CMUnitTest tests[] = {
      TEST(test_greetings),   TEST(test_requests),     TEST(test_broken_headers),   TEST(test_chunks),
      TEST(test_without_end), TEST(test_byte_by_byte), TEST(test_silent_strangers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
