// SPDX-License-Identifier: Apache-2.0
// Verifies the requests of a session (client/requests.h) against the lease table of a store (lib/lease), both as they
// are, with a connection between them that breaks and comes back at any point, refusals for want of credit, chunks that
// change on the way, answers that come twice, callers that give up, and deadlines that pass. Random walks of a printed
// seed; after each the faults stop, and then:
//   - every operation has ended, once, and none that was not cancelled, late or damaged has failed;
//   - what an evict said is stored is there, and a load gave just that;
//   - what has ended is neither read nor written any more;
//   - both sides agree on the state and generation of every slot, nothing is in flight, and the window is empty.
// And that each rule of requests.h is needed: with any one of them taken out the walks find a violation.
// BALLAST_SOAK=1 walks longer.
#include "base/random.h"
#include "lease/table.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int broken_rule;
#define RULE(number) (broken_rule != (number))
#include "client/requests.c"
#include "seed.h"

#include <setjmp.h>

#include <cmocka.h>

#define STORE_SLOTS 3
#define OPERATIONS  6 // under way at most
#define BLOCK_BYTES BL_LEASE_GRANULE_BYTES
#define CHUNK_BYTES (BLOCK_BYTES / 2)
#define MESSAGES    256
#define STEPS       120 // of a walk before the faults stop
#define CALM_STEPS  4000
#define DEADLINE_NS UINT64_C(1000000000)
#define LATE_NS     (DEADLINE_NS / 4)
#define SECOND_NS   UINT64_C(1000000000)
#define TTL_NS      (100000 * SECOND_NS)

// ---- the world ------------------------------------------------------------------------------------------------------

typedef enum { REQUEST, DATA, ANSWER } kind_t;

typedef struct {
  kind_t kind;
  bl__request_t request;
  uint64_t sequence, offset, hash, content; // DATA
  bl__answer_t answer;
} message_t;

typedef struct {
  message_t messages[MESSAGES];
  size_t count;
} pipe_t;

// What a caller knows of its operation. A block is one number; its checksums follow from it.
typedef struct {
  bl__operation_t *operation; // NULL: unused
  uint32_t serial;
  uint64_t content; // evict: of the source
  uint64_t arrived; // load: content of the chunks that were written, when they agree
  uint64_t written; // load: bytes
  bool mixed;       // load: they do not agree
  bool late, cancelled, damaged;
} call_t;

typedef struct {
  bool used, sends;
  uint64_t id, generation, sequence, at, hash, content;
} transfer_t;

typedef struct {
  uint64_t key, draws;
  uint64_t now_ns;
  bool pulls, faulty;
  bl__requests_t *requests;
  bl_lease_table_t *table;
  uint64_t session;
  bl_id128_t session_key;
  pipe_t up, down; // to the store, and back
  call_t calls[OPERATIONS];
  transfer_t transfers[OPERATIONS + STORE_SLOTS];
  uint64_t stored[STORE_SLOTS + 1];   // content of each slot's memory, by id
  uint64_t promised[STORE_SLOTS + 1]; // content that an evict said is there; 0: none
  bool kept[STORE_SLOTS + 1];         // what ended last there is a load that kept its block
  uint64_t contents;                  // drawn so far
  message_t last_answer;
  const char *violation;
} world_t;

static uint64_t draw(world_t *w, uint64_t bound) {
  return bl_random_below(w->key, w->draws++, bound);
}

static bool violates(world_t *w, const char *text) {
  w->violation = w->violation == NULL ? text : w->violation;
  return true;
}

static uint64_t checksum(uint64_t content, uint64_t bytes) {
  return bytes == 0 ? 0 : content * 1000 + bytes / CHUNK_BYTES;
}

static void send(world_t *w, pipe_t *pipe, const message_t *message) {
  if (pipe->count == MESSAGES) {
    (void)violates(w, "a pipe overflows");
    return;
  }
  pipe->messages[pipe->count++] = *message;
}

