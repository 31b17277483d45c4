// SPDX-License-Identifier: Apache-2.0
// Verifies ranges of slices: whatever rows of a part a range has, its slices name the elements of the whole tensor that
// the part holds there, in its order. Every parameter of every family, whole and in parts. A number of parts that does
// not divide a model is refused with one that does and that a job can have.
#include "model/layer_parts.h"

#include "model/models.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

// Writes where the elements of a slice lie in the whole tensor.
static void unfold(const bl_slice_t *slice, uint64_t *elements) {
  for (uint64_t i = 0; i < slice->rows * slice->groups; i++) {
    const uint64_t first = bl_slice_run(slice, i);
    for (uint64_t k = 0; k < slice->run; k++) {
      *elements++ = first + k;
    }
  }
}

static void check_range(const bl_slice_t *slice, const uint64_t *all, uint64_t first, uint64_t count, uint64_t *found) {
  uint64_t done = 0;
  for (uint64_t taken; done < count; done += taken) {
    const bl_slice_t range = bl_slice_range(slice, first + done, count - done, &taken);
    assert_true(taken > 0 && bl_slice_elements(&range) == taken);
    unfold(&range, found + done);
  }
  assert_true(done == count);
  assert_memory_equal(found, all + first, count * sizeof *found);
}

static void check_parameter(const bl_model_t *model, const bl_parameter_t *parameter, uint32_t parts, uint32_t part) {
  const bl_slice_t slice = bl_layer_part_slice(model, parameter, parts, part);
  const uint64_t elements = bl_slice_elements(&slice), row = bl_slice_row(parameter, &slice);
  if (elements == 0) {
    return; // the last part of a table
  }
  uint64_t *all = calloc(elements, sizeof *all), *found = calloc(elements, sizeof *found);
  assert_true(all != NULL && found != NULL && elements % row == 0);
  unfold(&slice, all);
  for (uint64_t shares = 1; shares <= 5; shares++) {
    const uint64_t rows = elements / row;
    for (uint64_t i = 0; i < shares; i++) {
      const uint64_t first = rows * i / shares * row, end = rows * (i + 1) / shares * row;
      check_range(&slice, all, first, end - first, found);
    }
  }
  free(all);
  free(found);
}

static bl_model_t small(bl_model_t model) {
  model.layers = 1;
  model.hidden = 24;
  model.heads = 8;
  model.kv_heads = model.family == BL_FAMILY_GPT2 ? 8 : 4;
  model.head_dim = 3;
  model.ffn = 40;
  model.vocab = 130;
  model.seq = 8;
  return model;
}

static void ranges_name_the_elements_of_a_part(void **state) {
  (void)state;
  const bl_model_t models[] = {small(gpt2_small()), small(tiny_llama()), small(phi3_mini())};
  assert_true(models[2].fused);
  for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
    for (uint32_t i = 0; i < bl_parameter_count(&models[m]); i++) {
      const bl_parameter_t parameter = bl_parameter_get(&models[m], i);
      for (uint32_t parts = 1; parts <= 4; parts *= 2) {
        for (uint32_t part = 0; part < parts; part++) {
          check_parameter(&models[m], &parameter, parts, part);
        }
      }
    }
  }
}

static void refusals_name_a_power_of_two(void **state) {
  (void)state;
  bl_model_t model = small(tiny_llama());
  model.heads = model.kv_heads = 6;
  model.ffn = 48;
  bl_error_t err;
  assert_int_equal(bl_layer_parts_check(&model, 4, 24, &err), BL_INVALID);
  assert_string_equal(err.text, "4 parts of a layer cannot share model.heads, which is 6; 2 parts can"); // 3 divide all
  assert_int_equal(bl_layer_parts_check(&model, 2, 24, &err), BL_OK);
  model.heads = model.kv_heads = 9;
  assert_int_equal(bl_layer_parts_check(&model, 4, 24, &err), BL_INVALID);
  assert_string_equal(err.text, "4 parts of a layer cannot share model.heads, which is 9; 1 can");
  model = small(tiny_llama());
  assert_int_equal(bl_layer_parts_check(&model, 4, 6, &err), BL_INVALID); // 12 tokens in two slices
  assert_string_equal(err.text,
                      "4 parts of a layer cannot share train.micro_batch x model.seq / pipeline.slices, which "
                      "is 6; 2 parts can");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(ranges_name_the_elements_of_a_part),
                                     cmocka_unit_test(refusals_name_a_power_of_two)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
