// SPDX-License-Identifier: Apache-2.0
// Slots and the states of their leases: lists, counts, bytes held, history.
#include "lease/table_core.h"

static bl__job_plan_t *job_of(bl_lease_table_t *table, const bl__lease_t *lease) {
  return &table->jobs[table->holders[lease->holder].job];
}

// ---- lists of a session ---------------------------------------------------------------------------------------------

static uint32_t *list_of(bl_lease_table_t *table, const bl__lease_t *lease) {
  bl__size_class_t *size = &table->sessions[lease->session].sizes[lease->size];
  return lease->state == BL_LEASE_RESERVED ? &size->idle : &size->busy;
}

static void unlink_lease(bl_lease_table_t *table, uint32_t index) {
  bl__lease_t *lease = &table->leases[index];
  if (lease->previous != 0) {
    table->leases[lease->previous].next = lease->next;
  } else {
    *list_of(table, lease) = lease->next;
  }
  if (lease->next != 0) {
    table->leases[lease->next].previous = lease->previous;
  }
  lease->next = lease->previous = 0;
}

static void link_lease(bl_lease_table_t *table, uint32_t index) {
  bl__lease_t *lease = &table->leases[index];
  uint32_t *list = list_of(table, lease);
  lease->next = *list;
  lease->previous = 0;
  if (*list != 0) {
    table->leases[*list].previous = index;
  }
  *list = index;
}

// ---- states ---------------------------------------------------------------------------------------------------------

static bool is_in_flight(bl_lease_state_t state) {
  return state == BL_LEASE_WRITING || state == BL_LEASE_LOADING;
}

// Returns whether a lease in this state, of a live session, counts as one of the slots it holds.
static bool is_held(const bl__lease_t *lease, bl_lease_state_t state) {
  return state != BL_LEASE_FREE && state != BL_LEASE_LOST &&
         !(state == BL_LEASE_QUARANTINED && lease->after != BL__AFTER_RESERVED);
}

void bl__lease_set(bl_lease_table_t *table, uint32_t index, bl_lease_state_t state) {
  bl__lease_t *lease = &table->leases[index];
  bl__session_t *session = lease->session != 0 ? &table->sessions[lease->session] : NULL;
  bl_lease_state_t from = (bl_lease_state_t)lease->state;
  uint64_t slot_bytes = lease->extent != 0 ? bl__granule_bytes(bl_extent_granules(&table->extents, lease->extent)) : 0;
  if (session != NULL) {
    if (from != BL_LEASE_FREE) {
      unlink_lease(table, index);
    }
    session->sizes[lease->size].held -= is_held(lease, from) ? 1 : 0;
    session->in_flight_bytes -= is_in_flight(from) ? lease->bytes : 0;
  }
  table->stats.in_flight_bytes -= is_in_flight(from) ? lease->bytes : 0;
  table->stats.quarantined_bytes -= from == BL_LEASE_QUARANTINED ? slot_bytes : 0;
  table->stats.leases[from]--;
  lease->state = (uint8_t)state;
  lease->since_ns = table->now_ns;
  table->stats.leases[state]++;
  table->stats.quarantined_bytes += state == BL_LEASE_QUARANTINED ? slot_bytes : 0;
  table->stats.in_flight_bytes += is_in_flight(state) ? lease->bytes : 0;
  if (session != NULL) {
    session->sizes[lease->size].held += is_held(lease, state) ? 1 : 0;
    session->in_flight_bytes += is_in_flight(state) ? lease->bytes : 0;
    if (state != BL_LEASE_FREE) {
      link_lease(table, index);
    }
  }
  const bl__holder_t *holder = &table->holders[lease->holder];
  bl_journal_append(&table->journal, (bl_journal_event_t){.id = index,
                                                          .generation = lease->generation,
                                                          .bytes = slot_bytes,
                                                          .stage = holder->stage,
                                                          .kind = BL_JOURNAL_LEASE,
                                                          .from = (uint8_t)from,
                                                          .to = (uint8_t)state});
}

