// SPDX-License-Identifier: Apache-2.0
// What the steps of a run say to the policy auto beyond the times of operations: how fast the paths to stores are,
// whether steps have become slow, and how far off its predictions were. Measured times lie: of everything a median or
// several in a row are needed, so that one disturbed step changes nothing.
//
//   bl_measurements_begin(&measurements);
//   for (each step that is looked at)
//     for (each stage) bl_measurements_copies(&measurements, BL_MEASUREMENTS_PEERS, stage, bytes, seconds);
//     bl_measurements_end_step(&measurements);
//   if (bl_measurements_rates(&measurements)) ... bl_measurements_tier(&measurements, BL_MEASUREMENTS_PEERS)[stage] ...
//
// Predictions: a plan under which steps took 1.04 times what its simulation says is taken to go on so. One that was
// never in force is taken to be as far off as the one that is; what is known of others fades towards that, so that they
// are tried again some day.
//
// Pure. Thread: belongs to its caller.
#ifndef BALLAST_POLICY_MEASUREMENTS_H
#define BALLAST_POLICY_MEASUREMENTS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BL_MEASUREMENTS_STEPS    8    // most steps of one look
#define BL_MEASUREMENTS_PLANS    10   // of which predictions are kept
#define BL_MEASUREMENTS_SLOWER   1.3  // times what is expected: a slow step
#define BL_MEASUREMENTS_SLOW     3    // in a row: steps have become slow
#define BL_MEASUREMENTS_FADE     0.9  // of what is known of a plan that is not in force, from look to look
#define BL_MEASUREMENTS_RISE     0.25 // how far a ratio follows a look that was slower: others disturb, nobody helps
#define BL_MEASUREMENTS_FARTHEST 2.0  // a prediction is taken to be off by no more than so many times, either way

// Where blocks are parked.
typedef enum { BL_MEASUREMENTS_PEERS, BL_MEASUREMENTS_HOST, BL_MEASUREMENTS_TIERS } bl_measurements_tier_t;

typedef struct bl_measurements {
  uint32_t stages;
  double *seconds_per_byte;             // [tiers][stages][BL_MEASUREMENTS_STEPS] of one look; 0: nothing was copied
  double *bytes, *seconds;              // [tiers][stages] of the step under way
  uint32_t steps;                       // of the look
  double *rates;                        // [tiers][stages] bytes per second, as far as they were ever measured
  bool known[BL_MEASUREMENTS_TIERS];    // those of `rates` are
  double expected;                      // seconds of a step; 0: not known
  uint32_t slow;                        // steps in a row that took far longer
  double ratios[BL_MEASUREMENTS_PLANS]; // measured step over the simulated one; 0: never in force
} bl_measurements_t;

BL_MUST_USE bl_status_t bl_measurements_init(bl_measurements_t *measurements, uint32_t stages); // BL_EXHAUSTED
void bl_measurements_cleanup(bl_measurements_t *measurements);                                  // a zeroed one is fine

// ---- paths

void bl_measurements_begin(bl_measurements_t *measurements);
// What a stage copied to stores of the tier and back in the step, and how long that took.
void bl_measurements_copies(bl_measurements_t *measurements, bl_measurements_tier_t tier, uint32_t stage, double bytes,
                            double seconds);
void bl_measurements_end_step(bl_measurements_t *measurements); // beyond BL_MEASUREMENTS_STEPS: counts no more
// Of every tier and stage the median over the steps of the look; a stage that copied nothing has that of all that did.
// False: nobody copied anything, and what is known from before stays, as it does of a tier that nobody used.
bool bl_measurements_rates(bl_measurements_t *measurements);
// [stages] Rates of a tier, or while nothing is known of it those of the other one; NULL: nothing is known of either.
const double *bl_measurements_tier(const bl_measurements_t *measurements, bl_measurements_tier_t tier);

// ---- steps

// One after the other: true when they have become slow, which is then forgotten along with what predictions were worth.
bool bl_measurements_step(bl_measurements_t *measurements, double seconds);

// ---- predictions

// Steps under the plan took `measured`, its simulation says `simulated`; both above 0, else nothing is learnt.
void bl_measurements_compare(bl_measurements_t *measurements, size_t plan, double simulated, double measured);
// What to multiply a simulated step of `plan` by while `in_force` is in force (BL_MEASUREMENTS_PLANS: not known which).
double bl_measurements_ratio(const bl_measurements_t *measurements, size_t plan, size_t in_force);
void bl_measurements_forget(bl_measurements_t *measurements); // all but the rates

#endif
