// SPDX-License-Identifier: Apache-2.0
// Checks that every sum, list and link of the table agrees with the leases.
#include "lease/table_core.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// Checks one list of a session: every lease of it is in the right state and linked both ways, and counted in `seen`.
static bl_status_t audit_list(const bl_lease_table_t *table, uint32_t session, uint32_t size, bool idle, uint32_t *held,
                              uint32_t *seen, bl_error_t *err) {
  const bl__size_class_t *entry = &table->sessions[session].sizes[size];
  uint32_t previous = 0;
  for (uint32_t i = idle ? entry->idle : entry->busy; i != 0; previous = i, i = table->leases[i].next) {
    const bl__lease_t *lease = &table->leases[i];
    bool right = lease->session == session && lease->size == size && lease->previous == previous &&
                 (lease->state == BL_LEASE_RESERVED) == idle && lease->state != BL_LEASE_FREE;
    if (!right) {
      return bl_error_set(err, BL_INTERNAL, "lease %" PRIu32 " (%s) is in the wrong list", i,
                          bl_lease_state_name((bl_lease_state_t)lease->state));
    }
    if (lease->foreign != 0) {
      return bl_error_set(err, BL_INTERNAL, "lease %" PRIu32 " is in use and in quarantine for another session", i);
    }
    bool gone =
        lease->state == BL_LEASE_LOST || (lease->state == BL_LEASE_QUARANTINED && lease->after != BL__AFTER_RESERVED);
    *held += gone ? 0 : 1;
    (*seen)++;
  }
  return BL_OK;
}

static bl_status_t audit_session(const bl_lease_table_t *table, uint32_t index, uint32_t *seen, bl_error_t *err) {
  const bl__session_t *session = &table->sessions[index];
  for (uint32_t i = 0; i < BL_LEASE_SIZES; i++) {
    uint32_t held = 0;
    bl_status_t status = audit_list(table, index, i, true, &held, seen, err);
    if (status == BL_OK) {
      status = audit_list(table, index, i, false, &held, seen, err);
    }
    if (status != BL_OK) {
      return status;
    }
    if (held != session->sizes[i].held) {
      return bl_error_set(err, BL_INTERNAL,
                          "session %" PRIu64 " has %" PRIu32 " slots of %" PRIu32 " granules, not %" PRIu32,
                          session->number, held, session->sizes[i].granules, session->sizes[i].held);
    }
  }
  return BL_OK;
}

typedef struct sums {
  uint64_t states[BL_LEASE_STATES];
  uint64_t held_bytes, quarantined_bytes, in_flight_bytes, tiers[BL_LEASE_TIERS];
  uint64_t *holders, *jobs, *sessions; // bytes: held, held, in flight
  uint32_t listed;
} sums_t;

static void add_lease(const bl_lease_table_t *table, uint32_t index, sums_t *sums) {
  const bl__lease_t *lease = &table->leases[index];
  uint64_t slot = lease->extent != 0 ? bl__granule_bytes(bl_extent_granules(&table->extents, lease->extent)) : 0;
  bool flying = lease->state == BL_LEASE_WRITING || lease->state == BL_LEASE_LOADING;
  sums->states[lease->state]++;
  sums->held_bytes += slot;
  sums->tiers[lease->tier] += slot;
  sums->quarantined_bytes += lease->state == BL_LEASE_QUARANTINED ? slot : 0;
  sums->in_flight_bytes += flying ? lease->bytes : 0;
  sums->holders[lease->holder] += slot;
  sums->jobs[table->holders[lease->holder].job] += slot;
  sums->sessions[lease->session] += flying ? lease->bytes : 0;
  sums->listed += lease->session != 0 ? 1 : 0;
}

// Returns what all arenas take of a tier, as bl__job_charge counts them per name.
static uint64_t charged_granules(const bl_lease_table_t *table, int tier) {
  uint64_t charged = 0;
  for (uint32_t i = 1; i <= table->config.max_jobs; i++) {
    const bl__job_plan_t *job = &table->jobs[i];
    bool first = job->arena_granules != 0; // arena of its name
    for (uint32_t k = 1; k < i; k++) {
      first = first && (table->jobs[k].arena_granules == 0 || strcmp(table->jobs[k].name, job->name) != 0);
    }
    charged += first ? bl__job_charge(table, job->name, tier) : 0;
  }
  return charged;
}

