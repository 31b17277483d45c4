// SPDX-License-Identifier: Apache-2.0
// The history of the lease table: every change of a lease or session has a revision, from 1, without gaps. The last
// `capacity` changes are kept. A watcher that asks for an older one (compacted) must list everything first:
//
//   uint64_t next = seen + 1;
//   while ((event = bl_journal_at(journal, next)) != NULL) show(event), next++;
//   if (next < bl_journal_oldest(journal)) list everything, then go on from journal->revision + 1;
//
// Thread: one owner. Memory: one ring, allocated by init.
#ifndef BALLAST_LEASE_JOURNAL_H
#define BALLAST_LEASE_JOURNAL_H

#include "base/status.h"

#include <stdint.h>

typedef enum bl_journal_kind { BL_JOURNAL_LEASE, BL_JOURNAL_SESSION, BL_JOURNAL_STORE } bl_journal_kind_t;

typedef struct bl_journal_event {
  uint64_t revision;
  uint64_t id;         // of the lease or session; 0 for the store
  uint64_t generation; // of a lease
  uint64_t bytes;      // of a lease's slot
  uint32_t stage;
  uint8_t kind;     // bl_journal_kind_t
  uint8_t from, to; // bl_lease_state_t, bl_session_state_t; store: 1 while draining
} bl_journal_event_t;

typedef struct bl_journal {
  bl_journal_event_t *events;
  uint32_t capacity;
  uint64_t revision; // of the last event; 0: none yet
} bl_journal_t;

BL_MUST_USE bl_status_t bl_journal_init(bl_journal_t *journal, uint32_t capacity);
void bl_journal_cleanup(bl_journal_t *journal);
// Appends; the revision is filled in.
void bl_journal_append(bl_journal_t *journal, bl_journal_event_t event);
uint64_t bl_journal_oldest(const bl_journal_t *journal); // a revision; journal->revision + 1 when nothing is kept
// NULL: compacted, or not appended yet. Valid until the next append.
const bl_journal_event_t *bl_journal_at(const bl_journal_t *journal, uint64_t revision);

#endif
