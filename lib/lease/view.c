// SPDX-License-Identifier: Apache-2.0
// Read access to the table.
#include "lease/table_core.h"

#include "base/minmax.h"

#include <stddef.h>

const char *bl_lease_state_name(bl_lease_state_t state) {
  static const char *const names[BL_LEASE_STATES] = {"free",    "reserved", "writing",    "sealed",
                                                     "loading", "lost",     "quarantined"};
  return (unsigned)state < BL_LEASE_STATES ? names[state] : "unknown";
}

const char *bl_lease_tier_name(uint32_t tier) {
  return tier == 0 ? "device" : tier == 1 ? "host" : "unknown";
}

static void fill_lease(const bl_lease_table_t *table, uint32_t index, bl_lease_view_t *view) {
  const bl__lease_t *lease = &table->leases[index];
  const bl__holder_t *holder = &table->holders[lease->holder];
  *view = (bl_lease_view_t){.id = index,
                            .generation = lease->generation,
                            .state = (bl_lease_state_t)lease->state,
                            .session = lease->session != 0 ? table->sessions[lease->session].number : 0,
                            .job = table->jobs[holder->job].name,
                            .plan = table->jobs[holder->job].plan,
                            .stage = holder->stage,
                            .block_bytes = lease->bytes,
                            .checksum = lease->checksum,
                            .label = lease->label,
                            .since_ns = lease->since_ns,
                            .tier = lease->tier};
  if (lease->extent != 0) {
    view->offset_bytes = bl__slot_offset(table, lease);
    view->slot_bytes = bl__granule_bytes(bl_extent_granules(&table->extents, lease->extent));
  }
}

bl_status_t bl_lease_table_get(const bl_lease_table_t *table, uint64_t id, bl_lease_view_t *view) {
  if (id > table->config.max_leases || table->leases[id].state == BL_LEASE_FREE) {
    return BL_NOT_FOUND;
  }
  fill_lease(table, (uint32_t)id, view);
  return BL_OK;
}

bool bl_lease_table_list(const bl_lease_table_t *table, uint64_t *cursor, bl_lease_view_t *view) {
  for (uint64_t i = *cursor + 1; i <= table->config.max_leases; i++) {
    if (table->leases[i].state != BL_LEASE_FREE) {
      *cursor = i;
      fill_lease(table, (uint32_t)i, view);
      return true;
    }
  }
  return false;
}

bool bl_lease_table_slots(const bl_lease_table_t *table, uint64_t number, uint64_t *cursor, bl_lease_view_t *view) {
  uint32_t index = (uint32_t)number;
  if (index == 0 || index > table->config.max_sessions || table->sessions[index].number != number) {
    return false;
  }
  const bl__session_t *session = &table->sessions[index];
  // The cursor is (list + 1, lease). Lists are the idle and busy ones of each size.
  uint32_t list = (uint32_t)(*cursor >> 32), lease = (uint32_t)*cursor;
  lease = list != 0 ? table->leases[lease].next : 0;
  while (lease == 0) {
    if (list == 2 * BL_LEASE_SIZES) {
      return false;
    }
    const bl__size_class_t *size = &session->sizes[list / 2];
    lease = list % 2 == 0 ? size->idle : size->busy;
    list++;
  }
  *cursor = (uint64_t)list << 32 | lease;
  fill_lease(table, lease, view);
  return true;
}

bool bl_lease_table_sessions(const bl_lease_table_t *table, uint32_t *cursor, bl_session_view_t *view) {
  for (uint32_t i = *cursor + 1; i <= table->config.max_sessions; i++) {
    const bl__session_t *session = &table->sessions[i];
    if (session->state == BL_SESSION_ALIVE || session->state == BL_SESSION_SUSPECT) {
      const bl__holder_t *holder = &table->holders[session->holder];
      *cursor = i;
      *view = (bl_session_view_t){.session = session->number,
                                  .state = (bl_session_state_t)session->state,
                                  .job = table->jobs[holder->job].name,
                                  .plan = table->jobs[holder->job].plan,
                                  .stage = holder->stage,
                                  .held_bytes = holder->held_bytes,
                                  .in_flight_bytes = session->in_flight_bytes,
                                  .renewed_ns = session->renewed_ns};
      for (uint32_t j = 0; j < BL_LEASE_SIZES; j++) {
        view->slots += session->sizes[j].held;
      }
      return true;
    }
  }
  return false;
}

bool bl_lease_table_jobs(const bl_lease_table_t *table, uint32_t *cursor, bl_lease_job_view_t *view) {
  for (uint32_t i = *cursor + 1; i <= table->config.max_jobs; i++) {
    const bl__job_plan_t *job = &table->jobs[i];
    if (job->name[0] != '\0') {
      *cursor = i;
      *view = (bl_lease_job_view_t){.job = i - 1,
                                    .name = job->name,
                                    .plan = job->plan,
                                    .arena_bytes = bl__granule_bytes(job->arena_granules),
                                    .free_bytes = bl__granule_bytes(bl__job_free_granules(job)),
                                    .largest_free_bytes = bl__granule_bytes(bl__job_largest_run(table, job)),
                                    .held_bytes = job->held_bytes,
                                    .quota_bytes = bl__job_quota(table, i)};
      return true;
    }
  }
  return false;
}

void bl_lease_table_stats(const bl_lease_table_t *table, bl_lease_stats_t *stats) {
  *stats = table->stats;
  for (int i = 0; i < BL_LEASE_TIERS; i++) {
    stats->tier_arena_bytes[i] = bl__granule_bytes(table->arena_granules[i]);
    stats->arena_bytes += stats->tier_arena_bytes[i];
    const uint64_t unused = bl__granule_bytes(table->capacity_granules[i] - table->arena_granules[i]); // a new job's
    stats->largest_free_bytes = bl_max_u64(stats->largest_free_bytes, unused);
  }
  uint32_t cursor = 0;
  bl_lease_job_view_t job;
  while (bl_lease_table_jobs(table, &cursor, &job)) {
    stats->free_bytes += job.free_bytes;
    stats->largest_free_bytes = bl_max_u64(stats->largest_free_bytes, job.largest_free_bytes);
  }
}

const bl_journal_t *bl_lease_table_journal(const bl_lease_table_t *table) {
  return &table->journal;
}

const bl_lease_config_t *bl_lease_table_config(const bl_lease_table_t *table) {
  return &table->config;
}
