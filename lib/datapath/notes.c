// SPDX-License-Identifier: Apache-2.0
#include "datapath/notes.h"

static uint32_t find(const bl__notes_t *notes, uint64_t attempt, uint32_t number) {
  uint32_t i = 0;
  while (i < notes->count && (notes->at[i].attempt != attempt || notes->at[i].number != number)) {
    i++;
  }
  return i;
}

static void remove_at(bl__notes_t *notes, uint32_t at) {
  notes->count--;
  for (uint32_t i = at; i < notes->count; i++) {
    notes->at[i] = notes->at[i + 1];
  }
}

bool bl__notes_put(bl__notes_t *notes, const bl__note_t *note) {
  if (notes->count == BL__NOTES || find(notes, note->attempt, note->number) < notes->count) {
    return false;
  }
  notes->at[notes->count++] = *note;
  return true;
}

static bool take_at(bl__notes_t *notes, uint32_t at, bl__note_t *note) {
  if (at >= notes->count) {
    return false;
  }
  *note = notes->at[at];
  remove_at(notes, at);
  return true;
}

bool bl__notes_take(bl__notes_t *notes, uint64_t attempt, uint32_t number, bl__note_t *note) {
  return take_at(notes, find(notes, attempt, number), note);
}

bool bl__notes_next(bl__notes_t *notes, bl__note_t *note) {
  return take_at(notes, 0, note);
}

void bl__notes_begin(bl__notes_t *notes, uint64_t attempt) {
  for (uint32_t i = notes->count; i > 0; i--) {
    if (notes->at[i - 1].attempt < attempt) {
      remove_at(notes, i - 1);
    }
  }
}
