// SPDX-License-Identifier: Apache-2.0
// Verifies how a run's session ends if several things end at once: the driver, its stages, a Ctrl-C, a call that
// collects a timeline or a sample. Processes and driver are fakes that each test moves by hand, one event after the
// other.
#include "ballastctl/run/session.h"

#include "ballastctl/inspect/driver_wire.h"
#include "ballastctl/run/fleet.h"
#include "job/job_text.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

// ---- the fakes ------------------------------------------------------------------------------------------------------

struct bl_ctl_fleet {
  bl_loop_t *loop;
  bl_ctl_fleet_options_t options;
  bl_message_t began, ended, next;
  bool ending;
};

struct bl_ctl_driver {
  bl_ctl_watcher_t watcher;
};

typedef struct call {
  bl_ctl_done_fn done;
  void *context;
  unsigned count;
} call_t;

static struct bl_ctl_fleet fleet;
static struct bl_ctl_driver driver;
static call_t stop, generation, trace;
static void (*script)(unsigned turn); // one turn per message of the loop, until the session ends
static unsigned turn;

static void began(bl_message_t *message) {
  (void)message;
  fleet.options.driver_ready("unix:/nowhere", fleet.options.context);
  bl_loop_post(fleet.loop, &fleet.next);
}

static void take_turn(bl_message_t *message) {
  (void)message;
  if (!fleet.ending) {
    script(turn++);
    bl_loop_post(fleet.loop, &fleet.next);
  }
}

static void ended(bl_message_t *message) {
  (void)message;
  fleet.options.ended(fleet.options.context);
}

bl_status_t bl_ctl_fleet_create(bl_loop_t *loop, const bl_ctl_fleet_options_t *options, size_t stage_count,
                                size_t store_count, bl_ctl_fleet_t **made, bl_error_t *err) {
  (void)stage_count, (void)store_count, (void)err;
  fleet = (struct bl_ctl_fleet){
      .loop = loop, .options = *options, .began.handle = began, .ended.handle = ended, .next.handle = take_turn};
  *made = &fleet;
  return BL_OK;
}

void bl_ctl_fleet_destroy(bl_ctl_fleet_t *self) {
  (void)self;
}

bl_status_t bl_ctl_fleet_start_stages(bl_ctl_fleet_t *self, bl_error_t *err) {
  (void)err;
  bl_loop_post(self->loop, &self->began);
  return BL_OK;
}

bl_status_t bl_ctl_fleet_start_driver(bl_ctl_fleet_t *self, const char *job_path, const char *const orders[2],
                                      bool own_stages, bool resume, bl_error_t *err) {
  (void)self, (void)job_path, (void)orders, (void)own_stages, (void)resume, (void)err;
  return BL_OK;
}

// Processes that are waited for end when the script says so.
void bl_ctl_fleet_end(bl_ctl_fleet_t *self, bl_ctl_end_t how, uint64_t grace_ms) {
  (void)grace_ms;
  if (how != BL_CTL_END_WAIT && !self->ending) {
    self->ending = true;
    bl_loop_post(self->loop, &self->ended);
  }
}

int64_t bl_ctl_fleet_pid(const bl_ctl_fleet_t *self, int stage) {
  (void)self, (void)stage;
  return 71;
}

const char *bl_ctl_fleet_last_words(bl_ctl_fleet_t *self, int stage) {
  (void)self, (void)stage;
  return "";
}

bl_status_t bl_ctl_driver_create(bl_rpc_t *rpc, const char *address, bl_ctl_driver_t **made, bl_error_t *err) {
  (void)rpc, (void)address, (void)err;
  *made = &driver;
  return BL_OK;
}

void bl_ctl_driver_destroy(bl_ctl_driver_t *self) {
  (void)self;
}

bl_status_t bl_ctl_driver_watch(bl_ctl_driver_t *self, const bl_ctl_watcher_t *watcher, bl_error_t *err) {
  (void)err;
  self->watcher = *watcher;
  return BL_OK;
}

static bl_status_t begin(call_t *call, bl_ctl_done_fn done, void *context) {
  *call = (call_t){.done = done, .context = context, .count = call->count + 1};
  return BL_OK;
}

bl_status_t bl_ctl_driver_stop(bl_ctl_driver_t *self, uint64_t deadline_ms, bl_ctl_done_fn done, void *context,
                               bl_error_t *err) {
  (void)self, (void)deadline_ms, (void)err;
  return begin(&stop, done, context);
}

bl_status_t bl_ctl_driver_generate(bl_ctl_driver_t *self, uint32_t tokens, uint64_t seed, double temperature,
                                   uint64_t deadline_ms, bl_ctl_text_fn text, bl_ctl_done_fn done, void *context,
                                   bl_error_t *err) {
  (void)self, (void)tokens, (void)seed, (void)temperature, (void)deadline_ms, (void)text, (void)err;
  return begin(&generation, done, context);
}

