// SPDX-License-Identifier: Apache-2.0
// State machine of the policy auto: when steps are sampled, when a decision is due, which policy is requested and why.
// It begins with a step in which a stage parks at most one block, so that paths that are far too slow cost little. Then
// it samples some steps and has the policies that fit compared (simulate/automatic.h). After a change it samples at
// once, and changes back if the new policy is slower. Then it rests before it samples again, for a shorter time if
// steps become much slower (policy/measurements.h). While it drops blocks, it tries to park some from time to time:
// only transfers show how fast the paths are.
//
// It decides; the driver program around it records steps, compares policies and requests changes (policy/change.h).
//
//   for (each boundary between two steps)
//     switch (bl_choice_boundary(&choice, &now, &slower)) {
//     case BL_CHOICE_SAMPLE: record the step that was applied last; then
//       switch (bl_choice_sampled(&choice, &now, steps_with_all_operations)) {
//       case BL_CHOICE_BEGIN:  predict; if (bl_choice_begun(&choice, slow)) request it, bl_choice_asked
//       case BL_CHOICE_DECIDE: compare; if (bl_choice_decided(&choice, &now, &found)) request it, bl_choice_asked
//       }
//     case BL_CHOICE_TRY:    request choice.trial, bl_choice_asked
//     }
//   and when a change that was requested has ended: bl_choice_answered
//
//   phase     event                                   phase then
//   any       another policy is in force              RESTING, nothing is known (ASKED: stays, for the answer)
//   RESTING   a step at or after `next`               SAMPLING
//   SAMPLING  enough samples, one block parked        ASKED (start), or RESTING for one step if another change waits
//   SAMPLING  enough samples, another one is better   ASKED (change), or RESTING if another change waits
//   SAMPLING  enough samples, it stays                RESTING for BL_CHOICE_REST steps
//   RESTING   a trial is due                          ASKED (trial), or RESTING if another change waits
//   ASKED     in force                                RESTING, until the next step if it is to be checked
//   ASKED     refused                                 RESTING
//
// Rules:
//   1. A step is sampled only under auto, only if this driver timed it, and only once. The first step under a policy is
//      not sampled, because it warms up; but the step with one block of a stage parked is good enough.
//   2. While a request is open, no step is sampled and nothing else is requested.
//   3. A change is checked at once, without rest. A change that results from the check is not: noise must not cause a
//      chain of changes.
//   4. "Steps with one block parked are far too slow" is believed from the BL_CHOICE_PROBES-th sample on.
//   5. Each refusal of a trial doubles the wait before the next one, BL_CHOICE_PATIENCE times at most. A trial that was
//      measured resets that.
//   6. A trial is requested only while blocks are dropped and after that policy was checked, and only once.
//   7. Steps that have become slow end a rest.
//   8. What is reported is about the policy in force.
//
// No I/O, no clock, no allocation. Fields are for reading. Thread: one owner, the driver's loop thread.
#ifndef BALLAST_POLICY_CHOICE_H
#define BALLAST_POLICY_CHOICE_H

#include "policy/history.h"
#include "policy/measurements.h"

#define BL_CHOICE_STEPS    3                   // sampled before a decision
#define BL_CHOICE_PROBES   2                   // with one block parked, before paths count as far too slow
#define BL_CHOICE_SAMPLES  8                   // maximum, if steps lack operations
#define BL_CHOICE_REST     50                  // steps before the next samples
#define BL_CHOICE_NEVER    (UINT64_C(1) << 50) // steps
#define BL_CHOICE_PATIENCE 6

typedef enum bl_choice_phase {
  BL_CHOICE_RESTING,  // until step `next`; under another policy than auto, as long as it is in force
  BL_CHOICE_SAMPLING, // `samples` have been taken
  BL_CHOICE_ASKED,    // another policy was requested and is not in force yet
} bl_choice_phase_t;

typedef enum bl_choice_reason {
  BL_CHOICE_START,  // after the step with one block of a stage parked
  BL_CHOICE_CHANGE, // another one is better
  BL_CHOICE_TRIAL,  // to see what paths are worth now
} bl_choice_reason_t;

