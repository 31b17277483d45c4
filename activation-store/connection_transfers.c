// SPDX-License-Identifier: Apache-2.0
// Blocks in transfer: pulled from registered memory, received from and sent to TCP connections, on transfer threads. A
// thread keeps a connection as long as bytes flow and no other work waits.
#include "connections_core.h"

#include "datapath/block.h"
#include "sys/log.h"

#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>

#define TIMEOUT_MS       1            // a transfer thread waits that long for a socket before the loop does
#define ITERATION_BYTES  (8ull << 20) // maximum per iteration while other work waits
#define ITERATION_CHUNKS (ITERATION_BYTES / BL_FRAME_CHUNK_BYTES)

// ---- on a transfer thread -------------------------------------------------------------------------------------------

static bool is_cancelled(const bl__store_transfer_t *transfer) {
  return atomic_load_explicit(&transfer->cancelled, memory_order_relaxed);
}

// Commits the memory of the slot. False: the machine has none.
static bool has_memory(const bl__store_transfer_t *transfer) {
  bl_error_t err;
  bool has = bl_arena_fill(&transfer->arena, transfer->offset, transfer->leased.bytes, &err) == BL_OK;
  if (!has) {
    bl_log(BL_LOG_ERROR, "lease %" PRIu64 ": %s", transfer->leased.id, err.text);
  }
  return has;
}

static void pull(bl_work_t *work) {
  bl__store_transfer_t *transfer = BL_WORK_OWNER(work, bl__store_transfer_t, work);
  if (!has_memory(transfer)) {
    transfer->status = BL_EXHAUSTED;
    return;
  }
  bl_error_t err = {0};
  if (transfer->connection->by == BL_PATH_CUDA_IPC) { // not interrupted: it takes less time than any caller waits
    transfer->status = is_cancelled(transfer) ? BL_CANCELLED
                                              : bl_mover_copy(transfer->connection->connections->mover, transfer->to,
                                                              transfer->from, transfer->leased.bytes, &err);
    return;
  }
  transfer->status =
      transfer->verified
          ? bl_block_copy(transfer->to, transfer->from, transfer->leased.bytes, &transfer->cancelled, &transfer->hash)
          : bl_block_copy_unverified(transfer->to, transfer->from, transfer->leased.bytes, &transfer->cancelled);
}

static bool wait_for(int fd, short events) {
  struct pollfd poll_fd = {.fd = fd, .events = events};
  return poll(&poll_fd, 1, TIMEOUT_MS) > 0;
}

// Returns whether the chunk whose body has arrived matches its frame.
static bool take_chunk(bl__store_transfer_t *transfer) {
  const bl_frame_t *frame = &transfer->connection->reader.frame;
  if (transfer->verified) {
    transfer->hash = bl_block_checksum_more(transfer->hash, transfer->to + transfer->at, frame->body_bytes);
    transfer->corrupt = transfer->hash != frame->checksum;
  }
  transfer->at += frame->body_bytes;
  return !transfer->corrupt;
}

static bool continues(const bl__store_transfer_t *transfer, const bl_frame_t *frame) {
  return frame->kind == BL_FRAME_DATA && frame->sequence == transfer->leased.sequence &&
         frame->offset == transfer->at && frame->bytes == transfer->leased.bytes;
}

// Ends with the event that the loop must handle: BODY if the block is complete or corrupt.
static void receive(bl_work_t *work) {
  bl__store_transfer_t *transfer = BL_WORK_OWNER(work, bl__store_transfer_t, work);
  bl_connection_t *connection = transfer->connection;
  bl_pool_t *pool = connection->connections->pool;
  unsigned chunks = 0;
  if (transfer->at == 0 && !has_memory(transfer)) {
    atomic_store_explicit(&transfer->cancelled, true, memory_order_relaxed);
  }
  while (!is_cancelled(transfer)) {
    transfer->came = bl_frame_reader_next(&connection->reader);
    if (transfer->came == BL_READER_BODY) {
      chunks++;
      if (!take_chunk(transfer) || transfer->at == transfer->leased.bytes) {
        return;
      }
    } else if (transfer->came == BL_READER_FRAME && continues(transfer, &connection->reader.frame)) {
      bl_frame_reader_into(&connection->reader, transfer->to + transfer->at);
    } else if (transfer->came != BL_READER_AGAIN || bl_pool_has_waiting(pool) ||
               !wait_for(connection->stream.fd, POLLIN)) {
      return;
    }
    if (chunks >= ITERATION_CHUNKS && bl_pool_has_waiting(pool) && transfer->came == BL_READER_BODY) {
      transfer->came = BL_READER_AGAIN;
      return;
    }
  }
  transfer->came = BL_READER_AGAIN;
}

