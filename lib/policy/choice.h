// SPDX-License-Identifier: Apache-2.0
// The policy auto of a run: when steps are sampled, when a decision is due, which policy is asked for and why. It
// begins with a step in which a stage parks no more than one block, so that paths that are far too slow cost little;
// then it samples some steps and has the policies that fit weighed (simulate/automatic.h). What it changed to it
// samples at once, and goes back where that turns out slower. Then it rests and samples again, sooner when steps become
// much slower (policy/measurements.h). Where it gave blocks up it parks some again at times: what paths are worth shows
// only where something goes over them.
//
// It decides; the driver program around it records steps, weighs policies and asks for changes (policy/change.h).
//
//   for (each boundary between two steps)
//     switch (bl_choice_boundary(&choice, &now)) {
//     case BL_CHOICE_SAMPLE: record the step that was applied last; then
//       switch (bl_choice_sampled(&choice, &now, steps_with_all_operations)) {
//       case BL_CHOICE_BEGIN:  foresee; if (bl_choice_begun(&choice, &now, &found)) ask for it, bl_choice_asked
//       case BL_CHOICE_DECIDE: weigh;   if (bl_choice_decided(&choice, &now, &found)) ask for it, bl_choice_asked
//       }
//     case BL_CHOICE_TRY:    ask for choice.trial, bl_choice_asked
//     }
//   and when a change that was asked for has ended: bl_choice_answered
//
//   phase     event                                   phase then
//   any       another policy is in force              RESTING, nothing is known (ASKED: stays, for the answer)
//   RESTING   a step at or after `next`               SAMPLING
//   SAMPLING  enough samples, one block parked        ASKED (start), or RESTING until the next step if others change it
//   SAMPLING  enough samples, another one is better   ASKED (change), or RESTING if others change it
//   SAMPLING  enough samples, it stays                RESTING for BL_CHOICE_REST steps
//   RESTING   a trial is due                          ASKED (trial), or RESTING if others change it
//   ASKED     in force                                RESTING, until the next step where it is to be checked
//   ASKED     refused                                 RESTING
//
// Rules:
//   1. Nothing is sampled under another policy than auto, of a step that this driver did not time, twice of a step, or of the
//      first step under a policy, which warms up. The step with one block of a stage parked says enough all the same.
//   2. While something is asked for nothing is sampled, and nothing else asked for.
//   3. What was asked for is checked at once, without rest. What the check finds is not: noise is not to be followed around.
//   4. That steps with one block parked are far too slow is believed from the BL_CHOICE_PROBES-th sample on.
//   5. A trial that is refused is waited for twice as long as before, BL_CHOICE_PATIENCE times; one that was measured is not.
//   6. A trial is asked for only where blocks are given up and that has been checked, and once.
//   7. Steps that have become slow end a rest.
//   8. What is told is about the policy in force.
//
// No I/O, no clock, no allocation. Fields are for reading. Thread: one owner, the driver's loop thread.
#ifndef BALLAST_POLICY_CHOICE_H
#define BALLAST_POLICY_CHOICE_H

#include "policy/history.h"
#include "policy/measurements.h"

#define BL_CHOICE_STEPS    3                   // that are sampled before a decision
#define BL_CHOICE_PROBES   2                   // with one block parked, before paths are taken to be far too slow
#define BL_CHOICE_SAMPLES  8                   // most, of steps that may lack operations
#define BL_CHOICE_REST     50                  // steps before the next samples
#define BL_CHOICE_NEVER    (UINT64_C(1) << 50) // steps
#define BL_CHOICE_PATIENCE 6

typedef enum bl_choice_phase {
  BL_CHOICE_RESTING,  // until step `next`; where another policy than auto is in force for as long as it is
  BL_CHOICE_SAMPLING, // `samples` have been taken
  BL_CHOICE_ASKED,    // for another policy, which is not in force yet
} bl_choice_phase_t;

typedef enum bl_choice_reason {
  BL_CHOICE_START,  // after the step with one block of a stage parked
  BL_CHOICE_CHANGE, // another one is better
  BL_CHOICE_TRIAL,  // to see what paths are worth now
} bl_choice_reason_t;

