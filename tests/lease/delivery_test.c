// SPDX-License-Identifier: Apache-2.0
// Verifies exactly-once requests: over a network that loses 30 % of requests and 30 % of answers, doubles and reorders,
// clients that ask again until they are answered end in the very state of a run without loss: the same number of
// changes of state, the same blocks, nothing leaked, nothing done twice. BALLAST_SEED=n repeats one run.
#include "lease/holder.h"

#include "base/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define CLIENTS 3
#define SLOTS   4
#define USES    30
#define MAILBOX 64

typedef enum request_type {
  REQUEST_RESERVE,
  REQUEST_EVICT,
  REQUEST_LOAD,
  REQUEST_RELEASE,
  REQUEST_UNRESERVE
} request_type_t;

// What one slot, or the session itself (actor 0), does next.
typedef struct actor {
  request_type_t type;
  uint64_t sequence; // of the request under way; 0: none
  bool answered, over;
  bl_lease_token_t token;
  unsigned uses;
} actor_t;

typedef struct client {
  holder_t holder;
  actor_t actors[SLOTS + 1];
  bool answered[4096]; // by sequence
} client_t;

typedef struct letter {
  bool used, is_answer;
  int client, actor;
  request_type_t type;
  bl_lease_token_t token;
  bl_lease_request_t frame;
  bl_lease_answer_t answer;
} letter_t;

typedef struct network {
  uint64_t key, draws, seed;
  unsigned loss_percent;
  bl_lease_table_t *table;
  client_t clients[CLIENTS];
  letter_t letters[MAILBOX];
  struct {
    uint64_t id, generation, checksum;
    bool used;
  } transfers[MAILBOX];
  uint64_t lost, repeated;
} network_t;

static uint64_t draw(network_t *network, uint64_t bound) {
  return bl_random_below(network->key, network->draws++, bound);
}

static uint64_t checksum_of(int client, const bl_lease_token_t *token) {
  return (uint64_t)client * 1000003 + token->generation * 97 + 1;
}

static void post(network_t *network, const letter_t *letter) {
  if (draw(network, 100) < network->loss_percent) {
    network->lost++;
    return;
  }
  unsigned copies = network->loss_percent != 0 && draw(network, 10) == 0 ? 2 : 1;
  for (size_t i = 0; i < MAILBOX && copies > 0; i++) {
    if (!network->letters[i].used) {
      network->letters[i] = *letter;
      network->letters[i].used = true;
      copies--;
    }
  }
}

// Sends the request of an actor, for the first time or again.
static void ask(network_t *network, int index, int actor_index) {
  client_t *client = &network->clients[index];
  actor_t *actor = &client->actors[actor_index];
  holder_t *holder = &client->holder;
  if (actor->sequence == 0) {
    if (holder->sequence - holder->acknowledged >= 8) {
      return; // keep within the window
    }
    actor->sequence = ++holder->sequence;
  }
  letter_t letter = {.client = index,
                     .actor = actor_index,
                     .type = actor->type,
                     .token = actor->token,
                     .frame = {.session = holder->session,
                               .key = holder->key,
                               .sequence = actor->sequence,
                               .acknowledged = holder->acknowledged,
                               .now_ns = 1}};
  post(network, &letter);
}

