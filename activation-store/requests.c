// SPDX-License-Identifier: Apache-2.0
// The path of a request (EVICT, LOAD, RELEASE, KEEP) of a client from its frame to its answer:
//
//   1  connections.c     its frame has arrived (on_frame); its number and the time are recorded
//      transfer_queue.c  if blocks take turns: an EVICT or LOAD of a holder on this machine waits for its turn
//   2  bl__on_request    the lease table (lib/lease/table.h) grants it, refuses it or lets it wait
//   3  begin             granted: the transfer begins (connection_transfers.c; over NCCL connection_nccl.c)
//   4                    a transfer thread or NCCL moves the bytes
//   5  bl__on_moved      the outcome is reported to the table
//   6  done              the table has the answer: bl__on_later_answer
//   7  connection.c      the answer is sent (bl_connection_answer)
//
// A request that is refused or done at once skips from 2 to 7. Requests that arrive as remote calls (service_wire.c)
// enter at bl_store_evict and bl_store_load, and their answers leave through the observer.
#include "store_core.h"
#include "sys/clock.h"

#include <inttypes.h>

// ---- 2: ask the table -----------------------------------------------------------------------------------------------

static bl_lease_request_t request_of(const bl_store_t *store, const bl_connection_t *connection,
                                     const bl_frame_t *frame) {
  bl_lease_request_t request = {.session = bl_connection_session(connection),
                                .sequence = frame->sequence,
                                .acknowledged = frame->acknowledged,
                                .now_ns = bl_clock_now_ns()};
  bl_lease_opened_t opened;
  if (bl_lease_table_opened(store->table, request.session, &opened)) {
    request.key = opened.key; // the greeting presented it
  }
  return request;
}

static void end_turn(bl_store_t *store, uint64_t session, const bl_frame_t *frame) {
  if (store->queue != NULL) {
    bl_transfer_queue_end(store->queue, session, frame->id, frame->generation);
  }
}

static bl_status_t ask(bl_store_t *store, const bl_lease_request_t *request, const bl_frame_t *frame,
                       bl_lease_decision_t *decision, bl_lease_answer_t *answer, bl_error_t *err) {
  const bl_lease_token_t token = {.incarnation = bl_lease_table_config(store->table)->incarnation,
                                  .id = frame->id,
                                  .generation = frame->generation};
  if (frame->kind == BL_FRAME_EVICT) {
    const bl_lease_evict_t evict = {
        .token = token,
        .bytes = frame->bytes,
        .checksum = frame->checksum,
        .label = {.step = frame->step, .chunk = frame->chunk, .micro_batch = frame->micro_batch}};
    const bl_store_region_t region = {.number = frame->region, .offset_bytes = frame->offset};
    return bl_store_evict(store, request, &evict, &region, decision, answer, err);
  }
  if (frame->kind == BL_FRAME_LOAD) {
    *decision = bl_store_load(store, request, &token, answer);
  } else if (frame->kind == BL_FRAME_KEEP) {
    *decision = bl_lease_table_keep(store->table, request, &token, frame->checksum, answer);
  } else {
    *decision = bl_lease_table_release(store->table, request, &token, frame->loaded ? &frame->checksum : NULL, answer);
  }
  return BL_OK;
}

// The answer may end the connection.
static void serve(bl_store_t *store, bl_connection_t *connection, const bl_frame_t *frame) {
  const bl_lease_request_t request = request_of(store, connection, frame);
  bl_lease_decision_t decision;
  bl_lease_answer_t answer = {0};
  bl_error_t err = {0};
  if (ask(store, &request, frame, &decision, &answer, &err) != BL_OK) {
    bl_connection_fail(connection, frame->sequence, &err);
    end_turn(store, request.session, frame);
    return;
  }
  if (decision == BL_LEASE_DONE) {
    bl_connection_answer(connection, request.sequence, &answer,
                         frame->kind == BL_FRAME_EVICT  ? "evict"
                         : frame->kind == BL_FRAME_LOAD ? "load"
                         : frame->kind == BL_FRAME_KEEP ? "keep"
                                                        : "release");
  }
  // A turn ends when the holder reports the end of its own load, or in bl__on_moved for what the store moves.
  const bool loads = frame->kind == BL_FRAME_LOAD && answer.reason == BL_LEASE_GRANTED;
  if (decision == BL_LEASE_DONE && !loads) {
    end_turn(store, request.session, frame);
  }
  bl_store_carry_out(store);
}

// Returns the bytes that an EVICT or LOAD moves.
static uint64_t bytes_of(const bl_store_t *store, const bl_frame_t *frame) {
  bl_lease_view_t lease;
  return frame->kind == BL_FRAME_EVICT                                  ? frame->bytes
         : bl_lease_table_get(store->table, frame->id, &lease) == BL_OK ? lease.block_bytes
                                                                        : 0;
}

