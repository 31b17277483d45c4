// SPDX-License-Identifier: Apache-2.0
#include "stage_answer_wire.h"

#include "policy_records_wire.h"

#include "ballast/v1/stage.pb-c.h"

#include <stdlib.h>
#include <string.h>

// The result borrows the arrays.
static bl_rank_vote_t read_vote(const Ballast__V1__Vote *wire) {
  bl_rank_vote_t vote = {.nonfinite_micro_batch = -1};
  if (wire == NULL) {
    return vote;
  }
  vote.step = wire->step;
  vote.attempt = wire->attempt;
  vote.finite = wire->finite;
  vote.nonfinite_micro_batch = wire->nonfinite_micro_batch;
  vote.losses = wire->losses;
  vote.loss_count = wire->n_losses;
  vote.parameter_indices = wire->parameter;
  vote.squares = wire->squares;
  vote.square_count = wire->n_squares < wire->n_parameter ? wire->n_squares : wire->n_parameter;
  vote.tokens = wire->tokens;
  const Ballast__V1__StageCounters *counters = wire->counters;
  if (counters != NULL) {
    BL_STAGE_COUNTERS(BL_COUNTER_COPY, &vote.counters, counters)
    vote.leased_peaks = counters->leased_peaks;
    vote.store_count = counters->n_leased_peaks;
  }
  return vote;
}

static void read_state(const Ballast__V1__StageState *state, bl_stage_said_t *said) {
  if (state == NULL) {
    return;
  }
  said->epoch = state->epoch;
  said->incarnation = state->incarnation;
  said->configured = state->configured;
  said->applied = state->applied;
  said->highest_attempt = state->highest_attempt;
  said->plan_version = state->plan_version;
  said->process = state->process;
  said->resumed = state->resumed;
  said->run = state->run;
  said->driver_address = state->driver_address;
  said->driver_silent_ms = state->driver_silent_ms;
  said->prepared = state->prepared != NULL;
  said->vote = read_vote(state->prepared);
  said->vote_plan_version = state->prepared != NULL ? state->prepared->plan_version : 0;
  if (state->ahead != NULL) {
    said->ahead = (bl_offer_t){
        .attempt = state->ahead->attempt, .scale = state->ahead->scale, .learning_rate = state->ahead->learning_rate};
  }
  const Ballast__V1__CommitRecord *commit = state->last_commit;
  if (commit != NULL) {
    said->last_commit = (bl_commit_t){.step = commit->step,
                                      .attempt = commit->attempt,
                                      .scale = commit->scale,
                                      .learning_rate = commit->learning_rate,
                                      .recorder = commit->recorder};
    said->last_vote = read_vote(commit->vote);
  }
}

void bl__answer_takeover(const ProtobufCMessage *output, bl_stage_answer_t *answer, void **made) {
  (void)made;
  const Ballast__V1__TakeoverResponse *response = (const Ballast__V1__TakeoverResponse *)output;
  answer->accepted = response->accepted;
  read_state(response->state, &answer->said);
  const Ballast__V1__StageState *state = response->state;
  for (size_t i = 0; state != NULL && i < state->n_plans && i < BL_STAGE_PLANS; i++) {
    const Ballast__V1__PreparedPlan *plan = state->plans[i];
    bl_policy_history_t *history = &answer->said.policy_histories[i];
    if (!bl_policy_history_from_wire(plan->policies, plan->n_policies, history) || history->count == 0) {
      continue; // unknown to this version: skipped
    }
    answer->said.plans[i] = (bl_plan_record_t){
        .version = plan->version, .digest = plan->digest, .policy = bl_policy_history_current(history)->version};
  }
}

void bl__answer_prepared(const ProtobufCMessage *output, bl_stage_answer_t *answer, void **made) {
  (void)made;
  const Ballast__V1__PreparePlanResponse *response = (const Ballast__V1__PreparePlanResponse *)output;
  if (response->status != 0) {
    (void)bl_error_set(&answer->refusal, bl_status_from_grpc_code(response->status), "%s", response->refusal);
  }
}

void bl__answer_status(const ProtobufCMessage *output, bl_stage_answer_t *answer, void **made) {
  const Ballast__V1__StageStatusResponse *response = (const Ballast__V1__StageStatusResponse *)output;
  read_state(response->state, &answer->said);
  answer->packed_bytes = protobuf_c_message_get_packed_size(output);
  *made = malloc(answer->packed_bytes + 1);
  if (*made != NULL) {
    protobuf_c_message_pack(output, *made);
    answer->packed = *made;
  }
}

