// SPDX-License-Identifier: Apache-2.0
// The operations that a model is made of. Every back end fills one table of them, so that model code is written once.
// select.h finds the tables of the host and of the CUDA module.
//
// There are two phases (EXECUTION.md 13). Plan, at configuration: the back end receives shapes, picks kernels, creates
// every handle and returns how much workspace it needs. Execute, in a step: calls pass only pointers, and our code
// allocates nothing.
//
//   const bl_ops_t *ops = bl_ops_host();
//   ops->create(&(bl_compute_options_t){.threads = 1}, &compute, err);
//   ops->attach(compute);                                     // on the compute thread
//   ops->linear_plan(compute, &shape, &up, err);              // ... plan everything
//   ops->use_workspace(compute, block, ops->workspace_bytes(compute));
//   ops->linear_forward(up, x, w, NULL, bias, NULL, y);       // ... every step
//   if (ops->status(compute, err) != BL_OK) ...               // once per chunk operation
//   bl_ops_finish(ops, compute, device, event, deadline_ns, err); // before the CPU reads a result
//   ops->destroy(compute);                                    // frees all handles too
//
// Lifetime and threads
//   1. A bl_compute_t is used by one thread at a time, the compute thread. attach() sets the number of OpenMP threads
//      of the calling thread, and makes it and its team flush denormals. Call it on the thread that plans and executes,
//      before anything is planned.
//   2. Handles belong to their bl_compute_t and live until destroy(). Planning an equal shape again returns the same
//      handle, so that layers share them.
//   3. One workspace serves all operations, since they run one after the other. It is 64-byte aligned. Its content
//      between two calls is undefined.
//   4. Execution cannot fail for reasons that a caller could handle in place. The context keeps the first failure, and
//      status() returns it. After a failure outputs are undefined.
//
// Purity and bits (EXECUTION.md 1)
//   5. Outputs are overwritten, whatever they held before (NaN included). Only members that say "accumulates" add:
//      weight gradients, and backward_input if the caller asks for it.
//   6. Every operation is a pure function of its inputs, its shape, the instruction set and the thread count: the same
//      call gives the same bits. Rows never mix: a row's forward result does not depend on other rows (within a plan of
//      one shape). The thread count can change the last bits of linear operations and of sums over more than one row,
//      but of nothing else.
//   7. Arguments do not alias unless a member names it.
//
// Back ends that only queue (those with a stream)
//   8. A call puts the operation on ops->stream() and returns. It waits for nothing and allocates nothing. Its
//      arguments are read and written after the operations before it have ended. Only draw() waits.
//   9. Tensors lie in memory of the device (device/device.h). What the CPU passes in or reads back lies in staging
//      memory, which CPU and device access at the same address. Inputs are tokens and labels; results are loss,
//      first_bad_row and sum. The CPU writes inputs before the call and leaves them unchanged until the operation has
//      ended. It reads results after bl_ops_finish() or after an event recorded on the stream. Structs that are passed
//      by pointer (shapes, options) are read during the call.
//  10. A failure may be found by a later operation than the one that caused it. status() returns it from then on.
//
// Types. `dtype` is the type of activations, of their gradients and of the weights that products read, all passed
// as `void *`. Masters and gradients of weights, statistics, log-sum-exp, gains, biases, logits and optimizer state are
// always float. Products read masters directly in fp32, and through linear_pack() in bf16. Whatever the dtype, sums are
// computed in float and rounded once, when an element is written. Planning returns BL_UNIMPLEMENTED if a back end lacks
// a dtype.
//
// Shapes are row-major and dense unless a stride is named. Strides count elements. T is the number of rows (tokens).
#ifndef BALLAST_COMPUTE_OPS_OPS_H
#define BALLAST_COMPUTE_OPS_OPS_H

