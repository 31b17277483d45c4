// SPDX-License-Identifier: Apache-2.0
// Reservations: for each size a session has the maximum number of slots that any one of its plans wants.
#include "lease/table_core.h"

#include "base/hash.h"

#include <stddef.h>

_Static_assert(BL_LEASE_SIZES == 8 && BL_LEASE_PLANS == 4, "the text of BL_LEASE_LIMITS has these numbers");

enum { DIGEST_RESERVE = 1, DIGEST_UNRESERVE = 2 };

static bl__reservation_t *find_reservation(bl__session_t *session, uint64_t version) {
  for (uint32_t i = 0; i < BL_LEASE_PLANS; i++) {
    if (session->reservations[i].version == version) {
      return &session->reservations[i];
    }
  }
  return NULL;
}

// Returns the entry of this size, or an unused one for it, or BL_LEASE_SIZES. An entry is unused if no plan wants the
// size and no lease has it.
static uint32_t find_size(const bl__session_t *session, uint32_t granules) {
  uint32_t unused = BL_LEASE_SIZES;
  for (uint32_t i = 0; i < BL_LEASE_SIZES; i++) {
    if (session->sizes[i].granules == granules) {
      return i;
    }
    if (session->sizes[i].granules == 0 && unused == BL_LEASE_SIZES) {
      unused = i;
    }
  }
  return unused;
}

static void forget_unused_sizes(bl__session_t *session) {
  for (uint32_t i = 0; i < BL_LEASE_SIZES; i++) {
    bl__size_class_t *size = &session->sizes[i];
    if (size->wanted == 0 && size->idle == 0 && size->busy == 0) {
      *size = (bl__size_class_t){0};
    }
  }
}

static void count_wanted(bl__session_t *session) {
  for (uint32_t i = 0; i < BL_LEASE_SIZES; i++) {
    uint32_t most = 0;
    for (uint32_t j = 0; j < BL_LEASE_PLANS; j++) {
      const bl__reservation_t *reservation = &session->reservations[j];
      most = reservation->version != 0 && reservation->counts[i] > most ? reservation->counts[i] : most;
    }
    session->sizes[i].wanted = most;
  }
}

// Frees idle slots that no plan wants. Busy ones follow when their lease is over. LOST ones have no memory.
static void shrink(bl_lease_table_t *table, bl__session_t *session) {
  for (uint32_t i = 0; i < BL_LEASE_SIZES; i++) {
    bl__size_class_t *size = &session->sizes[i];
    while (size->held > size->wanted && size->idle != 0) {
      bl__slot_free(table, size->idle);
    }
  }
  forget_unused_sizes(session);
}

// Adds the wanted slots that are missing. False: nothing has changed; *reason says why.
static bool grow(bl_lease_table_t *table, uint32_t index, bl_lease_reason_t *reason) {
  bl__session_t *session = &table->sessions[index];
  uint32_t added[BL_LEASE_SIZES] = {0};
  for (uint32_t i = 0; i < BL_LEASE_SIZES; i++) {
    bl__size_class_t *size = &session->sizes[i];
    while (size->held < size->wanted) {
      if (bl__slot_new(table, index, i, reason) == 0) {
        goto undo;
      }
      added[i]++; // the first one of the idle list
    }
  }
  return true;
undo:
  for (uint32_t i = 0; i < BL_LEASE_SIZES; i++) {
    for (; added[i] > 0; added[i]--) {
      bl__slot_free(table, session->sizes[i].idle);
    }
  }
  return false;
}

