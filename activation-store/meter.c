// SPDX-License-Identifier: Apache-2.0
#include "meter.h"

#include "sys/clock.h"

enum {
  INCARNATION,
  DRAINING,
  REVISION,
  CAPACITY,
  ARENAS,
  HELD,
  FREE,
  LARGEST_FREE,
  QUARANTINED,
  IN_FLIGHT,
  LEASES,
  SESSIONS,
  SESSION_ENDS,
  RENEW_LAG,
  RESERVED,
  EVICTED,
  EVICTED_BYTES,
  LOADED,
  LOADED_BYTES,
  RELEASED,
  REVOKED,
  REFUSALS,
  FENCED,
  SUSPECTED,
  CHECKSUM_FAILURES,
  STALE,
  REPEATED,
  CONNECTIONS_REFUSED,
  CONNECTIONS,
  CONNECTIONS_LOST,
  CONNECTIONS_BROKEN,
  COPIED_BYTES,
  CALL_SECONDS,
  ROWS
};

// ---- values of labels

static const char *lease_state(unsigned index) {
  return bl_lease_state_name((bl_lease_state_t)(BL_LEASE_RESERVED + index));
}

static const char *session_state(unsigned index) {
  return bl_session_state_name((bl_session_state_t)(BL_SESSION_ALIVE + index));
}

static const char *refusal(unsigned index) {
  return bl_lease_reason_name((bl_lease_reason_t)(1 + index)); // 0 is not a refusal
}

static const char *const ends[BL_SESSION_ENDS] = {
    [BL_SESSION_CLOSED] = "closed",     [BL_SESSION_EXPIRED] = "expired",   [BL_SESSION_REPLACED] = "replaced",
    [BL_SESSION_PREEMPTED] = "evicted", [BL_SESSION_NO_ARENA] = "no_arena", [BL_SESSION_REVOKED] = "revoked"};
static const char *end_name(unsigned index) {
  return ends[index];
}

const char *bl_meter_call_name(unsigned call) {
  static const char *const names[] = {[BL_METER_RESERVE] = "reserve",
                                      [BL_METER_EVICT] = "evict",
                                      [BL_METER_LOAD] = "load",
                                      [BL_METER_RELEASE] = "release"};
  return names[call];
}

static const char *path_name(unsigned index) {
  return bl_path_name((bl_path_t)(BL_PATH_AUTO + 1 + index));
}

// ---- the table

#define COUNTER(name_, help_)                                                                                          \
  { .name = name_, .kind = BL_METRIC_COUNTER, .help = help_ }
#define GAUGE(name_, help_)                                                                                            \
  { .name = name_, .kind = BL_METRIC_GAUGE, .help = help_ }
#define BY(kind_, name_, label_, value_of_, series_, help_)                                                            \
  { .name = name_, .kind = kind_, .label = label_, .value_of = value_of_, .series = series_, .help = help_ }

