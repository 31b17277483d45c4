// SPDX-License-Identifier: Apache-2.0
// Verifies that holders may hang up at any moment, whatever the store does for them then: only their connection ends.
// The sanitizer sees what the store touches after that.
#include "client/raw_world.h"
#include "seed.h"

#define ROUNDS 400

static uint64_t seed, drawn;

static uint32_t draw(uint32_t below) {
  return (uint32_t)(bl_random_bits(seed, drawn++) % below);
}

// Stops the store meanwhile: what has happened when it goes on, it learns of at once.
static void hang_up_stopped(world_t *world, int fd, unsigned stopped_ms) {
  kill(world->fixture->store.pid, SIGSTOP);
  usleep(1000 * stopped_ms);
  close(fd);
  kill(world->fixture->store.pid, SIGCONT);
}

static void send_blocks(int fd, session_t *ours, const uint8_t *from, bool shm) {
  static const bl_frame_kind_t kinds[] = {BL_FRAME_EVICT, BL_FRAME_EVICT, BL_FRAME_LOAD, BL_FRAME_RELEASE};
  for (uint32_t count = draw(4); count > 0; count--) {
    const uint32_t bytes = 1 + draw(4 * GRANULE), slot = draw(2);
    bl_frame_t frame = {.kind = kinds[draw(4)],
                        .id = ours->slots[slot],
                        .generation = ours->generations[slot],
                        .acknowledged = ours->input.sequence};
    frame.sequence = ++ours->input.sequence;
    if (frame.kind == BL_FRAME_EVICT) {
      frame.bytes = bytes;
      frame.checksum = bl_block_checksum(from, bytes);
    }
    send_frame(fd, &frame, NULL, -1);
    if (frame.kind == BL_FRAME_EVICT && !shm) {
      const uint32_t sent = draw(2) != 0 ? bytes : draw(bytes);
      bl_frame_t data = {.kind = BL_FRAME_DATA, .sequence = frame.sequence, .bytes = bytes};
      for (uint32_t at = 0; at < sent; at += data.body_bytes) {
        data.offset = at;
        data.body_bytes = sent - at < BL_FRAME_CHUNK_BYTES ? sent - at : BL_FRAME_CHUNK_BYTES;
        data.checksum = bl_block_checksum(from, at + data.body_bytes);
        send_frame(fd, &data, from + at, -1);
      }
    }
  }
}

static void find_generations(world_t *world) {
  for (int i = 0; i < 2; i++) {
    raw_output_t lease = {0};
    raw_input_t get = {.id = world->ours.slots[i]};
    assert_int_equal(raw_call(&world->raw, RAW_GET, &get, &lease), BL_OK);
    world->ours.generations[i] = lease.items[0].generation;
  }
}

static void test_at_any_moment(void **state) {
  world_t *world = *state;
  const bl_arena_t *buffers = &world->fixture->buffers;
  for (int round = 0; round < ROUNDS; round++) {
    const bool shm = draw(4) != 0;
    const bl_greeting_t greeting = greeting_of(&world->ours, shm);
    int fd;
    bl_frame_t answer;
    assert_int_equal(greet(shm ? world->fixture->store.data_address : world->ours.tcp, &greeting, &fd), BL_OK);
    const uint32_t regions = shm ? 1 + draw(4) : 0;
    for (uint32_t i = 0; i < regions; i++) {
      send_frame(fd, &(bl_frame_t){.kind = BL_FRAME_REGISTER, .region = i, .bytes = buffers->bytes}, NULL, buffers->fd);
    }
    if (draw(2) != 0) {
      for (uint32_t i = 0; i < regions; i++) {
        assert_true(receive_frame(fd, &answer));
      }
      send_blocks(fd, &world->ours, buffers->base, shm);
    }
    usleep(draw(800));
    if (draw(2) != 0) {
      hang_up_stopped(world, fd, 0);
    } else {
      close(fd);
    }
    if (draw(8) == 0) {
      find_generations(world);
    }
  }
}

