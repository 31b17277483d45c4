// SPDX-License-Identifier: Apache-2.0
// The calls of operators: revoke, drain, quotas.
#include "base/words.h"
#include "lease/table_core.h"

#include <inttypes.h>
#include <string.h>

bl_status_t bl_lease_table_revoke(bl_lease_table_t *table, uint64_t id, uint64_t generation, uint64_t now_ns,
                                  bl_error_t *err) {
  bl__set_time(table, now_ns);
  const bl__lease_t *lease = id <= table->config.max_leases ? &table->leases[id] : &table->leases[0];
  if (lease->state == BL_LEASE_FREE) {
    return bl_error_set(err, BL_NOT_FOUND, "lease %" PRIu64 " is not held by any session", id);
  }
  if (generation != 0 && generation != lease->generation) {
    return bl_error_set(err, BL_FENCED, "lease %" PRIu64 " is in generation %" PRIu64 ", not %" PRIu64, id,
                        lease->generation, generation);
  }
  bool held = lease->state != BL_LEASE_LOST && lease->session != 0 &&
              (lease->state != BL_LEASE_QUARANTINED || lease->after == BL__AFTER_RESERVED);
  if (!held) {
    return bl_error_set(err, BL_PRECONDITION, "lease %" PRIu64 " was taken from its holder before (%s)", id,
                        bl_lease_state_name((bl_lease_state_t)lease->state));
  }
  table->stats.revoked++;
  bl__lease_lose(table, (uint32_t)id);
  return BL_OK;
}

bl_status_t bl_lease_table_revoke_session(bl_lease_table_t *table, uint64_t number, uint64_t now_ns, bl_error_t *err) {
  bl__set_time(table, now_ns);
  uint32_t index = (uint32_t)number;
  if (index == 0 || index > table->config.max_sessions || table->sessions[index].number != number ||
      table->sessions[index].state == BL_SESSION_OVER) {
    return bl_error_set(err, BL_NOT_FOUND, "session %" PRIu64 " is not open", number);
  }
  bl__session_end(table, index, BL_SESSION_REVOKED);
  return BL_OK;
}

void bl_lease_table_drain(bl_lease_table_t *table, bool draining) {
  if (table->draining != draining) {
    table->draining = draining;
    bl_journal_append(&table->journal,
                      (bl_journal_event_t){.kind = BL_JOURNAL_STORE, .from = !draining, .to = draining});
  }
}

bool bl_lease_table_is_draining(const bl_lease_table_t *table) {
  return table->draining;
}

bool bl_lease_table_is_drained(const bl_lease_table_t *table) {
  return table->draining && table->stats.held_bytes == 0;
}

bl_status_t bl_lease_table_set_quota(bl_lease_table_t *table, const char *name, const uint32_t *stage, uint64_t bytes,
                                     bl_error_t *err) {
  if (name == NULL || name[0] == '\0' || strnlen(name, BL_LEASE_JOB_BYTES) == BL_LEASE_JOB_BYTES) {
    return bl_error_set(err, BL_INVALID, "the name of a job has 1 to %d bytes", BL_LEASE_JOB_BYTES - 1);
  }
  uint32_t job = bl__job_make(table, name, 0);
  if (job == 0) {
    return bl_error_set(err, BL_EXHAUSTED, "the store knows %u jobs already, which is its limit",
                        table->config.max_jobs);
  }
  if (stage == NULL) {
    table->jobs[job].quota_bytes = bytes;
  } else {
    uint32_t holder = bl__holder_make(table, job, *stage);
    if (holder == 0) {
      bl__job_free_if_unused(table, job);
      return bl_error_set(err, BL_EXHAUSTED, "the store knows %u stage%s already, which is its limit",
                          table->max_holders, bl_plural(table->max_holders));
    }
    table->holders[holder].quota_bytes = bytes;
    bl__holder_free_if_unused(table, holder);
    return BL_OK;
  }
  bl__job_free_if_unused(table, job);
  return BL_OK;
}
