// SPDX-License-Identifier: Apache-2.0
#include "client/requests.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define NS_PER_MS  UINT64_C(1000000)
#define PAUSE_NS   (UINT64_C(5) * 1000000)   // before something that was cut short is retried
#define TIMEOUT_NS (UINT64_C(250) * 1000000) // a cancelled load on nccl may still end on its own

#ifndef RULE
#define RULE(number) true // of requests.h; a test disables them
#endif

// ---- life -----------------------------------------------------------------------------------------------------------

void bl__requests_begin(bl__requests_t *r, bl__transfer_kind_t kind, bool verified, uint64_t flow_bytes) {
  r->kind = kind;
  r->verified = verified;
  r->flow_bytes = flow_bytes;
  r->linked = r->cancels = false;
  memset(r->sent, 0, sizeof r->sent);
  r->sent_count = r->release_count = 0;
  r->flow = r->pause_until_ns = 0;
  r->sequences = (bl__sequences_t){0};
  r->slots.count = 0;
}

void bl__requests_cleanup(bl__requests_t *r) {
  free(r->slots.slots);
  r->slots = (bl__slots_t){0};
}

// ---- lists of operations --------------------------------------------------------------------------------------------

static void append(bl__operation_t **first, bl__operation_t **last, bl__operation_t *operation) {
  operation->next = NULL;
  if (*last != NULL) {
    (*last)->next = operation;
  } else {
    *first = operation;
  }
  *last = operation;
}

static void take_off(bl__operation_t **first, bl__operation_t **last, const bl__operation_t *operation) {
  bl__operation_t *before = NULL;
  for (bl__operation_t *at = *first; at != NULL; before = at, at = at->next) {
    if (at == operation) {
      *(before != NULL ? &before->next : first) = at->next;
      *last = *last == at ? before : *last;
      return;
    }
  }
}

static void push_sending(bl__requests_t *r, bl__operation_t *operation) {
  operation->sends = NULL;
  if (r->sending_last != NULL) {
    r->sending_last->sends = operation;
  } else {
    r->sending_first = operation;
  }
  r->sending_last = operation;
}

static void drop_sending(bl__requests_t *r, const bl__operation_t *operation) {
  bl__operation_t *before = NULL;
  for (bl__operation_t *at = r->sending_first; at != NULL; before = at, at = at->sends) {
    if (at == operation) {
      *(before != NULL ? &before->sends : &r->sending_first) = at->sends;
      r->sending_last = r->sending_last == at ? before : r->sending_last;
      return;
    }
  }
}

// `err` is set already.
static void end_as_it_is(bl__requests_t *r, bl__operation_t *operation) {
  if (RULE(10)) {
    drop_sending(r, operation);
  }
  operation->state = BL__OPERATION_ENDED;
  operation->sequence = 0;
  r->busy--;
  append(&r->ended_first, &r->ended_last, operation);
}

static void end(bl__requests_t *r, bl__operation_t *operation, bl_status_t status, const char *text) {
  if (status == BL_OK) {
    bl_error_clear(&operation->err);
  } else {
    (void)bl_error_set(&operation->err, status, "%s", text);
  }
  end_as_it_is(r, operation);
}

bl__operation_t *bl__requests_take_ended(bl__requests_t *r) {
  bl__operation_t *operation = r->ended_first;
  if (operation != NULL) {
    r->ended_first = operation->next;
    r->ended_last = r->ended_first == NULL ? NULL : r->ended_last;
  }
  return operation;
}

void bl__requests_over(bl__requests_t *r, bl__operation_t *operation) {
  operation->state = BL__OPERATION_OVER;
  if (operation->internal) {
    bl__requests_free(r, operation);
  }
}

// ---- callers --------------------------------------------------------------------------------------------------------

