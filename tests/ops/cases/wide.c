// SPDX-License-Identifier: Apache-2.0
#include "ops/cases/op_case.h"

// Shapes that take other ways through the kernels than the table's: several packs a thread, rows of 16-byte packs, more
// rows than blocks, tails.
const op_case_t op_wide_cases[] = {
    {&op_norm, {300, 64}, OP_RMS | OP_RESIDUAL | OP_BF16},
    {&op_norm, {300, 12}, OP_RESIDUAL},
    {&op_norm, {1300, 64}, OP_RESIDUAL | OP_BF16}, // more rows a block than slots in the ring
    {&op_norm, {1300, 64}, OP_RMS | OP_RESIDUAL | OP_IN_PLACE | OP_BF16},
    {&op_norm, {1300, 12}, OP_RMS | OP_OVER_X},
    {&op_norm, {140, 9984}, OP_RESIDUAL | OP_IN_PLACE | OP_BF16},
    {&op_norm, {300, 520}, OP_RMS | OP_BF16}, // several rows a block, all warps busy
    {&op_norm, {3, 2056}, OP_BF16},
    {&op_norm, {3, 2052}, OP_RMS | OP_RESIDUAL},
    {&op_norm, {2, 4104}, OP_RMS | OP_BF16},
    {&op_norm, {2, 6152}, OP_RESIDUAL},
    {&op_norm, {2, 8196}, 0},
    {&op_norm, {1, 12288}, OP_RESIDUAL | OP_BF16},
    {&op_norm, {1, 16384}, OP_RMS},
    {&op_norm, {1, 16383}, 0},
    {&op_norm, {300, 520}, OP_RMS | OP_OFFSET | OP_BF16},
    {&op_norm, {3, 2052}, OP_RMS | OP_RESIDUAL | OP_OFFSET},
    {&op_norm, {33, 65}, OP_OFFSET | OP_OVER_X},
    // lanes of a head from 1 to 32, packs of a lane from 1 to 8, more heads than groups, tails
    {&op_head_norm, {1, 1, 1, 1}, 0},
    {&op_head_norm, {3, 2, 1, 7}, OP_BF16},
    {&op_head_norm, {3, 3, 1, 8}, OP_BF16 | OP_OFFSET},
    {&op_head_norm, {37, 4, 2, 26}, 0},
    {&op_head_norm, {37, 4, 2, 26}, OP_IN_PLACE | OP_BF16},
    {&op_head_norm, {70, 5, 1, 128}, OP_IN_PLACE},
    {&op_head_norm, {70, 6, 2, 128}, OP_BF16 | OP_IN_PLACE},
    {&op_head_norm, {300, 4, 1, 128}, OP_BF16}, // several heads a group
    {&op_head_norm, {700, 8, 8, 128}, OP_OFFSET},
    {&op_head_norm, {9, 4, 1, 256}, OP_BF16 | OP_OFFSET | OP_IN_PLACE},
    {&op_head_norm, {9, 4, 1, 256}, OP_OFFSET},
    {&op_head_norm, {3, 2, 1, 260}, OP_BF16},
    {&op_head_norm, {3, 2, 1, 512}, OP_BF16},
    {&op_head_norm, {3, 2, 2, 1000}, OP_BF16 | OP_IN_PLACE},
    {&op_head_norm, {3, 2, 2, 1024}, OP_IN_PLACE},
    {&op_gated, {5, 2064}, OP_BF16},
    {&op_gated, {5, 2064}, OP_IN_PLACE},
    {&op_gated, {5, 2064}, OP_GELU | OP_BF16},
    {&op_gated, {5, 131}, OP_GELU | OP_IN_PLACE},
    {&op_gated, {5, 131}, OP_GELU | OP_LARGE | OP_BF16},
    {&op_gelu, {8192}, OP_BF16},
    {&op_rope, {1, 5, 2, 1, 128}, OP_BF16},
    {&op_rope, {1, 5, 2, 1, 128, 96}, OP_BF16}, // whole packs of a half
    {&op_rope, {2, 5, 2, 1, 32, 16}, 0},
    {&op_rope, {2, 5, 2, 1, 20, 16}, OP_BF16}, // halves are whole packs, and heads are not
    {&op_embedding, {2, 150, 264, 7}, OP_BIAS | OP_BF16},
    {&op_embedding, {1, 300, 16, 500}, 0},
    {&op_embedding, {2, 150, 264, 7}, OP_BIAS | OP_SCALE | OP_BF16},
    {&op_embedding, {3, 19, 35, 11}, OP_SCALE},
    {&op_cross_entropy, {2, 9000}, OP_BF16},
    {&op_cross_entropy, {2, 9002}, OP_BF16},
    {&op_cross_entropy, {2, 16390}, 0},
    {&op_cross_entropy, {2, 50257, 50272}, 0}, // GPT-2's
    {&op_cross_entropy, {2, 50257, 50272}, OP_BF16},
    {&op_cross_entropy, {2, 50257, 50272}, OP_SOFTCAP | OP_BF16},
    {&op_cross_entropy, {7, 257}, OP_SOFTCAP},
    {&op_cross_entropy, {2, 16388}, OP_SOFTCAP | OP_BF16},
    {&op_cross_entropy, {2, 9002}, OP_SOFTCAP | OP_BF16},
    {&op_sum_parts, {3, 2056, 2}, OP_BIAS | OP_RESIDUAL | OP_BF16},
    {&op_sum_parts, {3, 1028, 8}, OP_BIAS | OP_RESIDUAL | OP_IN_PLACE},
    {&op_sum_parts, {2, 264, 16}, OP_RESIDUAL | OP_BF16},
    {&op_sum_parts, {2, 268, 32}, OP_IN_PLACE},
    {&op_sum_parts, {1, 4104, 64}, OP_BF16},
    {&op_embedding_parts, {2, 150, 264, 7, 2}, OP_BIAS | OP_BF16},
    {&op_embedding_parts, {2, 150, 264, 301, 4, 150}, OP_BIAS | OP_SCALE | OP_BF16},
    {&op_embedding_parts, {1, 300, 16, 500, 8}, 0},
    // GPT-2's parts: 12608 columns, the last 12433; more strips than one, with and without packs
    {&op_cross_entropy_parts, {2, 50257, 4, 32}, 0},
    {&op_cross_entropy_parts, {2, 50257, 4, 32}, OP_SOFTCAP | OP_BF16},
    {&op_cross_entropy_parts, {2, 50257, 2, 32}, OP_BF16},
    {&op_cross_entropy_parts, {2, 18003, 2}, OP_BF16},
    {&op_cross_entropy_parts, {2, 18003, 2}, OP_SOFTCAP},
    {&op_linear, {600, 8, 264}, OP_BIAS | OP_ADD_WEIGHT | OP_BF16},
    {&op_linear, {9, 8, 700}, OP_BIAS},
    {&op_attention, {2, 132, 6, 2, 16}, OP_BF16},
    {&op_attention, {2, 132, 6, 2, 16}, OP_FLASH | OP_IN_PLACE},
    // windows of one key, of odd numbers, of all keys and of more; softcaps; both
    {&op_attention, {1, 9, 2, 1, 4, 1}, 0},
    {&op_attention, {2, 37, 4, 2, 8, 5}, OP_BF16 | OP_IN_PLACE},
    {&op_attention, {2, 132, 6, 2, 16, 33}, OP_BF16},
    {&op_attention, {2, 132, 6, 2, 16, 33}, OP_FLASH | OP_IN_PLACE},
    {&op_attention, {1, 65, 2, 2, 17, 65}, OP_IN_PLACE},
    {&op_attention, {1, 65, 2, 2, 17, 64}, OP_FLASH},
    {&op_attention, {1, 20, 2, 2, 4, 99}, OP_SCALE},
    {&op_attention, {1, 600, 1, 1, 4, 550}, 0},  // several fours a thread
    {&op_attention, {1, 512, 1, 1, 8}, OP_BF16}, // a warp that is full, and one column more
    {&op_attention, {1, 513, 1, 1, 4}, OP_FLASH},
    // gradients of shared heads into rows: whole packs of bf16, whole packs of floats alone, sequences shorter than the rows
    // of a thread
    {&op_attention, {5, 3, 4, 2, 24}, OP_BF16},
    {&op_attention, {3, 6, 4, 2, 12}, OP_BF16 | OP_IN_PLACE},
    {&op_attention, {3, 6, 4, 2, 12}, OP_FLASH},
    {&op_attention, {7, 1, 6, 2, 4}, 0},
    {&op_attention, {2, 37, 4, 2, 8}, OP_SOFTCAP | OP_IN_PLACE},
    {&op_attention, {2, 37, 4, 2, 8}, OP_SOFTCAP | OP_FLASH | OP_SCALE},
    {&op_attention, {2, 132, 6, 2, 16}, OP_SOFTCAP | OP_SCALE | OP_BF16 | OP_IN_PLACE},
    {&op_attention, {2, 132, 6, 2, 16}, OP_SOFTCAP | OP_FLASH | OP_BF16},
    {&op_attention, {2, 132, 6, 2, 16, 33}, OP_SOFTCAP | OP_SCALE},
    {&op_attention, {1, 65, 2, 2, 17, 20}, OP_SOFTCAP | OP_FLASH | OP_SCALE | OP_IN_PLACE},
    {&op_attention, {1, 65, 2, 2, 17, 20}, OP_SOFTCAP | OP_SCALE | OP_BF16},
    // slices: pages of whole packs and of none, several key heads a page, more slices than rows of a thread
    {&op_attention_slices, {2, 132, 6, 2, 16, 4, 40}, OP_SOFTCAP | OP_BF16 | OP_IN_PLACE},
    {&op_attention_slices, {3, 35, 4, 2, 12, 7}, OP_BF16},
    {&op_attention_slices, {3, 35, 4, 2, 12, 7, 5}, OP_FLASH},
    {&op_sums, {1100003}, 0},
    {&op_adamw, {4096}, 0},
};
const size_t op_wide_cases_count = sizeof op_wide_cases / sizeof op_wide_cases[0];

