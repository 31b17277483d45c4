// SPDX-License-Identifier: Apache-2.0
// Creation, time, and the actions for the shell.
#include "lease/table_core.h"

#include <stdlib.h>

#define NS_PER_MS UINT64_C(1000000)
#define NS_PER_S  UINT64_C(1000000000)

// Retry times that refusals suggest: credit and window return with the answers in flight, space when a slot is
// released.
#define RETRY_FLOW_MS  10
#define RETRY_SPACE_MS 1000

static const bl_lease_config_t defaults = {
    .window = 64, .history = 4096, .ttl_ns = 10 * NS_PER_S, .ttl_floor_ns = 2 * NS_PER_S};

static void complete(bl_lease_config_t *config) {
  config->window = config->window != 0 ? config->window : defaults.window;
  config->history = config->history != 0 ? config->history : defaults.history;
  config->ttl_floor_ns = config->ttl_floor_ns != 0 ? config->ttl_floor_ns : defaults.ttl_floor_ns;
  config->ttl_ns = config->ttl_ns != 0 ? config->ttl_ns : defaults.ttl_ns;
  config->grace_ns = config->grace_ns != 0 ? config->grace_ns : config->ttl_ns;
}

static void *take(bl_lease_table_t *table, uint64_t count, uint64_t bytes) {
  table->bytes += count * bytes;
  return calloc(count, bytes);
}

static void link_unused(bl_lease_table_t *table) {
  const bl_lease_config_t *config = &table->config;
  for (uint32_t i = config->max_sessions; i > 0; i--) {
    table->sessions[i].window = (bl_request_window_t){.entries = &table->entries[(uint64_t)(i - 1) * config->window],
                                                      .capacity = config->window};
    table->sessions[i].next = table->unused_session;
    table->unused_session = i;
  }
  for (uint32_t i = table->max_holders; i > 0; i--) {
    table->holders[i].next = table->unused_holder;
    table->unused_holder = i;
  }
  table->unused_lease = table->linked_leases = 1;
  table->unused_leases = config->max_leases;
}

bl_status_t bl_lease_table_create(const bl_lease_config_t *given, uint64_t now_ns, bl_lease_table_t **out,
                                  bl_error_t *err) {
  if (given->max_jobs == 0 || given->max_sessions == 0 || given->max_leases == 0 ||
      given->max_leases > UINT32_MAX / 4 || given->max_sessions > UINT32_MAX / 4 || given->max_jobs > UINT32_MAX / 4 ||
      given->capacity_bytes < BL_LEASE_GRANULE_BYTES) {
    return bl_error_set(err, BL_INVALID,
                        "a lease table needs room for a job, a session and a lease, and memory of at least %u bytes",
                        BL_LEASE_GRANULE_BYTES);
  }
  bl_lease_table_t *table = calloc(1, sizeof *table);
  if (table == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for a lease table");
  }
  table->bytes = sizeof *table;
  table->config = *given;
  complete(&table->config);
  const bl_lease_config_t *config = &table->config;
  table->now_ns = now_ns;
  table->max_holders = 2 * config->max_sessions;
  const uint64_t capacities[BL_LEASE_TIERS] = {config->capacity_bytes, config->spill_bytes};
  for (int i = 0; i < BL_LEASE_TIERS; i++) { // so that the sum of both has 32 bits
    uint64_t capacity = capacities[i] / BL_LEASE_GRANULE_BYTES;
    table->capacity_granules[i] = capacity < UINT32_MAX / 2 ? (uint32_t)capacity : UINT32_MAX / 2;
  }
  table->leases = take(table, (uint64_t)config->max_leases + 1, sizeof *table->leases);
  table->sessions = take(table, (uint64_t)config->max_sessions + 1, sizeof *table->sessions);
  table->holders = take(table, (uint64_t)table->max_holders + 1, sizeof *table->holders);
  table->jobs = take(table, (uint64_t)config->max_jobs + 1, sizeof *table->jobs);
  table->entries = take(table, (uint64_t)config->max_sessions * config->window, sizeof *table->entries);
  uint32_t extents = 2 * config->max_leases + BL_LEASE_TIERS * config->max_jobs;
  table->bytes += (uint64_t)extents * sizeof(bl_extent_node_t) +
                  (uint64_t)config->history * sizeof(bl_journal_event_t) +
                  (uint64_t)config->max_sessions * sizeof(bl_wheel_timer_t);
  bool complete = table->leases != NULL && table->sessions != NULL && table->holders != NULL && table->jobs != NULL &&
                  table->entries != NULL;
  complete = complete && bl_extents_init(&table->extents, extents) == BL_OK;
  complete = complete && bl_journal_init(&table->journal, config->history) == BL_OK;
  complete = complete && bl_wheel_init(&table->wheel, config->max_sessions, now_ns) == BL_OK;
  if (!complete) {
    bl_lease_table_destroy(table);
    return bl_error_set(err, BL_EXHAUSTED, "no memory for a lease table of %u leases and %u sessions",
                        given->max_leases, given->max_sessions);
  }
  link_unused(table);
  table->stats.leases[BL_LEASE_FREE] = config->max_leases;
  *out = table;
  return BL_OK;
}

void bl_lease_table_destroy(bl_lease_table_t *table) {
  if (table == NULL) {
    return;
  }
  bl_wheel_cleanup(&table->wheel);
  bl_journal_cleanup(&table->journal);
  bl_extents_cleanup(&table->extents);
  free(table->entries);
  free(table->jobs);
  free(table->holders);
  free(table->sessions);
  free(table->leases);
  free(table);
}

uint64_t bl_lease_table_bytes(const bl_lease_table_t *table) {
  return table->bytes;
}

