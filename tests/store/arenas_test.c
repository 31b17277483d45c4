// SPDX-License-Identifier: Apache-2.0
// Verifies that a large arena is there at once and filled while it is used: what is written into it meanwhile stays, and in
// the end all of its memory is there; one that is closed while it is filled goes; one that the machine has no memory for is
// refused.
#include "arenas.h"

#include "loop/timer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define LARGE_BYTES ((UINT64_C(1) << 30) + (UINT64_C(100) << 20) + 65536)
#define SMALL_BYTES (UINT64_C(1) << 20)

typedef struct world {
  bl_loop_t *loop;
  bl_pool_t *pool;
  bl_arenas_t *arenas;
  bl_timer_t *timer;
  bl_error_t err;
  unsigned made;
  bool fills; // what is made, as a store does
} world_t;

static world_t world;

static void made(void *context, uint32_t job, const bl_error_t *err) {
  world_t *self = context;
  self->err = *err;
  self->made++;
  if (self->fills) {
    bl_arenas_fill(self->arenas, job);
  }
  bl_loop_stop(self->loop);
}

// Looks now and then.
static void look(bl_timer_t *timer, void *context) {
  world_t *self = context;
  const bl_arena_t *arena = bl_arenas_get(self->arenas, 0, 0);
  if (arena == NULL || arena->kind == BL_ARENA_SHAREABLE) {
    bl_timer_stop(timer);
    bl_loop_stop(self->loop);
  }
}

static int set_up(void **state) {
  (void)state;
  world = (world_t){0};
  bl_error_t err;
  return bl_loop_create(&world.loop, &err) == BL_OK && bl_pool_create(world.loop, 1, &world.pool, &err) == BL_OK &&
                 bl_timer_create(world.loop, look, &world, &world.timer, &err) == BL_OK &&
                 bl_arenas_create(world.pool, bl_device_host(), 2, made, &world, &world.arenas, &err) == BL_OK
             ? 0
             : -1;
}

static int tear_down(void **state) {
  (void)state;
  bl_pool_destroy(world.pool);
  bl_loop_drain(world.loop);
  bl_arenas_destroy(world.arenas);
  bl_timer_destroy(world.timer);
  bl_loop_destroy(world.loop);
  return 0;
}

static const bl_arena_t *make(uint64_t bytes) {
  const uint64_t tiers[BL_LEASE_TIERS] = {bytes, 0};
  const unsigned before = world.made;
  assert_true(bl_arenas_make(world.arenas, 0, tiers, false));
  assert_true(bl_arenas_is_making(world.arenas, 0));
  bl_loop_run(world.loop);
  assert_int_equal(world.made, before + 1);
  return bl_arenas_get(world.arenas, 0, 0);
}

static void a_large_one_is_filled_while_it_is_used(void **state) {
  (void)state;
  const bl_arena_t *arena = make(LARGE_BYTES);
  if (world.err.status == BL_EXHAUSTED) {
    skip(); // not on this machine
  }
  assert_int_equal(arena->kind, BL_ARENA_SHAREABLE_LATER);
  bl_arenas_fill(world.arenas, 0);
  const uint64_t places[] = {0, LARGE_BYTES / 2, LARGE_BYTES - SMALL_BYTES};
  bl_error_t err;
  for (size_t i = 0; i < 3; i++) {
    const bl_arena_t copy = *arena; // as a transfer has it
    assert_int_equal(bl_arena_fill(&copy, places[i], SMALL_BYTES, &err), BL_OK);
    memset(arena->base + places[i], (int)(7 + i), SMALL_BYTES);
  }
  bl_timer_start(world.timer, 5, 5);
  bl_loop_run(world.loop);
  assert_int_equal(arena->kind, BL_ARENA_SHAREABLE);
  for (size_t i = 0; i < 3; i++) {
    for (uint64_t at = 0; at < SMALL_BYTES; at += 4096) {
      assert_int_equal(arena->base[places[i] + at], 7 + i);
    }
  }
  assert_int_equal(arena->base[SMALL_BYTES], 0);
  bl_arenas_close(world.arenas, 0);
}

static void one_that_is_closed_meanwhile_goes(void **state) {
  (void)state;
  (void)make(LARGE_BYTES);
  if (world.err.status == BL_EXHAUSTED) {
    skip();
  }
  bl_arenas_fill(world.arenas, 0);
  bl_arenas_close(world.arenas, 0);
  assert_null(bl_arenas_get(world.arenas, 0, 0));
  const bl_arena_t *next = make(SMALL_BYTES); // behind what is under way
  assert_int_equal(next->kind, BL_ARENA_SHAREABLE);
}

// As at the end of a store: what is filled is given up, and nothing is left behind (the sanitizers look).
static void one_that_is_filled_ends_with_its_store(void **state) {
  (void)state;
  (void)make(LARGE_BYTES);
  if (world.err.status == BL_EXHAUSTED) {
    skip();
  }
  bl_arenas_fill(world.arenas, 0);
  bl_arenas_stop(world.arenas);
}

// Its threads are gone when that is told.
static void one_that_is_made_while_its_store_ends_is_not_filled(void **state) {
  (void)state;
  const uint64_t tiers[BL_LEASE_TIERS] = {LARGE_BYTES, 0};
  world.fills = true;
  assert_true(bl_arenas_make(world.arenas, 0, tiers, false));
  bl_arenas_stop(world.arenas);
}

static void what_the_machine_does_not_have_is_refused(void **state) {
  (void)state;
  assert_null(make(UINT64_C(1) << 50));
  assert_int_equal(world.err.status, BL_EXHAUSTED);
  assert_non_null(strstr(world.err.text, "wanted"));
  assert_non_null(make(SMALL_BYTES));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(a_large_one_is_filled_while_it_is_used, set_up, tear_down),
      cmocka_unit_test_setup_teardown(one_that_is_closed_meanwhile_goes, set_up, tear_down),
      cmocka_unit_test_setup_teardown(one_that_is_filled_ends_with_its_store, set_up, tear_down),
      cmocka_unit_test_setup_teardown(one_that_is_made_while_its_store_ends_is_not_filled, set_up, tear_down),
      cmocka_unit_test_setup_teardown(what_the_machine_does_not_have_is_refused, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