static void send_block(bl_work_t *work) {
  bl__store_transfer_t *transfer = BL_WORK_OWNER(work, bl__store_transfer_t, work);
  bl_connection_t *connection = transfer->connection;
  uint64_t until = transfer->sender.at + ITERATION_BYTES;
  do { // after a cancel only the chunk in flight is finished
    transfer->went = is_cancelled(transfer) ? bl_frame_writer_flush(&connection->writer)
                                            : bl_frame_writer_send(&connection->writer, &transfer->sender, 1);
  } while (transfer->sender.at < until &&
           (transfer->went == BL_WRITER_DONE
                ? !is_cancelled(transfer) && transfer->sender.at < transfer->leased.bytes
                : transfer->went == BL_WRITER_AGAIN && wait_for(connection->stream.fd, POLLOUT)));
}

// ---- back on the loop -----------------------------------------------------------------------------------------------

static void pulled(bl_message_t *message) {
  bl__store_transfer_t *transfer = BL_MESSAGE_OWNER(message, bl__store_transfer_t, work.done);
  transfer->busy = false;
  if (transfer->status == BL_OK) {
    transfer->connection->connections->counters.bytes_copied += transfer->leased.bytes;
  }
  bl__store_transfer_end(transfer, transfer->status == BL_OK);
}

static void received(bl_message_t *message) {
  bl__store_transfer_t *transfer = BL_MESSAGE_OWNER(message, bl__store_transfer_t, work.done);
  bl_connection_t *connection = transfer->connection;
  transfer->busy = connection->reading = false;
  connection->frame_pending = transfer->came == BL_READER_FRAME;
  connection->body_stalled = transfer->came == BL_READER_AGAIN && connection->reader.in_body;
  bool whole = transfer->corrupt || transfer->at == transfer->leased.bytes;
  connection->users++; // so that the connection is not freed here
  if (connection->gone || whole || is_cancelled(transfer)) {
    bl__store_transfer_end(transfer, whole);
  } else if (transfer->came == BL_READER_END || transfer->came == BL_READER_BROKEN) {
    bl__connection_lose(connection, "%s", connection->reader.reason);
  }
  if (!connection->gone) {
    bl__connection_read(connection);
  }
  connection->users--;
  bl__connection_free_if_unused(connection);
}

static void sent(bl_message_t *message) {
  bl__store_transfer_t *transfer = BL_MESSAGE_OWNER(message, bl__store_transfer_t, work.done);
  bl_connection_t *connection = transfer->connection;
  transfer->busy = connection->writing = false;
  connection->write_blocked = transfer->went == BL_WRITER_AGAIN;
  if (connection->gone) {
    bl__store_transfer_end(transfer, false);
    return;
  }
  if (transfer->went == BL_WRITER_BROKEN) {
    bl__connection_lose(connection, "writing failed");
    return;
  }
  bool whole = transfer->sender.at == transfer->leased.bytes && connection->writer.chunk_bytes == 0;
  connection->users++; // both may end the connection
  if (whole || (is_cancelled(transfer) && connection->writer.chunk_bytes == 0)) {
    bl__store_transfer_end(transfer, whole);
  }
  bl__connection_flush(connection);
  connection->users--;
  bl__connection_free_if_unused(connection);
}

// ---- beginning and ending -------------------------------------------------------------------------------------------

// Returns the tier of the arena in which a slot lies, and makes *offset_bytes the offset in it. NULL: in none.
static const bl_arena_t *find_tier(const bl_connection_t *connection, uint64_t bytes, uint64_t *offset_bytes) {
  for (unsigned i = 0; i < BL_LEASE_TIERS; i++) {
    const bl_arena_t *tier = connection->arenas.tiers[i];
    if (tier != NULL && *offset_bytes < tier->bytes) {
      return bytes <= tier->bytes - *offset_bytes ? tier : NULL;
    }
    *offset_bytes -= tier != NULL ? tier->bytes : 0;
  }
  return NULL;
}