#include "base/error.h"
#include "base/library.h"
#include "base/status.h"
#include "device/device.h"
#include "model/gate.h"
#include "model/layout.h"
#include "model/rope.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct bl_compute bl_compute_t;           // one device and its compute thread
typedef struct bl_linear_op bl_linear_op_t;       // a planned linear layer
typedef struct bl_attention_op bl_attention_op_t; // a planned attention
typedef struct bl_rope_op bl_rope_op_t;           // planned rotary positions (owns its table)

typedef enum bl_compute_dtype { BL_COMPUTE_FP32, BL_COMPUTE_BF16 } bl_compute_dtype_t;

// Instruction sets that host kernels exist for. AUTO selects the best one of this CPU. create() fails on a CPU without
// the requested set.
typedef enum bl_instruction_set { BL_ISA_AUTO, BL_ISA_BASELINE, BL_ISA_AVX2, BL_ISA_AVX512 } bl_instruction_set_t;

typedef struct bl_compute_options {
  uint32_t threads; // at least 1; of the host
  bl_instruction_set_t instruction_set;
  bl_device_t
      // Where tensors lie and operations run: a device of this back end. NULL: the host. Outlives the context.
      *device;
} bl_compute_options_t;

// What a library chose for a shape, as text that is equal for equal shapes, or for equal choices.
typedef struct bl_ops_choice {
  char shape[160];
  char algorithm[128];
} bl_ops_choice_t;

// GPT-2's Conv1D stores [in, out], every other matrix of Hugging Face [out, in].
typedef enum bl_weight_order { BL_WEIGHT_IN_OUT, BL_WEIGHT_OUT_IN } bl_weight_order_t;

// What a linear plan is used for; only these uses are prepared.
enum {
  BL_LINEAR_FORWARD = 1u << 0,
  BL_LINEAR_INPUT = 1u << 1,            // backward_input with accumulate = false
  BL_LINEAR_INPUT_ACCUMULATE = 1u << 2, // ... with accumulate = true
  BL_LINEAR_WEIGHT = 1u << 3,           // backward_weight, both accumulate values
};

// y[T, out] = x[T, in] W + bias + residual
typedef struct bl_linear_shape {
  uint64_t rows; // T
  uint64_t in;
  uint64_t out;
  bl_weight_order_t order;
  unsigned uses; // BL_LINEAR_*
  bool bias;     // forward adds a bias [out]
  bool residual; // forward adds a residual [T, out]
  bool prepack;  // forward and backward_input read packed copies of W (see linear_pack)
  // forward writes floats (logits); no residual. dy is of the dtype all the same, and its rows start where rows of y
  // do.
  bool float_y;
  uint64_t x_stride; // elements between rows of x and dx; 0: dense (in)
  uint64_t y_stride; // elements between rows of y, dy and residual; 0: dense (out)
  bl_compute_dtype_t dtype;
} bl_linear_shape_t;

// LayerNorm, or RMSNorm if rms is set (no mean, no bias).
typedef struct bl_norm_shape {
  uint64_t rows;
  uint64_t width;
  bool rms;
  float epsilon;
  float gain_offset; // added to every gain: 1 if gains are stored as distances from 1, else 0
  bl_compute_dtype_t dtype;
} bl_norm_shape_t;

// RMSNorm of every query and key head of qkv (bl_attention_shape_t) over its own head_dim elements.
typedef struct bl_head_norm_shape {
  uint64_t rows;
  uint64_t heads;
  uint64_t kv_heads;
  uint64_t head_dim;
  float epsilon;
  float gain_offset; // as bl_norm_shape_t
  bl_compute_dtype_t dtype;
} bl_head_norm_shape_t;

