// SPDX-License-Identifier: Apache-2.0
// Verifies that ranks in a driver's answers are those of a run: coordinates that are negative, beyond the last rank's or
// more than a run can have are refused, and what depends on them is not computed.
#include "ballastctl/inspect/driver_core_wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

// A status of two ranks of which the last one has these coordinates; each has a path to rank 0.
static bool status_is_read(int32_t stage, uint32_t tensor, uint32_t data, int32_t first) {
  Ballast__V1__PeerPath path = BALLAST__V1__PEER_PATH__INIT;
  Ballast__V1__PeerPath *paths[] = {&path};
  Ballast__V1__StageStatusResponse status = BALLAST__V1__STAGE_STATUS_RESPONSE__INIT;
  status.paths = paths;
  status.n_paths = 1;
  Ballast__V1__StageHealth ranks[2] = {BALLAST__V1__STAGE_HEALTH__INIT, BALLAST__V1__STAGE_HEALTH__INIT};
  Ballast__V1__StageHealth *pointers[] = {&ranks[0], &ranks[1]};
  ranks[0].status = ranks[1].status = &status;
  ranks[0].stage = first;
  ranks[1].stage = stage;
  ranks[1].tensor = tensor;
  ranks[1].data = data;
  Ballast__V1__DriverStatusResponse response = BALLAST__V1__DRIVER_STATUS_RESPONSE__INIT;
  response.stages = pointers;
  response.n_stages = 2;
  json_t *value = bl__driver_status_json(&response);
  json_decref(value);
  return value != NULL;
}

static void statuses(void **state) {
  (void)state;
  assert_true(status_is_read(1, 0, 0, 0));
  assert_true(status_is_read(0, 1, 3, 0));
  assert_false(status_is_read(-1, 0, 0, 0));
  assert_false(status_is_read(INT32_MAX, 0, 0, 0));
  assert_false(status_is_read(1, UINT32_MAX, 0, 0));
  assert_false(status_is_read(1, 0, UINT32_MAX, 0));
  assert_false(status_is_read(65535, 65535, 0, 0));
  assert_false(status_is_read(1, 0, 0, 2));
  assert_false(status_is_read(1, 0, 0, -1));
}

static bool trace_is_read(int32_t rank, uint32_t stages, uint32_t tensor, uint32_t data) {
  Ballast__V1__DriverTraceResponse response = BALLAST__V1__DRIVER_TRACE_RESPONSE__INIT;
  response.stage = rank;
  response.replica_stages = stages;
  response.tensor_ranks = tensor;
  response.replicas = data;
  bl_grid_t grid;
  return bl__driver_trace_grid(&response, &grid) && grid.stages == stages && grid.tensor > 0 && grid.data > 0;
}

static void traces(void **state) {
  (void)state;
  assert_true(trace_is_read(3, 0, 0, 0));
  assert_true(trace_is_read(7, 2, 2, 2));
  assert_false(trace_is_read(8, 2, 2, 2));
  assert_false(trace_is_read(-1, 0, 0, 0));
  assert_false(trace_is_read(-1, 2, 2, 2));
  assert_false(trace_is_read(INT32_MAX, 0, 0, 0));
  assert_false(trace_is_read(0, 2, UINT32_MAX, 2));
  assert_false(trace_is_read(0, UINT32_MAX, 1, 1));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(statuses), cmocka_unit_test(traces)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