static message_t take(pipe_t *pipe) {
  message_t message = pipe->messages[0];
  pipe->count--;
  memmove(pipe->messages, pipe->messages + 1, pipe->count * sizeof message);
  return message;
}

// ---- the store ------------------------------------------------------------------------------------------------------

static void answer(world_t *w, uint64_t sequence, const bl_lease_answer_t *said) {
  static char texts[BL_LEASE_REASONS][sizeof((bl_error_t *)0)->text];
  bl_error_t err = {0};
  message_t message = {.kind = ANSWER,
                       .answer = {.sequence = sequence,
                                  .status = bl_lease_answer_to_error(said, "do", &err),
                                  .id = said->id,
                                  .generation = said->generation,
                                  .bytes = said->bytes,
                                  .offset = said->id,
                                  .checksum = said->checksum,
                                  .retry_after_ms = said->retry_after_ms,
                                  .text = texts[said->reason]}};
  snprintf(texts[said->reason], sizeof texts[0], "%s", err.text);
  if (w->requests->linked) {
    send(w, &w->down, &message);
  }
}

static void end_transfer(world_t *w, transfer_t *transfer, bool moved);

static void settle_store(world_t *w) {
  bl_lease_action_t action;
  while (bl_lease_table_next_action(w->table, &action)) {
    if (action.kind == BL_LEASE_ANSWER) {
      answer(w, action.sequence, &action.answer);
    } else if (action.kind == BL_LEASE_CANCEL_TRANSFER) {
      for (size_t i = 0; i < sizeof w->transfers / sizeof w->transfers[0]; i++) {
        transfer_t *transfer = &w->transfers[i];
        if (transfer->used && transfer->id == action.id && transfer->generation == action.generation) {
          end_transfer(w, transfer, false);
        }
      }
    } else if (action.kind == BL_LEASE_END_SESSION) {
      (void)violates(w, "the session ended");
    }
  }
}

static void end_transfer(world_t *w, transfer_t *transfer, bool moved) {
  const transfer_t was = *transfer;
  transfer->used = false;
  if (!was.sends) {
    bl_lease_table_set_checksum(w->table, was.id, was.generation, was.hash);
    w->stored[was.id] = moved ? was.content : 0;
  }
  bl_lease_view_t view;
  const uint64_t hash = was.sends && bl_lease_table_get(w->table, was.id, &view) == BL_OK ? view.checksum : was.hash;
  bl_lease_table_transfer_ended(w->table, was.id, was.generation, moved, hash, w->now_ns);
  settle_store(w);
}

static void begin_transfer(world_t *w, bool sends, const bl_lease_answer_t *said, uint64_t sequence, uint64_t content) {
  for (size_t i = 0; i < sizeof w->transfers / sizeof w->transfers[0]; i++) {
    if (!w->transfers[i].used) {
      w->transfers[i] = (transfer_t){.used = true,
                                     .sends = sends,
                                     .id = said->id,
                                     .generation = said->generation,
                                     .sequence = sequence,
                                     .content = content};
      return;
    }
  }
  (void)violates(w, "more transfers than can be");
}

