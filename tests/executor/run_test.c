// SPDX-License-Identifier: Apache-2.0
// Verifies that the losses and weights of a training run have the same bits for every number of stages, schedule and
// data path, and for every kind of recomputation, with real engines, transports and edge buffers, one thread per stage;
// that slots are used and planned as recomputation promises; and that an interrupted attempt leaves no trace in the
// next one.
#include "executor/rig.h"
#include "instrumented.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define STAGES_MAX 3

static rig_setting_t on(const char *model, uint32_t stages, const char *schedule, bl_path_t path, const char *attention,
                        const char *recompute, rig_fault_t fault) {
  return (rig_setting_t){.model = model,
                         .stages = stages,
                         .schedule = schedule,
                         .path = path,
                         .attention = attention,
                         .recompute = recompute,
                         .fault = fault};
}

static void compare(const char *model, const char *attention) {
  rig_outcome_t first = rig_train(on(model, 1, "gpipe", BL_PATH_AUTO, attention, "none", RIG_NONE));
  assert_true(first.losses[RIG_STEPS - 1] < first.losses[0]);
  const rig_setting_t others[] = {
      on(model, 1, "1f1b", BL_PATH_AUTO, attention, "none", RIG_NONE),
      on(model, 2, "1f1b", BL_PATH_SHM, attention, "none", RIG_NONE),
      on(model, 2, "gpipe", BL_PATH_TCP, attention, "none", RIG_NONE),
      on(model, 3, "1f1b", BL_PATH_TCP, attention, "none", RIG_NONE),
      on(model, 3, "1f1b", BL_PATH_AUTO, attention, "none", RIG_CANCEL_FIRST),
      on(model, 3, "gpipe", BL_PATH_SHM, attention, "none", RIG_NONE),
      on(model, 2, "zb-h1", BL_PATH_AUTO, attention, "none", RIG_NONE),
      on(model, 3, "1f1b", BL_PATH_AUTO, attention, "full", RIG_CANCEL_FIRST),
      on(model, 2, "zb-h1", BL_PATH_AUTO, attention, "attention", RIG_NONE),
      on(model, 2, "zb-h1", BL_PATH_AUTO, attention, "full", RIG_NONE),
  };
  for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
    rig_outcome_t other = rig_train(others[i]);
    rig_expect_same(&others[i], &first, &other);
  }
}

// Both kinds of recomputation on 1 to 3 stages: the same bits in less memory.
static void recompute(const char *model, const char *attention) {
  static const char *const kinds[] = {"attention", "full"}, *const schedules[] = {"1f1b", "gpipe"};
  for (uint32_t stages = 1; stages <= STAGES_MAX; stages++) {
    for (int s = 0; s < 2; s++) {
      rig_setting_t setting = on(model, stages, schedules[s], BL_PATH_AUTO, attention, "none", RIG_NONE);
      rig_outcome_t kept = rig_train(setting);
      for (int kind = 0; kind < 2; kind++) {
        setting.recompute = kinds[kind];
        rig_outcome_t found = rig_train(setting);
        rig_expect_same(&setting, &kept, &found);
        for (uint32_t i = 0; i < stages; i++) {
          assert_int_equal(found.peak_slots[i], kind == 1 ? 1 : kept.peak_slots[i]);
        }
        assert_int_equal(found.arena_bytes, found.peak_slots[0] * found.slot_bytes);
        assert_true(kind == 1 || found.slot_bytes < kept.slot_bytes);
        assert_true(found.arena_bytes <= kept.arena_bytes);
      }
    }
  }
}

static void recompute_gpt2_naive(void **state) {
  (void)state;
  recompute("gpt2", "naive");
}

static void recompute_gpt2_flash(void **state) {
  (void)state;
  if (INSTRUMENTED) {
    skip(); // both are seen, apart
  }
  recompute("gpt2", "flash");
}

static void recompute_llama_naive(void **state) {
  (void)state;
  if (INSTRUMENTED) {
    skip(); // both are seen, apart
  }
  recompute("llama", "naive");
}

static void recompute_llama_flash(void **state) {
  (void)state;
  recompute("llama", "flash");
}

static void gpt2_naive(void **state) {
  (void)state;
  compare("gpt2", "naive");
}

static void gpt2_flash(void **state) {
  (void)state;
  compare("gpt2", "flash");
}

static void llama_flash(void **state) {
  (void)state;
  compare("llama", "flash");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(gpt2_naive),
      cmocka_unit_test(gpt2_flash),
      cmocka_unit_test(llama_flash),
      cmocka_unit_test(recompute_gpt2_naive),
      cmocka_unit_test(recompute_gpt2_flash),
      cmocka_unit_test(recompute_llama_naive),
      cmocka_unit_test(recompute_llama_flash),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
