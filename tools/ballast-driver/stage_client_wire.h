// SPDX-License-Identifier: Apache-2.0
// One stage as the driver sees it: the calls of ballast.v1.Stage as plain structures.
//
//   bl_stage_client_create(rpc, "127.0.0.1:7700", &client, err);
//   bl_stage_client_status(client, driver, answered, context);
//   static void answered(const bl_stage_answer_t *answer, void *context) {
//     if (answer->err->status != BL_OK) ...
//   }
//
// `done` fires exactly once per call, never before the call returns, even if the call could not be made at all.
// Everything in the answer is borrowed. bl_stage_client_destroy ends calls in flight: their `done` fires with
// BL_CANCELLED.
// Thread: the loop's.
#ifndef BALLAST_DRIVER_STAGE_CLIENT_WIRE_H
#define BALLAST_DRIVER_STAGE_CLIENT_WIRE_H

#include "formats/checkpoint_state.h"
#include "job/training.h"
#include "observe/trace.h"
#include "policy/history.h"
#include "rank_vote.h"
#include "rpc/channel.h"
#include "step/record.h"

typedef struct bl_stage_client bl_stage_client_t;

typedef struct bl_memory_share {
  const char *name;
  uint64_t planned_bytes;
} bl_memory_share_t;

typedef struct bl_path_share {
  int32_t stage;
  const char *data_path, *reason;
} bl_path_share_t;

typedef struct bl_choice_share {
  const char *shape, *algorithm; // of its products
} bl_choice_share_t;

#define BL_STAGE_TOKEN_BYTES 16

// What a stage reports in answer to Configure: how peers reach it, and what it holds.
typedef struct bl_stage_place {
  const char *unix_address, *tcp_address, *machine;
  uint8_t token[BL_STAGE_TOKEN_BYTES];
  size_t token_bytes;
  uint64_t slot_bytes;
  bl_memory_share_t *memory; // [memory_count]
  size_t memory_count;
  bl_choice_share_t *choices; // [choice_count]
  size_t choice_count;
} bl_stage_place_t;

typedef struct bl_stage_said {
  uint64_t epoch, incarnation, configured, applied, highest_attempt, plan_version;
  uint64_t resumed; // digest of the checkpoint that the configuration began from, 0: none
  int64_t process;
  bool prepared; // its vote follows
  bl_rank_vote_t vote;
  uint64_t vote_plan_version;
  bl_offer_t ahead;                 // attempt 0: nothing was begun after it
  bl_commit_t last_commit;          // step 0: none
  const char *run, *driver_address; // of the driver that it follows
  uint64_t driver_silent_ms;        // since that driver called last
  bl_rank_vote_t last_vote;
  bl_plan_record_t plans[BL_STAGE_PLANS];               // for training, kept by the stage; version 0: none
  bl_policy_history_t policy_histories[BL_STAGE_PLANS]; // policy history of each plan
} bl_stage_said_t;

// Members that a call does not set are zero.
typedef struct bl_stage_answer {
  const bl_error_t *err;             // never NULL
  bool accepted;                     // Takeover
  bl_stage_said_t said;              // Takeover; Status, without plans
  bl_error_t refusal;                // PreparePlan: status BL_OK if it is prepared
  const void *packed;                // Status: the StageStatusResponse as received, to be passed on
  size_t packed_bytes;               //
  bl_stage_place_t place;            // Configure
  const bl_path_share_t *paths;      // Connect
  size_t path_count;                 //
  bl_rank_vote_t vote;               // Run
  uint32_t token;                    // Run of a generation, last stage
  const bl_checkpoint_file_t *files; // WriteSnapshot
  size_t file_count;                 //
} bl_stage_answer_t;
typedef void (*bl_stage_answer_fn)(const bl_stage_answer_t *answer, void *context);

BL_MUST_USE bl_status_t bl_stage_client_create(bl_rpc_t *rpc, const char *address, bl_stage_client_t **client,
                                               bl_error_t *err);
void bl_stage_client_destroy(bl_stage_client_t *client); // NULL is fine
const char *bl_stage_client_address(const bl_stage_client_t *client);

