// SPDX-License-Identifier: Apache-2.0
// The memory that a stage uses on one of its devices.
//
// There are two counts. For our executor: what lib/model lays out, to the byte. For a cluster of GPUs: Korthikanti et
// al. (arXiv 2205.05198), mixed precision with dropout, per layer and micro-batch of s tokens x b sequences, hidden h,
// heads a, tensor parallelism t:
//
//   s b h (10 + 24/t + 5 a s / (h t))        tensor parallelism alone
//   s b h / t (34 + 5 a s / h)               with sequence parallelism
//   without 5 a s / h                        attention recomputed, or flash
//   2 s b h (/ t with sequence parallelism)  everything recomputed
//
// generalised to any width of the feed-forward network. LLaMA, which the paper does not cover, is counted the same way:
// no dropout, keys and values of kv_heads, gate and up kept in addition to their product. With slices, s is that of a
// slice except in 5 a s, which counts all keys; a page holds keys and values of all layers, t-th part each.
//
// Pure. Thread: values, any thread.
#ifndef BALLAST_PLAN_FOOTPRINT_H
#define BALLAST_PLAN_FOOTPRINT_H

#include "model/memory.h"
#include "plan/evaluate/hardware.h"

typedef struct bl_footprint {
  double weights, gradients, optimizer;
  double uneven;      // of optimizer: more than an even share of what all copies have (model/shard.h)
  double activations; // blocks: slots * slot_bytes
  double edges;       // boundary buffers
  double kv_cache;    // with slices: keys and values of slices, and their gradients
  double workspace;
  double data;        // tokens, labels, losses
  double checkpoint;  // image of a checkpoint, if the job writes them
  double shadow;      // second copy of weights and optimizer, if updates may be taken back (train.post_validation)
  double host;        // bytes in memory of the host instead (train.optimizer_memory), not part of the total
  double slot_bytes;  // of one block
  double evict_bytes; // bytes moved for one block
} bl_footprint_t;

static inline double bl_footprint_total(const bl_footprint_t *f) {
  return f->weights + f->gradients + f->optimizer + f->activations + f->edges + f->workspace + f->shadow + f->data +
         f->checkpoint + f->kv_cache;
}

// Returns the bytes that one layer keeps of one micro-batch, or of one slice of it.
double bl_footprint_layer_bytes(const bl_model_t *model, bl_layout_options_t options, bl_parallel_t parallel);
// Returns the parameters of a chunk without padding: the sum over bl_parameter_get, in closed form.
double bl_footprint_parameters(const bl_model_t *model, bl_chunk_span_t span);

// Computes the bytes of a checkpoint's image of these chunks (bl_checkpoint_image_bytes of job/checkpoint_image.h).
typedef bl_status_t (*bl_footprint_image_fn)(const bl_model_t *model, const bl_chunk_span_t *spans, uint32_t span_count,
                                             bl_layer_parts_t layer_parts, bl_copies_t copies, uint32_t replica,
                                             uint64_t *bytes);

// A cluster's count needs of the stage its model, spans, options and what train.* says.
typedef struct bl_footprint_request {
  bl_stage_memory_request_t stage; // the replica that needs the most memory is counted, whatever `replica` is
  uint32_t slots;                  // own and lent blocks on the device
  uint32_t edges;                  // boundary buffers
  uint32_t pages, page_gradients;  // of the KV cache
  bl_footprint_image_fn image;     // for checkpoints, on our executor; NULL: the job writes none
} bl_footprint_request_t;

// Counts a stage of our executor. With stage.operations the sum is to the byte what a stage reports as its memory,
// including the blocks that it lends. BL_INVALID as bl_layout_init; statuses of `image`.
BL_MUST_USE bl_status_t bl_footprint_of_executor(const bl_footprint_request_t *request, bl_footprint_t *footprint);
// Counts one device of a cluster.
bl_footprint_t bl_footprint_of_cluster(const bl_footprint_request_t *request, const bl_hardware_t *hardware,
                                       bl_parallel_t parallel);

#endif