bl__operation_t *bl__requests_claim(bl__requests_t *r, bl__operation_type_t type, uint64_t deadline_ns) {
  for (uint32_t i = 0; i < BL_CLIENT_TICKETS; i++) {
    const uint32_t index = (r->hint + i) % BL_CLIENT_TICKETS;
    bl__operation_t *operation = &r->operations[index];
    if (operation->state == BL__OPERATION_FREE) {
      r->hint = index + 1;
      *operation = (bl__operation_t){.type = type,
                                     .state = BL__OPERATION_CLAIMED,
                                     .serial = operation->serial + 1,
                                     .fd = -1,
                                     .deadline_ns = deadline_ns};
      return operation;
    }
  }
  return NULL;
}

void bl__requests_free(bl__requests_t *r, bl__operation_t *operation) {
  (void)r;
  operation->state = BL__OPERATION_FREE;
}

bl_status_t bl__requests_use(bl__requests_t *r, bl__operation_t *operation, uint64_t id, uint64_t bytes,
                             bl_error_t *err) {
  static const char *const types[] = {"evict", "load", "release"};
  static const char *const names[] = {"empty", "being filled", "full", "being emptied", "of unknown content"};
  const bl__operation_type_t type = operation->type;
  const char *what = types[type];
  bl__slot_t *slot = bl__slot_find(&r->slots, id);
  bl_status_t status = BL_OK;
  if (slot == NULL) {
    status = bl_error_set(err, BL_NOT_FOUND, "cannot %s: the session has no slot %" PRIu64, what, id);
  } else if (slot->state != (type == BL__EVICT ? BL__SLOT_EMPTY : BL__SLOT_FULL)) {
    status = bl_error_set(err, BL_PRECONDITION, "cannot %s: slot %" PRIu64 " is %s", what, id, names[slot->state]);
  } else if (type == BL__EVICT && bytes > slot->bytes) {
    status = bl_error_set(err, BL_INVALID,
                          "cannot evict: a block of %" PRIu64 " bytes does not fit slot %" PRIu64 " of %" PRIu64, bytes,
                          id, slot->bytes);
  } else if (type == BL__LOAD && operation->take > 0) {
    if (operation->take > slot->block_bytes || operation->skip > slot->block_bytes - operation->take) {
      status = bl_error_set(err, BL_INVALID,
                            "cannot load %" PRIu64 " bytes from byte %" PRIu64 " on: the block in slot %" PRIu64
                            " has %" PRIu64,
                            operation->take, operation->skip, id, slot->block_bytes);
    }
    bytes = slot->block_bytes;
  } else if (type == BL__LOAD && bytes != slot->block_bytes) {
    status =
        bl_error_set(err, BL_INVALID, "cannot load: the block in slot %" PRIu64 " has %" PRIu64 " bytes, not %" PRIu64,
                     id, slot->block_bytes, bytes);
  }
  if (status != BL_OK) {
    bl__requests_free(r, operation);
    return status;
  }
  slot->state = type == BL__EVICT ? BL__SLOT_EVICTING : BL__SLOT_LOADING;
  slot->block_bytes = type == BL__EVICT ? bytes : slot->block_bytes;
  operation->slot = id;
  operation->generation = slot->generation;
  operation->bytes = bytes;
  operation->take = operation->take > 0 ? operation->take : bytes;
  return BL_OK;
}

void bl__requests_submit(bl__requests_t *r, bl__operation_t *operation) {
  operation->state = BL__OPERATION_QUEUED;
  r->busy++;
  append(&r->queue_first, &r->queue_last, operation);
}

void bl__requests_cancel(bl__requests_t *r, bl__operation_t *operation) {
  operation->cancelled = true;
  r->cancels = true;
}

// ---- the connection -------------------------------------------------------------------------------------------------

void bl__requests_link_up(bl__requests_t *r) {
  r->linked = true;
}

void bl__requests_link_down(bl__requests_t *r) {
  r->linked = false;
  r->sending_first = r->sending_last = NULL;
  for (unsigned i = 0; i < BL__WINDOW; i++) {
    bl__sent_t *sent = &r->sent[i];
    r->counters.retries += sent->out ? 1 : 0;
    sent->out = false;
    if (sent->operation != NULL && RULE(6)) {
      sent->operation->at = sent->operation->hash = 0;
      sent->operation->corrupt = sent->operation->moving = false;
    }
  }
  for (size_t i = 0; i < BL_CLIENT_TICKETS; i++) { // a register or unregister has no number: it is queued again
    bl__operation_t *operation = &r->operations[i];
    if (operation->state == BL__OPERATION_SENT && operation->sequence == 0) {
      bl__requests_put_back(r, operation);
    }
  }
}

