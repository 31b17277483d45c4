// SPDX-License-Identifier: Apache-2.0
// Jobs, their stages, and sessions from open to end.
#include "lease/table_core.h"

#include <string.h>

#define TTL_MAX_NS (UINT64_C(3600) * 1000000000)

const char *bl_session_state_name(bl_session_state_t state) {
  static const char *const names[] = {"none", "alive", "suspect", "over"};
  return (unsigned)state < sizeof names / sizeof names[0] ? names[state] : "unknown";
}

const char *bl_session_end_text(bl_session_end_t end) {
  static const char *const texts[BL_SESSION_ENDS] = {
      "it was closed",
      "it was not renewed in time",
      "a newer incarnation of the stage opened one: sessions open at a time need different pairs of job and stage",
      "it was not renewed and its memory was needed",
      "the memory of the job could not be had",
      "an operator ended it",
  };
  return (unsigned)end < BL_SESSION_ENDS ? texts[end] : "unknown";
}

// ---- jobs and holders -----------------------------------------------------------------------------------------------

// 0: no such job.
static uint32_t find_job(const bl_lease_table_t *table, const char *name, uint64_t plan) {
  for (uint32_t i = 1; i <= table->config.max_jobs; i++) {
    if (table->jobs[i].plan == plan && strcmp(table->jobs[i].name, name) == 0) {
      return i;
    }
  }
  return 0;
}

uint32_t bl__job_make(bl_lease_table_t *table, const char *name, uint64_t plan) {
  uint32_t job = find_job(table, name, plan);
  if (job == 0 && (job = find_job(table, "", 0)) != 0) {
    table->jobs[job] = (bl__job_plan_t){.plan = plan, .quota_bytes = BL_LEASE_NO_QUOTA};
    memcpy(table->jobs[job].name, name, strlen(name) + 1);
  }
  return job;
}

uint64_t bl__job_quota(const bl_lease_table_t *table, uint32_t job) {
  uint32_t all = find_job(table, table->jobs[job].name, 0);
  return all != 0 ? table->jobs[all].quota_bytes : BL_LEASE_NO_QUOTA;
}

uint64_t bl__stage_quota(const bl_lease_table_t *table, uint32_t job, uint32_t stage) {
  uint32_t all = find_job(table, table->jobs[job].name, 0);
  for (uint32_t i = all != 0 ? table->jobs[all].holders : 0; i != 0; i = table->holders[i].next) {
    if (table->holders[i].stage == stage) {
      return table->holders[i].quota_bytes;
    }
  }
  return BL_LEASE_NO_QUOTA;
}

uint32_t bl__job_charge(const bl_lease_table_t *table, const char *name, int tier) {
  uint32_t most = 0, sum = 0;
  for (uint32_t i = 1; i <= table->config.max_jobs; i++) {
    uint32_t granules = strcmp(table->jobs[i].name, name) == 0 ? table->jobs[i].spaces[tier].granules : 0;
    sum += granules;
    most = granules > most ? granules : most;
  }
  return table->config.plans_add ? sum : most;
}

// If no session holds or may take a slot of the job any more, closes its arena; without one frees its record, unless it
// has a quota.
void bl__job_free_if_unused(bl_lease_table_t *table, uint32_t index) {
  bl__job_plan_t *job = &table->jobs[index];
  if (job->sessions != 0 || job->held_bytes != 0) {
    return;
  }
  if (job->arena_granules != 0) {
    table->closes += job->close_queued ? 0 : 1;
    job->close_queued = true; // undone if a session opens first
  } else if (job->holders == 0 && job->quota_bytes == BL_LEASE_NO_QUOTA) {
    job->name[0] = '\0';
    job->plan = 0;
  }
}

uint32_t bl__holder_make(bl_lease_table_t *table, uint32_t job, uint32_t stage) {
  for (uint32_t i = table->jobs[job].holders; i != 0; i = table->holders[i].next) {
    if (table->holders[i].stage == stage) {
      return i;
    }
  }
  uint32_t index = table->unused_holder;
  if (index != 0) {
    table->unused_holder = table->holders[index].next;
    table->holders[index] =
        (bl__holder_t){.job = job, .stage = stage, .next = table->jobs[job].holders, .quota_bytes = BL_LEASE_NO_QUOTA};
    table->jobs[job].holders = index;
  }
  return index;
}

