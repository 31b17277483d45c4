// SPDX-License-Identifier: Apache-2.0
// One use of a slot: evict, load, release, keep, and the ends of transfers.
#include "lease/table_core.h"

#include "base/hash.h"

#include <stddef.h>

enum { DIGEST_EVICT = 3, DIGEST_LOAD, DIGEST_RELEASE, DIGEST_KEEP };

static uint64_t digest_of(uint64_t kind, const bl_lease_token_t *token, uint64_t a, uint64_t b) {
  uint64_t words[4] = {token->id, token->generation, a, b};
  return bl_hash64(words, sizeof words, bl_hash64(&token->incarnation, sizeof token->incarnation, kind));
}

// Returns the lease of a token, or 0 with the reason. The order of the checks decides which reason a stale holder gets.
static uint32_t find(const bl_lease_table_t *table, uint32_t session, const bl_lease_token_t *token,
                     bl_lease_reason_t *reason) {
  if (!bl_id128_equal(&token->incarnation, &table->config.incarnation)) {
    *reason = BL_LEASE_INCARNATION;
    return 0;
  }
  *reason = BL_LEASE_NO_LEASE;
  if (token->id == 0 || token->id > table->config.max_leases) {
    return 0;
  }
  const bl__lease_t *lease = &table->leases[token->id];
  if (lease->generation == 0 || token->generation == 0 || token->generation > lease->generation) {
    return 0; // never granted
  }
  if (lease->state != BL_LEASE_FREE && lease->session != session) {
    *reason = lease->generation == token->generation ? BL_LEASE_NOT_YOURS : BL_LEASE_GENERATION;
    return 0;
  }
  if (lease->state == BL_LEASE_FREE || lease->generation != token->generation) {
    *reason = BL_LEASE_GENERATION;
    return 0;
  }
  return (uint32_t)token->id;
}

static bool is_lost(const bl__lease_t *lease) {
  return lease->state == BL_LEASE_LOST || (lease->state == BL_LEASE_QUARANTINED && lease->after == BL__AFTER_LOST);
}

// One block may always be in flight, so that a limit below the size of a block stops no session.
static bool has_credit(const bl_lease_table_t *table, const bl__session_t *session, uint64_t bytes) {
  uint64_t limit = table->config.session_flow_bytes;
  return limit == 0 || session->in_flight_bytes == 0 ||
         (session->in_flight_bytes < limit && bytes <= limit - session->in_flight_bytes);
}

static void begin_transfer(bl__lease_t *lease, uint64_t sequence) {
  lease->moving = true;
  lease->transfer = lease->generation;
  lease->waiting = sequence;
}

// ---- evict ----------------------------------------------------------------------------------------------------------

static bl_lease_reason_t check_evict(const bl_lease_table_t *table, uint32_t session, uint32_t lease,
                                     const bl_lease_evict_t *evict) {
  const bl__lease_t *slot = &table->leases[lease];
  if (is_lost(slot)) {
    return BL_LEASE_GONE;
  }
  if (slot->state != BL_LEASE_RESERVED) {
    return BL_LEASE_STATE;
  }
  if (evict->bytes == 0 || evict->bytes > bl__granule_bytes(bl_extent_granules(&table->extents, slot->extent))) {
    return BL_LEASE_BAD_BYTES;
  }
  if (table->sessions[session].state == BL_SESSION_SUSPECT) {
    return BL_LEASE_SUSPECT;
  }
  return has_credit(table, &table->sessions[session], evict->bytes) ? BL_LEASE_GRANTED : BL_LEASE_CREDIT;
}

bl_lease_decision_t bl_lease_table_evict(bl_lease_table_t *table, const bl_lease_request_t *request,
                                         const bl_lease_evict_t *evict, bl_lease_answer_t *answer) {
  uint64_t digest = digest_of(DIGEST_EVICT, &evict->token, evict->bytes, evict->checksum);
  uint32_t session;
  bl_request_window_entry_t *entry;
  bl_lease_decision_t decision;
  if (!bl__request_begin(table, request, digest, &session, &entry, &decision, answer)) {
    return decision;
  }
  bl_lease_reason_t reason;
  uint32_t index = find(table, session, &evict->token, &reason);
  if (index != 0) {
    bl__lease_answer(table, index, &entry->answer);
    reason = check_evict(table, session, index, evict);
  }
  if (reason != BL_LEASE_GRANTED) {
    return bl__request_refuse(table, entry, reason, answer);
  }
  bl__lease_t *lease = &table->leases[index];
  lease->bytes = evict->bytes;
  lease->checksum = evict->checksum;
  lease->label = evict->label;
  begin_transfer(lease, request->sequence);
  bl__lease_set(table, index, BL_LEASE_WRITING);
  bl__lease_answer(table, index, answer);
  answer->reason = BL_LEASE_GRANTED;
  return BL_LEASE_BEGIN;
}

// ---- load -----------------------------------------------------------------------------------------------------------