bl__store_transfer_t *bl__store_transfer_begin(bl_connection_t *connection, bl__store_transfer_kind_t kind,
                                               const bl_leased_block_t *leased) {
  bl_connections_t *connections = connection->connections;
  uint64_t offset = leased->offset_bytes;
  const bl_arena_t *tier = find_tier(connection, leased->bytes, &offset);
  if (connection->gone || leased->bytes == 0 || tier == NULL) {
    return NULL;
  }
  bl__store_transfer_t *transfer = STAILQ_FIRST(&connections->unused);
  if (transfer != NULL) {
    STAILQ_REMOVE_HEAD(&connections->unused, listed);
  } else if ((transfer = calloc(1, sizeof *transfer)) == NULL) {
    return NULL;
  }
  *transfer = (bl__store_transfer_t){.connection = connection,
                                     .kind = kind,
                                     .leased = *leased,
                                     .arena = *tier,
                                     .offset = offset,
                                     .to = tier->base + offset,
                                     .verified = !connection->unverified};
  atomic_init(&transfer->cancelled, false);
  STAILQ_INSERT_TAIL(&connection->transfers, transfer, listed);
  connection->users++;
  return transfer;
}

void bl__store_transfer_drop(bl__store_transfer_t *transfer) {
  bl_connection_t *connection = transfer->connection;
  bl_connections_t *connections = connection->connections;
  STAILQ_REMOVE(&connection->transfers, transfer, bl__store_transfer, listed);
  STAILQ_INSERT_HEAD(&connections->unused, transfer, listed);
  connection->users--;
}

void bl__store_transfer_end(bl__store_transfer_t *transfer, bool moved) {
  bl_connection_t *connection = transfer->connection;
  bl_connections_t *connections = connection->connections;
  if (connection->coming == transfer) {
    connection->coming = NULL;
    if (!connection->reading) {
      bl_frame_reader_into(&connection->reader, NULL);
    }
  }
  bl__region_t *region = transfer->region;
  bl_leased_block_t leased = transfer->leased;
  uint64_t hash = transfer->hash;
  if (transfer->kind ==
      // Read only on the loop: if the connection is lost, another transfer may own the reader.
      BL__STORE_TRANSFER_RECEIVE) {
    leased.checksum =
        // Of the last chunk: it covers the whole block.
        moved && transfer->verified ? connection->reader.frame.checksum : 0;
  }
  if (!transfer->verified ||
      transfer->kind == BL__STORE_TRANSFER_SEND) { // a load is verified by its receiver, against the recorded checksum
    hash = leased.checksum;
  }
  connection->users++; // what follows may end the connection, which ends the transfers that it still has
  bl__store_transfer_drop(transfer);
  if (region != NULL) {
    bl__region_release(region);
  }
  connections->callbacks.on_moved(connections->context, &leased, moved, hash);
  connection->users--;
  bl__connection_free_if_unused(connection);
}

bool bl__store_transfer_pull(bl_connection_t *connection, const bl_leased_block_t *leased, uint32_t number,
                             uint64_t region_offset) {
  bl__region_t *region = bl__region_at(connection, number, region_offset, leased->bytes);
  bl__store_transfer_t *transfer =
      region != NULL ? bl__store_transfer_begin(connection, BL__STORE_TRANSFER_PULL, leased) : NULL;
  if (transfer == NULL) {
    return false;
  }
  transfer->region = region;
  region->users++;
  transfer->from = region->map.base + region_offset;
  transfer->work = (bl_work_t){.run = pull, .done = {.handle = pulled}};
  transfer->busy = true;
  bl_pool_submit(connection->connections->pool, &transfer->work);
  return true;
}

bool bl__store_transfer_receive(bl_connection_t *connection, const bl_leased_block_t *leased) {
  bl__store_transfer_t *transfer = bl__store_transfer_begin(connection, BL__STORE_TRANSFER_RECEIVE, leased);
  if (transfer != NULL) {
    transfer->work = (bl_work_t){.run = receive, .done = {.handle = received}};
  }
  return transfer != NULL;
}

