// SPDX-License-Identifier: Apache-2.0
// Verifies that the cost of generating, validating, balancing and simulating a schedule of p stages and m micro-batches
// grows no faster than p m log(p m), for every name, and that simulation does so where stages share cores, stores and
// NICs, too. Counted are basic blocks that run, not seconds.
#include "schedule/balance/balance.h"
#include "schedule/generate.h"
#include "schedule/ir/validate.h"
#include "seed.h"
#include "simulate/simulate.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

// The compiler puts a call into every basic block of the two libraries.
void __sanitizer_cov_trace_pc(void);
static uint64_t steps;

void __sanitizer_cov_trace_pc(void) {
  steps++;
}

// Searches have a budget that does not grow with the shape; what is left without it is what grows.
#define EFFORT   0.0001
#define SMALLEST 8
#define LARGEST  64
#define ROUNDS   8    // micro-batches of a stage
#define MARGIN   1.25 // between one shape and one of twice the stages and micro-batches, beside p m log(p m)

#define MOST 1200000000 // steps of the whole search at 64 stages and 512 micro-batches

typedef uint64_t work_t(const char *name, uint32_t p, uint32_t m);

static uint64_t generate_with(const char *name, uint32_t p, uint32_t m, double effort) {
  bl_costs_t costs = {.every = {10, 14, 6, 10}, .boundary = 2};
  bl_schedule_request_t request = {.name = name, .stages = p, .micro_batches = m, .costs = &costs, .effort = effort};
  bl_schedule_t *schedule;
  bl_simulation_t result;
  bl_error_t err;
  bl_error_clear(&err);
  steps = 0;
  if (bl_schedule_generate(&request, &schedule, &err) != BL_OK || bl_schedule_validate(schedule, NULL, &err) != BL_OK ||
      bl_simulate(schedule, &costs, &result, &err) != BL_OK) {
    fail_msg("%s p=%u m=%u: %s", name, p, m, err.text);
  }
  uint64_t taken = steps;
  bl_simulation_cleanup(&result);
  bl_schedule_destroy(schedule);
  return taken;
}

static uint64_t generate(const char *name, uint32_t p, uint32_t m) {
  return generate_with(name, p, m, EFFORT);
}

static uint64_t balance(const char *name, uint32_t p, uint32_t m, bool pairs, bl_balance_mode_t mode) {
  bl_schedule_request_t request = {.name = name, .stages = p, .micro_batches = m};
  bl_schedule_t *schedule;
  bl_balance_result_t result;
  bl_error_t err;
  bl_error_clear(&err);
  assert_int_equal(bl_schedule_generate(&request, &schedule, &err), BL_OK);
  uint32_t cap = bl_balance_bpipe_cap(p) * schedule->chunks * (strcmp(name, "interleaved") == 0 ? 4 : 2) / 2;
  steps = 0;
  if (bl_balance_cap(schedule, cap, pairs, mode, &result, &err) != BL_OK) {
    fail_msg("%s p=%u m=%u: %s", name, p, m, err.text);
  }
  uint64_t taken = steps;
  bl_balance_result_cleanup(&result);
  bl_schedule_destroy(schedule);
  return taken;
}

static uint64_t balance_pairs(const char *name, uint32_t p, uint32_t m) {
  return balance(name, p, m, true, BL_BALANCE_OVERLAP);
}

static uint64_t balance_any(const char *name, uint32_t p, uint32_t m) {
  return balance(name, p, m, false, BL_BALANCE_FEWEST);
}

// A balanced schedule, simulated on the machine.
static uint64_t simulate(const char *name, uint32_t p, uint32_t m, const bl_machine_t *machine) {
  const bl_costs_t costs = {.every = {10, 14, 6, 10}, .boundary = 12, .path = 9};
  bl_schedule_request_t request = {.name = name, .stages = p, .micro_batches = m};
  bl_schedule_t *schedule;
  bl_balance_result_t balanced;
  bl_simulation_t result;
  bl_error_t err;
  bl_error_clear(&err);
  assert_int_equal(bl_schedule_generate(&request, &schedule, &err), BL_OK);
  uint32_t cap = bl_balance_bpipe_cap(p) * schedule->chunks * (strcmp(name, "interleaved") == 0 ? 4 : 2) / 2;
  assert_int_equal(bl_balance_cap(schedule, cap, false, BL_BALANCE_OVERLAP, &balanced, &err), BL_OK);
  steps = 0;
  if (bl_simulate_on(balanced.schedule, &costs, machine, &result, &err) != BL_OK) {
    fail_msg("%s p=%u m=%u: %s", name, p, m, err.text);
  }
  uint64_t taken = steps;
  bl_simulation_cleanup(&result);
  bl_balance_result_cleanup(&balanced);
  bl_schedule_destroy(schedule);
  return taken;
}

static uint64_t share_few_cores(const char *name, uint32_t p, uint32_t m) {
  return simulate(name, p, m, &(bl_machine_t){.cores = 2, .shared_stores = true});
}

static uint64_t share_many_cores(const char *name, uint32_t p, uint32_t m) {
  return simulate(name, p, m, &(bl_machine_t){.cores = p - 1});
}

