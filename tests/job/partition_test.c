// SPDX-License-Identifier: Apache-2.0
// Verifies the partition: the balance against all partitions of small models, lists that are followed, and refusals.
#include "job/partition.h"

#include "job/job_text.h"

#include <setjmp.h>
#include <stdlib.h>

#include <cmocka.h>

// The least possible maximum over all ways to cut `total` layers into `count` runs.
static double best_of_all(uint32_t total, uint32_t count, double head) {
  if (count == 1) {
    return total + head;
  }
  double best = 1e300;
  for (uint32_t first = 1; first <= total - (count - 1); first++) {
    double rest = best_of_all(total - first, count - 1, head);
    double slowest = rest > first ? rest : first;
    best = slowest < best ? slowest : best;
  }
  return best;
}

static void balance_is_optimal(void **state) {
  (void)state;
  static const double heads[] = {0, 0.1, 0.9, 1.0, 2.5, 30};
  for (size_t h = 0; h < sizeof heads / sizeof heads[0]; h++) {
    for (uint32_t total = 1; total <= 13; total++) {
      for (uint32_t count = 1; count <= total && count <= 5; count++) {
        uint32_t layers[5], sum = 0;
        double slowest = 0;
        bl_partition_balance(total, count, heads[h], layers);
        for (uint32_t i = 0; i < count; i++) {
          double cost = layers[i] + (i == count - 1 ? heads[h] : 0);
          slowest = cost > slowest ? cost : slowest;
          sum += layers[i];
          assert_true(layers[i] >= 1);
        }
        assert_int_equal(sum, total);
        if (slowest > best_of_all(total, count, heads[h]) + 1e-9) {
          fail_msg("%u layers on %u, head %g: slowest %g, possible %g", total, count, heads[h], slowest,
                   best_of_all(total, count, heads[h]));
        }
      }
    }
  }
}

static void what_is_left_goes_to_the_end(void **state) {
  (void)state;
  uint32_t layers[4];
  bl_partition_balance(9, 4, 0, layers);
  assert_int_equal(layers[0], 2);
  assert_int_equal(layers[3], 3);
  bl_partition_balance(9, 4, 2, layers);
  assert_int_equal(layers[0], 2);
  assert_int_equal(layers[2], 3);
  assert_int_equal(layers[3], 1);
}

static const bl_model_t model = {.family = BL_FAMILY_GPT2,
                                 .layers = 6,
                                 .hidden = 32,
                                 .heads = 4,
                                 .kv_heads = 4,
                                 .head_dim = 8,
                                 .ffn = 128,
                                 .vocab = 256,
                                 .seq = 16,
                                 .tied = true,
                                 .norm_epsilon = 1e-5};

static void a_list_is_followed(void **state) {
  (void)state;
  bl_job_t job;
  bl_error_t err = {0};
  if (job_text_parse(&job, "model.layers=6\npipeline.layers_per_stage=[3, 1, 1, 1]", &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  bl_partition_t partition;
  assert_int_equal(bl_partition_init(&partition, &job, &model, &err), BL_OK);
  assert_int_equal(partition.count, 4);
  assert_int_equal(partition.spans[0].layer_count, 3);
  assert_true(partition.spans[0].embedding && !partition.spans[0].head);
  assert_int_equal(partition.spans[1].first_layer, 3);
  assert_int_equal(partition.spans[3].first_layer, 5);
  assert_true(partition.spans[3].head && !partition.spans[3].embedding);
  bl_partition_cleanup(&partition);
  bl_job_cleanup(&job);
}

// The model here comes as from a config.json, so the job's own check of layers has not seen it.
static void refuses(const char *sets, const char *message) {
  bl_job_t job;
  bl_error_t err = {0};
  if (job_text_parse(&job, sets, &err) != BL_OK) {
    fail_msg("%s: %s", sets, err.text);
  }
  bl_partition_t partition;
  bl_status_t status = bl_partition_init(&partition, &job, &model, &err);
  if (status != BL_INVALID || strstr(err.text, message) == NULL) {
    fail_msg("%s: expected '%s', got %s '%s'", sets, message, bl_status_name(status), err.text);
  }
  bl_job_cleanup(&job);
}

static void what_does_not_cover_is_refused(void **state) {
  (void)state;
  refuses("model.layers=9\npipeline.stages=7", "pipeline.stages: 7 stages are more than the model's 6 layers");
  refuses("model.layers=8\npipeline.layers_per_stage=[2, 2, 2, 2]", "add up to 8 layers, the model has 6");
  refuses("model.layers=10\npipeline.layers_per_stage=[7, 1, 1, 1]", "entry 1 is 7");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(balance_is_optimal),
      cmocka_unit_test(what_is_left_goes_to_the_end),
      cmocka_unit_test(a_list_is_followed),
      cmocka_unit_test(what_does_not_cover_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