void bl__lease_answer(const bl_lease_table_t *table, uint32_t index, bl_lease_answer_t *answer) {
  const bl__lease_t *lease = &table->leases[index];
  answer->id = index;
  answer->generation = lease->generation;
  answer->offset_bytes = answer->bytes = 0;
  if (lease->extent != 0) {
    answer->offset_bytes = bl__slot_offset(table, lease);
    answer->bytes = bl__granule_bytes(bl_extent_granules(&table->extents, lease->extent));
  }
  if (lease->bytes != 0) {
    answer->bytes = lease->bytes;
  }
  answer->checksum = lease->checksum;
}

// ---- slots ----------------------------------------------------------------------------------------------------------

uint32_t bl__slot_new(bl_lease_table_t *table, uint32_t session, uint32_t size, bl_lease_reason_t *reason) {
  uint32_t index = table->unused_lease;
  if (index == 0) {
    *reason = BL_LEASE_TABLE_FULL;
    return 0;
  }
  bl__session_t *owner = &table->sessions[session];
  bl__holder_t *holder = &table->holders[owner->holder];
  bl__job_plan_t *job = &table->jobs[holder->job];
  uint32_t granules = owner->sizes[size].granules;
  bl_extent_t extent = 0;
  uint8_t tier = 0;
  for (; tier < BL_LEASE_TIERS; tier++) {
    if (job->spaces[tier].granules > 0 &&
        (extent = bl_extent_allocate(&table->extents, &job->spaces[tier], granules)) != 0) {
      break;
    }
  }
  if (extent == 0) {
    *reason = BL_LEASE_SPACE;
    return 0;
  }
  bl__lease_t *lease = &table->leases[index];
  table->unused_lease = lease->next;
  if (table->unused_lease == 0 && table->linked_leases < table->config.max_leases) {
    table->unused_lease = ++table->linked_leases;
  }
  table->unused_leases--;
  *lease = (bl__lease_t){.generation = lease->generation + 1,
                         .extent = extent,
                         .session = session,
                         .holder = owner->holder,
                         .size = (uint8_t)size,
                         .tier = tier,
                         .cancel_queued = lease->cancel_queued, // it may still be in the queue
                         .next_cancel = lease->next_cancel};
  holder->held_bytes += bl__granule_bytes(granules);
  job->held_bytes += bl__granule_bytes(granules);
  table->stats.held_bytes += bl__granule_bytes(granules);
  table->stats.tier_held_bytes[tier] += bl__granule_bytes(granules);
  bl__lease_set(table, index, BL_LEASE_RESERVED);
  return index;
}

static void free_extent(bl_lease_table_t *table, bl__lease_t *lease) {
  if (lease->extent == 0) {
    return;
  }
  bl__job_plan_t *job = job_of(table, lease);
  uint64_t bytes = bl__granule_bytes(bl_extent_granules(&table->extents, lease->extent));
  bl_extent_free(&table->extents, &job->spaces[lease->tier], lease->extent);
  lease->extent = 0;
  table->holders[lease->holder].held_bytes -= bytes;
  job->held_bytes -= bytes;
  table->stats.held_bytes -= bytes;
  table->stats.tier_held_bytes[lease->tier] -= bytes;
}

void bl__slot_free(bl_lease_table_t *table, uint32_t index) {
  bl__lease_t *lease = &table->leases[index];
  bl__lease_set(table, index, BL_LEASE_FREE);
  free_extent(table, lease);
  uint32_t holder = lease->holder;
  lease->session = lease->holder = 0;
  lease->bytes = lease->checksum = 0;
  lease->next = table->unused_lease;
  table->unused_lease = index;
  table->unused_leases++;
  if (table->holders[holder].session == 0) {
    bl__holder_free_if_unused(table, holder);
  }
}

// ---- ends of uses ---------------------------------------------------------------------------------------------------

// Requests the end of the transfer that touches the slot.
static void cancel_transfer(bl_lease_table_t *table, uint32_t index) {
  bl__lease_t *lease = &table->leases[index];
  if (lease->cancel_queued) {
    return;
  }
  lease->cancel_queued = true;
  lease->next_cancel = 0;
  if (table->cancels.last != 0) {
    table->leases[table->cancels.last].next_cancel = index;
  } else {
    table->cancels.first = index;
  }
  table->cancels.last = index;
}

