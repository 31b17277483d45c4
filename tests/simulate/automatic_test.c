// SPDX-License-Identifier: Apache-2.0
// Verifies what the policy auto chooses: nothing moves where all fits; copies beside operations where the path is fast;
// none where it is slow or not known: then blocks are made again; where stores lack room, some of each; one in force is
// kept unless the gain is large, whatever is in force and however noisy times are; a choice that turns out slower than
// what was in force before is taken back; every stage has its reason; what cannot be is refused and names the smallest
// budget that works; a path that is far too slow is known before all is parked; parking is tried again at times.
#include "simulate/automatic.h"

#include "base/random.h"
#include "schedule/generate.h"
#include "simulate/simulate.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define STAGES 4

static bl_schedule_t *schedule;

static int set_up(void **state) {
  (void)state;
  bl_error_t err;
  bl_schedule_request_t request = {.name = "1f1b", .stages = STAGES, .micro_batches = 16};
  return bl_schedule_generate(&request, &schedule, &err) == BL_OK ? 0 : -1;
}

static int tear_down(void **state) {
  (void)state;
  bl_schedule_destroy(schedule);
  return 0;
}

// F, I and W of 1 ms; `copy` is the share of an F that a block takes to a store.
static bl_status_t decide(double copy, uint32_t budget, const bl_automatic_option_t *in_force, bl_automatic_t *found,
                          bl_error_t *err) {
  static const double bytes[STAGES] = {1e6, 1e6, 1e6, 1e6};
  double rates[STAGES];
  for (int s = 0; s < STAGES; s++) {
    rates[s] = 1e6 / (copy * 1e-3);
  }
  bool known = copy != 0;
  const bl_costs_t costs = {.every = {1e-3, 1e-3, 1e-3, 1e-3}};
  return bl_automatic_decide(&(bl_automatic_request_t){.schedule = schedule,
                                                       .costs = &costs,
                                                       .block_bytes = bytes,
                                                       .path_rates = known ? rates : NULL,
                                                       .overhead = 2e-3,
                                                       .budget = budget,
                                                       .in_force = in_force},
                             found, err);
}

