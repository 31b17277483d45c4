// SPDX-License-Identifier: Apache-2.0
// Verifies the transport between two stages whose tensors go by NCCL (a fake of it): both ways in random orders, by
// choice or as asked for; what keeps them from it is said and another path taken, or refused; a transfer that stands
// still, one for an attempt that the other end has given up, a peer that goes away in the middle: the wait ends with
// the cause, communicators are made again, and the next attempt is whole. The seed of random orders is fixed;
// BALLAST_TEST_SEED sets another.
#include "fake_nccl.h"
#include "pair.h"
#include "seed.h"

#define TENSORS 40u
#define BYTES   3001u

typedef struct {
  pair_t pair;
  fake_nccl_world_t world;
  fake_end_t ends[2];
  bl_nccl_api_t apis[2];
  bl_nccl_engine_t *engines[2];
  bl_block_memory_t block_memories[2];
} ground_t;

static bl_tensor_key_t key_of(uint32_t micro_batch) {
  return (bl_tensor_key_t){.boundary = 3, .direction = BL_FORWARD, .micro_batch = micro_batch};
}

static void stuck(void *context, const bl_error_t *err) {
  (void)context;
  fprintf(stderr, "%s\n", err->text);
  abort();
}

static void ground_init(ground_t *ground) {
  memset(ground, 0, sizeof *ground);
  fake_nccl_init(&ground->world);
  pair_init(&ground->pair);
  for (int i = 0; i < 2; i++) {
    bl_error_t err;
    ground->ends[i] = (fake_end_t){&ground->world, i};
    ground->apis[i] = fake_nccl_api(&ground->ends[i], 22809);
    bl_nccl_engine_options_t options = {.api = &ground->apis[i],
                                        .deadlines = {.create_ns = 20ull * BL_NS_PER_S,
                                                      .transfer_ns = 300ull * BL_NS_PER_MS,
                                                      .abort_ns = 20ull * BL_NS_PER_S},
                                        .on_stuck = stuck};
    CHECK_OK(bl_nccl_engine_create(&options, &ground->engines[i], &err), err);
    ground->block_memories[i].nccl = 22809;
    snprintf(ground->block_memories[i].gpu, BL_GPU_BYTES, "GPU-%d", i);
    ground->pair.options[i].nccl = ground->engines[i];
    ground->pair.options[i].block_memory = &ground->block_memories[i];
  }
}

static void ground_close(ground_t *ground) {
  pair_close(&ground->pair);
  for (int i = 0; i < 2; i++) {
    bl_nccl_engine_destroy(ground->engines[i]);
    assert_int_equal(atomic_load(&ground->world.side[i].misuses), 0);
    if (!atomic_load(&ground->world.side[i].create_fails)) {
      assert_int_equal(atomic_load(&ground->world.side[i].creates), atomic_load(&ground->world.side[i].aborts));
    }
  }
}

static bl_transport_path_t path_of(ground_t *ground, int side) {
  bl_transport_path_t path;
  assert_int_equal(bl_transport_paths(ground->pair.transport[side], &path, 1), 1);
  return path;
}

// ---- a whole attempt

typedef struct {
  ground_t *ground;
  int side;
  uint64_t key;
  uint8_t *received; // TENSORS * BYTES
  bl_status_t status;
  bl_error_t err;
} side_t;

static void *run_side(void *argument) {
  side_t *side = argument;
  bl_transport_t *transport = side->ground->pair.transport[side->side];
  const int32_t peer = !side->side;
  uint8_t *source = side->ground->pair.arena[side->side].base;
  uint64_t index = 0;
  side->status = BL_OK;
  for (uint32_t round = 0; round < 2; round++) { // posts, then waits
    uint32_t order[2 * TENSORS];
    for (uint32_t i = 0; i < 2 * TENSORS; i++) {
      uint32_t j = (uint32_t)bl_random_below(side->key, index++, i + 1);
      order[i] = order[j];
      order[j] = i;
    }
    for (uint32_t i = 0; i < 2 * TENSORS && side->status == BL_OK; i++) {
      const uint32_t n = order[i] / 2;
      const bool sends = order[i] % 2 == 0;
      const bl_tensor_key_t key = key_of(n);
      const uint64_t bytes = BYTES - n;
      if (round == 0) {
        side->status =
            sends ? bl_transport_post_send(transport, peer, key, source + n * BYTES, bytes, &side->err)
                  : bl_transport_post_receive(transport, peer, key, side->received + n * BYTES, bytes, &side->err);
      } else {
        side->status = sends ? bl_transport_wait_sent(transport, peer, key, soon(), &side->err)
                             : bl_transport_wait_received(transport, peer, key, soon(), &side->err);
      }
    }
  }
  return NULL;
}