// Compares what the wanted slots need beyond the held ones with what is available at once. A cheap check before any
// slot is taken. *answer gets the numbers of a quota that refuses.
static bl_lease_reason_t admit(const bl_lease_table_t *table, const bl__session_t *session, bl_lease_answer_t *answer) {
  const bl__holder_t *holder = &table->holders[session->holder];
  const bl__job_plan_t *job = &table->jobs[holder->job];
  uint64_t granules = 0, slots = 0;
  uint32_t longest = 0;
  for (uint32_t i = 0; i < BL_LEASE_SIZES; i++) {
    const bl__size_class_t *size = &session->sizes[i];
    if (size->wanted > size->held) {
      slots += size->wanted - size->held;
      granules += (uint64_t)(size->wanted - size->held) * size->granules;
      longest = size->granules > longest ? size->granules : longest;
    }
  }
  if (slots == 0) {
    return BL_LEASE_GRANTED;
  }
  uint64_t bytes = granules * BL_LEASE_GRANULE_BYTES; // counts and sizes have 32 bits each: see demand_granules
  const uint64_t job_quota = bl__job_quota(table, holder->job);
  const uint64_t stage_quota = bl__stage_quota(table, holder->job, holder->stage);
  if (job->held_bytes > job_quota || bytes > job_quota - job->held_bytes) {
    answer->quota_bytes = job_quota;
    answer->needed_bytes = job->held_bytes + bytes;
    return BL_LEASE_JOB_QUOTA;
  }
  if (holder->held_bytes > stage_quota || bytes > stage_quota - holder->held_bytes) {
    answer->quota_bytes = stage_quota;
    answer->needed_bytes = holder->held_bytes + bytes;
    return BL_LEASE_STAGE_QUOTA;
  }
  if (slots > table->unused_leases) {
    return BL_LEASE_TABLE_FULL;
  }
  if (granules > bl__job_free_granules(job) || longest > bl__job_largest_run(table, job)) {
    return BL_LEASE_SPACE;
  }
  return BL_LEASE_GRANTED;
}

// Returns the granules of one demand, or 0 if it can never be met.
static uint32_t demand_granules(const bl__job_plan_t *job, const bl_lease_demand_t *demand) {
  uint32_t granules = bl__granules(demand->bytes);
  return granules <= job->spaces[0].granules || granules <= job->spaces[1].granules ? granules : 0;
}

// Reads the demands as a plan. Sizes that are new to the session get an entry.
static bl_lease_reason_t read_reservation(bl__session_t *session, const bl__job_plan_t *job, uint64_t version,
                                          const bl_lease_demand_t *demands, size_t demand_count,
                                          bl__reservation_t *reservation) {
  *reservation = (bl__reservation_t){.version = version};
  if (version == 0 || demand_count == 0) {
    return BL_LEASE_BAD_REQUEST;
  }
  for (size_t i = 0; i < demand_count; i++) {
    if (demands[i].bytes == 0 || demands[i].count == 0) {
      return BL_LEASE_BAD_BYTES;
    }
    uint32_t granules = demand_granules(job, &demands[i]);
    if (granules == 0) {
      return BL_LEASE_BEYOND;
    }
    uint32_t size = find_size(session, granules);
    if (size == BL_LEASE_SIZES) {
      return BL_LEASE_LIMITS;
    }
    if (demands[i].count > UINT32_MAX - reservation->counts[size]) {
      return BL_LEASE_BEYOND;
    }
    session->sizes[size].granules = granules;
    reservation->counts[size] += demands[i].count;
  }
  // More than the whole arena would not fit later either.
  uint64_t granules = 0;
  for (uint32_t i = 0; i < BL_LEASE_SIZES; i++) {
    granules += (uint64_t)reservation->counts[i] * session->sizes[i].granules;
    if (granules > job->arena_granules) {
      return BL_LEASE_BEYOND;
    }
  }
  return BL_LEASE_GRANTED;
}

static bool same_counts(const bl__reservation_t *a, const bl__reservation_t *b) {
  bool same = true;
  for (uint32_t i = 0; i < BL_LEASE_SIZES; i++) {
    same = same && a->counts[i] == b->counts[i];
  }
  return same;
}

// Takes the slots, and for that ends SUSPECT sessions of the same job if necessary. The caller undoes the plan on
// refusal.
static bl_lease_reason_t take_slots(bl_lease_table_t *table, uint32_t index, bl_lease_answer_t *answer) {
  bl__session_t *session = &table->sessions[index];
  for (;;) {
    bl_lease_reason_t reason = admit(table, session, answer);
    if (reason == BL_LEASE_GRANTED && grow(table, index, &reason)) {
      return BL_LEASE_GRANTED;
    }
    bool for_memory = reason == BL_LEASE_SPACE || reason == BL_LEASE_JOB_QUOTA;
    uint32_t suspect = for_memory ? bl__session_suspect(table, table->holders[session->holder].job) : 0;
    if (suspect == 0) {
      return reason;
    }
    bl__session_end(table, suspect, BL_SESSION_PREEMPTED);
  }
}

