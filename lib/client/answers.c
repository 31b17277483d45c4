// SPDX-License-Identifier: Apache-2.0
// What comes over the data connection: chunks of loads, and answers, with what they mean for rooms and operations.
#include "client/transfer.h"
#include "datapath/block.h"
#include "sys/clock.h"

#include <inttypes.h>
#include <string.h>

#define FRAMES   64                      // taken in one turn
#define PAUSE_NS (UINT64_C(5) * 1000000) // before something that was cut short is tried again

void bl__room_set(bl_client_t *client, uint64_t id, bl__room_state_t state, uint64_t generation) {
  pthread_mutex_lock(&client->mutex);
  bl__room_settle(client, id, state, generation);
  pthread_mutex_unlock(&client->mutex);
}

// The use of a room whose outcome was not known has ended, unless that is known by now: it is empty.
static void resolve_room(bl_client_t *client, uint64_t id, uint64_t generation, uint64_t next) {
  pthread_mutex_lock(&client->mutex);
  const bl__room_t *room = bl__room_find(client, id);
  if (room != NULL && room->state == BL__ROOM_UNKNOWN && room->generation == generation) {
    bl__room_settle(client, id, BL__ROOM_EMPTY, next);
  }
  pthread_mutex_unlock(&client->mutex);
}

// ---- releases ----------------------------------------------------------------------------------------------------------

void bl__release_queue(bl_client_t *client, const bl__release_t *release) {
  if (client->release_count < BL__RELEASES) { // one per ticket and request at most
    client->releases[client->release_count++] = *release;
  }
}

bool bl__releases_put(bl_client_t *client) {
  unsigned put = 0;
  for (; put < client->release_count && client->linked; put++) {
    const bl__release_t *release = &client->releases[put];
    bl_block_frame_t frame = {.kind = BL_BLOCK_RELEASE,
                              .id = release->id,
                              .generation = release->generation,
                              .bytes = release->bytes,
                              .checksum = release->checksum,
                              .loaded = release->loaded};
    bl__sent_t *sent = bl__request_put(client, BL__RELEASE, NULL, &frame);
    if (sent == NULL) {
      break;
    }
    sent->sets = release->sets;
  }
  client->release_count -= put;
  memmove(client->releases, client->releases + put, client->release_count * sizeof client->releases[0]);
  return client->release_count == 0;
}

// ---- the end of operations ---------------------------------------------------------------------------------------------

static void end(bl_client_t *client, bl__operation_t *operation, bl_status_t status, const char *text) {
  if (status == BL_OK) {
    bl_error_clear(&operation->err);
  } else {
    (void)bl_error_set(&operation->err, status, "%s", text);
  }
  bl__operation_end(client, operation);
}

// Tells the store that the block has left it, and with what checksum it came.
static void release_loaded(bl_client_t *client, const bl__operation_t *operation, uint64_t checksum) {
  bl__release_queue(client, &(bl__release_t){.id = operation->room,
                                             .generation = operation->generation,
                                             .bytes = operation->bytes,
                                             .checksum = checksum,
                                             .loaded = true});
}

// The block is at its destination and verified: this use of the room is over.
static void loaded(bl_client_t *client, bl__operation_t *operation, uint64_t checksum, bool copied) {
  release_loaded(client, operation, checksum);
  pthread_mutex_lock(&client->mutex);
  bl__room_settle(client, operation->room, BL__ROOM_EMPTY, operation->generation + 1);
  client->counters.loaded++;
  client->counters.loaded_bytes += operation->bytes;
  client->counters.bytes_copied += copied ? operation->bytes : 0;
  pthread_mutex_unlock(&client->mutex);
  end(client, operation, BL_OK, "");
}

// Bytes that are not the block's shall not be taken for it.
static void clear(bl_client_t *client, const bl__operation_t *operation) {
  if (client->device == NULL) {
    memset(operation->to, 0, operation->bytes);
  } else {
    (void)!bl_device_fill(client->device, NULL, operation->to, 0, operation->bytes, NULL);
  }
}

// It came back changed. The store is told, and forgets it.
static void load_corrupt(bl_client_t *client, bl__operation_t *operation, uint64_t checksum, uint64_t wanted) {
  clear(client, operation);
  release_loaded(client, operation, checksum);
  pthread_mutex_lock(&client->mutex);
  bl__room_settle(client, operation->room, BL__ROOM_EMPTY, operation->generation + 1);
  client->counters.checksum_failures++;
  pthread_mutex_unlock(&client->mutex);
  (void)bl_error_set(&operation->err, BL_DATA_LOSS,
                     "the block in room %" PRIu64 " came back changed: checksum %016" PRIx64 ", not %016" PRIx64,
                     operation->room, checksum, wanted);
  bl__operation_end(client, operation);
}

