// SPDX-License-Identifier: Apache-2.0
// The client's loop thread: sends questions, again while the store cannot be reached, renews the session, notices its end.
#include "client/client_core.h"

#include "sys/clock.h"
#include "sys/thread.h"

#include <string.h>

#define TICK_MS 20   // granularity of retries, renewals and of noticing a dead store
#define TRY_MS  2000 // until an unanswered request is sent again

static bool is_sequenced(const bl__question_t *question) {
  return question->verb >= BL__ASK_RESERVE;
}

static void end_question(bl__question_t *question) {
  bl_client_t *client = question->client;
  pthread_mutex_lock(&client->mutex);
  question->over = true;
  pthread_cond_signal(&client->ended[question - client->questions]);
  pthread_mutex_unlock(&client->mutex);
}

void bl__lose(bl_client_t *client, const bl_error_t *cause) {
  pthread_mutex_lock(&client->mutex);
  if (client->lost.status == BL_OK) {
    client->lost = *cause;
  }
  pthread_mutex_unlock(&client->mutex);
  bl__transfer_wake(client);
}

// The session is lost: every question ends with the cause.
static void end_all(bl_client_t *client, const bl_error_t *lost) {
  bl__question_t *lists[2] = {client->again, client->turn_first};
  client->again = client->turn_first = client->turn_last = NULL;
  for (int i = 0; i < 2; i++) {
    for (bl__question_t *question = lists[i], *next; question != NULL; question = next) {
      next = question->next;
      client->in_flight -= i == 0 && is_sequenced(question) ? 1 : 0;
      question->err = *lost;
      end_question(question);
    }
  }
}

bool bl__is_lost(bl_client_t *client, bl_error_t *err) {
  pthread_mutex_lock(&client->mutex);
  bool lost = client->lost.status != BL_OK;
  if (lost) {
    *err = client->lost;
  }
  pthread_mutex_unlock(&client->mutex);
  return lost;
}

static void finish(bl__question_t *question);

// Its time is over: what the last try said about the way there is the cause, if it said something.
static void be_late(bl__question_t *question) {
  const bl_error_t last = question->err;
  const char *store = question->client->store;
  if (last.status == BL_UNAVAILABLE) {
    (void)bl_error_set(&question->err, BL_UNAVAILABLE, "the store at %s did not answer in time; last: %s", store,
                       last.text);
  } else {
    (void)bl_error_set(&question->err, BL_UNAVAILABLE, "the store at %s did not answer in time", store);
  }
}

static void try_send(bl__question_t *question) {
  uint64_t now_ns = bl_clock_now_ns();
  if (now_ns >= question->deadline_ns) {
    be_late(question);
    finish(question);
    return;
  }
  bl_client_t *client = question->client;
  if (is_sequenced(question) && now_ns > client->renewed_ns + client->ttl_ms * BL_NS_PER_MS) {
    question->next = client->again; // this process stood still: the session is renewed first
    client->again = question;
    return;
  }
  uint64_t left_ms = (question->deadline_ns - now_ns) / BL_NS_PER_MS + 1;
  if (bl__send(question, left_ms < TRY_MS ? left_ms : TRY_MS, &question->err) != BL_OK) {
    finish(question);
  }
}

// Sends those that waited for their turn.
static void take_turns(bl_client_t *client) {
  while (client->turn_first != NULL) {
    bl__question_t *question = client->turn_first;
    pthread_mutex_lock(&client->mutex);
    bool free = bl__sequences_next(&client->sequences, &question->sequence);
    pthread_mutex_unlock(&client->mutex);
    if (!free) {
      return; // the tick tries again
    }
    client->turn_first = question->next;
    client->turn_last = client->turn_first == NULL ? NULL : client->turn_last;
    client->in_flight++;
    try_send(question);
  }
}

static void finish(bl__question_t *question) {
  bl_client_t *client = question->client;
  if (is_sequenced(question)) {
    client->in_flight--;
    pthread_mutex_lock(&client->mutex);
    bl__sequences_over(&client->sequences, question->sequence);
    pthread_mutex_unlock(&client->mutex);
  }
  end_question(question);
  take_turns(client);
}

// Failures of the way there, after which the same question may be asked again; refusals of the store are answers.
static bool is_worth_another_try(const bl__question_t *question) {
  const char *store = question->client->store;
  size_t length = strlen(store);
  bool way = strncmp(question->err.text, store, length) == 0 && question->err.text[length] == ':';
  return way && (question->err.status == BL_UNAVAILABLE || question->err.status == BL_DEADLINE);
}

