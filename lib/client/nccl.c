// SPDX-License-Identifier: Apache-2.0
// Blocks over NCCL: the two communicators of a data connection, and this client's ends of transfers.
//
// The store queues its half when it grants a request, and reports that (GO). The client queues its half when it reads
// the GO. So both ends queue in one order, and no half of the client waits for one that will not come, unless the store
// stops in the middle, which the channel's deadline ends. An operation is over when its answer has arrived and its end
// of the transfer is over.
#include "client/client_core.h"
#include "sys/clock.h"

#include <stdio.h>
#include <string.h>

// ---- life cycle

static void nccl_changed(void *context, bl_nccl_channel_t *channel) {
  (void)channel;
  bl_client_t *client = context;
  atomic_store(&client->nccl_changed, true);
  bl__wake(client);
}

// Sends the store the ids of the communicators that both sides now create.
static bl_status_t rendezvous(bl_client_t *client, bl_rendezvous_message_t *rendezvous, bl_error_t *err) {
  uint8_t body[BL_FRAME_RENDEZVOUS_BYTES];
  bl_status_t status = bl_nccl_pair_draw(client->nccl, rendezvous->ids, err);
  if (status != BL_OK) {
    return status;
  }
  bl_rendezvous_message_encode(rendezvous, body);
  return bl_frame_writer_put(&client->writer, &(bl_frame_t){.kind = BL_FRAME_RENDEZVOUS}, body, NULL, 0) &&
                 bl_frame_writer_flush(&client->writer) == BL_WRITER_DONE
             ? BL_OK
             : bl_error_set(err, BL_IO, "the store at %s does not take ids of communicators", client->store);
}

bl_status_t bl__nccl_open(bl_client_t *client, bl_error_t *err) {
  bl_rendezvous_message_t ids = {.kind = BL_NCCL_RENDEZVOUS_IDS, .generation = 1};
  client->pair = (bl_nccl_pair_t){.first = true};
  bl_status_t status = rendezvous(client, &ids, err);
  for (bl_pair_direction_t direction = BL_PAIR_OUT; direction <= BL_PAIR_IN && status == BL_OK; direction++) {
    char name[BL_NCCL_NAME_BYTES];
    snprintf(name, sizeof name, "%s, the store at %.70s", direction == BL_PAIR_OUT ? "evictions" : "loads",
             client->store);
    // Half of the time of a call: the rest is for new communicators, and for the block to move over these.
    const bl_nccl_channel_options_t options = {.name = name,
                                               .deadlines = {.create_ns = client->open_ms * BL_NS_PER_MS,
                                                             .transfer_ns = client->deadline_ms * BL_NS_PER_MS / 2},
                                               .on_change = nccl_changed,
                                               .context = client};
    status = bl_nccl_pair_open(&client->pair, client->nccl, direction, ids.ids, &options, err);
  }
  return status;
}

bl_status_t bl__nccl_made(bl_client_t *client, bl_error_t *err) {
  return bl_nccl_pair_made(&client->pair, err);
}

void bl__nccl_close(bl_client_t *client) {
  bl_nccl_pair_close(&client->pair);
  for (unsigned i = 0; i < BL__WINDOW; i++) {
    client->pending_transfers[i].sequence = 0;
  }
  atomic_store(&client->nccl_changed, false);
}

// ---- transfers

static void pending_over(bl_nccl_transfer_t *transfer) {
  bl__pending_transfer_t *pending = (bl__pending_transfer_t *)(void *)transfer;
  bl_client_t *client = pending->client;
  atomic_store(&pending->over, true); // from here on the loop owns it
  bl__wake(client);
}

// Returns the memory of this end of a request. NULL: no operation has it any more.
static const uint8_t *memory_of(const bl__sent_t *sent) {
  if (sent->type == BL__EVICT) {
    return sent->from;
  }
  return sent->type == BL__LOAD && sent->operation != NULL ? sent->operation->to : NULL;
}

