// SPDX-License-Identifier: Apache-2.0
// Verifies the memory-limited search (adaptive):
// - It is never slower than 1F1B within 1F1B's memory, for any stages, micro-batches and costs.
// - It is on or beyond the frontier of all public records with one copy of the weights, whole sequences and up to two
//   chunks.
// - Where there are no records, it is never slower than any other generator within that generator's memory.
// - It is never slower than any other generator that fits into its own memory, also over slices and with recomputation.
// By default a part of each is checked with a part of the search, and with a fixed seed (BALLAST_TEST_SEED sets it);
// BALLAST_SOAK=1 checks all.
#include "reference.h"

#include "base/random.h"
#include "schedule/generate.h"
#include "schedule/ir/peaks.h"
#include "schedule/ir/validate.h"
#include "seed.h"
#include "simulate/simulate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define DRAWN_STAGES_MAX 8 // of drawn shapes
#define STAGES_MAX       64
#define SEED             20260405
#ifdef __SANITIZE_ADDRESS__
#define DRAWN           20
#define RECORD_SIZE_MAX 16 // stages times micro-batches of the records that every run compares
#else
#define DRAWN           400
#define RECORD_SIZE_MAX 32
#endif

typedef struct outcome {
  double t_end, peak; // of the fullest stage
  double kept;        // the same, as if nothing were recomputed: what a limit of memory counts
  uint32_t chunks;
} outcome_t;

// False where the name does not allow the shape.
static bool make(const bl_schedule_request_t *request, outcome_t *made) {
  bl_schedule_t *schedule = NULL;
  bl_simulation_t result;
  bl_schedule_facts_t facts;
  bl_error_t err;
  bl_error_clear(&err);
  bl_status_t status = bl_schedule_generate(request, &schedule, &err);
  if (status == BL_INVALID) {
    return false;
  }
  if (status != BL_OK || bl_schedule_validate(schedule, &facts, &err) != BL_OK ||
      bl_simulate(schedule, request->costs, &result, &err) != BL_OK) {
    fail_msg("%s p=%u m=%u: %s", request->name, request->stages, request->micro_batches, err.text);
  }
  assert_true(facts.ascending);
  assert_true(result.lower_bound <= result.t_end * (1 + 1e-9));
  *made = (outcome_t){.t_end = result.t_end, .chunks = schedule->chunks};
  uint32_t blocks[STAGES_MAX];
  assert_in_range(request->stages, 1, STAGES_MAX);
  bl_schedule_peak_blocks(schedule, blocks);
  for (uint32_t s = 0; s < request->stages; s++) {
    const double kept = blocks[s] * bl_schedule_block_weight(schedule);
    made->peak = result.peak[s] > made->peak ? result.peak[s] : made->peak;
    made->kept = kept > made->kept ? kept : made->kept;
  }
  bl_simulation_cleanup(&result);
  bl_schedule_destroy(schedule);
  return true;
}

// ---- never slower than 1F1B

// Costs of the chunks of a model; a stage of 1F1B has two neighbouring ones.
typedef struct drawn {
  uint32_t p, m;
  bl_chunk_costs_t chunks[2 * DRAWN_STAGES_MAX], whole[DRAWN_STAGES_MAX];
  double boundary;
  bool recompute;       // of adaptive and of 1F1B
  bool limit_per_stage; // memory: what 1F1B has on every stage, in place of what it has on the first
} drawn_t;

static void add_up(drawn_t *d) {
  for (uint32_t s = 0; s < d->p; s++) {
    const bl_chunk_costs_t *a = &d->chunks[2 * s], *b = a + 1;
    d->whole[s] = (bl_chunk_costs_t){a->forward + b->forward, a->input + b->input, a->weight + b->weight,
                                     a->recompute + b->recompute};
  }
}

// Draws the costs of all chunks; the same for each unless `uneven`. `recompute`: R has a cost, too.
static void draw_chunks(drawn_t *d, bool uneven, bool recompute, uint64_t key, uint64_t *n) {
  for (uint32_t s = 0; s < 2 * d->p; s++) {
    const bl_chunk_costs_t chunk = {1 + 39 * bl_random_uniform(key, *n), 1 + 39 * bl_random_uniform(key, *n + 1),
                                    40 * bl_random_uniform(key, *n + 2),
                                    recompute ? 40 * bl_random_uniform(key, *n + 3) : 0};
    *n += recompute ? 4 : 3;
    d->chunks[s] = uneven || s == 0 ? chunk : d->chunks[0];
  }
  add_up(d);
}

