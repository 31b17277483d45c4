// SPDX-License-Identifier: Apache-2.0
// The activation block of one chunk for one micro-batch: where each saved tensor lies in its slot, and how
// long it lives. Executor, planner and eviction read this one table (EXECUTION.md items 1 to 5).
//
// Tensors of a layer, T = micro_batch * seq rows (units of T * hidden for gpt2):
//
//   x1 1  norm1 1  qkv 3  attention 1  x2 1  norm2 1  pre 4  act 4 = 16      (the first layer's x1 is the
//   input edge)
//
// Models that normalise what attention and feed-forward layer make keep these as well (post1, post2: 2 more). Where heads of
// queries and keys are normalised, qkv is as it was before: what attention reads is made from it again, in workspace.
//
// The backward writes each gradient over the tensor that died: dqkv over qkv, dpre over pre, dx2 over x2, dx
// over x1, those of post norms' inputs over these (which is the output gradient of the layer below). So a split backward needs no second slot: I
// leaves in the same bytes what W reads.
//
// What need not be kept, since I can make it again from what is (the same bits: the same kernels on the same values):
//   lean                  norm1, norm2, act: 10 units instead of 16, for about 1 % of the time
//   recompute attention   scores and attention, from qkv (selective recomputation, Korthikanti et al., arXiv 2205.05198)
//   recompute full        everything: the input edge is the block. F runs in workspace, one layer at a time; R fills a
//                         whole slot, which lives from R to W
// Remade scores die inside their layer. The others are read again by W: with a fused backward they lie in workspace,
// one set of them however many blocks are in flight; with a split backward I writes them into the slot, which stays as
// large as it was while evict_bytes shrinks. Segments that live from F come first: an evicted block is the prefix
// [0, evict_bytes) of its slot.
//
// Of a layer in parts (model/split.h) a rank that has k of them keeps, of what norms and residuals make, its own rows, and
// of what the products of a part make, all rows of its k parts: one part after the other, each on a cache line.
//
// Where sequences are cut into slices (pipeline.slices), a block is that of one slice: T = micro_batch * seq / slices. What
// the attention of later slices reads of it stays beside the slot, whoever evicts that, in a *page of the KV cache*: keys
// and values of every layer, [layers][parts here][b, seq / slices, 2 kv_width], from its F to the end of its I. What later
// slices' backwards add to their gradients is a page of the same shape in float, from the I of the last slice to its own.
//
// Pure. Thread: values, any thread.
#ifndef BALLAST_MODEL_LAYOUT_H
#define BALLAST_MODEL_LAYOUT_H

#include "model/chunk_span.h"
#include "model/dtype.h"
#include "model/model.h"
#include "model/split.h"

typedef enum bl_attention {
  BL_ATTENTION_NAIVE, // probabilities stored
  BL_ATTENTION_FLASH, // log-sum-exp stored
} bl_attention_t;

typedef enum bl_backward {
  BL_BACKWARD_SPLIT, // I and W are separate operations (they may still follow each other)
  BL_BACKWARD_FUSED, // B only: a block's W follows its I at once, no other operation between them
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
  BL_LIFETIME_BACKWARD, // from I to W of a fused B: workspace, of each layer its own; no bytes in the slot
  BL_LIFETIME_LAYER,    // inside one layer of one operation: workspace that all layers share; no bytes in the slot
} bl_lifetime_t;

typedef enum bl_segment_kind {
  BL_SEGMENT_X1,             // [T, hidden]: input of the layer, then its gradient
  BL_SEGMENT_NORM1_STATS,    // float [T] mean (gpt2), then [T] 1 / deviation
  BL_SEGMENT_NORM1,          // [T, hidden]
  BL_SEGMENT_QKV,            // [T, qkv_width], then its gradient
  BL_SEGMENT_HEADS,          // [T, qkv_width] of one part: qkv as attention reads it, where heads are normalised
  BL_SEGMENT_SCORES,         // naive: [b, heads, seq, seq]; flash: float log-sum-exp [b, heads, seq]
  BL_SEGMENT_ATTENTION,      // [T, query_width]
  BL_SEGMENT_POST1,          // [T, hidden], then its gradient: what attention adds, before it is normalised
  BL_SEGMENT_POST1_STATS,    // as of norm 1
  BL_SEGMENT_X2,             // [T, hidden], then its gradient
  BL_SEGMENT_NORM2_STATS,    // as of norm 1
  BL_SEGMENT_NORM2,          // [T, hidden]
  BL_SEGMENT_PRE,            // [T, pre_width], then its gradient; llama: gate beside up
  BL_SEGMENT_ACT,            // [T, ffn]
  BL_SEGMENT_POST2,          // [T, hidden], then its gradient: what the feed-forward layer adds
  BL_SEGMENT_POST2_STATS,    // as of norm 1
  BL_SEGMENT_NORM1_GRADIENT, // float [norm_vectors, hidden]: this micro-batch's part
  BL_SEGMENT_NORM2_GRADIENT, // as norm 1's
  BL_SEGMENT_HEADS_GRADIENT, // float [2, head_dim]: gains of queries' and keys' norms
  BL_SEGMENT_POST1_GRADIENT, // as norm 1's
  BL_SEGMENT_POST2_GRADIENT, // as norm 1's
  BL_SEGMENT_FINAL_GRADIENT, // as norm 1's, of the final norm; once per last chunk, not per layer
  BL_SEGMENT_KINDS
} bl_segment_kind_t;

