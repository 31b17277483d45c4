// SPDX-License-Identifier: Apache-2.0
#include "lease/model.h"

#include "lease/wheel.h"

#include <string.h>

void model_init(model_t *model, const bl_lease_config_t *config, uint64_t now_ns) {
  memset(model, 0, sizeof *model);
  model->config = *config;
  model->now_ns = now_ns;
  for (int i = 0; i < MODEL_JOBS; i++) {
    model->jobs[i].quota_bytes = BL_LEASE_NO_QUOTA;
    for (int j = 0; j < MODEL_STAGES; j++) {
      model->jobs[i].stage_quota_bytes[j] = BL_LEASE_NO_QUOTA;
    }
  }
}

int model_name(int job) {
  return job % MODEL_NAMES;
}

uint32_t model_charge(const model_t *model, int job) {
  uint32_t most = 0;
  for (int i = 0; i < MODEL_JOBS; i++) {
    uint32_t granules = model->jobs[i].granules;
    most = model_name(i) == model_name(job) && granules > most ? granules : most;
  }
  return most;
}

// ---- slots ----------------------------------------------------------------------------------------------------------

static bool has_memory(const model_lease_t *lease) {
  return lease->state != BL_LEASE_FREE && lease->state != BL_LEASE_LOST;
}

static bool is_held(const model_lease_t *lease) {
  return has_memory(lease) && !(lease->state == BL_LEASE_QUARANTINED && lease->then != MODEL_THEN_RESERVED);
}

uint64_t model_held_bytes(const model_t *model, int job, int stage) {
  uint64_t granules = 0;
  for (int i = 1; i <= MODEL_LEASES; i++) {
    const model_lease_t *lease = &model->leases[i];
    if (has_memory(lease) && lease->job == job && (stage < 0 || lease->stage == stage)) {
      granules += lease->granules;
    }
  }
  return granules * BL_LEASE_GRANULE_BYTES;
}

uint32_t model_slots(const model_t *model, uint64_t session, uint32_t granules) {
  uint32_t slots = 0;
  for (int i = 1; i <= MODEL_LEASES; i++) {
    const model_lease_t *lease = &model->leases[i];
    slots += is_held(lease) && lease->session == session && lease->granules == granules ? 1 : 0;
  }
  return slots;
}

uint32_t model_wanted(const model_session_t *session, uint32_t granules) {
  uint32_t most = 0;
  for (int i = 0; i < BL_LEASE_PLANS; i++) {
    const model_plan_t *plan = &session->plans[i];
    most = plan->version != 0 && plan->counts[granules] > most ? plan->counts[granules] : most;
  }
  return most;
}

uint64_t model_in_flight_bytes(const model_t *model, uint64_t session) {
  uint64_t bytes = 0;
  for (int i = 1; i <= MODEL_LEASES; i++) {
    const model_lease_t *lease = &model->leases[i];
    bool flying = lease->state == BL_LEASE_WRITING || lease->state == BL_LEASE_LOADING;
    bytes += flying && lease->session == session ? lease->bytes : 0;
  }
  return bytes;
}

static void fill_map(const model_t *model, int job, bool taken[MODEL_GRANULES]) {
  memset(taken, 0, MODEL_GRANULES * sizeof *taken);
  for (int i = 1; i <= MODEL_LEASES; i++) {
    const model_lease_t *lease = &model->leases[i];
    if (has_memory(lease) && lease->job == job) {
      memset(taken + lease->offset, 1, lease->granules);
    }
  }
}

uint32_t model_free_granules(const model_t *model, int job, uint32_t *longest) {
  bool taken[MODEL_GRANULES];
  fill_map(model, job, taken);
  uint32_t free = 0, run = 0;
  *longest = 0;
  for (uint32_t i = 0; i < model->jobs[job].granules; i++) {
    run = taken[i] ? 0 : run + 1;
    free += taken[i] ? 0 : 1;
    *longest = run > *longest ? run : *longest;
  }
  return free;
}

