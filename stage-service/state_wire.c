// SPDX-License-Identifier: Apache-2.0
#include "state_wire.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void bl_vote_to_wire(const bl_vote_t *vote, bl_vote_wire_t *wire) {
  wire->counters = (Ballast__V1__StageCounters)BALLAST__V1__STAGE_COUNTERS__INIT;
  BL_STAGE_COUNTERS(BL_COUNTER_COPY, &wire->counters, &vote->counters)
  wire->counters.leased_peaks = vote->leased_peaks;
  wire->counters.n_leased_peaks = vote->store_count;
  Ballast__V1__Vote *message = &wire->message;
  *message = (Ballast__V1__Vote)BALLAST__V1__VOTE__INIT;
  message->step = vote->step;
  message->attempt = vote->attempt;
  message->plan_version = vote->plan_version;
  message->finite = vote->finite;
  message->nonfinite_micro_batch = vote->nonfinite_micro_batch;
  message->losses = vote->losses;
  message->n_losses = vote->loss_count;
  message->parameter = vote->parameter_indices;
  message->n_parameter = vote->square_count;
  message->squares = vote->squares;
  message->n_squares = vote->square_count;
  message->tokens = vote->token_count;
  message->counters = &wire->counters;
}

void bl_state_to_wire(const bl_stage_t *stage, bl_state_wire_t *wire) {
  const bl_stage_step_t *step = bl_stage_step(stage);
  const bl_engine_t *engine = bl_stage_engine(stage);
  Ballast__V1__StageState *message = &wire->message;
  *message = (Ballast__V1__StageState)BALLAST__V1__STAGE_STATE__INIT;
  message->epoch = step->driver.epoch;
  message->incarnation = bl_stage_incarnation(stage);
  message->configured = step->configured;
  message->applied = step->applied;
  message->highest_attempt = bl_stage_step_highest(step);
  message->plan_version = step->plan_version;
  message->stage = engine == NULL ? -1 : (int32_t)engine->rank;
  message->process = getpid();
  message->connected = bl_stage_is_connected(stage);
  message->resumed = bl_stage_resumed(stage);
  if (bl_stage_step_is_prepared(step)) {
    bl_vote_to_wire(bl_stage_vote(stage), &wire->prepared);
    message->prepared = &wire->prepared.message;
    if (step->ahead != BL_AHEAD_NONE) {
      wire->ahead = (Ballast__V1__Offer)BALLAST__V1__OFFER__INIT;
      wire->ahead.attempt = step->offer.attempt;
      wire->ahead.scale = step->offer.scale;
      wire->ahead.learning_rate = step->offer.learning_rate;
      message->ahead = &wire->ahead;
    }
  }
  if (step->last_commit.step > 0) {
    bl_vote_to_wire(bl_stage_commit_vote(stage), &wire->committed);
    wire->commit = (Ballast__V1__CommitRecord)BALLAST__V1__COMMIT_RECORD__INIT;
    wire->commit.step = step->last_commit.step;
    wire->commit.attempt = step->last_commit.attempt;
    wire->commit.scale = step->last_commit.scale;
    wire->commit.learning_rate = step->last_commit.learning_rate;
    wire->commit.recorder = step->last_commit.recorder;
    wire->commit.vote = &wire->committed.message;
    message->last_commit = &wire->commit;
  }
}

void bl_memory_to_wire(const bl_memory_account_t *account, bl_memory_wire_t *wire) {
  for (int tag = 0; tag < BL_MEMORY_TAGS; tag++) {
    Ballast__V1__MemoryTag *message = &wire->tags[tag];
    *message = (Ballast__V1__MemoryTag)BALLAST__V1__MEMORY_TAG__INIT;
    message->name = (char *)bl_memory_tag_name((bl_memory_tag_t)tag);
    message->planned_bytes = bl_memory_usage(account, (bl_memory_tag_t)tag).planned_bytes;
    wire->pointers[tag] = message;
  }
}

