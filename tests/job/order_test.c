// SPDX-License-Identifier: Apache-2.0
// Verifies orders that one process of a run sends to another. A process accepts every order that a search found for the
// job, for every schedule, and does not change it. It refuses an order that does not belong to the job, says what is
// wrong with it, and frees everything.
#include "job/order.h"

#include "job/balance.h"
#include "job/job_text.h"
#include "job/training.h"
#include "same_order.h"
#include "schedule/csv/csv.h"
#include "schedule/generate.h"

#include <setjmp.h>
#include <stdlib.h>

#include <cmocka.h>

static bl_job_t parse(const char *sets) {
  bl_job_t job;
  bl_error_t err;
  if (job_text_parse(&job, sets, &err) != BL_OK) {
    fail_msg("%s: %s", sets, err.text);
  }
  return job;
}

// Returns the order of another job as text, which the caller frees.
static char *text_of(const char *sets) {
  bl_job_t job = parse(sets);
  bl_schedule_t *made;
  bl_error_t err;
  char *text;
  size_t bytes;
  if (bl_job_order_make(&job, bl_job_order_pooled(&job, job.balance.policy), &made, &err) != BL_OK ||
      bl_csv_write(made, &text, &bytes) != BL_OK) {
    fail_msg("%s: %s", sets, err.text);
  }
  bl_schedule_destroy(made);
  bl_job_cleanup(&job);
  return text;
}

// Returns false if the schedule cannot be made for this job.
static bool round_trip(const char *sets) {
  bl_job_t job = parse(sets);
  bl_schedule_t *made, *taken;
  bl_error_t err;
  char *text;
  size_t bytes;
  if (bl_job_order_make(&job, bl_job_order_pooled(&job, job.balance.policy), &made, &err) != BL_OK) {
    bl_job_cleanup(&job);
    return false;
  }
  if (bl_csv_write(made, &text, &bytes) != BL_OK || bl_job_order_take(&job, text, bytes, &taken, &err) != BL_OK) {
    fail_msg("%s: %s", sets, err.text);
  }
  assert_true(same_order(made, taken));
  assert_string_equal(made->name, taken->name);
  assert_int_equal(made->placement, taken->placement);
  assert_int_equal(made->transfers, taken->transfers);
  assert_int_equal(made->chunks, taken->chunks);
  assert_int_equal(made->micro_batches, taken->micro_batches);
  assert_int_equal(made->forward_slots, taken->forward_slots);
  assert_memory_equal(made->stage_of, taken->stage_of, made->virtual_stages * sizeof *made->stage_of);
  bl_schedule_destroy(made);
  bl_schedule_destroy(taken);
  free(text);
  bl_job_cleanup(&job);
  return true;
}

// Returns the largest number of stages to test. It is small for schedules whose search is long, as sanitizers make it
// longer.
static uint32_t most_stages(const char *name) {
  static const char *const quick[] = {"gpipe", "1f1b", "eager-1f1b", "interleaved", "zb-h1", "1f1b-v"};
  for (size_t i = 0; i < sizeof quick / sizeof quick[0]; i++) {
    if (strcmp(quick[i], name) == 0) {
      return 2;
    }
  }
  return 1;
}

static void every_order_that_runs_is_taken_as_it_is(void **state) {
  (void)state;
  size_t count, tried = 0, names = 0;
  const bl_schedule_info_t *infos = bl_schedule_infos(&count);
  for (size_t i = 0; i < count; i++) {
    for (uint32_t stages = 1; stages <= most_stages(infos[i].name); stages++) {
      for (int full = 0; full < 2; full++) {
        char sets[400];
        snprintf(sets, sizeof sets,
                 "pipeline.schedule=%s\npipeline.stages=%u\ntrain.micro_batches=2\npipeline.recompute=%s",
                 infos[i].name, stages, full ? "full" : "none");
        tried += round_trip(sets);
      }
    }
    names++;
  }
  assert_true(tried >= 2 * names);
}

static void what_is_searched_within_a_limit_is_taken(void **state) {
  (void)state;
  assert_true(round_trip("model.layers=8\npipeline.schedule=zb-v\npipeline.stages=2\ntrain.micro_batches=2\n"
                         "memory.slots=4\nbalance.policy=bpipe\nbalance.cap=4"));
  assert_true(round_trip("model.layers=8\npipeline.schedule=adaptive\npipeline.stages=2\ntrain.micro_batches=2\n"
                         "pipeline.costs.forward=[1,1,1,3]\npipeline.costs.input=[1]\npipeline.costs.weight=[1]"));
}

// Both orders at once are those that each is alone.
static void both_orders_are_what_each_is_alone(void **state) {
  (void)state;
  static const char *const jobs[] = {
      "pipeline.schedule=zb-h1\ntrain.micro_batches=8\nmemory.slots=3",
      "pipeline.schedule=zb-h1\ntrain.micro_batches=8\nmemory.slots=4", // as early as can be: none is better balanced
      "model.layers=8\npipeline.schedule=grouped-interleaved\ntrain.micro_batches=4"};
  for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
    bl_job_t job = parse(jobs[i]);
    bl_schedule_t *both[2], *alone;
    bl_error_t err;
    assert_true(bl_job_order_pools(&job));
    assert_int_equal(bl_job_orders_make(&job, &both[0], &both[1], &err), BL_OK);
    for (int pooled = 0; pooled < 2; pooled++) {
      assert_int_equal(bl_job_order_make(&job, pooled == 1, &alone, &err), BL_OK);
      assert_true(same_order(alone, both[pooled]));
      bl_schedule_destroy(alone);
    }
    assert_int_equal(same_order(both[0], both[1]), i == 1);
    bl_schedule_destroy(both[0]);
    bl_schedule_destroy(both[1]);
    bl_job_cleanup(&job);
  }
  bl_job_t job = parse("pipeline.schedule=zb-h1"); // without a limit there is nothing to pool
  assert_false(bl_job_order_pools(&job));
  bl_job_cleanup(&job);
}

