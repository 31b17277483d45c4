// SPDX-License-Identifier: Apache-2.0
#include "policy/evidence.h"

#include "base/sort.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static size_t rows_of(const bl_evidence_t *evidence) {
  return (size_t)BL_EVIDENCE_TIERS * evidence->stages;
}

bl_status_t bl_evidence_init(bl_evidence_t *evidence, uint32_t stages) {
  bl_evidence_t made = {.stages = stages};
  const size_t rows = rows_of(&made);
  made.seconds_per_byte = calloc(rows * (BL_EVIDENCE_STEPS + 3) + 1, sizeof *made.seconds_per_byte);
  if (made.seconds_per_byte == NULL) {
    return BL_EXHAUSTED;
  }
  made.bytes = made.seconds_per_byte + rows * BL_EVIDENCE_STEPS;
  made.seconds = made.bytes + rows;
  made.rates = made.seconds + rows;
  *evidence = made;
  return BL_OK;
}

void bl_evidence_cleanup(bl_evidence_t *evidence) {
  free(evidence->seconds_per_byte);
  *evidence = (bl_evidence_t){0};
}

// ---- paths

static void begin_step(bl_evidence_t *evidence) {
  memset(evidence->bytes, 0, rows_of(evidence) * sizeof *evidence->bytes);
  memset(evidence->seconds, 0, rows_of(evidence) * sizeof *evidence->seconds);
}

void bl_evidence_begin(bl_evidence_t *evidence) {
  evidence->steps = 0;
  begin_step(evidence);
}

void bl_evidence_copies(bl_evidence_t *evidence, bl_evidence_tier_t tier, uint32_t stage, double bytes,
                        double seconds) {
  const size_t row = (size_t)tier * evidence->stages + stage;
  evidence->bytes[row] += bytes;
  evidence->seconds[row] += seconds;
}

void bl_evidence_end_step(bl_evidence_t *evidence) {
  for (size_t row = 0; row < rows_of(evidence) && evidence->steps < BL_EVIDENCE_STEPS; row++) {
    bool copied = evidence->bytes[row] > 0 && evidence->seconds[row] > 0;
    evidence->seconds_per_byte[row * BL_EVIDENCE_STEPS + evidence->steps] =
        copied ? evidence->seconds[row] / evidence->bytes[row] : 0;
  }
  evidence->steps += evidence->steps < BL_EVIDENCE_STEPS;
  begin_step(evidence);
}

// Of those above 0; 0: there is none. Of two in the middle the smaller one.
static double median_above_zero(const double *values, size_t count) {
  double sorted[BL_EVIDENCE_STEPS];
  size_t used = 0;
  for (size_t i = 0; i < count; i++) {
    if (values[i] > 0) {
      sorted[used++] = values[i];
    }
  }
  bl_sort_f64(sorted, used);
  return used > 0 ? sorted[(used - 1) / 2] : 0;
}

static bool rates_of_tier(bl_evidence_t *evidence, size_t first) {
  double sum = 0;
  uint32_t copied = 0;
  for (size_t row = first; row < first + evidence->stages; row++) {
    double each = median_above_zero(&evidence->seconds_per_byte[row * BL_EVIDENCE_STEPS], evidence->steps);
    evidence->bytes[row] = each;
    sum += each;
    copied += each > 0;
  }
  for (size_t row = first; copied > 0 && row < first + evidence->stages; row++) {
    evidence->rates[row] = 1 / (evidence->bytes[row] > 0 ? evidence->bytes[row] : sum / copied);
  }
  return copied > 0;
}

bool bl_evidence_rates(bl_evidence_t *evidence) {
  bool copied = false;
  for (size_t tier = 0; tier < BL_EVIDENCE_TIERS; tier++) {
    const bool here = rates_of_tier(evidence, tier * evidence->stages);
    evidence->known[tier] = evidence->known[tier] || here;
    copied = copied || here;
  }
  return copied;
}

const double *bl_evidence_tier(const bl_evidence_t *evidence, bl_evidence_tier_t tier) {
  for (size_t i = 0; i < BL_EVIDENCE_TIERS; i++) {
    const size_t looked = (tier + i) % BL_EVIDENCE_TIERS;
    if (evidence->known[looked]) {
      return &evidence->rates[looked * evidence->stages];
    }
  }
  return NULL;
}

// ---- steps

bool bl_evidence_step(bl_evidence_t *evidence, double seconds) {
  bool slow = evidence->expected > 0 && seconds > BL_EVIDENCE_SLOWER * evidence->expected;
  evidence->slow = slow ? evidence->slow + 1 : 0;
  if (evidence->slow < BL_EVIDENCE_SLOW) {
    return false;
  }
  evidence->slow = 0;
  memset(evidence->ratios, 0, sizeof evidence->ratios);
  return true;
}

// ---- predictions

void bl_evidence_compare(bl_evidence_t *evidence, size_t plan, double simulated, double measured) {
  if (plan >= BL_EVIDENCE_PLANS || !(simulated > 0) || !(measured > 0)) {
    return;
  }
  double now = fmin(fmax(measured / simulated, 1 / BL_EVIDENCE_FARTHEST), BL_EVIDENCE_FARTHEST);
  double before = evidence->ratios[plan];
  double ratio = before > 0 && now > before ? before + BL_EVIDENCE_RISE * (now - before) : now;
  evidence->ratios[plan] = ratio;
  for (size_t i = 0; i < BL_EVIDENCE_PLANS; i++) {
    if (i != plan && evidence->ratios[i] > 0) {
      evidence->ratios[i] = ratio + BL_EVIDENCE_FADE * (evidence->ratios[i] - ratio);
    }
  }
}

double bl_evidence_ratio(const bl_evidence_t *evidence, size_t plan, size_t in_force) {
  double own = plan < BL_EVIDENCE_PLANS ? evidence->ratios[plan] : 0;
  double present = in_force < BL_EVIDENCE_PLANS ? evidence->ratios[in_force] : 0;
  return own > 0 ? own : present > 0 ? present : 1;
}

void bl_evidence_forget(bl_evidence_t *evidence) {
  memset(evidence->ratios, 0, sizeof evidence->ratios);
  evidence->expected = 0;
  evidence->slow = evidence->steps = 0;
}