void bl__holder_free_if_unused(bl_lease_table_t *table, uint32_t index) {
  bl__holder_t *holder = &table->holders[index];
  uint32_t job = holder->job;
  if (holder->session == 0 && holder->held_bytes == 0 && holder->quota_bytes == BL_LEASE_NO_QUOTA) {
    uint32_t *link = &table->jobs[job].holders;
    while (*link != index) {
      link = &table->holders[*link].next;
    }
    *link = holder->next;
    *holder = (bl__holder_t){.next = table->unused_holder};
    table->unused_holder = index;
  }
  bl__job_free_if_unused(table, job);
}

// ---- states of a session --------------------------------------------------------------------------------------------

uint32_t bl__session_find(const bl_lease_table_t *table, uint64_t number, const bl_id128_t *key,
                          bl_lease_reason_t *reason) {
  uint32_t index = (uint32_t)number;
  *reason = BL_LEASE_NO_SESSION;
  if (index == 0 || index > table->config.max_sessions || number >> 32 == 0 || number >> 32 > table->last_serial) {
    return 0;
  }
  const bl__session_t *session = &table->sessions[index];
  if (session->number != number || session->state == BL_SESSION_OVER) {
    *reason = BL_LEASE_SESSION_OVER;
    return 0;
  }
  if (!bl_id128_matches(&session->key, key)) {
    *reason = BL_LEASE_BAD_KEY;
    return 0;
  }
  return index;
}

static void set_state(bl_lease_table_t *table, uint32_t index, bl_session_state_t state) {
  bl__session_t *session = &table->sessions[index];
  const bl__holder_t *holder = &table->holders[session->holder];
  bl_journal_append(&table->journal, (bl_journal_event_t){.id = session->number,
                                                          .stage = holder->stage,
                                                          .kind = BL_JOURNAL_SESSION,
                                                          .from = session->state,
                                                          .to = (uint8_t)state});
  table->stats.sessions[session->state]--;
  session->state = (uint8_t)state;
  table->stats.sessions[state]++;
}

static void renew(bl_lease_table_t *table, uint32_t index) {
  bl__session_t *session = &table->sessions[index];
  session->renewed_ns = table->now_ns;
  if (session->state != BL_SESSION_ALIVE) {
    set_state(table, index, BL_SESSION_ALIVE);
  }
  bl_wheel_set(&table->wheel, index, table->now_ns + session->ttl_ns);
}

// Does not free the holder.
static void end_session(bl_lease_table_t *table, uint32_t index, bl_session_end_t end) {
  bl__session_t *session = &table->sessions[index];
  bl_wheel_clear(&table->wheel, index);
  bl__session_slots_end(table, index, session->mapped && end != BL_SESSION_CLOSED);
  set_state(table, index, BL_SESSION_OVER);
  table->stats.ended[end]++;
  session->end = (uint8_t)end;
  session->next = 0;
  if (table->ends.last != 0) {
    table->sessions[table->ends.last].next = index;
  } else {
    table->ends.first = index;
  }
  table->ends.last = index;
  bl__holder_t *holder = &table->holders[session->holder];
  holder->session = 0;
  table->jobs[holder->job].sessions--;
}

void bl__session_end(bl_lease_table_t *table, uint32_t index, bl_session_end_t end) {
  uint32_t holder = table->sessions[index].holder;
  end_session(table, index, end);
  bl__holder_free_if_unused(table, holder);
}

uint32_t bl__session_suspect(const bl_lease_table_t *table, uint32_t job) {
  uint32_t found = 0;
  for (uint32_t i = table->jobs[job].holders; i != 0; i = table->holders[i].next) {
    uint32_t session = table->holders[i].session;
    if (session != 0 && table->sessions[session].state == BL_SESSION_SUSPECT &&
        (found == 0 || table->sessions[session].renewed_ns < table->sessions[found].renewed_ns)) {
      found = session;
    }
  }
  return found;
}

void bl__set_time(bl_lease_table_t *table, uint64_t now_ns) {
  uint64_t now = now_ns > table->now_ns ? now_ns : table->now_ns;
  uint32_t index;
  while ((index = bl_wheel_pop(&table->wheel, now)) != 0) {
    bl__session_t *session = &table->sessions[index];
    table->now_ns = now;
    if (session->state == BL_SESSION_ALIVE) {
      set_state(table, index, BL_SESSION_SUSPECT);
      table->stats.suspected++;
      bl_wheel_set(&table->wheel, index, session->renewed_ns + session->ttl_ns + table->config.grace_ns);
    } else {
      bl__session_end(table, index, BL_SESSION_EXPIRED);
    }
  }
  table->now_ns = now;
}