static void serve(world_t *w, const bl__request_t *asked) {
  const bl__sent_t *sent = &asked->sent;
  const bl_lease_request_t request = {.session = w->session,
                                      .key = w->session_key,
                                      .sequence = sent->sequence,
                                      .acknowledged = asked->acknowledged,
                                      .now_ns = w->now_ns};
  const bl_lease_token_t token = {.id = sent->id, .generation = sent->generation};
  bl_lease_answer_t said = {0};
  bl_lease_decision_t decision;
  if (asked->type == BL__EVICT) {
    const bl_lease_evict_t evict = {.token = token, .bytes = sent->bytes, .checksum = sent->checksum};
    decision = bl_lease_table_evict(w->table, &request, &evict, &said);
    if (decision == BL_LEASE_BEGIN && w->pulls) { // the store copies at once what the operation shows
      const uint64_t content = sent->from != NULL ? (uint64_t)(uintptr_t)sent->from : 0;
      begin_transfer(w, false, &said, sent->sequence, content);
    } else if (decision == BL_LEASE_BEGIN) {
      begin_transfer(w, false, &said, sent->sequence, 0);
    }
  } else if (asked->type == BL__LOAD) {
    decision = bl_lease_table_load(w->table, &request, &token, !w->pulls, &said);
    if (decision == BL_LEASE_BEGIN) {
      begin_transfer(w, true, &said, sent->sequence, w->stored[sent->id]);
    }
  } else if (sent->keeps) {
    decision = bl_lease_table_keep(w->table, &request, &token, sent->checksum, &said);
  } else {
    decision = bl_lease_table_release(w->table, &request, &token, sent->loaded ? &sent->checksum : NULL, &said);
  }
  if (decision == BL_LEASE_DONE) {
    answer(w, sent->sequence, &said);
  }
  settle_store(w);
}

static void receive_chunk(world_t *w, const message_t *message) {
  for (size_t i = 0; i < sizeof w->transfers / sizeof w->transfers[0]; i++) {
    transfer_t *transfer = &w->transfers[i];
    if (transfer->used && !transfer->sends && transfer->sequence == message->sequence) {
      transfer->at += CHUNK_BYTES;
      transfer->content = message->content;
      transfer->hash = checksum(message->content, transfer->at);
      const bool corrupt = transfer->hash != message->hash;
      if (corrupt || transfer->at == BLOCK_BYTES) {
        bl_lease_table_set_checksum(w->table, transfer->id, transfer->generation, message->hash);
        const transfer_t was = *transfer;
        transfer->used = false;
        w->stored[was.id] = corrupt ? 0 : was.content;
        bl_lease_table_transfer_ended(w->table, was.id, was.generation, true, was.hash, w->now_ns);
        settle_store(w);
      }
      return;
    }
  } // of a request that was refused or given up
}

static void step_store(world_t *w) {
  if (w->up.count == 0) {
    return;
  }
  const message_t message = take(&w->up);
  if (message.kind == REQUEST) {
    serve(w, &message.request);
  } else {
    receive_chunk(w, &message);
  }
}

// A transfer goes on by a chunk.
static void step_transfers(world_t *w) {
  for (size_t i = 0; i < sizeof w->transfers / sizeof w->transfers[0]; i++) {
    transfer_t *transfer = &w->transfers[i];
    if (!transfer->used) {
      continue;
    }
    if (w->pulls) {
      transfer->hash = checksum(transfer->content, BLOCK_BYTES);
      end_transfer(w, transfer, true);
    } else if (transfer->sends) {
      transfer->hash = checksum(transfer->content, transfer->at + CHUNK_BYTES);
      const message_t data = {.kind = DATA,
                              .sequence = transfer->sequence,
                              .offset = transfer->at,
                              .hash = transfer->hash,
                              .content = transfer->content};
      send(w, &w->down, &data);
      transfer->at += CHUNK_BYTES;
      if (transfer->at == BLOCK_BYTES) {
        end_transfer(w, transfer, true);
      }
    } else {
      continue;
    }
    return;
  }
}

// ---- the client -----------------------------------------------------------------------------------------------------

static call_t *call_of(world_t *w, const bl__operation_t *operation) {
  for (size_t i = 0; i < OPERATIONS; i++) {
    if (w->calls[i].operation == operation && operation->serial == w->calls[i].serial) {
      return &w->calls[i];
    }
  }
  return NULL;
}

