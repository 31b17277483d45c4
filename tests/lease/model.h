// SPDX-License-Identifier: Apache-2.0
// The lease table as one would write it without caring for time or memory: granules are an array, every question is a
// loop over everything. The walk (walk.h) compares the real table with it after every call.
//
// Where the table may choose (which record, which offset among slots of several sizes, which idle room goes), the model
// takes over the table's choice after checking that it was allowed.
#ifndef TESTS_LEASE_MODEL_H
#define TESTS_LEASE_MODEL_H

#include "lease/table.h"

#define MODEL_JOBS     3 // arenas; the first and the last are plans of one job
#define MODEL_NAMES    2 // of jobs: their quotas are with the first ones
#define MODEL_STAGES   3
#define MODEL_SESSIONS 5
#define MODEL_LEASES   24
#define MODEL_GRANULES 40 // longest arena
#define MODEL_WINDOW   8

typedef struct model_plan {
  uint64_t version;                    // 0: none
  uint32_t counts[MODEL_GRANULES + 1]; // by granules
} model_plan_t;

typedef struct model_request { // what was sent under a number, and what came of it
  uint64_t sequence;           // 0: none
  int kind;
  uint64_t words[6];
  bool done;
  bl_lease_answer_t answer;
} model_request_t;

typedef struct model_session {
  uint64_t number; // 0: none
  bl_id128_t key, incarnation;
  int job, stage;
  uint64_t process;
  bool suspect;
  uint64_t renewed_ns, ttl_ns;
  uint64_t next_sequence, acknowledged;
  model_request_t requests[MODEL_WINDOW];
  model_plan_t plans[BL_LEASE_PLANS];
} model_session_t;

typedef enum { MODEL_THEN_RESERVED, MODEL_THEN_LOST, MODEL_THEN_FREE } model_then_t;

typedef struct model_lease {
  bl_lease_state_t state;
  uint64_t generation;
  uint64_t session; // number; 0: it is over
  int job, stage;
  uint32_t offset, granules; // granules also when LOST: the size it counted for
  uint64_t bytes, checksum;
  bool moving, cancelled;
  uint64_t transfer, waiting;
  model_then_t then;
} model_lease_t;

typedef struct model_job {
  uint32_t granules; // of the arena; 0: none
  bool made;
  uint64_t quota_bytes, stage_quota_bytes[MODEL_STAGES];
} model_job_t;

typedef struct model {
  bl_lease_config_t config;
  uint64_t now_ns;
  bool draining;
  model_job_t jobs[MODEL_JOBS];
  model_session_t sessions[MODEL_SESSIONS];
  model_lease_t leases[MODEL_LEASES + 1];
  unsigned ends_due, closes_due; // actions the table owes
} model_t;

void model_init(model_t *model, const bl_lease_config_t *config, uint64_t now_ns);
void model_set_time(model_t *model, uint64_t now_ns);

model_session_t *model_session(model_t *model, uint64_t number);
void model_end_session(model_t *model, model_session_t *session);
void model_close_idle_job(model_t *model, int job);

// The first job of the same name, and what the arenas of that name take of the capacity: of the largest.
int model_name(int job);
uint32_t model_charge(const model_t *model, int job);
uint64_t model_held_bytes(const model_t *model, int job, int stage);             // stage -1: all of them
uint32_t model_slots(const model_t *model, uint64_t session, uint32_t granules); // held ones
uint32_t model_wanted(const model_session_t *session, uint32_t granules);
uint64_t model_in_flight_bytes(const model_t *model, uint64_t session);
uint32_t model_free_granules(const model_t *model, int job, uint32_t *longest);

// What a reservation comes to. `exact`: whether the model can tell also where room is fragmented.
bl_lease_reason_t model_reserve(model_t *model, model_session_t *session, uint64_t version,
                                const bl_lease_demand_t *demands, size_t count, bool *exact);
// What a request does: the reason, and whether a transfer begins. `words` are id, generation, and then of an evict
// bytes and checksum, of a load whether the store moves, of a release whether it is loaded and with which checksum; the
// last one says that the token is of another store.
bl_lease_reason_t model_evict(model_t *model, const model_session_t *session, const uint64_t words[6],
                              uint64_t sequence, bool *begins);
bl_lease_reason_t model_load(model_t *model, const model_session_t *session, const uint64_t words[6], uint64_t sequence,
                             bool *begins);
bl_lease_reason_t model_release(model_t *model, const model_session_t *session, const uint64_t words[6],
                                uint64_t sequence, bool *begins);
bl_lease_reason_t model_keep(model_t *model, const model_session_t *session, const uint64_t words[6]);
bl_lease_reason_t model_unreserve(model_session_t *session, uint64_t version);
// The answer to a request that waits.
void model_answer(model_t *model, uint64_t number, uint64_t sequence, bl_lease_reason_t reason);
// The use of a slot is over.
void model_over(model_t *model, uint32_t id);
void model_lose(model_t *model, uint32_t id);

#endif
