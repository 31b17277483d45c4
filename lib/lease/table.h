// SPDX-License-Identifier: Apache-2.0
// The lease table of a store (PROTOCOL.md section 4): who may use which slot of its memory, and for what. It only
// decides. The shell around it owns memory, sockets and clocks, and carries out what the table decides.
//
//   bl_lease_table_create(&config, now_ns, &table, err);
//   bl_lease_table_open(table, &open, now_ns, &opened, &answer);               // a stage's session; its job's arena
//   bl_lease_table_reserve(table, &request, plan, demands, 1, &answer);        // slots, at plan time
//   switch (bl_lease_table_evict(table, &request, &block, &answer)) {          // a block arrives
//   case BL_LEASE_BEGIN: pull(answer.offset_bytes, answer.bytes); break;       // ends in bl_lease_table_transfer_ended
//   case BL_LEASE_WAIT:  keep the call until the action BL_LEASE_ANSWER; break;
//   case BL_LEASE_DONE:  reply with the answer; break;                         // granted long ago, or refused
//   }
//   while (bl_lease_table_next_action(table, &action)) do_it(&action);         // after every call
//
// Jobs, sessions, slots, leases
//   - A job has an arena here, or one per plan. Plans follow each other and are not in use together, so of the arenas
//     of one name only the largest counts against the capacity, and each by itself against the quota. A session is one
//     holder: (job, plan, stage, incarnation of the stage). A new incarnation ends the session of the previous one at
//     once, and a new process ends the sessions that an older process had for other plans of that stage.
//   - A session reserves slots of given sizes for a plan. For each size it holds the maximum that any one of its plans
//     asks for: plans never run together, so the next can be reserved while one runs.
//   - A lease is one use of a slot, and its id is the slot's: RESERVED (empty) -> WRITING -> SEALED -> LOADING -> over.
//     Over means RESERVED under the next generation, which the holder knows without asking; or the slot is freed, if no
//     plan wants it any more. Every reserved slot can be used without a further check for space or quota.
//   - A SEALED block ends by release, by the end of its session, or by revocation, never for lack of space.
//
//      reserve                evict             transfer ended well        load, keep
//   0 ---------> RESERVED ------------> WRITING -------------------> SEALED <-----> LOADING
//                   ^                      | badly, released             |              |
//                   +----------------------+-----------------------------+--------------+  release: next generation
//   A revoked lease is LOST until it is released. A slot whose use has ended while the store's own transfer still
//   touches it is QUARANTINED until transfer_ended, and is granted to no session.
//
// Tiers. A store on a GPU has little fast memory and, if it is configured so, more of the host's. The arena of a job
// has a part in each tier. Offsets count through both parts, the device's first. No slot spans both. Slots are taken on
// the device as long as it has free ones.
//
// Mapped sessions. If a holder reads the arena with an engine of its own (cuda-ipc), work that it queued continues
// after the holder has stopped. When such a session ends in any way other than by its holder's close, its slots are
// QUARANTINED until the shell reports that the holder's process is gone.
//
// Sessions: ALIVE -> SUSPECT when not renewed for its TTL (no new reservations and evictions; it keeps what it has) ->
// over after a grace, or as soon as a reservation of the same job needs the space. Only KeepAlive renews.
//
// Requests carry the session's number and key, a sequence number and an acknowledgement (request_window.h), so they
// can be resent. A refusal changes nothing. Requests about a session that is over are refused with
// BL_LEASE_SESSION_OVER.
//
// The caller passes the time as `now_ns` of one monotonic clock; it never goes back. Every call first ends what is due.
//
// No I/O, no clock, no random numbers. All memory is allocated by create: at most 256 bytes per lease of capacity, in
// addition to that of sessions and history. Costs: O(log slots) per lease touched; the end of a session touches all of
// its leases. Thread: one owner, the loop thread of the store.
#ifndef BALLAST_LEASE_TABLE_H
#define BALLAST_LEASE_TABLE_H

#include "base/error.h"
#include "lease/answer.h"
#include "lease/extent.h"
#include "lease/journal.h"
#include "lease/token.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BL_LEASE_JOB_BYTES 64 // longest job name, with its terminator
#define BL_LEASE_SIZES     8  // different sizes of slots per session: bounds the tables in it
#define BL_LEASE_PLANS     4  // plans reserved by a session at a time
#define BL_LEASE_NO_QUOTA  UINT64_MAX
// Kinds of memory that the slots of a job lie in: the store's device, and the host's next to it.
#define BL_LEASE_TIERS 2

typedef struct bl_lease_table bl_lease_table_t;