static bl_lease_reason_t check_load(const bl_lease_table_t *table, uint32_t session, uint32_t index) {
  const bl__lease_t *lease = &table->leases[index];
  if (is_lost(lease)) {
    return BL_LEASE_GONE;
  }
  if (lease->state == BL_LEASE_LOADING && !lease->moving) {
    return BL_LEASE_GRANTED; // repeated: the first attempt did not arrive
  }
  if (lease->state != BL_LEASE_SEALED) {
    return BL_LEASE_STATE;
  }
  return has_credit(table, &table->sessions[session], lease->bytes) ? BL_LEASE_GRANTED : BL_LEASE_CREDIT;
}

bl_lease_decision_t bl_lease_table_load(bl_lease_table_t *table, const bl_lease_request_t *request,
                                        const bl_lease_token_t *token, bool store_moves, bl_lease_answer_t *answer) {
  uint32_t session;
  bl_request_window_entry_t *entry;
  bl_lease_decision_t decision;
  if (!bl__request_begin(table, request, digest_of(DIGEST_LOAD, token, store_moves, 0), &session, &entry, &decision,
                         answer)) {
    return decision;
  }
  bl_lease_reason_t reason;
  uint32_t index = find(table, session, token, &reason);
  if (index != 0) {
    bl__lease_answer(table, index, &entry->answer);
    reason = check_load(table, session, index);
  }
  if (reason != BL_LEASE_GRANTED) {
    return bl__request_refuse(table, entry, reason, answer);
  }
  bl__lease_t *lease = &table->leases[index];
  if (lease->state == BL_LEASE_SEALED) {
    bl__lease_set(table, index, BL_LEASE_LOADING);
  }
  bl__lease_answer(table, index, answer);
  answer->reason = BL_LEASE_GRANTED;
  if (store_moves) {
    begin_transfer(lease, request->sequence);
    return BL_LEASE_BEGIN;
  }
  table->stats.loaded++;
  table->stats.loaded_bytes += lease->bytes;
  bl_lease_answer_t granted = *answer;
  return bl__request_done(table, entry, &granted, answer);
}

// ---- release --------------------------------------------------------------------------------------------------------

// Describes a slot after its use has ended: its next generation, or nothing.
static void describe_rest(const bl_lease_table_t *table, uint32_t index, bl_lease_answer_t *answer) {
  if (table->leases[index].state == BL_LEASE_FREE) {
    *answer = (bl_lease_answer_t){.reason = answer->reason, .id = index};
  } else {
    bl__lease_answer(table, index, answer);
  }
}

static void answer_waiting(bl_lease_table_t *table, uint32_t index, uint32_t session, bl_lease_reason_t reason) {
  bl__lease_t *lease = &table->leases[index];
  uint64_t sequence = lease->waiting;
  lease->waiting = 0;
  if (sequence != 0 && session != 0) {
    bl_lease_answer_t answer = {.reason = reason};
    describe_rest(table, index, &answer);
    bl__request_answer(table, session, sequence, &answer);
  }
}

bl_lease_decision_t bl_lease_table_release(bl_lease_table_t *table, const bl_lease_request_t *request,
                                           const bl_lease_token_t *token, const uint64_t *checksum,
                                           bl_lease_answer_t *answer) {
  uint64_t digest = digest_of(DIGEST_RELEASE, token, checksum != NULL, checksum != NULL ? *checksum : 0);
  uint32_t session;
  bl_request_window_entry_t *entry;
  bl_lease_decision_t decision;
  if (!bl__request_begin(table, request, digest, &session, &entry, &decision, answer)) {
    return decision;
  }
  bl_lease_reason_t reason;
  uint32_t index = find(table, session, token, &reason);
  if (index == 0) {
    return bl__request_refuse(table, entry, reason, answer);
  }
  bl__lease_t *lease = &table->leases[index];
  bl_lease_answer_t result = {.reason = BL_LEASE_GRANTED};
  bl__lease_answer(table, index, &entry->answer);
  if (lease->state == BL_LEASE_RESERVED || (lease->state == BL_LEASE_QUARANTINED && !is_lost(lease)) ||
      (checksum != NULL && (lease->state != BL_LEASE_LOADING || lease->moving))) {
    return bl__request_refuse(table, entry, BL_LEASE_STATE, answer);
  }
  if (lease->state == BL_LEASE_QUARANTINED) { // lost, and its transfer may still touch the slot
    return bl__request_refuse(table, entry, BL_LEASE_GONE, answer);
  }
  table->stats.released++;
  if (lease->state == BL_LEASE_LOST) {
    bl__slot_free(table, index);
    result.id = index;
    return bl__request_done(table, entry, &result, answer);
  }
  if (checksum != NULL && *checksum != lease->checksum) {
    table->stats.checksum_failures++;
    result.reason = BL_LEASE_CHECKSUM;
  }
  if (lease->moving) {
    bl__lease_over(table, index); // quarantined: the next generation is known now, the slot is free later
    answer_waiting(table, index, session, BL_LEASE_CANCELLED);
    lease->waiting = request->sequence;
    bl__lease_answer(table, index, answer);
    answer->reason = BL_LEASE_GRANTED;
    return BL_LEASE_BEGIN;
  }
  bl__lease_over(table, index);
  describe_rest(table, index, &result);
  return bl__request_done(table, entry, &result, answer);
}

