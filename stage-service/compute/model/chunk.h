// SPDX-License-Identifier: Apache-2.0
// One chunk of a model on one device: its weights, gradients and optimizer state, and the operations a schedule runs
// on it. Written once against the operation table (compute/ops/ops.h): nothing here knows which back end fills it, and
// nothing knows an order of operations.
//
//   bl_chunk_create(&options, &chunk, err);         // plans every operation once
//   bl_chunk_sizes_t sizes = bl_chunk_sizes(chunk); // the caller allocates these
//   bl_chunk_use_arenas(chunk, &arenas);
//   bl_chunk_initialize(chunk, seed, threads, err); // or write the weights, then bl_chunk_weights_changed()
//   each step:
//     bl_chunk_begin_step(chunk);
//     per micro-batch: bl_chunk_forward, ..., bl_chunk_backward_input, bl_chunk_backward_weight
//     bl_chunk_join_tied_gradient(chunk, peer);     // where bl_chunk_has_tied_gradient says so
//     bl_chunk_ask_squares(chunk, i, &sum);         // for each parameter
//     bl_chunk_make_squares(chunk);                 // then the driver decides
//     bl_chunk_update(chunk, &settings, &step);
//
// Buffers of one micro-batch, in the execution model of EXECUTION.md (T = micro_batch seq rows):
// Of layers in parts (model/split.h) a rank that shares them with others has its own rows of edges, T / ranks; the others'
// are theirs.
// Of sequences in slices (layout.slices) each is what a micro-batch is to all of this, T = micro_batch seq / slices rows, and
// bl_chunk_use_slice says before every operation which one it is.
//   in   [T, hidden]  input edge: x, after I its gradient. The chunk with the embedding fills it in F.
//   out  [T, hidden]  output edge: F writes y; the caller puts dy there before I. The chunk with the head keeps its
//                     hidden state there, and its I puts dy over it.
//   slot              activation block, laid out by model/layout.h; from F (or R) until W.
// All are 64-byte aligned, in and out of the layout's dtype. F, R and I write only in, out, slot and workspace; W alone
// adds to gradients, and the head's product inside I, where it is asked to (EXECUTION.md 1 and 6). Whatever a buffer held
// before does not matter.
//
// On a device that only queues, everything here returns when it is queued; what it is given must last until it is over.
//
// Thread: the compute thread of `compute`, except where a function says otherwise. Failures inside operations are kept
// by the back end: ask ops->status() after a chunk operation.
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

#include <stdbool.h>
#include <stdint.h>

typedef struct bl_chunk bl_chunk_t;

typedef struct bl_chunk_options {
  const bl_ops_t *ops;
  bl_compute_t *compute;   // borrowed; outlives the chunk
  bl_device_t *device;     // of `compute`: where the arenas and buffers lie. NULL: the host
  const bl_model_t *model; // copied
  bl_chunk_span_t span;
  bl_layout_options_t layout; // all but logits, which are as `ops` wants them
  bl_group_t *group;          // of the ranks that share its layers; borrowed. NULL: it has all parts
  uint32_t micro_batches;     // of a step: the loss scale is 1 / (micro_batches micro_batch seq)
  const uint32_t *owners;     // [bl_chunk_span_parameter_count] who updates each (model/shard.h); copied. NULL: this
                              // chunk updates all
  uint32_t copy;              // this one's number
  uint32_t fold_levels;       // sums of gradients that may wait (model/fold.h)
  // That updates it; borrowed, outlives the chunk. NULL: the device does. Not with owners, layers in parts, fold levels.
  const bl_host_optimizer_t *host;
  bool prepack; // let products read packed copies of the weights; in bf16 they always read copies
} bl_chunk_options_t;

// Bytes of each arena. Weights, gradients and moments are the parameters as bl_chunk_span_places lays them out.
typedef struct bl_chunk_sizes {
  uint64_t weight_bytes;
  uint64_t resident_bytes; // of weights in fp32 on the device: weight_bytes, but for options.host (model/resident.h)
  uint64_t gradient_bytes;
  uint64_t moment_bytes;       // of each of the two moments, of what the chunk updates
  uint64_t fold_bytes;         // sums of gradients that wait
  uint64_t packed_bytes;       // copies of weights that products read: packed, bf16; 0 without
  uint64_t packed_layer_bytes; // of it, of one layer
  uint64_t packed_head_bytes;  // of it, of the head
  uint64_t workspace_bytes; // of the chunk. Chunks of a stage may share one block of the largest size. The back end's
                            // own workspace (ops->workspace_bytes) comes on top
  uint64_t slot_bytes;
  uint64_t evict_bytes;
  uint64_t edge_bytes;
  uint64_t page_bytes, page_gradient_bytes; // of the KV cache; 0 without slices
} bl_chunk_sizes_t;