uint32_t bl__granules(uint64_t bytes) {
  uint64_t granules = bytes / BL_LEASE_GRANULE_BYTES + (bytes % BL_LEASE_GRANULE_BYTES != 0 ? 1 : 0);
  return granules < UINT32_MAX ? (uint32_t)granules : 0;
}

uint32_t bl__job_free_granules(const bl__job_plan_t *job) {
  return job->spaces[0].free_granules + job->spaces[1].free_granules;
}

uint32_t bl__job_largest_run(const bl_lease_table_t *table, const bl__job_plan_t *job) {
  uint32_t largest = 0;
  for (int i = 0; i < BL_LEASE_TIERS; i++) {
    uint32_t of_tier = job->spaces[i].granules > 0 ? bl_extent_largest(&table->extents, &job->spaces[i]) : 0;
    largest = of_tier > largest ? of_tier : largest;
  }
  return largest;
}

uint64_t bl__slot_offset(const bl_lease_table_t *table, const bl__lease_t *lease) {
  const bl__job_plan_t *job = &table->jobs[table->holders[lease->holder].job];
  return bl__granule_bytes(bl_extent_offset(&table->extents, lease->extent)) +
         (lease->tier > 0 ? bl__granule_bytes(job->spaces[0].granules) : 0);
}

bl_lease_decision_t bl__refuse(bl_lease_table_t *table, bl_lease_reason_t reason, bl_lease_answer_t *answer) {
  table->stats.refused[reason]++;
  answer->reason = reason;
  answer->retry_after_ms = 0;
  if (reason == BL_LEASE_CREDIT || reason == BL_LEASE_WINDOW || reason == BL_LEASE_NO_ARENA ||
      reason == BL_LEASE_SUSPECT) {
    answer->retry_after_ms = RETRY_FLOW_MS;
  } else if (bl_status_retryable(bl_lease_reason_status(reason))) {
    answer->retry_after_ms = RETRY_SPACE_MS;
  }
  return BL_LEASE_DONE;
}

void bl_lease_table_advance(bl_lease_table_t *table, uint64_t now_ns) {
  bl__set_time(table, now_ns);
}

uint64_t bl_lease_table_next_deadline_ns(const bl_lease_table_t *table) {
  return bl_wheel_next_ns(&table->wheel);
}

// ---- actions --------------------------------------------------------------------------------------------------------

static bool next_answer(bl_lease_table_t *table, bl_lease_action_t *action) {
  while (table->answers.first != 0) {
    uint32_t index = table->answers.first - 1;
    bl_request_window_entry_t *entry = &table->entries[index];
    table->answers.first = entry->next_queued;
    table->answers.last = table->answers.first != 0 ? table->answers.last : 0;
    entry->queued = false;
    if (entry->sequence != 0 && entry->done) {
      const bl__session_t *session = &table->sessions[index / table->config.window + 1];
      *action = (bl_lease_action_t){
          .kind = BL_LEASE_ANSWER, .session = session->number, .sequence = entry->sequence, .answer = entry->answer};
      return true;
    }
  }
  return false;
}

static bool next_cancel(bl_lease_table_t *table, bl_lease_action_t *action) {
  while (table->cancels.first != 0) {
    uint32_t index = table->cancels.first;
    bl__lease_t *lease = &table->leases[index];
    table->cancels.first = lease->next_cancel;
    table->cancels.last = table->cancels.first != 0 ? table->cancels.last : 0;
    lease->cancel_queued = false;
    if (lease->moving && lease->state == BL_LEASE_QUARANTINED) {
      *action = (bl_lease_action_t){.kind = BL_LEASE_CANCEL_TRANSFER, .id = index, .generation = lease->transfer};
      return true;
    }
  }
  return false;
}

static bool next_end(bl_lease_table_t *table, bl_lease_action_t *action) {
  uint32_t index = table->ends.first;
  if (index == 0) {
    return false;
  }
  bl__session_t *session = &table->sessions[index];
  table->ends.first = session->next;
  table->ends.last = table->ends.first != 0 ? table->ends.last : 0;
  *action = (bl_lease_action_t){
      .kind = BL_LEASE_END_SESSION, .session = session->number, .end = (bl_session_end_t)session->end};
  table->stats.sessions[BL_SESSION_OVER]--;
  bl_request_window_t window = session->window;
  *session = (bl__session_t){.window = window, .next = table->unused_session};
  bl_request_window_reset(&session->window);
  table->unused_session = index;
  return true;
}

static bool next_close(bl_lease_table_t *table, bl_lease_action_t *action) {
  if (table->closes == 0) {
    return false;
  }
  uint32_t index = 1;
  while (!table->jobs[index].close_queued) {
    index++;
  }
  bl__job_plan_t *job = &table->jobs[index];
  table->closes--;
  job->close_queued = job->arena_made = false;
  job->arena_granules = 0;
  for (int i = 0; i < BL_LEASE_TIERS; i++) {
    if (job->spaces[i].granules > 0) {
      table->arena_granules[i] -= bl__job_charge(table, job->name, i);
      bl_extent_space_close(&table->extents, &job->spaces[i]);
      job->spaces[i] = (bl_extent_space_t){0};
      table->arena_granules[i] += bl__job_charge(table, job->name, i);
    }
  }
  *action = (bl_lease_action_t){.kind = BL_LEASE_CLOSE_ARENA, .job = index - 1};
  bl__job_free_if_unused(table, index);
  return true;
}

bool bl_lease_table_next_action(bl_lease_table_t *table, bl_lease_action_t *action) {
  // Answers first: they refer to the record of their session, which is freed with its end.
  return next_answer(table, action) || next_cancel(table, action) || next_end(table, action) ||
         next_close(table, action);
}
