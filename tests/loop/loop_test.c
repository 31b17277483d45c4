// SPDX-License-Identifier: Apache-2.0
// Verifies the loop: messages from many threads, stop and drain, timers, signals, the lifeline.
#include "loop/loop.h"

#include "loop/lifeline.h"
#include "loop/signal.h"
#include "loop/timer.h"
#include "sys/clock.h"

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static int start(void **state) {
  static bl_loop_t *loop;
  *state = NULL;
  if (bl_loop_create(&loop, NULL) != BL_OK) {
    return -1;
  }
  *state = loop;
  return 0;
}

static int stop(void **state) {
  bl_loop_destroy(*state);
  return 0;
}

// ---- messages ------------------------------------------------------------------------------------------------------

enum { POSTERS = 4, PER_POSTER = 5000 };

typedef struct poster poster_t;

typedef struct numbered {
  bl_message_t message;
  poster_t *poster;
  unsigned number;
} numbered_t;

struct poster {
  bl_loop_t *loop;
  unsigned *handled; // of all posters
  unsigned next;     // number expected next
  unsigned out_of_order;
  unsigned off_thread;
  numbered_t messages[PER_POSTER];
};

static void on_numbered(bl_message_t *message) {
  numbered_t *numbered = BL_MESSAGE_OWNER(message, numbered_t, message);
  poster_t *poster = numbered->poster;
  poster->out_of_order += numbered->number != poster->next;
  poster->off_thread += !bl_loop_is_current(poster->loop);
  poster->next++;
  if (++*poster->handled == POSTERS * PER_POSTER) {
    bl_loop_stop(poster->loop);
  }
}

static void *post_all(void *argument) {
  poster_t *poster = argument;
  for (unsigned i = 0; i < PER_POSTER; i++) {
    numbered_t *numbered = &poster->messages[i];
    numbered->message.handle = on_numbered;
    numbered->poster = poster;
    numbered->number = i;
    bl_loop_post(poster->loop, &numbered->message);
  }
  return NULL;
}

static void messages_of_a_thread_arrive_once_and_in_order(void **state) {
  static poster_t posters[POSTERS];
  pthread_t threads[POSTERS];
  unsigned handled = 0;
  for (unsigned i = 0; i < POSTERS; i++) {
    posters[i].loop = *state;
    posters[i].handled = &handled;
    assert_int_equal(pthread_create(&threads[i], NULL, post_all, &posters[i]), 0);
  }
  bl_loop_run(*state);
  for (unsigned i = 0; i < POSTERS; i++) {
    pthread_join(threads[i], NULL);
    assert_int_equal(posters[i].next, PER_POSTER);
    assert_int_equal(posters[i].out_of_order, 0);
    assert_int_equal(posters[i].off_thread, 0);
  }
}

typedef struct again {
  bl_message_t message;
  bl_loop_t *loop;
  unsigned left;
  unsigned *timer_fired;
} again_t;

static void on_stop(bl_timer_t *timer, void *context) {
  (void)timer;
  bl_loop_stop(context);
}

// A dialogue: the next message comes when the one before was handled and a while has passed that grows from nothing to
// longer than the loop stays awake. One that is not heard never ends it.
enum { MESSAGES = 3000, LONGEST_NS = 250000 };

typedef struct dialogue {
  bl_message_t message;
  bl_loop_t *loop;
  sem_t handled;
  unsigned count;
} dialogue_t;

static void on_message(bl_message_t *message) {
  dialogue_t *dialogue = BL_MESSAGE_OWNER(message, dialogue_t, message);
  dialogue->count++;
  sem_post(&dialogue->handled);
}

static void *talk(void *argument) {
  dialogue_t *dialogue = argument;
  for (unsigned i = 0; i < MESSAGES; i++) {
    uint64_t until_ns = bl_clock_now_ns() + (uint64_t)LONGEST_NS * i / MESSAGES;
    while (bl_clock_now_ns() < until_ns) {
      sched_yield();
    }
    bl_loop_post(dialogue->loop, &dialogue->message);
    while (sem_wait(&dialogue->handled) != 0) {
    }
  }
  bl_loop_stop(dialogue->loop);
  return NULL;
}

