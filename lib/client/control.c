// SPDX-License-Identifier: Apache-2.0
// Remote calls: sends control calls, retries them while the store cannot be reached, renews the session, detects its
// end.
#include "client/client_core.h"

#include "sys/clock.h"

#include <string.h>

#define TRY_MS 2000 // until an unanswered request is resent

static bool is_sequenced(const bl__control_call_t *call) {
  return call->kind >= BL__CALL_RESERVE;
}

static void end_question(bl__control_call_t *call) {
  bl_client_t *client = call->client;
  if (call->done != NULL) {
    call->done(call);
    return;
  }
  pthread_mutex_lock(&client->mutex);
  call->over = true;
  pthread_cond_signal(&client->ended[call - client->calls]);
  pthread_mutex_unlock(&client->mutex);
}

void bl__control_calls_end(bl_client_t *client, const bl_error_t *cause) {
  bl__control_call_t *lists[2] = {client->again, client->turn_first};
  client->again = client->turn_first = client->turn_last = NULL;
  for (int i = 0; i < 2; i++) {
    for (bl__control_call_t *call = lists[i], *next; call != NULL; call = next) {
      next = call->next;
      call->err = *cause;
      end_question(call);
    }
  }
}

static void finish(bl__control_call_t *call);

// The deadline has passed. If the last attempt reported a failure to reach the store, that is the cause.
static void be_late(bl__control_call_t *call) {
  const bl_error_t last = call->err;
  const char *store = call->client->store;
  if (last.status == BL_UNAVAILABLE) {
    (void)bl_error_set(&call->err, BL_UNAVAILABLE, "the store at %s did not answer in time; last: %s", store,
                       last.text);
  } else {
    (void)bl_error_set(&call->err, BL_UNAVAILABLE, "the store at %s did not answer in time", store);
  }
}

static void try_send(bl__control_call_t *call) {
  uint64_t now_ns = bl_clock_now_ns();
  if (now_ns >= call->deadline_ns) {
    be_late(call);
    finish(call);
    return;
  }
  bl_client_t *client = call->client;
  if (is_sequenced(call) && now_ns > client->renewed_ns + client->ttl_ms * BL_NS_PER_MS) {
    call->next = client->again; // this process did not run for a while: the session is renewed first
    client->again = call;
    return;
  }
  uint64_t left_ms = (call->deadline_ns - now_ns) / BL_NS_PER_MS + 1;
  if (bl__send(call, left_ms < TRY_MS ? left_ms : TRY_MS, &call->err) != BL_OK) {
    finish(call);
  }
}

// Sends those that wait.
static void take_turns(bl_client_t *client) {
  while (client->turn_first != NULL) {
    bl__control_call_t *call = client->turn_first;
    pthread_mutex_lock(&client->mutex);
    bool free = bl__sequences_next(&client->requests.sequences, &call->sequence);
    pthread_mutex_unlock(&client->mutex);
    if (!free) {
      return; // the tick tries it again
    }
    client->turn_first = call->next;
    client->turn_last = client->turn_first == NULL ? NULL : client->turn_last;
    try_send(call);
  }
}

static void finish(bl__control_call_t *call) {
  bl_client_t *client = call->client;
  if (is_sequenced(call)) {
    pthread_mutex_lock(&client->mutex);
    bl__sequences_over(&client->requests.sequences, call->sequence);
    pthread_mutex_unlock(&client->mutex);
  }
  end_question(call);
  take_turns(client);
}

// Returns whether the store could not be reached, after which the control call may be retried. A refusal by the store
// is an answer.
static bool is_worth_another_try(const bl__control_call_t *call) {
  const char *store = call->client->store;
  size_t length = strlen(store);
  bool way = strncmp(call->err.text, store, length) == 0 && call->err.text[length] == ':';
  return way && (call->err.status == BL_UNAVAILABLE || call->err.status == BL_DEADLINE);
}

static void renewed(bl__control_call_t *call) {
  bl_client_t *client = call->client;
  client->renewing = false;
  if (call->plan != client->session) {
    return; // of the previous session
  }
  if (call->err.status == BL_OK) {
    client->renewed_ns = client->renewal_sent_ns;
    pthread_mutex_lock(&client->mutex);
    client->requests.counters.renewals++;
    pthread_mutex_unlock(&client->mutex);
  } else if (!is_worth_another_try(call)) {
    bl__lose(client, &call->err);
  } else {
    client->next_renewal_ns = bl_clock_now_ns() + client->ttl_ms * BL_NS_PER_MS / 20;
  }
}

void bl__control_call_end(bl__control_call_t *call) {
  bl_client_t *client = call->client;
  if (call->kind == BL__CALL_KEEP_ALIVE) {
    renewed(call);
    return;
  }
  bl_error_t lost;
  if (call->err.status != BL_OK && is_worth_another_try(call) && call->kind != BL__CALL_CLOSE &&
      bl_clock_now_ns() < call->deadline_ns) {
    if (bl__is_lost(client, &lost)) {
      call->err = lost;
      finish(call);
      return;
    }
    call->next = client->again; // at the next tick
    client->again = call;
    return;
  }
  if (call->err.status == BL_DEADLINE) { // the status of the RPC; callers get this one instead
    be_late(call);
  }
  finish(call);
}

void bl__control_call_start(bl__control_call_t *call) {
  bl_client_t *client = call->client;
  if (!is_sequenced(call)) {
    try_send(call);
    return;
  }
  call->next = NULL;
  if (client->turn_last != NULL) {
    client->turn_last->next = call;
  } else {
    client->turn_first = call;
  }
  client->turn_last = call;
  take_turns(client);
}

void bl__on_control_call(bl_message_t *message) {
  bl__control_call_t *call = BL_MESSAGE_OWNER(message, bl__control_call_t, message);
  if (bl__is_lost(call->client, &call->err)) {
    end_question(call);
  } else {
    bl__control_call_start(call);
  }
}

static void renew(bl_client_t *client, uint64_t now_ns) {
  uint64_t ttl_ns = client->ttl_ms * BL_NS_PER_MS, grace_ns = client->grace_ms * BL_NS_PER_MS;
  bl_error_t err;
  if (now_ns > client->renewed_ns + ttl_ns + grace_ns) {
    (void)bl_error_set(&err, BL_FENCED, "the store at %s was not reached for TTL and grace: what it held is lost",
                       client->store);
    bl__lose(client, &err);
    return;
  }
  if (client->renewing || now_ns < client->next_renewal_ns) {
    return;
  }
  client->renewal = (bl__control_call_t){.client = client, .kind = BL__CALL_KEEP_ALIVE, .plan = client->session};
  client->renewal_sent_ns = now_ns;
  client->next_renewal_ns = now_ns + ttl_ns / 3;
  client->renewing = bl__send(&client->renewal, client->ttl_ms / 3, &err) == BL_OK;
}

void bl__control_iterate(bl_client_t *client, uint64_t now_ns) {
  if (client->phase >= BL__PHASE_REGISTERING) {
    renew(client, now_ns);
  }
  bl__control_call_t *again = client->again;
  client->again = NULL;
  while (again != NULL) {
    bl__control_call_t *next = again->next;
    pthread_mutex_lock(&client->mutex);
    client->requests.counters.retries++;
    pthread_mutex_unlock(&client->mutex);
    try_send(again);
    again = next;
  }
  take_turns(client);
}
