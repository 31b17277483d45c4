// SPDX-License-Identifier: Apache-2.0
// The operations that are the host's, done later: a row each (queued.h). Tokens, labels, losses and sums are in staging
// memory, which has one address.
#ifndef BALLAST_TESTS_LATE_OPERATIONS_H
#define BALLAST_TESTS_LATE_OPERATIONS_H

// clang-format off
#define LATE_OPERATIONS(X)                                                                                             \
  X(linear_pack, bl_linear_op_t, of_plan, (DEVICE, const float *, w), (DEVICE, const float *, bias),                   \
    (DEVICE, void *, packed))                                                                                          \
  X(linear_forward, bl_linear_op_t, of_plan,                                                                           \
    (DEVICE, const void *, x), (DEVICE, const float *, w), (DEVICE, const void *, packed),                             \
    (DEVICE, const float *, bias), (DEVICE, const void *, residual), (DEVICE, void *, y))                              \
  X(linear_backward_input, bl_linear_op_t, of_plan,                                                                    \
    (DEVICE, const void *, dy), (DEVICE, const float *, w), (DEVICE, const void *, packed),                            \
    (PLAIN, bool, accumulate), (DEVICE, void *, dx))                                                                   \
  X(linear_backward_weight, bl_linear_op_t, of_plan,                                                                   \
    (DEVICE, const void *, x), (DEVICE, const void *, dy), (PLAIN, bool, accumulate),                                  \
    (DEVICE, float *, dw))                                                                                             \
  X(norm_forward, bl_compute_t, of_compute, (STRUCT, bl_norm_shape_t, shape),                                          \
    (DEVICE, const void *, x), (DEVICE, const float *, gain), (DEVICE, const float *, bias),                           \
    (DEVICE, void *, y), (DEVICE, float *, stats))                                                                     \
  X(norm_backward, bl_compute_t, of_compute, (STRUCT, bl_norm_shape_t, shape),                                         \
    (DEVICE, const void *, dy), (DEVICE, const void *, x), (DEVICE, const float *, gain),                              \
    (DEVICE, const float *, stats), (DEVICE, const void *, residual_gradient),                                         \
    (DEVICE, void *, dx), (DEVICE, float *, partials))                                                                 \
  X(head_norm_forward, bl_compute_t, of_compute, (STRUCT, bl_head_norm_shape_t, shape), (DEVICE, const void *, qkv),    \
    (DEVICE, const float *, query_gain), (DEVICE, const float *, key_gain), (DEVICE, void *, y))                       \
  X(head_norm_backward, bl_compute_t, of_compute, (STRUCT, bl_head_norm_shape_t, shape),                               \
    (DEVICE, const void *, dy), (DEVICE, const void *, qkv), (DEVICE, const float *, query_gain),                      \
    (DEVICE, const float *, key_gain), (DEVICE, void *, dqkv), (DEVICE, float *, partials))                            \
  X(gelu_forward, bl_compute_t, of_compute, (PLAIN, uint64_t, count), (PLAIN, bl_compute_dtype_t, dtype),              \
    (DEVICE, const void *, pre), (DEVICE, void *, act))                                                                \
  X(gelu_backward, bl_compute_t, of_compute, (PLAIN, uint64_t, count), (PLAIN, bl_compute_dtype_t, dtype),             \
    (DEVICE, const void *, dact), (DEVICE, const void *, pre), (DEVICE, void *, dpre))                                 \
  X(gated_forward, bl_compute_t, of_compute, (PLAIN, bl_gate_t, gate), (PLAIN, uint64_t, rows),                        \
    (PLAIN, uint64_t, width), (PLAIN, bl_compute_dtype_t, dtype), (DEVICE, const void *, pre), (DEVICE, void *, act))                            \
  X(gated_backward, bl_compute_t, of_compute, (PLAIN, bl_gate_t, gate), (PLAIN, uint64_t, rows),                       \
    (PLAIN, uint64_t, width), (PLAIN, bl_compute_dtype_t, dtype),                                                      \
    (DEVICE, const void *, dact), (DEVICE, const void *, pre), (DEVICE, void *, dpre))                                 \
  X(rope_forward, bl_rope_op_t, of_plan, (DEVICE, void *, qkv))                                                        \
  X(rope_backward, bl_rope_op_t, of_plan, (DEVICE, void *, dqkv))                                                      \
  X(attention_forward, bl_attention_op_t, of_plan,                                                                     \
    (DEVICE, const void *, qkv), (DEVICE, void *, att), (DEVICE, void *, saved))                                       \
  X(attention_backward, bl_attention_op_t, of_plan,                                                                    \
    (DEVICE, const void *, datt), (DEVICE, const void *, qkv), (DEVICE, const void *, att),                            \
    (DEVICE, const void *, saved), (DEVICE, void *, dqkv))                                                             \
  X(embedding_forward, bl_compute_t, of_compute,                                                                       \
    (PLAIN, uint64_t, batch), (PLAIN, uint64_t, seq), (PLAIN, uint64_t, width), (PLAIN, float, scale),                 \
    (PLAIN, bl_compute_dtype_t, dtype), (PLAIN, const int32_t *, tokens),                                                                                  \
    (DEVICE, const float *, wte), (DEVICE, const float *, wpe), (DEVICE, void *, x))                                   \
  X(embedding_backward, bl_compute_t, of_compute,                                                                      \
    (PLAIN, uint64_t, batch), (PLAIN, uint64_t, seq), (PLAIN, uint64_t, width), (PLAIN, float, scale),                 \
    (PLAIN, bl_compute_dtype_t, dtype), (PLAIN, const int32_t *, tokens),                                                                                  \
    (DEVICE, const void *, dx), (DEVICE, float *, dwte), (DEVICE, float *, dwpe))                                      \
  X(softcap_logits, bl_compute_t, of_compute, (PLAIN, uint64_t, rows), (PLAIN, uint64_t, vocab),                       \
    (PLAIN, uint64_t, stride), (PLAIN, float, softcap), (DEVICE, float *, logits))                                     \
  X(cross_entropy, bl_compute_t, of_compute,                                                                           \
    (PLAIN, uint64_t, rows), (PLAIN, uint64_t, vocab), (PLAIN, uint64_t, stride), (PLAIN, bl_compute_dtype_t, dtype),  \
    (PLAIN, const int32_t *, labels), (PLAIN, float, scale), (PLAIN, float, softcap),                                  \
    (DEVICE, float *, logits), (DEVICE, double *, row_losses))                                                         \
  X(loss_sum, bl_compute_t, of_compute, (PLAIN, uint64_t, rows), (DEVICE, const double *, row_losses),                 \
    (PLAIN, double *, loss), (PLAIN, int64_t *, first_bad_row))                                                        \
  X(embedding_part_forward, bl_compute_t, of_compute, (STRUCT, bl_embedding_part_t, part),                             \
    (PLAIN, const int32_t *, tokens), (DEVICE, const float *, wte), (DEVICE, const float *, wpe),                      \
    (DEVICE, void *, x))                                                                                               \
  X(embedding_part_backward, bl_compute_t, of_compute, (STRUCT, bl_embedding_part_t, part),                            \
    (PLAIN, const int32_t *, tokens), (DEVICE, const void *, dx), (DEVICE, float *, dwte), (DEVICE, float *, dwpe))    \
  X(softmax_statistics, bl_compute_t, of_compute, (PLAIN, uint64_t, rows), (PLAIN, uint64_t, vocab),                   \
    (PLAIN, uint64_t, stride), (PLAIN, uint64_t, first), (PLAIN, const int32_t *, labels),                             \
    (DEVICE, const float *, logits), (DEVICE, float *, statistics))                                                    \
  X(cross_entropy_part, bl_compute_t, of_compute, (PLAIN, uint64_t, rows), (PLAIN, uint64_t, vocab),                   \
    (PLAIN, uint64_t, stride), (PLAIN, uint64_t, first), (PLAIN, bl_compute_dtype_t, dtype),                           \
    (PLAIN, const int32_t *, labels), (PLAIN, float, scale), (PLAIN, float, softcap), (PLAIN, uint32_t, parts),        \
    (DEVICE, const float *, statistics), (DEVICE, float *, logits), (DEVICE, double *, row_losses))                    \
  X(accumulate, bl_compute_t, of_compute,                                                                              \
    (PLAIN, uint64_t, count), (DEVICE, const float *, x), (DEVICE, float *, y))                                        \
  X(add, bl_compute_t, of_compute, (PLAIN, uint64_t, count), (PLAIN, bl_compute_dtype_t, dtype),                       \
    (DEVICE, const void *, a), (DEVICE, const void *, b), (DEVICE, void *, y))                                         \
  X(fill, bl_compute_t, of_compute, (PLAIN, uint64_t, count), (PLAIN, float, value), (DEVICE, float *, y))
// clang-format on

#endif