void bl__on_turn(void *context, const bl_queued_request_t *request) {
  bl_store_t *store = context;
  bl_connection_t *connection = bl_connections_find(store->connections, request->session);
  if (connection != NULL) { // else the client resends it over the next connection
    serve(store, connection, &request->frame);
  } else {
    end_turn(store, request->session, &request->frame);
  }
}

void bl__on_request(void *context, bl_connection_t *connection, const bl_frame_t *frame) {
  bl_store_t *store = context;
  const bool transfers = frame->kind == BL_FRAME_EVICT || frame->kind == BL_FRAME_LOAD;
  if (store->queue != NULL && bl_connection_is_shm(connection)) {
    if (transfers) {
      const bl_queued_request_t request = {
          .session = bl_connection_session(connection), .bytes = bytes_of(store, frame), .frame = *frame};
      if (!bl_transfer_queue_ask(store->queue, &request)) {
        return;
      }
    } else {
      bl_transfer_queue_hurry(store->queue, bl_connection_session(connection), frame->id);
    }
  }
  serve(store, connection, frame);
}

// ---- 3: begin -------------------------------------------------------------------------------------------------------

static bl_leased_block_t leased_block_of(const bl_lease_request_t *request, const bl_lease_answer_t *answer) {
  return (bl_leased_block_t){.id = answer->id,
                             .generation = answer->generation,
                             .sequence = request->sequence,
                             .offset_bytes = answer->offset_bytes,
                             .bytes = answer->bytes,
                             .checksum = answer->checksum};
}

// Answers a request whose transfer could not begin, with BL_LEASE_TRANSFER.
static void not_begun(bl_store_t *store, const bl_lease_answer_t *answer) {
  bl_lease_table_transfer_ended(store->table, answer->id, answer->generation, false, 0, bl_clock_now_ns());
  if (store->queue != NULL) {
    bl_transfer_queue_end(store->queue, 0, answer->id, answer->generation);
  }
}

bl_status_t bl_store_evict(bl_store_t *store, const bl_lease_request_t *request, const bl_lease_evict_t *evict,
                           const bl_store_region_t *region, bl_lease_decision_t *decision, bl_lease_answer_t *answer,
                           bl_error_t *err) {
  bl_connection_t *connection = bl_connections_find(store->connections, request->session);
  if (connection != NULL && bl_connection_is_shm(connection) &&
      !bl_connection_has(connection, region->number, region->offset_bytes, evict->bytes)) {
    return bl_error_set(err, BL_INVALID,
                        "cannot evict lease %" PRIu64 ": %" PRIu64 " bytes at offset %" PRIu64 " of source %" PRIu32
                        " lie outside of what the session showed over the data path",
                        evict->token.id, evict->bytes, region->offset_bytes, region->number);
  }
  *decision = bl_lease_table_evict(store->table, request, evict, answer);
  if (*decision == BL_LEASE_BEGIN) {
    bl_leased_block_t leased = leased_block_of(request, answer);
    if (connection == NULL || !bl_connection_evict(connection, &leased, region->number, region->offset_bytes)) {
      not_begun(store, answer);
    }
  }
  return BL_OK;
}

bl_lease_decision_t bl_store_load(bl_store_t *store, const bl_lease_request_t *request, const bl_lease_token_t *token,
                                  bl_lease_answer_t *answer) {
  bl_connection_t *connection = bl_connections_find(store->connections, request->session);
  bool sends = connection != NULL && !bl_connection_is_shm(connection);
  bl_lease_decision_t decision = bl_lease_table_load(store->table, request, token, sends, answer);
  if (decision == BL_LEASE_BEGIN) {
    bl_leased_block_t leased = leased_block_of(request, answer);
    if (!bl_connection_load(connection, &leased)) {
      not_begun(store, answer);
    }
  }
  return decision;
}

// ---- 5 to 7: the answer ---------------------------------------------------------------------------------------------

void bl__on_moved(void *context, const bl_leased_block_t *leased, bool whole, uint64_t computed_checksum) {
  bl_store_t *store = context;
  bl_lease_table_set_checksum(store->table, leased->id, leased->generation, leased->checksum);
  bl_lease_table_transfer_ended(store->table, leased->id, leased->generation, whole, computed_checksum,
                                bl_clock_now_ns());
  if (store->queue != NULL) {
    bl_transfer_queue_end(store->queue, 0, leased->id, leased->generation);
  }
  bl_store_carry_out(store);
}

void bl__on_later_answer(bl_store_t *store, uint64_t session, uint64_t sequence, const bl_lease_answer_t *answer) {
  bl_connections_answer(store->connections, session, sequence, answer);
  store->observer.on_later_answer(store->observer.context, session, sequence, answer);
}

void bl__on_answered(void *context, bl_frame_kind_t kind, uint64_t began_ns) {
  const bl_store_t *store = context;
  store->observer.on_answered(store->observer.context, kind, began_ns);
}
