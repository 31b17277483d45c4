// SPDX-License-Identifier: Apache-2.0
// Verifies who may use a profile: of what it is refused, what it is doubted for, and that both name field and values.
#include "plan/profile/profile_use.h"

#include "schedule/balance/balance.h"
#include "schedule/generate.h"

#include "models.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

// A profile of 1f1b on two stages with four micro-batches, and a use that it fits.
typedef struct world {
  bl_model_t model;
  bl_schedule_t *schedule;
  bl_profile_chunk_t chunks[2];
  bl_profile_stage_t stages[2];
  double times[8];
  bl_profile_t profile;
  bl_profile_use_t use;
} world_t;

static bl_schedule_t *generate(const char *name, uint32_t micro_batches) {
  bl_error_t err;
  bl_schedule_t *schedule;
  bl_schedule_request_t request = {.name = name, .stages = 2, .micro_batches = micro_batches};
  assert_int_equal(bl_schedule_generate(&request, &schedule, &err), BL_OK);
  return schedule;
}

static void open_world(world_t *w) {
  *w = (world_t){.model = gpt(6, 64, 4),
                 .chunks = {{.span = {.layer_count = 3, .embedding = true}},
                            {.stage = 1, .span = {.first_layer = 3, .layer_count = 3, .head = true}}}};
  w->schedule = generate("1f1b", 4);
  for (int s = 0; s < 2; s++) {
    w->chunks[s].costs = (bl_chunk_costs_t){1, 1, 1, 1};
    w->stages[s] = (bl_profile_stage_t){.times = w->times, .time_count = 8, .path_rate = s == 0 ? 1e9 : 0};
  }
  w->profile = (bl_profile_t){.model_digest = bl_profile_model_digest(&w->model),
                              .model_text = "a model",
                              .schedule = "1f1b",
                              .options = {.micro_batch = 2, .dtype = BL_DTYPE_BF16},
                              .setting = {.known = true, .threads = 1, .order = bl_profile_order(w->schedule)},
                              .micro_batches = 4,
                              .cores = 2,
                              .stage_count = 2,
                              .chunk_count = 2,
                              .stages = w->stages,
                              .chunks = w->chunks};
  w->use = (bl_profile_use_t){.model = &w->model, .options = w->profile.options, .threads = 1, .cores = 2};
}

static void says(const char *text, const char *part) {
  if (strstr(text, part) == NULL) {
    fail_msg("'%s', expected '...%s...'", text, part);
  }
}

static void refuses(const world_t *w, const char *message) {
  bl_error_t err;
  assert_int_equal(bl_profile_check(&w->profile, &w->use, "p.json", &err), BL_INVALID);
  says(err.text, message);
  says(err.text, "profile p.json");
  says(err.text, "ballastctl run JOB --profile FILE");
}

static void what_says_nothing_is_refused(void **state) {
  (void)state;
  world_t w;
  bl_error_t err;
  open_world(&w);
  assert_int_equal(bl_profile_check(&w.profile, &w.use, "p.json", &err), BL_OK);
  w.use.options.dtype = BL_DTYPE_FP32;
  refuses(&w, "dtype is bf16, the job's train.dtype is fp32");
  w.profile.setting.known = false; // an older program's: it may be
  assert_int_equal(bl_profile_check(&w.profile, &w.use, "p.json", &err), BL_OK);
  w.profile.setting.known = true;
  w.use.options.dtype = BL_DTYPE_BF16;
  w.use.device = BL_PROFILE_CUDA;
  refuses(&w, "device is host, the job's pipeline.device is cuda");
  w.chunks[1].span.layer_count = 4;
  refuses(&w, "chunks have 7 layers together, its model has 6");
  bl_model_t other = gpt(6, 128, 4);
  w.use.model = &other;
  refuses(&w, "is of another model (a model); the job's is gpt2: layers 6, hidden 128");
  bl_schedule_destroy(w.schedule);
}