// Connects over shm and registers our memory.
static int connect_and_show(world_t *world) {
  const bl_arena_t *buffers = &world->fixture->buffers;
  const bl_greeting_t greeting = greeting_of(&world->ours, true);
  int fd;
  bl_frame_t answer;
  assert_int_equal(greet(world->fixture->store.data_address, &greeting, &fd), BL_OK);
  send_frame(fd, &(bl_frame_t){.kind = BL_FRAME_REGISTER, .bytes = buffers->bytes}, NULL, buffers->fd);
  assert_true(receive_frame(fd, &answer));
  return fd;
}

// The first load has the turn, the second waits for it and is revoked. Its answer meets a holder that has gone.
static void test_before_its_turn(void **state) {
  world_t *world = *state;
  session_t *ours = &world->ours;
  const bl_arena_t *buffers = &world->fixture->buffers;
  const int fd = connect_and_show(world);
  bl_frame_t load = {.kind = BL_FRAME_LOAD};
  for (int i = 0; i < 2; i++) {
    load.id = ours->slots[i];
    load.generation = ours->generations[i];
    bl_frame_t evict = load;
    evict.kind = BL_FRAME_EVICT;
    evict.bytes = 1000;
    evict.checksum = bl_block_checksum(buffers->base, 1000);
    assert_int_equal(request(fd, ours, evict).status, BL_OK);
  }
  bl_frame_t first = load;
  first.id = ours->slots[0];
  first.generation = ours->generations[0];
  assert_int_equal(request(fd, ours, first).status, BL_OK);
  load.acknowledged = ours->input.sequence;
  load.sequence = ++ours->input.sequence;
  send_frame(fd, &load, NULL, -1);
  raw_output_t output;
  raw_input_t revoked = {.id = load.id, .generation = load.generation};
  assert_int_equal(raw_call(&world->raw, RAW_REVOKE, &revoked, &output), BL_OK);
  hang_up_stopped(world, fd, 700); // longer than the first load may keep its turn
  assert_int_equal(raw_call(&world->raw, RAW_STATUS, &(raw_input_t){0}, &output), BL_OK);
}

// The holder reads no more: what the store writes fails, wherever it stands then. The pull ends after UNREGISTER came.
static void test_while_a_region_goes(void **state) {
  world_t *world = *state;
  session_t *ours = &world->ours;
  const bl_arena_t *buffers = &world->fixture->buffers;
  const int fd = connect_and_show(world);
  assert_int_equal(shutdown(fd, SHUT_RD), 0);
  const bl_frame_t frames[2] = {{.kind = BL_FRAME_EVICT,
                                 .id = ours->slots[0],
                                 .generation = ours->generations[0],
                                 .acknowledged = ours->input.sequence,
                                 .sequence = ours->input.sequence + 1,
                                 .bytes = 4 * GRANULE,
                                 .checksum = bl_block_checksum(buffers->base, 4 * GRANULE)},
                                {.kind = BL_FRAME_UNREGISTER}};
  uint8_t bytes[2 * BL_FRAME_HEADER_BYTES];
  for (int i = 0; i < 2; i++) {
    bl_frame_encode(&frames[i], bytes + (size_t)i * BL_FRAME_HEADER_BYTES);
  }
  send_bytes(fd, bytes, sizeof bytes, -1);
  ours->input.sequence++;
  struct pollfd hung_up = {.fd = fd};
  assert_int_equal(poll(&hung_up, 1, 60000), 1);
  close(fd);
}

static int with_turns(void **state) {
  store_turns = true;
  return set_up_world(state);
}

int main(void) {
  seed = test_seed(1);
  const struct CMUnitTest tests[] = {
      TEST(test_at_any_moment),
      TEST(test_while_a_region_goes),
      cmocka_unit_test_setup_teardown(test_at_any_moment, with_turns, tear_down_world),
      cmocka_unit_test_setup_teardown(test_before_its_turn, with_turns, tear_down_world),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
