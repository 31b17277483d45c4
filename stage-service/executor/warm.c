// SPDX-License-Identifier: Apache-2.0
#include "executor/warm.h"

#include "base/bytes.h"

#include <string.h>

static void run_chunk(bl_engine_t *engine, bl_chunk_t *chunk) {
  const bl_chunk_span_t span = bl_chunk_layout(chunk)->span;
  const bool full = engine->training.layout.recompute == BL_RECOMPUTE_FULL;
  const int32_t *tokens = span.embedding ? engine->tokens : NULL, *labels = span.head ? engine->labels : NULL;
  bl_chunk_loss_t *loss = span.head ? engine->losses : NULL;
  void *slot = bl_engine_slot(engine, 0), *in = bl_engine_edge(engine, 0), *out = bl_engine_edge(engine, 1);
  bl_chunk_forward(chunk, tokens, in, full ? NULL : slot, out);
  bl_chunk_recompute(chunk, in, slot);
  if (span.head) {
    bl_chunk_loss(chunk, labels, out, loss);
  }
  if (engine->training.layout.backward == BL_BACKWARD_FUSED) {
    bl_chunk_backward(chunk, tokens, labels, in, slot, out, true, loss);
  } else {
    bl_chunk_backward_input(chunk, labels, in, slot, out, true, loss);
    bl_chunk_backward_weight(chunk, tokens, in, slot, out);
  }
  bl_chunk_sum_norms(chunk);
  for (uint32_t i = 0; i < bl_chunk_parameter_count(chunk); i++) {
    bl_chunk_ask_squares(chunk, i, engine->squares);
  }
  bl_chunk_make_squares(chunk);
  if (engine->host == NULL) {
    bl_chunk_update(chunk, &(bl_adamw_settings_t){0.9, 0.95, 1e-8, 0.1, BL_DECAY_MATRICES},
                    &(bl_adamw_step_t){.step = 1, .rate = 0, .gradient_scale = 1});
  }
}

static void clear(bl_engine_t *engine, void *from, uint64_t bytes) {
  if (bytes > 0) {
    engine->ops->fill(engine->compute, bytes / sizeof(float), 0, from);
  }
}

bl_status_t bl__engine_warm(bl_engine_t *engine, bl_error_t *err) {
  if (engine->stream == NULL || engine->edges_held < 2 || engine->slots.count == 0) {
    return BL_OK;
  }
  for (uint32_t i = 0; i < engine->chunk_count; i++) {
    run_chunk(engine, engine->chunks[i].chunk);
  }
  if (engine->ops->checksum != NULL) {
    engine->ops->checksum(engine->compute, BL_CACHE_LINE_BYTES, bl_engine_slot(engine, 0), engine->block_hashes);
  }
  clear(engine, engine->weights.base, engine->weights.bytes);
  clear(engine, engine->gradients.base, engine->gradients.bytes);
  clear(engine, engine->host == NULL ? engine->optimizer.base : NULL,
        engine->host == NULL ? engine->optimizer.bytes : 0);
  clear(engine, engine->edges.base, 2 * engine->edge_bytes);
  clear(engine, bl_engine_slot(engine, 0), engine->slot_bytes);
  bl_status_t status = bl_engine_finish(engine, err);
  memset(engine->losses, 0, sizeof *engine->losses);
  return status == BL_OK ? BL_OK : bl_error_prefix(err, "the first run of what is planned");
}
