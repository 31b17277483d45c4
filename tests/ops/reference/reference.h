// SPDX-License-Identifier: Apache-2.0
// Every operation in double, written as its formula and not for speed: what back ends are compared with.
// Shapes are those of compute/ops/ops.h; T is rows. Backward functions overwrite their outputs unless they say "adds".
// Pure. Thread: any.
#ifndef BALLAST_TESTS_OPS_REFERENCE_H
#define BALLAST_TESTS_OPS_REFERENCE_H

#include "model/gate.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// W[i, o] lies at w[i * w_in + o * w_out]; rows of x and y are x_stride and y_stride apart. bias and residual may be
// NULL.
typedef struct reference_linear {
  size_t rows, in, out, w_in, w_out, x_stride, y_stride;
} reference_linear_t;

void reference_linear_forward(const reference_linear_t *shape, const double *x, const double *w, const double *bias,
                              const double *residual, double *y);
void reference_linear_input(const reference_linear_t *shape, const double *dy, const double *w, double *dx);  // adds
void reference_linear_weight(const reference_linear_t *shape, const double *x, const double *dy, double *dw); // adds
void reference_add_columns(size_t rows, size_t columns, const double *x, double *sums);

// bias NULL: RMSNorm. stats [2, T] mean, 1 / deviation; RMSNorm [T].
void reference_norm_forward(size_t rows, size_t width, double epsilon, double gain_offset, const double *x,
                            const double *gain, const double *bias, double *y, double *stats);
void reference_norm_backward(size_t rows, size_t width, bool rms, double epsilon, double gain_offset, const double *dy,
                             const double *x, const double *gain, const double *residual_gradient, double *dx,
                             double *dgain, double *dbias);

typedef struct reference_head_norm {
  size_t rows, heads, kv_heads, head_dim;
  double epsilon, gain_offset;
} reference_head_norm_t;

// partials [2, head_dim].
void reference_head_norm_forward(const reference_head_norm_t *shape, const double *qkv, const double *query_gain,
                                 const double *key_gain, double *y);
void reference_head_norm_backward(const reference_head_norm_t *shape, const double *dy, const double *qkv,
                                  const double *query_gain, const double *key_gain, double *dqkv, double *partials);

double reference_gelu(double x);
double reference_gelu_slope(double x);
double reference_silu(double x);
double reference_silu_slope(double x);
double reference_gate(bl_gate_t gate, double x);
double reference_gate_slope(bl_gate_t gate, double x);

// direction 1 forward, -1 backward; in place on the first `dims` dimensions of the first heads + kv_heads heads of qkv,
// whose `seq` positions begin at `first`.
void reference_rope(size_t batch, size_t first, size_t seq, size_t heads, size_t kv_heads, size_t head_dim, size_t dims,
                    double theta, double direction, double *qkv);

typedef struct reference_attention {
  size_t batch, seq, heads, kv_heads, head_dim;
  size_t window;         // 0: none
  double scale, softcap; // 0: 1 / sqrt(head_dim); none
} reference_attention_t;

// probabilities [batch, heads, seq, seq], log_sums [batch, heads, seq].
void reference_attention_forward(const reference_attention_t *shape, const double *qkv, double *att,
                                 double *probabilities, double *log_sums);
void reference_attention_backward(const reference_attention_t *shape, const double *datt, const double *qkv,
                                  const double *probabilities, double *dqkv);

// softcap tanh(x / softcap), and its slope at a result; softcap 0: x.
double reference_softcap(double softcap, double x);
double reference_softcap_slope(double softcap, double softcapped);

// Loss of one row in nats; gradient [vocab] = softmax - onehot. Both are 0 if the label is below 0.
double reference_cross_entropy(size_t vocab, const double *logits, int64_t label, double *gradient);

#endif
