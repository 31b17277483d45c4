// SPDX-License-Identifier: Apache-2.0
// Work on the data connection: sends what requests.h returns, moves the bytes of blocks, reads the store's answers.
// An iteration does a bounded part of it, so that other users of the loop run, too.
#include "client/client_core.h"
#include "datapath/block.h"
#include "sys/clock.h"

#include <errno.h>
#include <string.h>

#define CHUNKS       4u                      // sent before answers are read
#define TICK_NS      (UINT64_C(9) * 1000000) // below the timer's period
#define FRAMES       64                      // handled in one iteration
#define COPIED_BYTES (UINT64_C(2) << 20)     // in one iteration

// ---- ends -----------------------------------------------------------------------------------------------------------

// Afterwards nothing reads or writes the operation's memory.
static void let_go(bl_client_t *client, const bl__operation_t *operation) {
  bl_frame_writer_t *writer = &client->writer;
  if (operation->type == BL__EVICT) {
    client->sending = client->sending == operation ? NULL : client->sending;
    if (client->link == BL__CONNECTION_UP && writer->chunk_bytes > 0 && writer->chunk >= operation->from &&
        writer->chunk < operation->from + operation->bytes) { // the chunk in flight continues from memory of the client
      (void)bl_frame_writer_let_go(writer, client->side);
    }
  } else if (operation->type == BL__LOAD && client->coming == operation) {
    client->coming = NULL;
    bl_frame_reader_into(&client->reader, NULL);
  }
  if (operation->wipe && client->device == NULL) { // bytes that are not the block's must not be taken for it
    memset(operation->to, 0, operation->take);
  } else if (operation->wipe) {
    (void)!bl_device_fill(client->device, NULL, operation->to, 0, operation->bytes, NULL);
  }
}

static void show_ended(bl_client_t *client, const bl__operation_t *operation) {
  bl__client_region_t *region = &client->regions[operation->region];
  const bool well = operation->err.status == BL_OK;
  region->registered = well;
  region->used = well || operation->internal;
  region->unanswered = operation->err.status == BL_UNAVAILABLE;
  if (operation->internal) {
    client->registered = true;
    client->opening_err = operation->err;
  }
}

void bl__transfer_finish_ended(bl_client_t *client) {
  bl__operation_t *operation;
  pthread_mutex_lock(&client->mutex);
  while ((operation = bl__requests_take_ended(&client->requests)) != NULL) {
    pthread_mutex_unlock(&client->mutex);
    let_go(client, operation);
    const bl_client_ticket_t ticket = {.index = (uint32_t)(operation - client->requests.operations),
                                       .serial = operation->serial};
    const bool internal = operation->internal;
    pthread_mutex_lock(&client->mutex);
    if (operation->type == BL__REGISTER) {
      show_ended(client, operation);
    }
    bl__operation_over(client, operation); // its caller owns it from here on
    pthread_mutex_unlock(&client->mutex);
    if (!internal && client->on_end != NULL) {
      client->on_end(client->context, client, ticket);
    }
    pthread_mutex_lock(&client->mutex);
  }
  pthread_mutex_unlock(&client->mutex);
}

// ---- sending --------------------------------------------------------------------------------------------------------

static const bl_frame_kind_t kinds[] = {[BL__EVICT] = BL_FRAME_EVICT,
                                        [BL__LOAD] = BL_FRAME_LOAD,
                                        [BL__RELEASE] = BL_FRAME_RELEASE,
                                        [BL__REGISTER] = BL_FRAME_REGISTER,
                                        [BL__UNREGISTER] = BL_FRAME_UNREGISTER};

// Computes the checksum if the caller has not given it.
static void add_checksum(bl_client_t *client, bl__request_t *request) {
  const bl__operation_t *operation = request->operation;
  if (request->type != BL__EVICT || operation == NULL || operation->known || client->requests.kind != BL__PULL ||
      !client->requests.verified) {
    return;
  }
  request->sent.checksum = bl_block_checksum(operation->from, operation->bytes);
  pthread_mutex_lock(&client->mutex);
  bl__requests_checked(&client->requests, request, request->sent.checksum);
  pthread_mutex_unlock(&client->mutex);
}