// ---- open, keep alive, close ----------------------------------------------------------------------------------------

static bool is_name(const char *name) {
  size_t length = name == NULL ? 0 : strnlen(name, BL_LEASE_JOB_BYTES);
  return length > 0 && length < BL_LEASE_JOB_BYTES;
}

// Returns how large the part of this job's arena in a tier may be: it may replace that of another plan.
static uint32_t free_for(const bl_lease_table_t *table, const char *name, int tier) {
  uint32_t free = table->capacity_granules[tier] - table->arena_granules[tier];
  return table->config.plans_add ? free : free + bl__job_charge(table, name, tier);
}

uint64_t bl_lease_table_arena_bytes_max(const bl_lease_table_t *table, const char *name) {
  uint64_t bytes = 0;
  for (int i = 0; i < BL_LEASE_TIERS; i++) {
    bytes += bl__granule_bytes(free_for(table, name, i));
  }
  return bytes;
}

// Divides an arena into its tiers, between slots of `unit` granules if possible. False: it does not fit.
static bool cut_arena(const bl_lease_table_t *table, const char *name, uint32_t granules, uint32_t unit,
                      bool second_tier, uint32_t tiers[BL_LEASE_TIERS]) {
  uint32_t free[BL_LEASE_TIERS];
  for (int i = 0; i < BL_LEASE_TIERS; i++) {
    free[i] = free_for(table, name, i);
  }
  free[0] = second_tier ? 0 : free[0];
  tiers[0] = granules < free[0] ? granules : free[0];
  tiers[1] = 0;
  if (tiers[0] == granules) {
    return true;
  }
  tiers[0] -= tiers[0] % unit;
  // Slots of other sizes end before the boundary.
  uint32_t rest = granules - tiers[0], slack = tiers[0] > 0 ? unit - 1 : 0;
  if (rest > free[1]) {
    return false;
  }
  tiers[1] = slack < free[1] - rest ? rest + slack : free[1];
  return true;
}

static bool open_spaces(bl_lease_table_t *table, bl__job_plan_t *job, const uint32_t tiers[BL_LEASE_TIERS]) {
  for (int i = 0; i < BL_LEASE_TIERS; i++) {
    if (tiers[i] > 0 && !bl_extent_space_open(&table->extents, &job->spaces[i], tiers[i])) {
      if (i > 0 && tiers[0] > 0) {
        bl_extent_space_close(&table->extents, &job->spaces[0]);
      }
      memset(job->spaces, 0, sizeof job->spaces);
      return false;
    }
  }
  return true;
}

// Reserves the memory for the job's arena, or returns why it cannot.
static bl_lease_reason_t allocate_arena(bl_lease_table_t *table, bl__job_plan_t *job, const bl_lease_open_t *open,
                                        bool *needed) {
  uint64_t bytes = open->arena_bytes;
  *needed = false;
  uint32_t granules = bl__granules(bytes);
  if (job->arena_granules != 0) {
    return bytes != 0 && (granules == 0 || granules > job->arena_granules) ? BL_LEASE_ARENA : BL_LEASE_GRANTED;
  }
  if (granules == 0) {
    return bytes == 0 ? BL_LEASE_NO_SIZE : BL_LEASE_CAPACITY;
  }
  uint32_t unit = bl__granules(open->unit_bytes), tiers[BL_LEASE_TIERS], charges[BL_LEASE_TIERS];
  for (int i = 0; i < BL_LEASE_TIERS; i++) {
    charges[i] = bl__job_charge(table, job->name, i);
  }
  if (!cut_arena(table, job->name, granules, unit == 0 ? 1 : unit, open->second_tier, tiers)) {
    return BL_LEASE_CAPACITY;
  }
  if (!open_spaces(table, job, tiers)) {
    return BL_LEASE_TABLE_FULL;
  }
  job->arena_made = false;
  for (int i = 0; i < BL_LEASE_TIERS; i++) {
    job->arena_granules += tiers[i];
    table->arena_granules[i] += bl__job_charge(table, job->name, i) - charges[i];
  }
  *needed = true;
  return BL_LEASE_GRANTED;
}