// Causal self-attention, softmax(scale Q K^T) V. Query head h reads key/value head h / (heads / kv_heads), as
// transformers' repeat_kv. With a window the query at position i sees keys (i - window, i]. With a softcap the scores s
// become softcap tanh(s / softcap) before the mask.
//
// qkv is ONE tensor [batch seq, (heads + 2 kv_heads) head_dim]: the columns of all query heads, then of all key heads,
// then of all value heads. GPT-2's c_attn produces this by itself. LLaMA's q, k and v weights are [out, in], so the
// three tensors, stored one after the other without a gap, are the weight of a single linear layer that produces it.
// The back end packs heads densely on its own (EXECUTION.md 14).
typedef struct bl_attention_shape {
  uint64_t batch;
  uint64_t seq;
  uint64_t heads;
  uint64_t kv_heads;
  uint64_t head_dim;
  bool flash;      // false: probabilities are stored
  uint64_t window; // 0: a query sees all keys up to its own
  float scale;     // 0: 1 / sqrt(head_dim)
  float softcap;   // 0: none
  // A slice of every sequence: rows of qkv, and so queries, are the positions [first, first + count). seq is the length
  // of the whole sequence. count 0: all of it.
  uint64_t first, count;
  bl_compute_dtype_t dtype;
} bl_attention_shape_t;

// Rotary positions in transformers' convention. The first bl_rope_dims dimensions of a head rotate; of these, dimension
// i of the first half pairs with i of the second half. angle = position x frequency (model/rope.h), position = row mod
// seq.
typedef struct bl_rope_shape {
  uint64_t batch;
  uint64_t seq;
  uint64_t heads; // the first heads + kv_heads of qkv are rotated: queries and keys
  uint64_t kv_heads;
  uint64_t head_dim;     // even
  uint64_t first, count; // of a slice, as bl_attention_shape_t
  bl_rope_t rope;
  bl_compute_dtype_t dtype;
} bl_rope_shape_t;

// The rows of the embedding tables that a part has (model/layer_parts.h): tokens [first_token, first_token + tokens),
// positions likewise.
typedef struct bl_embedding_part {
  uint64_t batch;
  uint64_t seq; // rows of a sequence that this part has: positions from `start` on
  uint64_t start;
  uint64_t width;
  uint64_t first_token, tokens;
  uint64_t first_position, positions;
  float scale; // of tokens' rows
  bl_compute_dtype_t dtype;
} bl_embedding_part_t;

#define BL_SOFTMAX_STATISTICS 3 // floats: the largest logit, the sum of exp(logit - largest), the label's logit or 0

typedef struct bl_adamw {
  float rate;
  float beta1, beta2;
  float epsilon;
  float weight_decay;   // 0 for tensors that do not decay
  float correction1;    // 1 - beta1^step
  float correction2;    // 1 - beta2^step
  float gradient_scale; // clipping factor, 1 without
} bl_adamw_t;

// A tensor and its update. packed: where the new w is written rounded to bf16; NULL: nowhere.
typedef struct bl_adamw_tensor {
  bl_adamw_t options;
  uint64_t count;
  const float *dw;
  float *w, *m, *v;
  void *packed;
} bl_adamw_tensor_t;

// *sum, in staging memory (rule 9): fp64 sum of squares of x [count], in an order that depends on count alone.
typedef struct bl_squares {
  uint64_t count;
  const float *x;
  double *sum;
} bl_squares_t;

// sums [columns] += the sums over rows of x [rows, columns].
typedef struct bl_column_sum {
  uint64_t rows, columns;
  bl_compute_dtype_t dtype;
  const void *x;
  float *sums;
} bl_column_sum_t;