// False: it cannot be sent now.
static bool put(bl_client_t *client, bl__request_t *request) {
  add_checksum(client, request);
  const bl__sent_t *sent = &request->sent;
  const bl_frame_t frame = {.kind = sent->keeps ? BL_FRAME_KEEP : kinds[request->type],
                            .sequence = sent->sequence,
                            .acknowledged = sent->sequence != 0 ? request->acknowledged : 0,
                            .id = sent->id,
                            .generation = sent->generation,
                            .bytes = sent->bytes,
                            .offset = sent->region_offset,
                            .checksum = sent->checksum,
                            .loaded = sent->loaded && !sent->keeps,
                            .region = sent->region,
                            .step = sent->label.step,
                            .chunk = sent->label.chunk,
                            .micro_batch = sent->label.micro_batch};
  const bool shows = request->type == BL__REGISTER;
  if (bl_frame_writer_put(&client->writer, &frame, NULL, shows ? &request->operation->fd : NULL, shows ? 1 : 0)) {
    return true;
  }
  if (sent->sequence != 0) {
    bl__connection_lost(client, "too much is queued"); // cannot happen: the window is smaller
  } else {                                             // the writer still holds the descriptors of other requests
    pthread_mutex_lock(&client->mutex);
    bl__requests_put_back(&client->requests, request->operation);
    pthread_mutex_unlock(&client->mutex);
  }
  return false;
}

static void send_requests(bl_client_t *client, uint64_t now_ns) {
  bl__request_t request;
  bool more = true;
  while (more && client->link == BL__CONNECTION_UP) {
    pthread_mutex_lock(&client->mutex);
    more = bl__requests_next(&client->requests, now_ns, &request);
    pthread_mutex_unlock(&client->mutex);
    more = more && put(client, &request);
    if (more && client->shm && request.type == BL__EVICT &&
        bl_frame_writer_flush(&client->writer) == BL_WRITER_BROKEN) {
      bl__connection_lost(client, strerror(errno)); // the store begins while the checksum of the next block is computed
    }
  }
}

// Returns the evict whose bytes are to be sent now. NULL: none.
static bl__operation_t *next_sending(bl_client_t *client) {
  pthread_mutex_lock(&client->mutex);
  bl__operation_t *operation = client->requests.sending_first;
  pthread_mutex_unlock(&client->mutex);
  const bool fresh =
      operation != client->sending || (operation != NULL && client->sender.frame.sequence != operation->sequence);
  if (fresh && operation != NULL) {
    client->sender = (bl_frame_sender_t){.frame = {.bytes = operation->bytes, .sequence = operation->sequence},
                                         .from = operation->from,
                                         .verified = client->requests.verified};
  }
  client->sending = operation;
  return operation;
}

// Writes as much as the socket accepts.
static void write_out(bl_client_t *client) {
  bl_frame_writer_result_t result = bl_frame_writer_flush(&client->writer);
  bl__operation_t *operation = result == BL_WRITER_DONE ? next_sending(client) : NULL;
  if (operation != NULL) {
    result = bl_frame_writer_send(&client->writer, &client->sender, CHUNKS);
    pthread_mutex_lock(&client->mutex);
    bl__requests_pushed(&client->requests, operation, client->sender.at, client->sender.hash);
    pthread_mutex_unlock(&client->mutex);
  }
  if (result == BL_WRITER_BROKEN) {
    bl__connection_lost(client, strerror(errno));
  }
  client->blocked = result == BL_WRITER_AGAIN;
}

// ---- copying --------------------------------------------------------------------------------------------------------

// Returns where a slot lies in the memory that the store shares. NULL: nowhere.
static const uint8_t *slot_at(const bl_client_t *client, uint64_t offset, uint64_t bytes) {
  for (size_t i = 0; i < client->part_count; i++) {
    const bl_peer_memory_t *part = &client->parts[i];
    if (offset < part->bytes) {
      return bytes <= part->bytes - offset ? part->base + offset : NULL;
    }
    offset -= part->bytes;
  }
  return NULL;
}

static bool all_wanted(const bl__operation_t *operation, uint64_t at, uint64_t bytes) {
  return at >= operation->skip && at + bytes <= operation->skip + operation->take;
}

// Copies the wanted ones of `bytes` of a block that begin at its byte `at`.
static void take_wanted(const bl__operation_t *operation, const uint8_t *from, uint64_t at, uint64_t bytes) {
  const uint64_t begin = at > operation->skip ? at : operation->skip;
  const uint64_t wanted = operation->skip + operation->take, end = at + bytes < wanted ? at + bytes : wanted;
  if (begin < end) {
    memcpy(operation->to + (begin - operation->skip), from + (begin - at), end - begin);
  }
}

