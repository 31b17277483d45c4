// SPDX-License-Identifier: Apache-2.0
// Verifies tokens that processes share: never more at a time than cores, in the order of asking, a killed holder's and a
// killed waiter's are given on, what one left half done within the lock grants nothing, waiting can be given up, and
// files and numbers that do not fit are refused. And that a bound holder runs on the processor of its token, on no other
// member's, and wherever it might before afterwards.
#include "sys/core_tokens.c"

#include "sys/thread.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/ballast-cores-XXXXXX", path[sizeof folder + 8];

// What the processes of a test share.
typedef struct {
  _Atomic int inside, most, taken, order[64];
} board_t;
static board_t *board;

static bool never(void *context) {
  (void)context;
  return false;
}

static bool always(void *context) {
  (void)context;
  return true;
}

static bl_core_tokens_t *attach(uint32_t cores, uint32_t member) {
  bl_core_tokens_t *tokens;
  bl_error_t err = {0};
  if (bl_core_tokens_attach(path, cores, member, &tokens, &err) != BL_OK) {
    fprintf(stderr, "member %u: %s\n", member, err.text);
    abort();
  }
  return tokens;
}

static void wait_for(_Atomic int *value, int least) {
  while (atomic_load(value) < least) {
    usleep(1000);
  }
}

static pid_t start(void (*member)(uint32_t number), uint32_t number) {
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    member(number);
    _exit(0);
  }
  return child;
}