void bl__requests_lose(bl__requests_t *r, const bl_error_t *cause) {
  r->linked = false;
  r->queue_first = r->queue_last = NULL;
  r->sending_first = r->sending_last = NULL;
  r->copying_first = r->copying_last = NULL;
  for (size_t i = 0; i < BL_CLIENT_TICKETS; i++) {
    bl__operation_t *operation = &r->operations[i];
    if (operation->state == BL__OPERATION_QUEUED || operation->state == BL__OPERATION_SENT ||
        operation->state == BL__OPERATION_COPYING) {
      operation->err = *cause;
      end_as_it_is(r, operation);
    }
  }
  memset(r->sent, 0, sizeof r->sent);
  r->sent_count = r->release_count = 0;
}

// ---- sending --------------------------------------------------------------------------------------------------------

static void name(const bl__requests_t *r, bl__request_t *request, const bl__sent_t *sent) {
  *request = (bl__request_t){
      .type = sent->type, .operation = sent->operation, .sent = *sent, .acknowledged = r->sequences.acknowledged};
}

// Resends what a connection that broke left unanswered, in the order of its numbers.
static bool send_again(bl__requests_t *r, bl__request_t *request) {
  for (uint64_t sequence = r->sequences.acknowledged + 1; sequence <= r->sequences.last; sequence++) {
    bl__sent_t *sent = &r->sent[sequence % BL__WINDOW];
    if (sent->sequence != sequence || sent->out) {
      continue; // a remote call's, answered, or in flight
    }
    sent->out = true;
    if (sent->type == BL__EVICT && r->kind == BL__PUSH && sent->operation != NULL) {
      push_sending(r, sent->operation);
    }
    name(r, request, sent);
    return true;
  }
  return false;
}

// NULL: the window is full.
static bl__sent_t *put(bl__requests_t *r, const bl__sent_t *what, bl__request_t *request) {
  uint64_t sequence;
  if (!bl__sequences_next(&r->sequences, &sequence)) {
    return NULL;
  }
  bl__sent_t *sent = &r->sent[sequence % BL__WINDOW];
  *sent = *what;
  sent->sequence = sequence;
  sent->out = true;
  r->sent_count++;
  name(r, request, sent);
  return sent;
}

static bool put_release(bl__requests_t *r, bl__request_t *request) {
  const bl__release_t *release = &r->releases[0];
  const bl__sent_t what = {.type = BL__RELEASE,
                           .sets = release->sets,
                           .loaded = release->loaded,
                           .keeps = release->keeps,
                           .id = release->id,
                           .generation = release->generation,
                           .bytes = release->bytes,
                           .checksum = release->checksum};
  if (put(r, &what, request) == NULL) {
    return false;
  }
  r->release_count--;
  memmove(r->releases, r->releases + 1, r->release_count * sizeof r->releases[0]);
  return true;
}

static void queue_release(bl__requests_t *r, bl__release_t release) {
  if (r->release_count < BL__RELEASES) { // at most one per ticket and request
    r->releases[r->release_count++] = release;
  }
}

// Returns whether an unanswered evict reads this memory, even if no operation waits for it.
static bool is_read(const bl__requests_t *r, const uint8_t *from, uint64_t bytes) {
  for (unsigned i = 0; i < BL__WINDOW; i++) {
    const bl__sent_t *sent = &r->sent[i];
    if (sent->sequence != 0 && sent->type == BL__EVICT && sent->from >= from && sent->from < from + bytes) {
      return true;
    }
  }
  return false;
}

static bool shows_memory(const bl__requests_t *r) {
  return r->kind == BL__PULL || r->kind == BL__PULL_GPU;
}