// Where a room lies in what the store showed; NULL: nowhere.
static const uint8_t *room_at(const bl_client_t *client, uint64_t offset, uint64_t bytes) {
  for (size_t i = 0; i < sizeof client->parts / sizeof client->parts[0]; i++) {
    const bl_peer_memory_t *part = &client->parts[i];
    if (offset < part->bytes) {
      return bytes <= part->bytes - offset ? part->base + offset : NULL;
    }
    offset -= part->bytes;
  }
  return NULL;
}

static bl_status_t copy(bl_client_t *client, bl__operation_t *operation, const uint8_t *from, uint64_t *checksum) {
  if (client->by == BL_PATH_CUDA_IPC) {
    bool cancelled = atomic_load_explicit(&operation->cancelled, memory_order_relaxed);
    return cancelled ? BL_CANCELLED
                     : bl_mover_copy(client->mover, operation->to, from, operation->bytes, &operation->err);
  }
  return client->unverified ? bl_block_copy_unverified(operation->to, from, operation->bytes, &operation->cancelled)
                            : bl_block_copy(operation->to, from, operation->bytes, &operation->cancelled, checksum);
}

static void copy_block(bl_client_t *client, bl__operation_t *operation, const bl_block_frame_t *frame) {
  const uint8_t *from = room_at(client, frame->offset, frame->bytes);
  if (from == NULL || frame->bytes != operation->bytes) {
    bl__room_set(client, operation->room, BL__ROOM_FULL, operation->generation);
    end(client, operation, BL_INTERNAL, "the store answers with a room outside of its memory");
    return;
  }
  uint64_t checksum = frame->checksum;
  bl_status_t status = copy(client, operation, from, &checksum);
  if (status != BL_OK && status != BL_CANCELLED) { // the device has failed: nobody can use it any more
    client->flow -= operation->bytes;
    bl__room_set(client, operation->room, BL__ROOM_FULL, operation->generation);
    bl__operation_end(client, operation);
  } else if (status != BL_OK) {
    client->flow -= operation->bytes;
    bl__room_set(client, operation->room, BL__ROOM_FULL, operation->generation);
    end(client, operation, BL_CANCELLED, "given up by its caller");
  } else if (checksum != frame->checksum) {
    load_corrupt(client, operation, checksum, frame->checksum);
  } else {
    loaded(client, operation, checksum, true);
  }
}

// ---- answers -----------------------------------------------------------------------------------------------------------

// The transfer was cut short: the same again, with what is left of the deadline.
static bool try_again(bl_client_t *client, bl__operation_t *operation, uint64_t generation) {
  if (generation == 0) {
    return false;
  }
  uint64_t pause_ns = bl_clock_now_ns() + PAUSE_NS;
  client->pause_until_ns = client->pause_until_ns > pause_ns ? client->pause_until_ns : pause_ns;
  operation->generation = generation;
  operation->corrupt = false;
  bl__room_set(client, operation->room, operation->verb == BL__EVICT ? BL__ROOM_EVICTING : BL__ROOM_LOADING,
               generation);
  bl__queue_again(client, operation);
  return true;
}

// No credit now; or the session was not renewed in time (this process stood still), which it will be in a moment.
static bool comes_too_early(bl_client_t *client, const bl_block_frame_t *frame) {
  if ((frame->status == BL_EXHAUSTED || frame->status == BL_PRECONDITION) && frame->retry_after_ms != 0) {
    client->pause_until_ns = bl_clock_now_ns() + frame->retry_after_ms * BL_NS_PER_MS;
    return true;
  }
  return false;
}