void bl__answer_place(const ProtobufCMessage *output, bl_stage_answer_t *answer, void **made) {
  const Ballast__V1__ConfigureResponse *response = (const Ballast__V1__ConfigureResponse *)output;
  bl_stage_place_t *place = &answer->place;
  place->unix_address = response->unix_address;
  place->tcp_address = response->tcp_address;
  place->machine = response->machine;
  place->token_bytes = response->token.len < BL_STAGE_TOKEN_BYTES ? response->token.len : BL_STAGE_TOKEN_BYTES;
  if (place->token_bytes > 0) {
    memcpy(place->token, response->token.data, place->token_bytes);
  }
  place->slot_bytes = response->slot_bytes;
  // One block holds the memory shares, then the choices.
  bl_memory_share_t *memory =
      calloc(1, (response->n_memory + 1) * sizeof *memory + response->n_choices * sizeof *place->choices);
  *made = memory;
  place->memory = memory;
  place->choices = memory != NULL ? (bl_choice_share_t *)(void *)(memory + response->n_memory + 1) : NULL;
  for (size_t i = 0; memory != NULL && i < response->n_choices; i++) {
    place->choices[i] = (bl_choice_share_t){response->choices[i]->shape, response->choices[i]->algorithm};
    place->choice_count = i + 1;
  }
  for (size_t i = 0; memory != NULL && i < response->n_memory; i++) {
    memory[i] = (bl_memory_share_t){response->memory[i]->name, response->memory[i]->planned_bytes};
    place->memory_count = i + 1;
  }
}

void bl__answer_paths(const ProtobufCMessage *output, bl_stage_answer_t *answer, void **made) {
  const Ballast__V1__ConnectResponse *response = (const Ballast__V1__ConnectResponse *)output;
  bl_path_share_t *paths = calloc(response->n_paths + 1, sizeof *paths);
  *made = paths;
  answer->paths = paths;
  for (size_t i = 0; paths != NULL && i < response->n_paths; i++) {
    const Ballast__V1__PeerPath *path = response->paths[i];
    paths[i] = (bl_path_share_t){.stage = path->stage, .data_path = path->data_path, .reason = path->reason};
    answer->path_count = i + 1;
  }
}

void bl__answer_run(const ProtobufCMessage *output, bl_stage_answer_t *answer, void **made) {
  (void)made;
  const Ballast__V1__RunResponse *response = (const Ballast__V1__RunResponse *)output;
  answer->vote = read_vote(response->vote);
  answer->token = response->token;
}

// One block holds the files, then the tensors of all of them.
void bl__answer_files(const ProtobufCMessage *output, bl_stage_answer_t *answer, void **made) {
  const Ballast__V1__WriteSnapshotResponse *response = (const Ballast__V1__WriteSnapshotResponse *)output;
  size_t tensors = 0;
  for (size_t i = 0; i < response->n_files; i++) {
    tensors += response->files[i]->n_tensors;
  }
  bl_checkpoint_file_t *files =
      malloc(response->n_files * sizeof *files + tensors * sizeof(bl_checkpoint_tensor_t) + 1);
  *made = files;
  if (files == NULL) {
    return;
  }
  bl_checkpoint_tensor_t *next = (bl_checkpoint_tensor_t *)(void *)(files + response->n_files);
  for (size_t i = 0; i < response->n_files; i++) {
    const Ballast__V1__SavedFile *file = response->files[i];
    size_t count = file->n_tensors < file->n_checksums ? file->n_tensors : file->n_checksums;
    files[i] = (bl_checkpoint_file_t){.name = file->name,
                                      .size_bytes = file->size_bytes,
                                      .head_checksum = file->head_checksum,
                                      .tensors = next,
                                      .tensor_count = count};
    for (size_t k = 0; k < count; k++) {
      *next++ = (bl_checkpoint_tensor_t){.name = file->tensors[k],
                                         .checksum = file->checksums[k],
                                         .tile_bytes = k < file->n_tile_bytes ? file->tile_bytes[k] : 0};
    }
  }
  answer->files = files;
  answer->file_count = response->n_files;
}
