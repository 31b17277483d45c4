// SPDX-License-Identifier: Apache-2.0
// Shared inside lib/lease: the structures behind table.h. Records are numbered from 1 in fixed arrays; 0 is none.
#ifndef BALLAST_LEASE_TABLE_CORE_H
#define BALLAST_LEASE_TABLE_CORE_H

#include "lease/table.h"
#include "lease/wheel.h"
#include "lease/window.h"

// What becomes of a QUARANTINED slot when the store's transfer has let go of it.
typedef enum { BL__AFTER_RESERVED, BL__AFTER_LOST, BL__AFTER_FREE } bl__after_t;

typedef struct bl__lease {
  uint64_t generation;
  uint64_t bytes, checksum; // of the block
  uint64_t since_ns;
  uint64_t transfer; // generation at the begin of the transfer that touches the slot
  uint64_t waiting;  // sequence of the request that the end of the transfer answers; 0: none
  bl_lease_label_t label;
  bl_extent_t extent;
  uint64_t foreign;         // session whose holder's engine may still read the slot after its end; 0: none
  uint32_t session, holder; // session 0: it is over
  uint32_t next, previous;  // in the session's list of its size; `next` also links unused records
  uint32_t next_cancel;
  uint8_t state, size, after, tier;
  bool moving; // the store's own transfer touches the slot
  bool cancel_queued;
} bl__lease_t;

typedef struct bl__size {
  uint32_t granules; // 0: unused entry
  uint32_t held;     // slots; LOST and QUARANTINED-for-good ones are none
  uint32_t wanted;   // most that one plan asks for
  uint32_t idle;     // list of RESERVED leases
  uint32_t busy;     // list of all others of this size
} bl__size_t;

typedef struct bl__plan {
  uint64_t version; // 0: unused entry
  uint32_t counts[BL_LEASE_SIZES];
} bl__plan_t;

typedef struct bl__session {
  uint64_t number; // index in the low 32 bits, so that finding one is a look-up; 0: unused record
  bl_incarnation_t incarnation, key;
  uint64_t process;
  uint64_t ttl_ns, renewed_ns;
  uint64_t in_flight_bytes;
  uint32_t holder;
  uint32_t next; // unused records, or sessions that are over and wait to be told
  uint8_t state, end;
  bool mapped;
  bl_window_t window;
  bl__size_t sizes[BL_LEASE_SIZES];
  bl__plan_t plans[BL_LEASE_PLANS];
} bl__session_t;

// One stage of a job's plan: lives while it has a session, slots or a quota.
typedef struct bl__holder {
  uint32_t job; // 0: unused record
  uint32_t stage, session;
  uint32_t next; // of the job, or unused
  uint64_t quota_bytes, held_bytes;
} bl__holder_t;

// One plan of a job: lives while it has holders, an arena or a quota. Quotas of all plans are with plan 0, and with its
// holders.
typedef struct bl__job {
  char name[BL_LEASE_JOB_BYTES]; // "": unused record
  uint64_t plan;
  uint64_t quota_bytes, held_bytes;
  uint32_t arena_granules; // of all tiers; 0: none
  bool arena_made, close_queued;
  uint32_t sessions, holders;               // number; list
  bl_extent_space_t spaces[BL_LEASE_TIERS]; // of arenas with no granules in a tier: zero
} bl__job_t;

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
  bl__job_t *jobs;
  bl_window_entry_t *entries; // window of session s: entries[(s - 1) * window ...]
  uint32_t max_holders;
  uint32_t unused_lease, unused_session, unused_holder;
  uint32_t unused_leases; // how many
  uint32_t arena_granules[BL_LEASE_TIERS], capacity_granules[BL_LEASE_TIERS];
  uint64_t last_serial; // of sessions
  uint32_t closes;      // jobs with close_queued
  bool draining;
  bl__queue_t answers, cancels, ends; // entries, leases, sessions with something to do
  bl_extents_t extents;
  bl_wheel_t wheel; // of sessions, by record
  bl_journal_t journal;
  bl_lease_stats_t stats;
};

