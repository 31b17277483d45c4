// SPDX-License-Identifier: Apache-2.0
// Verifies two limits of a store where many ask at once: a quota under a hundred threads, never passed by a byte and
// never short of one that fits; the bytes in flight that --flow allows, kept by a session that heeds them and refused
// to one that does not.
#include "client/raw_world.h"

#include <pthread.h>

// ---- quotas ---------------------------------------------------------------------------------------------------------

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

// ---- flow -----------------------------------------------------------------------------------------------------------

#define FLOW_BLOCK (4 * GRANULE) // as large as a slot and as a chunk, and all that may be in flight

static void send_block(int fd, const bl_frame_t *evict, const uint8_t *block) {
  bl_frame_t data = {.kind = BL_FRAME_DATA,
                     .sequence = evict->sequence,
                     .bytes = FLOW_BLOCK,
                     .checksum = bl_block_checksum(block, FLOW_BLOCK),
                     .body_bytes = (uint32_t)FLOW_BLOCK};
  send_frame(fd, &data, block, -1);
}

// --flow holds over the data connection: a block beyond it is refused and told when to come again, and what is in
// flight goes on; once that is over, it is taken.
static void test_flow(void **state) {
  world_t *world = *state;
  session_t *ours = &world->ours;
  static uint8_t block[FLOW_BLOCK];
  fill(block, sizeof block, 5);
  bl_greeting_t greeting = greeting_of(ours, false);
  int fd;
  assert_int_equal(greet(ours->tcp, &greeting, &fd), BL_OK);
  bl_frame_t evicts[2], answer = {0};
  for (int i = 0; i < 2; i++) {
    evicts[i] = (bl_frame_t){.kind = BL_FRAME_EVICT,
                             .id = ours->slots[i],
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
  uint8_t *buffers = world->fixture->buffers.base;
  bl_client_t *client = must_open(world->fixture, 5);
  uint64_t slots[STORE_SLOTS];
  bl_client_ticket_t tickets[STORE_SLOTS];
  bl_error_t err = {0};
  raw_output_t output;
  reserve(client, FLOW_BLOCK, STORE_SLOTS, slots);
  fill(buffers, STORE_SLOTS * FLOW_BLOCK, 6);
  assert_int_equal(raw_call(&world->raw, RAW_STATUS, &(raw_input_t){0}, &output), BL_OK);
  const uint64_t before = raw_count(&output, "credit");
  for (int i = 0; i < STORE_SLOTS; i++) {
    must(bl_client_evict_start(client, slots[i], buffers + (uint64_t)i * FLOW_BLOCK, FLOW_BLOCK, NULL, &tickets[i],
                               &err),
         &err);
  }
  for (int i = 0; i < STORE_SLOTS; i++) {
    must(bl_client_wait(client, tickets[i], UINT64_MAX, &err), &err);
  }
  for (int i = 0; i < STORE_SLOTS; i++) {
    must(bl_client_load_start(client, slots[i], buffers + (uint64_t)i * FLOW_BLOCK, FLOW_BLOCK, &tickets[i], &err),
         &err);
  }
  for (int i = 0; i < STORE_SLOTS; i++) {
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

int main(void) {
  store_ttl = store_grace = "60";
  const struct CMUnitTest tests[] = {
      TEST(test_quota),
      cmocka_unit_test_setup_teardown(test_flow, set_up_flow, tear_down_world),
      cmocka_unit_test_setup_teardown(test_flow_of_a_client, set_up_flow, tear_down_world),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