void bl__nccl_transfer_begin(bl_client_t *client) {
  const bl_frame_t *frame = &client->reader.frame;
  bl__pending_transfer_t *pending = &client->pending_transfers[frame->sequence % BL__WINDOW];
  pthread_mutex_lock(&client->mutex);
  const bl__sent_t sent = client->requests.sent[frame->sequence % BL__WINDOW];
  const uint8_t *memory = memory_of(&sent);
  const bool known = client->by == BL_PATH_NCCL && sent.sequence == frame->sequence && pending->sequence == 0 &&
                     memory != NULL && frame->bytes == sent.bytes;
  const bool loads = sent.type == BL__LOAD;
  if (known && loads) {
    sent.operation->moving = true;
  }
  pthread_mutex_unlock(&client->mutex);
  if (!known) {
    bl__connection_lost(client, "the store begins a transfer that no operation waits for");
    return;
  }
  pending->transfer = (bl_nccl_transfer_t){
      .buffer = (void *)(uintptr_t)memory, .bytes = frame->bytes, .over = pending_over}; // rank 0 only reads it
  pending->client = client;
  pending->sequence = frame->sequence;
  pending->answered = false;
  atomic_store(&pending->over, false);
  bl_error_t err;
  if (bl_nccl_pair_post(&client->pair, loads ? BL_PAIR_IN : BL_PAIR_OUT, &pending->transfer, &err) != BL_OK) {
    pending->sequence = 0;
    bl__connection_lost(client, err.text);
  }
}

bool bl__nccl_keeps_answer(bl_client_t *client, const bl__answer_t *answer) {
  bl__pending_transfer_t *pending = &client->pending_transfers[answer->sequence % BL__WINDOW];
  if (client->by != BL_PATH_NCCL || answer->sequence == 0 || pending->sequence != answer->sequence) {
    return false;
  }
  pending->answered = true;
  pending->answer = *answer;
  snprintf(pending->text, sizeof pending->text, "%s", answer->text);
  pending->answer.text = pending->text;
  return true; // until bl__nccl_iterate sees that it is over
}

// False: a communicator has failed, and the connection is lost with it.
static bool check_nccl(bl_client_t *client) {
  if (!atomic_exchange(&client->nccl_changed, false)) {
    return true;
  }
  bl_error_t err = {0};
  if (bl_nccl_pair_state(&client->pair, &err) < BL_NCCL_ABORTING) {
    return true;
  }
  bl__connection_lost(client, err.text);
  return false;
}

// Records that this end is over: a load has its bytes.
static bool pending_came(bl_client_t *client, const bl__pending_transfer_t *pending) {
  bool moved = false;
  pthread_mutex_lock(&client->mutex);
  const bl__sent_t *sent = &client->requests.sent[pending->sequence % BL__WINDOW];
  bl__operation_t *operation = sent->sequence == pending->sequence ? sent->operation : NULL;
  if (operation != NULL && operation->at != operation->bytes) {
    operation->at = operation->bytes;
    operation->moving = false;
    moved = true;
  }
  pthread_mutex_unlock(&client->mutex);
  return moved;
}

bool bl__nccl_iterate(bl_client_t *client) {
  bool moved = false;
  if (client->by != BL_PATH_NCCL || !check_nccl(client)) {
    return false;
  }
  for (unsigned i = 0; i < BL__WINDOW && client->link == BL__CONNECTION_UP; i++) {
    bl__pending_transfer_t *pending = &client->pending_transfers[i];
    if (pending->sequence == 0 || !atomic_load(&pending->over) || pending->transfer.status != BL_OK) {
      continue; // a failed one ends with its communicator
    }
    moved = pending_came(client, pending) || moved;
    if (pending->answered) {
      pending->sequence = 0;
      bl__transfer_answer(client, &pending->answer);
      moved = true;
    }
  }
  return moved;
}