// If memory is not shared with the store, a region is unregistered only when no evict reads it.
static bool can_start_show(const bl__requests_t *r, const bl__operation_t *operation) {
  return shows_memory(r) || operation->type == BL__REGISTER || !is_read(r, operation->from, operation->bytes);
}

static bool has_flow(const bl__requests_t *r, const bl__operation_t *operation) {
  return r->flow_bytes == 0 || r->flow == 0 || r->flow + operation->bytes <= r->flow_bytes;
}

static bool start(bl__requests_t *r, bl__operation_t *operation, bl__request_t *request) {
  const bl__operation_type_t type = operation->type;
  if (type != BL__RELEASE && !has_flow(r, operation)) {
    return false;
  }
  const bl__sent_t what = {.operation = operation,
                           .type = type,
                           .id = operation->slot,
                           .generation = operation->generation,
                           .bytes = operation->bytes,
                           .checksum = type == BL__EVICT && r->kind != BL__PUSH ? operation->checksum : 0,
                           .from = operation->from,
                           .region = operation->region,
                           .region_offset = operation->region_offset,
                           .label = operation->label};
  const bl__sent_t *sent = put(r, &what, request);
  if (sent == NULL) {
    return false;
  }
  operation->sequence = sent->sequence;
  operation->state = BL__OPERATION_SENT;
  r->flow += type != BL__RELEASE ? operation->bytes : 0;
  if (type == BL__EVICT && r->kind == BL__PUSH) {
    push_sending(r, operation);
  }
  return true;
}

bool bl__requests_next(bl__requests_t *r, uint64_t now_ns, bl__request_t *request) {
  if (!r->linked) {
    return false;
  }
  if (RULE(1) && send_again(r, request)) {
    return true;
  }
  if (r->release_count > 0 && (RULE(2) || r->queue_first == NULL)) {
    return put_release(r, request);
  }
  while (r->queue_first != NULL && now_ns >= r->pause_until_ns && r->sent_count < BL_CLIENT_IN_FLIGHT) {
    bl__operation_t *operation = r->queue_first, *next = operation->next;
    const bool shows = operation->type == BL__REGISTER || operation->type == BL__UNREGISTER;
    if (shows ? !can_start_show(r, operation) : !start(r, operation, request)) {
      return false;
    }
    r->queue_first = next;
    r->queue_last = next == NULL ? NULL : r->queue_last;
    if (!shows) {
      return true;
    }
    if (shows_memory(r)) {
      operation->state = BL__OPERATION_SENT;
      *request = (bl__request_t){.type = operation->type,
                                 .operation = operation,
                                 .sent = {.region = operation->region, .bytes = operation->bytes}};
      return true;
    }
    end(r, operation, BL_OK, "");
  }
  return false;
}

void bl__requests_checked(bl__requests_t *r, const bl__request_t *request, uint64_t checksum) {
  r->sent[request->sent.sequence % BL__WINDOW].checksum = checksum;
}

void bl__requests_put_back(bl__requests_t *r, bl__operation_t *operation) {
  operation->state = BL__OPERATION_QUEUED;
  operation->sequence = 0;
  operation->next = r->queue_first;
  r->queue_first = operation;
  r->queue_last = r->queue_last == NULL ? operation : r->queue_last;
}

// ---- bytes ----------------------------------------------------------------------------------------------------------

void bl__requests_pushed(bl__requests_t *r, bl__operation_t *operation, uint64_t at, uint64_t hash) {
  operation->at = at;
  operation->hash = hash;
  if (at == operation->bytes) {
    drop_sending(r, operation);
  }
}

bl__operation_t *bl__requests_coming(bl__requests_t *r, uint64_t sequence, uint64_t bytes, uint64_t offset) {
  const bl__sent_t *sent = &r->sent[sequence % BL__WINDOW];
  bl__operation_t *operation = sent->sequence == sequence && sent->type == BL__LOAD ? sent->operation : NULL;
  const bool fits = operation != NULL && !operation->corrupt && bytes == operation->bytes && offset == operation->at;
  return fits ? operation : NULL;
}

