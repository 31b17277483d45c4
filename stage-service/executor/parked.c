// SPDX-License-Identifier: Apache-2.0
#include "executor/parked.h"

#include "base/bytes.h"
#include "datapath/block.h"
#include "executor/kv_cache.h"
#include "executor/tensor_group.h"
#include "sys/log.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static uint32_t unit_of(const bl_engine_t *engine, bl_op_t op) {
  return bl_schedule_unit(engine->training.schedule, op.micro_batch, op.slice);
}

// Formats a block's name for messages into `text` and returns it.
#define BLOCK_TEXT 64
static const char *block_name(const bl_engine_t *engine, bl_parking_key_t key, char text[BLOCK_TEXT]) {
  const uint32_t slices = engine->training.schedule->slices, unit = key.micro_batch;
  if (slices <= 1) {
    (void)snprintf(text, BLOCK_TEXT, "chunk %u and micro-batch %u", key.virtual_stage, unit);
  } else {
    (void)snprintf(text, BLOCK_TEXT, "chunk %u, micro-batch %u and slice %u", key.virtual_stage, unit / slices,
                   unit % slices);
  }
  return text;
}

static size_t index_of(const bl_engine_t *engine, bl_op_t op) {
  uint32_t chunk = 0;
  while (engine->chunks[chunk].virtual_stage != op.virtual_stage) {
    chunk++;
  }
  return (size_t)chunk * bl_engine_units(engine) + unit_of(engine, op);
}

static bl_engine_block_t *block_of(const bl_parked_t *parked, bl_op_t op) {
  return &parked->engine->blocks[index_of(parked->engine, op)];
}

bl_status_t bl_parked_begin(bl_parked_t *parked, bl_error_t *err) {
  bl_engine_t *engine = parked->engine;
  if (engine->parking == NULL) {
    return BL_OK;
  }
  memset(engine->blocks, 0, (size_t)engine->chunk_count * bl_engine_units(engine) * sizeof *engine->blocks);
  memset(engine->leaving, 0, engine->slot_count * sizeof *engine->leaving);
  return engine->parking->ops->begin(engine->parking, parked->attempt, err);
}

void bl_parked_abort(bl_parked_t *parked) {
  bl_parking_t *parking = parked->engine->parking;
  if (parking != NULL) {
    parking->ops->abort(parking, parked->attempt);
  }
}

// Sets bytes to 0, after the work queued so far.
static bl_status_t clear(const bl_engine_t *engine, uint8_t *from, uint64_t bytes, bl_error_t *err) {
  return bytes == 0 ? BL_OK : bl_device_fill(engine->device, engine->stream, from, 0, bytes, err);
}

// Clears the bytes between the end of a segment and the next segment, which begins at a multiple of 64, and what a
// slice leaves unused. They would differ between two slots.
static bl_status_t clear_padding(const bl_engine_t *engine, const bl_layout_t *layout, uint32_t slice, uint8_t *slot,
                                 bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (uint32_t layer = 0; layer < layout->span.layer_count; layer++) {
    for (int kind = 0; kind < BL_SEGMENT_KINDS; kind++) {
      bl_segment_t segment;
      if (bl_layout_segment(layout, layer, (bl_segment_kind_t)kind, &segment) &&
          (segment.lifetime == BL_LIFETIME_F_TO_I || segment.lifetime == BL_LIFETIME_F_TO_W)) {
        for (uint64_t part = 0; part < bl_segment_parts(&segment) && status == BL_OK; part++) {
          const uint64_t end = bl_segment_end(&segment, part), used = end - bl_layout_unused(layout, &segment, slice);
          status = clear(engine, slot + used, bl_align_up(end, BL_CACHE_LINE_BYTES) - used, err);
        }
      }
    }
  }
  return status;
}

// Whether blocks leave from twins of slots in memory of the host.
static bool parks_twins(const bl_engine_t *engine) {
  return !engine->device->host_memory && !engine->parking->device_memory;
}

// The memory from which blocks leave and into which they are loaded.
static uint8_t *parked_memory(const bl_engine_t *engine, uint32_t slot) {
  return parks_twins(engine) ? bl_engine_slot_twin(engine, slot) : bl_engine_slot(engine, slot);
}

