// SPDX-License-Identifier: Apache-2.0
// An upper bound on what a larger micro-batch can gain, from how well one stage alone uses its device at two sizes: the
// estimator of arXiv 2401.02088. A step of B sequences on p stages at micro-batch b takes (B/b + p - 1) T(b), and a
// stage's utilisation (MFU) is proportional to b / T(b), so
//
//   speedup of x over y  <=  [B + y (p - 1)] / [B + x (p - 1)]  *  MFU_stage(x) / MFU_stage(y)
//
// The first factor is the ramp: a larger micro-batch makes fewer, longer steps of the pipeline and a longer bubble. It
// is an upper bound because transfers that make memory for the larger micro-batch are assumed to cost nothing.
//
// The paper's formula is of 1F1B, whose ramp is p - 1 micro-batches (as that of gpipe and eager-1f1b). If a
// micro-batch passes every stage in v chunks or slices, the ramp is at least (p - 1) / v (Narayanan et al., arXiv
// 2104.04473, section 2.2), and this takes the place of p - 1. Zero-bubble schedules fill their ramp with W, and two
// pipes fill that of each other: it is between 0 and (p - 1) / v, and the bound takes the end at which the change
// gains more. Stages are assumed to take equally long.
//
//   bl_estimate_t e;
//   bl_estimate(&(bl_estimate_request_t){.batch = 128, .stages = 8, .from = {1, 37.8}, .to = {2, 55.2}}, &e, &err);
//   e.speedup == 1.388...
//
// Pure. Thread: any.
#ifndef BALLAST_PLAN_ESTIMATOR_H
#define BALLAST_PLAN_ESTIMATOR_H

#include "base/error.h"

#include <stdbool.h>

typedef struct bl_estimate_point {
  double micro_batch; // sequences
  double mfu;         // utilisation of a stage alone; any unit, the same for both points
} bl_estimate_point_t;

typedef struct bl_estimate_request {
  double batch; // sequences of a step, B
  double stages;
  double chunks;                // v: chunks x slices of a stage; 0: 1
  bool fills_ramp;              // zero-bubble schedules, and those with two pipes
  bl_estimate_point_t from, to; // y and x
} bl_estimate_request_t;

typedef struct bl_estimate {
  double ramps;       // (p - 1) / v, or 0
  double ramp;        // [B + y ramps] / [B + x ramps]
  double efficiency;  // MFU(x) / MFU(y)
  double speedup;     // the product
  double break_even;  // `efficiency` must exceed this for any gain
  double bubble_from; // share of the step in the ramp, ramps / (B/b + ramps)
  double bubble_to;
} bl_estimate_t;

// BL_INVALID names the number that is not positive, or the micro-batch that is larger than the batch or does not divide
// it.
BL_MUST_USE bl_status_t bl_estimate(const bl_estimate_request_t *request, bl_estimate_t *estimate, bl_error_t *err);

#endif
