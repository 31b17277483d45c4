// SPDX-License-Identifier: Apache-2.0
// Private to lib/lease: the structures behind table.h. Records are numbered from 1 in fixed arrays; 0 means none.
#ifndef BALLAST_LEASE_TABLE_CORE_H
#define BALLAST_LEASE_TABLE_CORE_H

#include "lease/request_window.h"
#include "lease/table.h"
#include "lease/wheel.h"

// What a QUARANTINED slot becomes when nothing can touch it any more.
typedef enum { BL__AFTER_RESERVED, BL__AFTER_LOST, BL__AFTER_FREE } bl__after_t;

typedef struct bl__lease {
  uint64_t generation;
  uint64_t bytes, checksum; // of the block
  uint64_t since_ns;
  uint64_t transfer; // generation when the transfer that touches the slot began
  uint64_t waiting;  // sequence of the request that the end of the transfer answers; 0: none
  bl_lease_label_t label;
  bl_extent_t extent;
  uint64_t foreign;         // ended session whose holder's engine may still read the slot; 0: none
  uint32_t session, holder; // session 0: it is over
  uint32_t next, previous;  // in the session's list of its size; `next` also links unused records
  uint32_t next_cancel;
  uint8_t state, size, after, tier;
  bool moving; // the store's own transfer touches the slot
  bool cancel_queued;
} bl__lease_t;

typedef struct bl__size_class {
  uint32_t granules; // 0: unused entry
  uint32_t held;     // slots, without LOST ones and those QUARANTINED on the way to LOST or FREE
  uint32_t wanted;   // maximum that one plan asks for
  uint32_t idle;     // list of RESERVED leases
  uint32_t busy;     // list of all others of this size
} bl__size_class_t;

typedef struct bl__reservation {
  uint64_t version; // 0: unused entry
  uint32_t counts[BL_LEASE_SIZES];
} bl__reservation_t;

typedef struct bl__session {
  uint64_t number; // index in the low 32 bits, so that finding one is a look-up; 0: unused record
  bl_id128_t incarnation, key;
  uint64_t process;
  uint64_t ttl_ns, renewed_ns;
  uint64_t in_flight_bytes;
  uint32_t holder;
  uint32_t next; // unused records, or sessions that are over and not reported yet
  uint8_t state, end;
  bool mapped;
  bl_request_window_t window;
  bl__size_class_t sizes[BL_LEASE_SIZES];
  bl__reservation_t reservations[BL_LEASE_PLANS];
} bl__session_t;

// One stage of a job's plan. It exists while it has a session, slots or a quota.
typedef struct bl__holder {
  uint32_t job; // 0: unused record
  uint32_t stage, session;
  uint32_t next; // of the job, or unused
  uint64_t quota_bytes, held_bytes;
} bl__holder_t;

// One plan of a job. It exists while it has holders, an arena or a quota. Quotas for all plans are kept in plan 0 and
// its holders.
typedef struct bl__job_plan {
  char name[BL_LEASE_JOB_BYTES]; // "": unused record
  uint64_t plan;
  uint64_t quota_bytes, held_bytes;
  uint32_t arena_granules; // of all tiers; 0: none
  bool arena_made, close_queued;
  uint32_t sessions, holders;               // number; list
  bl_extent_space_t spaces[BL_LEASE_TIERS]; // zero for tiers in which the arena has no granules
} bl__job_plan_t;

typedef struct bl__queue {
  uint32_t first, last;
} bl__queue_t;

struct bl_lease_table {
  bl_lease_config_t config;
  uint64_t bytes; // of all memory
  uint64_t now_ns;
  bl__lease_t *leases;
  bl__session_t *sessions;
  bl__holder_t *holders;
  bl__job_plan_t *jobs;
  bl_request_window_entry_t *entries; // window of session s: entries[(s - 1) * window ...]
  uint32_t max_holders;
  uint32_t unused_lease, unused_session, unused_holder;
  uint32_t unused_leases; // how many
  uint32_t linked_leases; // those above come into the list when it ends: their memory has never been touched
  uint32_t arena_granules[BL_LEASE_TIERS], capacity_granules[BL_LEASE_TIERS];
  uint64_t last_serial; // of sessions
  uint32_t closes;      // jobs with close_queued
  bool draining;
  bl__queue_t answers, cancels, ends; // entries, leases, sessions with a pending action
  bl_extents_t extents;
  bl_wheel_t wheel; // of sessions, by record
  bl_journal_t journal;
  bl_lease_stats_t stats;
};