static void evict_answered(bl_client_t *client, const bl__sent_t *sent, const bl_block_frame_t *frame,
                           const char *text) {
  bl__operation_t *operation = sent->operation;
  client->flow -= sent->frame.bytes;
  if (operation == NULL) { // given up: the release that follows says what became of the room
    if ((frame->status == BL_DATA_LOSS || frame->status == BL_IO) && frame->generation != 0) {
      resolve_room(client, sent->frame.id, sent->frame.generation, frame->generation); // but for one that came late
    }
    return;
  }
  bl__sending_drop(client, operation); // refused before its bytes were out: they need not go
  if (frame->status == BL_OK && operation->known && client->by == BL_PATH_TCP && !client->unverified &&
      operation->sender.hash != operation->checksum) { // what went out is not what its owner made
    bl__release_queue(client,
                      &(bl__release_t){.id = operation->room, .generation = operation->generation, .sets = true});
    bl__room_set(client, operation->room, BL__ROOM_UNKNOWN, operation->generation);
    end(client, operation, BL_DATA_LOSS, "the block is not the one whose checksum was given");
    return;
  }
  if (frame->status == BL_OK) {
    pthread_mutex_lock(&client->mutex);
    bl__room_settle(client, operation->room, BL__ROOM_FULL, operation->generation);
    client->counters.evicted++;
    client->counters.evicted_bytes += operation->bytes;
    pthread_mutex_unlock(&client->mutex);
  } else if ((frame->status == BL_IO && !client->shm && try_again(client, operation, frame->generation)) ||
             (comes_too_early(client, frame) && try_again(client, operation, operation->generation))) {
    return;
  } else {
    bool over = frame->status == BL_DATA_LOSS || frame->status == BL_IO || frame->status == BL_CANCELLED;
    if (frame->status == BL_DATA_LOSS) {
      pthread_mutex_lock(&client->mutex);
      client->counters.checksum_failures++;
      pthread_mutex_unlock(&client->mutex);
    }
    bl__room_set(client, operation->room, BL__ROOM_EMPTY, over ? frame->generation : operation->generation);
  }
  end(client, operation, frame->status, text);
}

static void load_answered(bl_client_t *client, const bl__sent_t *sent, const bl_block_frame_t *frame,
                          const char *text) {
  bl__operation_t *operation = sent->operation;
  if (operation == NULL) { // given up
    client->flow -= sent->frame.bytes;
    if (frame->status == BL_DATA_LOSS) {
      bl__release_queue(client,
                        &(bl__release_t){.id = sent->frame.id, .generation = sent->frame.generation, .sets = true});
    } else { // the block is still there
      bl__room_set(client, sent->frame.id, BL__ROOM_FULL, sent->frame.generation);
    }
    return;
  }
  if (frame->status == BL_OK && client->shm) {
    copy_block(client, operation, frame);
    return;
  }
  const bool hashed = client->by == BL_PATH_TCP && !client->unverified;
  if (frame->status == BL_OK &&
      (operation->corrupt || (operation->at == operation->bytes && hashed && operation->hash != frame->checksum))) {
    load_corrupt(client, operation, operation->hash, frame->checksum);
    return;
  }
  if (frame->status == BL_OK && operation->at == operation->bytes) {
    loaded(client, operation, frame->checksum, false);
    return;
  }
  client->flow -= operation->bytes;
  // The bytes went over a connection that broke, or the transfer was cut short.
  if ((frame->status == BL_OK || (frame->status == BL_IO && !client->shm) || comes_too_early(client, frame)) &&
      try_again(client, operation, operation->generation)) {
    return;
  }
  if (frame->status == BL_DATA_LOSS) { // revoked, or changed in the store's memory
    clear(client, operation);
    bl__release_queue(client,
                      &(bl__release_t){.id = operation->room, .generation = operation->generation, .sets = true});
    bl__room_set(client, operation->room, BL__ROOM_UNKNOWN, operation->generation);
  } else {
    bl__room_set(client, operation->room, BL__ROOM_FULL, operation->generation);
  }
  end(client, operation, frame->status, text);
}

static void release_answered(bl_client_t *client, const bl__sent_t *sent, const bl_block_frame_t *frame,
                             const char *text) {
  bl__operation_t *operation = sent->operation;
  client->flow -= sent->frame.loaded ? sent->frame.bytes : 0;
  bool sets = sent->sets || operation != NULL;
  if (frame->status == BL_OK || frame->status == BL_DATA_LOSS) {
    if (sets || frame->generation == 0) {
      bl__room_set(client, sent->frame.id, BL__ROOM_EMPTY, frame->generation);
    }
  } else if (sets && (operation != NULL || frame->status != BL_FENCED)) {
    // An evict that was refused before it was given up left the room as it was. Fenced: it had ended, and that is known.
    bool unused = operation == NULL && frame->status == BL_PRECONDITION && frame->id != 0;
    bl__room_set(client, sent->frame.id,
                 unused              ? BL__ROOM_EMPTY
                 : operation != NULL ? BL__ROOM_FULL
                                     : BL__ROOM_UNKNOWN,
                 unused ? frame->generation : sent->frame.generation);
  }
  if (operation != NULL) {
    if (frame->status == BL_OK) {
      pthread_mutex_lock(&client->mutex);
      client->counters.released++;
      pthread_mutex_unlock(&client->mutex);
    }
    end(client, operation, frame->status, text);
  }
}

