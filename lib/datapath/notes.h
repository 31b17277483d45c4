// SPDX-License-Identifier: Apache-2.0
// Private to lib/datapath: notes of one peer that wait to be sent, or have come and wait to be read. A note is a small
// message between two compute threads (bl_transport_post_note), identified by its attempt and number.
//
// Pure. Thread: the caller serializes.
#ifndef BALLAST_DATAPATH_NOTES_H
#define BALLAST_DATAPATH_NOTES_H

#include "datapath/frame.h"

// That may wait at once. A peer sends a note only when it has this end's one before, so at most two of this attempt and
// the first of the next one can come before they are read.
#define BL__NOTES 8u

typedef struct bl__note {
  uint64_t attempt;
  uint32_t number;
  uint8_t body[BL_FRAME_NOTE_BYTES];
} bl__note_t;

typedef struct bl__notes {
  bl__note_t at[BL__NOTES]; // oldest first
  uint32_t count;
} bl__notes_t;

// False: no room, or a note of this attempt and number is there.
bool bl__notes_put(bl__notes_t *notes, const bl__note_t *note);
// Removes a note and copies it to *note. False: it is not there.
bool bl__notes_take(bl__notes_t *notes, uint64_t attempt, uint32_t number, bl__note_t *note);
// Removes the oldest note. False: there is none.
bool bl__notes_next(bl__notes_t *notes, bl__note_t *note);
// Drops the notes of attempts before `attempt`.
void bl__notes_begin(bl__notes_t *notes, uint64_t attempt);

#endif