bl_status_t bl_ctl_driver_trace(bl_ctl_driver_t *self, uint64_t deadline_ms, bl_ctl_trace_fn event, bl_ctl_done_fn done,
                                void *context, bl_error_t *err) {
  (void)self, (void)deadline_ms, (void)event, (void)err;
  return begin(&trace, done, context);
}

bl_status_t bl_ctl_driver_status(bl_ctl_driver_t *self, uint64_t deadline_ms, bl_ctl_json_fn done, void *context,
                                 bl_error_t *err) {
  (void)self, (void)deadline_ms, (void)done, (void)context, (void)err;
  return BL_OK;
}

// ---- events ---------------------------------------------------------------------------------------------------------

static void tell(const char *phase, const char *error, int exit_code) {
  const bl_ctl_phase_t event = {.phase = phase, .error = error, .exit_code = exit_code};
  driver.watcher.phase(&event, driver.watcher.context);
}

static void answer(call_t *call, bl_status_t status) {
  bl_error_t err = {.status = BL_OK};
  if (status != BL_OK) {
    (void)bl_error_set(&err, status, "the run has ended");
  }
  if (call->done != NULL) {
    call->done(&err, call->context);
  }
}

static void all_exit(void) {
  bl_ctl_fleet_end(&fleet, BL_CTL_END_KILL, 0);
}

// Runs a session. Returns its exit code, and in `text` what it printed on standard error.
static int run_with(void (*events)(unsigned turn), bl_ctl_session_options_t options, char text[4096]) {
  bl_job_t job;
  bl_error_t err;
  assert_int_equal(job_text_parse(&job, "", &err), BL_OK);
  const bl_training_t training = {0};
  options.job = &job;
  options.training = &training;
  options.local = true;
  stop = generation = trace = (call_t){0};
  script = events;
  turn = 0;
  fflush(stderr);
  FILE *file = tmpfile();
  const int kept = dup(STDERR_FILENO);
  dup2(fileno(file), STDERR_FILENO);
  const int exit_code = bl_ctl_session_run(&options);
  fflush(stderr);
  dup2(kept, STDERR_FILENO);
  close(kept);
  rewind(file);
  text[fread(text, 1, 4095, file)] = '\0';
  fclose(file);
  bl_job_cleanup(&job);
  return exit_code;
}

static int run(void (*events)(unsigned turn), const char *timeline, uint32_t sample, char text[4096]) {
  return run_with(events, (bl_ctl_session_options_t){.timeline = timeline, .sample = sample}, text);
}

// The same with a full disk as standard output.
static int run_on_a_full_disk(void (*events)(unsigned turn), bl_ctl_session_options_t options, char text[4096]) {
  fflush(stdout);
  const int kept = dup(STDOUT_FILENO), full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  dup2(full, STDOUT_FILENO);
  close(full);
  const int exit_code = run_with(events, options, text);
  dup2(kept, STDOUT_FILENO);
  close(kept);
  clearerr(stdout);
  return exit_code;
}

#define STOPPED     130
#define EXHAUSTED   bl_status_exit_code(BL_EXHAUSTED)
#define UNAVAILABLE bl_status_exit_code(BL_UNAVAILABLE)

// ---- tests ----------------------------------------------------------------------------------------------------------

static void another_stops(unsigned now) {
  if (now == 0) {
    tell("finished", "", STOPPED);
    answer(&stop, BL_OK);
  } else if (now == 5) {
    all_exit();
  }
}

// The driver that another process stopped traces and draws nothing any more, and is not asked.
static void test_stopped_by_another(void **state) {
  (void)state;
  char text[4096];
  assert_int_equal(run(another_stops, "/nowhere/line.svg", 5, text), STOPPED);
  assert_int_equal(trace.count + generation.count, 0);
  assert_non_null(strstr(text, "the driver was asked to stop"));
  assert_non_null(strstr(text, "no timeline and no sample"));
}

static void interrupted_while_drawing(unsigned now) {
  if (now == 0) {
    tell("finished", "", 0);
    raise(SIGINT);
  } else if (stop.count > 0 && now < 10) {
    answer(&generation, BL_PRECONDITION); // the driver ends the text first
    generation.done = NULL;
    answer(&stop, BL_OK);
    stop.done = NULL;
  } else if (now == 15) {
    all_exit();
  }
}

static void test_interrupted_sample(void **state) {
  (void)state;
  char text[4096];
  assert_int_equal(run(interrupted_while_drawing, NULL, 5, text), STOPPED);
  assert_int_equal(stop.count, 1);
}

