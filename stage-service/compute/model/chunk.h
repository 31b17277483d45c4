// SPDX-License-Identifier: Apache-2.0
// One chunk of a model on one device: its weights, gradients and optimizer state, and the operations that a schedule
// runs on it. It is written once against the operation table (compute/ops/ops.h). Nothing here knows which back end
// fills the table, or assumes an order of operations.
//
//   bl_chunk_create(&options, &chunk, err);         // plans every operation once
//   bl_chunk_sizes_t sizes = bl_chunk_sizes(chunk); // the caller allocates these
//   bl_chunk_use_arenas(chunk, &arenas);
//   bl_chunk_initialize(chunk, seed, threads, err); // or write the weights, then bl_chunk_weights_changed()
//   each step:
//     bl_chunk_begin_step(chunk);
//     per micro-batch: bl_chunk_forward, ..., bl_chunk_backward_input, bl_chunk_backward_weight
//     bl_chunk_join_tied_gradient(chunk, peer);     // where bl_chunk_has_tied_gradient says so
//     bl_chunk_ask_squares(chunk, i, sums);         // for each parameter
//     bl_chunk_make_squares(chunk);                 // then the driver decides
//     bl_chunk_update(chunk, &settings, &step);
//
// Buffers of one micro-batch, in the execution model of EXECUTION.md (T = micro_batch seq rows):
//   in   [T, hidden]  input edge: x, after I its gradient. The chunk with the embedding fills it in F.
//   out  [T, hidden]  output edge: F writes y; the caller puts dy there before I. The chunk with the head keeps its
//                     hidden state there, and its I overwrites it with dy.
//   slot              activation block, laid out by model/layout.h; in use from F (or R) until W.
// If ranks share layers (model/layer_parts.h), a rank has only its own T / ranks rows of the edges.
// If sequences are cut into slices (layout.slices), each slice takes the place of a micro-batch, T = micro_batch seq /
// slices rows, and bl_chunk_use_slice selects the slice before every operation.
// All buffers are 64-byte aligned; in and out are of the layout's dtype. F, R and I write only in, out, slot and
// workspace. Only W adds to gradients, and the head's product inside I, if the caller asks for it (EXECUTION.md 1 and
// 6). The previous content of a buffer does not matter.
//
// On a device that only queues, every function returns once its work is queued. Its arguments must stay valid until
// that work has ended.
//
// Thread: the compute thread of `compute`, unless a function says otherwise. The back end keeps failures inside
// operations: call ops->status() after a chunk operation.
#ifndef BALLAST_COMPUTE_MODEL_CHUNK_H
#define BALLAST_COMPUTE_MODEL_CHUNK_H

#include "base/error.h"
#include "base/status.h"
#include "collective/group.h"
#include "compute/ops/ops.h"
#include "compute/optimizer/adamw.h"
#include "compute/optimizer/host.h"
#include "model/chunk_span.h"
#include "model/layout.h"
#include "model/model.h"
#include "model/parameters.h"
#include "model/shard.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct bl_chunk bl_chunk_t;

typedef struct bl_chunk_options {
  const bl_ops_t *ops;
  bl_compute_t *compute;   // borrowed; outlives the chunk
  bl_device_t *device;     // device of `compute`, on which the arenas and buffers lie; NULL: the host
  const bl_model_t *model; // copied
  bl_chunk_span_t span;
  bl_layout_options_t layout; // `logits` is ignored: the layout that `ops` wants is used
  bl_group_t *group;          // ranks that share its layers; borrowed. NULL: the chunk has all parts
  uint32_t micro_batches;     // per step: the loss scale is 1 / (micro_batches micro_batch seq), if all labels count
  // What the copies of the stage's last chunk update; bl_chunk_create goes on to this one. NULL: there is one copy.
  bl_ownership_t *ownership;
  uint32_t copy;        // number of this copy of the chunk
  uint32_t fold_levels; // maximum number of partial gradient sums that wait (model/fold.h)
  // Optimizer that updates the chunk; borrowed, outlives the chunk. NULL: the device does. Not with copies or fold
  // levels.
  const bl_host_optimizer_t *host;
  bool prepack; // let products read packed copies of the weights; in bf16 they always read copies
} bl_chunk_options_t;

