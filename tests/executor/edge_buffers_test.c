// SPDX-License-Identifier: Apache-2.0
// Verifies that a stage whose run has two orders holds the edge buffers of the one that it begins with, to the byte, and
// takes those of the other one once a plan needs them.
#include "executor/engine.h"

#include "schedule/csv/csv.h"
#include "schedule/ir/stage_plan.h"

#include "job/order.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define STAGES 4

static const char job_text[] =
    "model: {family: gpt2, layers: 4, hidden: 36, heads: 2, vocab: 101, seq: 15}\n"
    "data: {train: '" BALLAST_SOURCE_DIR "/tests/golden/gpt2/tokens.bin', format: bin, order: sequential}\n"
    "train: {steps: 3, micro_batch: 3, micro_batches: 8}\n"
    "memory: {slots: 3}\n"
    "pipeline: {stages: 4, schedule: zb-h1}\n";

typedef struct orders {
  char *texts[2]; // for none, for balancing
  uint32_t edges[2][STAGES];
} orders_t;

static void make_orders(orders_t *orders) {
  bl_job_source_t source = {.file = {.name = "job", .bytes = job_text, .size_bytes = strlen(job_text)}};
  bl_job_t job;
  bl_schedule_t *made[2];
  bl_error_t err;
  if (bl_job_parse(&job, &source, &err) != BL_OK || bl_job_orders_make(&job, &made[0], &made[1], &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  for (int i = 0; i < 2; i++) {
    size_t bytes;
    assert_int_equal(bl_csv_write(made[i], &orders->texts[i], &bytes), BL_OK);
    assert_int_equal(bl_plan_counts(made[i], NULL, orders->edges[i], &err), BL_OK);
    bl_schedule_destroy(made[i]);
  }
  bl_job_cleanup(&job);
}

static void expect_held(const bl_engine_t *engine, uint32_t count) {
  const bl_memory_usage_t usage = bl_memory_usage(&engine->account, BL_MEMORY_EDGES);
  if (engine->edges_allocated != count || usage.current_bytes != count * engine->edge_bytes) {
    fail_msg("stage %u holds %u edge buffers, %llu bytes, expected %u of %llu", engine->coords.stage,
             engine->edges_allocated, (unsigned long long)usage.current_bytes, count,
             (unsigned long long)engine->edge_bytes);
  }
}

// True where the other order needs more on this stage.
static bool check_stage(const orders_t *orders, uint32_t stage, const char *path) {
  const uint32_t own = orders->edges[0][stage], other = orders->edges[1][stage], most = own > other ? own : other;
  const bl_engine_options_t options = {.job = job_text,
                                       .job_bytes = strlen(job_text),
                                       .orders = {.own = orders->texts[0], .other = orders->texts[1]},
                                       .rank = stage,
                                       .gpu = -1,
                                       .first_core = -1,
                                       .unix_path = path,
                                       .tcp_host = "127.0.0.1"};
  bl_engine_t *engine;
  bl_error_t err = {0};
  if (bl_engine_create(&options, &engine, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  expect_held(engine, own);
  assert_int_equal(engine->edge_count, most);
  assert_int_equal(bl_engine_allocate_edges(engine, most + 1, &err), BL_EXHAUSTED);
  expect_held(engine, own);
  memset(bl_engine_edge(engine, own - 1), 7, engine->edge_bytes);
  assert_int_equal(bl_engine_allocate_edges(engine, most, &err), BL_OK);
  expect_held(engine, most);
  memset(bl_engine_edge(engine, most - 1), 9, engine->edge_bytes);
  assert_int_equal(*(const char *)bl_engine_edge(engine, own - 1), most > own ? 7 : 9);
  assert_int_equal(bl_engine_allocate_edges(engine, 1, &err), BL_OK); // none goes
  expect_held(engine, most);
  bl_engine_destroy(engine);
  return most > own;
}

static void edge_buffers_come_with_a_plan(void **state) {
  (void)state;
  char folder[64] = "/tmp/ballast-edge-test-XXXXXX", path[96];
  orders_t orders;
  uint32_t more = 0;
  assert_non_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/data", folder);
  make_orders(&orders);
  for (uint32_t stage = 0; stage < STAGES; stage++) {
    more += check_stage(&orders, stage, path);
  }
  assert_true(more > 0 && more < STAGES);
  free(orders.texts[0]);
  free(orders.texts[1]);
  assert_int_equal(rmdir(folder), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(edge_buffers_come_with_a_plan)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