static bl_lease_reason_t reserve(bl_lease_table_t *table, uint32_t index, uint64_t version,
                                 const bl_lease_demand_t *demands, size_t demand_count, bl_lease_answer_t *answer) {
  bl__session_t *session = &table->sessions[index];
  const bl__job_plan_t *job = &table->jobs[table->holders[session->holder].job];
  if (session->state == BL_SESSION_SUSPECT) {
    return BL_LEASE_SUSPECT;
  }
  if (table->draining) {
    return BL_LEASE_DRAINING;
  }
  if (!job->arena_made) {
    return BL_LEASE_NO_ARENA;
  }
  bl__reservation_t reservation;
  forget_unused_sizes(session); // their last lease may have ended after their plan
  bl_lease_reason_t reason = read_reservation(session, job, version, demands, demand_count, &reservation);
  if (reason != BL_LEASE_GRANTED) {
    return reason;
  }
  bl__reservation_t *known = find_reservation(session, version);
  if (known != NULL) {
    return same_counts(known, &reservation) ? BL_LEASE_GRANTED : BL_LEASE_PLAN;
  }
  bl__reservation_t *entry = find_reservation(session, 0);
  if (entry == NULL) {
    return BL_LEASE_LIMITS;
  }
  *entry = reservation;
  count_wanted(session);
  reason = take_slots(table, index, answer);
  if (reason != BL_LEASE_GRANTED) {
    *entry = (bl__reservation_t){0};
    count_wanted(session);
    return reason;
  }
  for (uint32_t i = 0; i < BL_LEASE_SIZES; i++) {
    table->stats.reserved += reservation.counts[i];
  }
  return BL_LEASE_GRANTED;
}

bl_lease_decision_t bl_lease_table_reserve(bl_lease_table_t *table, const bl_lease_request_t *request, uint64_t plan,
                                           const bl_lease_demand_t *demands, size_t demand_count,
                                           bl_lease_answer_t *answer) {
  uint64_t digest = bl_hash64(&plan, sizeof plan, DIGEST_RESERVE);
  for (size_t i = 0; i < demand_count; i++) {
    uint64_t words[2] = {demands[i].bytes, demands[i].count};
    digest = bl_hash64(words, sizeof words, digest);
  }
  uint32_t session;
  bl_request_window_entry_t *entry;
  bl_lease_decision_t decision;
  if (!bl__request_begin(table, request, digest, &session, &entry, &decision, answer)) {
    return decision;
  }
  bl_lease_reason_t reason = reserve(table, session, plan, demands, demand_count, &entry->answer);
  forget_unused_sizes(&table->sessions[session]);
  if (reason == BL_LEASE_GRANTED) {
    return bl__request_done(table, entry, &(bl_lease_answer_t){.reason = BL_LEASE_GRANTED}, answer);
  }
  const bl__job_plan_t *job = &table->jobs[table->holders[table->sessions[session].holder].job];
  entry->answer.free_bytes = bl__granule_bytes(bl__job_free_granules(job));
  entry->answer.arena_bytes = bl__granule_bytes(job->arena_granules);
  entry->answer.largest_free_bytes = bl__granule_bytes(bl__job_largest_run(table, job));
  return bl__request_refuse(table, entry, reason, answer);
}

bl_lease_decision_t bl_lease_table_unreserve(bl_lease_table_t *table, const bl_lease_request_t *request, uint64_t plan,
                                             bl_lease_answer_t *answer) {
  uint64_t digest = bl_hash64(&plan, sizeof plan, DIGEST_UNRESERVE);
  uint32_t index;
  bl_request_window_entry_t *entry;
  bl_lease_decision_t decision;
  if (!bl__request_begin(table, request, digest, &index, &entry, &decision, answer)) {
    return decision;
  }
  bl__session_t *session = &table->sessions[index];
  bl__reservation_t *known = plan != 0 ? find_reservation(session, plan) : NULL;
  if (known == NULL) {
    return bl__request_refuse(table, entry, BL_LEASE_PLAN, answer);
  }
  *known = (bl__reservation_t){0};
  count_wanted(session);
  shrink(table, session);
  return bl__request_done(table, entry, &(bl_lease_answer_t){.reason = BL_LEASE_GRANTED}, answer);
}