void bl_choices_to_wire(const bl_ops_choice_t *choices, size_t count, bl_choices_wire_t *wire) {
  *wire = (bl_choices_wire_t){.messages = calloc(count + 1, sizeof *wire->messages),
                              .pointers = calloc(count + 1, sizeof(Ballast__V1__Choice *))};
  for (size_t i = 0; i < count && wire->messages != NULL && wire->pointers != NULL; i++) {
    Ballast__V1__Choice *message = &wire->messages[i];
    *message = (Ballast__V1__Choice)BALLAST__V1__CHOICE__INIT;
    message->shape = (char *)choices[i].shape;
    message->algorithm = (char *)choices[i].algorithm;
    wire->pointers[i] = message;
    wire->count = i + 1;
  }
}

void bl_choices_wire_cleanup(bl_choices_wire_t *wire) {
  free(wire->messages);
  free(wire->pointers);
  *wire = (bl_choices_wire_t){0};
}

void bl_paths_to_wire(bl_transport_t *transport, bl_paths_wire_t *wire) {
  size_t count = bl_transport_paths(transport, wire->paths, BL_TRANSPORT_MAX_PEERS);
  wire->count = count < BL_TRANSPORT_MAX_PEERS ? count : BL_TRANSPORT_MAX_PEERS;
  for (size_t i = 0; i < wire->count; i++) {
    Ballast__V1__PeerPath *message = &wire->messages[i];
    *message = (Ballast__V1__PeerPath)BALLAST__V1__PEER_PATH__INIT;
    message->stage = wire->paths[i].peer;
    message->data_path = (char *)bl_path_name(wire->paths[i].path);
    message->reason = wire->paths[i].reason;
    wire->pointers[i] = message;
  }
}

bl_status_t bl_peer_from_wire(const Ballast__V1__Peer *message, bl_transport_peer_t *peer, bl_error_t *err) {
  if (message->token.len != BL_TRANSPORT_TOKEN_BYTES) {
    return bl_error_set(err, BL_INVALID, "token of rank %d has %zu bytes, not %d", message->stage, message->token.len,
                        BL_TRANSPORT_TOKEN_BYTES);
  }
  *peer = (bl_transport_peer_t){.stage = message->stage,
                                .unix_address = message->unix_address,
                                .tcp_address = message->tcp_address,
                                .machine = message->machine};
  memcpy(peer->token, message->token.data, BL_TRANSPORT_TOKEN_BYTES);
  return BL_OK;
}

bool bl_saved_to_wire(const bl_saver_t *saver, bl_saved_wire_t *wire) {
  *wire = (bl_saved_wire_t){.message = BALLAST__V1__WRITE_SNAPSHOT_RESPONSE__INIT};
  wire->message.files = wire->pointers;
  for (int i = 0; i < 2; i++) {
    bl_saver_file_t saved = bl_saver_file(saver, (bl_checkpoint_shard_kind_t)i);
    Ballast__V1__SavedFile *file = &wire->files[i];
    *file = (Ballast__V1__SavedFile)BALLAST__V1__SAVED_FILE__INIT;
    file->name = (char *)saved.name;
    file->size_bytes = saved.image->size_bytes;
    file->head_checksum = saved.checksums->head;
    file->checksums = saved.checksums->tensors;
    file->n_checksums = saved.image->tensor_count;
    file->tensors = calloc(saved.image->tensor_count + 1, sizeof *file->tensors);
    file->tile_bytes = calloc(saved.image->tensor_count + 1, sizeof *file->tile_bytes);
    wire->pointers[i] = file;
    wire->message.n_files = (size_t)i + 1;
    if (file->tensors == NULL || file->tile_bytes == NULL) {
      bl_saved_wire_cleanup(wire);
      return false;
    }
    for (size_t k = 0; k < saved.image->tensor_count; k++) {
      const uint64_t tile_bytes = saved.image->tiles[k] * sizeof(float);
      file->tensors[k] = (char *)saved.image->tensors[k].name;
      file->tile_bytes[k] = tile_bytes < saved.image->tensors[k].size_bytes ? tile_bytes : 0;
    }
    file->n_tensors = file->n_tile_bytes = saved.image->tensor_count;
  }
  return true;
}

void bl_saved_wire_cleanup(bl_saved_wire_t *wire) {
  for (size_t i = 0; i < wire->message.n_files; i++) {
    free(wire->files[i].tensors);
    free(wire->files[i].tile_bytes);
  }
  *wire = (bl_saved_wire_t){0};
}
