// SPDX-License-Identifier: Apache-2.0
// Verifies the thread that runs a loop: where calls run, their order with messages, calls from many threads and from its
// own, its name, signals and processors, and that its end handles what was posted before.
#include "loop/thread.h"

#include "loop/timer.h"
#include "sys/thread.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static int start(void **state) {
  static bl_loop_thread_t *thread;
  *state = NULL;
  if (bl_loop_thread_create("a name that is too long", &thread, NULL) != BL_OK) {
    return -1;
  }
  *state = thread;
  return 0;
}

static int stop(void **state) {
  bl_loop_thread_destroy(*state);
  return 0;
}

typedef struct seen {
  bl_loop_thread_t *thread;
  bool on_loop;
  char name[32];
  sigset_t blocked;
  int processors;
} seen_t;

static void look(void *context) {
  seen_t *seen = context;
  seen->on_loop = bl_loop_is_current(bl_loop_thread_loop(seen->thread));
  pthread_getname_np(pthread_self(), seen->name, sizeof seen->name);
  pthread_sigmask(SIG_SETMASK, NULL, &seen->blocked);
  cpu_set_t set;
  sched_getaffinity(0, sizeof set, &set);
  seen->processors = CPU_COUNT(&set);
}

static void it_runs_the_loop_takes_no_signals_and_has_its_name(void **state) {
  seen_t seen = {.thread = *state};
  bl_loop_thread_call(*state, look, &seen);
  assert_true(seen.on_loop);
  assert_string_equal(seen.name, "a name that is ");
  assert_true(sigismember(&seen.blocked, SIGTERM));
  assert_true(sigismember(&seen.blocked, SIGUSR1));
  assert_false(bl_loop_is_current(bl_loop_thread_loop(*state)));
  sigset_t own;
  pthread_sigmask(SIG_SETMASK, NULL, &own);
  assert_false(sigismember(&own, SIGTERM)); // the creator's are as they were
}

static void *make_pinned(void *context) {
  seen_t *seen = context;
  if (bl_thread_pin(0, 1) == BL_OK && bl_loop_thread_create("pinned", &seen->thread, NULL) == BL_OK) {
    bl_loop_thread_call(seen->thread, look, seen);
    bl_loop_thread_destroy(seen->thread);
  }
  return NULL;
}

static void one_made_by_a_pinned_thread_is_not_pinned(void **state) {
  (void)state;
  const int processors = bl_thread_processors();
  seen_t seen = {0};
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, make_pinned, &seen), 0);
  pthread_join(thread, NULL);
  assert_int_equal(seen.processors, processors);
}

// ---- calls -----------------------------------------------------------------------------------------------------------

enum { CALLERS = 4, CALLS = 2000 };

typedef struct caller {
  bl_loop_thread_t *thread;
  unsigned *total; // the loop's alone
  unsigned own;
  unsigned late; // calls that had not run when they returned
} caller_t;

static void count(void *context) {
  caller_t *caller = context;
  ++*caller->total;
  caller->own++;
}

static void *call_often(void *argument) {
  caller_t *caller = argument;
  for (unsigned i = 0; i < CALLS; i++) {
    bl_loop_thread_call(caller->thread, count, caller);
    caller->late += caller->own != i + 1;
  }
  return NULL;
}

static void calls_of_many_threads_run_one_at_a_time_and_are_waited_for(void **state) {
  unsigned total = 0;
  caller_t callers[CALLERS];
  pthread_t threads[CALLERS];
  for (unsigned i = 0; i < CALLERS; i++) {
    callers[i] = (caller_t){.thread = *state, .total = &total};
    assert_int_equal(pthread_create(&threads[i], NULL, call_often, &callers[i]), 0);
  }
  for (unsigned i = 0; i < CALLERS; i++) {
    pthread_join(threads[i], NULL);
    assert_int_equal(callers[i].late, 0);
  }
  assert_int_equal(total, CALLERS * CALLS);
}

static void call_in_call(void *context) {
  caller_t *caller = context;
  bl_loop_thread_call(caller->thread, count, caller);
}

static void a_call_on_its_own_thread_is_just_made(void **state) {
  unsigned total = 0;
  caller_t caller = {.thread = *state, .total = &total};
  bl_loop_thread_call(*state, call_in_call, &caller);
  assert_int_equal(total, 1);
}

typedef struct posted {
  bl_message_t message;
  unsigned handled;
  unsigned seen; // by the call
} posted_t;

static void on_posted(bl_message_t *message) {
  BL_MESSAGE_OWNER(message, posted_t, message)->handled++;
}

static void look_at_posted(void *context) {
  posted_t *posted = context;
  posted->seen = posted->handled;
}

static void a_call_runs_after_what_was_posted_before_it(void **state) {
  posted_t posted = {.message = {.handle = on_posted}};
  for (unsigned i = 1; i <= CALLS; i++) {
    bl_loop_post(bl_loop_thread_loop(*state), &posted.message);
    bl_loop_thread_call(*state, look_at_posted, &posted);
    assert_int_equal(posted.seen, i);
  }
}

// ---- life ------------------------------------------------------------------------------------------------------------

typedef struct ticking {
  bl_loop_t *loop;
  bl_timer_t *timer;
  bl_status_t status;
} ticking_t;

static void on_tick(bl_timer_t *timer, void *context) {
  (void)timer;
  (void)context;
}

static void make_timer(void *context) {
  ticking_t *ticking = context;
  ticking->status = bl_timer_create(ticking->loop, on_tick, NULL, &ticking->timer, NULL);
  if (ticking->status == BL_OK) {
    bl_timer_start(ticking->timer, 0, 1);
  }
}

static void destroy_timer(void *context) {
  ticking_t *ticking = context;
  bl_timer_destroy(ticking->timer);
}

static void threads_come_and_go_with_what_was_posted_handled(void **state) {
  (void)state;
  for (unsigned i = 0; i < 200; i++) {
    bl_loop_thread_t *thread;
    posted_t posted = {.message = {.handle = on_posted}};
    assert_int_equal(bl_loop_thread_create("passing", &thread, NULL), BL_OK);
    ticking_t ticking = {.loop = bl_loop_thread_loop(thread)};
    bl_loop_thread_call(thread, make_timer, &ticking); // at once: the loop may not run yet
    assert_int_equal(ticking.status, BL_OK);
    bl_loop_thread_call(thread, destroy_timer, &ticking);
    bl_loop_post(bl_loop_thread_loop(thread), &posted.message);
    bl_loop_thread_destroy(thread);
    assert_int_equal(posted.handled, 1);
  }
  bl_loop_thread_destroy(NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(it_runs_the_loop_takes_no_signals_and_has_its_name, start, stop),
      cmocka_unit_test(one_made_by_a_pinned_thread_is_not_pinned),
      cmocka_unit_test_setup_teardown(calls_of_many_threads_run_one_at_a_time_and_are_waited_for, start, stop),
      cmocka_unit_test_setup_teardown(a_call_on_its_own_thread_is_just_made, start, stop),
      cmocka_unit_test_setup_teardown(a_call_runs_after_what_was_posted_before_it, start, stop),
      cmocka_unit_test(threads_come_and_go_with_what_was_posted_handled),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