// Copies bytes of a block of which a part is wanted. The copied bytes are the verified ones, so bytes at the edges of
// the part pass through `aside`.
static void copy_pieces(bl_client_t *client, bl__operation_t *operation, const uint8_t *from, uint64_t bytes) {
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t at = operation->at + done, rest = bytes - done;
    const uint64_t piece = rest < BL_BLOCK_PIECE_BYTES ? rest : BL_BLOCK_PIECE_BYTES;
    const bool straight = all_wanted(operation, at, piece);
    const bool passes = !straight && at < operation->skip + operation->take && at + piece > operation->skip;
    uint8_t *to = straight ? operation->to + (at - operation->skip) : client->aside;
    if (!straight && !passes) {
      operation->hash =
          client->requests.verified ? bl_block_checksum_more(operation->hash, from + done, piece) : operation->hash;
    } else if (client->requests.verified) {
      operation->hash = bl_block_copy_part(to, from + done, piece, operation->bytes, operation->hash);
    } else {
      bl_block_copy_part_unverified(to, from + done, piece, operation->bytes);
    }
    if (passes) {
      take_wanted(operation, client->aside, at, piece);
    }
    done += piece;
  }
}

// Copies a part of a block. True: the block is complete, or cannot be.
static bool copy_part(bl_client_t *client, bl__operation_t *operation, bl_error_t *err) {
  const uint8_t *from = slot_at(client, operation->offset, operation->bytes);
  if (from == NULL) {
    (void)bl_error_set(err, BL_INTERNAL, "the store answers with a slot outside of its memory");
    return true;
  }
  if (client->by == BL_PATH_CUDA_IPC) {
    (void)!bl_mover_copy(client->mover, operation->to, from, operation->bytes, err);
    return true;
  }
  const uint64_t rest = operation->bytes - operation->at, part = rest < COPIED_BYTES ? rest : COPIED_BYTES;
  const uint64_t at = operation->at;
  if (operation->take < operation->bytes) {
    copy_pieces(client, operation, from + at, part);
  } else if (client->requests.verified) {
    operation->hash = bl_block_copy_part(operation->to + at, from + at, part, operation->bytes, operation->hash);
  } else {
    bl_block_copy_part_unverified(operation->to + at, from + at, part, operation->bytes);
  }
  operation->at += part;
  return operation->at == operation->bytes;
}

// False: nothing to copy.
static bool copy_blocks(bl_client_t *client) {
  pthread_mutex_lock(&client->mutex);
  bl__operation_t *operation = bl__requests_copying(&client->requests);
  pthread_mutex_unlock(&client->mutex);
  if (operation == NULL) {
    return false;
  }
  bl_error_t err = {0};
  if (copy_part(client, operation, &err)) { // no other thread ends it
    pthread_mutex_lock(&client->mutex);
    bl__requests_copied(&client->requests, operation, operation->hash, &err);
    pthread_mutex_unlock(&client->mutex);
    bl__transfer_finish_ended(client);
  }
  return true;
}

// ---- reading --------------------------------------------------------------------------------------------------------

static void on_data(bl_client_t *client) {
  const bl_frame_t *frame = &client->reader.frame;
  pthread_mutex_lock(&client->mutex);
  client->coming = bl__requests_coming(&client->requests, frame->sequence, frame->bytes, frame->offset);
  pthread_mutex_unlock(&client->mutex);
  const bl__operation_t *operation = client->coming;
  uint8_t *to = NULL;
  if (operation != NULL) {
    to = all_wanted(operation, frame->offset, frame->body_bytes) ? operation->to + (frame->offset - operation->skip)
                                                                 : client->aside;
  }
  bl_frame_reader_into(&client->reader, to);
}

static void on_chunk(bl_client_t *client) {
  bl__operation_t *operation = client->coming;
  const bl_frame_t *frame = &client->reader.frame;
  client->coming = NULL;
  if (operation == NULL) {
    return;
  }
  uint64_t hash = 0;
  const bool straight = all_wanted(operation, operation->at, frame->body_bytes);
  const uint8_t *came = straight ? operation->to + (operation->at - operation->skip) : client->aside;
  if (client->requests.verified) { // while it is in the cache
    hash = bl_block_checksum_more(operation->hash, came, frame->body_bytes);
  }
  if (!straight) {
    take_wanted(operation, came, operation->at, frame->body_bytes);
  }
  pthread_mutex_lock(&client->mutex);
  bl__requests_came(&client->requests, operation, frame->body_bytes, hash,
                    !client->requests.verified || hash == frame->checksum);
  pthread_mutex_unlock(&client->mutex);
}

void bl__transfer_answer(bl_client_t *client, const bl__answer_t *answer) {
  pthread_mutex_lock(&client->mutex);
  bl__requests_answer(&client->requests, answer, bl_clock_now_ns());
  pthread_mutex_unlock(&client->mutex);
  bl__transfer_finish_ended(client);
}

