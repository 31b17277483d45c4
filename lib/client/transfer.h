// SPDX-License-Identifier: Apache-2.0
// Inside of the transfer thread: transfer.c sends, answers.c takes what comes. All by that thread.
#ifndef BALLAST_CLIENT_TRANSFER_H
#define BALLAST_CLIENT_TRANSFER_H

#include "client/client_core.h"

// transfer.c
void bl__link_lost(bl_client_t *client, const char *why);
void bl__queue_again(bl_client_t *client, bl__operation_t *operation); // at the head, under a new number
// Sends a request under the next number; NULL: the window is full.
bl__sent_t *bl__request_put(bl_client_t *client, bl__operation_verb_t verb, bl__operation_t *operation,
                            const bl_block_frame_t *frame);
void bl__sending_drop(bl_client_t *client, bl__operation_t *operation); // the rest of its bytes stays here

// ways.c
void bl__way_begun(bl_client_t *client); // BEGUN is in the inlet
bool bl__ways_turn(bl_client_t *client); // what has ended, and failed. False: nothing
// An answer that has to wait until our half of its transfer is over is kept there.
bool bl__way_keeps(bl_client_t *client, const bl_block_frame_t *frame, const char *text);
// Whether our half of the transfer of a request is queued and not over.
bool bl__way_moves(const bl_client_t *client, uint64_t sequence);
// Whether memory between two addresses is read by a transfer, or will be.
bool bl__way_reads(const bl_client_t *client, const uint8_t *from, uint64_t bytes);

// answers.c
void bl__answer_take(bl_client_t *client, const bl_block_frame_t *frame, const char *text);
bool bl__answers_read(bl_client_t *client); // false: nothing came
void bl__release_queue(bl_client_t *client, const bl__release_t *release);
bool bl__releases_put(bl_client_t *client); // false: some still wait for the window
void bl__room_set(bl_client_t *client, uint64_t id, bl__room_state_t state, uint64_t generation);

#endif
