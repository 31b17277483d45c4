// SPDX-License-Identifier: Apache-2.0
// Verifies watched descriptors: what is told and when, that nothing is told when nothing is asked for, that a broken one
// is told until it was read to its error, and that a watch may be destroyed in its own callback.
#include "loop/watch.h"

#include "loop/timer.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct world {
  bl_loop_t *loop;
  int ends[2];
  bl_watch_t *watch; // of ends[0]
  unsigned told;     // events so far, both kinds
  unsigned events;   // of the last
  char read[8];
  size_t read_bytes;
  int error; // errno of a read, -1: the end
  bool destroy;
} world_t;

static void on_ready(bl_watch_t *watch, unsigned events, void *context) {
  world_t *world = context;
  world->told++;
  world->events = events;
  if ((events & BL_WATCH_READ) != 0) {
    ssize_t got = recv(world->ends[0], world->read + world->read_bytes, 1, MSG_DONTWAIT); // one at a time
    world->read_bytes += got > 0 ? 1 : 0;
    world->error = got > 0 ? 0 : got == 0 ? -1 : errno;
  }
  if (world->destroy || world->error != 0) {
    bl_watch_destroy(watch);
    world->watch = NULL;
  }
}

static int start(void **state) {
  static world_t world;
  memset(&world, 0, sizeof world);
  *state = &world;
  if (bl_loop_create(&world.loop, NULL) != BL_OK || socketpair(AF_UNIX, SOCK_STREAM, 0, world.ends) != 0) {
    return -1;
  }
  return bl_watch_create(world.loop, world.ends[0], on_ready, &world, &world.watch, NULL) == BL_OK ? 0 : -1;
}

static int stop(void **state) {
  world_t *world = *state;
  bl_watch_destroy(world->watch);
  bl_loop_destroy(world->loop);
  close(world->ends[0]);
  if (world->ends[1] >= 0) {
    close(world->ends[1]);
  }
  return 0;
}

static void on_stop(bl_timer_t *timer, void *context) {
  (void)timer;
  bl_loop_stop(context);
}

static void run_for(world_t *world, uint64_t duration_ms) {
  bl_timer_t *timer;
  assert_int_equal(bl_timer_create(world->loop, on_stop, world->loop, &timer, NULL), BL_OK);
  bl_timer_start(timer, duration_ms, 0);
  bl_loop_run(world->loop);
  bl_timer_destroy(timer);
}

static void only_what_was_asked_for_is_told(void **state) {
  world_t *world = *state;
  assert_int_equal(write(world->ends[1], "ab", 2), 2);
  run_for(world, 5);
  assert_int_equal(world->told, 0);
  bl_watch_set(world->watch, BL_WATCH_READ);
  run_for(world, 5);
  assert_int_equal(world->told, 2);
  assert_int_equal(world->events, BL_WATCH_READ);
  assert_string_equal(world->read, "ab");
  bl_watch_set(world->watch, BL_WATCH_READ | BL_WATCH_WRITE);
  run_for(world, 5);
  assert_true(world->told > 2); // it can be written all the time
  assert_int_equal(world->events, BL_WATCH_WRITE);
  bl_watch_set(world->watch, 0);
  const unsigned told = world->told;
  run_for(world, 5);
  assert_int_equal(world->told, told);
}

static void a_broken_one_is_told_until_it_was_read_to_its_error(void **state) {
  world_t *world = *state;
  bl_watch_set(world->watch, BL_WATCH_READ);
  assert_int_equal(write(world->ends[0], "unread", 6), 6); // so that the other end's close is an error here
  assert_int_equal(write(world->ends[1], "abc", 3), 3);
  close(world->ends[1]);
  world->ends[1] = -1;
  run_for(world, 50);
  assert_string_equal(world->read, "abc");
  assert_int_equal(world->error, ECONNRESET);
  assert_null(world->watch); // destroyed in its callback
}

static void the_end_of_a_stream_is_read(void **state) {
  world_t *world = *state;
  bl_watch_set(world->watch, BL_WATCH_READ);
  assert_int_equal(write(world->ends[1], "a", 1), 1);
  close(world->ends[1]);
  world->ends[1] = -1;
  run_for(world, 50);
  assert_string_equal(world->read, "a");
  assert_int_equal(world->error, -1);
}

static void nothing_is_told_after_it_was_destroyed(void **state) {
  world_t *world = *state;
  world->destroy = true;
  bl_watch_set(world->watch, BL_WATCH_READ | BL_WATCH_WRITE);
  assert_int_equal(write(world->ends[1], "ab", 2), 2);
  run_for(world, 5);
  assert_int_equal(world->told, 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(only_what_was_asked_for_is_told, start, stop),
      cmocka_unit_test_setup_teardown(a_broken_one_is_told_until_it_was_read_to_its_error, start, stop),
      cmocka_unit_test_setup_teardown(the_end_of_a_stream_is_read, start, stop),
      cmocka_unit_test_setup_teardown(nothing_is_told_after_it_was_destroyed, start, stop),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