// Whether `count` slots of one size fit, best fit, one after the other.
static bool fits(const model_t *model, int job, uint32_t granules, uint32_t count) {
  bool taken[MODEL_GRANULES];
  fill_map(model, job, taken);
  for (; count > 0; count--) {
    uint32_t best = 0, best_run = UINT32_MAX, end = model->jobs[job].granules;
    for (uint32_t i = 0; i < end;) {
      uint32_t run = 0;
      while (i + run < end && !taken[i + run]) {
        run++;
      }
      if (run >= granules && run < best_run) {
        best = i;
        best_run = run;
      }
      i += run + 1;
    }
    if (best_run == UINT32_MAX) {
      return false;
    }
    memset(taken + best, 1, granules);
  }
  return true;
}

static void drop(model_lease_t *lease) {
  *lease = (model_lease_t){.generation = lease->generation};
}

static void next_use(model_lease_t *lease) {
  lease->generation++;
  lease->bytes = lease->checksum = 0;
}

static void drop_surplus(model_t *model, uint32_t id) {
  model_lease_t *lease = &model->leases[id];
  const model_session_t *session = model_session(model, lease->session);
  if (model_slots(model, lease->session, lease->granules) > model_wanted(session, lease->granules)) {
    drop(lease);
  }
}

void model_over(model_t *model, uint32_t id) {
  model_lease_t *lease = &model->leases[id];
  next_use(lease);
  if (lease->moving) {
    lease->state = BL_LEASE_QUARANTINED;
    lease->then = MODEL_THEN_RESERVED;
    return;
  }
  lease->state = BL_LEASE_RESERVED;
  drop_surplus(model, id);
}

void model_lose(model_t *model, uint32_t id) {
  model_lease_t *lease = &model->leases[id];
  lease->state = lease->moving ? BL_LEASE_QUARANTINED : BL_LEASE_LOST;
  lease->then = MODEL_THEN_LOST;
}

// ---- sessions -------------------------------------------------------------------------------------------------------

model_session_t *model_session(model_t *model, uint64_t number) {
  for (int i = 0; i < MODEL_SESSIONS; i++) {
    if (number != 0 && model->sessions[i].number == number) {
      return &model->sessions[i];
    }
  }
  return NULL;
}

void model_close_idle_job(model_t *model, int job) {
  model_job_t *entry = &model->jobs[job];
  for (int i = 0; i < MODEL_SESSIONS; i++) {
    if (model->sessions[i].number != 0 && model->sessions[i].job == job) {
      return;
    }
  }
  if (entry->granules != 0 && model_held_bytes(model, job, -1) == 0) {
    entry->granules = 0;
    entry->made = false;
    model->closes_due++;
  }
}

void model_end_session(model_t *model, model_session_t *session) {
  for (int i = 1; i <= MODEL_LEASES; i++) {
    model_lease_t *lease = &model->leases[i];
    if (lease->state == BL_LEASE_FREE || lease->session != session->number) {
      continue;
    }
    if (!lease->moving) {
      drop(lease);
      continue;
    }
    next_use(lease);
    lease->state = BL_LEASE_QUARANTINED;
    lease->then = MODEL_THEN_FREE;
    lease->session = lease->waiting = 0;
  }
  model->ends_due++;
  *session = (model_session_t){.number = 0, .job = session->job};
}

static bool is_past(const model_t *model, uint64_t deadline_ns) {
  uint64_t tick = (deadline_ns + BL_WHEEL_TICK_NS - 1) / BL_WHEEL_TICK_NS;
  return model->now_ns / BL_WHEEL_TICK_NS >= tick;
}

void model_set_time(model_t *model, uint64_t now_ns) {
  model->now_ns = now_ns;
  for (int i = 0; i < MODEL_SESSIONS; i++) {
    model_session_t *session = &model->sessions[i];
    if (session->number == 0) {
      continue;
    }
    session->suspect = is_past(model, session->renewed_ns + session->ttl_ns);
    if (is_past(model, session->renewed_ns + session->ttl_ns + model->config.grace_ns)) {
      model_end_session(model, session);
      model_close_idle_job(model, session->job);
    }
  }
}

// ---- reservations ---------------------------------------------------------------------------------------------------