static void check_end(world_t *w, const call_t *call) {
  const bl__operation_t *operation = call->operation;
  const bl_status_t status = operation->err.status;
  uint64_t *promised = &w->promised[operation->slot];
  const bool excused = (call->cancelled && status == BL_CANCELLED) || (call->late && status == BL_UNAVAILABLE) ||
                       (call->damaged && status == BL_DATA_LOSS);
  if (status != BL_OK && !excused) {
    (void)violates(w, "an operation failed that was neither cancelled, late nor damaged");
  } else if (status == BL_OK && operation->type == BL__LOAD &&
             (call->mixed || call->written != BLOCK_BYTES || call->arrived != *promised)) {
    (void)violates(w, "a load gave what was not stored");
  }
  w->kept[operation->slot] = operation->type == BL__LOAD && operation->keeps && status == BL_OK;
  if (operation->type == BL__EVICT && status == BL_OK) {
    *promised = call->content;
  } else if (w->kept[operation->slot]) {
    return; // as before
  } else if (operation->type == BL__EVICT || status == BL_OK || status == BL_DATA_LOSS) {
    *promised = 0;
  } // else the block is still there
}

static void settle_client(world_t *w) {
  bl__operation_t *operation;
  while ((operation = bl__requests_take_ended(w->requests)) != NULL) {
    call_t *call = call_of(w, operation);
    bl__requests_over(w->requests, operation);
    if (call == NULL) {
      (void)violates(w, "an operation ended twice");
      return;
    }
    check_end(w, call);
    bl__requests_free(w->requests, operation);
    *call = (call_t){0};
  }
}

static void send_requests(world_t *w, size_t most) {
  bl__request_t request;
  while (most-- > 0 && w->up.count + 4 < MESSAGES && bl__requests_next(w->requests, w->now_ns, &request)) {
    if (w->requests->sequences.last - w->requests->sequences.acknowledged > BL__WINDOW) {
      (void)violates(w, "the window is passed");
    }
    const message_t message = {.kind = REQUEST, .request = request};
    send(w, &w->up, &message);
    settle_client(w);
  }
}

// A chunk of an evict goes out.
static void send_chunk(world_t *w, bool damages) {
  bl__operation_t *operation = w->requests->sending_first;
  if (operation == NULL) {
    return;
  }
  call_t *call = call_of(w, operation);
  if (call == NULL || operation->state != BL__OPERATION_SENT) {
    (void)violates(w, "what has ended is read");
    return;
  }
  const uint64_t at = operation->at + CHUNK_BYTES, hash = checksum(call->content, at);
  const message_t data = {.kind = DATA,
                          .sequence = operation->sequence,
                          .offset = operation->at,
                          .hash = hash,
                          .content = damages ? ++w->contents : call->content};
  call->damaged = call->damaged || damages;
  send(w, &w->up, &data);
  bl__requests_pushed(w->requests, operation, at, hash);
}

static void write_chunk(world_t *w, bl__operation_t *operation, uint64_t content, uint64_t bytes) {
  call_t *call = call_of(w, operation);
  if (call == NULL) {
    (void)violates(w, "what has ended is written");
    return;
  }
  const bool first = operation->at == 0;
  call->mixed = !first && (call->mixed || call->arrived != content);
  call->arrived = content;
  call->written = operation->at + bytes;
}

static void receive_message(world_t *w, bool damages, bool doubles) {
  if (w->down.count == 0) {
    return;
  }
  message_t message = take(&w->down);
  if (message.kind == DATA) {
    bl__operation_t *operation = bl__requests_coming(w->requests, message.sequence, BLOCK_BYTES, message.offset);
    if (operation != NULL) {
      const uint64_t content = damages ? ++w->contents : message.content;
      const uint64_t hash = checksum(content, operation->at + CHUNK_BYTES);
      write_chunk(w, operation, content, CHUNK_BYTES);
      call_t *call = call_of(w, operation);
      if (damages && call != NULL) {
        call->damaged = true;
      }
      bl__requests_came(w->requests, operation, CHUNK_BYTES, hash, hash == message.hash);
    }
    return;
  }
  bl__requests_answer(w->requests, &message.answer, w->now_ns);
  settle_client(w);
  if (doubles) {
    bl__requests_answer(w->requests, &message.answer, w->now_ns);
    settle_client(w);
  }
}