// ---- table.c
static inline uint64_t bl__granule_bytes(uint32_t granules) {
  return (uint64_t)granules * BL_LEASE_GRANULE_BYTES;
}
// Rounded up; 0 when it is more than an arena can have.
uint32_t bl__granules(uint64_t bytes);
// What is free in the arena of the job, and the largest slot that it has.
uint32_t bl__job_free(const bl__job_t *job);
uint32_t bl__job_largest(const bl_lease_table_t *table, const bl__job_t *job);
// Where a slot begins in the arena, through all tiers.
uint64_t bl__slot_offset(const bl_lease_table_t *table, const bl__lease_t *lease);
bl_lease_decision_t bl__refuse(bl_lease_table_t *table, bl_lease_reason_t reason, bl_lease_answer_t *answer);
void bl__set_time(bl_lease_table_t *table, uint64_t now_ns);

// ---- session.c
// The live session of this number, or 0 with the reason.
uint32_t bl__session_find(const bl_lease_table_t *table, uint64_t number, const bl_incarnation_t *key,
                          bl_lease_reason_t *reason);
void bl__session_end(bl_lease_table_t *table, uint32_t index, bl_session_end_t end);
// The SUSPECT session of the job that was renewed longest ago, or 0.
uint32_t bl__session_suspect(const bl_lease_table_t *table, uint32_t job);
// Lets a holder, and then its job, go when nothing needs them.
void bl__holder_settle(bl_lease_table_t *table, uint32_t index);
void bl__job_settle(bl_lease_table_t *table, uint32_t index);
// The holder record of (job, stage), made if need be; 0: the table is full.
uint32_t bl__holder_make(bl_lease_table_t *table, uint32_t job, uint32_t stage);
// The plan of the job of this name, made if need be; 0: the table is full.
uint32_t bl__job_make(bl_lease_table_t *table, const char *name, uint64_t plan);
uint64_t bl__job_quota(const bl_lease_table_t *table, uint32_t job);
uint64_t bl__stage_quota(const bl_lease_table_t *table, uint32_t job, uint32_t stage);
// What the arenas of this name take of a tier's capacity: the largest, as only one is in use at a time; or all of them.
uint32_t bl__job_charge(const bl_lease_table_t *table, const char *name, int tier);

// ---- request.c
// Checks session, key and window. True: go on, with *session and the entry to fill in bl__request_done. False:
// *decision and *answer are to be returned.
bool bl__request_begin(bl_lease_table_t *table, const bl_lease_request_t *request, uint64_t digest, uint32_t *session,
                       bl_window_entry_t **entry, bl_lease_decision_t *decision, bl_lease_answer_t *answer);
// The request is over; `answer` (may be that of the entry) is what its number has from now on.
bl_lease_decision_t bl__request_done(bl_lease_table_t *table, bl_window_entry_t *entry, const bl_lease_answer_t *answer,
                                     bl_lease_answer_t *out);
bl_lease_decision_t bl__request_refuse(bl_lease_table_t *table, bl_window_entry_t *entry, bl_lease_reason_t reason,
                                       bl_lease_answer_t *out);
// Answers a request that waits, through an action. Nothing when it is gone.
void bl__request_answer(bl_lease_table_t *table, uint32_t session, uint64_t sequence, const bl_lease_answer_t *answer);

// ---- slot.c
// A lease record with a slot in the session's list of this size: RESERVED. 0: none; the reason says for want of what.
uint32_t bl__slot_new(bl_lease_table_t *table, uint32_t session, uint32_t size, bl_lease_reason_t *reason);
// Moves a lease between states, lists and counts.
void bl__lease_set(bl_lease_table_t *table, uint32_t index, bl_lease_state_t state);
// The use of a slot ends: the block is forgotten and the generation counted up. The slot becomes RESERVED, or goes when
// its size is in surplus or the session over; QUARANTINED first while the store's transfer touches it.
void bl__lease_over(bl_lease_table_t *table, uint32_t index);
// Takes the lease from its holder.
void bl__lease_lose(bl_lease_table_t *table, uint32_t index);
// The slot of a lease, RESERVED or LOST, goes; the record too.
void bl__slot_drop(bl_lease_table_t *table, uint32_t index);
// The session is over: what it had is free or in quarantine. `foreign`: its holder's engine may still read it.
void bl__session_slots_end(bl_lease_table_t *table, uint32_t session, bool foreign);
void bl__lease_answer(const bl_lease_table_t *table, uint32_t index, bl_lease_answer_t *answer);
// The transfer has let go of a QUARANTINED slot.
void bl__quarantine_end(bl_lease_table_t *table, uint32_t index);

#endif