void bl__requests_came(bl__requests_t *r, bl__operation_t *operation, uint64_t bytes, uint64_t hash, bool matches) {
  (void)r;
  operation->at += bytes;
  operation->hash = hash;
  operation->corrupt = !matches;
}

bl__operation_t *bl__requests_copying(const bl__requests_t *r) {
  return r->copying_first;
}

// ---- the end of loads -----------------------------------------------------------------------------------------------

static void set_slot(bl__requests_t *r, const bl__operation_t *operation, bl__slot_state_t state) {
  bl__slot_set_state(&r->slots, operation->slot, state, operation->generation);
}

// Reports to the store that the block has left it, with the checksum that arrived: this use of the slot is over.
static void release_loaded(bl__requests_t *r, const bl__operation_t *operation, uint64_t checksum) {
  if (RULE(5)) {
    queue_release(r, (bl__release_t){.id = operation->slot,
                                     .generation = operation->generation,
                                     .bytes = operation->bytes,
                                     .checksum = checksum,
                                     .loaded = true});
  }
  bl__slot_set_state(&r->slots, operation->slot, BL__SLOT_EMPTY, operation->generation + 1);
}

// The same, but the block stays: this use of the slot continues. If the load was aborted, the checksum is the store's
// own.
static void keep_loaded(bl__requests_t *r, uint64_t id, uint64_t generation, uint64_t bytes, uint64_t checksum) {
  if (RULE(11)) {
    queue_release(
        r,
        (bl__release_t){
            .id = id, .generation = generation, .bytes = bytes, .checksum = checksum, .loaded = true, .keeps = true});
  }
  bl__slot_set_state(&r->slots, id, BL__SLOT_FULL, generation);
}

static void loaded(bl__requests_t *r, bl__operation_t *operation, uint64_t checksum, bool copied) {
  if (operation->keeps) {
    keep_loaded(r, operation->slot, operation->generation, operation->bytes, checksum);
  } else {
    release_loaded(r, operation, checksum);
  }
  r->counters.loaded++;
  r->counters.loaded_bytes += operation->take;
  r->counters.bytes_copied += copied ? operation->take : 0;
  end(r, operation, BL_OK, "");
}

// The block arrived changed. The store is notified and drops it.
static void load_corrupt(bl__requests_t *r, bl__operation_t *operation, uint64_t checksum, uint64_t wanted) {
  operation->wipe = true;
  release_loaded(r, operation, checksum);
  r->counters.checksum_failures++;
  (void)bl_error_set(&operation->err, BL_DATA_LOSS,
                     "the block in slot %" PRIu64 " came back changed: checksum %016" PRIx64 ", not %016" PRIx64,
                     operation->slot, checksum, wanted);
  end_as_it_is(r, operation);
}

void bl__requests_copied(bl__requests_t *r, bl__operation_t *operation, uint64_t checksum, const bl_error_t *err) {
  take_off(&r->copying_first, &r->copying_last, operation);
  if (err->status != BL_OK) { // the device or the destination cannot be used; the block is still in the store
    keep_loaded(r, operation->slot, operation->generation, operation->bytes, operation->wanted);
    operation->err = *err;
    end_as_it_is(r, operation);
  } else if (r->verified && checksum != operation->wanted && RULE(8)) {
    load_corrupt(r, operation, checksum, operation->wanted);
  } else {
    loaded(r, operation, operation->wanted, true);
  }
}

// ---- answers --------------------------------------------------------------------------------------------------------

// Retries the same operation, with what is left of its deadline.
static bool try_again(bl__requests_t *r, bl__operation_t *operation, uint64_t generation, uint64_t now_ns) {
  if (generation == 0) {
    return false;
  }
  const uint64_t pause_ns = now_ns + PAUSE_NS;
  r->pause_until_ns = r->pause_until_ns > pause_ns ? r->pause_until_ns : pause_ns;
  r->counters.retries++;
  operation->generation = generation;
  operation->at = operation->hash = 0;
  operation->corrupt = false;
  set_slot(r, operation, operation->type == BL__EVICT ? BL__SLOT_EVICTING : BL__SLOT_LOADING);
  bl__requests_put_back(r, operation);
  return true;
}