static void compare(const drawn_t *d) {
  bl_costs_t cut = {.chunks = d->chunks, .boundary = d->boundary},
             whole = {.chunks = d->whole, .boundary = d->boundary};
  double limits[DRAWN_STAGES_MAX];
  for (uint32_t s = 0; s < d->p; s++) {
    limits[s] = d->p - s;
  }
  bl_schedule_request_t request = {.name = "adaptive",
                                   .stages = d->p,
                                   .micro_batches = d->m,
                                   .memory = d->p,
                                   .memory_of_stage = d->limit_per_stage ? limits : NULL,
                                   .costs = &cut,
                                   .recompute = d->recompute,
                                   .effort = 0.001};
  outcome_t made, classic;
  assert_true(make(&request, &made));
  request.name = "1f1b";
  request.memory_of_stage = NULL;
  request.costs = &whole;
  assert_true(make(&request, &classic));
  if (made.t_end > classic.t_end * (1 + 1e-9) || made.peak > d->p + 1e-9) {
    fail_msg(
        "p=%u m=%u, F, I, W, R = %g, %g, %g, %g on the first chunk, boundary %g%s%s: adaptive ends at %g and holds "
        "%g, 1f1b ends at %g",
        d->p, d->m, d->chunks[0].forward, d->chunks[0].input, d->chunks[0].weight, d->chunks[0].recompute, d->boundary,
        d->recompute ? ", recomputing" : "", d->limit_per_stage ? ", memory of every stage" : "", made.t_end, made.peak,
        classic.t_end);
  }
}

static void it_is_never_slower_than_1f1b(void **state) {
  (void)state;
  drawn_t known = {.p = 2, .m = 4, .boundary = 30};
  for (uint32_t s = 0; s < 4; s++) {
    known.chunks[s] = (bl_chunk_costs_t){10, 14, 6, 10};
  }
  add_up(&known);
  compare(&known);
  drawn_t recompute = {.p = 3, .m = 7, .boundary = 10, .recompute = true}; // R takes longer than a backward
  for (uint32_t s = 0; s < 6; s++) {
    recompute.chunks[s] = (bl_chunk_costs_t){34, 1, 0, 17};
  }
  add_up(&recompute);
  compare(&recompute);
  uint64_t key = bl_random_key(test_seed(SEED), "adaptive"), n = 0;
  static const double boundaries[] = {0, 1, 10, 100, 1000}; // beside chunks of 1 to 40
  for (uint32_t k = 0; k < (test_soak() ? 20 * DRAWN : DRAWN); k++) {
    drawn_t d = {.p = 1 + (uint32_t)bl_random_below(key, n++, DRAWN_STAGES_MAX),
                 .m = 1 + (uint32_t)bl_random_below(key, n++, 16)};
    d.boundary = boundaries[bl_random_below(key, n++, 5)];
    d.boundary *= bl_random_uniform(key, n++);
    const bool uneven_costs = bl_random_below(key, n++, 2) == 0;
    d.recompute = bl_random_below(key, n++, 3) == 0;
    d.limit_per_stage = bl_random_below(key, n++, 3) == 0;
    draw_chunks(&d, uneven_costs, true, key, &n);
    compare(&d);
  }
}

// ---- the frontier of the records

static bool comparable(const reference_t *record) {
  return record->v <= 2 && strncmp(record->name, "seq1f1b", 7) != 0 && strcmp(record->name, "dualpipe") != 0 &&
         strcmp(record->name, "chimera") != 0 && strstr(record->name, "recompute") == NULL;
}

static bool same_case(const reference_t *a, const reference_t *b) {
  return a->p == b->p && a->m == b->m && a->forward == b->forward && a->input == b->input && a->weight == b->weight &&
         a->boundary == b->boundary;
}

// The fastest record of the case within the memory of `of`. Times per chunk of a device.
static const reference_t *fastest(const reference_t *records, size_t count, const reference_t *of) {
  const reference_t *best = of;
  for (size_t r = 0; r < count; r++) {
    const reference_t *other = &records[r];
    if (comparable(other) && same_case(other, of) && other->worst_peak <= of->worst_peak &&
        other->t_end / other->v < best->t_end / best->v) {
      best = other;
    }
  }
  return best;
}