static void decided(double copy, uint32_t budget, const bl_automatic_option_t *in_force, bl_automatic_t *found) {
  bl_error_t err;
  if (decide(copy, budget, in_force, found, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
}

static void nothing_moves_where_all_fits(void **state) {
  (void)state;
  bl_automatic_t found;
  decided(0.1, 4, NULL, &found);
  assert_int_equal(found.options[found.best].kind, BL_POLICY_NONE);
  for (size_t i = 1; i < BL_AUTOMATIC_OPTIONS; i++) {
    assert_false(found.options[i].fits);
  }
  assert_string_equal(found.reasons[0], "needs 4 of 4 slots: nothing moves");
  bl_simulation_t plain;
  const bl_costs_t costs = {.every = {1e-3, 1e-3, 1e-3, 1e-3}};
  const bl_machine_t machine = {.early_gradient = true};
  assert_int_equal(bl_simulate_on(schedule, &costs, &machine, &plain, NULL), BL_OK);
  assert_true(found.options[0].step == plain.t_end + 2e-3);
  assert_true(found.recomputed > found.options[0].step);
  bl_simulation_cleanup(&plain);
  bl_automatic_cleanup(&found);
}

static void a_fast_path_hides_copies(void **state) {
  (void)state;
  bl_automatic_t unlimited, found;
  decided(0.1, UINT32_MAX, NULL, &unlimited);
  decided(0.1, 3, NULL, &found);
  const bl_automatic_option_t *best = &found.options[found.best];
  assert_false(found.options[0].fits);
  assert_true(best->kind != BL_POLICY_NONE && best->mode == BL_BALANCE_OVERLAP && best->evictions > 0);
  assert_true(best->step < unlimited.options[0].step * 1.01);
  assert_true(best->step < found.recomputed);
  assert_non_null(strstr(found.reasons[0], "parks "));
  assert_non_null(strstr(found.reasons[0], "4 are needed, 3 fit"));
  assert_non_null(strstr(found.reasons[0], "hidden behind compute"));
  assert_string_equal(found.reasons[3], "needs 1 of 3 slots: nothing moves");
  assert_string_equal(unlimited.reasons[0], "needs 4 slots, and they have no limit: nothing moves");
  bl_automatic_cleanup(&unlimited);
  bl_automatic_cleanup(&found);
}

static void the_fastest_wins(void **state) {
  (void)state;
  for (double copy = 0.25; copy < 6; copy += 0.25) {
    bl_automatic_t found;
    decided(copy, 3, NULL, &found);
    const bl_automatic_option_t *best = &found.options[found.best];
    for (size_t i = 0; i < BL_AUTOMATIC_OPTIONS; i++) {
      const bl_automatic_option_t *option = &found.options[i];
      assert_true(!option->fits || option->step * (1 + BL_AUTOMATIC_EQUAL) >= best->step);
    }
    assert_true(found.recomputed >= best->step);
    bl_automatic_cleanup(&found);
  }
}

// Two slots a device: peers have one room, the host has the rest where it is fast; where it is slow, the rest is made
// again.
static void hosts_are_weighed_by_their_own_rate(void **state) {
  (void)state;
  static const double bytes[STAGES] = {1e6, 1e6, 1e6, 1e6};
  static const struct {
    double peer, host; // copies, in forwards
    uint32_t budget, hosts, host_slots;
    bool host_only;
    bl_policy_kind_t kinds[3]; // any of them
  } rows[] = {
      {0.1, 0.1, 2, 1, 9, false, {BL_POLICY_BPIPE, BL_POLICY_CAP, BL_POLICY_OFFLOAD}},
      {0.1, 0.1, 2, 1, 9, true, {BL_POLICY_OFFLOAD, BL_POLICY_OFFLOAD, BL_POLICY_OFFLOAD}},
      {0.1, 5, 2, 1, 9, true, {BL_POLICY_DROP, BL_POLICY_DROP, BL_POLICY_MIX}},
      {0.1, 5, 3, 1, 9, false, {BL_POLICY_BPIPE, BL_POLICY_CAP, BL_POLICY_CAP}}, // peers have room for all
      {5, 0.1, 3, 1, 9, false, {BL_POLICY_OFFLOAD, BL_POLICY_OFFLOAD, BL_POLICY_OFFLOAD}},
      {0.1, 0.1, 4, 1, 9, false, {BL_POLICY_NONE, BL_POLICY_NONE, BL_POLICY_NONE}}, // keeping is as good
      {0.1, 0.1, 2, 0, 0, false, {BL_POLICY_DROP, BL_POLICY_MIX, BL_POLICY_MIX}},
      {0.1, 0.1, 2, 1, 1, true, {BL_POLICY_DROP, BL_POLICY_MIX, BL_POLICY_MIX}}, // not room for all
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    double peers[STAGES], hosts[STAGES];
    for (int s = 0; s < STAGES; s++) {
      peers[s] = 1e9 / rows[i].peer;
      hosts[s] = 1e9 / rows[i].host;
    }
    const bl_costs_t costs = {.every = {1e-3, 1e-3, 1e-3, 1e-3}};
    const bl_balance_cap_t lenders = {
        .hosts = rows[i].hosts, .host_slots = rows[i].host_slots, .host_only = rows[i].host_only};
    bl_automatic_t found;
    bl_error_t err;
    const bl_automatic_request_t request = {.schedule = schedule,
                                            .costs = &costs,
                                            .block_bytes = bytes,
                                            .path_rates = peers,
                                            .host_rates = hosts,
                                            .lenders = &lenders,
                                            .budget = rows[i].budget};
    if (bl_automatic_decide(&request, &found, &err) != BL_OK) {
      fail_msg("row %zu: %s", i, err.text);
    }
    const bl_automatic_option_t *best = &found.options[found.best];
    if (best->kind != rows[i].kinds[0] && best->kind != rows[i].kinds[1] && best->kind != rows[i].kinds[2]) {
      fail_msg("row %zu: %s, %g s", i, bl_policy_kind_name(best->kind), best->step);
    }
    assert_int_equal(strstr(found.reasons[0], "at the host") != NULL, best->kind == BL_POLICY_OFFLOAD);
    bl_automatic_cleanup(&found);
  }
}

// Of stages that share the link to their host, some of the blocks of each are parked and the rest is made again: the
// plan knows that copies follow each other, and is faster than either alone.
static void mixtures_know_the_link(void **state) {
  (void)state;
  static const struct {
    const char *name;
    uint32_t stages, budget;
    double copy, gain; // over the best of the others
  } rows[] = {{"1f1b", 8, 3, 0.55, 0.04}, {"interleaved", 8, 4, 0.4, 0.09}, {"gpipe", 4, 3, 0.55, 0.03}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    const uint32_t p = rows[i].stages;
    const bl_schedule_request_t made = {.name = rows[i].name, .stages = p, .micro_batches = 4 * p};
    bl_schedule_t *order;
    bl_error_t err;
    assert_int_equal(bl_schedule_generate(&made, &order, &err), BL_OK);
    double bytes[8], rates[8], others = INFINITY, mixed = INFINITY;
    for (uint32_t s = 0; s < p; s++) {
      bytes[s] = 1e6;
      rates[s] = 1e9 / rows[i].copy;
    }
    const bl_costs_t costs = {.every = {1e-3, 1e-3, 1e-3, 1e-3}};
    const bl_balance_cap_t lenders = {.hosts = 1, .host_slots = 9999, .host_only = true};
    const bl_automatic_request_t request = {.schedule = order,
                                            .costs = &costs,
                                            .block_bytes = bytes,
                                            .path_rates = rates,
                                            .lenders = &lenders,
                                            .budget = rows[i].budget};
    bl_automatic_t found;
    assert_int_equal(bl_automatic_decide(&request, &found, &err), BL_OK);
    for (size_t k = 0; k < BL_AUTOMATIC_OPTIONS; k++) {
      const bl_automatic_option_t *option = &found.options[k];
      double *best = option->kind == BL_POLICY_MIX ? &mixed : &others;
      *best = option->fits && option->step < *best ? option->step : *best;
    }
    if (mixed > others * (1 - rows[i].gain)) {
      fail_msg("%s on %u stages: a mixture takes %g s, the best of the others %g s", rows[i].name, p, mixed, others);
    }
    assert_int_equal(found.options[found.best].kind, BL_POLICY_MIX);
    bl_automatic_cleanup(&found);
    bl_schedule_destroy(order);
  }
}

static void a_path_that_hides_nothing_is_not_taken(void **state) {
  (void)state;
  const double copies[] = {6, 0}; // six forwards; not known
  for (size_t i = 0; i < 2; i++) {
    bl_automatic_t found;
    decided(copies[i], 3, NULL, &found);
    const bl_automatic_option_t *best = &found.options[found.best];
    assert_int_equal(best->kind, BL_POLICY_DROP);
    assert_true(best->dropped > 0 && best->evictions == 0);
    assert_true(found.recomputed >= best->step); // which makes all blocks again
    assert_non_null(strstr(found.reasons[0], "of its blocks: 4 are needed, 3 fit; that takes 1 ms a block"));
    assert_true((strstr(found.reasons[0], "to a store and back 12 ms") != NULL) == (i == 0));
    assert_string_equal(found.reasons[1], "needs 3 of 3 slots: nothing moves");
    bl_automatic_cleanup(&found);
  }
}

// Stores have room for one of the three blocks that two slots cannot hold.
static void what_has_no_room_is_made_again(void **state) {
  (void)state;
  bl_automatic_t found, recompute;
  decided(0.1, 2, NULL, &found);
  bl_automatic_option_t best = found.options[found.best];
  assert_int_equal(best.kind, BL_POLICY_MIX);
  assert_true(best.evictions > 0 && best.dropped > 0 && best.copy > 0);
  for (size_t i = 0; i < BL_AUTOMATIC_OPTIONS; i++) {
    const bl_automatic_option_t *option = &found.options[i];
    assert_true(option->kind != BL_POLICY_DROP || (option->dropped > best.dropped && option->step > best.step));
  }
  char expected[80];
  bool parks = false;
  for (uint32_t s = 0; s < 2; s++) {
    snprintf(expected, sizeof expected, ": %u are needed, 2 fit; a copy takes 0.1 ms at 1e+04 MB/s", 4 - s);
    assert_non_null(strstr(found.reasons[s], expected));
    parks = parks || strstr(found.reasons[s], "parks 0 ") == NULL;
  }
  assert_true(parks);
  assert_string_equal(found.reasons[3], "needs 1 of 2 slots: nothing moves");
  decided(0.1001, 2, &best, &recompute); // measured again, a little otherwise: the plan stays
  assert_int_equal(recompute.options[recompute.best].copy, best.copy);
  bl_automatic_cleanup(&recompute);
  bl_automatic_cleanup(&found);
  decided(40, 2, &best, &found); // now copies hide nowhere
  assert_int_equal(found.options[found.best].kind, BL_POLICY_DROP);
  bl_automatic_cleanup(&found);
}

static void one_in_force_goes_only_for_a_gain(void **state) {
  (void)state;
  bl_automatic_t found;
  const bl_automatic_option_t fewest = {.kind = BL_POLICY_BPIPE, .mode = BL_BALANCE_FEWEST};
  const bl_automatic_option_t overlap = {.kind = BL_POLICY_BPIPE, .mode = BL_BALANCE_OVERLAP};
  decided(1e-6, 3, &fewest, &found); // copies cost nothing
  assert_int_equal(found.options[found.best].mode, BL_BALANCE_FEWEST);
  bl_automatic_cleanup(&found);
  decided(6, 3, &overlap, &found);
  assert_int_equal(found.options[found.best].kind, BL_POLICY_DROP);
  bl_automatic_cleanup(&found);
}

static void what_cannot_be_is_refused(void **state) {
  (void)state;
  bl_automatic_t found;
  bl_error_t err;
  assert_int_equal(decide(0.1, 0, NULL, &found, &err), BL_EXHAUSTED);
  assert_non_null(strstr(err.text, "the smallest that works is 1"));
  assert_int_equal(decide(-1, 3, NULL, &found, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "path of stage 0"));
}

// What decides, row by row: how long a copy takes in forwards, the slots of a device, what is in force. The reason of
// stage 0 begins as said.
static void decisions_by_the_table(void **state) {
  (void)state;
  static const bl_automatic_option_t pairs = {.kind = BL_POLICY_BPIPE}, drop = {.kind = BL_POLICY_DROP},
                                     none = {.kind = BL_POLICY_NONE};
  static const struct {
    const char *what;
    double copy; // 0: not known
    uint32_t budget;
    const bl_automatic_option_t *in_force;
    bl_policy_kind_t kind;
    const char *reason;
  } rows[] = {
      {"room for all, fast path", 0.1, 4, NULL, BL_POLICY_NONE, "needs 4 of 4 slots"},
      {"room for all, slow path, something in force", 6, 4, &pairs, BL_POLICY_NONE, "needs 4 of 4 slots"},
      {"no limit", 0.1, UINT32_MAX, &drop, BL_POLICY_NONE, "needs 4 slots, and they have no limit"},
      {"tight, fast path", 0.1, 3, NULL, BL_POLICY_BPIPE, "parks "},
      {"tight, fast path, blocks were given up", 0.1, 3, &drop, BL_POLICY_BPIPE, "parks "},
      {"tight, what was in force does not fit", 0.1, 3, &none, BL_POLICY_BPIPE, "parks "},
      {"tight, slow path", 6, 3, NULL, BL_POLICY_DROP, "recomputes "},
      {"tight, slow path, blocks are parked", 6, 3, &pairs, BL_POLICY_DROP, "recomputes "},
      {"tight, path not known", 0, 3, NULL, BL_POLICY_DROP, "recomputes "},
      {"tight, path not known, blocks are given up", 0, 3, &drop, BL_POLICY_DROP, "recomputes "},
      {"too tight to park all", 0.1, 2, NULL, BL_POLICY_MIX, "parks "},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    bl_automatic_t found;
    decided(rows[i].copy, rows[i].budget, rows[i].in_force, &found);
    if (found.options[found.best].kind != rows[i].kind ||
        strstr(found.reasons[0], rows[i].reason) != found.reasons[0]) {
      fail_msg("%s: kind %d, expected %d; reason: %s", rows[i].what, found.options[found.best].kind, rows[i].kind,
               found.reasons[0]);
    }
    bl_automatic_cleanup(&found);
  }
}

// A path that becomes slower and slower, then faster again, measured each time: one change on the way down and one on
// the way up, and the second where it is faster than at the first.
static void changes_do_not_flap(void **state) {
  (void)state;
  bl_automatic_option_t in_force = {.kind = BL_POLICY_BPIPE};
  double changed_at[2] = {0, 0};
  uint32_t changes = 0;
  for (int i = 0; i < 200; i++) {
    double at = i < 100 ? i : 199 - i, copy = 0.1 + 0.05 * at * (1 + 0.002 * (i % 3)); // it is never quite the same
    bl_automatic_t found;
    decided(copy, 3, &in_force, &found);
    const bl_automatic_option_t *best = &found.options[found.best];
    if ((best->kind == BL_POLICY_DROP) != (in_force.kind == BL_POLICY_DROP)) {
      assert_true(changes < 2);
      changed_at[changes++] = copy;
    }
    in_force = *best;
    bl_automatic_cleanup(&found);
  }
  assert_int_equal(changes, 2);
  if (!(changed_at[1] < changed_at[0])) {
    fail_msg("gives blocks up at copies of %g forwards, parks them again at %g", changed_at[0], changed_at[1]);
  }
}

static bool same_plan(const bl_automatic_option_t *a, const bl_automatic_option_t *b) {
  return a->kind == b->kind && a->copy == b->copy && (!bl_policy_copies(a->kind) || a->mode == b->mode);
}

// Between -1 and 1, the same in every run.
static double noise(uint64_t seed, uint64_t counter) {
  return 2 * bl_random_uniform(seed, counter) - 1;
}

// Two slots: stores have room for some blocks only, so that a mix is in force. Paths are measured a tenth off, up or
// down: the mix stays, copy by copy. Then they become slower, little by little: where it changes to another mix or to
// none, it does not change back.
static void a_mix_does_not_flap(void **state) {
  (void)state;
  bl_automatic_t found;
  decided(0.1, 2, NULL, &found);
  bl_automatic_option_t in_force = found.options[found.best];
  bl_automatic_cleanup(&found);
  assert_int_equal(in_force.kind, BL_POLICY_MIX);
  for (uint64_t i = 0; i < 100; i++) {
    decided(0.1 * (1 + 0.1 * noise(1, i)), 2, &in_force, &found);
    if (!same_plan(&found.options[found.best], &in_force)) {
      fail_msg("look %u: goes from a mix at %u to kind %d at %u", (unsigned)i, in_force.copy,
               found.options[found.best].kind, found.options[found.best].copy);
    }
    bl_automatic_cleanup(&found);
  }
  enum { MOST = 64 };
  bl_automatic_option_t been[MOST] = {in_force};
  size_t count = 1;
  for (uint64_t i = 0; i < 300; i++) {
    decided((0.1 + 0.01 * (double)i) * (1 + 0.1 * noise(2, i)), 2, &in_force, &found);
    const bl_automatic_option_t best = found.options[found.best];
    if (!same_plan(&best, &in_force)) {
      for (size_t k = 0; k < count; k++) {
        assert_false(same_plan(&been[k], &best));
      }
      assert_true(count < MOST);
      been[count++] = in_force = best;
    }
    bl_automatic_cleanup(&found);
  }
  assert_int_equal(in_force.kind, BL_POLICY_DROP); // copies of three forwards hide nowhere
  assert_true(count <= 5);
}

// Looks of a run of two slots or three, whose measured times are true ones times noise: what they lead to.
typedef struct lies {
  double copy; // true, in forwards
  uint32_t budget;
  double operations, paths, steps; // greatest share that a measurement is off
  const double *slower; // [BL_AUTOMATIC_OPTIONS] what steps under each option really take, beside their simulation
} lies_t;

static size_t index_among(const bl_automatic_t *found, const bl_automatic_option_t *option) {
  size_t i = 0;
  while (!same_plan(&found->options[i], option)) {
    assert_true(++i < BL_AUTOMATIC_OPTIONS);
  }
  return i;
}

// One look at what is in force. True times of all options are left in `truth`.
static void look(const lies_t *lies, uint64_t number, bl_measurements_t *measurements, bl_automatic_option_t *in_force,
                 bl_automatic_t *truth, bl_automatic_t *found) {
  static const double bytes[STAGES] = {1e6, 1e6, 1e6, 1e6};
  bl_error_t err;
  double rates[STAGES];
  decided(lies->copy, lies->budget, in_force, truth);
  size_t now = index_among(truth, in_force);
  bl_chunk_costs_t chunks[STAGES];
  for (uint64_t s = 0; s < STAGES; s++) {
    const uint64_t at = 64 * number + 8 * s;
    chunks[s] = (bl_chunk_costs_t){
        1e-3 * (1 + lies->operations * noise(3, at)), 1e-3 * (1 + lies->operations * noise(3, at + 1)),
        1e-3 * (1 + lies->operations * noise(3, at + 2)), 1e-3 * (1 + lies->operations * noise(3, at + 3))};
    rates[s] = 1e6 / (lies->copy * 1e-3) * (1 + lies->paths * noise(3, at + 4));
  }
  const bl_costs_t costs = {.chunks = chunks};
  const double step = truth->options[now].step * (lies->slower != NULL ? lies->slower[now] : 1);
  const bl_automatic_request_t request = {.schedule = schedule,
                                          .costs = &costs,
                                          .block_bytes = bytes,
                                          .path_rates = rates,
                                          .overhead = 2e-3,
                                          .budget = lies->budget,
                                          .in_force = in_force,
                                          .measured = step * (1 + lies->steps * noise(4, number)),
                                          .measurements = measurements};
  if (bl_automatic_decide(&request, found, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
}

// Changes in `looks` looks, and how far what is in force in the end is from the best, in true times.
static uint32_t run_looks(const lies_t *lies, uint64_t looks, bl_automatic_option_t *in_force, double *off) {
  bl_measurements_t measurements;
  uint32_t changes = 0;
  assert_int_equal(bl_measurements_init(&measurements, STAGES), BL_OK);
  for (uint64_t i = 0; i < looks; i++) {
    bl_automatic_t truth, found;
    look(lies, i, &measurements, in_force, &truth, &found);
    const bl_automatic_option_t best = found.options[found.best];
    changes += !same_plan(&best, in_force);
    double least = INFINITY, own = INFINITY;
    for (size_t k = 0; k < BL_AUTOMATIC_OPTIONS; k++) {
      const bl_automatic_option_t *option = &truth.options[k];
      double step = option->fits ? option->step * (lies->slower != NULL ? lies->slower[k] : 1) : INFINITY;
      least = fmin(least, step);
      own = option->kind == best.kind && (option->mode == best.mode || !bl_policy_copies(best.kind)) ? step : own;
    }
    *off = own / least - 1;
    *in_force = best;
    bl_automatic_cleanup(&truth);
    bl_automatic_cleanup(&found);
  }
  bl_measurements_cleanup(&measurements);
  return changes;
}

// What is measured is off by a twentieth, paths by a fifth: no change but those that gain.
static void noise_changes_nothing(void **state) {
  (void)state;
  static const lies_t rows[] = {{0.1, 3, 0.05, 0.2, 0.02, NULL},
                                {0.5, 3, 0.05, 0.2, 0.02, NULL},
                                {6, 3, 0.05, 0.2, 0.02, NULL},
                                {0.1, 2, 0.05, 0.2, 0.02, NULL}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    bl_automatic_option_t in_force = {.kind = BL_POLICY_DROP};
    double off;
    uint32_t changes = run_looks(&rows[i], 100, &in_force, &off);
    if (changes > 2 || off > BL_AUTOMATIC_GAIN + BL_AUTOMATIC_EQUAL) {
      fail_msg("copies of %g forwards, %u slots: %u changes, ends with kind %d, %.1f %% off the best", rows[i].copy,
               rows[i].budget, changes, in_force.kind, 100 * off);
    }
  }
}

// Steps under some options take longer than simulated, as where copies take cores from operations: the choice that the
// simulation alone would make is made once, taken back, and not made again for as long as that is remembered.
static void what_turns_out_slower_is_taken_back(void **state) {
  (void)state;
  static const double copies_cost[BL_AUTOMATIC_OPTIONS] = {1, 1.3, 1.3, 1.3, 1.3, 1.3, 1.3, 1, 1.3, 1.3};
  static const double all_cost[BL_AUTOMATIC_OPTIONS] = {1.3, 1.3, 1.3, 1.3, 1.3, 1.3, 1.3, 1.3, 1.3, 1.3};
  const lies_t only_copies = {0.1, 3, 0.01, 0.05, 0.01, copies_cost}, all = {0.1, 3, 0.01, 0.05, 0.01, all_cost};
  bl_automatic_option_t in_force = {.kind = BL_POLICY_DROP};
  double off;
  uint32_t changes = run_looks(&only_copies, 2, &in_force, &off);
  assert_int_equal(in_force.kind, BL_POLICY_DROP);
  assert_int_equal(changes, 2);
  // Each of the other ways to park may be tried, too, but not in turns for ever.
  in_force = (bl_automatic_option_t){.kind = BL_POLICY_DROP};
  changes = run_looks(&only_copies, 12, &in_force, &off);
  assert_int_equal(in_force.kind, BL_POLICY_DROP);
  if (changes > 2 * 6) {
    fail_msg("%u changes in 12 looks", changes);
  }
  // Where all take as much longer nothing is held against any of them.
  in_force = (bl_automatic_option_t){.kind = BL_POLICY_DROP};
  assert_int_equal(run_looks(&all, 20, &in_force, &off), 1);
  assert_true(bl_policy_copies(in_force.kind) && off < BL_AUTOMATIC_GAIN + BL_AUTOMATIC_EQUAL);
}

static void one_stage_has_nothing_to_decide(void **state) {
  (void)state;
  bl_schedule_t *alone;
  bl_automatic_t found;
  bl_error_t err;
  const double bytes = 1e6;
  const bl_costs_t costs = {.every = {1e-3, 1e-3, 1e-3, 1e-3}};
  bl_schedule_request_t request = {.name = "1f1b", .stages = 1, .micro_batches = 4};
  assert_int_equal(bl_schedule_generate(&request, &alone, &err), BL_OK);
  bl_automatic_request_t asked = {.schedule = alone, .costs = &costs, .block_bytes = &bytes, .budget = 1};
  assert_int_equal(bl_automatic_decide(&asked, &found, &err), BL_OK);
  assert_int_equal(found.options[found.best].kind, BL_POLICY_NONE);
  assert_string_equal(found.reasons[0], "needs 1 of 1 slot: nothing moves");
  bl_automatic_cleanup(&found);
  bl_schedule_destroy(alone);
  request.name = "gpipe"; // all four blocks at once, and nobody to park them at
  assert_int_equal(bl_schedule_generate(&request, &alone, &err), BL_OK);
  asked.schedule = alone;
  asked.budget = 2;
  assert_int_equal(bl_automatic_decide(&asked, &found, &err), BL_OK);
  assert_int_equal(found.options[found.best].kind, BL_POLICY_DROP);
  assert_true(bl_automatic_untried(&found) == NULL);
  bl_automatic_cleanup(&found);
  bl_schedule_destroy(alone);
}

// Where blocks are given up, parking is tried again after as many steps as make its cost a given share.
static void trials_cost_a_share(void **state) {
  (void)state;
  bl_automatic_t found;
  decided(6, 3, NULL, &found);
  const bl_automatic_option_t *untried = bl_automatic_untried(&found), *now = &found.options[found.best];
  assert_non_null(untried);
  assert_true(untried->kind == BL_POLICY_BPIPE || untried->kind == BL_POLICY_CAP);
  for (size_t i = 0; i < BL_AUTOMATIC_OPTIONS; i++) { // the cheapest to try
    const bl_automatic_option_t *option = &found.options[i];
    assert_true(!option->fits || option->kind == BL_POLICY_DROP || option->step >= untried->step);
  }
  const double shares[] = {0.5, 0.01};
  for (size_t i = 0; i < 2; i++) {
    double steps = (double)bl_automatic_untried_for(&found, shares[i]);
    double cost = BL_AUTOMATIC_TRIAL * (untried->step - now->step);
    assert_true(steps >= 1 && cost <= shares[i] * steps * now->step && cost > shares[i] * (steps - 1) * now->step);
  }
  assert_true(bl_automatic_untried_for(&found, 0) == UINT64_MAX);
  bl_automatic_cleanup(&found);
  decided(0, 3, NULL, &found); // by paths of which nothing is known nothing can be said
  assert_null(bl_automatic_untried(&found));
  bl_automatic_cleanup(&found);
  decided(0.1, 3, NULL, &found); // blocks are parked
  assert_null(bl_automatic_untried(&found));
  bl_automatic_cleanup(&found);
}

static bl_automatic_start_t foreseen(double copy, uint32_t budget, const bl_automatic_option_t *start) {
  static const double bytes[STAGES] = {1e6, 1e6, 1e6, 1e6};
  const double rate = 1e6 / (copy * 1e-3), rates[STAGES] = {rate, rate, rate, rate};
  const bl_costs_t costs = {.every = {1e-3, 1e-3, 1e-3, 1e-3}};
  const bl_automatic_request_t request = {.schedule = schedule,
                                          .costs = &costs,
                                          .block_bytes = bytes,
                                          .path_rates = rates,
                                          .overhead = 2e-3,
                                          .budget = budget};
  bl_automatic_start_t found;
  bl_error_t err;
  if (bl_automatic_foresee(&request, start, &found, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  return found;
}

// Before all is parked: what steps would take then, as when they are decided about; not worth a look where that is more
// than so many times what recomputing blocks takes.
static void what_is_far_too_slow_is_foreseen(void **state) {
  (void)state;
  static const struct {
    bl_policy_kind_t kind;
    double copy;
    uint32_t budget, copies;
    bool fits, slow;
  } rows[] = {
      {BL_POLICY_BPIPE, 0.1, 3, 0, true, false},  {BL_POLICY_BPIPE, 2, 3, 0, true, false},
      {BL_POLICY_BPIPE, 100, 3, 0, true, true},   {BL_POLICY_CAP, 1000, 3, 0, true, true},
      {BL_POLICY_MIX, 0.1, 2, 50, true, false},   {BL_POLICY_MIX, 100, 2, 50, true, true},
      {BL_POLICY_BPIPE, 100, 2, 0, false, false},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    const bl_automatic_option_t start = {.kind = rows[i].kind, .copy = rows[i].copies};
    const bl_automatic_start_t found = foreseen(rows[i].copy, rows[i].budget, &start);
    bl_automatic_t decision;
    decided(rows[i].copy, rows[i].budget, NULL, &decision);
    assert_true(found.recomputed == decision.options[7].step);
    if ((found.parked > 0) != rows[i].fits || found.slow != rows[i].slow ||
        (rows[i].fits && found.slow != (found.parked > BL_AUTOMATIC_SLOWER * found.recomputed))) {
      fail_msg("row %zu: %g s parked, %g s again, slow %d", i, found.parked, found.recomputed, found.slow);
    }
    if (rows[i].kind == BL_POLICY_BPIPE) {
      assert_true(found.parked == (rows[i].fits ? decision.options[1].step : 0));
    }
    bl_automatic_cleanup(&decision);
  }
}

// Pairs and any devices balance an order that is made for it, and weigh what fits in that one alone.
static void an_order_for_balancing_is_weighed(void **state) {
  (void)state;
  static const double bytes[STAGES] = {1e6, 1e6, 1e6, 1e6}, rates[STAGES] = {1e10, 1e10, 1e10, 1e10};
  bl_schedule_request_t request = {.name = "grouped-interleaved", .stages = STAGES, .micro_batches = 4};
  const bl_costs_t costs = {.every = {1e-3, 1e-3, 1e-3, 1e-3}};
  bl_schedule_t *alone, *pooled;
  bl_automatic_t found;
  bl_error_t err;
  assert_false(bl_schedule_pools(&(bl_schedule_request_t){.name = "v-half", .stages = STAGES}));
  assert_true(bl_schedule_pools(&request));
  assert_int_equal(bl_schedule_generate(&request, &alone, &err), BL_OK);
  request.pooled = true;
  assert_int_equal(bl_schedule_generate(&request, &pooled, &err), BL_OK);
  bl_automatic_request_t wish = {
      .schedule = alone, .costs = &costs, .block_bytes = bytes, .path_rates = rates, .budget = 7};
  assert_int_equal(bl_automatic_decide(&wish, &found, &err), BL_OK);
  assert_int_equal(found.options[found.best].kind, BL_POLICY_DROP); // every stage needs 8, no store has room
  bl_automatic_cleanup(&found);
  wish.pooled = pooled;
  assert_int_equal(bl_automatic_decide(&wish, &found, &err), BL_OK);
  const bl_automatic_option_t *best = &found.options[found.best];
  assert_true(best->kind == BL_POLICY_BPIPE && best->evictions > 0 && best->dropped == 0);
  assert_non_null(strstr(found.reasons[0], "8 are needed, 7 fit"));
  assert_string_equal(found.reasons[3], "needs 5 of 7 slots: nothing moves");
  bl_automatic_cleanup(&found);
  bl_schedule_destroy(alone);
  bl_schedule_destroy(pooled);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(nothing_moves_where_all_fits),
      cmocka_unit_test(a_fast_path_hides_copies),
      cmocka_unit_test(the_fastest_wins),
      cmocka_unit_test(one_in_force_goes_only_for_a_gain),
      cmocka_unit_test(hosts_are_weighed_by_their_own_rate),
      cmocka_unit_test(mixtures_know_the_link),
      cmocka_unit_test(a_path_that_hides_nothing_is_not_taken),
      cmocka_unit_test(what_has_no_room_is_made_again),
      cmocka_unit_test(what_cannot_be_is_refused),
      cmocka_unit_test(decisions_by_the_table),
      cmocka_unit_test(changes_do_not_flap),
      cmocka_unit_test(a_mix_does_not_flap),
      cmocka_unit_test(noise_changes_nothing),
      cmocka_unit_test(what_turns_out_slower_is_taken_back),
      cmocka_unit_test(one_stage_has_nothing_to_decide),
      cmocka_unit_test(trials_cost_a_share),
      cmocka_unit_test(what_is_far_too_slow_is_foreseen),
      cmocka_unit_test(an_order_for_balancing_is_weighed),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