// Blocks of at least those sizes, 64-byte aligned, owned by the caller, that outlive the chunk. Moments may both be
// NULL in a chunk that is never updated, gradients too in one that only runs forward. With options.host masters, moments
// and what has landed are staging of the device, and `weights` has resident_bytes.
typedef struct bl_chunk_arenas {
  float *weights;
  float *gradients;
  float *first_moments;
  float *second_moments;
  float *sums;    // [fold_levels], each laid out as the gradients; NULL without
  float *masters; // [weight_bytes], the weights as they are updated; NULL without options.host
  float *landed;  // [weight_bytes], gradients that have come to the host; NULL without
  void *packed;
  void *workspace;
} bl_chunk_arenas_t;

// Where one parameter, or one part of it that is here, lies. Pointers are [elements]: the elements of `slice` of a tensor
// in Hugging Face orientation.
typedef struct bl_chunk_parameter {
  bl_parameter_t parameter;
  uint32_t part;    // of the layer; 0 where the parameter is not cut
  bool cut;         // it is: the chunk has one of its parts here
  bl_slice_t slice; // of the whole tensor
  uint64_t elements;
  uint64_t room; // elements from the weight, and from the gradient, on that are this parameter's (bl_chunk_span_places)
  float *weight; // as it is updated: on the host with options.host
  float *gradient; // of the embedding lookup, where a tied head has a second one here
  float *first_moment;
  float *second_moment; // both NULL where another copy updates it
  uint32_t owner;       // the copy that updates it
  bool updated;         // by this chunk
  bool owned;           // false: the tied head's copy of the embedding, which the first chunk reports and saves
} bl_chunk_parameter_t;

// What the head writes: in staging memory of the device, read when the operation is over (ops.h, rule 9).
typedef struct bl_chunk_loss {
  double sum;            // nats over the tokens of this micro-batch or slice; bl_chunk_loss_mean has them per token
  int64_t first_bad_row; // row of the first token whose loss is not finite, -1: none
} bl_chunk_loss_t;

// Plans every operation for the shapes of this chunk. BL_INVALID: the model does not pass bl_model_check or the block
// is too large; what planning reports otherwise. BL_EXHAUSTED: no memory.
bl_status_t bl_chunk_create(const bl_chunk_options_t *options, bl_chunk_t **chunk, bl_error_t *err) BL_MUST_USE;
void bl_chunk_destroy(bl_chunk_t *chunk); // NULL is fine
bl_chunk_sizes_t bl_chunk_sizes(const bl_chunk_t *chunk);
const bl_layout_t *bl_chunk_layout(const bl_chunk_t *chunk);
void bl_chunk_use_arenas(bl_chunk_t *chunk, const bl_chunk_arenas_t *arenas);
const bl_chunk_arenas_t *bl_chunk_arenas(const bl_chunk_t *chunk); // as given

// ---- parameters
uint32_t bl_chunk_parameter_count(const bl_chunk_t *chunk); // with each part by itself: bl_chunk_span_place_count
// The i-th of them, in the order of bl_chunk_span_places; valid after bl_chunk_use_arenas.
bl_chunk_parameter_t bl_chunk_parameter(const bl_chunk_t *chunk, uint32_t i);
// Initial weights (EXECUTION.md 18), drawn on so many threads (compute/model/drawing.h), and zero moments. BL_EXHAUSTED; what
// copying to the device reports.
bl_status_t bl_chunk_initialize(bl_chunk_t *chunk, uint64_t seed, uint32_t threads, bl_error_t *err) BL_MUST_USE;
// After weights were written from elsewhere: refreshes packed copies. (initialize and update do it.)
void bl_chunk_weights_changed(bl_chunk_t *chunk);

// ---- one micro-batch
// A slice of the micro-batch that the next operations are of, and the pages of the KV cache (model/layout.h) at this chunk of
// the slices [0, index]: keys and values, which its F and R write to its own page and the rest read; and sums of gradients,
// NULL where no I follows, and the last of them NULL where this is the last slice. Arrays and pages are the caller's until
// those operations are over.
typedef struct bl_chunk_slice {
  uint32_t index;
  void *const *pages;      // [index + 1], page_bytes each
  float *const *gradients; // [index + 1], page_gradient_bytes each
} bl_chunk_slice_t;
// Of a chunk whose layout has slices.
void bl_chunk_use_slice(bl_chunk_t *chunk, const bl_chunk_slice_t *slice);

// F. tokens [T], read by the chunk with the embedding, which writes `in`; NULL in others, whose `in` has been received.
// slot NULL keeps nothing: an R comes before the backward. Only with layouts of BL_RECOMPUTE_FULL, which plan the
// workspace that this F runs in.
void bl_chunk_forward(bl_chunk_t *chunk, const int32_t *tokens, void *in, void *slot, void *out);
// R. Makes the block again from the kept input; `out` is not touched. Same bits as F left in the slot.
void bl_chunk_recompute(bl_chunk_t *chunk, const void *in, void *slot);
// I. labels [T] and loss: the chunk with the head (*loss is written), NULL in others. accumulate_head: add the gradient
// of the head's weight; false when a micro-batch is run again. With a fused layout W must follow at once: part of what
// it reads lies in workspace.
void bl_chunk_backward_input(bl_chunk_t *chunk, const int32_t *labels, void *in, void *slot, void *out,
                             bool accumulate_head, bl_chunk_loss_t *loss);
