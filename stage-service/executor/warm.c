// SPDX-License-Identifier: Apache-2.0
#include "executor/warm.h"

#include "base/bytes.h"
#include "executor/kv_cache.h"

#include <string.h>

// What a chunk runs on: the first slot and edge buffers, its tokens, labels and loss if it has embedding or head.
typedef struct place {
  const int32_t *tokens, *labels;
  bl_chunk_loss_t *loss;
  void *slot, *in, *out;
} place_t;

static place_t place_of(const bl_engine_t *engine, const bl_chunk_t *chunk) {
  const bl_chunk_span_t span = bl_chunk_layout(chunk)->span;
  return (place_t){.tokens = span.embedding ? engine->tokens : NULL,
                   .labels = span.head ? engine->labels : NULL,
                   .loss = span.head ? engine->losses : NULL,
                   .slot = bl_engine_slot(engine, 0),
                   .in = bl_engine_edge(engine, 0),
                   .out = bl_engine_edge(engine, 1)};
}

static void run_forward(bl_engine_t *engine, bl_chunk_t *chunk, const place_t *p) {
  const bool full = engine->training.layout.recompute == BL_RECOMPUTE_FULL;
  bl_chunk_forward(chunk, p->tokens, p->in, full ? NULL : p->slot, p->out);
  bl_chunk_recompute(chunk, p->in, p->slot);
  if (p->labels != NULL) {
    bl_chunk_loss(chunk, p->labels, p->out, p->loss);
  }
}

static void run_backward(bl_engine_t *engine, bl_chunk_t *chunk, const place_t *p) {
  if (engine->training.layout.backward == BL_BACKWARD_FUSED) {
    bl_chunk_backward(chunk, p->tokens, p->labels, p->in, p->slot, p->out, true, p->loss);
  } else {
    bl_chunk_backward_input(chunk, p->labels, p->in, p->slot, p->out, true, p->loss);
    bl_chunk_backward_weight(chunk, p->tokens, p->in, p->slot, p->out);
  }
}

// Sets a slice on a chunk, with the first pages of the cache. A stage has pages for all slices of a sequence: F of the
// last one runs before I of any.
static void use_slice(bl_engine_t *engine, bl_chunk_t *chunk, uint32_t slice) {
  const uint32_t slices = engine->training.schedule->slices;
  if (slices == 1) {
    return;
  }
  for (uint32_t i = 0; i <= slice; i++) {
    engine->pages[i] = bl_kv_cache_page(engine, i);
    engine->page_gradients[i] = bl_kv_cache_gradients(engine, i + 1 < slices ? i : BL_NONE);
  }
  bl_chunk_use_slice(chunk,
                     &(bl_chunk_slice_t){.index = slice, .pages = engine->pages, .gradients = engine->page_gradients});
}

// Every slice has operations of its own.
static void run_chunk(bl_engine_t *engine, bl_chunk_t *chunk) {
  const place_t place = place_of(engine, chunk);
  const uint32_t slices = engine->training.schedule->slices;
  for (uint32_t i = 0; i < slices; i++) {
    use_slice(engine, chunk, i);
    run_forward(engine, chunk, &place);
  }
  for (uint32_t i = slices; i-- > 0;) {
    use_slice(engine, chunk, i);
    run_backward(engine, chunk, &place);
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
  if (engine->stream == NULL || engine->edges_allocated < 2 || engine->slots.count == 0) {
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
  clear(engine, engine->kv_cache.base, engine->kv_cache.bytes);
  bl_status_t status = bl_engine_finish(engine, err);
  memset(engine->losses, 0, sizeof *engine->losses);
  return status == BL_OK ? BL_OK : bl_error_prefix(err, "the first run of what is planned");
}
