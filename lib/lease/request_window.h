// SPDX-License-Identifier: Apache-2.0
// Exactly-once requests of one session in flat memory. Every request that changes something has a sequence number, from
// 1, and acknowledges the answers up to a number. A number has one answer, refusals included: a repeated request gets
// the same answer. Once acknowledged, the answer is forgotten and the number is dead. The window is the maximum number
// of unacknowledged requests.
// Thread: one owner. Memory: entries belong to the caller.
#ifndef BALLAST_LEASE_REQUEST_WINDOW_H
#define BALLAST_LEASE_REQUEST_WINDOW_H

#include "lease/answer.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct bl_request_window_entry {
  uint64_t sequence; // 0: none
  uint64_t digest;   // of the request, so that a number cannot be used for two
  bool done;
  bool queued;          // its answer waits to be taken by the shell (table.h)
  uint32_t next_queued; // entry + 1; 0: none
  bl_lease_answer_t answer;
} bl_request_window_entry_t;

typedef struct bl_request_window {
  bl_request_window_entry_t *entries;
  uint32_t capacity;
  uint64_t acknowledged; // all up to this are over
} bl_request_window_t;

typedef enum bl_request_window_verdict {
  BL_REQUEST_WINDOW_NEW,     // *entry is this request's, not done: execute it
  BL_REQUEST_WINDOW_PENDING, // in progress
  BL_REQUEST_WINDOW_DONE,    // *entry has its answer
  BL_REQUEST_WINDOW_DEAD,    // acknowledged before, or its number was used for another request
  BL_REQUEST_WINDOW_FULL,    // too far ahead of the acknowledged number
} bl_request_window_verdict_t;

// Forgets everything; the next session begins with number 1.
void bl_request_window_reset(bl_request_window_t *window);
// `acknowledged` must be below `sequence`, else the verdict is BL_REQUEST_WINDOW_DEAD.
bl_request_window_verdict_t bl_request_window_begin(bl_request_window_t *window, uint64_t sequence,
                                                    uint64_t acknowledged, uint64_t digest,
                                                    bl_request_window_entry_t **entry);
// Returns the entry of a number that was begun and not acknowledged, or NULL.
bl_request_window_entry_t *bl_request_window_find(bl_request_window_t *window, uint64_t sequence);

#endif