static void a_loop_that_falls_asleep_misses_nothing(void **state) {
  dialogue_t dialogue = {.message = {.handle = on_message}, .loop = *state};
  sem_init(&dialogue.handled, 0, 0);
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, talk, &dialogue), 0);
  bl_loop_run(*state);
  pthread_join(thread, NULL);
  sem_destroy(&dialogue.handled);
  assert_int_equal(dialogue.count, MESSAGES);
  // Nothing to do: no processor time.
  const clock_t before = clock();
  bl_timer_t *timer;
  assert_int_equal(bl_timer_create(*state, on_stop, *state, &timer, NULL), BL_OK);
  bl_timer_start(timer, 300, 0);
  bl_loop_run(*state);
  bl_timer_destroy(timer);
  assert_true(clock() - before < CLOCKS_PER_SEC / 10);
}

static void on_again(bl_message_t *message) {
  again_t *again = BL_MESSAGE_OWNER(message, again_t, message);
  if (again->left-- > 0 && *again->timer_fired == 0) {
    bl_loop_post(again->loop, message);
  }
}

static void on_count(bl_timer_t *timer, void *context) {
  (void)timer;
  ++*(unsigned *)context;
}

// A message that posts itself again for ever must not keep a timer from firing.
static void endless_messages_leave_room_for_timers(void **state) {
  unsigned fired = 0;
  again_t again = {.message.handle = on_again, .loop = *state, .left = 1u << 30, .timer_fired = &fired};
  bl_timer_t *timer, *end;
  assert_int_equal(bl_timer_create(*state, on_count, &fired, &timer, NULL), BL_OK);
  assert_int_equal(bl_timer_create(*state, on_stop, *state, &end, NULL), BL_OK);
  bl_timer_start(timer, 5, 0);
  bl_timer_start(end, 20, 0);
  bl_loop_post(*state, &again.message);
  bl_loop_run(*state);
  assert_int_equal(fired, 1);
  bl_timer_destroy(timer);
  bl_timer_destroy(end);
}

static void drain_handles_what_handlers_post(void **state) {
  unsigned never = 0;
  again_t again = {.message.handle = on_again, .loop = *state, .left = 10, .timer_fired = &never};
  bl_loop_post(*state, &again.message);
  bl_loop_drain(*state);
  assert_int_equal(again.left, UINT32_MAX); // ten times posted again
}

static void a_stop_before_run_is_kept(void **state) {
  bl_loop_stop(*state);
  bl_loop_run(*state); // returns
}

// ---- timers --------------------------------------------------------------------------------------------------------

static void timers_fire_once_or_often_and_stop(void **state) {
  unsigned once = 0, often = 0, stopped = 0, moved = 0;
  bl_timer_t *timers[5];
  unsigned *counters[] = {&once, &often, &stopped, &moved};
  for (unsigned i = 0; i < 4; i++) {
    assert_int_equal(bl_timer_create(*state, on_count, counters[i], &timers[i], NULL), BL_OK);
  }
  assert_int_equal(bl_timer_create(*state, on_stop, *state, &timers[4], NULL), BL_OK);
  bl_timer_start(timers[0], 1, 0);
  bl_timer_start(timers[1], 1, 2);
  bl_timer_start(timers[2], 1, 0);
  bl_timer_stop(timers[2]);
  bl_timer_start(timers[3], 1, 0);
  bl_timer_start(timers[3], 60000, 0); // the earlier start no longer counts
  bl_timer_start(timers[4], 40, 0);
  assert_true(bl_timer_is_active(timers[0]));
  assert_false(bl_timer_is_active(timers[2]));
  bl_loop_run(*state);
  assert_int_equal(once, 1);
  assert_in_range(often, 2, 40);
  assert_int_equal(stopped, 0);
  assert_int_equal(moved, 0);
  for (unsigned i = 0; i < 5; i++) {
    bl_timer_destroy(timers[i]);
  }
}