static void it_reaches_the_frontier_of_the_records(void **state) {
  (void)state;
  bool all = test_soak();
  reference_t records[REFERENCE_MAX];
  size_t count = reference_read(records), compared = 0;
  for (size_t r = 0; r < count; r++) {
    const reference_t *record = &records[r];
    // Every point of the frontier once: the first of those that nothing beats within their memory.
    if (!comparable(record) || fastest(records, count, record) != record ||
        (!all && record->p * record->m > RECORD_SIZE_MAX)) {
      continue;
    }
    bl_costs_t costs = reference_costs(record);
    bl_schedule_request_t request = {.name = "adaptive",
                                     .stages = record->p,
                                     .micro_batches = record->m,
                                     .memory = record->worst_peak,
                                     .costs = &costs,
                                     .effort = all ? 1 : 0.02};
    outcome_t made;
    assert_true(make(&request, &made));
    if (made.t_end / made.chunks > record->t_end / record->v * (1 + 1e-9) || made.peak > record->worst_peak + 1e-9) {
      fail_msg("adaptive p=%u m=%u costs %g,%g,%g,%g memory %g: end %g, peak %g; %s of %s ends at %g with %u chunk(s)",
               record->p, record->m, record->forward, record->input, record->weight, record->boundary,
               record->worst_peak, made.t_end, made.peak, record->name, record->source, record->t_end, record->v);
    }
    compared++;
  }
  printf("%zu points compared\n", compared);
  assert_in_range(compared, 8, REFERENCE_MAX);
}

// ---- beyond the records

static void compare_with_all(uint32_t p, uint32_t m, const bl_costs_t *costs, double effort) {
  size_t count;
  const bl_schedule_info_t *infos = bl_schedule_infos(&count);
  for (size_t n = 0; n < count; n++) {
    if (infos[n].placement == BL_PLACEMENT_BIDIRECTIONAL || strcmp(infos[n].name, "seq1f1b") == 0) {
      continue; // two copies, sliced sequences
    }
    bl_schedule_request_t request = {
        .name = infos[n].name, .stages = p, .micro_batches = m, .costs = costs, .effort = effort};
    outcome_t other, made;
    if (!make(&request, &other)) {
      continue;
    }
    request.name = "adaptive";
    request.memory = other.peak;
    assert_true(make(&request, &made));
    if (made.t_end / made.chunks > other.t_end / other.chunks * (1 + 1e-9) || made.peak > other.peak + 1e-9) {
      fail_msg("p=%u m=%u, F, I, W, boundary = %g, %g, %g, %g: adaptive within %g ends at %g and holds %g; %s ends at "
               "%g with %u chunk(s)",
               p, m, costs->every.forward, costs->every.input, costs->every.weight, costs->boundary, other.peak,
               made.t_end, made.peak, infos[n].name, other.t_end, other.chunks);
    }
  }
}

static void no_other_generator_is_faster_within_its_memory(void **state) {
  (void)state;
  static const bl_costs_t costs[] = {{.every = {10, 14, 6, 10}, .boundary = 2},
                                     {.every = {10, 11, 9, 10}, .boundary = 1},
                                     {.every = {1, 1, 1, 1}},
                                     {.every = {10, 14, 6, 10}, .boundary = 15}};
  bool all = test_soak();
#ifdef __SANITIZE_ADDRESS__
  const uint32_t largest = 4;
#else
  const uint32_t largest = 16;
#endif
  for (uint32_t p = 4; p <= (all ? 32 : largest); p *= 2) {
    for (uint32_t m = p; m <= (all ? 4 * p : p); m *= 2) {
      for (size_t c = 0; c < (all ? sizeof costs / sizeof costs[0] : 1); c++) {
        compare_with_all(p, m, &costs[c], all ? 1 : 0.02);
      }
    }
  }
}

// A limit, and what an order is asked for besides it.
typedef struct limited {
  double memory;
  bool keeps; // the chunks stay on a V
  uint32_t slices;
} limited_t;