typedef struct bl_lease_config {
  bl_id128_t incarnation;  // of this store
  uint64_t capacity_bytes; // of the arenas of all jobs, on the store's device
  uint64_t spill_bytes;    // the same in the second tier; 0: there is none
  bool plans_add;          // arena memory is committed at creation: all plans of a job count, not only the largest
  uint32_t max_jobs, max_sessions, max_leases;
  uint32_t window;             // unacknowledged requests per session; 0: 64
  uint32_t history;            // changes kept for watchers; 0: 4096
  uint64_t ttl_ns;             // of sessions that request none; 0: 10 s
  uint64_t ttl_floor_ns;       // minimum of any session; 0: 2 s. The maximum is an hour, or ttl_ns if that is longer
  uint64_t grace_ns;           // from SUSPECT to the end; 0: as the TTL
  uint64_t session_flow_bytes; // in flight per session, WRITING and LOADING; 0: no limit. One block is always allowed
} bl_lease_config_t;

// BL_INVALID: a maximum is zero or above UINT32_MAX / 4, or capacity_bytes is less than a granule. BL_EXHAUSTED: no
// memory.
BL_MUST_USE bl_status_t bl_lease_table_create(const bl_lease_config_t *config, uint64_t now_ns,
                                              bl_lease_table_t **table, bl_error_t *err);
void bl_lease_table_destroy(bl_lease_table_t *table); // NULL is fine
// Returns the bytes of memory that the table uses.
uint64_t bl_lease_table_bytes(const bl_lease_table_t *table);

typedef enum bl_lease_decision {
  BL_LEASE_DONE,  // `answer` is final: granted, or refused with its reason
  BL_LEASE_BEGIN, // begin what is requested; the answer follows as an action when that has ended
  BL_LEASE_WAIT,  // the same request is in progress: the same action answers it
} bl_lease_decision_t;

// ---- sessions -------------------------------------------------------------------------------------------------------

typedef enum bl_session_state {
  BL_SESSION_NONE,
  BL_SESSION_ALIVE,
  BL_SESSION_SUSPECT,
  BL_SESSION_OVER
} bl_session_state_t;
const char *bl_session_state_name(bl_session_state_t state); // "alive"; never NULL

typedef struct bl_lease_open {
  const char *job;      // 1 to 63 bytes
  uint64_t plan;        // selects one of the job's arenas; 0 if it has only one
  uint32_t stage;       // or any number that distinguishes the holders of a job
  uint64_t process;     // random, of the holder's process
  bl_id128_t holder;    // known only to the holder, so that it can open its own session again
  bl_id128_t key;       // random, drawn by the caller: the session's secret if a new one is created
  uint64_t arena_bytes; // of the job, at least 1 granule; 0: unchanged
  uint64_t unit_bytes;  // of its largest block, so that the boundary of tiers lies between slots; 0: unknown
  bool second_tier;     // the holder cannot reach the other tier: the whole arena lies there
  uint64_t ttl_ns;      // 0: the store's
} bl_lease_open_t;

typedef struct bl_lease_opened {
  uint64_t session; // its number, from 1, never reused
  bl_id128_t key;   // of the session: sent with every request
  uint64_t ttl_ns, grace_ns, flow_bytes;
  uint32_t job;                        // index of the job while it lives, below max_jobs
  uint64_t arena_bytes;                // of all tiers
  uint64_t tier_bytes[BL_LEASE_TIERS]; // of each
  // Create the arena now and report the outcome to bl_lease_table_arena_made; until then nothing is reserved.
  bool arena_needed;
  // The job still has an arena of another plan: memory for this one is available when that is closed.
  bool arena_follows;
} bl_lease_opened_t;

// Opens a session, or returns the existing one of the same holder. Refused: BL_LEASE_BAD_REQUEST (name),
// BL_LEASE_NO_SIZE (no arena yet and no size), BL_LEASE_ARENA (the job's arena is smaller than requested),
// BL_LEASE_CAPACITY, BL_LEASE_TABLE_FULL, BL_LEASE_DRAINING. On refusal *opened is untouched.
bl_lease_decision_t bl_lease_table_open(bl_lease_table_t *table, const bl_lease_open_t *open, uint64_t now_ns,
                                        bl_lease_opened_t *opened, bl_lease_answer_t *answer);
// Returns what open returned for a session that still lives (arena_needed is false). False: the session is over.
bool bl_lease_table_opened(const bl_lease_table_t *table, uint64_t number, bl_lease_opened_t *opened);
// Returns whether the job of this index still has arenas of other plans.
bool bl_lease_table_arena_follows(const bl_lease_table_t *table, uint32_t job_index);
// Reports that the arena that open asked for exists, or could not be created: then the sessions of the job end.
void bl_lease_table_arena_made(bl_lease_table_t *table, uint32_t job_index, bool well);

