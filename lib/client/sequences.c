// SPDX-License-Identifier: Apache-2.0
#include "client/sequences.h"

bool bl__sequences_next(bl__sequences_t *sequences, uint64_t *sequence) {
  if (sequences->last - sequences->acknowledged >= BL__WINDOW) {
    return false;
  }
  *sequence = ++sequences->last;
  return true;
}

void bl__sequences_over(bl__sequences_t *sequences, uint64_t sequence) {
  if (sequence <= sequences->acknowledged || sequence > sequences->last) {
    return;
  }
  sequences->answered |= UINT64_C(1) << (sequence - sequences->acknowledged - 1);
  while ((sequences->answered & 1) != 0) {
    sequences->answered >>= 1;
    sequences->acknowledged++;
  }
}
