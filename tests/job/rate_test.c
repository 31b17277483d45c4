// SPDX-License-Identifier: Apache-2.0
// Verifies the learning rate: warm-up, constant, cosine with its end points, and the rates that the PyTorch script of
// tests/golden used.
#include "job/rate.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static bl_job_t make_job(bl_job_lr_schedule_t schedule, int64_t warmup) {
  bl_job_t job = {0};
  job.train.lr = 0.004;
  job.train.min_lr = (bl_optional_real_t){.set = true, .value = 0.0004};
  job.train.lr_schedule = schedule;
  job.train.warmup = warmup;
  job.train.steps = 20;
  return job;
}

static void assert_near(double found, double expected) {
  if (fabs(found - expected) > 1e-15) {
    fail_msg("rate %.17g, expected %.17g", found, expected);
  }
}

static void warms_up_then_stays(void **state) {
  (void)state;
  bl_job_t job = make_job(BL_JOB_LR_CONSTANT, 4);
  assert_near(bl_rate_of_step(&job, 1), 0.001);
  assert_near(bl_rate_of_step(&job, 4), 0.004);
  assert_near(bl_rate_of_step(&job, 5), 0.004);
  assert_near(bl_rate_of_step(&job, 1000), 0.004);
  job.train.warmup = 0;
  assert_near(bl_rate_of_step(&job, 1), 0.004);
}

static void cosine_ends_at_the_minimum(void **state) {
  (void)state;
  bl_job_t job = make_job(BL_JOB_LR_COSINE, 0);
  assert_near(bl_rate_of_step(&job, 10), 0.0022);
  assert_near(bl_rate_of_step(&job, 20), 0.0004);
  assert_near(bl_rate_of_step(&job, 21), 0.0004);
}

static void cosine_is_that_of_the_golden_runs(void **state) {
  (void)state;
  bl_job_t job = make_job(BL_JOB_LR_COSINE, 5);
  assert_near(bl_rate_of_step(&job, 1), 0.0008);
  assert_near(bl_rate_of_step(&job, 5), 0.004);
  assert_near(bl_rate_of_step(&job, 6), 0.00396066568132085);
  assert_near(bl_rate_of_step(&job, 7), 0.0038443818237566814);
  assert_near(bl_rate_of_step(&job, 11), 0.0027562305898749056);
}

static void a_warmup_as_long_as_the_run(void **state) {
  (void)state;
  bl_job_t job = make_job(BL_JOB_LR_COSINE, 20);
  assert_near(bl_rate_of_step(&job, 20), 0.004);
  assert_near(bl_rate_of_step(&job, 21), 0.0004);
  job.train.warmup = 40;
  assert_near(bl_rate_of_step(&job, 20), 0.002);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(warms_up_then_stays),
      cmocka_unit_test(cosine_ends_at_the_minimum),
      cmocka_unit_test(cosine_is_that_of_the_golden_runs),
      cmocka_unit_test(a_warmup_as_long_as_the_run),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