// Renews the session of this number, which makes a SUSPECT one ALIVE. Not sequenced.
bl_lease_decision_t bl_lease_table_keep_alive(bl_lease_table_t *table, uint64_t number, const bl_id128_t *key,
                                              uint64_t now_ns, bl_lease_answer_t *answer);
// Ends a session for its holder: all it has is free (QUARANTINED if the store still moves bytes).
bl_lease_decision_t bl_lease_table_close(bl_lease_table_t *table, uint64_t number, const bl_id128_t *key,
                                         uint64_t now_ns, bl_lease_answer_t *answer);

// Records that the holder of this session maps the arena for an engine of its own. Ignores unknown sessions.
void bl_lease_table_set_mapped(bl_lease_table_t *table, uint64_t number);
// Reports that the process that held this session, which may be over, is gone: its slots become free. O(capacity).
void bl_lease_table_holder_gone(bl_lease_table_t *table, uint64_t number, uint64_t now_ns);

// ---- requests -------------------------------------------------------------------------------------------------------

typedef struct bl_lease_request {
  uint64_t session;
  bl_id128_t key;
  uint64_t sequence, acknowledged; // request_window.h
  uint64_t now_ns;
} bl_lease_request_t;

typedef struct bl_lease_demand {
  uint64_t bytes; // of a block; the slot is rounded up to a granule
  uint32_t count; // slots needed at the same time
} bl_lease_demand_t;

// Reserves slots for a plan (from 1), all or nothing. A plan that is reserved already with the same demands is granted;
// with other demands it is refused with BL_LEASE_PLAN. Refused with BL_LEASE_SPACE, BL_LEASE_JOB_QUOTA,
// BL_LEASE_STAGE_QUOTA, BL_LEASE_TABLE_FULL, BL_LEASE_DRAINING, BL_LEASE_NO_ARENA, BL_LEASE_BAD_BYTES,
// BL_LEASE_BEYOND (the arena could never hold them), BL_LEASE_BAD_REQUEST (no plan or demand), BL_LEASE_LIMITS (more
// sizes or plans than fit). Never BL_LEASE_BEGIN.
bl_lease_decision_t bl_lease_table_reserve(bl_lease_table_t *table, const bl_lease_request_t *request, uint64_t plan,
                                           const bl_lease_demand_t *demands, size_t demand_count,
                                           bl_lease_answer_t *answer);
// Ends the reservation of a plan. Slots that no other plan wants are freed at once, or when their lease is over. Never
// BL_LEASE_BEGIN.
bl_lease_decision_t bl_lease_table_unreserve(bl_lease_table_t *table, const bl_lease_request_t *request, uint64_t plan,
                                             bl_lease_answer_t *answer);

typedef struct bl_lease_label { // for operators: whose block it is
  uint64_t step;
  uint32_t chunk, micro_batch;
} bl_lease_label_t;

typedef struct bl_lease_evict { // what an evict asks for
  bl_lease_token_t token;       // of a RESERVED slot
  uint64_t bytes;               // at most those of the slot
  uint64_t checksum;            // of the bytes, computed by their owner
  bl_lease_label_t label;
} bl_lease_evict_t;

// Starts to fill a slot with a block. BL_LEASE_BEGIN: move `answer->bytes` to `answer->offset_bytes` of the job's
// arena, hash them there, call transfer_ended. The final answer is that of the SEALED lease, or why there is none (the
// slot is then free under the next generation, which the answer names).
bl_lease_decision_t bl_lease_table_evict(bl_lease_table_t *table, const bl_lease_request_t *request,
                                         const bl_lease_evict_t *evict, bl_lease_answer_t *answer);

// Starts to load a block for its holder. `store_moves` false: the holder reads the arena itself (shm), and the load is
// granted at once. True: BL_LEASE_BEGIN: send the bytes, hash them on the way, call transfer_ended. A load that failed
// may be requested again.
bl_lease_decision_t bl_lease_table_load(bl_lease_table_t *table, const bl_lease_request_t *request,
                                        const bl_lease_token_t *token, bool store_moves, bl_lease_answer_t *answer);

// Ends a lease: loaded (`checksum` as the holder computed it after its copy; if it is not the recorded one, the answer
// is BL_LEASE_CHECKSUM and the lease is over all the same) or no longer wanted (NULL). The answer names the slot's next
// generation, 0 if the slot is freed. During a transfer: BL_LEASE_BEGIN, the transfer is cancelled first; the waiting
// evict gets BL_LEASE_CANCELLED.
bl_lease_decision_t bl_lease_table_release(bl_lease_table_t *table, const bl_lease_request_t *request,
                                           const bl_lease_token_t *token, const uint64_t *checksum,
                                           bl_lease_answer_t *answer);