static void copy_block(world_t *w) {
  bl__operation_t *operation = bl__requests_copying(w->requests);
  if (operation == NULL) {
    return;
  }
  const uint64_t content = w->stored[operation->offset]; // the model's offset is the slot's id
  const bl_error_t well = {0};
  write_chunk(w, operation, content, BLOCK_BYTES);
  bl__requests_copied(w->requests, operation, checksum(content, BLOCK_BYTES), &well);
  settle_client(w);
}

// ---- callers --------------------------------------------------------------------------------------------------------

static void start_something(world_t *w) {
  call_t *call = NULL;
  for (size_t i = 0; i < OPERATIONS && call == NULL; i++) {
    call = w->calls[i].operation == NULL ? &w->calls[i] : NULL;
  }
  const bl__slot_t *slot = &w->requests->slots.slots[draw(w, w->requests->slots.count)];
  if (call == NULL || (slot->state != BL__SLOT_EMPTY && slot->state != BL__SLOT_FULL)) {
    return;
  }
  const bl__operation_type_t type = slot->state == BL__SLOT_EMPTY ? BL__EVICT
                                    : draw(w, 4) == 0             ? BL__RELEASE
                                                                  : BL__LOAD;
  bl__operation_t *operation = bl__requests_claim(w->requests, type, w->now_ns + DEADLINE_NS);
  bl_error_t err;
  if (bl__requests_use(w->requests, operation, slot->id, type == BL__RELEASE ? 0 : BLOCK_BYTES, &err) != BL_OK) {
    (void)violates(w, "a slot in the right state cannot be used");
    return;
  }
  operation->keeps = type == BL__LOAD && draw(w, 3) == 0;
  *call = (call_t){.operation = operation, .serial = operation->serial};
  if (type == BL__EVICT) {
    call->content = ++w->contents;
    operation->known = w->pulls;
    operation->checksum = checksum(call->content, BLOCK_BYTES);
    operation->from = (const uint8_t *)(uintptr_t)call->content; // never looked into: the model's memory is a number
  }
  bl__requests_submit(w->requests, operation);
}

static void cancel_something(world_t *w) {
  call_t *call = &w->calls[draw(w, OPERATIONS)];
  if (call->operation != NULL && call->operation->type != BL__RELEASE) {
    call->cancelled = true;
    bl__requests_cancel(w->requests, call->operation);
  }
}

static void pass_time(world_t *w, uint64_t ns) {
  w->now_ns += ns;
  for (size_t i = 0; i < OPERATIONS; i++) {
    call_t *call = &w->calls[i];
    call->late = call->operation != NULL && (call->late || w->now_ns >= call->operation->deadline_ns);
  }
  bl__requests_tick(w->requests, w->now_ns, NULL);
  settle_client(w);
}

// The store ends what it moved over the connection.
static void break_connection(world_t *w) {
  if (!w->requests->linked) {
    return;
  }
  w->up.count = w->down.count = 0;
  bl__requests_link_down(w->requests);
  for (size_t i = 0; i < sizeof w->transfers / sizeof w->transfers[0]; i++) {
    if (w->transfers[i].used) {
      end_transfer(w, &w->transfers[i], false);
    }
  }
}

// ---- walks ----------------------------------------------------------------------------------------------------------