static void quarantine(bl_lease_table_t *table, uint32_t index, bl__after_t after) {
  bl__lease_t *lease = &table->leases[index];
  if (lease->state == BL_LEASE_QUARANTINED) { // `after` changes only in this order: RESERVED, LOST, FREE
    bool held = is_held(lease, BL_LEASE_QUARANTINED);
    lease->after = (uint8_t)(after > lease->after ? after : lease->after);
    if (lease->session != 0 && held && !is_held(lease, BL_LEASE_QUARANTINED)) {
      table->sessions[lease->session].sizes[lease->size].held--;
    }
    return;
  }
  lease->after = (uint8_t)after;
  cancel_transfer(table, index);
  bl__lease_set(table, index, BL_LEASE_QUARANTINED);
}

// Moves the slot to `state` under the next generation, and forgets the block.
static void next_generation(bl_lease_table_t *table, uint32_t index, bl_lease_state_t state, bl__after_t after) {
  bl__lease_t *lease = &table->leases[index];
  lease->generation++;
  if (state == BL_LEASE_QUARANTINED) {
    quarantine(table, index, after);
  } else {
    bl__lease_set(table, index, state);
  }
  lease->bytes = lease->checksum = 0;
  lease->label = (bl_lease_label_t){0};
}

void bl__lease_over(bl_lease_table_t *table, uint32_t index) {
  const bl__lease_t *lease = &table->leases[index];
  if (lease->moving) {
    next_generation(table, index, BL_LEASE_QUARANTINED, BL__AFTER_RESERVED);
    return;
  }
  next_generation(table, index, BL_LEASE_RESERVED, BL__AFTER_RESERVED);
  const bl__size_class_t *size = &table->sessions[lease->session].sizes[lease->size];
  if (size->held > size->wanted) {
    bl__slot_free(table, index);
  }
}

void bl__lease_lose(bl_lease_table_t *table, uint32_t index) {
  bl__lease_t *lease = &table->leases[index];
  if (lease->moving) {
    quarantine(table, index, BL__AFTER_LOST);
    return;
  }
  bl__lease_set(table, index, BL_LEASE_LOST);
  free_extent(table, lease);
}

void bl__quarantine_end(bl_lease_table_t *table, uint32_t index) {
  bl__lease_t *lease = &table->leases[index];
  switch ((bl__after_t)lease->after) {
  case BL__AFTER_RESERVED: {
    bl__lease_set(table, index, BL_LEASE_RESERVED);
    const bl__size_class_t *size = &table->sessions[lease->session].sizes[lease->size];
    if (size->held > size->wanted) {
      bl__slot_free(table, index);
    }
    break;
  }
  case BL__AFTER_LOST:
    bl__lease_lose(table, index);
    break;
  case BL__AFTER_FREE:
    bl__slot_free(table, index);
    break;
  }
}

static void end_list(bl_lease_table_t *table, const uint32_t *list, bool foreign) {
  while (*list != 0) {
    uint32_t index = *list;
    bl__lease_t *lease = &table->leases[index];
    lease->waiting = 0;
    if (!lease->moving && (!foreign || lease->extent == 0)) {
      bl__slot_free(table, index);
      continue;
    }
    lease->foreign = foreign ? table->sessions[lease->session].number : 0;
    next_generation(table, index, BL_LEASE_QUARANTINED, BL__AFTER_FREE);
    unlink_lease(table, index);
    lease->session = 0;
  }
}

void bl__session_slots_end(bl_lease_table_t *table, uint32_t session, bool foreign) {
  for (uint32_t i = 0; i < BL_LEASE_SIZES; i++) {
    end_list(table, &table->sessions[session].sizes[i].idle, foreign);
    end_list(table, &table->sessions[session].sizes[i].busy, foreign);
  }
}

void bl_lease_table_holder_gone(bl_lease_table_t *table, uint64_t number, uint64_t now_ns) {
  bl__set_time(table, now_ns);
  for (uint32_t i = 1; number != 0 && i <= table->config.max_leases; i++) {
    bl__lease_t *lease = &table->leases[i];
    if (lease->foreign == number) {
      lease->foreign = 0;
      if (!lease->moving) {
        bl__quarantine_end(table, i);
      }
    }
  }
}
