// SPDX-License-Identifier: Apache-2.0
// What happened in a run, as numbered events. Watchers can read them from any point on. Revisions count from 1.
//
// The newest BL_RUN_JOURNAL_EVENTS are kept, so a watcher that connects late misses the oldest. Memory grows with the
// events up to that bound. Thread: one owner, the loop's.
#ifndef BALLAST_DRIVER_RUN_JOURNAL_H
#define BALLAST_DRIVER_RUN_JOURNAL_H

#include "policy/history.h"
#include "rank_vote.h"

#include <limits.h>

// At 8 stages a step takes about 700 bytes: 45 MB if full. Bounds the memory of a run of a million steps.
#define BL_RUN_JOURNAL_EVENTS 65536
#define BL_PHASE_BYTES        16

typedef struct bl_stage_share {
  int64_t process; // pid
  bl_stage_counters_t counters;
} bl_stage_share_t;

typedef struct bl_store_share {
  int64_t process; // pid, 0: not known
  bool of_host;
  uint32_t device; // rank of its device; for a host store its number among the host stores
  uint32_t lent_slots, peak_leased;
} bl_store_share_t;

typedef struct bl_step_event {
  uint64_t step;
  double loss, grad_norm;
  uint64_t tokens;
  double seconds;
  bl_policy_record_t ran_under; // the policy, including what auto stood for; version 0: not known
  bl_stage_share_t *stages;     // [stage_count]
  size_t stage_count;
  bl_store_share_t *stores; // [store_count], those of devices, then those of hosts
  size_t store_count;
  uint64_t unplanned_recomputes; // blocks that stages recomputed although the policy did not drop them
} bl_step_event_t;

typedef struct bl_validation_event {
  uint64_t step;
  double loss;
  uint64_t tokens;
} bl_validation_event_t;

typedef struct bl_phase_event {
  char phase[BL_PHASE_BYTES];
  char error[BL_ERROR_TEXT_BYTES];
  int32_t exit_code;
} bl_phase_event_t;

// A checkpoint was committed, or failed.
typedef struct bl_checkpoint_event {
  uint64_t step;
  uint64_t bytes;
  double seconds, stopped_seconds; // from the copy to the commit; the share during which training stopped
  char folder[PATH_MAX];
  char error[BL_ERROR_TEXT_BYTES]; // "": committed
} bl_checkpoint_event_t;

typedef enum {
  BL_EVENT_STEP,
  BL_EVENT_VALIDATION,
  BL_EVENT_PHASE,
  BL_EVENT_PLAN,
  BL_EVENT_CHECKPOINT,
} bl_event_kind_t;

typedef struct bl_event {
  uint64_t revision;
  bl_event_kind_t kind;
  bl_step_event_t step;              // BL_EVENT_STEP
  bl_validation_event_t validation;  // BL_EVENT_VALIDATION
  bl_phase_event_t *phase;           // BL_EVENT_PHASE
  bl_checkpoint_event_t *checkpoint; // BL_EVENT_CHECKPOINT
} bl_event_t;                        // BL_EVENT_PLAN: the run itself has it, see driver.h

typedef struct bl_run_journal {
  bl_event_t *events; // ring
  size_t capacity, first, count;
  uint64_t revision; // of the newest event, 0: none
} bl_run_journal_t;

BL_MUST_USE bl_status_t bl_run_journal_init(bl_run_journal_t *journal);
void bl_run_journal_cleanup(bl_run_journal_t *journal);

// Each appends one event. If memory is exhausted, the event is lost and logged, and the run continues.
void bl_run_journal_add_step(bl_run_journal_t *journal, const bl_step_event_t *step); // copies `stages` and `stores`
void bl_run_journal_add_validation(bl_run_journal_t *journal, const bl_validation_event_t *validation);
void bl_run_journal_add_phase(bl_run_journal_t *journal, const char *phase, const char *error, int32_t exit_code);
void bl_run_journal_add_checkpoint(bl_run_journal_t *journal, const bl_checkpoint_event_t *checkpoint);
void bl_run_journal_add_plan(bl_run_journal_t *journal);

// Returns the oldest kept event with a revision above `revision`, or NULL. Borrowed until the next event is added.
const bl_event_t *bl_run_journal_after(const bl_run_journal_t *journal, uint64_t revision);

#endif