// Bytes of each arena. Weights, gradients and moments are the parameters as bl_chunk_span_places lays them out.
typedef struct bl_chunk_sizes {
  uint64_t weight_bytes;
  uint64_t resident_bytes; // weights in fp32 on the device (model/resident.h)
  // Weights that are updated elsewhere than in the resident ones: all with options.host; if copies share out the
  // masters, what the chunk updates of those that are not resident; 0 otherwise.
  uint64_t master_bytes;
  uint64_t gradient_bytes;
  uint64_t moment_bytes;       // each of the two moments of what the chunk updates
  uint64_t fold_bytes;         // partial gradient sums that wait
  uint64_t packed_bytes;       // copies of weights that products read: packed, bf16; 0 without
  uint64_t packed_layer_bytes; // part of packed_bytes: one layer
  uint64_t packed_head_bytes;  // part of packed_bytes: the head
  // Workspace of the chunk. Chunks of a stage may share one block of the largest size. The back end's own workspace
  // (ops->workspace_bytes) comes on top.
  uint64_t workspace_bytes;
  uint64_t slot_bytes;
  uint64_t evict_bytes;
  uint64_t edge_bytes;
  uint64_t page_bytes, page_gradient_bytes; // of the KV cache; 0 without slices
} bl_chunk_sizes_t;

// Blocks of at least those sizes, 64-byte aligned. The caller owns them; they outlive the chunk. Both moments may be
// NULL in a chunk that is never updated, and gradients too in one that only runs forward. With options.host masters,
// moments and `landed` are staging memory of the device. `weights` has resident_bytes.
typedef struct bl_chunk_arenas {
  float *weights;
  float *gradients;
  float *first_moments;
  float *second_moments;
  float *sums;    // [fold_levels], each laid out as the gradients; NULL without fold levels
  float *masters; // [master_bytes]; NULL if there are none
  float *landed;  // [weight_bytes], gradients copied to the host; NULL without options.host
  void *packed;
  void *workspace;
} bl_chunk_arenas_t;

// The memory of one parameter, or of one part of it that this chunk has. Pointers are [elements]: the elements of
// `slice` of a tensor in Hugging Face orientation.
typedef struct bl_chunk_parameter {
  bl_parameter_t parameter;
  uint32_t part;    // part of the layer; 0 if the parameter is not cut
  bool cut;         // the parameter is cut, and this is one of its parts
  bl_slice_t slice; // of the whole tensor
  uint64_t elements;
  // Where a weight from elsewhere is written before bl_chunk_weights_changed: on the host with options.host. If copies
  // share out the masters, this is the gradient, and holds the weight only then.
  float *weight;
  float *gradient; // of the embedding lookup, if a tied head has a second gradient in this chunk
  // The elements of it that this chunk updates, these weights and their moments [range.count]; NULL if there are none.
  bl_shard_range_t range;
  float *updated;
  float *first_moment;
  float *second_moment;
  bool owned; // false: the tied head's copy of the embedding, which the first chunk reports and saves
} bl_chunk_parameter_t;

// What the head writes, in staging memory of the device. Read it after the operation has ended (ops.h, rule 9).
typedef struct bl_chunk_loss {
  double sum;            // nats over the labels of this micro-batch or slice that count
  int64_t first_bad_row; // row of the first token whose loss is not finite, -1: none
} bl_chunk_loss_t;

// Plans every operation for the shapes of this chunk. BL_INVALID: the model does not pass bl_model_check, or the block
// is too large. BL_EXHAUSTED: no memory. Otherwise the status of planning.
bl_status_t bl_chunk_create(const bl_chunk_options_t *options, bl_chunk_t **chunk, bl_error_t *err) BL_MUST_USE;
void bl_chunk_destroy(bl_chunk_t *chunk); // NULL is fine
bl_chunk_sizes_t bl_chunk_sizes(const bl_chunk_t *chunk);
const bl_layout_t *bl_chunk_layout(const bl_chunk_t *chunk);
void bl_chunk_use_arenas(bl_chunk_t *chunk, const bl_chunk_arenas_t *arenas);
const bl_chunk_arenas_t *bl_chunk_arenas(const bl_chunk_t *chunk); // as given

