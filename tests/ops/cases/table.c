// SPDX-License-Identifier: Apache-2.0
// The table. Odd sizes on purpose: tails of vectors, tiles and thread shares.
#include "ops/cases/op_case.h"

const op_case_t op_cases[] = {
    // rows, in, out, x stride, y stride
    {&op_linear, {1, 1, 1}, 0},
    {&op_linear, {3, 5, 7}, OP_BIAS},
    {&op_linear, {3, 5, 7}, OP_OUT_IN | OP_ADD_INPUT | OP_ADD_WEIGHT},
    {&op_linear, {33, 48, 95}, OP_BIAS | OP_RESIDUAL},
    {&op_linear, {33, 48, 95}, OP_BIAS | OP_RESIDUAL | OP_PREPACK},
    {&op_linear, {33, 48, 95}, OP_OUT_IN | OP_PREPACK | OP_ADD_INPUT},
    {&op_linear, {67, 64, 128}, OP_BIAS | OP_ADD_WEIGHT | OP_PREPACK | OP_RESIDUAL},
    {&op_linear, {67, 130, 64}, OP_OUT_IN | OP_PREPACK | OP_ADD_INPUT | OP_ADD_WEIGHT},
    {&op_linear, {19, 32, 24, 37, 40}, OP_BIAS},
    {&op_linear, {19, 32, 24, 37, 40}, OP_OUT_IN | OP_ADD_INPUT | OP_ADD_WEIGHT},
    {&op_linear, {19, 32, 24, 0, 40}, OP_RESIDUAL | OP_PREPACK | OP_ADD_INPUT},
    {&op_linear, {129, 256, 192}, OP_BIAS},
    {&op_linear, {40, 48, 576}, OP_BIAS | OP_ADD_WEIGHT}, // wide: weight gradient in parts
    {&op_linear, {40, 1040, 32}, OP_OUT_IN},
    // rows, width
    {&op_norm, {1, 5}, 0},
    {&op_norm, {5, 3}, OP_RMS},
    {&op_norm, {33, 65}, 0},
    {&op_norm, {33, 65}, OP_RESIDUAL | OP_IN_PLACE},
    {&op_norm, {33, 65}, OP_RMS},
    {&op_norm, {33, 65}, OP_OVER_X | OP_RESIDUAL},
    {&op_norm, {70, 256}, OP_RMS | OP_OVER_X},
    {&op_norm, {70, 256}, OP_RMS | OP_RESIDUAL | OP_IN_PLACE},
    {&op_norm, {70, 768}, OP_RESIDUAL},
    {&op_norm, {70, 768}, OP_LARGE},
    // count
    {&op_gelu, {1}, 0},
    {&op_gelu, {1037}, 0},
    {&op_gelu, {1037}, OP_IN_PLACE},
    {&op_gelu, {1037}, OP_LARGE},
    // rows, width
    {&op_swiglu, {3, 5}, 0},
    {&op_swiglu, {17, 131}, OP_IN_PLACE},
    {&op_swiglu, {17, 131}, OP_LARGE},
    // batch, seq, heads, kv_heads, head_dim
    {&op_rope, {1, 3, 1, 1, 2}, 0},
    {&op_rope, {2, 37, 4, 2, 26}, 0},
    {&op_rope, {1, 300, 2, 1, 64}, 0},
    {&op_attention, {1, 1, 1, 1, 1}, 0},
    {&op_attention, {1, 1, 1, 1, 1}, OP_FLASH},
    {&op_attention, {2, 7, 3, 3, 5}, 0},
    {&op_attention, {2, 7, 3, 3, 5}, OP_FLASH},
    {&op_attention, {1, 64, 2, 1, 16}, OP_FLASH},
    {&op_attention, {1, 65, 2, 2, 17}, OP_FLASH | OP_IN_PLACE},
    {&op_attention, {1, 65, 2, 2, 17}, OP_IN_PLACE},
    {&op_attention, {2, 130, 4, 2, 64}, OP_FLASH | OP_IN_PLACE},
    {&op_attention, {2, 130, 4, 2, 64}, OP_IN_PLACE},
    {&op_attention, {1, 200, 3, 1, 80}, OP_FLASH},
    {&op_attention, {1, 70, 2, 2, 128}, OP_FLASH},
    // batch, seq, width, vocab
    {&op_embedding, {1, 1, 1, 1}, OP_BIAS},
    {&op_embedding, {3, 19, 35, 11}, OP_BIAS},
    {&op_embedding, {3, 19, 35, 11}, 0},
    // rows, vocab
    {&op_cross_entropy, {1, 2}, 0},
    {&op_cross_entropy, {7, 257}, 0},
    {&op_cross_entropy, {7, 3001}, OP_LARGE},
    // count
    {&op_adamw, {1}, 0},
    {&op_adamw, {1037}, 0},
    {&op_sums, {1}, 0},
    {&op_sums, {70001}, OP_IN_PLACE},
};
const size_t op_cases_count = sizeof op_cases / sizeof op_cases[0];
