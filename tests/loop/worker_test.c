// SPDX-License-Identifier: Apache-2.0
// Verifies workers: tasks run in order on a thread of their own and come back to the loop's; one that rests has a thread only
// while there are tasks; the end waits for the running task and drops those behind it.
#include "loop/worker.h"

#include "sys/clock.h"

#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define TASKS 5

typedef struct job {
  bl_task_t task;
  unsigned number;
  bool last;
} job_t;

static bl_loop_t *loop;
static job_t jobs[TASKS];
static unsigned ran[TASKS], ran_count, done_count;
static bool on_loop[TASKS];
static char names[TASKS][16];
static atomic_bool held, holding;

static void run(bl_task_t *task) {
  job_t *job = BL_TASK_OWNER(task, job_t, task);
  atomic_store(&holding, true);
  while (atomic_load(&held)) {
    usleep(100);
  }
  on_loop[job->number] = bl_loop_is_current(loop);
  pthread_getname_np(pthread_self(), names[job->number], sizeof names[0]);
  ran[ran_count++] = job->number;
}

static void done(bl_task_t *task) {
  const job_t *job = BL_TASK_OWNER(task, job_t, task);
  assert_true(bl_loop_is_current(loop));
  assert_int_equal(ran[done_count], job->number);
  done_count++;
  if (job->last) {
    bl_loop_stop(loop);
  }
}

static void prepare(void) {
  ran_count = done_count = 0;
  for (unsigned i = 0; i < TASKS; i++) {
    jobs[i] = (job_t){.number = i, .last = i == TASKS - 1};
    bl_task_init(&jobs[i].task, run, done);
  }
}

static void submit_all(bl_worker_t *worker) {
  prepare();
  for (unsigned i = 0; i < TASKS; i++) {
    bl_worker_submit(worker, &jobs[i].task);
  }
  bl_loop_run(loop);
  assert_int_equal(done_count, TASKS);
  for (unsigned i = 0; i < TASKS; i++) {
    assert_false(on_loop[i]);
    assert_string_equal(names[i], "of the test");
  }
}

static unsigned count_threads(void) {
  unsigned count = 0;
  DIR *folder = opendir("/proc/self/task");
  assert_non_null(folder);
  for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
    count += entry->d_name[0] != '.';
  }
  closedir(folder);
  return count;
}

static void wait_for_threads(unsigned count) {
  const uint64_t end_ns = bl_clock_now_ns() + 60 * BL_NS_PER_S;
  while (count_threads() != count) {
    assert_true(bl_clock_now_ns() < end_ns);
    usleep(1000);
  }
}

static void tasks_run_in_order_and_come_back(void **state) {
  (void)state;
  bl_error_t err;
  bl_worker_t *worker;
  const unsigned before = count_threads();
  assert_int_equal(bl_worker_create(loop, "of the test", &worker, &err), BL_OK);
  submit_all(worker);
  submit_all(worker);
  assert_int_equal(count_threads(), before + 1);
  bl_worker_destroy(worker);
  assert_int_equal(count_threads(), before);
}

static void one_that_rests_has_no_thread(void **state) {
  (void)state;
  bl_error_t err;
  bl_worker_t *worker;
  const unsigned before = count_threads();
  assert_int_equal(bl_worker_create_resting(loop, "of the test", &worker, &err), BL_OK);
  assert_int_equal(count_threads(), before);
  for (int round = 0; round < 50; round++) { // a task may come while the thread of the last one ends
    submit_all(worker);
  }
  wait_for_threads(before);
  submit_all(worker);
  bl_worker_destroy(worker);
  assert_int_equal(count_threads(), before);
}

static void *release(void *none) {
  usleep(20000);
  atomic_store(&held, false);
  return none;
}

static void the_end_drops_what_has_not_begun(void **state) {
  (void)state;
  for (int rests = 0; rests < 2; rests++) {
    bl_error_t err;
    bl_worker_t *worker;
    assert_int_equal((rests ? bl_worker_create_resting : bl_worker_create)(loop, "of the test", &worker, &err), BL_OK);
    prepare();
    atomic_store(&holding, false);
    atomic_store(&held, true);
    for (unsigned i = 0; i < TASKS; i++) {
      bl_worker_submit(worker, &jobs[i].task);
    }
    while (!atomic_load(&holding)) {
      usleep(100);
    }
    pthread_t releaser; // once the end waits
    assert_int_equal(pthread_create(&releaser, NULL, release, NULL), 0);
    bl_worker_destroy(worker);
    pthread_join(releaser, NULL);
    bl_loop_drain(loop);
    assert_in_range(ran_count, 1, TASKS); // 1 but where this thread was slower than the other
    assert_int_equal(done_count, ran_count);
  }
}

static void *nothing(void *none) {
  return none;
}

static int make_loop(void **state) {
  (void)state;
  pthread_t first; // sanitizers have threads of their own from the first one on
  if (pthread_create(&first, NULL, nothing, NULL) != 0 || pthread_join(first, NULL) != 0) {
    return -1;
  }
  return bl_loop_create(&loop, NULL) == BL_OK ? 0 : -1;
}

static int free_loop(void **state) {
  (void)state;
  bl_loop_destroy(loop);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(tasks_run_in_order_and_come_back),
      cmocka_unit_test(one_that_rests_has_no_thread),
      cmocka_unit_test(the_end_drops_what_has_not_begun),
  };
  return cmocka_run_group_tests(tests, make_loop, free_loop);
}