// ---- parameters
uint32_t bl_chunk_parameter_count(const bl_chunk_t *chunk); // each part counts by itself: bl_chunk_span_place_count
// Returns the i-th of them, in the order of bl_chunk_span_places. Valid after bl_chunk_use_arenas.
bl_chunk_parameter_t bl_chunk_parameter(const bl_chunk_t *chunk, uint32_t i);
// Draws initial weights (EXECUTION.md 18) on `threads` threads (compute/model/drawing.h) and sets moments to zero.
// BL_EXHAUSTED; the status of copying to the device.
bl_status_t bl_chunk_initialize(bl_chunk_t *chunk, uint64_t seed, uint32_t threads, bl_error_t *err) BL_MUST_USE;
// Takes all weights after they were written from elsewhere (bl_chunk_parameter, bl_chunk_message), and refreshes packed
// copies. (initialize and update do it themselves.) If copies share out the masters, the weights are then in the place
// of the gradients; the next bl_chunk_begin_step clears it.
void bl_chunk_weights_changed(bl_chunk_t *chunk);
// If copies share out the masters: copies the weights that this chunk updates to the place of their gradients, from
// where its messages send them. The gradients are lost.
void bl_chunk_show_weights(bl_chunk_t *chunk);

// ---- one micro-batch
// The slice of the micro-batch that the next operations compute, and this chunk's KV cache pages (model/layout.h) of
// the slices [0, index]. F and R write the slice's own page of keys and values and read the others. `gradients`: pages
// of gradient sums; NULL if no I follows; the last page is NULL if this is the last slice. The caller owns arrays and
// pages, which stay valid until those operations have ended.
typedef struct bl_chunk_slice {
  uint32_t index;
  void *const *pages;      // [index + 1], page_bytes each
  float *const *gradients; // [index + 1], page_gradient_bytes each
} bl_chunk_slice_t;
// For a chunk whose layout has slices.
void bl_chunk_use_slice(bl_chunk_t *chunk, const bl_chunk_slice_t *slice);

// F. tokens [T] are read by the chunk with the embedding, which writes `in`; NULL in others, whose `in` has been
// received. slot NULL keeps nothing, so that an R must come before the backward. This is allowed only with layouts of
// BL_RECOMPUTE_FULL, which plan the workspace for such an F.
void bl_chunk_forward(bl_chunk_t *chunk, const int32_t *tokens, void *in, void *slot, void *out);
// R. Recomputes the block from the kept input, to the same bits that F left in the slot. `out` is not touched.
void bl_chunk_recompute(bl_chunk_t *chunk, const void *in, void *slot);
// Sets how many labels count in the next runs, of all `micro_batches` of one: losses are means over these, and the loss
// scale is 1 / counted. Without a call all labels count. counted 0: losses and gradients are 0.
void bl_chunk_set_counted(bl_chunk_t *chunk, uint64_t counted, uint64_t micro_batches);
// I. The chunk with the head reads labels [T] and writes *loss; both are NULL in others. A label below 0 has no loss.
// accumulate_head: add the gradient of the head's weight; false when a micro-batch is run again. With a fused layout W
// must follow at once, because part of its input lies in workspace.
void bl_chunk_backward_input(bl_chunk_t *chunk, const int32_t *labels, void *in, void *slot, void *out,
                             bool accumulate_head, bl_chunk_loss_t *loss);
// W, after I of the same micro-batch. tokens as in F.
void bl_chunk_backward_weight(bl_chunk_t *chunk, const int32_t *tokens, const void *in, void *slot, const void *out);
// B: I and W by the same operations, layer by layer. Same bits as I, then W.
void bl_chunk_backward(bl_chunk_t *chunk, const int32_t *tokens, const int32_t *labels, void *in, void *slot, void *out,
                       bool accumulate_head, bl_chunk_loss_t *loss);

// ---- forward only, in the chunk with the head
// Computes the loss of a hidden state. Writes only *loss and workspace.
void bl_chunk_loss(bl_chunk_t *chunk, const int32_t *labels, const void *out, bl_chunk_loss_t *loss);
// Returns nats per label of a micro-batch: losses [slices]. If not all labels count, the sum is divided by the mean
// number of a micro-batch, so that the mean over micro-batches is that over all labels that count.
double bl_chunk_loss_mean(const bl_chunk_t *chunk, const bl_chunk_loss_t *losses);
// Computes the logits [vocab] of one row of a hidden state.
void bl_chunk_logits(bl_chunk_t *chunk, const void *out, uint64_t row, float *logits);
// Draws the token after `row`. temperature and uniform as in ops->draw; -1 if logits are not finite.
int32_t bl_chunk_draw(bl_chunk_t *chunk, const void *out, uint64_t row, float temperature, double uniform);

