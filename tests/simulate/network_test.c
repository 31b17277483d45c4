// SPDX-License-Identifier: Apache-2.0
// Verifies stages on nodes, against times worked out by hand: tensors pass a NIC one after the other, out of one
// node and into the other; those who share a NIC wait for each other and it is said that they do; copies to a store on
// another node wait for the NICs of both and slow tensors beside them; latency holds no NIC.
#include "simulate/timed.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static bl_simulation_t simulate_network(const bl_schedule_t *schedule, const bl_costs_t *costs,
                                        const bl_network_t *network) {
  return simulate(schedule, costs, &(bl_machine_t){.network = network});
}

static const double no_paths[8];

// p = 2, m = 3, F 1, B 2; a tensor holds a NIC for 3 and is on its way for another 0.5. Stage 0 sends at 1, 2 and 3:
// [1, 4] [4, 7] [7, 10]. Stage 1: F [4.5, 5.5] [7.5, 8.5] [10.5, 11.5], B until 13.5, 15.5, 17.5. Back: [13.5, 16.5]
// [16.5, 19.5] [19.5, 22.5]; stage 0: B [17, 19] [20, 22] [23, 25].
static void tensors_pass_one_after_the_other(void **state) {
  (void)state;
  const bl_costs_t costs = {.every = {1, 1, 1, 1}, .boundary = 3.5};
  const uint32_t apart[] = {0, 1};
  const bl_network_t network = {.nodes = apart, .nics = apart, .far_paths = no_paths, .latency = 0.5};
  bl_schedule_t *schedule = generate("gpipe", 2, 3);
  bl_simulation_t result = simulate_network(schedule, &costs, &network),
                  plain = simulate_network(schedule, &costs, NULL);
  assert_time(result.t_end, 25);
  assert_time(plain.t_end, 7.5 + 2 + 3.5 + 6); // tensors pass each other
  assert_time(result.spans[1][2].start, 10.5);
  assert_time(result.stalls[1][BL_STALL_ACTIVATION], 4.5);
  assert_time(result.stalls[1][BL_STALL_NIC], 2 + 2);
  assert_time(result.stalls[0][BL_STALL_GRADIENT], 14);
  assert_time(result.stalls[0][BL_STALL_NIC], 1 + 1);
  assert_time(plain.stalls[1][BL_STALL_NIC], 0);
  bl_simulation_cleanup(&plain);
  bl_simulation_cleanup(&result);
  bl_schedule_destroy(schedule);
}

// Stages 0 and 2 on one node, 1 and 3 on the other, F 1, B 2, every boundary 1, m = 5. With a NIC for each: stage 3
// runs F from 6 to 11 and B from 11, stage 0 ends at 30. With one for each node: at 5 both stages of the first node
// have a tensor, 0 goes first; stage 3 runs F from 7 to 12. Its gradients leave at 14, 16, 18, but that of 20 meets the
// first one of stage 1, which goes first, and that of 22 the second one. Stage 2 is 1 late for its last two, stage 0
// ends at 32.
static void those_who_share_a_nic_wait(void **state) {
  (void)state;
  const bl_costs_t costs = {.every = {1, 1, 1, 1}, .boundary = 1};
  const uint32_t nodes[] = {0, 1, 0, 1}, own[] = {0, 1, 2, 3};
  const bl_network_t shared = {.nodes = nodes, .nics = nodes, .far_paths = no_paths},
                     each = {.nodes = nodes, .nics = own, .far_paths = no_paths};
  bl_schedule_t *schedule = generate("gpipe", 4, 5);
  bl_simulation_t result = simulate_network(schedule, &costs, &shared),
                  free_one = simulate_network(schedule, &costs, &each);
  assert_time(free_one.t_end, 30);
  assert_time(result.t_end, 32);
  assert_time(result.start[3], 7);
  assert_time(result.stalls[3][BL_STALL_NIC], 1);
  assert_time(result.stalls[3][BL_STALL_ACTIVATION], 6);
  assert_time(result.stalls[2][BL_STALL_NIC], 1); // the second gradient comes while it works
  for (uint32_t s = 0; s < 4; s++) {
    assert_time(free_one.stalls[s][BL_STALL_NIC], 0);
  }
  bl_simulation_cleanup(&free_one);
  bl_simulation_cleanup(&result);
  bl_schedule_destroy(schedule);
}

// Stage 0 keeps one block: F0, out with it, F1, B1, load, B0. F 1, B 2, a tensor 1, a copy 4.
static bl_schedule_t *evicting(bl_transfer_mode_t transfers) {
  static const bl_op_t first[] = {{.type = BL_OP_F},
                                  {.type = BL_OP_E, .store = 1},
                                  {.type = BL_OP_F, .micro_batch = 1},
                                  {.type = BL_OP_B, .micro_batch = 1},
                                  {.type = BL_OP_L, .store = 1},
                                  {.type = BL_OP_B}};
  static const bl_op_t second[] = {{.type = BL_OP_F, .virtual_stage = 1},
                                   {.type = BL_OP_F, .virtual_stage = 1, .micro_batch = 1},
                                   {.type = BL_OP_B, .virtual_stage = 1, .micro_batch = 1},
                                   {.type = BL_OP_B, .virtual_stage = 1}};
  bl_schedule_t *schedule;
  assert_int_equal(bl_schedule_create("by hand", BL_PLACEMENT_LOOPED, 2, 1, 2, &schedule, NULL), BL_OK);
  schedule->transfers = transfers;
  for (size_t i = 0; i < sizeof first / sizeof first[0]; i++) {
    assert_int_equal(bl_schedule_append(schedule, 0, first[i]), BL_OK);
  }
  for (size_t i = 0; i < sizeof second / sizeof second[0]; i++) {
    assert_int_equal(bl_schedule_append(schedule, 1, second[i]), BL_OK);
  }
  return schedule;
}