static uint64_t share_stores(const char *name, uint32_t p, uint32_t m) {
  return simulate(name, p, m, &(bl_machine_t){.shared_stores = true});
}

// Four devices a node and one NIC, which is busy most of the time.
static uint64_t share_nics(const char *name, uint32_t p, uint32_t m) {
  uint32_t nodes[LARGEST];
  double paths[LARGEST];
  for (uint32_t s = 0; s < p; s++) {
    nodes[s] = s / 4;
    paths[s] = 9;
  }
  const bl_network_t network = {.nodes = nodes, .nics = nodes, .far_paths = paths, .latency = 1};
  return simulate(name, p, m, &(bl_machine_t){.shared_stores = true, .network = &network});
}

// Steps beside p m log(p m), from shape to shape.
static void expect_growth(work_t *work, const char *name, const char *what) {
  double before = INFINITY;
  for (uint32_t p = SMALLEST; p <= LARGEST; p *= 2) {
    uint32_t m = ROUNDS * p;
    uint64_t taken = work(name, p, m);
    double share = (double)taken / ((double)p * m * log2((double)p * m));
    printf("%-20s %-9s p=%-3u m=%-4u %12llu steps, %7.2f for each of p m log(p m)\n", name, what, p, m,
           (unsigned long long)taken, share);
    assert_true(taken > (uint64_t)p * m); // it is counted at all
    if (share > MARGIN * before) {
      fail_msg("%s, %s: at p=%u m=%u there are %.2f steps for each of p m log(p m), at half of both %.2f", name, what,
               p, m, share, before);
    }
    before = share;
  }
}

static void generation_and_simulation(void **state) {
  (void)state;
  size_t count;
  const bl_schedule_info_t *infos = bl_schedule_infos(&count);
  for (size_t n = 0; n < count; n++) {
    expect_growth(generate, infos[n].name, "all");
  }
}

// The whole search of a large schedule, which has less to gain: less than a second for 1.2e9 steps. Others of that size take
// as much; BALLAST_SOAK=1 counts them all.
static void searches_of_large_schedules_are_short(void **state) {
  (void)state;
  size_t count;
  const bl_schedule_info_t *infos = bl_schedule_infos(&count);
  for (size_t n = 0; n < count; n++) {
    if (!test_soak() && strcmp(infos[n].name, "zb-h1") != 0) {
      continue;
    }
    uint64_t taken = generate_with(infos[n].name, 64, 512, 1);
    printf("%-20s p=64 m=512 %12llu steps\n", infos[n].name, (unsigned long long)taken);
    assert_true(taken < (strcmp(infos[n].name, "adaptive") == 0 ? 10 : 1) * (uint64_t)MOST);
  }
}

static void balancing(void **state) {
  (void)state;
  static const char *const names[] = {"1f1b", "interleaved"};
  for (size_t n = 0; n < 2; n++) {
    expect_growth(balance_pairs, names[n], "pairs");
    expect_growth(balance_any, names[n], "any");
  }
}

static void sharing(void **state) {
  (void)state;
  static const char *const names[] = {"1f1b", "interleaved"};
  for (size_t n = 0; n < 2; n++) {
    expect_growth(share_few_cores, names[n], "2 cores");
    expect_growth(share_many_cores, names[n], "p-1 cores");
    expect_growth(share_stores, names[n], "stores");
    expect_growth(share_nics, names[n], "cards");
  }
}

// ---- processor time

#define TIMED_LARGEST 512
#define TIMED_MARGIN  2 // from one shape to one of four times the stages and micro-batches: larger ones leave the caches

static double processor_seconds(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// Seconds of generating, validating, balancing and simulating, the least of three.
static double time_all(const char *name, uint32_t p, uint32_t m) {
  double least = INFINITY;
  for (int round = 0; round < 3; round++) {
    double started = processor_seconds();
    (void)generate(name, p, m);
    (void)balance_pairs(name, p, m);
    least = fmin(least, processor_seconds() - started);
  }
  return least;
}

static void processor_time_of_large_schedules(void **state) {
  (void)state;
  static const char *const names[] = {"1f1b", "interleaved"};
  if (!test_soak()) {
    printf("processor time is taken with BALLAST_SOAK=1\n");
    skip();
  }
  for (size_t n = 0; n < sizeof names / sizeof names[0]; n++) {
    double before = INFINITY;
    for (uint32_t p = TIMED_LARGEST / 4; p <= TIMED_LARGEST; p *= 4) {
      uint32_t m = ROUNDS * p;
      double seconds = time_all(names[n], p, m), share = seconds / ((double)p * m * log2((double)p * m));
      printf("%-20s p=%-3u m=%-4u %8.3f s, %6.2f ns for each of p m log(p m)\n", names[n], p, m, seconds, 1e9 * share);
      if (share > TIMED_MARGIN * before) {
        fail_msg("%s: %.2f ns for each of p m log(p m) at p=%u, %.2f at a quarter", names[n], 1e9 * share, p,
                 1e9 * before);
      }
      before = share;
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(generation_and_simulation),
      cmocka_unit_test(searches_of_large_schedules_are_short),
      cmocka_unit_test(balancing),
      cmocka_unit_test(sharing),
      cmocka_unit_test(processor_time_of_large_schedules),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
