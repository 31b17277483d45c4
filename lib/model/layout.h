// SPDX-License-Identifier: Apache-2.0
// The activation block of one chunk for one micro-batch: where each saved tensor lies in its slot, and how long it
// lives. Executor, planner and eviction use this one table (EXECUTION.md items 1 to 5).
//
// Tensors of a layer, T = micro_batch * seq rows (units of T * hidden for gpt2):
//
//   x1 1  norm1 1  qkv 3  attention 1  x2 1  norm2 1  pre 4  act 4 = 16
//   (the first layer's x1 is the input edge)
//
// Models that normalise the outputs of attention and of the feed-forward layer keep these as well (post1, post2: 2
// more). In models that normalise query and key heads, qkv holds the values before that norm. The values that attention
// reads are recomputed from it in workspace.
//
// The backward writes each gradient over a tensor that is no longer needed: dqkv over qkv, dpre over pre, dx2 over x2,
// dx over x1. The gradients of the inputs of post norms are written over these inputs (the last of them is the output
// gradient of the layer below). So a split backward needs no second slot: I leaves in the same bytes what W reads.
//
// Segments that the backward for inputs (I) can recompute need not be kept. The bits are the same: the same kernels
// run on the same values.
//   lean                  norm1, norm2, act: 10 units instead of 16, for about 1 % of the time
//   recompute attention   scores and attention from qkv (selective recomputation, Korthikanti et al., arXiv 2205.05198)
//   recompute full        everything: the input edge is the block. F runs in workspace, one layer at a time; R fills a
//                         whole slot, which lives from R to W
// Recomputed scores live inside their layer only. W reads the other recomputed segments. With a fused backward these
// lie in workspace, one set however many blocks are in flight. With a split backward I writes them into the slot, which
// keeps its size while evict_bytes shrinks. Segments that live from F come first, so an evicted block is the prefix
// [0, evict_bytes) of its slot.
//
// If a layer is in parts (model/layer_parts.h), a rank with k of them keeps its own rows of the outputs of norms and
// residuals. Of the outputs of the products of a part it keeps all rows for each of its k parts, one part after the
// other, each on a cache line.
//
// If sequences are cut into slices (pipeline.slices), a block is that of one slice: T = micro_batch * seq / slices.
// What the attention of later slices reads from it is kept outside the slot in a *page of the KV cache*, also while the
// block is evicted. The page holds the keys and values of every layer, [layers][parts here]
// [b, seq / slices, 2 kv_width], from F of the slice to the end of its I. A second page of the same shape in float
// collects the gradients that the backwards of later slices add to these keys and values, from the I of the last slice
// to the slice's own I.
//
// Pure. Thread: values, any thread.
#ifndef BALLAST_MODEL_LAYOUT_H
#define BALLAST_MODEL_LAYOUT_H

#include "model/chunk_span.h"
#include "model/dtype.h"
#include "model/layer_parts.h"
#include "model/model.h"

typedef enum bl_attention {
  BL_ATTENTION_NAIVE, // stores probabilities
  BL_ATTENTION_FLASH, // stores the log-sum-exp
} bl_attention_t;

typedef enum bl_backward {
  BL_BACKWARD_SPLIT, // I and W are separate operations (they may still follow each other)
  BL_BACKWARD_FUSED, // B only: a block's W follows its I without another operation between them
} bl_backward_t;

typedef enum bl_recompute {
  BL_RECOMPUTE_NONE,
  BL_RECOMPUTE_ATTENTION,
  BL_RECOMPUTE_FULL,
} bl_recompute_t;

typedef enum bl_lifetime {
  BL_LIFETIME_F_TO_I,
  BL_LIFETIME_F_TO_W,
  BL_LIFETIME_I_TO_W,
  BL_LIFETIME_BACKWARD, // from I to W of a fused B: workspace, separate for each layer; no bytes in the slot
  BL_LIFETIME_LAYER,    // inside one layer of one operation: workspace that all layers share; no bytes in the slot
} bl_lifetime_t;

