// SPDX-License-Identifier: Apache-2.0
#include "plan/evaluate/estimator.h"

#include <math.h>
#include <stddef.h>

static bl_status_t check(const bl_estimate_request_t *r, bl_error_t *err) {
  const struct {
    const char *name;
    double value;
  } numbers[] = {{"batch", r->batch},
                 {"stages", r->stages},
                 {"first micro-batch", r->from.micro_batch},
                 {"second micro-batch", r->to.micro_batch},
                 {"first utilisation", r->from.mfu},
                 {"second utilisation", r->to.mfu}};
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
    if (!isfinite(numbers[i].value) || numbers[i].value <= 0) {
      return bl_error_set(err, BL_INVALID, "%s: must be a number above 0, is %g", numbers[i].name, numbers[i].value);
    }
  }
  double largest = fmax(r->from.micro_batch, r->to.micro_batch);
  if (r->stages < 1 || largest > r->batch) {
    return bl_error_set(err, BL_INVALID, "a batch of %g sequences on %g stages has no micro-batch of %g", r->batch,
                        r->stages, largest);
  }
  const double sizes[] = {r->from.micro_batch, r->to.micro_batch};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    if (fmod(r->batch, sizes[i]) != 0) {
      return bl_error_set(err, BL_INVALID, "a batch of %g sequences is no whole number of micro-batches of %g",
                          r->batch, sizes[i]);
    }
  }
  return BL_OK;
}

static double bubble(double batch, double micro_batch, double ramps) {
  return ramps / (batch / micro_batch + ramps);
}

bl_status_t bl_estimate(const bl_estimate_request_t *request, bl_estimate_t *estimate, bl_error_t *err) {
  bl_status_t status = check(request, err);
  if (status != BL_OK) {
    return status;
  }
  const double b = request->batch, x = request->to.micro_batch, y = request->from.micro_batch;
  const double ramps = request->fills_ramp && x > y ? 0 : (request->stages - 1) / fmax(1, request->chunks);
  estimate->ramps = ramps;
  estimate->ramp = (b + y * ramps) / (b + x * ramps);
  estimate->efficiency = request->to.mfu / request->from.mfu;
  estimate->speedup = estimate->ramp * estimate->efficiency;
  estimate->break_even = 1 / estimate->ramp;
  estimate->bubble_from = bubble(b, y, ramps);
  estimate->bubble_to = bubble(b, x, ramps);
  if (!isfinite(estimate->speedup)) {
    return bl_error_set(err, BL_INVALID, "utilisations %g and %g: their quotient is no number", request->to.mfu,
                        request->from.mfu);
  }
  return BL_OK;
}