static void refuses_replay(const world_t *w, const bl_schedule_t *schedule, uint32_t micro_batch, const char *message) {
  bl_error_t err;
  assert_int_equal(bl_profile_check_replay(&w->profile, schedule, micro_batch, "p.json", &err), BL_INVALID);
  says(err.text, message);
  says(err.text, "profile p.json: ");
}

static void replays_are_of_the_same_order(void **state) {
  (void)state;
  world_t w;
  bl_error_t err;
  open_world(&w);
  assert_int_equal(bl_profile_check_replay(&w.profile, w.schedule, 2, "p.json", &err), BL_OK);
  refuses_replay(&w, w.schedule, 16,
                 "micro_batch is 2, the job's train.micro_batch 16; a replay needs one of the same");
  bl_schedule_t *gpipe = generate("gpipe", 4), *longer = generate("1f1b", 5);
  refuses_replay(&w, gpipe, 2, "schedule is 1f1b, the job's is gpipe");
  refuses_replay(&w, longer, 2, "micro_batches is 4, the job's train.micro_batches 5");
  memcpy(w.profile.schedule, "gpipe", sizeof "gpipe");
  refuses_replay(&w, gpipe, 2, "order is another one than the job's gpipe has");
  w.profile.setting.order = bl_profile_order(gpipe);
  assert_int_equal(bl_profile_check_replay(&w.profile, gpipe, 2, "p.json", &err), BL_OK);
  w.stages[0].time_count = 0;
  refuses_replay(&w, gpipe, 2, "stages[0].times is empty");
  w.profile.stage_count = 1;
  refuses_replay(&w, gpipe, 2, "has 1 stage with 2 chunks in all, the job 2 with 2");
  bl_schedule_destroy(gpipe);
  bl_schedule_destroy(longer);
  bl_schedule_destroy(w.schedule);
}

static void warnings(const world_t *w, const char *reason) {
  char warning[BL_PROFILE_WARNING];
  assert_true(bl_profile_warning(&w->profile, &w->use, warning));
  says(warning, reason);
  says(warning, "times are an approximation: record one of this job");
  assert_null(strchr(warning, '\n'));
}

static void what_is_near_is_doubted(void **state) {
  (void)state;
  world_t w;
  char warning[BL_PROFILE_WARNING];
  open_world(&w);
  w.use.schedule = w.schedule;
  assert_false(bl_profile_warning(&w.profile, &w.use, warning));
  assert_string_equal(warning, "");
  w.use.threads = 2;
  warnings(&w, "threads is 1, the job's pipeline.threads 2;");
  w.use.threads = 1;
  w.use.masked = true;
  warnings(&w, "loss is all, the job's data.loss masked;");
  w.profile.setting.device = BL_PROFILE_CUDA; // whose heads leave out nothing
  assert_false(bl_profile_warning(&w.profile, &w.use, warning));
  w.profile.setting.device = BL_PROFILE_HOST;
  w.use.masked = false;
  w.use.options.attention = BL_ATTENTION_FLASH;
  warnings(&w, "attention is naive, the job's pipeline.attention flash;");
  w.use.options.recompute = BL_RECOMPUTE_FULL;
  w.use.options.micro_batch = 8;
  warnings(&w, "recompute is none, the job's pipeline.recompute full; micro_batch is 2, the job's train.micro_batch 8");
  w.use.cores = 1;
  warnings(&w, "cores is 2, here stages have 1");
  w.use = (bl_profile_use_t){.model = &w.model, .options = w.profile.options, .threads = 1, .cores = 8};
  assert_false(bl_profile_warning(&w.profile, &w.use, warning)); // every stage has one either way
  w.profile.options.layer_parts.ranks = w.use.options.layer_parts.ranks = 2;
  warnings(&w, "cores is 2 for 4 ranks that share layers");
  w.profile.options.layer_parts.ranks = w.use.options.layer_parts.ranks = 1;
  w.profile.setting.known = false;
  warnings(&w, "dtype, device, threads and order are not in it");
  bl_schedule_destroy(w.schedule);
}

