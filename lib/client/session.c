// SPDX-License-Identifier: Apache-2.0
// Queries of all files of a client: whether its session lives, and requests for an iteration.
#include "client/client_core.h"

#include <sys/random.h>

void bl__wake(bl_client_t *client) {
  if (!atomic_exchange(&client->woken, true)) {
    bl_loop_post(client->loop, &client->wake);
  }
}

void bl__lose(bl_client_t *client, const bl_error_t *cause) {
  pthread_mutex_lock(&client->mutex);
  if (client->lost.status == BL_OK) {
    client->lost = *cause;
  }
  pthread_mutex_unlock(&client->mutex);
  bl__wake(client);
}

bool bl__is_lost(bl_client_t *client, bl_error_t *err) {
  return bl_client_state(client, err) != BL_OK;
}

bool bl__is_forked(const bl_client_t *client, bl_error_t *err) {
  if (client->forks == bl__forks()) {
    return false;
  }
  (void)bl_error_set(
      err, BL_PRECONDITION,
      "this process was forked from the one that opened the client of %s, which alone may use and close it",
      client->store);
  return true;
}

bl_status_t bl_client_state(bl_client_t *client, bl_error_t *err) {
  if (bl__is_forked(client, err)) {
    return BL_PRECONDITION;
  }
  pthread_mutex_lock(&client->mutex);
  bl_status_t status = client->lost.status;
  if (err != NULL) {
    *err = client->lost;
  }
  pthread_mutex_unlock(&client->mutex);
  return status;
}

uint64_t bl__process(void) {
  static _Atomic uint64_t process;
  uint64_t known = atomic_load(&process), drawn = 0;
  if (known == 0 && getrandom(&drawn, sizeof drawn, 0) == (ssize_t)sizeof drawn) {
    drawn |= 1; // never 0
    known = atomic_compare_exchange_strong(&process, &known, drawn) ? drawn : known;
  }
  return known;
}