typedef enum bl_segment_kind {
  BL_SEGMENT_X1,          // [T, hidden]: input of the layer, then its gradient
  BL_SEGMENT_NORM1_STATS, // float [T] mean (gpt2), then [T] reciprocal standard deviation
  BL_SEGMENT_NORM1,       // [T, hidden]
  BL_SEGMENT_QKV,         // [T, qkv_width], then its gradient
  BL_SEGMENT_HEADS,       // [T, qkv_width] of one part: qkv after the norm of query and key heads, if the model has it
  BL_SEGMENT_SCORES,      // naive: [b, heads, seq, seq]; flash: float log-sum-exp [b, heads, seq]
  BL_SEGMENT_ATTENTION,   // [T, query_width]
  BL_SEGMENT_POST1,       // [T, hidden], then its gradient: output of attention before its norm
  BL_SEGMENT_POST1_STATS, // as norm 1's
  BL_SEGMENT_X2,          // [T, hidden], then its gradient
  BL_SEGMENT_NORM2_STATS, // as norm 1's
  BL_SEGMENT_NORM2,       // [T, hidden]
  BL_SEGMENT_PRE,         // [T, pre_width], then its gradient; llama: gate, then up in each row
  BL_SEGMENT_ACT,         // [T, ffn]
  BL_SEGMENT_POST2,       // [T, hidden], then its gradient: output of the feed-forward layer before its norm
  BL_SEGMENT_POST2_STATS, // as norm 1's
  BL_SEGMENT_NORM1_GRADIENT, // float [norm_vectors, hidden]: this micro-batch's contribution
  BL_SEGMENT_NORM2_GRADIENT, // as norm 1's
  BL_SEGMENT_HEADS_GRADIENT, // float [2, head_dim]: weights of the norms of queries and keys
  BL_SEGMENT_POST1_GRADIENT, // as norm 1's
  BL_SEGMENT_POST2_GRADIENT, // as norm 1's
  BL_SEGMENT_FINAL_GRADIENT, // as norm 1's, of the final norm; once per last chunk, not per layer
  BL_SEGMENT_KINDS
} bl_segment_kind_t;

typedef struct bl_segment {
  bl_segment_kind_t kind;
  uint32_t layer; // inside the chunk, from 0
  bl_lifetime_t lifetime;
  uint64_t offset_bytes; // in the slot, or in the region of the workspace for its lifetime. A multiple of 64
  uint64_t bytes;        // unpadded
  uint64_t part_bytes;   // distance between two of this rank's parts; meaningless if the segment is not in parts
} bl_segment_t;

// Returns the number of parts of a segment. bl_segment_end returns the end of the data of part `index`; the bytes
// between there and the next multiple of 64 are padding.
static inline uint64_t bl_segment_parts(const bl_segment_t *segment) {
  return segment->bytes == 0 ? 0 : (segment->bytes - 1) / segment->part_bytes + 1;
}
static inline uint64_t bl_segment_end(const bl_segment_t *segment, uint64_t index) {
  const uint64_t after = bl_segment_parts(segment) - 1 - index;
  return segment->offset_bytes + segment->bytes - after * segment->part_bytes;
}

// How a back end wants the logits of the head, which are computed piece by piece (workspace.h). Zeros: as on the host.
typedef struct bl_logits {
  uint64_t piece_elements; // of a piece, approximately; 0: BL_HEAD_LOGITS_ELEMENTS
  uint64_t row_multiple;   // the row stride is a multiple of so many floats; 0: rows are dense
} bl_logits_t;

// For GPUs of any kind: pieces of 512 MiB. Every piece reads and writes the head's fp32 weight gradient: 8 bytes for 6
// * rows floating-point operations. At 600 TFLOP/s and 3.35 TB/s that is a share of 240 / rows of the time of the
// piece's products. 2^27 logits are 2670 rows of 50257 columns, or 4194 rows of 32000. Row strides are multiples of 128
// bytes, because products whose rows begin at any float have no loads wider than 4 bytes.
#define BL_LOGITS_GPU                                                                                                  \
  { .piece_elements = (uint64_t)1 << 27, .row_multiple = 32 }

static inline uint64_t bl_logits_stride(bl_logits_t logits, uint64_t columns) {
  const uint64_t multiple = logits.row_multiple == 0 ? 1 : logits.row_multiple;
  return (columns + multiple - 1) / multiple * multiple;
}