static bl_lease_reason_t admit(model_t *model, const model_session_t *session, bool *exact) {
  const model_job_t *job = &model->jobs[model_name(session->job)]; // for its quotas
  uint64_t granules = 0, slots = 0;
  uint32_t longest = 0, sizes = 0, size = 0;
  for (uint32_t i = 1; i <= MODEL_GRANULES; i++) {
    uint32_t held = model_slots(model, session->number, i), wanted = model_wanted(session, i);
    if (wanted > held) {
      slots += wanted - held;
      granules += (uint64_t)i * (wanted - held);
      longest = size = i;
      sizes++;
    }
  }
  if (slots == 0) {
    return BL_LEASE_GRANTED;
  }
  uint64_t bytes = granules * BL_LEASE_GRANULE_BYTES;
  uint64_t held = model_held_bytes(model, session->job, -1);
  uint64_t stage_held = model_held_bytes(model, session->job, session->stage);
  if (held + bytes > job->quota_bytes) {
    return BL_LEASE_JOB_QUOTA;
  }
  if (stage_held + bytes > job->stage_quota_bytes[session->stage]) {
    return BL_LEASE_STAGE_QUOTA;
  }
  uint32_t unused = 0, longest_free;
  for (int i = 1; i <= MODEL_LEASES; i++) {
    unused += model->leases[i].state == BL_LEASE_FREE ? 1 : 0;
  }
  if (slots > unused) {
    return BL_LEASE_TABLE_FULL;
  }
  uint32_t free = model_free_granules(model, session->job, &longest_free);
  if (granules > free || longest > longest_free) {
    return BL_LEASE_SPACE;
  }
  if (sizes > 1) {
    *exact = false; // depends on the order in which sizes are placed
    return BL_LEASE_GRANTED;
  }
  return fits(model, session->job, size, (uint32_t)slots) ? BL_LEASE_GRANTED : BL_LEASE_SPACE;
}

static model_session_t *oldest_suspect(model_t *model, int job) {
  model_session_t *found = NULL;
  for (int i = 0; i < MODEL_SESSIONS; i++) {
    model_session_t *session = &model->sessions[i];
    if (session->number != 0 && session->job == job && session->suspect &&
        (found == NULL || session->renewed_ns < found->renewed_ns)) {
      found = session;
    }
  }
  return found;
}

bl_lease_reason_t model_reserve(model_t *model, model_session_t *session, uint64_t version,
                                const bl_lease_demand_t *demands, size_t count, bool *exact) {
  *exact = true;
  const model_job_t *job = &model->jobs[session->job];
  if (session->suspect) {
    return BL_LEASE_SUSPECT;
  }
  if (model->draining) {
    return BL_LEASE_DRAINING;
  }
  if (!job->made) {
    return BL_LEASE_NO_ARENA;
  }
  if (version == 0 || count == 0) {
    return BL_LEASE_BAD_REQUEST;
  }
  model_plan_t plan = {.version = version};
  uint64_t granules = 0;
  for (size_t i = 0; i < count; i++) {
    uint64_t slot = (demands[i].bytes + BL_LEASE_GRANULE_BYTES - 1) / BL_LEASE_GRANULE_BYTES;
    if (slot == 0 || demands[i].count == 0) {
      return BL_LEASE_BAD_BYTES;
    }
    if (slot > job->granules) {
      return BL_LEASE_BEYOND;
    }
    plan.counts[slot] += demands[i].count;
    granules += slot * demands[i].count;
  }
  if (granules > job->granules) {
    return BL_LEASE_BEYOND;
  }
  model_plan_t *entry = NULL;
  for (int i = BL_LEASE_PLANS - 1; i >= 0; i--) {
    if (session->plans[i].version == version) {
      bool same = memcmp(session->plans[i].counts, plan.counts, sizeof plan.counts) == 0;
      return same ? BL_LEASE_GRANTED : BL_LEASE_PLAN;
    }
    entry = session->plans[i].version == 0 ? &session->plans[i] : entry;
  }
  if (entry == NULL) {
    return BL_LEASE_LIMITS;
  }
  *entry = plan;
  for (;;) {
    bl_lease_reason_t reason = admit(model, session, exact);
    bool for_memory = reason == BL_LEASE_SPACE || reason == BL_LEASE_JOB_QUOTA;
    model_session_t *suspect = for_memory ? oldest_suspect(model, session->job) : NULL;
    if (suspect == NULL) {
      if (reason != BL_LEASE_GRANTED) {
        *entry = (model_plan_t){0};
      }
      return reason;
    }
    model_end_session(model, suspect);
  }
}
