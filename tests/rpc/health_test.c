// SPDX-License-Identifier: Apache-2.0
// Verifies the health service and its client: Check, Watch, unknown names, shutdown, watchers that go away.
#include "echo_world.h"
#include "health_watch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

typedef struct seen {
  unsigned count;
  bl_rpc_health_state_t last;
  bl_status_t status;
} seen_t;

typedef struct fixture {
  world_t world;
  bl_rpc_health_t *health;
} fixture_t;

static void on_health(bl_rpc_health_state_t state, const bl_error_t *err, void *context) {
  seen_t *seen = context;
  seen->count++;
  seen->last = state;
  seen->status = err->status;
}

static void init(fixture_t *fixture) {
  char address[BL_RPC_ADDRESS_BYTES];
  world_init(&fixture->world, NULL, NULL);
  assert_int_equal(bl_rpc_health_create(fixture->world.rpc, &fixture->health, NULL), BL_OK);
  assert_int_equal(bl_rpc_health_listen(fixture->health, "127.0.0.1:0", address, sizeof address, NULL), BL_OK);
  assert_int_equal(bl_rpc_channel_create(fixture->world.rpc, address, NULL, &fixture->world.channel, NULL), BL_OK);
}

static void on_stopped(bl_rpc_health_t *health, void *context) {
  bl_rpc_health_destroy(health);
  *(unsigned *)context = 1;
}

static void shut_down(fixture_t *fixture) {
  unsigned stopped = 0;
  bl_rpc_health_shutdown(fixture->health, on_stopped, &stopped);
  world_wait_for(&fixture->world, &stopped, 1);
}

static bl_rpc_health_state_t check(fixture_t *fixture, const char *service) {
  seen_t seen = {0};
  assert_int_equal(bl_rpc_health_check(fixture->world.channel, service, 5000, on_health, &seen, NULL), BL_OK);
  world_wait_for(&fixture->world, &seen.count, 1);
  return seen.last;
}

static void check_says_what_was_set(void **state) {
  (void)state;
  fixture_t fixture;
  init(&fixture);
  assert_int_equal(check(&fixture, ""), BL_RPC_HEALTH_NOT_SERVING);
  assert_int_equal(bl_rpc_health_set(fixture.health, "", true), BL_OK);
  assert_int_equal(check(&fixture, ""), BL_RPC_HEALTH_SERVING);
  assert_int_equal(check(&fixture, "ballast.v1.Stage"), BL_RPC_HEALTH_UNKNOWN);
  assert_int_equal(bl_rpc_health_set(fixture.health, "ballast.v1.Stage", false), BL_OK);
  assert_int_equal(check(&fixture, "ballast.v1.Stage"), BL_RPC_HEALTH_NOT_SERVING);
  shut_down(&fixture);
  assert_int_equal(check(&fixture, ""), BL_RPC_HEALTH_UNREACHABLE);
  world_cleanup(&fixture.world);
}

static void a_watch_follows_changes_and_the_end(void **state) {
  (void)state;
  fixture_t fixture;
  seen_t seen = {0};
  health_watch_t watch;
  init(&fixture);
  assert_int_equal(health_watch_start(&watch, fixture.world.channel, "late", on_health, &seen), BL_OK);
  world_wait_for(&fixture.world, &seen.count, 1);
  assert_int_equal(seen.last, BL_RPC_HEALTH_UNKNOWN);
  assert_int_equal(bl_rpc_health_set(fixture.health, "late", true), BL_OK);
  world_wait_for(&fixture.world, &seen.count, 2);
  assert_int_equal(seen.last, BL_RPC_HEALTH_SERVING);
  assert_int_equal(bl_rpc_health_set(fixture.health, "late", true), BL_OK); // no change, nothing told
  assert_int_equal(bl_rpc_health_set(fixture.health, "other", true), BL_OK);
  assert_int_equal(bl_rpc_health_set(fixture.health, "late", false), BL_OK);
  world_wait_for(&fixture.world, &seen.count, 3);
  assert_int_equal(seen.last, BL_RPC_HEALTH_NOT_SERVING);
  shut_down(&fixture);
  world_wait_for(&fixture.world, &seen.count, 4);
  assert_int_equal(seen.last, BL_RPC_HEALTH_UNREACHABLE);
  assert_int_equal(seen.status, BL_UNAVAILABLE);
  health_watch_stop(&watch);
  world_cleanup(&fixture.world);
}

static void watchers_may_come_and_go(void **state) {
  (void)state;
  fixture_t fixture;
  seen_t seen = {0};
  static health_watch_t watches[BL_RPC_HEALTH_WATCHERS + 20];
  init(&fixture);
  for (unsigned i = 0; i < BL_RPC_HEALTH_WATCHERS + 20; i++) { // places of those who left are free again
    assert_int_equal(health_watch_start(&watches[i], fixture.world.channel, "", on_health, &seen), BL_OK);
    world_wait_for(&fixture.world, &seen.count, i + 1);
    assert_int_equal(seen.last, BL_RPC_HEALTH_NOT_SERVING);
    health_watch_stop(&watches[i]);
  }
  assert_int_equal(seen.count, BL_RPC_HEALTH_WATCHERS + 20);
  shut_down(&fixture);
  world_cleanup(&fixture.world);
}

static void names_are_bounded(void **state) {
  (void)state;
  fixture_t fixture;
  char name[200];
  memset(name, 'n', sizeof name - 1);
  name[sizeof name - 1] = '\0';
  init(&fixture);
  assert_int_equal(bl_rpc_health_set(fixture.health, name, true), BL_EXHAUSTED);
  for (unsigned i = 0; i < BL_RPC_HEALTH_SERVICES - 1; i++) {
    name[2] = '\0';
    name[1] = (char)('a' + i);
    assert_int_equal(bl_rpc_health_set(fixture.health, name, true), BL_OK);
  }
  assert_int_equal(bl_rpc_health_set(fixture.health, "one too many", true), BL_EXHAUSTED);
  shut_down(&fixture);
  world_cleanup(&fixture.world);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(check_says_what_was_set),
      cmocka_unit_test(a_watch_follows_changes_and_the_end),
      cmocka_unit_test(watchers_may_come_and_go),
      cmocka_unit_test(names_are_bounded),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