// Verifies that `order` is refused and that the message contains `says`.
static void check_refused(const char *sets, const char *order, const char *says) {
  bl_job_t job = parse(sets);
  bl_schedule_t *taken = NULL;
  bl_error_t err = {0};
  assert_int_equal(bl_job_order_take(&job, order, strlen(order), &taken, &err), BL_INVALID);
  assert_null(taken);
  if (strstr(err.text, "pipeline.schedule") == NULL || strstr(err.text, says) == NULL) {
    fail_msg("'%s' is not in: %s", says, err.text);
  }
  const bl_training_orders_t orders = {.own = order};
  bl_training_t training;
  assert_int_equal(bl_training_init_with(&training, &job, &orders, &err), BL_INVALID);
  assert_int_equal(bl_job_order_take(&job, order, strlen(order), &taken, NULL), BL_INVALID);
  bl_job_cleanup(&job);
}

#define SMALL "pipeline.stages=2\ntrain.micro_batches=2\npipeline.schedule="

static void orders_of_other_jobs_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *job, *order_of, *says;
  } cases[] = {
      {"", "train.micro_batches=4", "4 stages, 4 chunks in all and 4 micro-batches, the job has 4, 4 and 6"},
      {"", "pipeline.stages=2", "it is for 2 stages, 2 chunks in all"},
      {"model.layers=8\npipeline.schedule=interleaved", "", "it is for 4 stages, 4 chunks in all"},
      {SMALL "interleaved", SMALL "1f1b-v", "it has chunk 2 on stage 1, interleaved has it on stage 0"},
      {SMALL "1f1b", SMALL "zb-h1", "it splits backwards"},
      {"", "pipeline.recompute=full", "it recomputes, which the job does not"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char *order = text_of(cases[i].order_of);
    check_refused(cases[i].job, order, cases[i].says);
    free(order);
  }
}

static void what_is_no_order_is_refused(void **state) {
  (void)state;
  static const struct {
    const char *order, *says;
  } cases[] = {
      {"", "has no operation"},
      {"\n\n", "has no operation"},
      {"hello", "row 1, column 1, cell \"hello\""},
      {"0F0,0F1\n", "is of forwards alone"},
      {"0F0,0B0\n", "it is for 1 stages, 1 chunks in all and 1 micro-batches"},
      {"0F0,0F1,0B0\n", "micro-batch 1"},
      {"0F0,0F0,0B0,0F1,0B1\n", "row 1, column 2"},
      {"0B0,0F0,0F1,0B1\n", "a backward before its forward"},
      {"0F0,0F1,0B1,0B0\n", "0B0 comes after a later micro-batch"},
      {"0F0,0E0,0F1,0L0,0B0,0B1\n", "evicts and loads"},
      {"0F0,0F1,0R0,0B0,0B1\n", "recomputes"},
      {"0F0,0I0,0F1,0W0,0B1\n", "splits backwards"},
      {"0F0.0,0F0.1,0B0.1,0B0.0,0F1.0,0F1.1,0B1.1,0B1.0\n", "it is for"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    check_refused("pipeline.stages=1\ntrain.micro_batches=2", cases[i].order, cases[i].says);
  }
}

// An order may differ from the one that a search would find. Its slots and buffers are counted in the same way.
static void what_is_taken_is_what_counts(void **state) {
  (void)state;
  char *order = text_of("pipeline.schedule=gpipe");
  bl_job_t job = parse(""), tight = parse("memory.slots=4");
  const bl_training_orders_t orders = {.own = order};
  bl_training_t training;
  bl_error_t err;
  assert_int_equal(bl_training_init_with(&training, &job, &orders, &err), BL_OK);
  assert_string_equal(training.schedule->name, "1f1b");
  for (uint32_t s = 0; s < 4; s++) {
    assert_int_equal(training.stages[s].slots_needed, 6);
  }
  bl_training_cleanup(&training);
  assert_int_equal(bl_training_init_with(&training, &tight, &orders, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "memory.slots"));
  bl_job_cleanup(&tight);
  bl_job_cleanup(&job);
  free(order);
}

// Each copy of the model adds up the gradients of its own micro-batches: pipe 0 must have the first half of them.
static void micro_batches_that_go_the_other_way_are_refused(void **state) {
  (void)state;
  bl_job_t job = parse("pipeline.schedule=chimera\npipeline.stages=2\ntrain.micro_batches=2");
  static const char good[] = "0F0,3F1,3B1,0B0\n2F1,1F0,1B0,2B1\n", swapped[] = "0F1,3F0,3B0,0B1\n2F0,1F1,1B1,2B0\n";
  bl_schedule_t *taken;
  bl_error_t err;
  if (bl_job_order_take(&job, good, strlen(good), &taken, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  assert_int_equal(taken->pipes, 2);
  bl_schedule_destroy(taken);
  assert_int_equal(bl_job_order_take(&job, swapped, strlen(swapped), &taken, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "0F1 goes the other way"));
  bl_job_cleanup(&job);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_order_that_runs_is_taken_as_it_is),
      cmocka_unit_test(what_is_searched_within_a_limit_is_taken),
      cmocka_unit_test(both_orders_are_what_each_is_alone),
      cmocka_unit_test(orders_of_other_jobs_are_refused),
      cmocka_unit_test(what_is_no_order_is_refused),
      cmocka_unit_test(what_is_taken_is_what_counts),
      cmocka_unit_test(micro_batches_that_go_the_other_way_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