bool bl_lease_table_arena_follows(const bl_lease_table_t *table, uint32_t job_index) {
  const uint32_t job = job_index + 1;
  bool found = false;
  for (uint32_t i = 1; i <= table->config.max_jobs; i++) {
    found = found ||
            (i != job && table->jobs[i].arena_granules != 0 && strcmp(table->jobs[i].name, table->jobs[job].name) == 0);
  }
  return found;
}

static void fill_opened(const bl_lease_table_t *table, uint32_t index, bool arena_needed, bl_lease_opened_t *opened) {
  const bl__session_t *session = &table->sessions[index];
  uint32_t job = table->holders[session->holder].job;
  *opened = (bl_lease_opened_t){.session = session->number,
                                .key = session->key,
                                .ttl_ns = session->ttl_ns,
                                .grace_ns = table->config.grace_ns,
                                .flow_bytes = table->config.session_flow_bytes,
                                .job = job - 1,
                                .arena_bytes = bl__granule_bytes(table->jobs[job].arena_granules),
                                .arena_needed = arena_needed,
                                .arena_follows = arena_needed && bl_lease_table_arena_follows(table, job - 1)};
  for (int i = 0; i < BL_LEASE_TIERS; i++) {
    opened->tier_bytes[i] = bl__granule_bytes(table->jobs[job].spaces[i].granules);
  }
}

bool bl_lease_table_opened(const bl_lease_table_t *table, uint64_t number, bl_lease_opened_t *opened) {
  uint32_t index = (uint32_t)number;
  if (index == 0 || index > table->config.max_sessions || table->sessions[index].number != number ||
      table->sessions[index].state == BL_SESSION_OVER) {
    return false;
  }
  fill_opened(table, index, false, opened);
  return true;
}

// A longer time would let a dead holder keep its memory as good as for ever.
static uint64_t ttl_of(const bl_lease_config_t *config, uint64_t asked_ns) {
  const uint64_t most = config->ttl_ns > TTL_MAX_NS ? config->ttl_ns : TTL_MAX_NS;
  const uint64_t ttl_ns = asked_ns == 0 ? config->ttl_ns : asked_ns < most ? asked_ns : most;
  return ttl_ns > config->ttl_floor_ns ? ttl_ns : config->ttl_floor_ns;
}

static void start_session(bl_lease_table_t *table, uint32_t holder, const bl_lease_open_t *open) {
  uint32_t index = table->unused_session;
  bl__session_t *session = &table->sessions[index];
  table->unused_session = session->next;
  bl_request_window_t window = session->window;
  *session = (bl__session_t){.number = ++table->last_serial << 32 | index,
                             .process = open->process,
                             .incarnation = open->holder,
                             .key = open->key,
                             .ttl_ns = ttl_of(&table->config, open->ttl_ns),
                             .holder = holder,
                             .window = window};
  bl_request_window_reset(&session->window);
  table->holders[holder].session = index;
  table->jobs[table->holders[holder].job].sessions++;
  table->stats.sessions[BL_SESSION_NONE]++; // set_state undoes this
  renew(table, index);
}

// Another process has this stage now: ends the sessions that the previous one had for other plans.
static void end_predecessors(bl_lease_table_t *table, uint32_t job, const bl_lease_open_t *open) {
  for (uint32_t i = 1; i <= table->config.max_jobs; i++) {
    uint32_t holder = i != job && strcmp(table->jobs[i].name, open->job) == 0 ? table->jobs[i].holders : 0;
    while (holder != 0 && (table->holders[holder].stage != open->stage || table->holders[holder].session == 0)) {
      holder = table->holders[holder].next;
    }
    uint32_t session = holder != 0 ? table->holders[holder].session : 0;
    if (session != 0 && table->sessions[session].process != open->process) {
      bl__session_end(table, session, BL_SESSION_REPLACED);
    }
  }
}