const bl_metric_row_t bl_meter_rows[] = {
    [INCARNATION] = GAUGE("ballast_store_incarnation",
                          "A random number drawn at the start: another one means that all that was held is gone."),
    [DRAINING] = GAUGE("ballast_store_draining", "1 while the store takes nothing new."),
    [REVISION] = COUNTER("ballast_store_revisions_total", "Changes of the lease table, as watches number them."),
    [CAPACITY] = GAUGE("ballast_store_capacity_bytes", "Memory that may be lent, all jobs together."),
    [ARENAS] = GAUGE("ballast_store_arena_bytes",
                     "Memory given to the arenas of jobs; of the plans of one job the largest counts."),
    [HELD] = GAUGE("ballast_store_held_bytes", "Memory in slots that sessions hold."),
    [FREE] = GAUGE("ballast_store_free_bytes", "Memory of arenas that nobody holds."),
    [LARGEST_FREE] = GAUGE("ballast_store_largest_free_bytes", "The largest slot that could be reserved at once."),
    [QUARANTINED] = GAUGE("ballast_store_quarantined_bytes", "Memory that a transfer may still touch."),
    [IN_FLIGHT] = GAUGE("ballast_store_in_flight_bytes", "Bytes being evicted or loaded now."),
    [LEASES] = BY(BL_METRIC_GAUGE, "ballast_store_leases", "state", lease_state, BL_LEASE_STATES - BL_LEASE_RESERVED,
                  "Leases by state."),
    [SESSIONS] = BY(BL_METRIC_GAUGE, "ballast_store_sessions", "state", session_state, 2, "Sessions by state."),
    [SESSION_ENDS] = BY(BL_METRIC_COUNTER, "ballast_store_session_ends_total", "cause", end_name, BL_SESSION_ENDS,
                        "Sessions that ended, by why."),
    [RENEW_LAG] = GAUGE("ballast_store_renew_lag_seconds",
                        "Time since its last renewal of the session that was renewed least recently."),
    [RESERVED] = COUNTER("ballast_store_reserved_total", "Slots reserved."),
    [EVICTED] = COUNTER("ballast_store_evictions_total", "Blocks that came in and were sealed."),
    [EVICTED_BYTES] = COUNTER("ballast_store_evicted_bytes_total", "Bytes of these."),
    [LOADED] = COUNTER("ballast_store_loads_total", "Blocks whose holder got them back."),
    [LOADED_BYTES] = COUNTER("ballast_store_loaded_bytes_total", "Bytes of these."),
    [RELEASED] = COUNTER("ballast_store_releases_total", "Leases released by their holder."),
    [REVOKED] = COUNTER("ballast_store_revocations_total", "Leases revoked by an operator."),
    [REFUSALS] = BY(BL_METRIC_COUNTER, "ballast_store_refusals_total", "reason", refusal, BL_LEASE_REASONS - 1,
                    "Requests refused, by why."),
    [FENCED] = COUNTER("ballast_store_fenced_total",
                       "Requests refused because their session, incarnation or generation is out of date."),
    [SUSPECTED] = COUNTER("ballast_store_suspected_total", "Times a session was not renewed within its TTL."),
    [CHECKSUM_FAILURES] = COUNTER("ballast_store_checksum_failures_total", "Blocks whose bytes did not match."),
    [STALE] = COUNTER("ballast_store_stale_events_total", "Ends of transfers that were no longer known."),
    [REPEATED] =
        COUNTER("ballast_store_repeated_requests_total", "Requests that were repeated and got their old answer."),
    [CONNECTIONS_REFUSED] =
        COUNTER("ballast_store_data_refused_total", "Data connections closed before they belonged to a session."),
    [CONNECTIONS] = BY(BL_METRIC_GAUGE, "ballast_store_data_connections", "path", path_name, BL_PATHS - 1,
                       "Data connections of sessions, by the path that their blocks take."),
    [CONNECTIONS_LOST] = COUNTER("ballast_store_data_lost_total", "Data connections that ended before their session."),
    [CONNECTIONS_BROKEN] =
        COUNTER("ballast_store_data_broken_total",
                "Data connections of sessions that ended with a reading error or bytes out of protocol."),
    [COPIED_BYTES] = COUNTER("ballast_store_data_copied_bytes_total",
                             "Bytes copied into arenas by the store itself: those evicted over shared memory, once; "
                             "none over TCP."),
    [CALL_SECONDS] = {.name = "ballast_store_call_seconds",
                      .kind = BL_METRIC_HISTOGRAM,
                      .label = "call",
                      .value_of = bl_meter_call_name,
                      .series = 4,
                      .bounds = BL_REGISTRY_CALL_SECONDS,
                      .help = "Time from a holder's request to its answer: a grant is a reserve, an evict includes the "
                              "copy into the store, a load over TCP sending the bytes."},
};
const size_t bl_meter_row_count = ROWS;

// ---- reading

void bl_meter_answered(bl_registry_t *registry, bl_meter_call_t call, uint64_t began_ns) {
  if (registry != NULL) {
    bl_registry_observe(registry, CALL_SECONDS, call, (double)(bl_clock_now_ns() - began_ns) / BL_NS_PER_S);
  }
}

// Returns the first 48 bits, which a gauge represents exactly.
static double incarnation_number(const bl_id128_t *incarnation) {
  double number = 0;
  for (int i = 0; i < 6; i++) {
    number = number * 256 + incarnation->bytes[i];
  }
  return number;
}

