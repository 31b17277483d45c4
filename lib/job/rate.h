// SPDX-License-Identifier: Apache-2.0
// The learning rate of a step: a pure function of the job, so that it needs no state in a checkpoint.
//
//   warm-up    N <= w:  lr * N / w
//   constant   N > w:   lr
//   cosine     N > w:   min_lr + (lr - min_lr) * (1 + cos(pi t)) / 2,  t = (N - w) / (steps - w)
//
// N counts from 1, w is train.warmup. Cosine ends at min_lr exactly at N = steps and stays there.
// Pure. Thread: any.
#ifndef BALLAST_JOB_RATE_H
#define BALLAST_JOB_RATE_H

#include "config/job.h"

// Returns the rate of step N >= 1 of a parsed job.
double bl_rate_of_step(const bl_job_t *job, uint64_t step);

#endif