// ---- one step
// Sets all gradients to zero.
void bl_chunk_begin_step(bl_chunk_t *chunk);
// True if this chunk computes a share of a tied embedding's gradient. bl_chunk_tied_gradient returns that share [vocab,
// hidden], or the parts of it that this chunk has (bl_chunk_tied_elements). The peer needs it before this chunk joins.
// A chunk that computes both shares has no peer.
bool bl_chunk_has_tied_gradient(const bl_chunk_t *chunk);
bool bl_chunk_tied_needs_peer(const bl_chunk_t *chunk);
float *bl_chunk_tied_gradient(bl_chunk_t *chunk);
uint64_t bl_chunk_tied_elements(const bl_chunk_t *chunk); // bl_chunk_span_table_elements
// Writes the ranges of these elements that this chunk updates, one for each part that it has, to `ranges`
// [BL_LAYER_PARTS_MAX] and returns how many. Only there is the gradient joined.
uint32_t bl_chunk_tied_ranges(const bl_chunk_t *chunk, bl_shard_range_t *ranges);
// Adds the peer's share (NULL if there is no peer), once per step, after the last micro-batch. Both sides add the
// embedding's share and the head's share. Addition of two numbers commutes, so both get the same bits.
void bl_chunk_join_tied_gradient(bl_chunk_t *chunk, const float *peer);
// Sums the gradients of norms, of which there is one per part (for the rows of that part), over all parts. Called once
// per step, after the last micro-batch and after what copies add. All ranks of the group call it, for the same
// parameters.
void bl_chunk_sum_norms(bl_chunk_t *chunk);
// Requests the fp64 sums of squares of the gradient of each share of the i-th parameter that this chunk updates, each
// in an order that depends on its size alone. Called once per parameter before bl_chunk_make_squares, which computes
// all requested sums. sums [bl_chunk_shares.count] is staging memory.
void bl_chunk_ask_squares(bl_chunk_t *chunk, uint32_t i, double *sums);
bl_shard_shares_t bl_chunk_shares(const bl_chunk_t *chunk, uint32_t i);
void bl_chunk_make_squares(bl_chunk_t *chunk);
// Ends one part of the step's gradient (model/fold.h): adds `merges` waiting sums to the accumulated part, and lets the
// result wait unless it is the rank's last. The gradient of the head's weight is complete after I of the part's last
// micro-batch, all others after its W.
BL_MUST_USE bl_status_t bl_chunk_fold(bl_chunk_t *chunk, bool head, uint32_t merges, bool last, bl_error_t *err);
// What all copies exchange with one copy that updates it: a range of weights and of gradients (bl_shard_message).
typedef struct bl_chunk_message {
  float *weight, *gradient; // [elements]; the same memory if copies share out the masters
  float *second;     // likewise: the gradient of a tied head in a chunk that also has the embedding; NULL in others
  uint64_t elements; // 0: this number has none
} bl_chunk_message_t;
// Returns message `i` < bl_chunk_parameter_count of the copy `copy`.
bl_chunk_message_t bl_chunk_message(const bl_chunk_t *chunk, uint32_t i, uint32_t copy);
// Both do nothing without options.host. expect_last, which every step needs, says that the next W is the step's last: W
// then copies gradients to the host as it completes them, layer by layer. land_rest also copies what a tied gradient
// was added to. Only bl_chunk_update and the next step may follow it.
void bl_chunk_expect_last(bl_chunk_t *chunk);
void bl_chunk_land_rest(bl_chunk_t *chunk);
// Returns the first failure of copies of weights and gradients to and from host or masters. BL_DEADLINE; the status of
// the device.
BL_MUST_USE bl_status_t bl_chunk_status(const bl_chunk_t *chunk, bl_error_t *err);
// Applies AdamW to every parameter that the chunk updates. With options.host it waits for the gradients to reach the
// host. If the chunk updates all its weights, their packed copies are current afterwards. Otherwise they are current
// once the other weights have arrived and bl_chunk_weights_changed was called.
void bl_chunk_update(bl_chunk_t *chunk, const bl_adamw_settings_t *settings, const bl_adamw_step_t *step);

#endif