typedef struct bl_layout_options {
  uint32_t micro_batch; // sequences b
  uint32_t slices;      // of every sequence, each with a block of its own (pipeline.slices); 0: 1
  bl_attention_t attention;
  bl_backward_t backward;
  bool lean;
  bl_recompute_t recompute;
  bl_dtype_t dtype;             // of every segment that the table does not mark float
  bl_layer_parts_t layer_parts; // the parts of a layer, and which of them this rank has
  bl_logits_t logits;           // of the head
} bl_layout_options_t;

// One row of the table: where a kind lies in layer 0. The strides of bl_layout_t are the distances between layers.
typedef struct bl_layout_row {
  bl_lifetime_t lifetime;
  uint64_t bytes; // 0: the kind does not occur
  uint64_t part_bytes;
  uint64_t offset_bytes;
} bl_layout_row_t;

typedef struct bl_layout {
  bl_model_t model;
  bl_chunk_span_t span;
  bl_layout_options_t options;
  bl_layout_row_t rows[BL_SEGMENT_KINDS];
  uint64_t kept_stride_bytes;        // per layer: segments that live from F
  uint64_t gradient_stride_bytes;    // per layer: segments that live from I
  uint64_t evict_bytes;              // prefix of the slot that lives between F and I
  uint64_t slot_bytes;               // whole slot, a multiple of 64
  uint64_t backward_stride_bytes;    // per layer: workspace for BL_LIFETIME_BACKWARD segments
  uint64_t shared_bytes;             // workspace for BL_LIFETIME_LAYER segments
  uint64_t edge_bytes;               // one edge buffer: [T, hidden], with the rank's own rows of T
  uint64_t page_part_bytes;          // KV cache: one part of one layer, a multiple of 64; 0 if sequences are whole
  uint64_t page_gradient_part_bytes; // the same for a page of gradients
  uint64_t page_bytes;               // one page
  uint64_t page_gradient_bytes;      // one page of gradients
} bl_layout_t;

#define BL_LAYOUT_SLICES_MAX 255 // equals BL_SLICES_MAX (schedule/ir/schedule.h)
static inline uint32_t bl_layout_slices(bl_layout_options_t options) {
  return options.slices > 1 ? options.slices : 1;
}
// Returns T, the rows of one block.
static inline uint64_t bl_layout_rows(const bl_model_t *model, bl_layout_options_t options) {
  return (uint64_t)options.micro_batch * model->seq / bl_layout_slices(options);
}

// Computes the layout. `model` has passed bl_model_check, options.micro_batch >= 1, slices divide seq. BL_INVALID: a
// block would exceed 2^62 bytes.
bl_status_t bl_layout_init(bl_layout_t *layout, const bl_model_t *model, bl_chunk_span_t span,
                           bl_layout_options_t options) BL_MUST_USE;

// Finds the segment of a kind in a layer of the chunk. Returns false if it does not exist: the first layer's x1, which
// is the input edge; the gradient of the final norm in a chunk without head; a kind that the model does not have.
bool bl_layout_segment(const bl_layout_t *layout, uint32_t layer, bl_segment_kind_t kind, bl_segment_t *segment);

// Returns the bytes at the end of every part of a segment that a slice leaves unused. A slice has probabilities only
// for the keys of earlier slices and its own.
uint64_t bl_layout_unused(const bl_layout_t *layout, const bl_segment_t *segment, uint32_t slice);

// Returns the bytes of the segments of one layer, without its x1, as they lie in the slot. A forward that keeps nothing
// needs this much for its current layer. Segments lie there as in the slot of a chunk with this layer alone.
uint64_t bl_layout_layer_bytes(const bl_layout_t *layout);
// Finds a segment, other than x1, in that memory, or in the workspace if its lifetime says so. Returns false if it does
// not exist.
bool bl_layout_layer_segment(const bl_layout_t *layout, uint32_t layer, bl_segment_kind_t kind, bl_segment_t *segment);

const char *bl_attention_name(bl_attention_t attention);
const char *bl_recompute_name(bl_recompute_t recompute); // "none", "attention", "full"

#endif
