// SPDX-License-Identifier: Apache-2.0
// The expected size of a block, from the published formula instead of the layout. Per layer, in 16 bits and with tensor
// parallelism t, Korthikanti et al. keep s b h (10 + 24 / t) + 5 a s^2 b / t bytes. These are two inputs of norms, two
// of products and two masks; q, k, v, the output of attention, and the input and output of GELU; and for each
// probability the number itself, a mask and the result of dropout. The formula does not cover SwiGLU. Its two inputs
// and its output are counted in the same way.
#include "shard.h"

bl_shard_block_t bl_shard_block(const bl_model_t *model, const bl_shard_result_t *r) {
  const double element = (double)bl_dtype_bytes(r->layout.dtype), hidden = model->hidden, mask = 1 / element,
               query = (double)model->heads * model->head_dim, keys = 2.0 * model->kv_heads * model->head_dim,
               sums = sizeof(float) / element / hidden; // one float per token, in these units
  const double ffn = (model->family == BL_FAMILY_LLAMA ? 3.0 : 2.0) * model->ffn;
  const double probabilities = (double)model->heads * model->seq / hidden;
  const bool naive = r->layout.attention == BL_ATTENTION_NAIVE;
  const bool again = r->layout.recompute == BL_RECOMPUTE_ATTENTION;
  const double tokens = (double)r->layout.micro_batch * model->seq;
  bl_shard_block_t block = {.kept = (double)r->evict_bytes / (tokens * hidden * element * model->layers),
                            .linear = 4 + 2 * mask + (query + keys + query + ffn) / hidden,
                            .scores = naive && !again ? probabilities * (2 + mask) : 0,
                            .masks = 2 * mask + (naive && !again ? probabilities * (1 + mask) : 0),
                            .edge = 1.0 / model->layers,
                            .output = again ? query / hidden : 0};
  // Norms keep the mean (LayerNorm) and the deviation; flash attention keeps the logarithm of its sum.
  block.statistics = sums * (2.0 * (model->family == BL_FAMILY_LLAMA ? 1 : 2) + (naive || again ? 0 : model->heads));
  block.expected = block.linear + block.scores - block.masks - block.edge - block.output + block.statistics;
  block.rest = block.kept - block.expected;
  return block;
}