static void begin(world_t *w, uint64_t seed, bool pulls) {
  *w = (world_t){.key = bl_random_key(seed, "requests"), .now_ns = SECOND_NS, .pulls = pulls, .contents = 1};
  const bl_lease_config_t config = {.capacity_bytes = UINT64_C(4) * STORE_SLOTS * BLOCK_BYTES,
                                    .max_jobs = 1,
                                    .max_sessions = 2,
                                    .max_leases = 16,
                                    .ttl_ns = TTL_NS,
                                    .ttl_floor_ns = TTL_NS,
                                    .session_flow_bytes = 2 * BLOCK_BYTES};
  bl_error_t err = {0};
  assert_int_equal(bl_lease_table_create(&config, w->now_ns, &w->table, &err), BL_OK);
  const bl_lease_open_t open = {.job = "job",
                                .process = 1,
                                .key = {.bytes = {7}},
                                .holder = {.bytes = {9}},
                                .arena_bytes = UINT64_C(2) * STORE_SLOTS * BLOCK_BYTES};
  bl_lease_opened_t opened;
  bl_lease_answer_t said;
  (void)bl_lease_table_open(w->table, &open, w->now_ns, &opened, &said);
  assert_int_equal(said.reason, BL_LEASE_GRANTED);
  bl_lease_table_arena_made(w->table, opened.job, true);
  w->session = opened.session;
  w->session_key = opened.key;
  w->requests = calloc(1, sizeof *w->requests);
  assert_non_null(w->requests);
  w->requests->store = "the model";
  bl__requests_begin(w->requests, pulls ? BL__PULL : BL__PUSH, true, 0); // heeds no credit, so that it is refused
  uint64_t sequence;
  assert_true(bl__sequences_next(&w->requests->sequences, &sequence));
  const bl_lease_request_t request = {
      .session = w->session, .key = w->session_key, .sequence = sequence, .now_ns = w->now_ns};
  const bl_lease_demand_t demand = {.bytes = BLOCK_BYTES, .count = STORE_SLOTS};
  (void)bl_lease_table_reserve(w->table, &request, 1, &demand, 1, &said);
  assert_int_equal(said.reason, BL_LEASE_GRANTED);
  bl__sequences_over(&w->requests->sequences, sequence);
  bl_lease_view_t view;
  bl__slots_begin(&w->requests->slots);
  for (uint64_t cursor = 0; bl_lease_table_list(w->table, &cursor, &view);) {
    assert_true(view.id <= STORE_SLOTS);
    assert_true(bl__slots_add(&w->requests->slots, view.id, view.generation, view.slot_bytes, true));
  }
  bl__slots_end(&w->requests->slots);
  settle_store(w);
  bl__requests_link_up(w->requests);
}

static void finish(world_t *w) {
  bl_lease_table_destroy(w->table);
  bl__requests_cleanup(w->requests);
  free(w->requests);
}

static void go_on(world_t *w) {
  const bool faulty = w->faulty;
  switch (draw(w, 8)) {
  case 0:
    send_requests(w, 1 + draw(w, 3));
    break;
  case 1:
    send_chunk(w, faulty && draw(w, 12) == 0);
    break;
  case 2:
  case 3:
    step_store(w);
    break;
  case 4:
    step_transfers(w);
    break;
  case 5:
  case 6:
    receive_message(w, faulty && draw(w, 12) == 0, faulty && draw(w, 4) == 0);
    break;
  default:
    copy_block(w);
    break;
  }
}

static void misbehave(world_t *w) {
  switch (draw(w, 12)) {
  case 0:
  case 1:
    if (!w->pulls) { // where memory is shown the end of the connection is that of the session
      break_connection(w);
    }
    break;
  case 2:
    pass_time(w, LATE_NS);
    break;
  case 3:
  case 4:
    cancel_something(w);
    pass_time(w, 1000);
    break;
  default:
    if (!w->requests->linked) {
      bl__requests_link_up(w->requests);
    }
    break;
  }
}

static bool is_quiet(const world_t *w) {
  return w->requests->busy == 0 && w->requests->sent_count == 0 && w->requests->release_count == 0 &&
         w->up.count == 0 && w->down.count == 0;
}