static void on_answer(bl_client_t *client) {
  const bl_frame_t *frame = &client->reader.frame;
  const bl__answer_t answer = {.sequence = frame->sequence,
                               .status = frame->status,
                               .id = frame->id,
                               .generation = frame->generation,
                               .bytes = frame->bytes,
                               .offset = frame->offset,
                               .checksum = frame->checksum,
                               .retry_after_ms = frame->retry_after_ms,
                               .text = client->reader.text};
  if (!bl__nccl_keeps_answer(client, &answer)) {
    bl__transfer_answer(client, &answer);
  }
}

static void on_shown(bl_client_t *client) {
  const bl_frame_t *frame = &client->reader.frame;
  pthread_mutex_lock(&client->mutex);
  bl__requests_registered(&client->requests, frame->kind == BL_FRAME_REGISTERED ? BL__REGISTER : BL__UNREGISTER,
                          frame->region, frame->status, client->reader.text);
  pthread_mutex_unlock(&client->mutex);
  bl__transfer_finish_ended(client);
}

static void on_frame(bl_client_t *client) {
  const bl_frame_t *frame = &client->reader.frame;
  bl_error_t err;
  switch (frame->kind) {
  case BL_FRAME_ANSWER:
    on_answer(client);
    break;
  case BL_FRAME_GO:
    bl__nccl_transfer_begin(client);
    break;
  case BL_FRAME_DATA:
    on_data(client);
    break;
  case BL_FRAME_REGISTERED:
  case BL_FRAME_UNREGISTERED:
    on_shown(client);
    break;
  case BL_FRAME_BYE:
    (void)bl_error_set(&err, frame->status, "the store at %s ended the session: %s", client->store,
                       client->reader.text);
    bl__lose(client, &err);
    break;
  default:
    bl__connection_lost(client, "it sends what a store does not send");
    break;
  }
}

// False: nothing arrived.
static bool read_frames(bl_client_t *client) {
  for (int i = 0; i < FRAMES && client->link == BL__CONNECTION_UP; i++) {
    switch (bl_frame_reader_next(&client->reader)) {
    case BL_READER_FRAME:
      on_frame(client);
      break;
    case BL_READER_BODY:
      on_chunk(client);
      break;
    case BL_READER_AGAIN:
      return i > 0;
    case BL_READER_END:
    case BL_READER_BROKEN:
      bl__connection_lost(client, client->reader.reason);
      return true;
    }
  }
  return true;
}

// ---- an iteration ---------------------------------------------------------------------------------------------------

// Runs from time to time, and when an operation was cancelled: it looks at every operation.
static void look_at_time(bl_client_t *client, uint64_t now_ns) {
  const bool down = client->link != BL__CONNECTION_UP && client->link_why[0] != '\0';
  pthread_mutex_lock(&client->mutex);
  const bool due = client->requests.cancels || now_ns >= client->tick_ns;
  const bool cut = due && bl__requests_must_cut(&client->requests, now_ns);
  pthread_mutex_unlock(&client->mutex);
  if (!due) {
    return;
  }
  client->tick_ns = now_ns + TICK_NS;
  if (cut) {
    // Nothing else stops the transfer that may write its memory.
    bl__connection_lost(client, "a load that had begun was cancelled");
  }
  pthread_mutex_lock(&client->mutex);
  bl__requests_tick(&client->requests, now_ns, down ? client->link_why : NULL);
  pthread_mutex_unlock(&client->mutex);
  bl__transfer_finish_ended(client);
}

void bl__transfer_iterate(bl_client_t *client, uint64_t now_ns, bool *more) {
  look_at_time(client, now_ns);
  bool moved = false;
  if (client->link == BL__CONNECTION_UP) {
    send_requests(client, now_ns);
    bl__transfer_finish_ended(client); // operations that needed no message to the store
  }
  if (client->link == BL__CONNECTION_UP) {
    write_out(client);
  }
  if (client->link == BL__CONNECTION_UP) {
    moved = read_frames(client);
  }
  if (client->link == BL__CONNECTION_UP) {
    moved = copy_blocks(client) || moved;
  }
  if (client->link == BL__CONNECTION_UP) {
    moved = bl__nccl_iterate(client) || moved;
  }
  pthread_mutex_lock(&client->mutex);
  const bool sends = client->requests.sending_first != NULL;
  pthread_mutex_unlock(&client->mutex);
  *more = client->link == BL__CONNECTION_UP && (moved || (!client->blocked && sends));
}