bool bl__store_transfer_send(bl_connection_t *connection, const bl_leased_block_t *leased) {
  bl__store_transfer_t *transfer = bl__store_transfer_begin(connection, BL__STORE_TRANSFER_SEND, leased);
  if (transfer != NULL) {
    transfer->sender = (bl_frame_sender_t){.frame = {.bytes = leased->bytes, .sequence = leased->sequence},
                                           .from = transfer->to,
                                           .verified = transfer->verified};
    transfer->work = (bl_work_t){.run = send_block, .done = {.handle = sent}};
    bl__connection_flush(connection);
  }
  return transfer != NULL;
}

void bl_connections_cancel(bl_connections_t *connections, uint64_t id, uint64_t generation) {
  bl_connection_t *connection;
  LIST_FOREACH(connection, &connections->all, listed) {
    bl__store_transfer_t *transfer;
    STAILQ_FOREACH(transfer, &connection->transfers, listed) {
      if (transfer->leased.id != id || transfer->leased.generation != generation) {
        continue;
      }
      atomic_store_explicit(&transfer->cancelled, true, memory_order_relaxed);
      bool begun =
          transfer->kind == BL__STORE_TRANSFER_SEND && connection->writer.chunk_bytes > 0 && transfer->sender.at > 0;
      if (!transfer->busy && !begun) {
        bl__store_transfer_end(transfer, false); // this may free the connection
      }
      return;
    }
  }
}

// ---- for the connection ---------------------------------------------------------------------------------------------

static void submit_receive(bl_connection_t *connection, bl__store_transfer_t *transfer) {
  connection->coming = transfer;
  connection->reading = transfer->busy = true;
  bl_pool_submit(connection->connections->pool, &transfer->work);
}

void bl__store_transfers_data(bl_connection_t *connection) {
  const bl_frame_t *frame = &connection->reader.frame;
  bl__store_transfer_t *transfer = STAILQ_FIRST(&connection->transfers);
  while (transfer != NULL &&
         (transfer->kind != BL__STORE_TRANSFER_RECEIVE || transfer->leased.sequence != frame->sequence)) {
    transfer = STAILQ_NEXT(transfer, listed);
  }
  if (transfer == NULL) {
    bl_frame_reader_into(&connection->reader, NULL); // of a request that was refused or cancelled
  } else if (!continues(transfer, frame)) {
    bl__connection_lose(connection, "DATA at offset %" PRIu64 " where %" PRIu64 " was to come", frame->offset,
                        transfer->at);
  } else {
    bl_frame_reader_into(&connection->reader, transfer->to + transfer->at);
    submit_receive(connection, transfer);
  }
}

void bl__store_transfers_continue_reading(bl_connection_t *connection) {
  bl__store_transfer_t *transfer = connection->coming;
  if (transfer != NULL && !connection->reading && connection->reader.in_body) {
    submit_receive(connection, transfer);
  }
}

void bl__store_transfers_continue_writing(bl_connection_t *connection) {
  bl__store_transfer_t *transfer = STAILQ_FIRST(&connection->transfers);
  while (transfer != NULL && transfer->kind != BL__STORE_TRANSFER_SEND) {
    transfer = STAILQ_NEXT(transfer, listed);
  }
  if (transfer != NULL) {
    connection->writing = transfer->busy = true;
    bl_pool_submit(connection->connections->pool, &transfer->work);
  }
}

static bl__store_transfer_t *first_idle(bl_connection_t *connection) {
  bl__store_transfer_t *transfer = STAILQ_FIRST(&connection->transfers);
  while (transfer != NULL && transfer->busy) {
    transfer = STAILQ_NEXT(transfer, listed);
  }
  return transfer;
}

void bl__store_transfers_lose(bl_connection_t *connection) {
  bl__store_transfer_t *transfer;
  STAILQ_FOREACH(transfer, &connection->transfers, listed) {
    atomic_store_explicit(&transfer->cancelled, true, memory_order_relaxed);
  }
  while ((transfer = first_idle(connection)) != NULL) { // what one was for may end others
    bl__store_transfer_end(transfer, false);
  }
}

void bl__store_transfers_free(bl_connections_t *connections) {
  for (bl__store_transfer_t *transfer; (transfer = STAILQ_FIRST(&connections->unused)) != NULL;) {
    STAILQ_REMOVE_HEAD(&connections->unused, listed);
    free(transfer);
  }
}