static void run_attempt(ground_t *ground, uint64_t attempt, uint64_t seed) {
  side_t sides[2];
  pthread_t thread;
  for (int i = 0; i < 2; i++) {
    sides[i] = (side_t){.ground = ground, .side = i, .key = bl_random_key(seed, i == 0 ? "left" : "right")};
    sides[i].received = calloc(TENSORS, BYTES);
    pattern_fill(ground->pair.arena[i].base, (uint64_t)TENSORS * BYTES, seed + (uint64_t)i);
  }
  pair_begin(&ground->pair, attempt);
  assert_int_equal(pthread_create(&thread, NULL, run_side, &sides[1]), 0);
  run_side(&sides[0]);
  pthread_join(thread, NULL);
  for (int i = 0; i < 2; i++) {
    CHECK_OK(sides[i].status, sides[i].err);
    for (uint32_t n = 0; n < TENSORS; n++) {
      assert_memory_equal(sides[i].received + n * BYTES, ground->pair.arena[!i].base + n * BYTES, BYTES - n);
    }
    free(sides[i].received);
  }
}

static void tensors_go_by_nccl_where_they_can(void **state) {
  (void)state;
  const uint64_t seed = test_seed(20);
  const bl_path_t asked[] = {BL_PATH_AUTO, BL_PATH_NCCL};
  for (size_t a = 0; a < 2; a++) {
    ground_t ground;
    ground_init(&ground);
    ground.pair.options[0].unix_path = a == 0 ? ground.pair.options[0].unix_path : NULL; // words by tcp
    pair_listen(&ground.pair);
    pair_connect(&ground.pair, asked[a]);
    for (int i = 0; i < 2; i++) {
      const bl_transport_path_t path = path_of(&ground, i);
      assert_int_equal(path.path, BL_PATH_NCCL);
      assert_true(bl_transport_is_direct(ground.pair.transport[i], !i));
      assert_non_null(strstr(path.reason, a == 0 ? "NCCL 2.28.9, credits by shm" : "NCCL 2.28.9, credits by tcp"));
    }
    for (uint64_t attempt = 1; attempt <= 20; attempt++) {
      run_attempt(&ground, attempt, seed + attempt);
    }
    for (int i = 0; i < 2; i++) {
      const bl_transport_counters_t counters = bl_transport_counters(ground.pair.transport[i]);
      assert_int_equal(counters.tensors_sent, 20 * TENSORS);
      assert_int_equal(counters.tensors_received, 20 * TENSORS);
      assert_int_equal(counters.bytes_copied, 0);
      assert_int_equal(atomic_load(&ground.world.side[i].creates), 2); // one per direction
    }
    ground_close(&ground);
  }
}

// ---- what keeps them from it

// What a connect says that asks for nccl.
static void check_asked(void (*change)(ground_t *ground), bool late, bl_status_t status, const char *why) {
  ground_t ground;
  ground_init(&ground);
  change(&ground);
  pair_listen(&ground.pair);
  pair_connect_t sides[2] = {{.pair = &ground.pair, .side = 0, .path = BL_PATH_NCCL},
                             {.pair = &ground.pair, .side = 1, .path = BL_PATH_NCCL}};
  if (late) { // the higher stage is asked when all is over at the lower one
    pair_connect_side(&sides[0]);
    pair_connect_side(&sides[1]);
  } else {
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, pair_connect_side, &sides[1]), 0);
    pair_connect_side(&sides[0]);
    pthread_join(thread, NULL);
  }
  for (int i = 0; i < 2; i++) {
    if (sides[i].status != status || strstr(sides[i].err.text, why) == NULL) {
      fail_msg("side %d: %s: %s", i, bl_status_name(sides[i].status), sides[i].err.text);
    }
  }
  ground_close(&ground);
}

// The same, and where auto goes instead.
static void check_obstacle(void (*change)(ground_t *ground), bl_status_t status, const char *why) {
  check_asked(change, false, status, why);
  check_asked(change, true, status, why);
  ground_t ground;
  ground_init(&ground);
  change(&ground);
  pair_listen(&ground.pair);
  pair_connect(&ground.pair, BL_PATH_AUTO);
  for (int i = 0; i < 2; i++) {
    const bl_transport_path_t path = path_of(&ground, i);
    assert_int_equal(path.path, BL_PATH_SHM);
    assert_false(bl_transport_is_direct(ground.pair.transport[i], !i));
    if (strstr(path.reason, "shm: same machine; not nccl: ") == NULL || strstr(path.reason, why) == NULL) {
      fail_msg("side %d: %s", i, path.reason);
    }
  }
  run_attempt(&ground, 1, 5);
  ground_close(&ground);
}

