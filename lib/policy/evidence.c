// SPDX-License-Identifier: Apache-2.0
#include "policy/evidence.h"

#include "base/sort.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bl_status_t bl_evidence_init(bl_evidence_t *evidence, uint32_t stages) {
  double *all = calloc((size_t)stages * (BL_EVIDENCE_STEPS + 3) + 1, sizeof *all);
  if (all == NULL) {
    return BL_EXHAUSTED;
  }
  *evidence = (bl_evidence_t){.stages = stages, .seconds_per_byte = all};
  evidence->bytes = all + (size_t)stages * BL_EVIDENCE_STEPS;
  evidence->seconds = evidence->bytes + stages;
  evidence->rates = evidence->seconds + stages;
  return BL_OK;
}

void bl_evidence_cleanup(bl_evidence_t *evidence) {
  free(evidence->seconds_per_byte);
  *evidence = (bl_evidence_t){0};
}

// ---- paths

void bl_evidence_begin(bl_evidence_t *evidence) {
  evidence->steps = 0;
  memset(evidence->bytes, 0, evidence->stages * sizeof *evidence->bytes);
  memset(evidence->seconds, 0, evidence->stages * sizeof *evidence->seconds);
}

void bl_evidence_copies(bl_evidence_t *evidence, uint32_t stage, double bytes, double seconds) {
  evidence->bytes[stage] += bytes;
  evidence->seconds[stage] += seconds;
}

void bl_evidence_end_step(bl_evidence_t *evidence) {
  for (uint32_t s = 0; s < evidence->stages && evidence->steps < BL_EVIDENCE_STEPS; s++) {
    bool copied = evidence->bytes[s] > 0 && evidence->seconds[s] > 0;
    evidence->seconds_per_byte[(size_t)s * BL_EVIDENCE_STEPS + evidence->steps] =
        copied ? evidence->seconds[s] / evidence->bytes[s] : 0;
  }
  evidence->steps += evidence->steps < BL_EVIDENCE_STEPS;
  memset(evidence->bytes, 0, evidence->stages * sizeof *evidence->bytes);
  memset(evidence->seconds, 0, evidence->stages * sizeof *evidence->seconds);
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

bool bl_evidence_rates(bl_evidence_t *evidence) {
  double sum = 0;
  uint32_t copied = 0;
  for (uint32_t s = 0; s < evidence->stages; s++) {
    double each = median_above_zero(&evidence->seconds_per_byte[(size_t)s * BL_EVIDENCE_STEPS], evidence->steps);
    evidence->bytes[s] = each;
    sum += each;
    copied += each > 0;
  }
  for (uint32_t s = 0; copied > 0 && s < evidence->stages; s++) {
    evidence->rates[s] = 1 / (evidence->bytes[s] > 0 ? evidence->bytes[s] : sum / copied);
  }
  evidence->known = evidence->known || copied > 0;
  return copied > 0;
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
