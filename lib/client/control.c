// SPDX-License-Identifier: Apache-2.0
// Remote calls: sends questions, again while the store cannot be reached, renews the session, notices its end.
#include "client/client_core.h"

#include "sys/clock.h"

#include <string.h>

#define TRY_MS 2000 // until an unanswered request is sent again

static bool is_sequenced(const bl__question_t *question) {
  return question->verb >= BL__ASK_RESERVE;
}

static void end_question(bl__question_t *question) {
  bl_client_t *client = question->client;
  if (question->done != NULL) {
    question->done(question);
    return;
  }
  pthread_mutex_lock(&client->mutex);
  question->over = true;
  pthread_cond_signal(&client->ended[question - client->questions]);
  pthread_mutex_unlock(&client->mutex);
}

void bl__questions_end(bl_client_t *client, const bl_error_t *cause) {
  bl__question_t *lists[2] = {client->again, client->turn_first};
  client->again = client->turn_first = client->turn_last = NULL;
  for (int i = 0; i < 2; i++) {
    for (bl__question_t *question = lists[i], *next; question != NULL; question = next) {
      next = question->next;
      question->err = *cause;
      end_question(question);
    }
  }
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
    bool free = bl__sequences_next(&client->requests.sequences, &question->sequence);
    pthread_mutex_unlock(&client->mutex);
    if (!free) {
      return; // the tick tries again
    }
    client->turn_first = question->next;
    client->turn_last = client->turn_first == NULL ? NULL : client->turn_last;
    try_send(question);
  }
}

static void finish(bl__question_t *question) {
  bl_client_t *client = question->client;
  if (is_sequenced(question)) {
    pthread_mutex_lock(&client->mutex);
    bl__sequences_over(&client->requests.sequences, question->sequence);
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
    client->requests.counters.renewals++;
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

void bl__ask(bl__question_t *question) {
  bl_client_t *client = question->client;
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

void bl__on_question(bl_message_t *message) {
  bl__question_t *question = BL_MESSAGE_OWNER(message, bl__question_t, message);
  if (bl__is_lost(question->client, &question->err)) {
    end_question(question);
  } else {
    bl__ask(question);
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
  client->renewal = (bl__question_t){.client = client, .verb = BL__ASK_KEEP_ALIVE, .plan = client->session};
  client->renewal_sent_ns = now_ns;
  client->next_renewal_ns = now_ns + ttl_ns / 3;
  client->renewing = bl__send(&client->renewal, client->ttl_ms / 3, &err) == BL_OK;
}

void bl__control_turn(bl_client_t *client, uint64_t now_ns) {
  if (client->phase >= BL__PHASE_REGISTERING) {
    renew(client, now_ns);
  }
  bl__question_t *again = client->again;
  client->again = NULL;
  while (again != NULL) {
    bl__question_t *next = again->next;
    pthread_mutex_lock(&client->mutex);
    client->requests.counters.retries++;
    pthread_mutex_unlock(&client->mutex);
    try_send(again);
    again = next;
  }
  take_turns(client);
}
