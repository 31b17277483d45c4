// SPDX-License-Identifier: Apache-2.0
// Operators: revoke, drain, quotas.
#include "lease/walk_core.h"

#include <inttypes.h>

void walk_operate(walk_t *walk) {
  model_t *model = &walk->model;
  bl_error_t err;
  switch (walk_draw(walk, 4)) {
  case 0: {
    uint32_t id = 1 + (uint32_t)walk_draw(walk, MODEL_LEASES);
    const model_lease_t *lease = &model->leases[id];
    bool held = lease->state != BL_LEASE_FREE && lease->state != BL_LEASE_LOST &&
                !(lease->state == BL_LEASE_QUARANTINED && lease->then != MODEL_THEN_RESERVED);
    bl_status_t wanted = held ? BL_OK : lease->state == BL_LEASE_FREE ? BL_NOT_FOUND : BL_PRECONDITION;
    uint64_t generation = walk_chance(walk, 50) ? 0 : lease->generation;
    walk_say(walk, "revoke %" PRIu32, id);
    if (held) {
      model_lose(model, id);
    }
    bl_status_t status = bl_lease_table_revoke(walk->table, id, generation, model->now_ns, &err);
    walk_expect(walk, status == wanted, "revoke: %s, the model says %s", bl_status_name(status),
                bl_status_name(wanted));
    break;
  }
  case 1:
    model->draining = walk_chance(walk, 20);
    walk_say(walk, "drain %d", model->draining);
    bl_lease_table_drain(walk->table, model->draining);
    break;
  case 2: {
    int job = (int)walk_draw(walk, MODEL_NAMES);
    uint64_t bytes =
        walk_chance(walk, 50) ? BL_LEASE_NO_QUOTA : walk_draw(walk, MODEL_GRANULES) * BL_LEASE_GRANULE_BYTES;
    walk_say(walk, "quota %s %" PRIu64, walk_jobs[job], bytes);
    model->jobs[job].quota_bytes = bytes;
    walk_expect(walk, bl_lease_table_set_quota(walk->table, walk_jobs[job], NULL, bytes, &err) == BL_OK,
                "quota refused");
    break;
  }
  default: {
    int job = (int)walk_draw(walk, MODEL_NAMES);
    uint32_t stage = (uint32_t)walk_draw(walk, MODEL_STAGES);
    uint64_t bytes =
        walk_chance(walk, 60) ? BL_LEASE_NO_QUOTA : walk_draw(walk, MODEL_GRANULES) * BL_LEASE_GRANULE_BYTES;
    walk_say(walk, "quota %s/%" PRIu32 " %" PRIu64, walk_jobs[job], stage, bytes);
    model->jobs[job].stage_quota_bytes[stage] = bytes;
    walk_expect(walk, bl_lease_table_set_quota(walk->table, walk_jobs[job], &stage, bytes, &err) == BL_OK,
                "quota refused");
    break;
  }
  }
}