// Both sides say the same of every slot.
static void compare_slots(world_t *w) {
  for (size_t i = 0; i < w->requests->slots.count; i++) {
    const bl__slot_t *slot = &w->requests->slots.slots[i];
    bl_lease_view_t view;
    if (bl_lease_table_get(w->table, slot->id, &view) != BL_OK || view.generation != slot->generation) {
      (void)violates(w, "the generations of a slot differ");
    } else if (slot->state == BL__SLOT_FULL ? view.state != BL_LEASE_SEALED && view.state != BL_LEASE_LOADING
                                            : slot->state != BL__SLOT_EMPTY || view.state != BL_LEASE_RESERVED) {
      (void)violates(w, "the states of a slot differ");
    } else if (w->kept[slot->id] && view.state != BL_LEASE_SEALED) {
      (void)violates(w, "the store takes a load that kept its block for one that goes on");
    } else if (slot->state == BL__SLOT_FULL && w->stored[slot->id] != w->promised[slot->id]) {
      (void)violates(w, "a full slot does not have what was promised");
    }
  }
}

static const char *walk(uint64_t seed, bool pulls, unsigned *ended) {
  world_t *w = calloc(1, sizeof *w);
  assert_non_null(w);
  begin(w, seed, pulls);
  w->faulty = true;
  for (int i = 0; i < STEPS && w->violation == NULL; i++) {
    const uint64_t what = draw(w, 8);
    if (what == 0) {
      start_something(w);
    } else if (what == 1) {
      misbehave(w);
    } else {
      go_on(w);
    }
  }
  w->faulty = false;
  if (!w->requests->linked) {
    bl__requests_link_up(w->requests);
  }
  for (int i = 0; i < CALM_STEPS && w->violation == NULL && !is_quiet(w); i++) {
    if (i % 50 == 0) {
      pass_time(w, UINT64_C(1000000)); // so that what waits for credit is asked again
    }
    go_on(w);
  }
  if (w->violation == NULL && !is_quiet(w)) {
    (void)violates(w, "something never ends");
  }
  if (w->violation == NULL) {
    compare_slots(w);
  }
  bl_error_t err = {0};
  if (w->violation == NULL && w->requests->flow != 0) {
    (void)violates(w, "bytes in flight are left");
  }
  if (w->violation == NULL && bl_lease_table_audit(w->table, &err) != BL_OK) {
    (void)violates(w, "the table is not sound");
  }
  *ended += (unsigned)(w->requests->counters.evicted + w->requests->counters.loaded);
  const char *violation = w->violation;
  finish(w);
  free(w);
  return violation;
}

static uint64_t first_seed(void) {
  const char *given = getenv("BALLAST_SEED");
  return given != NULL ? strtoull(given, NULL, 10) : 1;
}

static unsigned walks(void) {
  return test_soak() ? 400000 : 20000;
}

static void test_sessions_are_sound(void **state) {
  (void)state;
  broken_rule = 0;
  unsigned ended = 0;
  const uint64_t first = first_seed();
  for (uint64_t seed = first; seed < first + walks(); seed++) {
    const char *violation = walk(seed, seed % 3 == 0, &ended);
    if (violation != NULL) {
      fail_msg("seed %lu (%s): %s", (unsigned long)seed, seed % 3 == 0 ? "pull" : "push", violation);
    }
  }
  printf("%u walks from seed %lu, %u blocks moved, no violation\n", walks(), (unsigned long)first, ended);
  assert_true(ended > walks()); // they did something
}

static void test_every_rule_is_needed(void **state) {
  (void)state;
  for (int rule = 1; rule <= 11; rule++) {
    broken_rule = rule;
    const char *violation = NULL;
    unsigned ended = 0;
    uint64_t seed = 0;
    while (violation == NULL && seed < 20000) {
      violation = walk(++seed, false, &ended);
    }
    printf("without rule %d: %s (seed %lu)\n", rule, violation != NULL ? violation : "no violation",
           (unsigned long)seed);
    assert_non_null(violation);
  }
  broken_rule = 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_sessions_are_sound),
      cmocka_unit_test(test_every_rule_is_needed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
