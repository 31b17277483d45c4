// SPDX-License-Identifier: Apache-2.0
// The memory that one chunk, or a stage with all of its chunks, needs. The fields match the tags that metrics and
// planner share. Executor and planner both use these functions, so the plan equals what is allocated.
//
//   bl_stage_memory_request_t request = {.model = &model, .spans = spans, .span_count = 2, .options = layout, ...};
//   bl_stage_memory_t memory;
//   if (bl_stage_memory(&request, &memory) == BL_OK) {
//     memory.weight_bytes, memory.slot_bytes * request.slots, ...
//   }
//
// Pure. Thread: values, any thread.
#ifndef BALLAST_MODEL_MEMORY_H
#define BALLAST_MODEL_MEMORY_H

#include "model/chunk_span.h"
#include "model/grid.h"
#include "model/layout.h"
#include "model/model.h"

typedef struct bl_chunk_memory {
  uint64_t weight_bytes;
  uint64_t gradient_bytes;      // two buffers of the token embedding if embedding and tied head are both here
  uint64_t slot_bytes;          // of one slot
  uint64_t evict_bytes;         // of the bytes that move when a block is evicted
  uint64_t edge_bytes;          // of one edge buffer
  uint64_t workspace_bytes;     // without the back end's own
  uint64_t page_bytes;          // of one page of the KV cache, if sequences are cut into slices
  uint64_t page_gradient_bytes; // of one page of its gradients
} bl_chunk_memory_t;

bl_status_t bl_chunk_memory(const bl_model_t *model, bl_chunk_span_t span, bl_layout_options_t options,
                            bl_chunk_memory_t *memory) BL_MUST_USE;

// What the operations of a compute back end need in addition to what chunks lay out: copies of weights in the order in
// which products read them, and memory to work in. Valid for one shape: model, micro-batch, attention, dtype and
// threads. It depends on library and CPU, so it is queried where the operations will run (compute/model/operations.h).
typedef struct bl_operation_memory {
  uint64_t packed_layer_bytes;    // copies of a layer's weights
  uint64_t packed_head_bytes;     // of the head's weight
  uint64_t layer_workspace_bytes; // of a stage without the head
  uint64_t head_workspace_bytes;  // of a stage with it
  uint64_t held_bytes;            // what the back end keeps for itself, counted as workspace
  bl_logits_t logits;             // the back end's wishes, for the layout options of the request
} bl_operation_memory_t;

// Returns what is known of it without a GPU at hand: in bf16 its products read one rounded copy of every weight, and of
// biases, in the order of the masters. Workspace and held bytes are 0. Per part, as chunks lay the copies out.
bl_operation_memory_t bl_operation_memory_of_gpu(const bl_model_t *model, bl_layer_parts_t layer_parts,
                                                 bl_dtype_t dtype);
// Returns a bound for any CPU, for plans of machines that cannot be asked: on each, all fields are at most this. `threads`
// per stage.
bl_operation_memory_t bl_operation_memory_of_cpu(const bl_model_t *model, bl_layout_options_t options,
                                                 uint32_t threads);

// The loss of a micro-batch as the head writes it (compute/model/chunk.h).
#define BL_STAGE_LOSS_BYTES 16

typedef struct bl_stage_memory_request {
  const bl_model_t *model;
  const bl_chunk_span_t *spans; // [span_count] the chunks of the stage
  uint32_t span_count;
  bl_layout_options_t options;
  const bl_operation_memory_t *operations; // for these options, whose logits it sets; NULL: unknown, and left out
  uint32_t micro_batches;                  // per step and replica
  bool asynchronous;      // the device runs operations after the CPU has gone on (pipeline.device: cuda)
  bool post_validation;   // train.post_validation: a second copy of weights and moments
  bool optimizer_on_host; // train.optimizer_memory: host
  bl_copies_t copies;     // of every chunk. With two pipes spans[0] belongs to pipe 0 and spans[1] to pipe 1
  uint32_t replica;       // which of the replicas this is
} bl_stage_memory_request_t;

typedef struct bl_stage_memory {
  uint64_t weight_bytes;   // on the device, including the copies that products read
  uint64_t gradient_bytes; // without tied_bytes
  uint64_t tied_bytes; // after the gradients: receives the gradient of a tied embedding from the chunk at its other end
  // Both moments of what this stage updates, and its masters if copies share them out; 0 if they are on the host.
  uint64_t optimizer_bytes;
  uint64_t even_bytes;      // of optimizer_bytes: what they were if all copies had equally much
  uint64_t host_bytes;      // on the host: masters of the weights, both moments, and received gradients
  uint64_t fold_bytes;      // waiting sums of gradients, after gradients and tied_bytes
  uint64_t reduce_bytes;    // receives from other copies the gradients that are added here
  uint64_t shadow_bytes;    // of weights and moments; on the host if these are there
  uint64_t window_bytes;    // in which ranks that share layers exchange their parts (model/exchange_buffers.h)
  uint64_t chunk_bytes;     // workspace of the largest chunk
  uint64_t operation_bytes; // workspace of the operations, after it
  uint64_t slot_bytes;      // of one slot
  uint64_t evict_bytes;     // of what moves of a block
  uint64_t edge_bytes;      // of one boundary buffer
  uint64_t page_bytes, page_gradient_bytes; // of one page of the KV cache, and of its gradients
  uint32_t batches; // micro-batches of tokens and labels in memory: 1, or all, as an asynchronous device reads late
  uint64_t squares_at, hash_at, tokens_at, labels_at; // offsets in the data, which begins with the losses
  uint64_t data_bytes;
} bl_stage_memory_t;

// How much of what comes in pieces a stage holds: what the schedule needs.
typedef struct bl_stage_pieces {
  uint32_t slots; // own and lent
  uint32_t edges; // boundary buffers
  uint64_t kv_cache_bytes;
} bl_stage_pieces_t;

// Computes the memory of a stage. BL_INVALID as bl_layout_init; BL_EXHAUSTED. The numbers of slots, boundary buffers
// and pages come from the schedule.
bl_status_t bl_stage_memory(const bl_stage_memory_request_t *request, bl_stage_memory_t *memory) BL_MUST_USE;
// Returns the sum of it, on the device and on the host.
uint64_t bl_stage_memory_total(const bl_stage_memory_t *memory, bl_stage_pieces_t pieces);

#endif