// Copies of stages that made none when the profile was recorded.
static void unseen_copies_are_doubted(void **state) {
  (void)state;
  world_t w;
  char warning[BL_PROFILE_WARNING];
  bl_error_t err;
  bl_balance_result_t balanced;
  const uint32_t own[] = {2, 2}, lent[] = {4, 4};
  const uint16_t reach[] = {1, 0};
  open_world(&w);
  bl_schedule_t *gpipe = generate("gpipe", 4);
  bl_balance_request_t to_cap = {
      .mode = BL_BALANCE_FEWEST, .own = own, .lent = lent, .stores = 2, .reach = reach, .reach_count = 1};
  assert_int_equal(bl_balance(gpipe, &to_cap, &balanced, &err), BL_OK);
  w.use.schedule = balanced.schedule;
  warnings(&w, "path_rate: no copies of stage 1 were measured, taken is the mean of the stages that made some");
  w.stages[0].path_rate = 0;
  warnings(&w, "path_rate: no copies of stage 0 and of others were measured, taken is 4 GB/s");
  w.stages[0].path_rate = w.stages[1].path_rate = 1e9;
  assert_false(bl_profile_warning(&w.profile, &w.use, warning));
  bl_balance_result_cleanup(&balanced);
  const bl_balance_cap_t at_host = {.slots = 2, .hosts = 1, .host_slots = 9, .host_only = true};
  assert_int_equal(bl_balance_within(gpipe, &at_host, &balanced, &err), BL_OK);
  w.use.schedule = balanced.schedule;
  warnings(
      &w,
      "host_rate: no copies of stage 0 and of others at the host were measured, taken is the mean of those that were");
  w.stages[0].host_rate = w.stages[1].host_rate = 1e9;
  assert_false(bl_profile_warning(&w.profile, &w.use, warning));
  bl_balance_result_cleanup(&balanced);
  bl_schedule_destroy(gpipe);
  bl_schedule_destroy(w.schedule);
}

static void two_are_compared_where_they_can_be(void **state) {
  (void)state;
  world_t w;
  char warning[BL_PROFILE_WARNING];
  bl_error_t err;
  open_world(&w);
  bl_profile_t other = w.profile;
  other.options.micro_batch = 4;
  assert_int_equal(bl_profile_check_pair(&w.profile, "a", &other, "b", &err), BL_OK);
  assert_false(bl_profile_warning_pair(&w.profile, &other, warning));
  other.setting.threads = 3;
  assert_true(bl_profile_warning_pair(&w.profile, &other, warning));
  says(warning, "threads is 1 in one, 3 in the other; times are an approximation: record both");
  other.setting.masked = true;
  assert_true(bl_profile_warning_pair(&w.profile, &other, warning));
  says(warning, "loss is all in one, masked in the other; times are an approximation: record both");
  other.options.dtype = BL_DTYPE_FP32;
  assert_int_equal(bl_profile_check_pair(&w.profile, "a", &other, "b", &err), BL_INVALID);
  says(err.text, "dtype of a is bf16, of b fp32");
  other.setting.known = false;
  assert_int_equal(bl_profile_check_pair(&w.profile, "a", &other, "b", &err), BL_OK);
  assert_true(bl_profile_warning_pair(&w.profile, &other, warning));
  says(warning, "are not in one of them");
  other.model_digest++;
  assert_int_equal(bl_profile_check_pair(&w.profile, "a", &other, "b", &err), BL_INVALID);
  says(err.text, "a is of a model, b of another model");
  bl_schedule_destroy(w.schedule);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_says_nothing_is_refused),
      cmocka_unit_test(replays_are_of_the_same_order),
      cmocka_unit_test(what_is_near_is_doubted),
      cmocka_unit_test(unseen_copies_are_doubted),
      cmocka_unit_test(two_are_compared_where_they_can_be),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