// Every limit, however little search there is: what fits into it under another name is not faster.
static void compare_with_what_fits(drawn_t *d, const limited_t *limited) {
  const bl_costs_t cut = {.chunks = d->chunks, .boundary = d->boundary},
                   whole = {.chunks = d->whole, .boundary = d->boundary};
  const double memory = limited->memory;
  bl_schedule_request_t request = {.name = "adaptive",
                                   .stages = d->p,
                                   .micro_batches = d->m,
                                   .slices = limited->slices,
                                   .memory = memory,
                                   .costs = &cut,
                                   .recompute = d->recompute,
                                   .keep_placement = limited->keeps,
                                   .effort = 0.001};
  outcome_t made, other;
  size_t count;
  const bl_schedule_info_t *infos = bl_schedule_infos(&count);
  assert_true(make(&request, &made));
  assert_true(made.kept <= memory + 1e-9);
  request.memory = 0;
  for (size_t n = 0; n < count; n++) {
    const bool family = infos[n].placement != BL_PLACEMENT_BIDIRECTIONAL && strcmp(infos[n].name, "seq1f1b") != 0;
    const bool allowed = family && (!limited->keeps || infos[n].placement == BL_PLACEMENT_V);
    request.name = infos[n].name;
    request.costs = infos[n].default_chunks == 1 ? &whole : &cut;
    if (!allowed || strcmp(request.name, "adaptive") == 0 || !make(&request, &other) || other.kept > memory + 1e-9) {
      continue;
    }
    if (made.t_end > other.t_end * (1 + 1e-9)) {
      fail_msg("p=%u m=%u in %u slice(s)%s, F, I, W, R = %g, %g, %g, %g on the first chunk, boundary %g, memory %g%s: "
               "adaptive ends at %g, %s at %g with %g",
               d->p, d->m, limited->slices, d->recompute ? ", recomputing" : "", d->chunks[0].forward,
               d->chunks[0].input, d->chunks[0].weight, d->chunks[0].recompute, d->boundary, memory,
               limited->keeps ? " on a V" : "", made.t_end, request.name, other.t_end, other.kept);
    }
  }
}

// Draws the costs of the boundaries, in half of all cases 0, and of all chunks.
static void draw_costs(drawn_t *d, bool uneven, bool recompute, uint64_t key, uint64_t *n) {
  const bool costly = bl_random_below(key, (*n)++, 2) == 0; // boundaries
  d->boundary = costly ? 40 * bl_random_uniform(key, (*n)++) : 0;
  draw_chunks(d, uneven, recompute, key, n);
}

static void no_name_that_fits_is_faster(void **state) {
  (void)state;
  uint64_t key = bl_random_key(test_seed(SEED), "named"), n = 0;
  for (uint32_t k = 0; k < (test_soak() ? 10 * DRAWN : DRAWN / 4); k++) {
    drawn_t d = {.p = 1 + (uint32_t)bl_random_below(key, n++, DRAWN_STAGES_MAX),
                 .m = 1 + (uint32_t)bl_random_below(key, n++, 16)};
    const bool uneven = bl_random_below(key, n++, 2) == 0, keeps = bl_random_below(key, n++, 4) == 0;
    const double memory = 1 + 0.5 * (double)bl_random_below(key, n++, 4 * d.p - 1);
    draw_costs(&d, uneven, false, key, &n);
    compare_with_what_fits(&d, &(limited_t){memory, keeps, 1});
  }
}

static void no_name_that_fits_is_faster_over_slices(void **state) {
  (void)state;
  uint64_t key = bl_random_key(test_seed(SEED), "sliced"), n = 0;
  drawn_t even = {.p = 4, .m = 4};
  for (uint32_t s = 0; s < 8; s++) {
    even.chunks[s] = (bl_chunk_costs_t){1, 1, 1, 1};
  }
  add_up(&even);
  compare_with_what_fits(&even, &(limited_t){2.5, false, 4});
  for (uint32_t k = 0; k < (test_soak() ? 10 * DRAWN : DRAWN / 4); k++) {
    drawn_t d = {.p = 1 + (uint32_t)bl_random_below(key, n++, 5), .m = 1 + (uint32_t)bl_random_below(key, n++, 8)};
    const limited_t limited = {.slices = 2 + (uint32_t)bl_random_below(key, n++, 3),
                               .keeps = bl_random_below(key, n++, 3) == 0,
                               .memory = 1 + 0.25 * (double)bl_random_below(key, n++, 8 * d.p - 3)};
    const bool uneven = bl_random_below(key, n++, 2) == 0;
    d.recompute = bl_random_below(key, n++, 3) == 0;
    draw_costs(&d, uneven, true, key, &n);
    compare_with_what_fits(&d, &limited);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(it_is_never_slower_than_1f1b),
      cmocka_unit_test(it_reaches_the_frontier_of_the_records),
      cmocka_unit_test(no_other_generator_is_faster_within_its_memory),
      cmocka_unit_test(no_name_that_fits_is_faster),
      cmocka_unit_test(no_name_that_fits_is_faster_over_slices),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