typedef struct bl_configure_request {
  const char *job;             // canonical YAML; with `stage` and `orders` everything that the stage must know
  bl_training_orders_t orders; // the orders of a step, as text
  uint32_t stage;
  const char *resume; // folder of a checkpoint to continue from; NULL or "": start from scratch
  uint64_t resume_digest;
} bl_configure_request_t;
// Returns the digest that Configure carries: of all fields except the name of the folder and the orders. Never 0.
uint64_t bl_configure_request_digest(const bl_configure_request_t *configuration);

typedef struct bl_stage_peer {
  int32_t stage;
  const bl_stage_place_t *place;
} bl_stage_peer_t;

typedef struct bl_stage_plan_text {
  bl_plan_record_t record;
  bl_run_kind_t kind;
  uint64_t reservation;               // 0: stages wait for their stores without a limit
  const char *schedule;               // CSV of all stages
  const bl_policy_history_t *history; // BL_RUN_TRAIN: ends with the policy that the plan carries out
} bl_stage_plan_text_t;

typedef struct bl_stage_run_text {
  bl_run_id_t run;
  bl_offer_t offer;       // BL_RUN_TRAIN; attempt 0: none
  uint64_t first_window;  // BL_RUN_VALIDATE
  const uint32_t *tokens; // BL_RUN_GENERATE
  size_t token_count;
  uint64_t draw_seed;
  double temperature;
} bl_stage_run_text_t;

#define BL_STAGE_STATUS_MS 2000 // how long Status may take
// `driver`: the driver that watches the stage; epoch 0: another caller.
void bl_stage_client_status(bl_stage_client_t *client, bl_driver_id_t driver, bl_stage_answer_fn done, void *context);
void bl_stage_client_takeover(bl_stage_client_t *client, bl_driver_id_t driver, const char *run, const char *address,
                              bl_stage_answer_fn done, void *context);
void bl_stage_client_configure(bl_stage_client_t *client, bl_driver_id_t driver,
                               const bl_configure_request_t *configuration, bl_stage_answer_fn done, void *context);
void bl_stage_client_connect(bl_stage_client_t *client, bl_driver_id_t driver, const bl_stage_peer_t *peers,
                             size_t peer_count, const char *data_path, bl_stage_answer_fn done, void *context);
void bl_stage_client_prepare(bl_stage_client_t *client, bl_driver_id_t driver, const bl_stage_plan_text_t *plan,
                             bl_stage_answer_fn done, void *context);
// No deadline: a step may take any time. A stage that dies or stops answering ends the call (keepalive).
void bl_stage_client_run(bl_stage_client_t *client, bl_driver_id_t driver, const bl_stage_run_text_t *run,
                         bl_stage_answer_fn done, void *context);
void bl_stage_client_commit(bl_stage_client_t *client, bl_driver_id_t driver, const bl_commit_t *commit,
                            bl_stage_answer_fn done, void *context);
void bl_stage_client_abort(bl_stage_client_t *client, bl_driver_id_t driver, uint64_t next, uint64_t attempt,
                           bl_stage_answer_fn done, void *context);
void bl_stage_client_snapshot(bl_stage_client_t *client, bl_driver_id_t driver, uint64_t step, bl_stage_answer_fn done,
                              void *context);
// `names` of the two files in `folder`: weights, optimizer. No deadline: writing may take any time.
void bl_stage_client_write_snapshot(bl_stage_client_t *client, bl_driver_id_t driver, uint64_t step, const char *folder,
                                    const char *const names[2], bl_stage_answer_fn done, void *context);
void bl_stage_client_release(bl_stage_client_t *client, bl_driver_id_t driver, bl_stage_answer_fn done, void *context);
void bl_stage_client_stop(bl_stage_client_t *client, bl_driver_id_t driver, bl_stage_answer_fn done, void *context);

// Reads the operations of the last run. `event` fires for each, borrowed, before `done`.
typedef void (*bl_stage_trace_fn)(const bl_trace_event_t *event, void *context);
void bl_stage_client_trace(bl_stage_client_t *client, bl_stage_trace_fn event, bl_stage_answer_fn done, void *context);

#endif
