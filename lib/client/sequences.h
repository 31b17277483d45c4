// SPDX-License-Identifier: Apache-2.0
// The sequence numbers of a session, one per request, acknowledged in order (lib/lease/request_window.h at the store's
// side). Pure. Thread: the client's mutex is held.
#ifndef BALLAST_CLIENT_SEQUENCES_H
#define BALLAST_CLIENT_SEQUENCES_H

#include <stdbool.h>
#include <stdint.h>

#define BL__WINDOW 64 // requests without an acknowledged answer; the store's window is at least that

typedef struct bl__sequences {
  uint64_t last, acknowledged;
  uint64_t answered; // bit i: request acknowledged + 1 + i is over
} bl__sequences_t;

bool bl__sequences_next(bl__sequences_t *sequences, uint64_t *sequence); // false: the window is full
void bl__sequences_over(bl__sequences_t *sequences, uint64_t sequence);

#endif