static bl_status_t compare(const bl_lease_table_t *table, const sums_t *sums, bl_error_t *err) {
  const bl_lease_stats_t *stats = &table->stats;
  if (memcmp(sums->states, stats->leases, sizeof sums->states) != 0) {
    return bl_error_set(err, BL_INTERNAL, "leases by state are miscounted");
  }
  if (sums->held_bytes != stats->held_bytes || sums->quarantined_bytes != stats->quarantined_bytes ||
      sums->in_flight_bytes != stats->in_flight_bytes || sums->tiers[0] != stats->tier_held_bytes[0] ||
      sums->tiers[1] != stats->tier_held_bytes[1]) {
    return bl_error_set(err, BL_INTERNAL,
                        "held, quarantined, in flight are %" PRIu64 ", %" PRIu64 ", %" PRIu64 " bytes, counted %" PRIu64
                        ", %" PRIu64 ", %" PRIu64,
                        sums->held_bytes, sums->quarantined_bytes, sums->in_flight_bytes, stats->held_bytes,
                        stats->quarantined_bytes, stats->in_flight_bytes);
  }
  for (uint32_t i = 1; i <= table->max_holders; i++) {
    if (sums->holders[i] != table->holders[i].held_bytes) {
      return bl_error_set(err, BL_INTERNAL, "stage %" PRIu32 " holds %" PRIu64 " bytes, counted %" PRIu64,
                          table->holders[i].stage, sums->holders[i], table->holders[i].held_bytes);
    }
  }
  for (uint32_t i = 1; i <= table->config.max_jobs; i++) {
    const bl__job_plan_t *job = &table->jobs[i];
    uint32_t granules = job->spaces[0].granules + job->spaces[1].granules;
    bool sound = sums->jobs[i] == job->held_bytes &&
                 bl__granule_bytes(granules - bl__job_free_granules(job)) == job->held_bytes &&
                 granules == job->arena_granules;
    for (int t = 0; t < BL_LEASE_TIERS && sound; t++) {
      sound = job->spaces[t].granules == 0 || bl_extent_space_is_sound(&table->extents, &job->spaces[t]);
    }
    if (!sound) {
      return bl_error_set(err, BL_INTERNAL, "the arena of job '%s' is miscounted", job->name);
    }
  }
  for (int tier = 0; tier < BL_LEASE_TIERS; tier++) {
    uint64_t charged = charged_granules(table, tier);
    if (charged != table->arena_granules[tier] || charged > table->capacity_granules[tier]) {
      return bl_error_set(err, BL_INTERNAL, "arenas take %" PRIu64 " of %" PRIu32 " granules, counted %" PRIu32,
                          charged, table->capacity_granules[tier], table->arena_granules[tier]);
    }
  }
  for (uint32_t i = 1; i <= table->config.max_sessions; i++) {
    if (sums->sessions[i] != table->sessions[i].in_flight_bytes) {
      return bl_error_set(err, BL_INTERNAL, "session %" PRIu64 " has %" PRIu64 " bytes in flight, counted %" PRIu64,
                          table->sessions[i].number, sums->sessions[i], table->sessions[i].in_flight_bytes);
    }
  }
  return BL_OK;
}

bl_status_t bl_lease_table_audit(const bl_lease_table_t *table, bl_error_t *err) {
  sums_t sums = {.holders = calloc((size_t)table->max_holders + 1, sizeof(uint64_t)),
                 .jobs = calloc((size_t)table->config.max_jobs + 1, sizeof(uint64_t)),
                 .sessions = calloc((size_t)table->config.max_sessions + 1, sizeof(uint64_t))};
  bl_status_t status = BL_OK;
  if (sums.holders == NULL || sums.jobs == NULL || sums.sessions == NULL) {
    status = bl_error_set(err, BL_EXHAUSTED, "no memory for an audit");
    goto free_sums;
  }
  for (uint32_t i = 1; i <= table->config.max_leases; i++) {
    add_lease(table, i, &sums);
  }
  status = compare(table, &sums, err);
  uint32_t seen = 0;
  for (uint32_t i = 1; status == BL_OK && i <= table->config.max_sessions; i++) {
    status = audit_session(table, i, &seen, err);
  }
  if (status == BL_OK && seen != sums.listed) {
    status = bl_error_set(err, BL_INTERNAL, "%" PRIu32 " leases have a session, %" PRIu32 " are in its lists",
                          sums.listed, seen);
  }
free_sums:
  free(sums.holders);
  free(sums.jobs);
  free(sums.sessions);
  return status;
}