// W, after I of the same micro-batch. tokens as in F.
void bl_chunk_backward_weight(bl_chunk_t *chunk, const int32_t *tokens, const void *in, void *slot, const void *out);
// B: I and W by the same operations, layer by layer. Same bits as I then W.
void bl_chunk_backward(bl_chunk_t *chunk, const int32_t *tokens, const int32_t *labels, void *in, void *slot, void *out,
                       bool accumulate_head, bl_chunk_loss_t *loss);

// ---- forward only, in the chunk with the head
// Loss of a hidden state; writes nothing but *loss and workspace.
void bl_chunk_loss(bl_chunk_t *chunk, const int32_t *labels, const void *out, bl_chunk_loss_t *loss);
// Nats per token of a micro-batch: losses [slices].
double bl_chunk_loss_mean(const bl_chunk_t *chunk, const bl_chunk_loss_t *losses);
// Logits [vocab] of one row of a hidden state.
void bl_chunk_logits(bl_chunk_t *chunk, const void *out, uint64_t row, float *logits);
// Draws the token after `row`: temperature and uniform as in ops->draw; -1 when logits are not finite.
int32_t bl_chunk_draw(bl_chunk_t *chunk, const void *out, uint64_t row, float temperature, double uniform);

// ---- one step
// Sets all gradients to zero.
void bl_chunk_begin_step(bl_chunk_t *chunk);
// True when this chunk makes a share of a tied embedding's gradient. bl_chunk_tied_gradient is that share [vocab, hidden],
// or the parts of it that are here (bl_chunk_tied_elements), which the peer needs before this chunk joins. A chunk that makes both parts has no peer.
bool bl_chunk_has_tied_gradient(const bl_chunk_t *chunk);
bool bl_chunk_tied_needs_peer(const bl_chunk_t *chunk);
float *bl_chunk_tied_gradient(bl_chunk_t *chunk);
uint64_t bl_chunk_tied_elements(const bl_chunk_t *chunk); // bl_chunk_span_table_elements
// Adds the peer's part (NULL where there is no peer), once per step, after the last micro-batch. Embedding part plus
// head part on both sides: addition of two numbers commutes, so both get the same bits.
void bl_chunk_join_tied_gradient(bl_chunk_t *chunk, const float *peer);
// Adds up the gradients of norms, of which there is one for the rows of every part, over all parts: once per step, after
// the last micro-batch and what copies add. All ranks of the group call it, for the same parameters.
void bl_chunk_sum_norms(bl_chunk_t *chunk);
// Asks for the fp64 sum of squares of the i-th parameter's gradient, in an order that only its size fixes, once a parameter
// until make_squares, which has all of them made. *sum is in staging.
void bl_chunk_ask_squares(bl_chunk_t *chunk, uint32_t i, double *sum);
void bl_chunk_make_squares(bl_chunk_t *chunk);
// The part of the step's gradient that has been accumulated is complete: it is added to what waits, and waits itself unless
// it is the rank's last (model/fold.h). The gradient of the head's weight is complete after I of the part's last
// micro-batch, all else after its W.
BL_MUST_USE bl_status_t bl_chunk_fold(bl_chunk_t *chunk, bool head, uint32_t merges, bool last, bl_error_t *err);
// The gradient of a tied head in a chunk that has the embedding, too: a second buffer beside that of the lookup, as long as
// the parameter; of a vocabulary in parts that of the part `part`, which is here. NULL in others.
float *bl_chunk_second_gradient(bl_chunk_t *chunk, uint32_t part);
// With options.host, else nothing is done. expect_last, which every step needs: the next W is the step's last, and
// gradients go to the host as it completes them, layer by layer. land_rest: what a tied gradient was added to goes, too;
// after it only bl_chunk_update and the next step follow.
void bl_chunk_expect_last(bl_chunk_t *chunk);
void bl_chunk_land_rest(bl_chunk_t *chunk);
// The first failure of what came and went, BL_OK without options.host. BL_DEADLINE; what the device reports.
BL_MUST_USE bl_status_t bl_chunk_status(const bl_chunk_t *chunk, bl_error_t *err);
// AdamW on every parameter that the chunk updates; with options.host it waits for gradients to land. Packed copies of
// all weights are current afterwards where it updates all of them, else when the others have come and
// bl_chunk_weights_changed was called.
void bl_chunk_update(bl_chunk_t *chunk, const bl_adamw_settings_t *settings, const bl_adamw_step_t *step);

#endif