static void serve(network_t *network, const letter_t *letter) {
  letter_t reply = *letter;
  reply.is_answer = true;
  bl_lease_demand_t demand = {.bytes = 2 * GRANULE, .count = SLOTS};
  uint64_t checksum = checksum_of(letter->client, &letter->token);
  bl_lease_evict_t evict = {.token = letter->token, .bytes = 12345, .checksum = checksum};
  bl_lease_decision_t decision = BL_LEASE_DONE;
  switch (letter->type) {
  case REQUEST_RESERVE:
    decision = bl_lease_table_reserve(network->table, &letter->frame, 1, &demand, 1, &reply.answer);
    break;
  case REQUEST_UNRESERVE:
    decision = bl_lease_table_unreserve(network->table, &letter->frame, 1, &reply.answer);
    break;
  case REQUEST_EVICT:
    decision = bl_lease_table_evict(network->table, &letter->frame, &evict, &reply.answer);
    break;
  case REQUEST_LOAD:
    decision = bl_lease_table_load(network->table, &letter->frame, &letter->token, false, &reply.answer);
    break;
  case REQUEST_RELEASE:
    decision = bl_lease_table_release(network->table, &letter->frame, &letter->token, &checksum, &reply.answer);
    break;
  }
  for (size_t i = 0; i < MAILBOX && decision == BL_LEASE_BEGIN; i++) {
    if (!network->transfers[i].used) {
      network->transfers[i].used = true;
      network->transfers[i].id = letter->token.id;
      network->transfers[i].generation = letter->token.generation;
      network->transfers[i].checksum = checksum;
      return;
    }
  }
  if (decision == BL_LEASE_DONE) {
    post(network, &reply);
  }
}

static void advance_actor(network_t *network, int index, int actor_index, const bl_lease_answer_t *answer) {
  client_t *client = &network->clients[index];
  actor_t *actor = &client->actors[actor_index];
  if (answer->reason != BL_LEASE_GRANTED) {
    fail_msg("seed %" PRIu64 ": request %" PRIu64 " (type %d): %s", network->seed, actor->sequence, (int)actor->type,
             bl_lease_reason_name(answer->reason));
  }
  client->answered[actor->sequence] = true;
  while (client->answered[client->holder.acknowledged + 1]) {
    client->holder.acknowledged++;
  }
  actor->sequence = 0;
  switch (actor->type) {
  case REQUEST_RESERVE: {
    bl_lease_token_t slots[SLOTS];
    assert_int_equal(holder_slots(&client->holder, slots, SLOTS), SLOTS);
    for (int i = 0; i < SLOTS; i++) {
      client->actors[i + 1] = (actor_t){.type = REQUEST_EVICT, .token = slots[i]};
    }
    actor->over = true;
    break;
  }
  case REQUEST_EVICT:
    actor->type = REQUEST_LOAD;
    break;
  case REQUEST_LOAD:
    actor->type = REQUEST_RELEASE;
    break;
  case REQUEST_RELEASE:
    assert_int_equal(answer->generation, actor->token.generation + 1);
    actor->token.generation++;
    actor->type = REQUEST_EVICT;
    actor->over = ++actor->uses == USES;
    break;
  case REQUEST_UNRESERVE:
    actor->over = true;
    break;
  }
}

// One thing happens: a letter arrives, a transfer ends, or somebody asks (again).
static void happen(network_t *network) {
  bl_lease_action_t action;
  while (bl_lease_table_next_action(network->table, &action)) {
    for (int i = 0; i < CLIENTS && action.kind == BL_LEASE_ANSWER; i++) {
      for (int j = 0; j <= SLOTS && network->clients[i].holder.session == action.session; j++) {
        if (network->clients[i].actors[j].sequence == action.sequence) {
          post(network, &(letter_t){.is_answer = true,
                                    .client = i,
                                    .actor = j,
                                    .frame = {.sequence = action.sequence},
                                    .answer = action.answer});
        }
      }
    }
  }
  size_t slot = draw(network, MAILBOX);
  letter_t letter = network->letters[slot];
  if (letter.used) {
    network->letters[slot].used = false;
    if (!letter.is_answer) {
      serve(network, &letter);
    } else if (network->clients[letter.client].actors[letter.actor].sequence == letter.frame.sequence) {
      advance_actor(network, letter.client, letter.actor, &letter.answer);
    }
  }
  slot = draw(network, MAILBOX);
  if (network->transfers[slot].used) {
    network->transfers[slot].used = false;
    bl_lease_table_transfer_ended(network->table, network->transfers[slot].id, network->transfers[slot].generation,
                                  true, network->transfers[slot].checksum, 1);
  }
  if (draw(network, 4) == 0) {
    int client = (int)draw(network, CLIENTS), actor = (int)draw(network, SLOTS + 1);
    if (!network->clients[client].actors[actor].over) {
      ask(network, client, actor);
    }
  }
}