// Where the device writes the checksum of a block as it left, followed by that of the block as it was loaded.
static uint64_t *hashes_of(const bl_engine_t *engine, bl_op_t op) {
  return &engine->block_hashes[2 * index_of(engine, op)];
}

// Queues the hash of a slot on the device; the CPU does not wait.
static bl_status_t hash_on_device(bl_engine_t *engine, bl_op_t op, uint32_t slot, uint64_t *hash, bl_error_t *err) {
  const bl_chunk_t *chunk = bl_engine_chunk(engine, op.virtual_stage);
  uint8_t *block = bl_engine_slot(engine, slot);
  bl_status_t status = clear_padding(engine, bl_chunk_layout(chunk), op.slice, block, err);
  if (status == BL_OK) {
    engine->ops->checksum(engine->compute, bl_chunk_sizes(chunk).evict_bytes, block, hash);
  }
  return status;
}

// Makes the next transfer of this slot begin after the work queued so far.
static bl_status_t mark_slot(const bl_engine_t *engine, uint32_t slot, bl_parked_block_t *parked, bl_error_t *err) {
  parked->ready = engine->slot_marks[slot];
  return bl_device_event_record(engine->device, engine->slot_marks[slot], engine->stream, err);
}

// Returns the checksum of the block in a slot. A device is waited for, but only for a recomputed block.
static bl_status_t checksum_of(const bl_parked_t *parked, bl_op_t op, uint32_t slot, uint64_t *checksum,
                               bl_error_t *err) {
  bl_engine_t *engine = parked->engine;
  const bl_chunk_t *chunk = bl_engine_chunk(engine, op.virtual_stage);
  if (!engine->device->host_memory) {
    uint64_t *hash = hashes_of(engine, op) + 1;
    bl_status_t status = hash_on_device(engine, op, slot, hash, err);
    status = status == BL_OK ? bl_engine_finish(engine, err) : status;
    *checksum = status == BL_OK ? *hash : *checksum;
    return status;
  }
  uint8_t *block = bl_engine_slot(engine, slot);
  bl_status_t status = clear_padding(engine, bl_chunk_layout(chunk), op.slice, block, err);
  *checksum = bl_block_checksum(block, bl_chunk_sizes(chunk).evict_bytes);
  return status;
}

// Copies a block that its slot's twin received into the slot, before the work that is queued next. Hashes a block that
// the slot itself received, for bl_parked_judge.
static bl_status_t take_in(const bl_parked_t *parked, bl_op_t op, bl_engine_block_t *block, bl_error_t *err) {
  bl_engine_t *engine = parked->engine;
  if (engine->device->host_memory) {
    return BL_OK;
  }
  if (parks_twins(engine)) {
    return bl_device_copy(engine->device, engine->stream, bl_engine_slot(engine, block->slot),
                          bl_engine_slot_twin(engine, block->slot), block->parked.bytes, err);
  }
  block->checked = true;
  return hash_on_device(engine, op, block->slot, hashes_of(engine, op) + 1, err);
}

// A transfer may wait for this device, and so for other ranks (bl_engine_give). Returns when nothing is left to give.
static bl_status_t give_until_moved(const bl_parked_t *parked, bl_parking_key_t key, uint64_t deadline_ns,
                                    bl_error_t *err) {
  bl_parking_t *parking = parked->engine->parking;
  const struct timespec pause = {.tv_nsec = BL_ENGINE_POLL_NS};
  for (;;) {
    bool pending;
    bl_status_t status = bl_engine_give(parked->engine, &pending, err);
    if (status != BL_OK || !pending || parking->ops->poll(parking, key) || bl_clock_now_ns() >= deadline_ns) {
      return status;
    }
    nanosleep(&pause, NULL);
  }
}

// Adds a transfer that has moved its block to the trace.
static void trace_transfer(const bl_parked_t *parked, const bl_parked_block_t *block, bl_op_type_t type) {
  const bl_engine_t *engine = parked->engine;
  const uint32_t slices = engine->training.schedule->slices;
  const bl_parking_span_t span = engine->parking->ops->span(engine->parking, block->key);
  const bl_op_t op = {.type = (uint8_t)type,
                      .slice = (uint8_t)(block->key.micro_batch % slices),
                      .virtual_stage = (uint16_t)block->key.virtual_stage,
                      .micro_batch = block->micro_batch,
                      .store = block->store};
  char cell[BL_OP_TEXT];
  bl_trace_add_transfer(engine->trace, bl_op_format_slice(op, slices > 1, cell), (int32_t)block->micro_batch,
                        block->bytes, span.asked_ns, span.ended_ns);
}