// Ends a load and keeps the block: SEALED again, under the same generation. `checksum` is what the holder computed
// after its copy. BL_LEASE_CHECKSUM: it is not the recorded one; BL_LEASE_STATE: the holder has loaded nothing. Both
// change nothing.
bl_lease_decision_t bl_lease_table_keep(bl_lease_table_t *table, const bl_lease_request_t *request,
                                        const bl_lease_token_t *token, uint64_t checksum, bl_lease_answer_t *answer);

// Sets the checksum of a block whose owner could send it only after the bytes. Call it before transfer_ended of the
// same transfer; an unknown transfer is ignored.
void bl_lease_table_set_checksum(bl_lease_table_t *table, uint64_t id, uint64_t generation, uint64_t checksum);
// Reports that a transfer begun by BL_LEASE_BEGIN no longer touches the slot. `moved`: all bytes were moved, and
// `checksum` is theirs. `generation` is that of the BEGIN. An unknown or repeated event is counted and ignored.
void bl_lease_table_transfer_ended(bl_lease_table_t *table, uint64_t id, uint64_t generation, bool moved,
                                   uint64_t checksum, uint64_t now_ns);

// ---- what to do -----------------------------------------------------------------------------------------------------

typedef enum bl_lease_action_kind {
  BL_LEASE_ANSWER,          // reply to (session, sequence) with `answer`
  BL_LEASE_CANCEL_TRANSFER, // stop the transfer of (id, generation) soon, then call transfer_ended
  BL_LEASE_END_SESSION,     // fail its waiting calls, close its connections; `end` says why
  BL_LEASE_CLOSE_ARENA,     // unmap and close the arena of `job`: no other job may see its bytes
} bl_lease_action_kind_t;

typedef enum bl_session_end {
  BL_SESSION_CLOSED,    // by its holder
  BL_SESSION_EXPIRED,   // not renewed
  BL_SESSION_REPLACED,  // by a newer incarnation of the stage
  BL_SESSION_PREEMPTED, // SUSPECT, and its memory was needed
  BL_SESSION_NO_ARENA,  // the memory of the job could not be allocated
  BL_SESSION_REVOKED,   // by an operator
  BL_SESSION_ENDS
} bl_session_end_t;
const char *bl_session_end_text(bl_session_end_t end); // "it was not renewed"; never NULL

typedef struct bl_lease_action {
  bl_lease_action_kind_t kind;
  uint64_t session, sequence;
  uint64_t id, generation;
  uint32_t job;
  bl_session_end_t end;
  bl_lease_answer_t answer;
} bl_lease_action_t;

// Takes the next action. False: there is none.
bool bl_lease_table_next_action(bl_lease_table_t *table, bl_lease_action_t *action);
// Ends what is due. Call it at bl_lease_table_next_deadline_ns (UINT64_MAX: nothing will ever be due).
void bl_lease_table_advance(bl_lease_table_t *table, uint64_t now_ns);
uint64_t bl_lease_table_next_deadline_ns(const bl_lease_table_t *table);

// ---- operators ------------------------------------------------------------------------------------------------------

// Revokes a lease: it is LOST, and its slot free (after the transfer, if one touches it). BL_NOT_FOUND, BL_FENCED
// (another generation; 0 accepts any), BL_PRECONDITION (over or lost already).
BL_MUST_USE bl_status_t bl_lease_table_revoke(bl_lease_table_t *table, uint64_t id, uint64_t generation,
                                              uint64_t now_ns, bl_error_t *err);
BL_MUST_USE bl_status_t bl_lease_table_revoke_session(bl_lease_table_t *table, uint64_t number, uint64_t now_ns,
                                                      bl_error_t *err);
// While draining, sessions and reservations are refused. Existing reservations remain until their holders are done.
void bl_lease_table_drain(bl_lease_table_t *table, bool draining);
bool bl_lease_table_is_draining(const bl_lease_table_t *table);
// Returns whether the table is draining and no slot is held any more.
bool bl_lease_table_is_drained(const bl_lease_table_t *table);

// Sets hard limits on the bytes of slots of the job of this name and, with `stage` not NULL, of one of its stages, in
// any one of its plans. BL_LEASE_NO_QUOTA lifts the limit. It takes effect at the next reservation, and no session
// loses anything. It may be set before the job is known. BL_INVALID (name), BL_EXHAUSTED (table full).
BL_MUST_USE bl_status_t bl_lease_table_set_quota(bl_lease_table_t *table, const char *name, const uint32_t *stage,
                                                 uint64_t bytes, bl_error_t *err);

