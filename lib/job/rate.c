// SPDX-License-Identifier: Apache-2.0
#include "job/rate.h"

#include <math.h>

static const double pi = 3.14159265358979323846;

double bl_rate_of_step(const bl_job_t *job, uint64_t step) {
  double lr = job->train.lr;
  uint64_t warmup = (uint64_t)job->train.warmup, steps = (uint64_t)job->train.steps;
  if (step <= warmup) {
    return lr * (double)step / (double)warmup;
  }
  if (job->train.lr_schedule == BL_JOB_LR_CONSTANT) {
    return lr;
  }
  double minimum = job->train.min_lr.value;
  if (step >= steps) {
    return minimum;
  }
  double progress = (double)(step - warmup) / (double)(steps - warmup);
  return minimum + (lr - minimum) * 0.5 * (1.0 + cos(pi * progress));
}