typedef enum bl_choice_told {
  BL_CHOICE_NOTHING_KNOWN,
  BL_CHOICE_BEGINS, // report the prediction from the step with one block of a stage parked
  BL_CHOICE_FOUND,  // report what the last samples showed, or why there is a trial
} bl_choice_told_t;

typedef struct bl_choice {
  bl_choice_phase_t phase;
  bl_choice_reason_t reason; // ASKED
  bool checks;               // the next samples check what was requested last
  uint32_t samples;          // SAMPLING
  uint64_t version;          // of the policy in force that this state is about; 0: none
  uint64_t next;             // no samples before this step
  uint64_t sampled;          // last step that was sampled
  uint64_t watched;          // last step that was passed to `measurements`
  uint64_t trial_at;         // step after which `trial` is requested; 0: never
  bl_policy_t trial;
  uint64_t measured; // last step at which paths were measured; 0: never
  uint32_t refused;  // trials refused in a row
  bool found, begins;
} bl_choice_t; // zeroed: nothing is known of the run

// The situation at a boundary.
typedef struct bl_choice_now {
  const bl_policy_record_t *in_force; // NULL: none yet
  bool drives;                        // steps run, and more follow
  bool moves;                         // the plan parks or drops blocks: there is something to choose
  uint64_t applied;
  double seconds;                  // of that step; 0: not known
  bl_measurements_t *measurements; // borrowed; receives the times of steps
} bl_choice_now_t;

typedef enum bl_choice_action {
  BL_CHOICE_NOTHING,
  BL_CHOICE_SAMPLE, // of the step that was applied last
  BL_CHOICE_TRY,    // request `trial`
} bl_choice_action_t;
// Returns the same until one of the functions below is called. *slower: steps have become much slower, which ended a
// rest.
bl_choice_action_t bl_choice_boundary(bl_choice_t *choice, const bl_choice_now_t *now, bool *slower);
// Returns whether the step that begins now will be sampled, or followed by a trial.
bool bl_choice_will_look(const bl_choice_t *choice, const bl_choice_now_t *now);

typedef enum bl_choice_due {
  BL_CHOICE_MORE,   // samples are needed
  BL_CHOICE_BEGIN,  // call bl_choice_begun
  BL_CHOICE_DECIDE, // call bl_choice_decided
} bl_choice_due_t;
// The step that was applied last has been recorded. `whole`: samples so far that have all operations.
bl_choice_due_t bl_choice_sampled(bl_choice_t *choice, const bl_choice_now_t *now, uint32_t whole);
// The step could not be recorded: there are no samples.
void bl_choice_unsampled(bl_choice_t *choice, const bl_choice_now_t *now);
// The samples show how fast the paths are.
void bl_choice_measured(bl_choice_t *choice, uint64_t applied);

// Returns false if steps are so `slow` that another sample is needed (rule 4), true if the policy to continue with is
// to be requested.
bool bl_choice_begun(bl_choice_t *choice, bool slow);

typedef struct bl_choice_found {
  bool known;           // false: the samples show nothing, and the policy stays
  bool other;           // another policy is better
  bool gives_up;        // the better policy drops blocks
  bool may_try;         // and `trial` would park some of them
  bl_policy_t trial;    // what to try if it does
  uint64_t trial_after; // steps after which the trial costs little enough
} bl_choice_found_t;
// Returns true if the other policy is to be requested.
bool bl_choice_decided(bl_choice_t *choice, const bl_choice_now_t *now, const bl_choice_found_t *found);

// Reports whether the request was accepted. False: another change is waiting.
void bl_choice_asked(bl_choice_t *choice, const bl_choice_now_t *now, bl_choice_reason_t reason, bool asked);
// Reports how the request ended: `record` is in force. NULL: it was refused, or the run has ended.
void bl_choice_answered(bl_choice_t *choice, uint64_t applied, const bl_policy_record_t *record);

// Returns what to report of the policy in force.
bl_choice_told_t bl_choice_told(const bl_choice_t *choice, const bl_policy_record_t *in_force);

#endif