static double renew_lag_seconds(const bl_lease_table_t *table, uint64_t now_ns) {
  double lag = 0;
  uint32_t cursor = 0;
  bl_session_view_t view;
  while (bl_lease_table_sessions(table, &cursor, &view)) {
    double since = now_ns > view.renewed_ns ? (double)(now_ns - view.renewed_ns) / BL_NS_PER_S : 0;
    lag = since > lag ? since : lag;
  }
  return lag;
}

void bl_meter_collect(bl_registry_t *registry, bl_lease_table_t *table, const bl_connections_counters_t *data) {
  const bl_lease_config_t *config = bl_lease_table_config(table);
  const uint64_t now_ns = bl_clock_now_ns();
  bl_lease_stats_t stats;
  bl_lease_table_stats(table, &stats);
  bl_registry_set(registry, INCARNATION, 0, incarnation_number(&config->incarnation));
  bl_registry_set(registry, DRAINING, 0, bl_lease_table_is_draining(table));
  bl_registry_set(registry, REVISION, 0, (double)bl_lease_table_journal(table)->revision);
  bl_registry_set(registry, CAPACITY, 0, (double)(config->capacity_bytes + config->spill_bytes));
  bl_registry_set(registry, ARENAS, 0, (double)stats.arena_bytes);
  bl_registry_set(registry, HELD, 0, (double)stats.held_bytes);
  bl_registry_set(registry, FREE, 0, (double)stats.free_bytes);
  bl_registry_set(registry, LARGEST_FREE, 0, (double)stats.largest_free_bytes);
  bl_registry_set(registry, QUARANTINED, 0, (double)stats.quarantined_bytes);
  bl_registry_set(registry, IN_FLIGHT, 0, (double)stats.in_flight_bytes);
  for (unsigned i = 0; i + BL_LEASE_RESERVED < BL_LEASE_STATES; i++) {
    bl_registry_set(registry, LEASES, i, (double)stats.leases[BL_LEASE_RESERVED + i]);
  }
  bl_registry_set(registry, SESSIONS, 0, (double)stats.sessions[BL_SESSION_ALIVE]);
  bl_registry_set(registry, SESSIONS, 1, (double)stats.sessions[BL_SESSION_SUSPECT]);
  for (unsigned i = 0; i < BL_SESSION_ENDS; i++) {
    bl_registry_set(registry, SESSION_ENDS, i, (double)stats.ended[i]);
  }
  bl_registry_set(registry, RENEW_LAG, 0, renew_lag_seconds(table, now_ns));
  bl_registry_set(registry, RESERVED, 0, (double)stats.reserved);
  bl_registry_set(registry, EVICTED, 0, (double)stats.evicted);
  bl_registry_set(registry, EVICTED_BYTES, 0, (double)stats.evicted_bytes);
  bl_registry_set(registry, LOADED, 0, (double)stats.loaded);
  bl_registry_set(registry, LOADED_BYTES, 0, (double)stats.loaded_bytes);
  bl_registry_set(registry, RELEASED, 0, (double)stats.released);
  bl_registry_set(registry, REVOKED, 0, (double)stats.revoked);
  double fenced = 0;
  for (unsigned i = 1; i < BL_LEASE_REASONS; i++) {
    bl_registry_set(registry, REFUSALS, i - 1, (double)stats.refused[i]);
    if (bl_lease_reason_status((bl_lease_reason_t)i) == BL_FENCED) {
      fenced += (double)stats.refused[i];
    }
  }
  bl_registry_set(registry, FENCED, 0, fenced);
  bl_registry_set(registry, SUSPECTED, 0, (double)stats.suspected);
  bl_registry_set(registry, CHECKSUM_FAILURES, 0, (double)stats.checksum_failures);
  bl_registry_set(registry, STALE, 0, (double)stats.stale_events);
  bl_registry_set(registry, REPEATED, 0, (double)stats.repeated);
  bl_registry_set(registry, CONNECTIONS_REFUSED, 0, (double)data->refused);
  for (unsigned path = BL_PATH_AUTO + 1; path < BL_PATHS; path++) {
    bl_registry_set(registry, CONNECTIONS, path - BL_PATH_AUTO - 1, (double)data->up[path]);
  }
  bl_registry_set(registry, CONNECTIONS_LOST, 0, (double)data->lost);
  bl_registry_set(registry, CONNECTIONS_BROKEN, 0, (double)data->broken);
  bl_registry_set(registry, COPIED_BYTES, 0, (double)data->bytes_copied);
}