bl_lease_decision_t bl_lease_table_open(bl_lease_table_t *table, const bl_lease_open_t *open, uint64_t now_ns,
                                        bl_lease_opened_t *opened, bl_lease_answer_t *answer) {
  bl__set_time(table, now_ns);
  *answer = (bl_lease_answer_t){0};
  if (!is_name(open->job)) {
    return bl__refuse(table, BL_LEASE_BAD_REQUEST, answer);
  }
  uint32_t job = find_job(table, open->job, open->plan);
  for (uint32_t i = job == 0 ? 0 : table->jobs[job].holders; i != 0; i = table->holders[i].next) {
    uint32_t session = table->holders[i].session;
    if (table->holders[i].stage == open->stage && session != 0 &&
        bl_id128_matches(&table->sessions[session].incarnation, &open->holder)) {
      renew(table, session);
      fill_opened(table, session, false, opened);
      *answer = (bl_lease_answer_t){.reason = BL_LEASE_GRANTED};
      return BL_LEASE_DONE;
    }
  }
  if (table->draining) {
    return bl__refuse(table, BL_LEASE_DRAINING, answer);
  }
  uint32_t holder = 0;
  if (table->unused_session != 0 && (job = bl__job_make(table, open->job, open->plan)) != 0) {
    holder = bl__holder_make(table, job, open->stage);
  }
  if (holder == 0) {
    if (job != 0) {
      bl__job_free_if_unused(table, job);
    }
    return bl__refuse(table, BL_LEASE_TABLE_FULL, answer);
  }
  bool needed;
  bl_lease_reason_t reason = allocate_arena(table, &table->jobs[job], open, &needed);
  if (reason != BL_LEASE_GRANTED) {
    for (int i = 0; i < BL_LEASE_TIERS; i++) {
      answer->free_bytes += bl__granule_bytes(free_for(table, open->job, i));
    }
    answer->largest_free_bytes = answer->free_bytes;
    answer->arena_bytes = bl__granule_bytes(table->jobs[job].arena_granules);
    answer->bytes = open->arena_bytes;
    bl__holder_free_if_unused(table, holder);
    return bl__refuse(table, reason, answer);
  }
  table->closes -= table->jobs[job].close_queued ? 1 : 0;
  table->jobs[job].close_queued = false;
  if (table->holders[holder].session != 0) {
    end_session(table, table->holders[holder].session, BL_SESSION_REPLACED);
  }
  start_session(table, holder, open);
  end_predecessors(table, job, open);
  fill_opened(table, table->holders[holder].session, needed, opened);
  *answer = (bl_lease_answer_t){.reason = BL_LEASE_GRANTED};
  return BL_LEASE_DONE;
}

void bl_lease_table_arena_made(bl_lease_table_t *table, uint32_t job_index, bool well) {
  bl__job_plan_t *job = &table->jobs[job_index + 1];
  job->arena_made = well && job->arena_granules != 0;
  for (uint32_t i = job->holders; !well && i != 0;) {
    uint32_t next = table->holders[i].next;
    if (table->holders[i].session != 0) {
      bl__session_end(table, table->holders[i].session, BL_SESSION_NO_ARENA);
    }
    i = next;
  }
}

void bl_lease_table_set_mapped(bl_lease_table_t *table, uint64_t number) {
  bl_lease_opened_t opened;
  if (bl_lease_table_opened(table, number, &opened)) {
    table->sessions[(uint32_t)number].mapped = true;
  }
}

bl_lease_decision_t bl_lease_table_keep_alive(bl_lease_table_t *table, uint64_t number, const bl_id128_t *key,
                                              uint64_t now_ns, bl_lease_answer_t *answer) {
  bl__set_time(table, now_ns);
  *answer = (bl_lease_answer_t){0};
  bl_lease_reason_t reason;
  uint32_t session = bl__session_find(table, number, key, &reason);
  if (session == 0) {
    return bl__refuse(table, reason, answer);
  }
  renew(table, session);
  *answer = (bl_lease_answer_t){.reason = BL_LEASE_GRANTED};
  return BL_LEASE_DONE;
}

bl_lease_decision_t bl_lease_table_close(bl_lease_table_t *table, uint64_t number, const bl_id128_t *key,
                                         uint64_t now_ns, bl_lease_answer_t *answer) {
  bl__set_time(table, now_ns);
  *answer = (bl_lease_answer_t){0};
  bl_lease_reason_t reason;
  uint32_t session = bl__session_find(table, number, key, &reason);
  if (session == 0) {
    return bl__refuse(table, reason, answer);
  }
  bl__session_end(table, session, BL_SESSION_CLOSED);
  *answer = (bl_lease_answer_t){.reason = BL_LEASE_GRANTED};
  return BL_LEASE_DONE;
}