typedef enum bl_choice_told {
  BL_CHOICE_NOTHING_KNOWN,
  BL_CHOICE_BEGINS, // what the step with one block of a stage parked says
  BL_CHOICE_FOUND,  // what the last samples say, or why there is a trial
} bl_choice_told_t;

typedef struct bl_choice {
  bl_choice_phase_t phase;
  bl_choice_reason_t reason; // ASKED
  bool checks;               // the samples to come are of what was asked for just now
  uint32_t samples;          // SAMPLING
  uint64_t version;          // of the policy in force that this is about; 0: none
  uint64_t next;             // no samples before this step
  uint64_t sampled;          // step that was sampled last
  uint64_t watched;          // step of which `measurements` was told last
  uint64_t trial_at;         // step after which `trial` is asked for; 0: never
  bl_policy_t trial;
  uint64_t measured; // step at which paths were measured last; 0: never
  uint32_t refused;  // trials in a row
  bool found, begins;
} bl_choice_t; // zeroed: of a run in which nothing is known

// What is so at a boundary.
typedef struct bl_choice_now {
  const bl_policy_record_t *in_force; // NULL: none yet
  bool drives;                        // steps run, and others follow
  bool moves;                         // the plan parks blocks or gives them up: there is something to choose
  uint64_t applied;
  double seconds;                  // of that step; 0: not known
  bl_measurements_t *measurements; // borrowed; is told of steps
} bl_choice_now_t;

typedef enum bl_choice_turn {
  BL_CHOICE_NOTHING,
  BL_CHOICE_SAMPLE, // of the step that was applied last
  BL_CHOICE_TRY,    // `trial` is to be asked for
} bl_choice_turn_t;
// Says the same until something has happened. *slower: that steps have become much slower ended a rest.
bl_choice_turn_t bl_choice_boundary(bl_choice_t *choice, const bl_choice_now_t *now, bool *slower);
// Whether the step that begins now will be sampled or tried after.
bool bl_choice_will_look(const bl_choice_t *choice, const bl_choice_now_t *now);

typedef enum bl_choice_due {
  BL_CHOICE_MORE,   // samples are needed
  BL_CHOICE_BEGIN,  // bl_choice_begun is due
  BL_CHOICE_DECIDE, // bl_choice_decided is due
} bl_choice_due_t;
// The step that was applied last has been recorded; `whole` of the samples so far have all operations.
bl_choice_due_t bl_choice_sampled(bl_choice_t *choice, const bl_choice_now_t *now, uint32_t whole);
// It could not be recorded: there are no samples.
void bl_choice_unsampled(bl_choice_t *choice, const bl_choice_now_t *now);
// The samples say what the paths are worth.
void bl_choice_measured(bl_choice_t *choice, uint64_t applied);

// False: steps are so `slow` that another sample is waited for (rule 4). True: what the run goes on with is to be asked
// for.
bool bl_choice_begun(bl_choice_t *choice, bool slow);

typedef struct bl_choice_found {
  bool known;           // false: the samples say nothing, and the policy stays
  bool other;           // another one is better
  bool gives_up;        // under the better one blocks are given up
  bool may_try;         // and `trial` would park some of them
  bl_policy_t trial;    // what to try where it does
  uint64_t trial_after; // steps after which it has cost little enough
} bl_choice_found_t;
// True: the other one is to be asked for.
bool bl_choice_decided(bl_choice_t *choice, const bl_choice_now_t *now, const bl_choice_found_t *found);

// Whether what was to be asked for could be: false: others are changing the policy.
void bl_choice_asked(bl_choice_t *choice, const bl_choice_now_t *now, bl_choice_reason_t reason, bool asked);
// What was asked for is in force as `record`; NULL: it was refused, or the run has ended.
void bl_choice_answered(bl_choice_t *choice, uint64_t applied, const bl_policy_record_t *record);

// What there is to say of the policy in force.
bl_choice_told_t bl_choice_told(const bl_choice_t *choice, const bl_policy_record_t *in_force);

#endif