static void renewed(bl__question_t *question) {
  bl_client_t *client = question->client;
  client->renewing = false;
  if (question->plan != client->session) {
    return; // of the session before
  }
  if (question->err.status == BL_OK) {
    client->renewed_ns = client->renewal_sent_ns;
    pthread_mutex_lock(&client->mutex);
    client->counters.renewals++;
    pthread_mutex_unlock(&client->mutex);
  } else if (!is_worth_another_try(question)) {
    bl__lose(client, &question->err);
  } else {
    client->next_renewal_ns = bl_clock_now_ns() + client->ttl_ms * BL_NS_PER_MS / 20;
  }
}

void bl__asked(bl__question_t *question) {
  bl_client_t *client = question->client;
  if (question->verb == BL__ASK_KEEP_ALIVE) {
    renewed(question);
    return;
  }
  bl_error_t lost;
  if (question->err.status != BL_OK && is_worth_another_try(question) && question->verb != BL__ASK_CLOSE &&
      bl_clock_now_ns() < question->deadline_ns) {
    if (bl__is_lost(client, &lost)) {
      question->err = lost;
      finish(question);
      return;
    }
    question->next = client->again; // at the next tick
    client->again = question;
    return;
  }
  if (question->err.status == BL_DEADLINE) { // the word of the way; to callers it is this
    be_late(question);
  }
  finish(question);
}

void bl__on_question(bl_message_t *message) {
  bl__question_t *question = BL_MESSAGE_OWNER(message, bl__question_t, message);
  bl_client_t *client = question->client;
  if (bl__is_lost(client, &question->err) && question->verb != BL__ASK_CLOSE) {
    end_question(question);
    return;
  }
  if (!is_sequenced(question)) {
    try_send(question);
    return;
  }
  question->next = NULL;
  if (client->turn_last != NULL) {
    client->turn_last->next = question;
  } else {
    client->turn_first = question;
  }
  client->turn_last = question;
  take_turns(client);
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
  client->renewal = (bl__question_t){.client = client, .verb = BL__ASK_KEEP_ALIVE, .plan = client->session};
  client->renewal_sent_ns = now_ns;
  client->next_renewal_ns = now_ns + ttl_ns / 3;
  client->renewing = bl__send(&client->renewal, client->ttl_ms / 3, &err) == BL_OK;
}

static void on_tick(bl_timer_t *timer, void *context) {
  (void)timer;
  bl_client_t *client = context;
  bl_error_t err = {0};
  if (bl__is_lost(client, &err)) {
    end_all(client, &err);
    return;
  }
  if (atomic_load(&client->connected)) {
    renew(client, bl_clock_now_ns());
  }
  bl__question_t *again = client->again;
  client->again = NULL;
  while (again != NULL) {
    bl__question_t *next = again->next;
    pthread_mutex_lock(&client->mutex);
    client->counters.retries++;
    pthread_mutex_unlock(&client->mutex);
    try_send(again);
    again = next;
  }
  take_turns(client);
}

void bl__on_stop(bl_message_t *message) {
  bl_loop_stop(BL_MESSAGE_OWNER(message, bl_client_t, stop)->loop);
}

static bl_status_t create_loop(bl_client_t *client, bl_error_t *err) {
  bl_status_t status = bl_loop_create(&client->loop, err);
  if (status == BL_OK) {
    status = bl_rpc_create(client->loop, &client->rpc, err);
  }
  if (status == BL_OK) {
    status = bl_rpc_channel_create(client->rpc, client->store, &(bl_rpc_channel_options_t){.server_roles = BL_STORES},
                                   &client->channel, err);
  }
  if (status == BL_OK) {
    status = bl_timer_create(client->loop, on_tick, client, &client->timer, err);
  }
  return status;
}

// The loop's thread: everything on the loop lives and dies here.
void *bl__run(void *argument) {
  bl_client_t *client = argument;
  bl_thread_set_name("store-client");
  bl_thread_unpin();
  bl_error_t err = {0};
  bool well = create_loop(client, &err) == BL_OK;
  pthread_mutex_lock(&client->mutex);
  client->lost = err;
  client->started = true;
  pthread_cond_broadcast(&client->changed);
  pthread_mutex_unlock(&client->mutex);
  if (well) {
    bl_timer_start(client->timer, TICK_MS, TICK_MS);
    bl_loop_run(client->loop);
  }
  bl_rpc_channel_destroy(client->channel);
  bl_timer_destroy(client->timer);
  bl_rpc_destroy(client->rpc);
  if (client->loop != NULL) {
    bl_loop_destroy(client->loop);
  }
  return NULL;
}
