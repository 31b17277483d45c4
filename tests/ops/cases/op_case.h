// SPDX-License-Identifier: Apache-2.0
// One table of operation cases, run in three modes: compare with the fp64 reference, check the reference's gradients by
// finite differences, take the time. A kind describes an operation (forward and backward together) by its tensors; a
// case is a kind with dimensions and flags. In the manner of ggml's test-backend-ops.
#ifndef BALLAST_TESTS_OPS_OP_CASE_H
#define BALLAST_TESTS_OPS_OP_CASE_H

#include "compute/ops/ops.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define OP_TENSORS 12
#define OP_DIMS    8

typedef enum op_role {
  OP_INPUT,  // standard normal, must come back unchanged
  OP_INDEX,  // int32 below `bound`, in the place of floats on the host
  OP_OUTPUT, // poisoned with NaN before; elements that both sides leave are untouched gaps
  OP_ADDED,  // has a value before, is added to
} op_role_t;

typedef struct op_tensor {
  const char *name;
  size_t count; // 0: absent, a NULL pointer
  op_role_t role;
  uint64_t bound;
  bool positive; // absolute values (second moments)
  bool typed;    // in a case of bf16: bf16 for the back end, packed at the start of the floats
} op_tensor_t;

typedef struct op_kind op_kind_t;

typedef struct op_case {
  const op_kind_t *kind;
  size_t dims[OP_DIMS];
  unsigned flags;
} op_case_t;

// A back end under test.
typedef struct op_host {
  const bl_ops_t *ops;
  bl_compute_t *compute;
  bl_device_t *device; // where its tensors lie; NULL: the host
} op_host_t;

// Gradients `gradient` of `input`, for outputs y with gradient dy: sum(dy forward(input)) is differentiated.
typedef struct op_slope {
  int input, gradient;
} op_slope_t;

struct op_kind {
  const char *name;
  double tolerance;      // relative to the root mean square of the tensor
  double bf16_tolerance; // of typed tensors in a case of bf16; 0: one rounding
  void (*tensors)(const op_case_t *c, op_tensor_t tensors[OP_TENSORS]);
  // Plans what needs planning (cached by the back end); gives the workspace through op_host_workspace. Tensors lie on the
  // device: nothing here but the back end and op_move touches them. Indices lie in staging.
  void (*host)(const op_host_t *host, const op_case_t *c, float **t);
  void (*reference)(const op_case_t *c, double **t);
  void (*forward)(const op_case_t *c, double **t); // NULL: nothing to differentiate
  int y, dy;
  op_slope_t slopes[4];
  int slopes_count;
};

extern const op_case_t op_cases[];
extern const size_t op_cases_count;
extern const op_case_t op_wide_cases[], op_gpu_cases[]; // wide.c: what kernels of a GPU have to be shown beside
extern const size_t op_wide_cases_count, op_gpu_cases_count;
extern const op_kind_t op_linear, op_norm, op_gelu, op_gated, op_rope, op_attention, op_embedding, op_cross_entropy,
    op_adamw, op_sums, op_columns, op_head_norm, op_sum_parts, op_embedding_parts, op_cross_entropy_parts,
    op_attention_slices;

enum { // flags of several kinds
  OP_IN_PLACE = 1u << 0,
  OP_OUT_IN = 1u << 1,
  OP_BIAS = 1u << 2,
  OP_RESIDUAL = 1u << 3,
  OP_PREPACK = 1u << 4,
  OP_ADD_INPUT = 1u << 5,
  OP_ADD_WEIGHT = 1u << 6,
  OP_RMS = 1u << 7,
  OP_FLASH = 1u << 8,
  OP_LARGE = 1u << 9,   // inputs times 30: saturation
  OP_OVER_X = 1u << 10, // norm: dx over x
  OP_BF16 = 1u << 11,
  OP_FLOAT_Y = 1u << 12, // linear: floats out, rows of dy start where rows of y do
  OP_OFFSET = 1u << 13,  // norms: gains from 1
  OP_GELU = 1u << 14,    // gated: not SiLU
  OP_SCALE = 1u << 15,   // attention, embedding: a scale of its own
  OP_SOFTCAP = 1u << 16, // attention, cross entropy: softcapped
};

static inline bl_compute_dtype_t op_dtype(const op_case_t *c) {
  return c->flags & OP_BF16 ? BL_COMPUTE_BF16 : BL_COMPUTE_FP32;
}
// Marks the tensors whose bits are set as typed.
static inline void op_set_typed(op_tensor_t *t, unsigned mask) {
  for (size_t n = 0; n < OP_TENSORS; n++) {
    t[n].typed = mask >> n & 1u;
  }
}
// bf16 as the top half of a float, rounded to nearest even; finite values.
uint16_t op_to_bf16(float value);
float op_from_bf16(uint16_t element);

// The thread sanitizer does not see the synchronisation inside libgomp and reports every parallel loop.
static inline bool op_sees_threads(uint32_t threads) {
#if defined(__SANITIZE_THREAD__)
  return threads <= 1;
#else
  (void)threads;
  return true;
#endif
}
// Skips the calling cmocka test, visibly.
#define op_skip_unseen_threads(threads)                                                                                \
  do {                                                                                                                 \
    if (!op_sees_threads(threads)) {                                                                                   \
      printf("skipped: the thread sanitizer does not see libgomp's synchronisation\n");                                \
      skip();                                                                                                          \
    }                                                                                                                  \
  } while (0)
// After planning: makes the workspace as large as the back end wants.
void op_host_workspace(const op_host_t *host);
// Zeroed memory of the back end's device (or staging), until the comparison of the case ends.
void *op_block(const op_host_t *host, bl_arena_kind_t kind, size_t bytes);
// Labels of a case of cross entropy: `indices`, but every third row, from the third on, has none. The back end's lie in
// staging, the reference's are read one by one.
const int32_t *op_labels(const op_host_t *host, const float *indices, size_t rows);
int64_t op_label(const double *indices, size_t row);
// Waits for what was asked of the back end so far, then copies; either side may be memory of the device.
void op_move(const op_host_t *host, void *to, const void *from, size_t bytes);
// Gives back what the cases keep for a device, before it is closed.
void op_release(const op_host_t *host);
void op_case_name(const op_case_t *c, char *text, size_t bytes);

// Runs the case on every one of `hosts`, twice, at two addresses: how many are wrong, after saying what.
size_t op_case_compare(const op_host_t *hosts, size_t count, const op_case_t *c);
// Each prints what fails and returns whether all is well.
bool op_case_gradients(const op_case_t *c);
// Errors of whole tensors: the normalised mean square error (squares of differences over squares of the reference) of
// each is at most 1e-6, in bf16 for typed tensors 1e-3. Twice, at two addresses, with the same bits. *worst: the largest
// error met, of fp32 and of typed bf16 tensors; kept when it is larger already.
typedef struct op_errors {
  double fp32, bf16;
} op_errors_t;
bool op_case_within(const op_host_t *host, const op_case_t *c, op_errors_t *worst);
// Runs the case on both, and compares every output of `a` with that of `b` as op_case_within does with the reference.
bool op_case_agree(const op_host_t *a, const op_host_t *b, const op_case_t *c, op_errors_t *worst);
// Runs the case on both and compares every output bit by bit.
bool op_case_same_bits(const op_host_t *a, const op_host_t *b, const op_case_t *c);
double op_case_seconds(const op_host_t *host, const op_case_t *c);

#endif
