// SPDX-License-Identifier: Apache-2.0
// The table against its model, and the choices of the table that the model takes over.
#include "lease/walk_core.h"

#include <inttypes.h>
#include <string.h>

static void compare_lease(walk_t *walk, uint32_t id) {
  const model_lease_t *lease = &walk->model.leases[id];
  bl_lease_view_t view;
  if (bl_lease_table_get(walk->table, id, &view) != BL_OK) {
    walk_expect(walk, lease->state == BL_LEASE_FREE, "lease %" PRIu32 " is gone, the model has it %s", id,
                bl_lease_state_name(lease->state));
    return;
  }
  walk_expect(walk, view.state == lease->state, "lease %" PRIu32 " is %s, the model says %s", id,
              bl_lease_state_name(view.state), bl_lease_state_name(lease->state));
  if (view.state != lease->state) {
    return;
  }
  walk_expect(walk, view.generation == lease->generation, "lease %" PRIu32 " has generation %" PRIu64 ", not %" PRIu64,
              id, view.generation, lease->generation);
  walk_expect(walk, view.session == lease->session, "lease %" PRIu32 " belongs to session %" PRIx64 ", not %" PRIx64,
              id, view.session, lease->session);
  bool same_slot = lease->state == BL_LEASE_LOST
                       ? view.slot_bytes == 0
                       : view.offset_bytes == (uint64_t)lease->offset * BL_LEASE_GRANULE_BYTES &&
                             view.slot_bytes == (uint64_t)lease->granules * BL_LEASE_GRANULE_BYTES;
  walk_expect(walk, same_slot, "lease %" PRIu32 " has another slot than in the model", id);
  walk_expect(walk, view.block_bytes == lease->bytes && view.checksum == lease->checksum,
              "lease %" PRIu32 " holds %" PRIu64 " bytes, in the model %" PRIu64, id, view.block_bytes, lease->bytes);
}

void walk_compare(walk_t *walk) {
  bl_lease_stats_t stats;
  bl_lease_table_stats(walk->table, &stats);
  uint64_t held = 0, in_flight = 0;
  for (uint32_t i = 1; i <= MODEL_LEASES; i++) {
    compare_lease(walk, i);
    const model_lease_t *lease = &walk->model.leases[i];
    bool flying = lease->state == BL_LEASE_WRITING || lease->state == BL_LEASE_LOADING;
    in_flight += flying ? lease->bytes : 0;
  }
  uint32_t cursor = 0;
  bl_lease_job_view_t job;
  while (bl_lease_table_jobs(walk->table, &cursor, &job)) {
    int index = 0;
    while (strcmp(job.name, walk_jobs[index]) != 0 || job.plan != walk_plans[index]) {
      index++;
    }
    uint32_t longest, free = model_free_granules(&walk->model, index, &longest);
    walk_expect(walk, job.free_bytes == (uint64_t)free * BL_LEASE_GRANULE_BYTES, "job %s: free %" PRIu64, job.name,
                job.free_bytes);
    walk_expect(walk, job.largest_free_bytes == (uint64_t)longest * BL_LEASE_GRANULE_BYTES, "job %s: largest %" PRIu64,
                job.name, job.largest_free_bytes);
  }
  for (int i = 0; i < MODEL_JOBS; i++) {
    held += model_held_bytes(&walk->model, i, -1);
  }
  walk_expect(walk, stats.held_bytes == held, "held %" PRIu64 " bytes, in the model %" PRIu64, stats.held_bytes, held);
  walk_expect(walk, stats.in_flight_bytes == in_flight, "in flight %" PRIu64 ", in the model %" PRIu64,
              stats.in_flight_bytes, in_flight);
  bl_error_t err = {0};
  walk_expect(walk, bl_lease_table_audit(walk->table, &err) == BL_OK, "audit: %s", err.text);
}

static bool overlaps(const model_t *model, const model_lease_t *slot) {
  for (int i = 1; i <= MODEL_LEASES; i++) {
    const model_lease_t *other = &model->leases[i];
    if (other->state != BL_LEASE_FREE && other->state != BL_LEASE_LOST && other->job == slot->job &&
        other->offset < slot->offset + slot->granules && slot->offset < other->offset + other->granules) {
      return true;
    }
  }
  return false;
}

// Takes over the slots that a granted reservation chose.
void walk_adopt_new_slots(walk_t *walk, const model_session_t *session) {
  for (uint32_t i = 1; i <= MODEL_LEASES; i++) {
    model_lease_t *lease = &walk->model.leases[i];
    bl_lease_view_t view;
    if (lease->state != BL_LEASE_FREE || bl_lease_table_get(walk->table, i, &view) != BL_OK) {
      continue;
    }
    model_lease_t slot = {.state = BL_LEASE_RESERVED,
                          .generation = view.generation,
                          .session = session->number,
                          .job = session->job,
                          .stage = session->stage,
                          .offset = (uint32_t)(view.offset_bytes / BL_LEASE_GRANULE_BYTES),
                          .granules = (uint32_t)(view.slot_bytes / BL_LEASE_GRANULE_BYTES)};
    walk_expect(walk, view.generation > lease->generation, "lease %" PRIu32 ": generation %" PRIu64 " again", i,
                view.generation);
    walk_expect(walk, !overlaps(&walk->model, &slot), "lease %" PRIu32 " overlaps another slot", i);
    walk_expect(walk, slot.offset + slot.granules <= walk->model.jobs[session->job].granules,
                "lease %" PRIu32 " lies beyond the arena", i);
    *lease = slot;
  }
  for (uint32_t i = 1; i <= MODEL_GRANULES; i++) {
    uint32_t held = model_slots(&walk->model, session->number, i), wanted = model_wanted(session, i);
    walk_expect(walk, held >= wanted, "%" PRIu32 " slots of %" PRIu32 " granules, %" PRIu32 " wanted", held, i, wanted);
  }
}

// Takes over which idle slots went when a plan was given up.
void walk_adopt_dropped_slots(walk_t *walk, const model_session_t *session) {
  for (uint32_t i = 1; i <= MODEL_LEASES; i++) {
    model_lease_t *lease = &walk->model.leases[i];
    bl_lease_view_t view;
    if (lease->session == session->number && lease->state == BL_LEASE_RESERVED &&
        bl_lease_table_get(walk->table, i, &view) != BL_OK) {
      walk_expect(walk,
                  model_slots(&walk->model, session->number, lease->granules) > model_wanted(session, lease->granules),
                  "a slot of %" PRIu32 " granules went although wanted", lease->granules);
      *lease = (model_lease_t){.generation = lease->generation};
    }
  }
  for (uint32_t i = 1; i <= MODEL_LEASES; i++) {
    const model_lease_t *lease = &walk->model.leases[i];
    bool idle = lease->session == session->number && lease->state == BL_LEASE_RESERVED;
    walk_expect(walk,
                !idle || model_slots(&walk->model, session->number, lease->granules) <=
                             model_wanted(session, lease->granules),
                "a slot of %" PRIu32 " granules stayed although nobody wants it", lease->granules);
  }
}