// No credit now; or the session was not renewed in time (this process did not run), and will be in a moment.
static bool comes_too_early(bl__requests_t *r, const bl__answer_t *answer, uint64_t now_ns) {
  const bool refused = answer->status == BL_EXHAUSTED || answer->status == BL_PRECONDITION;
  if (refused && answer->retry_after_ms != 0 && RULE(9)) {
    r->pause_until_ns = now_ns + answer->retry_after_ms * NS_PER_MS;
    return true;
  }
  return false;
}

// A use of a slot with unknown outcome has ended: the slot is empty, unless its state is known by now.
static void resolve_slot(bl__requests_t *r, const bl__sent_t *sent, uint64_t next) {
  const bl__slot_t *slot = bl__slot_find(&r->slots, sent->id);
  if (slot != NULL && slot->state == BL__SLOT_UNKNOWN && slot->generation == sent->generation) {
    bl__slot_set_state(&r->slots, sent->id, BL__SLOT_EMPTY, next);
  }
}

static void release_given_up(bl__requests_t *r, uint64_t id, uint64_t generation) {
  queue_release(r, (bl__release_t){.id = id, .generation = generation, .sets = true});
}

static void evict_answered(bl__requests_t *r, const bl__sent_t *sent, const bl__answer_t *answer, uint64_t now_ns) {
  bl__operation_t *operation = sent->operation;
  r->flow -= sent->bytes;
  if (operation == NULL) { // aborted: the release that follows determines the state of the slot
    if ((answer->status == BL_DATA_LOSS || answer->status == BL_IO) && answer->generation != 0) {
      resolve_slot(r, sent, answer->generation); // unless the release is answered already
    }
    return;
  }
  drop_sending(r, operation); // refused before its bytes were sent: the rest need not be
  if (answer->status == BL_OK && operation->known && r->kind == BL__PUSH && r->verified &&
      operation->hash != operation->checksum) { // what was sent is not what its owner created
    release_given_up(r, operation->slot, operation->generation);
    set_slot(r, operation, BL__SLOT_UNKNOWN);
    end(r, operation, BL_DATA_LOSS, "the block is not the one whose checksum was given");
    return;
  }
  if (answer->status == BL_OK) {
    set_slot(r, operation, BL__SLOT_FULL);
    r->counters.evicted++;
    r->counters.evicted_bytes += operation->bytes;
  } else if ((answer->status == BL_IO && !shows_memory(r) && try_again(r, operation, answer->generation, now_ns)) ||
             (comes_too_early(r, answer, now_ns) && try_again(r, operation, operation->generation, now_ns))) {
    return;
  } else {
    const bool over = answer->status == BL_DATA_LOSS || answer->status == BL_IO || answer->status == BL_CANCELLED;
    r->counters.checksum_failures += answer->status == BL_DATA_LOSS ? 1 : 0;
    bl__slot_set_state(&r->slots, operation->slot, BL__SLOT_EMPTY, over ? answer->generation : operation->generation);
  }
  end(r, operation, answer->status, answer->text);
}