static void interrupted_while_tracing(unsigned now) {
  if (now == 0) {
    tell("finished", "", 0);
    raise(SIGINT);
  } else if (stop.count > 0 && now < 10) {
    answer(&trace, BL_OK);
    trace.done = NULL;
    answer(&generation, BL_PRECONDITION);
    generation.done = NULL;
    answer(&stop, BL_OK);
    stop.done = NULL;
  } else if (now == 15) {
    all_exit();
  }
}

static void test_interrupted_timeline(void **state) {
  (void)state;
  char text[4096];
  assert_int_equal(run(interrupted_while_tracing, "/nowhere/line.svg", 5, text), STOPPED);
  assert_int_equal(generation.count, 0);
  assert_int_equal(stop.count, 1);
}

static void draws(unsigned now) {
  if (now == 0) {
    tell("finished", "", 0);
    answer(&generation, BL_OK);
    answer(&stop, BL_OK);
  } else if (now == 5) {
    all_exit();
  }
}

static void test_sample_on_a_full_disk(void **state) {
  (void)state;
  char text[4096];
  const bl_ctl_session_options_t options = {.sample = 5};
  assert_int_equal(run_on_a_full_disk(draws, options, text), bl_status_exit_code(BL_PARTIAL));
  assert_non_null(strstr(text, "no sample: cannot print: No space left on device"));
}

static void test_summary_on_a_full_disk(void **state) {
  (void)state;
  char text[4096];
  const bl_ctl_session_options_t options = {.summary = true};
  assert_int_equal(run_on_a_full_disk(draws, options, text), bl_status_exit_code(BL_PARTIAL));
  assert_non_null(strstr(text, "no summary: cannot print: No space left on device"));
}

static void breaks_at_step_7(unsigned now) {
  if (now == 0) {
    const bl_ctl_step_t step = {.step = 7, .tokens = 1, .seconds = 1};
    driver.watcher.step(&step, driver.watcher.context);
    tell("failed", "a disk is full", EXHAUSTED);
  } else if (now == 5) {
    all_exit();
  }
}

static void breaks_at_once(unsigned now) {
  if (now == 0) {
    tell("failed", "a disk is full", EXHAUSTED);
  } else if (now == 5) {
    all_exit();
  }
}

// Also after a resume the step is that of the whole run.
static void test_step_of_the_end(void **state) {
  (void)state;
  char text[4096];
  const bl_resume_t resume = {.path = "/runs/step-000006", .step = 6};
  const bl_ctl_session_options_t anew = {0}, resumed = {.resume = &resume};
  assert_int_equal(run_with(breaks_at_step_7, resumed, text), EXHAUSTED);
  assert_non_null(strstr(text, "the run ends after step 7\n"));
  assert_int_equal(run_with(breaks_at_once, resumed, text), EXHAUSTED);
  assert_non_null(strstr(text, "the run ends after step 6\n"));
  assert_int_equal(run_with(breaks_at_once, anew, text), EXHAUSTED);
  assert_non_null(strstr(text, "the run ends before its first step\n"));
}

static void fails_while_it_stops(unsigned now) {
  if (now == 0) {
    raise(SIGINT);
  } else if (stop.count > 0 && now < 10) {
    answer(&stop, BL_OK);
    stop.done = NULL;
    tell("failed", "stage 1 has died", EXHAUSTED);
  } else if (now == 15) {
    all_exit();
  }
}

// Whoever presses Ctrl-C expects that the steps are saved.
static void test_fails_while_it_stops(void **state) {
  (void)state;
  char text[4096];
  assert_int_equal(run(fails_while_it_stops, NULL, 0, text), STOPPED);
  assert_non_null(strstr(text, "stage 1 has died"));
}

static void reason_after_a_guess(unsigned now) {
  if (now == 0) {
    fleet.options.gone(0, "stage 0 (pid 71) ended: exit code 0", 0, fleet.options.context);
    tell("failed", "stage 1 has died", EXHAUSTED);
    fleet.options.gone(BL_CTL_DRIVER, "the driver (pid 71) ended: exit code 4", EXHAUSTED, fleet.options.context);
  }
}

static void test_reason_after_a_guess(void **state) {
  (void)state;
  char text[4096];
  assert_int_equal(run(reason_after_a_guess, NULL, 0, text), EXHAUSTED);
  assert_non_null(strstr(text, "stage 1 has died; the run ends"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_stopped_by_another),     cmocka_unit_test(test_interrupted_sample),
      cmocka_unit_test(test_interrupted_timeline),   cmocka_unit_test(test_fails_while_it_stops),
      cmocka_unit_test(test_reason_after_a_guess),   cmocka_unit_test(test_sample_on_a_full_disk),
      cmocka_unit_test(test_summary_on_a_full_disk), cmocka_unit_test(test_step_of_the_end),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