static void another_version(ground_t *ground) {
  ground->apis[1].version = ground->block_memories[1].nccl = 22703;
}
static void the_same_gpu(ground_t *ground) {
  strcpy(ground->block_memories[1].gpu, ground->block_memories[0].gpu);
  ground->block_memories[0].shared_gpu = true; // one is not enough
}
static void none_at_one_end(ground_t *ground) {
  ground->pair.options[0].nccl = NULL;
}
static void it_is_not_made(ground_t *ground) {
  atomic_store(&ground->world.side[1].create_fails, true);
}
static void it_breaks_when_made(ground_t *ground) {
  atomic_store(&ground->world.side[0].own_error, true);
}

static void obstacles_are_named(void **state) {
  (void)state;
  check_obstacle(another_version, BL_PRECONDITION, "install one version on both");
  check_obstacle(the_same_gpu, BL_PRECONDITION, "--nccl-shared-gpu");
  check_obstacle(none_at_one_end, BL_PRECONDITION, "stage 0 has no NCCL");
  check_obstacle(it_is_not_made, BL_IO, "unhandled system error");
  check_obstacle(it_breaks_when_made, BL_IO, "unhandled cuda error");
}

static void a_shared_gpu_is_allowed_by_both(void **state) {
  (void)state;
  ground_t ground;
  ground_init(&ground);
  the_same_gpu(&ground);
  ground.block_memories[1].shared_gpu = true;
  pair_listen(&ground.pair);
  pair_connect(&ground.pair, BL_PATH_NCCL);
  run_attempt(&ground, 1, 6);
  ground_close(&ground);
}

static void a_path_of_the_host_is_taken_when_it_is_asked_for(void **state) {
  (void)state;
  ground_t ground;
  ground_init(&ground);
  pair_listen(&ground.pair);
  pair_connect(&ground.pair, BL_PATH_NCCL);
  pair_connect(&ground.pair, BL_PATH_TCP); // and again by another one
  assert_int_equal(path_of(&ground, 0).path, BL_PATH_TCP);
  run_attempt(&ground, 1, 7);
  pair_connect(&ground.pair, BL_PATH_AUTO); // what is there will do
  assert_int_equal(path_of(&ground, 0).path, BL_PATH_TCP);
  pair_connect(&ground.pair, BL_PATH_NCCL);
  assert_int_equal(path_of(&ground, 1).path, BL_PATH_NCCL);
  run_attempt(&ground, 2, 8);
  ground_close(&ground);
}

// ---- failures

// Posts one tensor from 0 to 1 in the present attempt.
static void post_one(ground_t *ground, uint8_t *destination) {
  bl_error_t err;
  CHECK_OK(bl_transport_post_receive(ground->pair.transport[1], 0, key_of(0), destination, BYTES, &err), err);
  CHECK_OK(bl_transport_post_send(ground->pair.transport[0], 1, key_of(0), ground->pair.arena[0].base, BYTES, &err),
           err);
}

static void expect_loss(bl_status_t status, const bl_error_t *err, bl_status_t expected, const char *text) {
  if (status != expected || strstr(err->text, text) == NULL) {
    fail_msg("%s: %s", bl_status_name(status), err->text);
  }
}

static void a_transfer_that_stands_still_costs_one_attempt(void **state) {
  (void)state;
  ground_t ground;
  static uint8_t destination[BYTES];
  ground_init(&ground);
  pair_listen(&ground.pair);
  pair_connect(&ground.pair, BL_PATH_AUTO);
  run_attempt(&ground, 1, 1);
  for (uint64_t round = 0; round < 3; round++) {
    bl_error_t err;
    atomic_store(&ground.world.side[0].never_moves, true);
    pair_begin(&ground.pair, 2 + 2 * round);
    post_one(&ground, destination);
    expect_loss(bl_transport_wait_received(ground.pair.transport[1], 0, key_of(0), soon(), &err), &err, BL_DEADLINE,
                "was not over after");
    expect_loss(bl_transport_wait_sent(ground.pair.transport[0], 1, key_of(0), soon(), &err), &err, BL_DEADLINE,
                "was not over after");
    expect_loss(bl_transport_post_send(ground.pair.transport[0], 1, key_of(1), ground.pair.arena[0].base, BYTES, &err),
                &err, BL_DEADLINE, "was not over after");
    atomic_store(&ground.world.side[0].never_moves, false);
    run_attempt(&ground, 3 + 2 * round, round);
  }
  assert_int_equal(atomic_load(&ground.world.side[0].creates), 2 + 3 * 2); // another generation each time
  ground_close(&ground);
}