static void load_answered(bl__requests_t *r, const bl__sent_t *sent, const bl__answer_t *answer, uint64_t now_ns) {
  bl__operation_t *operation = sent->operation;
  if (operation == NULL && answer->status == BL_OK && RULE(4)) { // aborted, and the block is still in the store
    keep_loaded(r, sent->id, sent->generation, sent->bytes, answer->checksum);
    return;
  }
  if (operation == NULL) {
    r->flow -= sent->bytes;
    if (answer->status == BL_DATA_LOSS) {
      release_given_up(r, sent->id, sent->generation);
    } else if (RULE(4)) {
      bl__slot_set_state(&r->slots, sent->id, BL__SLOT_FULL, sent->generation);
    }
    return;
  }
  if (answer->status == BL_OK && shows_memory(r)) {
    operation->offset = answer->offset;
    operation->wanted = answer->checksum;
    operation->at = operation->hash = 0;
    if (answer->bytes != operation->bytes) {
      r->flow -= operation->bytes;
      set_slot(r, operation, BL__SLOT_FULL);
      end(r, operation, BL_INTERNAL, "the store answers with a slot outside of its memory");
      return;
    }
    operation->state = BL__OPERATION_COPYING;
    operation->sequence = 0;
    append(&r->copying_first, &r->copying_last, operation);
    return;
  }
  const bool whole = operation->at == operation->bytes;
  if (answer->status == BL_OK &&
      (operation->corrupt || (whole && r->verified && operation->hash != answer->checksum)) && RULE(8)) {
    load_corrupt(r, operation, operation->hash, answer->checksum);
    return;
  }
  if (answer->status == BL_OK && whole) {
    loaded(r, operation, answer->checksum, false);
    return;
  }
  r->flow -= operation->bytes;
  // The bytes moved over a connection that broke, or the transfer was cut short.
  if ((answer->status == BL_OK || (answer->status == BL_IO && !shows_memory(r)) ||
       comes_too_early(r, answer, now_ns)) &&
      try_again(r, operation, operation->generation, now_ns)) {
    return;
  }
  if (answer->status == BL_DATA_LOSS) { // revoked, or changed in the store's memory
    operation->wipe = true;
    release_given_up(r, operation->slot, operation->generation);
    set_slot(r, operation, BL__SLOT_UNKNOWN);
  } else {
    set_slot(r, operation, BL__SLOT_FULL);
  }
  end(r, operation, answer->status, answer->text);
}

static void release_answered(bl__requests_t *r, const bl__sent_t *sent, const bl__answer_t *answer) {
  bl__operation_t *operation = sent->operation;
  r->flow -= sent->loaded ? sent->bytes : 0;
  if (sent->keeps) {
    return; // the next use of the slot finds out what became of the block
  }
  const bool sets = sent->sets || operation != NULL;
  if (answer->status == BL_OK || answer->status == BL_DATA_LOSS) {
    if (sets || answer->generation == 0) {
      bl__slot_set_state(&r->slots, sent->id, BL__SLOT_EMPTY, answer->generation);
    }
  } else if (sets && (operation != NULL || answer->status != BL_FENCED)) {
    // An evict that was refused before it was aborted left the slot as it was. BL_FENCED: the use had ended, and that
    // is known.
    const bool unused = operation == NULL && answer->status == BL_PRECONDITION && answer->id != 0;
    bl__slot_set_state(&r->slots, sent->id,
                       unused              ? BL__SLOT_EMPTY
                       : operation != NULL ? BL__SLOT_FULL
                                           : BL__SLOT_UNKNOWN,
                       unused ? answer->generation : sent->generation);
  }
  if (operation != NULL) {
    r->counters.released += answer->status == BL_OK ? 1 : 0;
    end(r, operation, answer->status, answer->text);
  }
}

void bl__requests_answer(bl__requests_t *r, const bl__answer_t *answer, uint64_t now_ns) {
  bl__sent_t *index = &r->sent[answer->sequence % BL__WINDOW];
  if (answer->sequence == 0 || (index->sequence != answer->sequence && RULE(7))) {
    return; // no control call or operation waits for it any more
  }
  const bl__sent_t sent = *index;
  *index = (bl__sent_t){0};
  r->sent_count--;
  bl__sequences_over(&r->sequences, sent.sequence);
  if (sent.type == BL__EVICT) {
    evict_answered(r, &sent, answer, now_ns);
  } else if (sent.type == BL__LOAD) {
    load_answered(r, &sent, answer, now_ns);
  } else {
    release_answered(r, &sent, answer);
  }
}

void bl__requests_registered(bl__requests_t *r, bl__operation_type_t type, uint32_t region, bl_status_t status,
                             const char *text) {
  for (size_t i = 0; i < BL_CLIENT_TICKETS; i++) {
    bl__operation_t *operation = &r->operations[i];
    if (operation->state == BL__OPERATION_SENT && operation->type == type && operation->region == region) {
      end(r, operation, status, text);
      return;
    }
  }
}

// ---- aborting -------------------------------------------------------------------------------------------------------