typedef struct bl_segment {
  bl_segment_kind_t kind;
  uint32_t layer; // inside the chunk, from 0
  bl_lifetime_t lifetime;
  uint64_t offset_bytes; // in the slot, or in the part of the workspace that its lifetime has. A multiple of 64
  uint64_t bytes;        // unpadded
  uint64_t part_bytes;   // from one of this rank's parts to the next; of no meaning where the segment is not in parts
} bl_segment_t;

// Parts that a segment has, and where what part `index` has of it ends: what lies between there and the next multiple of 64
// is padding.
static inline uint64_t bl_segment_parts(const bl_segment_t *segment) {
  return segment->bytes == 0 ? 0 : (segment->bytes - 1) / segment->part_bytes + 1;
}
static inline uint64_t bl_segment_end(const bl_segment_t *segment, uint64_t index) {
  const uint64_t after = bl_segment_parts(segment) - 1 - index;
  return segment->offset_bytes + segment->bytes - after * segment->part_bytes;
}

// How a back end wants the logits of the head, which exist piece by piece (workspace.h). Zeros: as the host does.
typedef struct bl_logits {
  uint64_t most;         // scalars of a piece, about; 0: BL_HEAD_LOGITS_ELEMENTS
  uint64_t row_multiple; // of floats that rows are apart, where layers are whole; 0: rows are dense
} bl_logits_t;

// GPUs of any kind: a piece of 512 MiB. Every piece reads and writes the head's fp32 weight gradient, 8 bytes for 6 rows
// floating-point operations: of the time of its products, at 600 TFLOP/s and 3.35 TB/s, a share of 240 / rows. 2^27 are 2670
// rows of 50257 columns, 4194 of 32000. Rows are multiples of 128 bytes apart: products of rows that begin anywhere have no
// loads wider than 4 bytes.
#define BL_LOGITS_GPU                                                                                                  \
  { .most = (uint64_t)1 << 27, .row_multiple = 32 }

static inline uint64_t bl_logits_stride(bl_logits_t logits, uint64_t columns) {
  const uint64_t multiple = logits.row_multiple == 0 ? 1 : logits.row_multiple;
  return (columns + multiple - 1) / multiple * multiple;
}

typedef struct bl_layout_options {
  uint32_t micro_batch; // sequences b
  uint32_t slices;      // of every sequence, each a block of its own (pipeline.slices); 0 is 1
  bl_attention_t attention;
  bl_backward_t backward;
  bool lean;
  bl_recompute_t recompute;
  bl_dtype_t dtype;   // of every segment that the table does not call float
  bl_split_t split;   // the parts of a layer, and which of them are here
  bl_logits_t logits; // of the head
} bl_layout_options_t;

// One row of the table: where a kind lies in layer 0 and how far apart layers are.
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
  uint64_t kept_stride_bytes;     // per layer, segments that live from F
  uint64_t gradient_stride_bytes; // per layer, segments that live from I
  uint64_t evict_bytes;           // prefix of the slot that lives between F and I
  uint64_t slot_bytes;            // whole slot, a multiple of 64
  uint64_t backward_stride_bytes; // workspace per layer for BL_LIFETIME_BACKWARD segments
  uint64_t shared_bytes;          // workspace for BL_LIFETIME_LAYER segments
  uint64_t edge_bytes;            // one edge buffer: [T, hidden], of T the own rows
  uint64_t page_part_bytes;       // KV cache: of one part of one layer, a multiple of 64; 0 where sequences are whole
  uint64_t page_gradient_part_bytes; // the same of a page of gradients
  uint64_t page_bytes;               // of one page
  uint64_t page_gradient_bytes;      // of one page of gradients
} bl_layout_t;

#define BL_LAYOUT_MOST_SLICES 255 // as BL_SLICES_MAX (schedule/ir/schedule.h)
static inline uint32_t bl_layout_slices(bl_layout_options_t options) {
  return options.slices > 1 ? options.slices : 1;
}
// T: rows of one block.
static inline uint64_t bl_layout_rows(const bl_model_t *model, bl_layout_options_t options) {
  return (uint64_t)options.micro_batch * model->seq / bl_layout_slices(options);
}

// `model` has passed bl_model_check, options.micro_batch >= 1, slices divide seq. BL_INVALID when a block would exceed
// 2^62 bytes.
bl_status_t bl_layout_init(bl_layout_t *layout, const bl_model_t *model, bl_chunk_span_t span,
                           bl_layout_options_t options) BL_MUST_USE;

// The segment of a kind in a layer of the chunk; false when it does not exist (the first layer's x1, which is
// the input edge; the final norm's part in a chunk without head).
bool bl_layout_segment(const bl_layout_t *layout, uint32_t layer, bl_segment_kind_t kind, bl_segment_t *segment);

// Of every part of a segment the bytes at its end that a slice leaves unused: it has probabilities for the keys up to its own.
uint64_t bl_layout_unused(const bl_layout_t *layout, const bl_segment_t *segment, uint32_t slice);

// Bytes of the segments of one layer without its x1, as they lie in the slot: what a forward that keeps nothing needs
// for the layer it is at. In such a block segments lie as in the slot of a chunk of this one layer.
uint64_t bl_layout_layer_bytes(const bl_layout_t *layout);
// Where a kind other than x1 lies in it, or in the workspace as its lifetime says; false when it does not exist.
bool bl_layout_layer_segment(const bl_layout_t *layout, uint32_t layer, bl_segment_kind_t kind, bl_segment_t *segment);

const char *bl_attention_name(bl_attention_t attention);
const char *bl_recompute_name(bl_recompute_t recompute); // "none", "attention", "full"

#endif