// Waits for the transfer of a block.
static bl_status_t wait_over(bl_parked_t *parked, const bl_engine_block_t *block, const char *name,
                             bl_parking_outcome_t *outcome, bl_error_t *err) {
  bl_parking_t *parking = parked->engine->parking;
  bl_parking_key_t key = block->parked.key;
  if (parking->ops->poll(parking, key)) {
    return parking->ops->wait(parking, key, bl_clock_now_ns() + parking->timeout_ns, outcome, err);
  }
  uint64_t start_ns = bl_stall_begin(parked->stall);
  bl_status_t status = give_until_moved(parked, key, start_ns + parking->timeout_ns, err);
  if (status == BL_OK) {
    status = parking->ops->wait(parking, key, start_ns + parking->timeout_ns, outcome, err);
  }
  bl_stall_end(parked->stall, name, key.micro_batch / parked->engine->training.schedule->slices, start_ns);
  return status;
}

static bl_status_t wait_transfer(bl_parked_t *parked, const bl_engine_block_t *block, bl_op_type_t type,
                                 bl_parking_outcome_t *outcome, bl_error_t *err) {
  bl_status_t status = wait_over(parked, block, type == BL_OP_E ? "eviction" : "load", outcome, err);
  if (status == BL_OK && *outcome == BL_PARKING_DONE && parked->engine->parking->ops->span != NULL) {
    trace_transfer(parked, &block->parked, type);
  }
  return status;
}

void bl_parked_made(bl_parked_t *parked, const bl_planned_op_t *op) {
  block_of(parked, op->op)->input = op->input;
}

// ---- evictions

static void drop(bl_parked_t *parked, bl_engine_block_t *block) {
  block->place = BL_BLOCK_DROPPED;
  parked->counters->dropped++;
  parked->stall->slots_in_use--;
}

static bl_status_t finish_leaving(bl_parked_t *parked, bl_engine_block_t *block, bl_error_t *err) {
  bl_parking_outcome_t outcome;
  bl_status_t status = wait_transfer(parked, block, BL_OP_E, &outcome, err);
  if (status != BL_OK) {
    return status;
  }
  parked->engine->leaving[block->slot] = (bl_engine_leaving_t){0};
  if (outcome == BL_PARKING_LOST) { // the slot is needed, so the block is dropped
    drop(parked, block);
    return BL_OK;
  }
  block->place = BL_BLOCK_PARKED;
  parked->counters->evicted++;
  parked->stall->slots_in_use--;
  return BL_OK;
}

// Sets the block's checksum, or what makes it known later. A block that left before keeps the hash that it had then.
static bl_status_t leave(bl_parked_t *parked, const bl_planned_op_t *op, bl_engine_block_t *block,
                         bl_parked_block_t *leaves, bl_error_t *err) {
  bl_engine_t *engine = parked->engine;
  if (engine->device->host_memory) {
    return checksum_of(parked, op->op, op->slot, &leaves->checksum, err);
  }
  uint64_t *hash = hashes_of(engine, op->op);
  bl_status_t status = block->hashed ? BL_OK : hash_on_device(engine, op->op, op->slot, hash, err);
  block->hashed = true;
  if (status == BL_OK && parks_twins(engine)) {
    status = bl_device_copy(engine->device, engine->stream, bl_engine_slot_twin(engine, op->slot),
                            bl_engine_slot(engine, op->slot), leaves->bytes, err);
  } else {
    leaves->hash = hash;
  }
  return status == BL_OK ? mark_slot(engine, op->slot, leaves, err) : status;
}

