// SPDX-License-Identifier: Apache-2.0
#include "lease/request_window.h"

#include <stddef.h>

void bl_request_window_reset(bl_request_window_t *window) {
  for (uint32_t i = 0; i < window->capacity; i++) {
    window->entries[i].sequence = 0;
  }
  window->acknowledged = 0;
}

bl_request_window_entry_t *bl_request_window_find(bl_request_window_t *window, uint64_t sequence) {
  bl_request_window_entry_t *entry = &window->entries[sequence % window->capacity];
  return sequence > window->acknowledged && entry->sequence == sequence ? entry : NULL;
}

bl_request_window_verdict_t bl_request_window_begin(bl_request_window_t *window, uint64_t sequence,
                                                    uint64_t acknowledged, uint64_t digest,
                                                    bl_request_window_entry_t **entry) {
  if (sequence <= window->acknowledged || acknowledged >= sequence) {
    return BL_REQUEST_WINDOW_DEAD;
  }
  if (acknowledged > window->acknowledged) {
    window->acknowledged = acknowledged;
  }
  if (sequence - window->acknowledged > window->capacity) {
    return BL_REQUEST_WINDOW_FULL;
  }
  bl_request_window_entry_t *slot = &window->entries[sequence % window->capacity];
  *entry = slot;
  if (slot->sequence == sequence) {
    if (slot->digest != digest) {
      return BL_REQUEST_WINDOW_DEAD;
    }
    return slot->done ? BL_REQUEST_WINDOW_DONE : BL_REQUEST_WINDOW_PENDING;
  }
  slot->sequence = sequence;
  slot->digest = digest;
  slot->done = false;
  slot->answer = (bl_lease_answer_t){.reason = BL_LEASE_GRANTED};
  return BL_REQUEST_WINDOW_NEW;
}