// ---- keep -----------------------------------------------------------------------------------------------------------

static bl_lease_reason_t check_keep(const bl__lease_t *lease, uint64_t checksum) {
  if (is_lost(lease)) {
    return BL_LEASE_GONE;
  }
  if (lease->state != BL_LEASE_LOADING || lease->moving) {
    return BL_LEASE_STATE;
  }
  return checksum == lease->checksum ? BL_LEASE_GRANTED : BL_LEASE_CHECKSUM;
}

bl_lease_decision_t bl_lease_table_keep(bl_lease_table_t *table, const bl_lease_request_t *request,
                                        const bl_lease_token_t *token, uint64_t checksum, bl_lease_answer_t *answer) {
  uint64_t digest = digest_of(DIGEST_KEEP, token, checksum, 0);
  uint32_t session;
  bl_request_window_entry_t *entry;
  bl_lease_decision_t decision;
  if (!bl__request_begin(table, request, digest, &session, &entry, &decision, answer)) {
    return decision;
  }
  bl_lease_reason_t reason;
  uint32_t index = find(table, session, token, &reason);
  if (index != 0) {
    bl__lease_answer(table, index, &entry->answer);
    reason = check_keep(&table->leases[index], checksum);
  }
  if (reason != BL_LEASE_GRANTED) {
    return bl__request_refuse(table, entry, reason, answer);
  }
  bl__lease_set(table, index, BL_LEASE_SEALED);
  bl_lease_answer_t result = {.reason = BL_LEASE_GRANTED};
  bl__lease_answer(table, index, &result);
  return bl__request_done(table, entry, &result, answer);
}

// ---- ends of transfers ----------------------------------------------------------------------------------------------

static void write_ended(bl_lease_table_t *table, uint32_t index, bool moved, uint64_t checksum) {
  bl__lease_t *lease = &table->leases[index];
  uint32_t session = lease->session;
  if (moved && checksum == lease->checksum) {
    table->stats.evicted++;
    table->stats.evicted_bytes += lease->bytes;
    bl__lease_set(table, index, BL_LEASE_SEALED);
    answer_waiting(table, index, session, BL_LEASE_GRANTED);
    return;
  }
  table->stats.checksum_failures += moved ? 1 : 0;
  bl__lease_over(table, index);
  answer_waiting(table, index, session, moved ? BL_LEASE_CHECKSUM : BL_LEASE_TRANSFER);
}

static void load_ended(bl_lease_table_t *table, uint32_t index, bool moved, uint64_t checksum) {
  bl__lease_t *lease = &table->leases[index];
  uint32_t session = lease->session;
  if (!moved) {
    bl__lease_set(table, index, BL_LEASE_SEALED);
    answer_waiting(table, index, session, BL_LEASE_TRANSFER);
  } else if (checksum != lease->checksum) {
    table->stats.checksum_failures++;
    bl__lease_lose(table, index);
    answer_waiting(table, index, session, BL_LEASE_CHECKSUM);
  } else {
    table->stats.loaded++;
    table->stats.loaded_bytes += lease->bytes;
    answer_waiting(table, index, session, BL_LEASE_GRANTED);
  }
}

void bl_lease_table_set_checksum(bl_lease_table_t *table, uint64_t id, uint64_t generation, uint64_t checksum) {
  bl__lease_t *lease = id <= table->config.max_leases ? &table->leases[id] : &table->leases[0];
  if (lease->moving && lease->transfer == generation && lease->state == BL_LEASE_WRITING) {
    lease->checksum = checksum;
  }
}

void bl_lease_table_transfer_ended(bl_lease_table_t *table, uint64_t id, uint64_t generation, bool moved,
                                   uint64_t checksum, uint64_t now_ns) {
  bl__set_time(table, now_ns);
  bl__lease_t *lease = id <= table->config.max_leases ? &table->leases[id] : &table->leases[0];
  if (!lease->moving || lease->transfer != generation) {
    table->stats.stale_events++;
    return;
  }
  uint32_t index = (uint32_t)id, session = lease->session;
  lease->moving = false;
  switch ((bl_lease_state_t)lease->state) {
  case BL_LEASE_WRITING:
    write_ended(table, index, moved, checksum);
    break;
  case BL_LEASE_LOADING:
    load_ended(table, index, moved, checksum);
    break;
  default: // QUARANTINED
  {
    if (lease->foreign != 0) {
      break; // its holder's engine may still read it
    }
    bl_lease_reason_t reason = is_lost(lease) ? BL_LEASE_GONE : BL_LEASE_GRANTED;
    bl__quarantine_end(table, index);
    answer_waiting(table, index, session, reason);
    break;
  }
  }
}