bl_status_t bl_parked_evict(bl_parked_t *parked, const bl_planned_op_t *op, bl_error_t *err) {
  bl_engine_t *engine = parked->engine;
  bl_status_t status = bl_parked_wait_block(parked, op, err); // loaded a moment ago, evicted again
  if (status != BL_OK) {
    return status;
  }
  uint64_t start_ns = bl_clock_now_ns();
  bl_engine_block_t *block = block_of(parked, op->op);
  bl_parked_block_t leaves = {
      .key = {parked->attempt, op->op.virtual_stage, unit_of(engine, op->op)},
      .micro_batch = op->op.micro_batch,
      .store = op->op.store,
      .bytes = bl_chunk_sizes(bl_engine_chunk(engine, op->op.virtual_stage)).evict_bytes,
  };
  status = leave(parked, op, block, &leaves, err);
  if (status != BL_OK) {
    return status;
  }
  block->place = BL_BLOCK_LEAVING;
  block->slot = op->slot;
  block->parked = leaves;
  status = engine->parking->ops->begin_evict(engine->parking, &block->parked, parked_memory(engine, op->slot), err);
  if (status == BL_UNAVAILABLE) {
    bl_error_clear(err);
    drop(parked, block);
    status = BL_OK;
  } else if (status == BL_OK) {
    engine->leaving[op->slot] = (bl_engine_leaving_t){.block = block, .free_before_op = op->slot_free_at};
  }
  parked->counters->busy_ns += bl_clock_now_ns() - start_ns;
  return status;
}

bl_status_t bl_parked_reap(bl_parked_t *parked, size_t index, bl_error_t *err) {
  bl_engine_t *engine = parked->engine;
  bl_status_t status = BL_OK;
  for (uint32_t slot = 0; engine->parking != NULL && slot < engine->slot_count && status == BL_OK; slot++) {
    bl_engine_leaving_t *leaving = &engine->leaving[slot];
    if (leaving->block != NULL && leaving->free_before_op <= index &&
        engine->parking->ops->poll(engine->parking, leaving->block->parked.key)) {
      status = finish_leaving(parked, leaving->block, err);
    }
  }
  return status;
}

bl_status_t bl_parked_wait_slot(bl_parked_t *parked, uint32_t slot, bl_error_t *err) {
  const bl_engine_t *engine = parked->engine;
  if (engine->parking == NULL || engine->leaving[slot].block == NULL) {
    return BL_OK;
  }
  return finish_leaving(parked, engine->leaving[slot].block, err);
}

// ---- loads

bl_status_t bl_parked_load(bl_parked_t *parked, const bl_planned_op_t *op, bl_error_t *err) {
  bl_engine_t *engine = parked->engine;
  bl_engine_block_t *block = block_of(parked, op->op);
  bl_status_t status = BL_OK;
  if (block->place == BL_BLOCK_LEAVING) {
    status = finish_leaving(parked, block, err);
  }
  block->slot = op->slot;
  if (status != BL_OK || block->place == BL_BLOCK_DROPPED) {
    return status;
  }
  if (!engine->device->host_memory) { // work queued on the slot, or on its twin, may not have run yet
    status = mark_slot(engine, op->slot, &block->parked, err);
    if (status != BL_OK) {
      return status;
    }
  }
  block->place = BL_BLOCK_RETURNING;
  status = engine->parking->ops->begin_load(engine->parking, &block->parked, parked_memory(engine, op->slot), err);
  if (status == BL_UNAVAILABLE) {
    bl_error_clear(err);
    block->place = BL_BLOCK_LOST;
    parked->counters->lost++;
    status = BL_OK;
  }
  return status;
}

// R of a block that was not loaded. The result must have the bits that F left.
static bl_status_t make_again(bl_parked_t *parked, const bl_planned_op_t *op, bl_engine_block_t *block,
                              bl_error_t *err) {
  bl_engine_t *engine = parked->engine;
  uint64_t start_ns = bl_clock_now_ns(), stalled_ns = parked->stall->total_ns;
  bl_kv_cache_use(engine, parked->plan, op->op);
  bl_chunk_recompute(bl_engine_chunk(engine, op->op.virtual_stage), bl_engine_edge(engine, block->input),
                     bl_engine_slot(engine, block->slot));
  uint64_t found = 0;
  bl_status_t status = engine->tensor_group != NULL ? bl_group_status(&engine->tensor_group->group, err) : BL_OK;
  status = status == BL_OK ? checksum_of(parked, op->op, block->slot, &found, err) : status;
  if (status != BL_OK) {
    return status;
  }
  const uint64_t end_ns = bl_clock_now_ns(), waited_ns = parked->stall->total_ns - stalled_ns;
  parked->counters->busy_ns += end_ns - start_ns - waited_ns;
  parked->counters->recomputed += block->place != BL_BLOCK_HOME;
  bl_op_t cell = op->op;
  cell.type = BL_OP_R;
  char name[BL_OP_TEXT];
  bl_trace_add_operation(engine->trace, bl_op_format_slice(cell, engine->training.schedule->slices > 1, name),
                         (int32_t)cell.micro_batch, parked->stall->slots_in_use, start_ns, end_ns, waited_ns);
  block->place = BL_BLOCK_HOME;
  block->checked = false; // the loaded bytes, if any, were overwritten
  const uint64_t expected = block->hashed ? *hashes_of(engine, op->op) : block->parked.checksum;
  if (found != expected) {
    char rank_name[BL_GRID_NAME_BYTES], text[BLOCK_TEXT];
    return bl_error_set(err, BL_DATA_LOSS,
                        "%s: the block of %s was evicted with checksum %016lx and recomputed with %016lx: memory of "
                        "this machine changed under it, or its operations do not repeat "
                        "their bits",
                        bl_engine_name(engine, rank_name), block_name(engine, block->parked.key, text), expected,
                        found);
  }
  return BL_OK;
}