static void on_destroy_self(bl_timer_t *timer, void *context) {
  bl_timer_destroy(timer);
  bl_loop_stop(context);
}

static void a_timer_may_destroy_itself(void **state) {
  bl_timer_t *timer;
  assert_int_equal(bl_timer_create(*state, on_destroy_self, *state, &timer, NULL), BL_OK);
  bl_timer_start(timer, 1, 1);
  bl_loop_run(*state);
}

// ---- signals and lifelines -----------------------------------------------------------------------------------------

typedef struct caught {
  bl_loop_t *loop;
  int number;
} caught_t;

static void on_signal(bl_signal_t *signal, int number, void *context) {
  (void)signal;
  caught_t *caught = context;
  caught->number = number;
  bl_loop_stop(caught->loop);
}

static void a_signal_becomes_an_event(void **state) {
  caught_t caught = {.loop = *state};
  bl_signal_t *signal;
  bl_error_t err;
  assert_int_equal(bl_signal_create(*state, SIGUSR1, on_signal, &caught, &signal, &err), BL_OK);
  kill(getpid(), SIGUSR1);
  bl_loop_run(*state);
  assert_int_equal(caught.number, SIGUSR1);
  bl_signal_destroy(signal);
  assert_int_equal(bl_signal_create(*state, SIGKILL, on_signal, &caught, &signal, &err), BL_INVALID);
}

static void on_cut(bl_lifeline_t *lifeline, void *context) {
  (void)lifeline;
  bl_loop_stop(context);
}

static void a_lifeline_is_cut_by_the_last_close(void **state) {
  int ends[2];
  bl_lifeline_t *lifeline;
  bl_error_t err;
  assert_int_equal(pipe(ends), 0);
  int second = dup(ends[1]);
  assert_int_equal(bl_lifeline_create(*state, ends[0], on_cut, *state, &lifeline, &err), BL_OK);
  assert_int_equal(write(ends[1], "noise", 5), 5); // data is no cut
  close(ends[1]);
  bl_timer_t *timer;
  assert_int_equal(bl_timer_create(*state, on_stop, *state, &timer, NULL), BL_OK);
  bl_timer_start(timer, 20, 0);
  bl_loop_run(*state); // ended by the timer: one writer is left
  bl_timer_destroy(timer);
  close(second);
  bl_loop_run(*state);
  bl_lifeline_destroy(lifeline);
  assert_int_equal(bl_lifeline_create(*state, 999, on_cut, *state, &lifeline, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "999"));
}

static void a_ready_line_is_written_and_closed(void **state) {
  (void)state;
  int ends[2];
  char text[64];
  bl_error_t err;
  assert_int_equal(pipe(ends), 0);
  assert_int_equal(bl_ready_send(ends[1], "two\nlines", &err), BL_INVALID);
  assert_int_equal(bl_ready_send(ends[1], "ready a b", &err), BL_OK);
  assert_int_equal(read(ends[0], text, sizeof text), 10);
  assert_memory_equal(text, "ready a b\n", 10);
  assert_int_equal(read(ends[0], text, sizeof text), 0); // closed
  close(ends[0]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(messages_of_a_thread_arrive_once_and_in_order, start, stop),
      cmocka_unit_test_setup_teardown(a_loop_that_falls_asleep_misses_nothing, start, stop),
      cmocka_unit_test_setup_teardown(endless_messages_leave_room_for_timers, start, stop),
      cmocka_unit_test_setup_teardown(drain_handles_what_handlers_post, start, stop),
      cmocka_unit_test_setup_teardown(a_stop_before_run_is_kept, start, stop),
      cmocka_unit_test_setup_teardown(timers_fire_once_or_often_and_stop, start, stop),
      cmocka_unit_test_setup_teardown(a_timer_may_destroy_itself, start, stop),
      cmocka_unit_test_setup_teardown(a_signal_becomes_an_event, start, stop),
      cmocka_unit_test_setup_teardown(a_lifeline_is_cut_by_the_last_close, start, stop),
      cmocka_unit_test_setup_teardown(a_ready_line_is_written_and_closed, start, stop),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