void bl__answer_take(bl_client_t *client, const bl_block_frame_t *frame, const char *text) {
  bl__sent_t *slot = &client->sent[frame->sequence % BL__WINDOW];
  if (frame->sequence == 0 || slot->sequence != frame->sequence) {
    return; // of a question that nobody has any more
  }
  bl__sent_t sent = *slot;
  *slot = (bl__sent_t){0};
  client->sent_count--;
  pthread_mutex_lock(&client->mutex);
  bl__sequences_over(&client->sequences, sent.sequence);
  pthread_mutex_unlock(&client->mutex);
  if (sent.verb == BL__EVICT) {
    evict_answered(client, &sent, frame, text);
  } else if (sent.verb == BL__LOAD) {
    load_answered(client, &sent, frame, text);
  } else {
    release_answered(client, &sent, frame, text);
  }
}

static void on_shown(bl_client_t *client) {
  const bl_block_frame_t *frame = &client->inlet.frame;
  bl__operation_verb_t verb = frame->kind == BL_BLOCK_SHOWN ? BL__SHOW : BL__HIDE;
  for (unsigned i = 0; i < BL__WINDOW; i++) {
    bl__operation_t *operation = client->shown[i];
    if (operation != NULL && operation->verb == verb && operation->source == frame->source) {
      client->shown[i] = NULL;
      end(client, operation, frame->status, client->inlet.text);
      return;
    }
  }
}

// ---- chunks of loads ---------------------------------------------------------------------------------------------------

static void on_data(bl_client_t *client) {
  const bl_block_frame_t *frame = &client->inlet.frame;
  const bl__sent_t *sent = &client->sent[frame->sequence % BL__WINDOW];
  bl__operation_t *operation = sent->sequence == frame->sequence && sent->verb == BL__LOAD ? sent->operation : NULL;
  bool fits =
      operation != NULL && !operation->corrupt && frame->bytes == operation->bytes && frame->offset == operation->at;
  client->coming = fits ? operation : NULL;
  bl_inlet_into(&client->inlet, fits ? operation->to + operation->at : NULL);
}

static void on_chunk(bl_client_t *client) {
  bl__operation_t *operation = client->coming;
  const bl_block_frame_t *frame = &client->inlet.frame;
  client->coming = NULL;
  if (operation == NULL) {
    return;
  }
  if (!client->unverified) { // now, while it is in the cache
    operation->hash = bl_block_checksum_more(operation->hash, operation->to + operation->at, frame->body_bytes);
    operation->corrupt = operation->hash != frame->checksum;
  }
  operation->at += frame->body_bytes;
}

static void on_frame(bl_client_t *client) {
  bl_error_t err;
  switch (client->inlet.frame.kind) {
  case BL_BLOCK_ANSWER:
    if (!bl__way_keeps(client, &client->inlet.frame, client->inlet.text)) {
      bl__answer_take(client, &client->inlet.frame, client->inlet.text);
    }
    break;
  case BL_BLOCK_BEGUN:
    bl__way_begun(client);
    break;
  case BL_BLOCK_DATA:
    on_data(client);
    break;
  case BL_BLOCK_SHOWN:
  case BL_BLOCK_HIDDEN:
    on_shown(client);
    break;
  case BL_BLOCK_BYE:
    (void)bl_error_set(&err, client->inlet.frame.status != BL_OK ? client->inlet.frame.status : BL_FENCED,
                       "the store at %s ended the session: %s", client->store, client->inlet.text);
    bl__lose(client, &err);
    break;
  default:
    bl__link_lost(client, "it sends what a store does not send");
    break;
  }
}

bool bl__answers_read(bl_client_t *client) {
  for (int i = 0; i < FRAMES && client->linked; i++) {
    switch (bl_inlet_next(&client->inlet)) {
    case BL_INLET_FRAME:
      on_frame(client);
      break;
    case BL_INLET_BODY:
      on_chunk(client);
      break;
    case BL_INLET_AGAIN:
      return i > 0;
    case BL_INLET_END:
    case BL_INLET_BROKEN:
      bl__link_lost(client, client->inlet.reason);
      return true;
    }
  }
  return true;
}
