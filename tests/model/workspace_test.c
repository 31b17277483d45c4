// SPDX-License-Identifier: Apache-2.0
// Verifies the workspace plan: pieces of logits, room for layers and head, and the tags of a chunk's memory.
#include "model/workspace.h"

#include "model/memory.h"
#include "model/models.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static bl_workspace_t plan_with(bl_model_t model, bl_chunk_span_t span, bl_layout_options_t options) {
  bl_layout_t layout;
  assert_int_equal(bl_layout_init(&layout, &model, span, options), BL_OK);
  return bl_workspace_plan(&layout);
}

static bl_workspace_t plan(bl_model_t model, uint32_t micro_batch, bool head, bool lean) {
  bl_layout_options_t options = {
      .micro_batch = micro_batch, .attention = BL_ATTENTION_FLASH, .backward = BL_BACKWARD_FUSED, .lean = lean};
  return plan_with(model, (bl_chunk_span_t){0, 2, false, head}, options);
}

static void logits_come_in_pieces(void **state) {
  (void)state;
  bl_model_t model = gpt2_small();
  bl_workspace_t w = plan(model, 1, true, false);
  assert_int_equal(w.head_rows, 256); // 4 equal pieces; 333 rows are 2^24 logits
  assert_true(w.bytes >= w.logits_offset_bytes + 256ull * 50257 * 4);
  assert_true(w.logits_offset_bytes >= w.losses_offset_bytes + 1024ull * 8);
  assert_true(w.losses_offset_bytes >= w.stats_offset_bytes + 2ull * 1024 * 4);
  assert_true(w.stats_offset_bytes >= 1024ull * 768 * 4);
  model.vocab = 256; // small enough for all rows at once
  assert_int_equal(plan(model, 3, true, false).head_rows, 3072);
  model.vocab = 1 << 24; // never below 64 rows
  assert_int_equal(plan(model, 1, true, false).head_rows, 64);
}

// A back end's own pieces: of workspace, and of what a stage counts.
static void pieces_are_the_back_ends(void **state) {
  (void)state;
  const bl_model_t model = gpt2_small();
  const bl_chunk_span_t span = {0, 2, false, true};
  bl_layout_options_t options = {.micro_batch = 4, .attention = BL_ATTENTION_FLASH};
  bl_stage_memory_request_t request = {
      .model = &model, .spans = &span, .span_count = 1, .options = options, .micro_batches = 1};
  bl_stage_memory_t host, gpu;
  assert_int_equal(bl_stage_memory(&request, &host), BL_OK);
  options.logits = request.options.logits = (bl_logits_t)BL_LOGITS_GPU;
  const bl_workspace_t w = plan_with(model, span, options);
  assert_int_equal(w.head_rows, 2048);                                    // 2670 rows are 2^27 logits
  assert_int_equal(w.bytes, w.logits_offset_bytes + 2048ull * 50272 * 4); // rows begin on lines of 128 bytes
  assert_int_equal(w.logits_stride, 50272);
  options.layer_parts.count = 4; // 12608 columns, a multiple of 64, except in the last part
  const bl_workspace_t in_parts = plan_with(model, span, options);
  assert_int_equal(in_parts.logits_stride, 12608);
  assert_int_equal(in_parts.exchange_buffers_offset_bytes, in_parts.logits_offset_bytes + 2048ull * 4 * 12608 * 4);
  assert_int_equal(bl_stage_memory(&request, &gpu), BL_OK);
  assert_int_equal(gpu.chunk_bytes, w.bytes);
  assert_true(host.chunk_bytes < w.bytes);
  assert_int_equal(host.slot_bytes, gpu.slot_bytes);
}

static void layers_need_one_tensor_and_lean_ones_six_more_each(void **state) {
  (void)state;
  const uint64_t unit = 1024ull * 768 * 4;
  bl_workspace_t w = plan(gpt2_small(), 1, false, false);
  assert_int_equal(w.bytes, 4 * unit);
  assert_int_equal(w.head_rows, 0);
  assert_int_equal(plan(gpt2_small(), 1, false, true).bytes, (4 + 2 * 6) * unit);
}

// However many layers: the block of one of them, and an x1 for it and the next one.
static void a_forward_that_keeps_nothing_needs_one_layer(void **state) {
  (void)state;
  const uint64_t unit = 1024ull * 768 * 4;
  bl_layout_options_t options = {
      .micro_batch = 1, .attention = BL_ATTENTION_FLASH, .backward = BL_BACKWARD_FUSED, .recompute = BL_RECOMPUTE_FULL};
  bl_layout_t layout;
  bl_model_t model = gpt2_small();
  assert_int_equal(bl_layout_init(&layout, &model, (bl_chunk_span_t){0, 1, false, false}, options), BL_OK);
  const uint64_t extra[] = {0, 0, 1, 2, 2, 2};
  for (uint32_t layers = 1; layers < 6; layers++) {
    bl_workspace_t w = plan_with(model, (bl_chunk_span_t){0, layers, false, false}, options);
    assert_int_equal(w.bytes, layout.slot_bytes + extra[layers] * unit);
    for (int i = 0; i < 2 && layers > 1; i++) {
      assert_true(w.x_offset_bytes[i] >= w.layer_offset_bytes + layout.slot_bytes);
      assert_true(w.x_offset_bytes[i] + unit <= w.bytes);
    }
    assert_int_equal(w.x_offset_bytes[0] != w.x_offset_bytes[1], layers > 2);
  }
}

static void memory_counts_a_second_embedding_gradient(void **state) {
  (void)state;
  bl_model_t model = gpt2_small();
  bl_chunk_memory_t memory;
  bl_layout_options_t options = {.micro_batch = 1, .attention = BL_ATTENTION_FLASH};
  assert_int_equal(bl_chunk_memory(&model, bl_chunk_span_whole(&model), options, &memory), BL_OK);
  assert_int_equal(memory.weight_bytes, 4 * bl_model_parameter_elements(&model));
  assert_int_equal(memory.gradient_bytes, memory.weight_bytes + 4ull * 50257 * 768);
  assert_int_equal(memory.workspace_bytes, plan(model, 1, true, false).bytes);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(logits_come_in_pieces),
      cmocka_unit_test(pieces_are_the_back_ends),
      cmocka_unit_test(layers_need_one_tensor_and_lean_ones_six_more_each),
      cmocka_unit_test(a_forward_that_keeps_nothing_needs_one_layer),
      cmocka_unit_test(memory_counts_a_second_embedding_gradient),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
