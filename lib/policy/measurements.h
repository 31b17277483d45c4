// SPDX-License-Identifier: Apache-2.0
// What the policy auto learns from the steps of a run beyond the times of operations: how fast the paths to stores are,
// whether steps have become slow, and how far off its predictions were. Single measurements are noisy, so a median or
// several in a row are needed, and one disturbed step changes nothing.
//
//   bl_measurements_begin(&measurements);
//   for (each sampled step)
//     for (each stage) bl_measurements_copies(&measurements, BL_MEASUREMENTS_PEERS, stage, bytes, seconds);
//     bl_measurements_end_step(&measurements);
//   if (bl_measurements_rates(&measurements)) ... bl_measurements_tier(&measurements, BL_MEASUREMENTS_PEERS)[stage] ...
//
// Predictions: if steps under a plan took 1.04 times what its simulation predicts, that ratio is expected to stay. A
// plan that was never in force is assumed to have the ratio of the plan in force. The ratios of the other plans fade
// towards that one, so that they are tried again in time.
//
// Pure. Thread: belongs to its caller.
#ifndef BALLAST_POLICY_MEASUREMENTS_H
#define BALLAST_POLICY_MEASUREMENTS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BL_MEASUREMENTS_STEPS    8    // maximum of sampled steps in a row
#define BL_MEASUREMENTS_PLANS    10   // plans whose predictions are kept
#define BL_MEASUREMENTS_SLOWER   1.3  // times the expected time: a slow step
#define BL_MEASUREMENTS_SLOW     3    // slow steps in a row: steps have become slow
#define BL_MEASUREMENTS_FADE     0.9  // for the ratio of a plan that is not in force, per sampling
#define BL_MEASUREMENTS_RISE     0.25 // how far a ratio follows a slower sampling: disturbances only slow steps down
#define BL_MEASUREMENTS_FARTHEST 2.0  // limit of a ratio, and its inverse

// Where blocks are parked.
typedef enum { BL_MEASUREMENTS_PEERS, BL_MEASUREMENTS_HOST, BL_MEASUREMENTS_TIERS } bl_measurements_tier_t;

typedef struct bl_measurements {
  uint32_t stages;
  double *seconds_per_byte;             // [tiers][stages][BL_MEASUREMENTS_STEPS] of one sampling; 0: nothing was copied
  double *bytes, *seconds;              // [tiers][stages] of the current step
  uint32_t steps;                       // of the sampling
  double *rates;                        // [tiers][stages] bytes per second, if ever measured
  bool known[BL_MEASUREMENTS_TIERS];    // whether `rates` has those of the tier
  double expected;                      // seconds of a step; 0: not known
  uint32_t slow;                        // slow steps in a row
  double ratios[BL_MEASUREMENTS_PLANS]; // measured step over the simulated one; 0: never in force
} bl_measurements_t;

BL_MUST_USE bl_status_t bl_measurements_init(bl_measurements_t *measurements, uint32_t stages); // BL_EXHAUSTED
void bl_measurements_cleanup(bl_measurements_t *measurements);                                  // a zeroed one is fine

// ---- paths

void bl_measurements_begin(bl_measurements_t *measurements);
// Adds what a stage copied to stores of the tier and back in the step, and how long that took.
void bl_measurements_copies(bl_measurements_t *measurements, bl_measurements_tier_t tier, uint32_t stage, double bytes,
                            double seconds);
void bl_measurements_end_step(bl_measurements_t *measurements); // not counted beyond BL_MEASUREMENTS_STEPS
// Computes the rate of every tier and stage as the median over the sampled steps. A stage that copied nothing gets the
// mean time per byte of the stages that did. A tier that no stage used keeps its rates. Returns false if no stage
// copied anything.
bool bl_measurements_rates(bl_measurements_t *measurements);
// Returns the rates [stages] of a tier, or those of the other tier if nothing is known of it. NULL: nothing is known of
// either.
const double *bl_measurements_tier(const bl_measurements_t *measurements, bl_measurements_tier_t tier);

// ---- steps

// Takes the times of steps one after the other. Returns true when they have become slow. It then forgets the count of
// slow steps and the ratios.
bool bl_measurements_step(bl_measurements_t *measurements, double seconds);

// ---- predictions

// Steps under `plan` took `measured`, its simulation predicts `simulated`. Both must be above 0, otherwise nothing is
// learned.
void bl_measurements_compare(bl_measurements_t *measurements, size_t plan, double simulated, double measured);
// Returns the factor for a simulated step of `plan` while `in_force` is in force (BL_MEASUREMENTS_PLANS: not known
// which).
double bl_measurements_ratio(const bl_measurements_t *measurements, size_t plan, size_t in_force);
void bl_measurements_forget(bl_measurements_t *measurements); // all but the rates

#endif