// ---- queries --------------------------------------------------------------------------------------------------------

typedef enum bl_lease_state {
  BL_LEASE_FREE,
  BL_LEASE_RESERVED,
  BL_LEASE_WRITING,
  BL_LEASE_SEALED,
  BL_LEASE_LOADING,
  BL_LEASE_LOST,
  BL_LEASE_QUARANTINED,
  BL_LEASE_STATES
} bl_lease_state_t;
const char *bl_lease_state_name(bl_lease_state_t state); // "sealed"; never NULL
const char *bl_lease_tier_name(uint32_t tier);           // "device", "host"; never NULL

typedef struct bl_lease_view {
  uint64_t id, generation;
  bl_lease_state_t state;
  uint64_t session; // 0: it is over
  const char *job;  // valid until the next call that changes the table
  uint64_t plan;
  uint32_t stage;
  uint64_t offset_bytes, slot_bytes; // 0 if LOST
  uint32_t tier;                     // of the slot
  uint64_t block_bytes, checksum;    // 0 if it holds none
  bl_lease_label_t label;
  uint64_t since_ns; // when it entered this state
} bl_lease_view_t;

// BL_NOT_FOUND: no such live lease.
BL_MUST_USE bl_status_t bl_lease_table_get(const bl_lease_table_t *table, uint64_t id, bl_lease_view_t *view);
// Returns the first live lease with an id above *cursor, and sets *cursor to its id. Ascending. False: no more.
bool bl_lease_table_list(const bl_lease_table_t *table, uint64_t *cursor, bl_lease_view_t *view);
// The same for the slots of one session only, in no order. *cursor is opaque, 0 at first, and invalid after any change.
bool bl_lease_table_slots(const bl_lease_table_t *table, uint64_t number, uint64_t *cursor, bl_lease_view_t *view);

typedef struct bl_session_view {
  uint64_t session;
  bl_session_state_t state;
  const char *job;
  uint64_t plan;
  uint32_t stage;
  uint32_t slots;
  uint64_t held_bytes, in_flight_bytes;
  uint64_t renewed_ns;
} bl_session_view_t;
bool bl_lease_table_sessions(const bl_lease_table_t *table, uint32_t *cursor, bl_session_view_t *view);

typedef struct bl_lease_job_view { // one arena of a job
  uint32_t job;
  const char *name;
  uint64_t plan;
  uint64_t arena_bytes, free_bytes, largest_free_bytes, held_bytes, quota_bytes;
} bl_lease_job_view_t;
bool bl_lease_table_jobs(const bl_lease_table_t *table, uint32_t *cursor, bl_lease_job_view_t *view);

// Returns how large an arena of the job of this name may be, over all tiers: it may replace that of another plan of the
// job. For an unknown name: what no job has.
uint64_t bl_lease_table_arena_bytes_max(const bl_lease_table_t *table, const char *name);

typedef struct bl_lease_stats {
  uint64_t leases[BL_LEASE_STATES];
  uint64_t sessions[BL_SESSION_OVER + 1]; // by state
  uint64_t arena_bytes;                   // counted against the capacity: per job only the largest
  uint64_t held_bytes, quarantined_bytes, free_bytes;
  uint64_t largest_free_bytes; // the largest slot that could be reserved, in an arena or in that of a new job
  uint64_t tier_arena_bytes[BL_LEASE_TIERS], tier_held_bytes[BL_LEASE_TIERS];
  uint64_t in_flight_bytes;
  // Since the start:
  uint64_t reserved, evicted, loaded, released, revoked; // leases
  uint64_t evicted_bytes, loaded_bytes;
  uint64_t refused[BL_LEASE_REASONS];
  uint64_t ended[BL_SESSION_ENDS]; // sessions
  uint64_t suspected;
  uint64_t checksum_failures;
  uint64_t stale_events; // of transfers that were no longer known
  uint64_t repeated;     // requests answered from the window
} bl_lease_stats_t;
void bl_lease_table_stats(const bl_lease_table_t *table, bl_lease_stats_t *stats);
const bl_journal_t *bl_lease_table_journal(const bl_lease_table_t *table);
const bl_lease_config_t *bl_lease_table_config(const bl_lease_table_t *table); // with the defaults filled in

// Compares every sum, list and link with the leases themselves: BL_INTERNAL names the first that is wrong. O(capacity).
BL_MUST_USE bl_status_t bl_lease_table_audit(const bl_lease_table_t *table, bl_error_t *err);

#endif