// A recomputation takes all ranks that share the block's layers. If one of them has lost the block, the others
// recompute theirs over what was loaded, to the same bits. All ranks call this for the same blocks.
static bool lost_by_some(bl_engine_t *engine, const bl_engine_block_t *block) {
  const bool here = block->place != BL_BLOCK_HOME;
  return engine->tensor_group != NULL ? bl_group_agree(&engine->tensor_group->group, BL_EXCHANGE_BUFFER_ROWS, here)
                                      : here;
}

bl_status_t bl_parked_wait_block(bl_parked_t *parked, const bl_planned_op_t *op, bl_error_t *err) {
  if (parked->engine->parking == NULL) {
    return BL_OK;
  }
  bl_engine_block_t *block = block_of(parked, op->op);
  if (block->place == BL_BLOCK_HOME) {
    return BL_OK;
  }
  if (block->place == BL_BLOCK_RETURNING) {
    bl_parking_outcome_t outcome;
    bl_status_t status = wait_transfer(parked, block, BL_OP_L, &outcome, err);
    if (status == BL_OK && outcome == BL_PARKING_DONE) {
      status = take_in(parked, op->op, block, err);
    }
    if (status != BL_OK) {
      return status;
    }
    block->place = outcome == BL_PARKING_DONE ? BL_BLOCK_HOME : BL_BLOCK_LOST;
    parked->counters->loaded += outcome == BL_PARKING_DONE;
    parked->counters->lost += outcome == BL_PARKING_LOST;
  }
  if (block->place == BL_BLOCK_LOST && parked->engine->job.balance.on_loss == BL_JOB_ON_LOSS_ABORT) {
    char rank_name[BL_GRID_NAME_BYTES], name[BL_STORE_TEXT], text[BLOCK_TEXT];
    return bl_error_set(err, BL_DATA_LOSS,
                        "%s: the %s lost the block of %s; with "
                        "balance.on_loss: abort the step is repeated",
                        bl_engine_name(parked->engine, rank_name),
                        bl_store_format(parked->engine->training.stage_count, block->parked.store, name),
                        block_name(parked->engine, block->parked.key, text));
  }
  return lost_by_some(parked->engine, block) ? make_again(parked, op, block, err) : BL_OK;
}

bl_status_t bl_parked_judge(const bl_parked_t *parked, bl_error_t *err) {
  const bl_engine_t *engine = parked->engine;
  const uint32_t units = bl_engine_units(engine);
  for (size_t i = 0; engine->parking != NULL && i < (size_t)engine->chunk_count * units; i++) {
    const bl_engine_block_t *block = &engine->blocks[i];
    if (block->checked && engine->block_hashes[2 * i] != engine->block_hashes[2 * i + 1]) {
      char name[BL_STORE_TEXT], rank_name[BL_GRID_NAME_BYTES], text[BLOCK_TEXT];
      return bl_error_set(err, BL_DATA_LOSS, "%s: the block of %s came back changed from the %s; the step is run again",
                          bl_engine_name(engine, rank_name), block_name(engine, block->parked.key, text),
                          bl_store_format(engine->training.stage_count, block->parked.store, name));
    }
  }
  return BL_OK;
}
