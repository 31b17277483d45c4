// SPDX-License-Identifier: Apache-2.0
#include "policy/measurements.h"

#include "base/sort.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static size_t rows_of(const bl_measurements_t *measurements) {
  return (size_t)BL_MEASUREMENTS_TIERS * measurements->stages;
}

bl_status_t bl_measurements_init(bl_measurements_t *measurements, uint32_t stages) {
  bl_measurements_t made = {.stages = stages};
  const size_t rows = rows_of(&made);
  made.seconds_per_byte = calloc(rows * (BL_MEASUREMENTS_STEPS + 3) + 1, sizeof *made.seconds_per_byte);
  if (made.seconds_per_byte == NULL) {
    return BL_EXHAUSTED;
  }
  made.bytes = made.seconds_per_byte + rows * BL_MEASUREMENTS_STEPS;
  made.seconds = made.bytes + rows;
  made.rates = made.seconds + rows;
  *measurements = made;
  return BL_OK;
}

void bl_measurements_cleanup(bl_measurements_t *measurements) {
  free(measurements->seconds_per_byte);
  *measurements = (bl_measurements_t){0};
}

// ---- paths

static void begin_step(bl_measurements_t *measurements) {
  memset(measurements->bytes, 0, rows_of(measurements) * sizeof *measurements->bytes);
  memset(measurements->seconds, 0, rows_of(measurements) * sizeof *measurements->seconds);
}

void bl_measurements_begin(bl_measurements_t *measurements) {
  measurements->steps = 0;
  begin_step(measurements);
}

void bl_measurements_copies(bl_measurements_t *measurements, bl_measurements_tier_t tier, uint32_t stage, double bytes,
                            double seconds) {
  const size_t row = (size_t)tier * measurements->stages + stage;
  measurements->bytes[row] += bytes;
  measurements->seconds[row] += seconds;
}

void bl_measurements_end_step(bl_measurements_t *measurements) {
  for (size_t row = 0; row < rows_of(measurements) && measurements->steps < BL_MEASUREMENTS_STEPS; row++) {
    bool copied = measurements->bytes[row] > 0 && measurements->seconds[row] > 0;
    measurements->seconds_per_byte[row * BL_MEASUREMENTS_STEPS + measurements->steps] =
        copied ? measurements->seconds[row] / measurements->bytes[row] : 0;
  }
  measurements->steps += measurements->steps < BL_MEASUREMENTS_STEPS;
  begin_step(measurements);
}

// Returns the median of the values above 0, the smaller one of two in the middle. 0: there is none.
static double median_above_zero(const double *values, size_t count) {
  double sorted[BL_MEASUREMENTS_STEPS];
  size_t used = 0;
  for (size_t i = 0; i < count; i++) {
    if (values[i] > 0) {
      sorted[used++] = values[i];
    }
  }
  bl_sort_f64(sorted, used);
  return used > 0 ? sorted[(used - 1) / 2] : 0;
}

static bool rates_of_tier(bl_measurements_t *measurements, size_t first) {
  double sum = 0;
  uint32_t copied = 0;
  for (size_t row = first; row < first + measurements->stages; row++) {
    double each = median_above_zero(&measurements->seconds_per_byte[row * BL_MEASUREMENTS_STEPS], measurements->steps);
    measurements->bytes[row] = each;
    sum += each;
    copied += each > 0;
  }
  for (size_t row = first; copied > 0 && row < first + measurements->stages; row++) {
    measurements->rates[row] = 1 / (measurements->bytes[row] > 0 ? measurements->bytes[row] : sum / copied);
  }
  return copied > 0;
}

bool bl_measurements_rates(bl_measurements_t *measurements) {
  bool copied = false;
  for (size_t tier = 0; tier < BL_MEASUREMENTS_TIERS; tier++) {
    const bool here = rates_of_tier(measurements, tier * measurements->stages);
    measurements->known[tier] = measurements->known[tier] || here;
    copied = copied || here;
  }
  return copied;
}

const double *bl_measurements_tier(const bl_measurements_t *measurements, bl_measurements_tier_t tier) {
  for (size_t i = 0; i < BL_MEASUREMENTS_TIERS; i++) {
    const size_t looked = (tier + i) % BL_MEASUREMENTS_TIERS;
    if (measurements->known[looked]) {
      return &measurements->rates[looked * measurements->stages];
    }
  }
  return NULL;
}

// ---- steps

bool bl_measurements_step(bl_measurements_t *measurements, double seconds) {
  bool slow = measurements->expected > 0 && seconds > BL_MEASUREMENTS_SLOWER * measurements->expected;
  measurements->slow = slow ? measurements->slow + 1 : 0;
  if (measurements->slow < BL_MEASUREMENTS_SLOW) {
    return false;
  }
  measurements->slow = 0;
  memset(measurements->ratios, 0, sizeof measurements->ratios);
  return true;
}

// ---- predictions

void bl_measurements_compare(bl_measurements_t *measurements, size_t plan, double simulated, double measured) {
  if (plan >= BL_MEASUREMENTS_PLANS || !(simulated > 0) || !(measured > 0)) {
    return;
  }
  double now = fmin(fmax(measured / simulated, 1 / BL_MEASUREMENTS_FARTHEST), BL_MEASUREMENTS_FARTHEST);
  double before = measurements->ratios[plan];
  double ratio = before > 0 && now > before ? before + BL_MEASUREMENTS_RISE * (now - before) : now;
  measurements->ratios[plan] = ratio;
  for (size_t i = 0; i < BL_MEASUREMENTS_PLANS; i++) {
    if (i != plan && measurements->ratios[i] > 0) {
      measurements->ratios[i] = ratio + BL_MEASUREMENTS_FADE * (measurements->ratios[i] - ratio);
    }
  }
}

double bl_measurements_ratio(const bl_measurements_t *measurements, size_t plan, size_t in_force) {
  double own = plan < BL_MEASUREMENTS_PLANS ? measurements->ratios[plan] : 0;
  double present = in_force < BL_MEASUREMENTS_PLANS ? measurements->ratios[in_force] : 0;
  return own > 0 ? own : present > 0 ? present : 1;
}

void bl_measurements_forget(bl_measurements_t *measurements) {
  memset(measurements->ratios, 0, sizeof measurements->ratios);
  measurements->expected = 0;
  measurements->slow = measurements->steps = 0;
}