// ---- table.c
static inline uint64_t bl__granule_bytes(uint32_t granules) {
  return (uint64_t)granules * BL_LEASE_GRANULE_BYTES;
}
// Rounds up. Returns 0 if that is more than an arena can have.
uint32_t bl__granules(uint64_t bytes);
// Return the free granules in the arena of the job, and its largest free run.
uint32_t bl__job_free_granules(const bl__job_plan_t *job);
uint32_t bl__job_largest_run(const bl_lease_table_t *table, const bl__job_plan_t *job);
// Returns where a slot begins in the arena, counted through all tiers.
uint64_t bl__slot_offset(const bl_lease_table_t *table, const bl__lease_t *lease);
bl_lease_decision_t bl__refuse(bl_lease_table_t *table, bl_lease_reason_t reason, bl_lease_answer_t *answer);
void bl__set_time(bl_lease_table_t *table, uint64_t now_ns);

// ---- session.c
// Returns the live session of this number. 0: refused with *reason.
uint32_t bl__session_find(const bl_lease_table_t *table, uint64_t number, const bl_id128_t *key,
                          bl_lease_reason_t *reason);
void bl__session_end(bl_lease_table_t *table, uint32_t index, bl_session_end_t end);
// Returns the SUSPECT session of the job that was renewed longest ago, or 0.
uint32_t bl__session_suspect(const bl_lease_table_t *table, uint32_t job);
// Frees a holder, and then its job, if nothing needs them any more.
void bl__holder_free_if_unused(bl_lease_table_t *table, uint32_t index);
void bl__job_free_if_unused(bl_lease_table_t *table, uint32_t index);
// Returns the holder record of (job, stage), and creates it if necessary. 0: the table is full.
uint32_t bl__holder_make(bl_lease_table_t *table, uint32_t job, uint32_t stage);
// Returns the record of a plan of the job of this name, and creates it if necessary. 0: the table is full.
uint32_t bl__job_make(bl_lease_table_t *table, const char *name, uint64_t plan);
uint64_t bl__job_quota(const bl_lease_table_t *table, uint32_t job);
uint64_t bl__stage_quota(const bl_lease_table_t *table, uint32_t job, uint32_t stage);
// Returns how much of a tier's capacity the arenas of this name take: the largest, as only one is in use at a time;
// with plans_add the sum.
uint32_t bl__job_charge(const bl_lease_table_t *table, const char *name, int tier);

// ---- request.c
// Checks session, key and window. True: continue, with *session and the entry to pass to bl__request_done. False:
// return *decision and *answer.
bool bl__request_begin(bl_lease_table_t *table, const bl_lease_request_t *request, uint64_t digest, uint32_t *session,
                       bl_request_window_entry_t **entry, bl_lease_decision_t *decision, bl_lease_answer_t *answer);
// Ends the request: `answer` (may be that of the entry) is the answer of its number from now on.
bl_lease_decision_t bl__request_done(bl_lease_table_t *table, bl_request_window_entry_t *entry,
                                     const bl_lease_answer_t *answer, bl_lease_answer_t *out);
bl_lease_decision_t bl__request_refuse(bl_lease_table_t *table, bl_request_window_entry_t *entry,
                                       bl_lease_reason_t reason, bl_lease_answer_t *out);
// Answers a waiting request through an action. Does nothing if the request no longer exists.
void bl__request_answer(bl_lease_table_t *table, uint32_t session, uint64_t sequence, const bl_lease_answer_t *answer);

// ---- slot.c
// Adds a RESERVED lease with a slot to the session's list of this size. 0: refused; *reason says what is lacking.
uint32_t bl__slot_new(bl_lease_table_t *table, uint32_t session, uint32_t size, bl_lease_reason_t *reason);
// Moves a lease between states, lists and counts.
void bl__lease_set(bl_lease_table_t *table, uint32_t index, bl_lease_state_t state);
// Ends the use of a slot: forgets the block and increments the generation. The slot becomes RESERVED, or is freed if
// its size is in surplus or the session over. It is QUARANTINED first while the store's transfer touches it.
void bl__lease_over(bl_lease_table_t *table, uint32_t index);
// Takes the lease from its holder.
void bl__lease_lose(bl_lease_table_t *table, uint32_t index);
// Frees the slot and the record of a RESERVED or LOST lease.
void bl__slot_free(bl_lease_table_t *table, uint32_t index);
// Ends the slots of a session that is over: they are free or quarantined. `foreign`: its holder's engine may still read
// them.
void bl__session_slots_end(bl_lease_table_t *table, uint32_t session, bool foreign);
void bl__lease_answer(const bl_lease_table_t *table, uint32_t index, bl_lease_answer_t *answer);
// Nothing touches a QUARANTINED slot any more.
void bl__quarantine_end(bl_lease_table_t *table, uint32_t index);

#endif