static void an_attempt_that_one_end_has_given_up_is_ended_at_both(void **state) {
  (void)state;
  ground_t ground;
  static uint8_t destination[BYTES];
  bl_error_t err;
  ground_init(&ground);
  pair_listen(&ground.pair);
  pair_connect(&ground.pair, BL_PATH_AUTO);
  pair_begin(&ground.pair, 1);
  CHECK_OK(bl_transport_post_receive(ground.pair.transport[1], 0, key_of(0), destination, BYTES, &err), err);
  // The credit must have come before the receiver moves on: another tensor behind it shows that.
  CHECK_OK(bl_transport_post_receive(ground.pair.transport[1], 0, key_of(1), destination, BYTES, &err), err);
  CHECK_OK(bl_transport_post_send(ground.pair.transport[0], 1, key_of(1), ground.pair.arena[0].base, BYTES, &err), err);
  CHECK_OK(bl_transport_wait_sent(ground.pair.transport[0], 1, key_of(1), soon(), &err), err);
  CHECK_OK(bl_transport_begin(ground.pair.transport[1], 2, &err), err);
  memset(destination, 7, sizeof destination);
  CHECK_OK(bl_transport_post_send(ground.pair.transport[0], 1, key_of(0), ground.pair.arena[0].base, BYTES, &err), err);
  expect_loss(bl_transport_wait_sent(ground.pair.transport[0], 1, key_of(0), soon(), &err), &err, BL_CANCELLED,
              "stage 1 has aborted attempt 1");
  for (size_t i = 0; i < sizeof destination; i++) {
    assert_int_equal(destination[i], 7);
  }
  run_attempt(&ground, 3, 9);
  ground_close(&ground);
}

static void a_peer_that_goes_away_in_the_middle_ends_waits(void **state) {
  (void)state;
  ground_t ground;
  static uint8_t destination[BYTES];
  bl_error_t err;
  ground_init(&ground);
  pair_listen(&ground.pair);
  pair_connect(&ground.pair, BL_PATH_AUTO);
  pair_begin(&ground.pair, 1);
  atomic_store(&ground.world.side[0].dies_half_way, true);
  post_one(&ground, destination);
  while (atomic_load(&ground.world.side[0].launches) == 0 || atomic_load(&ground.world.side[1].launches) == 0) {
    fake_nap();
  }
  bl_transport_destroy(ground.pair.transport[0]);
  ground.pair.transport[0] = NULL;
  const bl_status_t status = bl_transport_wait_received(ground.pair.transport[1], 0, key_of(0), soon(), &err);
  if (status == BL_OK) {
    fail_msg("a tensor that never came whole was received");
  }
  CHECK_OK(bl_transport_begin(ground.pair.transport[1], 2, &err), err); // nothing of it moves any more
  atomic_store(&ground.world.side[0].dies_half_way, false);
  CHECK_OK(bl_transport_create(&ground.pair.options[0], &ground.pair.transport[0], &err), err);
  pair_connect(&ground.pair, BL_PATH_NCCL);
  run_attempt(&ground, 3, 10);
  ground_close(&ground);
}

// The link goes while its communicators are created: the connect that waits for them ends, and lets go of the link.
static void a_peer_that_goes_away_before_communicators_are_there_ends_the_connect(void **state) {
  (void)state;
  ground_t ground;
  ground_init(&ground);
  atomic_store(&ground.world.side[1].never_made, true);
  pair_listen(&ground.pair);
  pair_connect_t sides[2] = {{.pair = &ground.pair, .side = 0, .path = BL_PATH_NCCL},
                             {.pair = &ground.pair, .side = 1, .path = BL_PATH_NCCL}};
  pthread_t threads[2];
  for (int i = 0; i < 2; i++) {
    assert_int_equal(pthread_create(&threads[i], NULL, pair_connect_side, &sides[i]), 0);
  }
  while (atomic_load(&ground.world.side[0].creates) == 0 || atomic_load(&ground.world.side[1].creates) == 0) {
    fake_nap();
  }
  bl_transport_destroy(ground.pair.transport[1]);
  ground.pair.transport[1] = NULL;
  for (int i = 0; i < 2; i++) {
    pthread_join(threads[i], NULL);
  }
  expect_loss(sides[0].status, &sides[0].err, BL_UNAVAILABLE, "stage 1 closed the connection");
  assert_int_equal(sides[1].status, BL_CANCELLED);
  ground_close(&ground);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(tensors_go_by_nccl_where_they_can),
      cmocka_unit_test(obstacles_are_named),
      cmocka_unit_test(a_shared_gpu_is_allowed_by_both),
      cmocka_unit_test(a_path_of_the_host_is_taken_when_it_is_asked_for),
      cmocka_unit_test(a_transfer_that_stands_still_costs_one_attempt),
      cmocka_unit_test(an_attempt_that_one_end_has_given_up_is_ended_at_both),
      cmocka_unit_test(a_peer_that_goes_away_in_the_middle_ends_waits),
      cmocka_unit_test(a_peer_that_goes_away_before_communicators_are_there_ends_the_connect),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
