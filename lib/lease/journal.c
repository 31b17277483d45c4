// SPDX-License-Identifier: Apache-2.0
#include "lease/journal.h"

#include <stdlib.h>

bl_status_t bl_journal_init(bl_journal_t *journal, uint32_t capacity) {
  bl_journal_event_t *events = calloc(capacity, sizeof *events);
  if (events == NULL) {
    return BL_EXHAUSTED;
  }
  *journal = (bl_journal_t){.events = events, .capacity = capacity};
  return BL_OK;
}

void bl_journal_cleanup(bl_journal_t *journal) {
  free(journal->events);
  *journal = (bl_journal_t){0};
}

void bl_journal_append(bl_journal_t *journal, bl_journal_event_t event) {
  event.revision = ++journal->revision;
  journal->events[event.revision % journal->capacity] = event;
}

uint64_t bl_journal_oldest(const bl_journal_t *journal) {
  return journal->revision < journal->capacity ? 1 : journal->revision - journal->capacity + 1;
}

const bl_journal_event_t *bl_journal_at(const bl_journal_t *journal, uint64_t revision) {
  if (revision > journal->revision || revision < bl_journal_oldest(journal)) {
    return NULL;
  }
  return &journal->events[revision % journal->capacity];
}