// What only a GPU is fast enough for: with 132 multiprocessors and two blocks on each, several rows a block, rings that turn, and
// as many threads and packs a thread as kernels have.
const op_case_t op_gpu_cases[] = {
    {&op_norm, {1300, 4096}, OP_RESIDUAL | OP_IN_PLACE | OP_BF16},
    {&op_norm, {1300, 4096}, OP_RMS | OP_RESIDUAL | OP_BF16},
    {&op_norm, {700, 8192}, OP_RESIDUAL | OP_BF16},
    {&op_norm, {700, 8192}, OP_RMS | OP_RESIDUAL | OP_IN_PLACE | OP_BF16},
    {&op_norm, {300, 12288}, OP_RESIDUAL | OP_BF16},
    {&op_norm, {300, 16384}, OP_RMS | OP_OVER_X | OP_BF16},
    {&op_norm, {300, 16384}, OP_RESIDUAL},
    {&op_norm, {1300, 1600}, OP_RESIDUAL | OP_BF16},
    {&op_cross_entropy, {600, 33000}, OP_BF16},
    {&op_cross_entropy, {600, 9002, 9024}, OP_BF16},
    {&op_cross_entropy, {600, 9002, 9024}, OP_SOFTCAP},
    {&op_sum_parts, {400, 4096, 4}, OP_BIAS | OP_RESIDUAL | OP_BF16},
    {&op_sum_parts, {100, 8192, 8}, OP_RESIDUAL | OP_IN_PLACE},
    {&op_embedding_parts, {2, 1024, 1600, 2003, 4}, OP_BIAS | OP_BF16},
    {&op_cross_entropy_parts, {300, 50257, 4, 32}, OP_BF16},
    {&op_cross_entropy_parts, {600, 9002, 2, 32}, OP_SOFTCAP},
    {&op_attention, {1, 1100, 1, 1, 8}, OP_BF16},
    {&op_attention, {1, 2100, 1, 1, 8, 600}, OP_BF16},
    {&op_attention_slices, {1, 1024, 2, 1, 64, 4}, OP_FLASH | OP_BF16},
    {&op_attention_slices, {2, 512, 2, 2, 128, 2, 300}, OP_BF16 | OP_IN_PLACE},
};
const size_t op_gpu_cases_count = sizeof op_gpu_cases / sizeof op_gpu_cases[0];
