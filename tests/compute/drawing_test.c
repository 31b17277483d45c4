// SPDX-License-Identifier: Apache-2.0
// Verifies that weights drawn on several threads have the bits that one call of bl_parameter_initial gives: for whole
// tensors and for slices of them, of odd sizes and of more than one piece, in memory that the CPU writes and in memory that
// is copied to.
#include "compute/model/drawing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BEHIND 3 // elements after the last that must stay as they are

// hidden * 3 and more: matrices of several ranges of odd lengths.
static const bl_model_t model = {.family = BL_FAMILY_GPT2,
                                 .layers = 2,
                                 .hidden = 132,
                                 .heads = 4,
                                 .kv_heads = 4,
                                 .head_dim = 33,
                                 .ffn = 529,
                                 .vocab = 1013,
                                 .seq = 7,
                                 .tied = true,
                                 .norm_epsilon = 1e-5};

// The host, as if the CPU could not write its arenas.
static bl_device_t far_device(void) {
  bl_device_t device = *bl_device_host();
  device.host_memory = false;
  return device;
}

static float *block(uint64_t elements) {
  float *made = malloc((elements + BEHIND) * sizeof *made);
  assert_non_null(made);
  memset(made, 0xff, (elements + BEHIND) * sizeof *made); // NaN where nothing is written
  return made;
}

static void expect_same(const bl_model_t *of, const bl_parameter_t *parameter, const bl_slice_t *slice,
                        bl_device_t *device, uint32_t threads) {
  const uint64_t elements = bl_slice_elements(slice);
  float *whole = block(parameter->elements), *expected = block(elements), *drawn = block(elements);
  bl_parameter_initial(of, parameter, 9, 0, parameter->elements, whole);
  for (uint64_t i = 0; i < slice->rows * slice->groups; i++) {
    memcpy(expected + i * slice->run, whole + bl_slice_run(slice, i), slice->run * sizeof *whole);
  }
  bl_drawing_t drawing = {.model = of, .seed = 9, .threads = threads, .device = device};
  bl_error_t err = {0};
  assert_int_equal(bl_drawing_begin(&drawing, &err), BL_OK);
  assert_int_equal(bl_drawing_put(&drawing, parameter, slice, drawn, &err), BL_OK);
  bl_drawing_end(&drawing);
  for (uint64_t i = 0; i < elements + BEHIND; i++) {
    if (memcmp(&drawn[i], &expected[i], sizeof *drawn) != 0) {
      fail_msg("%s: element %lu of %lu is %a, not %a, with %u threads", parameter->name, (unsigned long)i,
               (unsigned long)elements, (double)drawn[i], (double)expected[i], threads);
    }
  }
  free(whole);
  free(expected);
  free(drawn);
}

static void threads_draw_the_same_bits(void **state) {
  (void)state;
  static const uint32_t threads[] = {0, 1, 2, 3, 7};
  bl_device_t far = far_device();
  for (uint32_t i = 0; i < bl_parameter_count(&model); i++) {
    const bl_parameter_t parameter = bl_parameter_get(&model, i);
    const bl_slice_t slice = bl_layer_part_slice(&model, &parameter, 1, 0);
    assert_int_equal(bl_slice_elements(&slice), parameter.elements);
    for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++) {
      expect_same(&model, &parameter, &slice, bl_device_host(), threads[t]);
      expect_same(&model, &parameter, &slice, &far, threads[t]);
    }
  }
}

// A part of a matrix is many short runs; ranges begin and end inside of them.
static void parts_are_drawn_alike(void **state) {
  (void)state;
  bl_model_t even = model;
  even.ffn = 1058;
  for (uint32_t i = 0; i < bl_parameter_count(&even); i++) {
    const bl_parameter_t parameter = bl_parameter_get(&even, i);
    for (uint32_t part = 0; part < 2; part++) {
      const bl_slice_t slice = bl_layer_part_slice(&even, &parameter, 2, part);
      expect_same(&even, &parameter, &slice, bl_device_host(), 3);
    }
  }
}

static void more_than_a_piece_is_copied_whole(void **state) {
  (void)state;
  bl_model_t wide = model;
  wide.vocab = 31777; // times 132: above 4 Mi
  bl_device_t far = far_device();
  const bl_parameter_t parameter = bl_parameter_get(&wide, bl_parameter_index(&wide, BL_PARAMETER_TOKEN_EMBEDDING, 0));
  assert_true(parameter.elements > 4u << 20);
  const bl_slice_t slice = bl_layer_part_slice(&wide, &parameter, 1, 0);
  expect_same(&wide, &parameter, &slice, &far, 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(threads_draw_the_same_bits),
      cmocka_unit_test(parts_are_drawn_alike),
      cmocka_unit_test(more_than_a_piece_is_copied_whole),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
