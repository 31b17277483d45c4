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
//   bl_estimate_t e;
//   bl_estimate(&(bl_estimate_request_t){.batch = 128, .stages = 8, .from = {1, 37.8}, .to = {2, 55.2}}, &e, &err);
//   e.speedup == 1.388...
//
// Pure. Thread: any.
#ifndef BALLAST_PLAN_ESTIMATOR_H
#define BALLAST_PLAN_ESTIMATOR_H

#include "base/error.h"

typedef struct bl_estimate_point {
  double micro_batch; // sequences
  double mfu;         // utilisation of a stage alone; any unit, the same for both points
} bl_estimate_point_t;

typedef struct bl_estimate_request {
  double batch; // sequences of a step, B
  double stages;
  bl_estimate_point_t from, to; // y and x
} bl_estimate_request_t;

typedef struct bl_estimate {
  double ramp;        // [B + y (p - 1)] / [B + x (p - 1)]
  double efficiency;  // MFU(x) / MFU(y)
  double speedup;     // the product
  double break_even;  // `efficiency` must exceed this for any gain
  double bubble_from; // share of the step in the ramp, (p - 1) / (B/b + p - 1)
  double bubble_to;
} bl_estimate_t;

// BL_INVALID names the number that is not positive, or the micro-batch that is larger than the batch or does not divide
// it.
BL_MUST_USE bl_status_t bl_estimate(const bl_estimate_request_t *request, bl_estimate_t *estimate, bl_error_t *err);

#endif