static bool all_over(const network_t *network) {
  for (int i = 0; i < CLIENTS; i++) {
    for (int j = 0; j <= SLOTS; j++) {
      if (!network->clients[i].actors[j].over) {
        return false;
      }
    }
  }
  return true;
}

static void run(uint64_t seed, unsigned loss_percent, bl_lease_stats_t *stats, uint64_t *revision) {
  static network_t network;
  network = (network_t){.key = bl_random_key(seed, "delivery"), .seed = seed, .loss_percent = loss_percent};
  bl_lease_config_t config = {.incarnation = id128_of(5),
                              .capacity_bytes = 64 * GRANULE,
                              .max_jobs = 1,
                              .max_sessions = CLIENTS,
                              .max_leases = 16,
                              .window = 8};
  bl_error_t err = {0};
  assert_int_equal(bl_lease_table_create(&config, 1, &network.table, &err), BL_OK);
  for (int i = 0; i < CLIENTS; i++) {
    client_t *client = &network.clients[i];
    client->holder.now_ns = 1;
    assert_int_equal(holder_open(&client->holder, network.table, "job", (uint32_t)i, (uint64_t)i + 1, 64 * GRANULE),
                     BL_LEASE_GRANTED);
    for (int j = 1; j <= SLOTS; j++) {
      client->actors[j].over = true; // until the reservation is answered
    }
    client->actors[0].type = REQUEST_RESERVE;
  }
  for (uint64_t i = 0; !all_over(&network); i++) {
    assert_true(i < 10000000);
    happen(&network);
  }
  for (int i = 0; i < CLIENTS; i++) {
    network.clients[i].actors[0] = (actor_t){.type = REQUEST_UNRESERVE};
  }
  for (uint64_t i = 0; !all_over(&network); i++) {
    assert_true(i < 10000000);
    happen(&network);
  }
  for (uint64_t i = 0; i < 100000; i++) { // late copies of anything
    happen(&network);
  }
  assert_int_equal(bl_lease_table_audit(network.table, &err), BL_OK);
  bl_lease_table_stats(network.table, stats);
  *revision = bl_lease_table_journal(network.table)->revision;
  bl_lease_table_destroy(network.table);
}

static void test_losses_change_nothing(void **state) {
  (void)state;
  const char *only = getenv("BALLAST_SEED");
  bl_lease_stats_t calm, rough;
  uint64_t calm_revision, rough_revision, repeated = 0;
  run(1, 0, &calm, &calm_revision);
  assert_int_equal(calm.evicted, CLIENTS * SLOTS * USES);
  for (uint64_t seed = 1; seed <= 20; seed++) {
    if (only != NULL && strtoull(only, NULL, 10) != seed) {
      continue;
    }
    run(seed, 30, &rough, &rough_revision);
    assert_int_equal(rough_revision, calm_revision);
    assert_int_equal(rough.evicted, calm.evicted);
    assert_int_equal(rough.loaded, calm.loaded);
    assert_int_equal(rough.released, calm.released);
    assert_int_equal(rough.reserved, calm.reserved);
    assert_int_equal(rough.evicted_bytes, calm.evicted_bytes);
    assert_int_equal(rough.held_bytes, 0);
    assert_int_equal(rough.leases[BL_LEASE_FREE], 16);
    for (int i = 0; i < BL_LEASE_REASONS; i++) {
      assert_true(rough.refused[i] == 0 || i == BL_LEASE_SEQUENCE); // only late copies
    }
    repeated += rough.repeated;
  }
  printf("%" PRIu64 " changes of state in every run; %" PRIu64 " requests answered from memory\n", calm_revision,
         repeated);
  assert_true(repeated > 1000);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_losses_change_nothing)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
