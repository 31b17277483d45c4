// SPDX-License-Identifier: Apache-2.0
// The communicators of a connection over NCCL, and blocks that move over them. This half of a transfer is queued when
// the table has granted its request, and reported to the holder (GO). So both sides queue in one order, and neither for
// a request that the other refuses.
//
// A communicator that fails ends its connection, and a connection that ends aborts its communicators. Transfers end
// only when NCCL no longer touches their slots. One that gets stuck there ends the process (datapath/nccl/start.h).
#include "connections_core.h"

#include <inttypes.h>
#include <stdio.h>

// ---- on an NCCL thread ----------------------------------------------------------------------------------------------

static void on_change(void *context, bl_nccl_channel_t *channel) {
  bl__channel_watch_t *watch = context;
  if (bl_nccl_channel_state(channel, NULL) == BL_NCCL_DEAD && !atomic_exchange(&watch->told, true)) {
    bl_loop_post(watch->connection->connections->loop, &watch->died);
  }
}

static void transfer_over(bl_nccl_transfer_t *nccl_transfer) {
  bl__store_transfer_t *transfer = BL_WORK_OWNER(nccl_transfer, bl__store_transfer_t, nccl_transfer);
  bl_loop_post(transfer->connection->connections->loop, &transfer->work.done);
}

// ---- back on the loop -----------------------------------------------------------------------------------------------

// All of its transfers have ended before.
static void died(bl_message_t *message) {
  bl_connection_t *connection = BL_MESSAGE_OWNER(message, bl__channel_watch_t, died)->connection;
  bl_error_t err = {0};
  if (bl_nccl_pair_state(&connection->pair, &err) >= BL_NCCL_ABORTING) {
    (void)bl_nccl_pair_sweep(&connection->pair);
    bl__connection_lose(connection, "%s", err.text);
  }
  connection->users--;
  bl__connection_free_if_unused(connection);
}

static void met(bl_message_t *message) {
  bl__store_transfer_t *transfer = BL_MESSAGE_OWNER(message, bl__store_transfer_t, work.done);
  transfer->busy = false;
  bl__store_transfer_end(transfer, transfer->nccl_transfer.status == BL_OK);
}

// ---- for the connection ---------------------------------------------------------------------------------------------

// False: the connection is lost.
static bool open_channel(bl_connection_t *connection, bl_pair_direction_t direction,
                         const bl_rendezvous_message_t *rendezvous) {
  bl__channel_watch_t *watch = &connection->channel_watches[direction];
  char name[BL_NCCL_NAME_BYTES];
  snprintf(name, sizeof name, "%s of session %" PRIx64, direction == BL_PAIR_IN ? "evictions" : "loads",
           connection->session);
  const bl_nccl_channel_options_t options = {.name = name, .on_change = on_change, .context = watch};
  *watch = (bl__channel_watch_t){.connection = connection, .died = {.handle = died}};
  bl_error_t err = {0};
  connection->users++;
  if (bl_nccl_pair_open(&connection->pair, connection->connections->nccl, direction, rendezvous->ids, &options, &err) ==
      BL_OK) {
    return true;
  }
  connection->users--;
  bl__connection_lose(connection, "%s", err.text);
  return false;
}

void bl__nccl_channels_meet(bl_connection_t *connection) {
  bl_rendezvous_message_t rendezvous;
  const char *reason = NULL;
  if (bl_rendezvous_message_decode(connection->reader.body, &rendezvous, &reason) != BL_OK) {
    bl__connection_lose(connection, "%s", reason);
    return;
  }
  if (connection->by != BL_PATH_NCCL || rendezvous.kind != BL_NCCL_RENDEZVOUS_IDS ||
      connection->channel_watches[0].connection != NULL) {
    bl__connection_lose(connection, "RENDEZVOUS out of turn");
    return;
  }
  connection->users++; // what it opens may end it
  if (open_channel(connection, BL_PAIR_IN, &rendezvous)) {
    (void)open_channel(connection, BL_PAIR_OUT, &rendezvous);
  }
  connection->users--;
  bl__connection_free_if_unused(connection);
}

bool bl__nccl_transfer(bl_connection_t *connection, bl_pair_direction_t direction, const bl_leased_block_t *leased) {
  const bool there = connection->pair.channels[bl_nccl_pair_index(&connection->pair, direction)] != NULL;
  bl__store_transfer_t *transfer = there ? bl__store_transfer_begin(connection, BL__STORE_TRANSFER_NCCL, leased) : NULL;
  if (transfer == NULL) {
    return false;
  }
  transfer->work.done.handle = met;
  transfer->nccl_transfer = (bl_nccl_transfer_t){.buffer = transfer->to, .bytes = leased->bytes, .over = transfer_over};
  transfer->busy = true;
  bl_error_t err;
  if (bl_nccl_pair_post(&connection->pair, direction, &transfer->nccl_transfer, &err) !=
      BL_OK) { // `died` handles the connection
    bl__store_transfer_drop(transfer);
    return false;
  }
  bl_frame_t go = {.kind = BL_FRAME_GO, .sequence = leased->sequence, .bytes = leased->bytes};
  bl__connection_put(connection, &go, NULL);
  bl__connection_flush(connection);
  return true;
}

void bl__nccl_channels_abort(bl_connection_t *connection) {
  bl_nccl_pair_abort(&connection->pair, BL_CANCELLED, "the data connection is gone");
}

void bl__nccl_channels_close(bl_connection_t *connection) {
  bl_nccl_pair_close(&connection->pair); // both are dead when it returns
}