// A cancelled load whose half may be queued ends on its own if the store lives. Stopping it costs the communicators.
static bool may_still_end(const bl__requests_t *r, bl__operation_t *operation, uint64_t now_ns) {
  if (r->kind != BL__PAIRED || !r->linked || operation->type != BL__LOAD || operation->sequence == 0) {
    return false;
  }
  if (operation->timeout_ns == 0) {
    operation->timeout_ns = now_ns + TIMEOUT_NS;
  }
  return now_ns < operation->timeout_ns;
}

static bool is_cancelled(const bl__requests_t *r, bl__operation_t *operation, uint64_t now_ns) {
  const bool may_stop = operation->type == BL__EVICT || operation->type == BL__LOAD;
  return may_stop && operation->cancelled && !may_still_end(r, operation, now_ns);
}

static bool is_given_up(const bl__requests_t *r, bl__operation_t *operation, uint64_t now_ns) {
  return is_cancelled(r, operation, now_ns) || now_ns >= operation->deadline_ns;
}

static void explain(const bl__requests_t *r, bl__operation_t *operation, uint64_t now_ns, const char *why) {
  if (is_cancelled(r, operation, now_ns)) {
    (void)bl_error_set(&operation->err, BL_CANCELLED, "cancelled by its caller");
  } else {
    (void)bl_error_set(&operation->err, BL_UNAVAILABLE, "the store at %s did not answer in time%s%s", r->store,
                       why != NULL ? ": " : "", why != NULL ? why : "");
  }
}

// Aborts an operation before its answer. The answers that are still due determine the state of the slot.
static void give_up_sent(bl__requests_t *r, bl__operation_t *operation) {
  if (operation->sequence == 0) {
    return; // a register or unregister
  }
  bl__sent_t *sent = &r->sent[operation->sequence % BL__WINDOW];
  sent->operation = NULL;
  sent->sets = operation->type == BL__RELEASE;
  if (operation->type == BL__EVICT && RULE(3)) {
    release_given_up(r, operation->slot, operation->generation);
  }
  set_slot(r, operation, BL__SLOT_UNKNOWN);
}

// Nothing was sent: the slot is as before.
static void give_up_quiet(bl__requests_t *r, const bl__operation_t *operation) {
  if (operation->type <= BL__RELEASE) {
    set_slot(r, operation, operation->type == BL__EVICT ? BL__SLOT_EMPTY : BL__SLOT_FULL);
  }
}

bool bl__requests_must_cut(bl__requests_t *r, uint64_t now_ns) {
  for (size_t i = 0; i < BL_CLIENT_TICKETS && r->kind == BL__PAIRED; i++) {
    bl__operation_t *operation = &r->operations[i];
    if (operation->state == BL__OPERATION_SENT && operation->type == BL__LOAD && operation->moving &&
        is_given_up(r, operation, now_ns)) {
      return true;
    }
  }
  return false;
}

void bl__requests_tick(bl__requests_t *r, uint64_t now_ns, const char *why) {
  r->cancels = false;
  for (size_t i = 0; i < BL_CLIENT_TICKETS; i++) {
    bl__operation_t *operation = &r->operations[i];
    const bl__operation_state_t state = operation->state;
    const bool waits = state == BL__OPERATION_QUEUED || state == BL__OPERATION_SENT || state == BL__OPERATION_COPYING;
    if (!waits || !is_given_up(r, operation, now_ns)) {
      continue;
    }
    explain(r, operation, now_ns, why);
    if (state == BL__OPERATION_QUEUED) {
      take_off(&r->queue_first, &r->queue_last, operation);
      give_up_quiet(r, operation);
    } else if (state == BL__OPERATION_COPYING) {
      take_off(&r->copying_first, &r->copying_last, operation);
      keep_loaded(r, operation->slot, operation->generation, operation->bytes, operation->wanted);
    } else {
      give_up_sent(r, operation);
    }
    end_as_it_is(r, operation);
  }
}

bool bl__requests_waits(const bl__requests_t *r) {
  return r->busy > 0 || r->sent_count > 0 || r->release_count > 0;
}