static void copies_hold_the_nics_of_both(void **state) {
  (void)state;
  const bl_costs_t costs = {.every = {1, 1, 1, 1}, .boundary = 1, .path = 0.25};
  const uint32_t apart[] = {0, 1}, together[] = {0, 0};
  const double paths[] = {4, 4};
  const bl_network_t far = {.nodes = apart, .nics = apart, .far_paths = paths},
                     near = {.nodes = together, .nics = apart, .far_paths = paths};
  bl_schedule_t *schedule = evicting(BL_TRANSFER_SERIAL);
  bl_simulation_t result = simulate_network(schedule, &costs, &far);
  assert_time(result.spans[0][1].start, 2); // after the tensor of F0
  assert_time(result.spans[0][2].start, 6); // F1 waits for its slot
  assert_time(result.spans[0][4].start, 14);
  assert_time(result.t_end, 20);
  assert_time(result.stalls[0][BL_STALL_SLOT], 5);
  assert_time(result.stalls[0][BL_STALL_LOAD], 4);
  bl_simulation_cleanup(&result);
  result = simulate_network(schedule, &costs, &near); // one node: no NIC
  assert_time(result.spans[0][1].end, 1.25);
  assert_time(result.stalls[0][BL_STALL_NIC] + result.stalls[1][BL_STALL_NIC], 0);
  bl_simulation_cleanup(&result);
  bl_schedule_destroy(schedule);
}

// E runs from 2 to 6 beside F1 [1, 2], whose tensor takes 2 instead of 1 beside it: stage 1 gets it at 4, one late.
static void tensors_are_slower_beside_copies(void **state) {
  (void)state;
  const bl_costs_t costs = {.every = {1, 1, 1, 1}, .boundary = 1};
  const uint32_t apart[] = {0, 1};
  const double paths[] = {4, 4};
  const bl_network_t far = {.nodes = apart, .nics = apart, .far_paths = paths};
  bl_schedule_t *schedule = evicting(BL_TRANSFER_OVERLAP);
  bl_simulation_t result = simulate_network(schedule, &costs, &far);
  assert_time(result.spans[0][1].end, 6);
  assert_time(result.spans[1][1].start, 4);
  assert_time(result.stalls[1][BL_STALL_NIC], 1);
  assert_time(result.spans[0][4].start, 10); // the gradients of stage 1 have left by then
  assert_time(result.t_end, 16);
  bl_simulation_cleanup(&result);
  bl_schedule_destroy(schedule);
}

// Where tensors hold no NIC for long, nodes change nothing.
static void latency_alone_holds_nothing(void **state) {
  (void)state;
  static const char *const names[] = {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "v-half", "chimera", "dualpipe"};
  const uint32_t nodes[] = {0, 0, 1, 1}, nics[] = {0, 0, 1, 1};
  const bl_network_t network = {.nodes = nodes, .nics = nics, .far_paths = no_paths, .latency = 0.5};
  const bl_costs_t costs = {.every = {3, 4, 2, 3}, .boundary = 0.5};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    bl_schedule_t *schedule = generate(names[i], 4, 8);
    bl_simulation_t spread = simulate_network(schedule, &costs, &network),
                    plain = simulate_network(schedule, &costs, NULL);
    assert_time(spread.t_end, plain.t_end);
    bl_simulation_cleanup(&spread);
    bl_simulation_cleanup(&plain);
    bl_schedule_destroy(schedule);
  }
}

static void bad_networks_are_named(void **state) {
  (void)state;
  const uint32_t apart[] = {0, 1}, wrong[] = {0, 2};
  const double paths[] = {1, NAN};
  const bl_network_t networks[] = {{.nodes = apart, .nics = wrong, .far_paths = no_paths},
                                   {.nodes = apart, .nics = apart, .far_paths = paths},
                                   {.nodes = apart, .nics = apart, .far_paths = no_paths, .latency = -1}};
  static const char *const texts[] = {
      "network card of stage 1: must be below 2, is 2",
      "an evict or load of stage 1 to another node: must be a number from 0 upwards, is nan",
      "latency of a message: must be a number from 0 upwards, is -1",
  };
  bl_schedule_t *schedule = generate("1f1b", 2, 2);
  for (size_t i = 0; i < 3; i++) {
    bl_simulation_t result;
    bl_error_t err;
    bl_machine_t machine = {.network = &networks[i]};
    assert_int_equal(bl_simulate_on(schedule, &BL_COSTS_UNIT, &machine, &result, &err), BL_INVALID);
    assert_string_equal(err.text, texts[i]);
  }
  bl_schedule_destroy(schedule);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(tensors_pass_one_after_the_other), cmocka_unit_test(those_who_share_a_nic_wait),
      cmocka_unit_test(copies_hold_the_nics_of_both),     cmocka_unit_test(tensors_are_slower_beside_copies),
      cmocka_unit_test(latency_alone_holds_nothing),      cmocka_unit_test(bad_networks_are_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