static void expect_end(pid_t child) {
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void take_often(uint32_t number) {
  bl_core_tokens_t *tokens = attach(2, number);
  for (int i = 0; i < 300; i++) {
    if (!bl_core_tokens_acquire(tokens, never, NULL)) {
      _exit(1);
    }
    int inside = atomic_fetch_add(&board->inside, 1) + 1, most = atomic_load(&board->most);
    while (inside > most && !atomic_compare_exchange_weak(&board->most, &most, inside)) {
    }
    sched_yield();
    atomic_fetch_sub(&board->inside, 1);
    atomic_fetch_add(&board->taken, 1);
    bl_core_tokens_release(tokens);
  }
  bl_core_tokens_detach(tokens);
}

static void never_more_than_cores(void **state) {
  (void)state;
  pid_t children[5];
  for (uint32_t i = 0; i < 5; i++) {
    children[i] = start(take_often, i);
  }
  for (uint32_t i = 0; i < 5; i++) {
    expect_end(children[i]);
  }
  assert_int_equal(board->taken, 5 * 300);
  assert_in_range(board->most, 1, 2);
}

static void ask_once(uint32_t number) {
  bl_core_tokens_t *tokens = attach(1, number);
  if (!bl_core_tokens_acquire(tokens, never, NULL)) {
    _exit(1);
  }
  board->order[atomic_fetch_add(&board->taken, 1)] = (int)number;
  bl_core_tokens_release(tokens);
  bl_core_tokens_detach(tokens);
}

static void wait_for_waiting(bl_core_tokens_t *tokens, uint32_t count) {
  while (bl_core_tokens_waiting(tokens) != count) {
    usleep(1000);
  }
}

static void who_asks_first_is_served_first(void **state) {
  (void)state;
  static const uint32_t asking[] = {3, 1, 7, 2, 200};
  bl_core_tokens_t *tokens = attach(1, 0);
  assert_true(bl_core_tokens_acquire(tokens, never, NULL));
  pid_t children[5];
  for (uint32_t i = 0; i < 5; i++) {
    children[i] = start(ask_once, asking[i]);
    wait_for_waiting(tokens, i + 1);
  }
  assert_int_equal(board->taken, 0);
  bl_core_tokens_release(tokens);
  for (uint32_t i = 0; i < 5; i++) {
    expect_end(children[i]);
  }
  for (uint32_t i = 0; i < 5; i++) {
    assert_int_equal(board->order[i], asking[i]);
  }
  bl_core_tokens_detach(tokens);
}

static void a_token_is_kept_while_nobody_waits(void **state) {
  (void)state;
  bl_core_tokens_t *tokens = attach(1, 0);
  assert_false(bl_core_tokens_keep(tokens)); // it has none
  assert_true(bl_core_tokens_acquire(tokens, never, NULL));
  assert_true(bl_core_tokens_keep(tokens));
  pid_t waiter = start(ask_once, 5);
  wait_for_waiting(tokens, 1);
  assert_false(bl_core_tokens_keep(tokens));
  assert_true(bl_core_tokens_holds(tokens, 0));
  assert_false(bl_core_tokens_holds(tokens, 5)); // it waits
  assert_false(bl_core_tokens_holds(tokens, BL_CORE_TOKENS_MEMBERS));
  assert_int_equal(board->taken, 0); // it still holds the token
  bl_core_tokens_release(tokens);
  expect_end(waiter);
  assert_int_equal(board->taken, 1);
  bl_core_tokens_detach(tokens);
}

static void hold_for_ever(uint32_t number) {
  bl_core_tokens_t *tokens = attach(1, number);
  if (!bl_core_tokens_acquire(tokens, never, NULL)) {
    _exit(1);
  }
  atomic_fetch_add(&board->taken, 1);
  for (;;) {
    pause();
  }
}

static void kill_and_reap(pid_t child) {
  kill(child, SIGKILL);
  assert_int_equal(waitpid(child, NULL, 0), child);
}

static void a_killed_holder_and_waiter_give_theirs_back(void **state) {
  (void)state;
  pid_t holder = start(hold_for_ever, 1);
  wait_for(&board->taken, 1);
  bl_core_tokens_t *tokens = attach(1, 0);
  pid_t waiter = start(hold_for_ever, 2);
  wait_for_waiting(tokens, 1);
  kill(waiter, SIGKILL); // not reaped: a zombie is dead
  kill(holder, SIGKILL);
  assert_true(bl_core_tokens_acquire(tokens, never, NULL));
  kill_and_reap(waiter);
  kill_and_reap(holder);
  bl_core_tokens_release(tokens);
  pid_t again = start(hold_for_ever, 1); // its number can be taken again
  wait_for(&board->taken, 2);
  kill_and_reap(again);
  bl_core_tokens_detach(tokens);
}

// Dies as a member does that is killed while it rebuilds the queue.
static void die_within_the_lock(uint32_t number) {
  bl_core_tokens_t *tokens = attach(1, number);
  lock(tokens->shared, number);
  tokens->shared->running = tokens->shared->first = tokens->shared->last = 0;
}

static void ask_when_told(uint32_t number) {
  bl_core_tokens_t *tokens = attach(1, number);
  atomic_fetch_add(&board->inside, 1);
  wait_for(&board->most, 1);
  if (!bl_core_tokens_acquire(tokens, never, NULL)) {
    _exit(1);
  }
  atomic_fetch_add(&board->taken, 1);
  bl_core_tokens_detach(tokens);
}

static void an_update_that_was_left_grants_nothing(void **state) {
  (void)state;
  bl_core_tokens_t *tokens = attach(1, 0);
  assert_true(bl_core_tokens_acquire(tokens, never, NULL));
  pid_t waiter = start(ask_when_told, 2);
  wait_for(&board->inside, 1);
  expect_end(start(die_within_the_lock, 1));
  atomic_store(&board->most, 1);
  while (bl_core_tokens_waiting(tokens) == 0 && board->taken == 0) {
    usleep(1000);
  }
  assert_int_equal(board->taken, 0);
  bl_core_tokens_release(tokens);
  expect_end(waiter);
  bl_core_tokens_detach(tokens);
}

// Looks whether member 5 lives as another member does, which a member with that number finds at work.
static void look_for_a_while(uint32_t number) {
  bl_core_tokens_t *tokens = attach(1, number);
  pthread_mutex_t *alive = &tokens->shared->members[5].alive;
  lock(tokens->shared, number);
  assert_int_equal(pthread_mutex_trylock(alive), 0);
  atomic_fetch_add(&board->taken, 1);
  usleep(100000); // any time will do
  pthread_mutex_unlock(alive);
  pthread_mutex_unlock(&tokens->shared->lock);
}

static void who_is_looked_for_may_come(void **state) {
  (void)state;
  pid_t looks = start(look_for_a_while, 1);
  wait_for(&board->taken, 1);
  bl_core_tokens_detach(attach(1, 5));
  expect_end(looks);
}

static void waiting_can_be_given_up(void **state) {
  (void)state;
  pid_t holder = start(hold_for_ever, 1);
  wait_for(&board->taken, 1);
  bl_core_tokens_t *tokens = attach(1, 0);
  assert_false(bl_core_tokens_acquire(tokens, always, NULL));
  kill_and_reap(holder);
  assert_true(bl_core_tokens_acquire(tokens, never, NULL));
  bl_core_tokens_detach(tokens); // gives it back
  tokens = attach(1, 3);
  assert_true(bl_core_tokens_acquire(tokens, never, NULL));
  bl_core_tokens_detach(tokens);
}

static void *take_and_end(void *argument) {
  (void)argument;
  bl_core_tokens_t *tokens = attach(1, 5);
  return bl_core_tokens_acquire(tokens, never, NULL) ? tokens : NULL; // the thread ends with its token
}

static void the_end_of_a_thread_is_the_end_of_the_member(void **state) {
  (void)state;
  pthread_t thread;
  void *left;
  assert_int_equal(pthread_create(&thread, NULL, take_and_end, NULL), 0);
  assert_int_equal(pthread_join(thread, &left), 0);
  assert_non_null(left);
  bl_core_tokens_t *tokens = attach(1, 0);
  assert_true(bl_core_tokens_acquire(tokens, never, NULL));
  bl_core_tokens_detach(tokens);
  bl_core_tokens_detach(left); // from another thread: frees what it can
}

// ---- processors ----

static cpu_set_t allowed(void) {
  cpu_set_t set;
  assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
  return set;
}

static void may_run_on(const cpu_set_t *set) {
  assert_int_equal(sched_setaffinity(0, sizeof *set, set), 0);
}

// Of a bound member while it has a token; afterwards it has its old ones again, or the test fails.
static cpu_set_t processors_with_token(bl_core_tokens_t *tokens) {
  const cpu_set_t before = allowed();
  assert_true(bl_core_tokens_acquire(tokens, never, NULL));
  const cpu_set_t with_token = allowed();
  bl_core_tokens_release(tokens);
  const cpu_set_t after = allowed();
  assert_true(CPU_EQUAL(&before, &after));
  return with_token;
}

static void hold_bound(uint32_t number) {
  cpu_set_t set;
  bl_core_tokens_t *tokens = attach((uint32_t)bl_thread_processors(), number);
  bl_core_tokens_bind(tokens);
  if (!bl_core_tokens_acquire(tokens, never, NULL) || sched_getaffinity(0, sizeof set, &set) != 0 ||
      CPU_COUNT(&set) != 1) {
    _exit(1);
  }
  for (int processor = 0; processor < CPU_SETSIZE && number < 64; processor++) {
    board->order[number] = CPU_ISSET(processor, &set) ? processor : board->order[number];
  }
  atomic_fetch_add(&board->taken, 1);
  for (;;) {
    pause();
  }
}

static void who_has_a_token_runs_on_its_processor(void **state) {
  (void)state;
  const cpu_set_t before = allowed();
  const uint32_t cores = (uint32_t)bl_thread_processors();
  bl_core_tokens_t *tokens = attach(cores, 0);
  cpu_set_t found = processors_with_token(tokens);
  assert_true(CPU_EQUAL(&found, &before)); // not bound
  bl_core_tokens_bind(tokens);
  found = processors_with_token(tokens);
  assert_int_equal(CPU_COUNT(&found), 1);
  cpu_set_t again = processors_with_token(tokens);
  assert_true(CPU_EQUAL(&found, &again));
  assert_true(bl_core_tokens_acquire(tokens, never, NULL));
  bl_core_tokens_detach(tokens);
  again = allowed();
  assert_true(CPU_EQUAL(&again, &before));
}

// All but one processor are taken by others; when the one that has the processor this member had dies, it gets that.
static void a_dead_holders_processor_is_given_on(void **state) {
  (void)state;
  const int cores = bl_thread_processors();
  if (cores > 32) {
    print_message("SKIPPED: a process for each of %d processors\n", cores);
    skip();
  }
  pid_t children[32];
  cpu_set_t taken;
  CPU_ZERO(&taken);
  for (int i = 0; i < cores; i++) {
    children[i] = start(hold_bound, (uint32_t)i + 1);
    wait_for(&board->taken, i + 1);
    assert_false(CPU_ISSET(board->order[i + 1], &taken)); // nobody else's
    CPU_SET(board->order[i + 1], &taken);
  }
  const cpu_set_t before = allowed();
  assert_true(CPU_EQUAL(&taken, &before));
  bl_core_tokens_t *tokens = attach((uint32_t)cores, 0);
  bl_core_tokens_bind(tokens);
  for (int i = 0; i < cores; i++) {
    kill_and_reap(children[i]);
    assert_true(bl_core_tokens_acquire(tokens, never, NULL));
    const cpu_set_t found = allowed();
    assert_int_equal(CPU_COUNT(&found), 1);
    assert_true(CPU_ISSET(board->order[1], &found)); // the first one's, which is its last one since
    bl_core_tokens_release(tokens);
  }
  bl_core_tokens_detach(tokens);
}

static void expect_unbound(uint32_t cores) {
  bl_core_tokens_t *tokens = attach(cores, 0);
  bl_core_tokens_bind(tokens);
  const cpu_set_t before = allowed(), found = processors_with_token(tokens);
  assert_true(CPU_EQUAL(&found, &before));
  bl_core_tokens_detach(tokens);
  unlink(path);
}

static void fewer_or_more_tokens_than_processors_bind_nobody(void **state) {
  (void)state;
  const uint32_t processors = (uint32_t)bl_thread_processors();
  expect_unbound(processors + 1);
  expect_unbound(1000);
  if (processors == 1) {
    print_message("fewer tokens than processors were not tried: there is one processor\n");
    return;
  }
  expect_unbound(processors - 1);
}

// A file made by who may use all processors, and a member that may use one.
static void who_may_use_other_processors_is_not_bound(void **state) {
  (void)state;
  const cpu_set_t before = allowed();
  if (CPU_COUNT(&before) == 1) {
    print_message("SKIPPED: there is one processor\n");
    skip();
  }
  bl_core_tokens_t *tokens = attach((uint32_t)CPU_COUNT(&before), 0);
  bl_core_tokens_bind(tokens);
  cpu_set_t fewer = before;
  for (int processor = 0; processor < CPU_SETSIZE; processor++) {
    if (CPU_ISSET(processor, &before)) {
      CPU_CLR(processor, &fewer); // all but the lowest
      break;
    }
  }
  may_run_on(&fewer);
  const cpu_set_t found = processors_with_token(tokens);
  assert_true(CPU_EQUAL(&found, &fewer));
  may_run_on(&before);
  const cpu_set_t again = processors_with_token(tokens);
  assert_int_equal(CPU_COUNT(&again), 1);
  bl_core_tokens_detach(tokens);
}

static void what_does_not_fit_is_refused(void **state) {
  (void)state;
  bl_core_tokens_t *tokens = attach(2, 0), *other;
  bl_error_t err = {0};
  assert_int_equal(bl_core_tokens_attach(path, 0, 1, &other, &err), BL_INVALID);
  assert_int_equal(bl_core_tokens_attach(path, 2, BL_CORE_TOKENS_MEMBERS, &other, &err), BL_INVALID);
  assert_int_equal(bl_core_tokens_attach(path, 3, 1, &other, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "has tokens for 2 cores, 3 are asked for"));
  assert_int_equal(bl_core_tokens_attach(path, 2, 0, &other, &err), BL_PRECONDITION);
  assert_non_null(strstr(err.text, "member 0 exists already"));
  assert_int_equal(bl_core_tokens_attach("/nonexistent/cores", 2, 0, &other, &err), BL_NOT_FOUND);
  bl_core_tokens_detach(tokens);
  assert_int_equal(truncate(path, 10), 0);
  assert_int_equal(bl_core_tokens_attach(path, 2, 0, &other, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "not a file of core tokens"));
}

static int set_up(void **state) {
  (void)state;
  board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  memcpy(strrchr(folder, '-') + 1, "XXXXXX", 6);
  if (board == MAP_FAILED || mkdtemp(folder) == NULL) {
    return -1;
  }
  snprintf(path, sizeof path, "%s/cores", folder);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  munmap(board, sizeof *board);
  unlink(path);
  return rmdir(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(never_more_than_cores, set_up, tear_down),
      cmocka_unit_test_setup_teardown(who_asks_first_is_served_first, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_token_is_kept_while_nobody_waits, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_killed_holder_and_waiter_give_theirs_back, set_up, tear_down),
      cmocka_unit_test_setup_teardown(an_update_that_was_left_grants_nothing, set_up, tear_down),
      cmocka_unit_test_setup_teardown(who_is_looked_for_may_come, set_up, tear_down),
      cmocka_unit_test_setup_teardown(waiting_can_be_given_up, set_up, tear_down),
      cmocka_unit_test_setup_teardown(the_end_of_a_thread_is_the_end_of_the_member, set_up, tear_down),
      cmocka_unit_test_setup_teardown(who_has_a_token_runs_on_its_processor, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_dead_holders_processor_is_given_on, set_up, tear_down),
      cmocka_unit_test_setup_teardown(fewer_or_more_tokens_than_processors_bind_nobody, set_up, tear_down),
      cmocka_unit_test_setup_teardown(who_may_use_other_processors_is_not_bound, set_up, tear_down),
      cmocka_unit_test_setup_teardown(what_does_not_fit_is_refused, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