typedef struct bl_ops {
  const char *name; // "host", "cuda"

  uint64_t norm_width_max; // elements of the longest row that norms take; 0: any
  bl_logits_t logits;      // layout of the logits that a head computes (model/layout.h)
  // Creates the context and nothing large. BL_INVALID: no threads, or a device of another back end. BL_UNIMPLEMENTED:
  // the instruction set, the compute capability or the version of a library does not fit.
  bl_status_t (*create)(const bl_compute_options_t *options, bl_compute_t **compute, bl_error_t *err);
  void (*destroy)(bl_compute_t *compute); // NULL is fine
  void (*attach)(bl_compute_t *compute);
  // What runs, for logs and reports: "avx512, oneDNN 2.6.3 avx512_core". Lives as long as the context.
  const char *(*describe)(const bl_compute_t *compute);
  // The largest workspace that any operation planned so far needs. Only planning makes it grow.
  size_t (*workspace_bytes)(const bl_compute_t *compute);
  // Borrows the block until the next use_workspace() or destroy(). Required before the first execution.
  void (*use_workspace)(bl_compute_t *compute, void *workspace, size_t bytes);
  // Returns the first failure since create() as BL_INTERNAL with its text, or BL_OK.
  bl_status_t (*status)(const bl_compute_t *compute, bl_error_t *err);
  // The stream that operations are put on, owned by the context. NULL: operations have ended when they return (rule 8).
  bl_device_stream_t *(*stream)(bl_compute_t *compute);
  // Memory of the device that the context itself holds for all plans so far (tables of plans, memory of libraries). The
  // caller counts it as workspace. NULL: none worth counting.
  size_t (*held_bytes)(const bl_compute_t *compute);

  // The algorithm of the products of each planned shape, if the library behind the context chooses one. Two contexts
  // give equal bits where they chose alike. The array belongs to the context and is valid until the next plan. NULL:
  // there is no choice.
  const bl_ops_choice_t *(*choices)(const bl_compute_t *compute, size_t *count);

  // ---- linear ------------------------------------------------------------------------------------------
  bl_status_t (*linear_plan)(bl_compute_t *compute, const bl_linear_shape_t *shape, bl_linear_op_t **op,
                             bl_error_t *err);
  // Bytes of the packed copies of one weight, a 64-byte aligned block of the caller, one per weight. 0 if the plan
  // reads the weight directly (fp32, and shape.prepack is false or packing gains nothing for this shape). Otherwise
  // about the size of the weight once per planned direction (forward, input; without prepack once for both).
  size_t (*linear_packed_bytes)(const bl_linear_op_t *op);
  // Offset of a rounded bias in the packed copies, which forward reads. 0: there is none, forward reads the bias
  // itself. NULL in a back end that never has one.
  size_t (*linear_packed_bias)(const bl_linear_op_t *op);
  // Called after every change of w or bias (initial load, optimizer step) if linear_packed_bytes() is not 0.
  void (*linear_pack)(bl_linear_op_t *op, const float *w, const float *bias, void *packed);
  // y = x W + bias + residual. `packed` is required if linear_packed_bytes() is not 0, else NULL. `bias` [out] and
  // `residual` [T, out] are required if the shape says so, else NULL. In bf16 w is not read.
  void (*linear_forward)(bl_linear_op_t *op, const void *x, const float *w, const void *packed, const float *bias,
                         const void *residual, void *y);
  // dx = dy W^T; with accumulate dx += dy W^T.
  void (*linear_backward_input)(bl_linear_op_t *op, const void *dy, const float *w, const void *packed, bool accumulate,
                                void *dx);
  // dw (in the order of W) = x^T dy, or += with accumulate. The gradient of the bias is a column sum of dy:
  // add_columns.
  void (*linear_backward_weight)(bl_linear_op_t *op, const void *x, const void *dy, bool accumulate, float *dw);

  // ---- normalisation -----------------------------------------------------------------------------------
  // stats: LayerNorm [2, T]: means, then 1 / deviations; RMSNorm [T]: 1 / root mean squares. gain [width]. bias
  // [width], NULL with rms. A second call gives the same bits (recomputation of y).
  void (*norm_forward)(bl_compute_t *compute, const bl_norm_shape_t *shape, const void *x, const float *gain,
                       const float *bias, void *y, float *stats);
  // dx = d norm(dy) + residual_gradient [T, width] (NULL: none). dx may be dy, x or residual_gradient. partials: this
  // micro-batch's gain gradient [width], then (LayerNorm) its bias gradient [width]; W adds them with `add_columns`.
  // NULL: not wanted.
  void (*norm_backward)(bl_compute_t *compute, const bl_norm_shape_t *shape, const void *dy, const void *x,
                        const float *gain, const float *stats, const void *residual_gradient, void *dx,
                        float *partials);

  // y [rows, (heads + 2 kv_heads) head_dim]: queries and keys of qkv normalised with gains [head_dim], values
  // unchanged.
  void (*head_norm_forward)(bl_compute_t *compute, const bl_head_norm_shape_t *shape, const void *qkv,
                            const float *query_gain, const float *key_gain, void *y);
  // dqkv from dy and from qkv, the input of forward; dqkv may be qkv. partials [2, head_dim]: gradients of the gains of
  // queries, then of keys, over all rows and heads of this call.
  void (*head_norm_backward)(bl_compute_t *compute, const bl_head_norm_shape_t *shape, const void *dy, const void *qkv,
                             const float *query_gain, const float *key_gain, void *dqkv, float *partials);

  // ---- activations -------------------------------------------------------------------------------------
  // GELU in its tanh form: act = pre/2 (1 + tanh(sqrt(2/pi) (pre + 0.044715 pre^3))).
  void (*gelu_forward)(bl_compute_t *compute, uint64_t count, bl_compute_dtype_t dtype, const void *pre, void *act);
  // dpre = dact gelu'(pre); dpre may be pre or dact.
  void (*gelu_backward)(bl_compute_t *compute, uint64_t count, bl_compute_dtype_t dtype, const void *dact,
                        const void *pre, void *dpre);
  // pre [T, 2 width]: gate columns, then up columns. act [T, width] = f(gate) up (model/gate.h).
  void (*gated_forward)(bl_compute_t *compute, bl_gate_t gate, uint64_t rows, uint64_t width, bl_compute_dtype_t dtype,
                        const void *pre, void *act);
  // dpre [T, 2 width] from dact [T, width]; dpre may be pre.
  void (*gated_backward)(bl_compute_t *compute, bl_gate_t gate, uint64_t rows, uint64_t width, bl_compute_dtype_t dtype,
                         const void *dact, const void *pre, void *dpre);

  // ---- positions and attention -------------------------------------------------------------------------
  bl_status_t (*rope_plan)(bl_compute_t *compute, const bl_rope_shape_t *shape, bl_rope_op_t **op, bl_error_t *err);
  void (*rope_forward)(bl_rope_op_t *op, void *qkv);   // in place on queries and keys
  void (*rope_backward)(bl_rope_op_t *op, void *dqkv); // the inverse rotation, in place

  bl_status_t (*attention_plan)(bl_compute_t *compute, const bl_attention_shape_t *shape, bl_attention_op_t **op,
                                bl_error_t *err);
  // saved: naive: probabilities [batch, heads, seq, seq] of the dtype (zero where a query does not see a key); flash:
  // float log-sum-exp [batch, heads, seq] of the scaled and softcapped scores. att [batch seq, heads head_dim].
  void (*attention_forward)(bl_attention_op_t *op, const void *qkv, void *att, void *saved);
  // dqkv from datt; dqkv may be qkv. `att` is the output of forward (only flash reads it; datt may not be att).
  void (*attention_backward)(bl_attention_op_t *op, const void *datt, const void *qkv, const void *att,
                             const void *saved, void *dqkv);
  // The same for a slice (shape.count). NULL in a back end that computes whole sequences only.
  //
  // pages [first / count + 1]: keys and values of the slices up to this one, [batch, count, 2 kv_heads head_dim] each,
  // a row's keys before its values. forward writes the page of its own slice, the last, and reads the others. saved:
  // [batch, heads, count, first + count] probabilities, or [batch, heads, count] log-sum-exp.
  void (*attention_slice_forward)(bl_attention_op_t *op, const void *qkv, void *const *pages, void *att, void *saved);
  // Slices run from the last to the first. gradients [first / count + 1]: float pages of that shape; the last slice has
  // no page of its own. The last slice sets the pages before it. Every other slice adds to the pages before it, and
  // adds its own page to its dqkv. The unit of the values in between is up to the back end.
  void (*attention_slice_backward)(bl_attention_op_t *op, const void *datt, const void *qkv, void *const *pages,
                                   float *const *gradients, const void *att, const void *saved, void *dqkv);

  // ---- embedding ---------------------------------------------------------------------------------------
  // x [batch seq, width] = scale wte[token] + wpe[position]; masters wte [vocab, width], wpe [>= seq, width] or NULL.
  // Whoever loaded the tokens has checked them against the vocabulary.
  void (*embedding_forward)(bl_compute_t *compute, uint64_t batch, uint64_t seq, uint64_t width, float scale,
                            bl_compute_dtype_t dtype, const int32_t *tokens, const float *wte, const float *wpe,
                            void *x);
  // Accumulates scale dx into dwte and dx into dwpe (or NULL), rows in token order.
  void (*embedding_backward)(bl_compute_t *compute, uint64_t batch, uint64_t seq, uint64_t width, float scale,
                             bl_compute_dtype_t dtype, const int32_t *tokens, const void *dx, float *dwte, float *dwpe);

  // ---- head: logits come from a linear operation over a chunk of rows ------------------------------------
  // Rows of logits are `stride` floats apart. What follows the vocab of a row is not read, and is undefined afterwards.
  //
  // z becomes softcap tanh(z / softcap), in place. softcap > 0.
  void (*softcap_logits)(bl_compute_t *compute, uint64_t rows, uint64_t vocab, uint64_t stride, float softcap,
                         float *logits);
  // row_losses [rows] = log-sum-exp(logits) - logits[label], nats. Then logits [rows, vocab] become their gradient:
  // (softmax - onehot) scale, of the dtype. A label below 0 has no loss: its row of both is 0. Each row of the gradient
  // starts where its logits start (in bf16 rows of the gradient are 2 stride elements apart). If softcap is not 0, logits
  // are the output of softcap_logits, and the gradient is that of its input: times 1 - (logit / softcap)^2.
  void (*cross_entropy)(bl_compute_t *compute, uint64_t rows, uint64_t vocab, uint64_t stride, bl_compute_dtype_t dtype,
                        const int32_t *labels, float scale, float softcap, float *logits, double *row_losses);
  // *loss = sum of row_losses in row order. *first_bad_row = index of the first row that is not finite, -1: none. Both
  // in staging memory (rule 9).
  void (*loss_sum)(bl_compute_t *compute, uint64_t rows, const double *row_losses, double *loss,
                   int64_t *first_bad_row);
  // Draws one token from softmax(logits / temperature). uniform in [0, 1) is the caller's random number. Temperature 0
  // takes the largest logit (the first of equal ones). Forward only. -1 if logits are not finite. Waits for the
  // operations before it.
  int32_t (*draw)(bl_compute_t *compute, uint64_t vocab, const float *logits, float temperature, double uniform);

  // ---- parts of a layer (model/layer_parts.h) ----------------------------------------------------------------
  // All NULL in a back end that computes whole layers only.
  //
  // y [rows, width] = sum over parts + bias + residual; bias and residual may be NULL. The parts [count], a power of two
  // from 2 on, are added as a binary tree, neighbours first, in float; then the bias and the residual are added, and the
  // result is rounded once. y may be residual or one of the parts. The array of pointers is read during the call.
  void (*sum_parts)(bl_compute_t *compute, uint64_t rows, uint64_t width, bl_compute_dtype_t dtype, uint32_t count,
                    const void *const *parts, const float *bias, const void *residual, void *y);
  // embedding_forward for the rows that a part has. A token or position that the part does not have adds 0. The tables
  // begin with the part's first row.
  void (*embedding_part_forward)(bl_compute_t *compute, const bl_embedding_part_t *part, const int32_t *tokens,
                                 const float *wte, const float *wpe, void *x);
  void (*embedding_part_backward)(bl_compute_t *compute, const bl_embedding_part_t *part, const int32_t *tokens,
                                  const void *dx, float *dwte, float *dwpe);
  // What the other parts of the vocabulary need to know of these logits [rows, vocab], rows `stride` floats apart:
  // statistics [rows, BL_SOFTMAX_STATISTICS]. first: the token of the first column.
  void (*softmax_statistics)(bl_compute_t *compute, uint64_t rows, uint64_t vocab, uint64_t stride, uint64_t first,
                             const int32_t *labels, const float *logits, float *statistics);
  // cross_entropy over all parts, for the columns of this part: statistics [parts][rows, BL_SOFTMAX_STATISTICS],
  // combined in the order of the parts. row_losses NULL: not wanted.
  void (*cross_entropy_part)(bl_compute_t *compute, uint64_t rows, uint64_t vocab, uint64_t stride, uint64_t first,
                             bl_compute_dtype_t dtype, const int32_t *labels, float scale, float softcap,
                             uint32_t parts, const float *statistics, float *logits, double *row_losses);

  // ---- parameters --------------------------------------------------------------------------------------
  // PyTorch's AdamW (decoupled decay): g = gradient_scale dw; w *= 1 - rate weight_decay; m, v moments of g; w -= rate
  // / correction1 m / (sqrt(v / correction2) + epsilon).
  // adamw, sum_squares and add_columns take many tensors at once: on a device most tensors are less work than a launch.
  void (*adamw)(bl_compute_t *compute, uint32_t count, const bl_adamw_tensor_t *tensors);
  // True: adamw takes `packed` and writes there what linear_pack would write, in one pass over memory. A back end sets
  // it only if every packed copy in bf16 is its weight rounded element by element, in the weight's order, so that one
  // copy serves every plan of that weight. False: `packed` is always NULL, and the caller calls linear_pack afterwards.
  bool adamw_packs;
  void (*sum_squares)(bl_compute_t *compute, uint32_t count, const bl_squares_t *tensors);
  void (*add_columns)(bl_compute_t *compute, uint32_t count, const bl_column_sum_t *sums);
  void (*accumulate)(bl_compute_t *compute, uint64_t count, const float *x, float *y); // y += x
  void (*add)(bl_compute_t *compute, uint64_t count, bl_compute_dtype_t dtype, const void *a, const void *b,
              void *y); // y = a + b; y may be a or b
  void (*fill)(bl_compute_t *compute, uint64_t count, float value, float *y);
  // *hash (staging) = 64 bits that change with any change of the block. They depend on its bytes alone; their number is
  // a multiple of 64. NULL: the CPU can read the block (bl_block_checksum, datapath/block.h, which gives other bits).
  void (*checksum)(bl_compute_t *compute, uint64_t bytes, const void *block, uint64_t *hash);
} bl_ops_t;

// The host back end: oneDNN for products, own kernels for everything else. A build without oneDNN lacks it (select.h).
const bl_ops_t *bl_ops_host(void);
extern const bl_library_t bl_ops_library; // oneDNN; part of the host back end

// Waits until everything on the stream has ended, then returns status(). BL_DEADLINE; deadline_ns is on
// bl_clock_now_ns(). `event` is an event of the context's device that the caller reuses; NULL if there is no stream.
static inline bl_status_t bl_ops_finish(const bl_ops_t *ops, bl_compute_t *compute, bl_device_t *device,
                                        bl_device_event_t *event, uint64_t deadline_ns, bl_error_t *err) {
  if (ops->stream != NULL) {
    bl_status_t status = bl_device_event_record(device, event, ops->stream(compute), err);
    status = status == BL_OK ? bl_device_event_wait(device, event, deadline_ns, err) : status;
    if (status != BL_OK) {
      return status;
    }
  }
  return ops->status(compute, err);
}

#endif
