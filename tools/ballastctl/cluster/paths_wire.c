// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/cluster/paths_wire.h"

#include "ballastctl/calls.h"

#include "rpc/channel.h"

#include "ballast/v1/stage.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EACH_MS  5000 // for one store, and for one rendezvous
#define SPARE_MS 5000

typedef enum { PLACES, MEETING, CLOSING, ROUNDS } round_t;

typedef struct party party_t;

typedef struct guest {
  party_t *party;
  bl_ctl_explorer_t *stage;
  uint32_t number;
  bl_rpc_channel_t *channel; // NULL: not asked, or no longer
} guest_t;

struct party {
  const bl_ctl_exploration_t *exploration;
  bl_ctl_calls_t calls;
  guest_t *guests;
  round_t round;
};

static bool is_there(const bl_ctl_explorer_t *stage) {
  return stage->address != NULL && stage->err.status == BL_OK;
}

// ---- answers

static void keep_path(bl_ctl_explorer_t *stage, const Ballast__V1__ProbedPath *from) {
  if (stage->path_count >= stage->store_count + stage->peer_count) {
    return; // more than was requested
  }
  bl_ctl_path_t *path = &stage->paths[stage->path_count++];
  *path = (bl_ctl_path_t){.store = from->store, .number = from->number, .round_ns = from->round_ns};
  snprintf(path->data_path, sizeof path->data_path, "%s", from->data_path);
  snprintf(path->reason, sizeof path->reason, "%s", from->reason);
  if (from->status != 0) {
    (void)bl_error_set(&path->err, bl_status_from_grpc_code(from->status), "%s", from->failure);
  }
}

static void keep_device(bl_ctl_explorer_t *stage, const Ballast__V1__ProbeResponse *from) {
  snprintf(stage->device_text, sizeof stage->device_text, "%s", from->device_text);
  snprintf(stage->gpu, sizeof stage->gpu, "%s", from->gpu);
  snprintf(stage->gpu_closed, sizeof stage->gpu_closed, "%s", from->gpu_closed);
  snprintf(stage->nccl, sizeof stage->nccl, "%s", from->nccl);
  snprintf(stage->no_nccl, sizeof stage->no_nccl, "%s", from->nccl_failure);
}

static void keep_reaches(bl_ctl_explorer_t *stage, const Ballast__V1__ProbeResponse *from, size_t most) {
  for (size_t i = 0; i < from->n_reached && stage->reach_count < most; i++) {
    bl_ctl_reach_t *reach = &stage->reaches[stage->reach_count++];
    reach->reached = from->reached[i]->reached;
    snprintf(reach->gpu, sizeof reach->gpu, "%s", from->reached[i]->gpu);
    snprintf(reach->reason, sizeof reach->reason, "%s", from->reached[i]->reason);
  }
}

static void keep_place(bl_ctl_explorer_t *stage, const Ballast__V1__ProbeResponse *from) {
  stage->place = (bl_ctl_place_t){.unix_address = strdup(from->unix_address),
                                  .tcp_address = strdup(from->tcp_address),
                                  .machine = strdup(from->machine),
                                  .token_bytes = from->token.len < 16 ? from->token.len : 16};
  if (stage->place.token_bytes > 0) {
    memcpy(stage->place.token, from->token.data, stage->place.token_bytes);
  }
}

static void answered(const ProtobufCMessage *output, const bl_error_t *err, void *context) {
  guest_t *guest = context;
  bl_ctl_explorer_t *stage = guest->stage;
  const Ballast__V1__ProbeResponse *response = (const Ballast__V1__ProbeResponse *)output;
  if (guest->party->round != CLOSING) {
    stage->err = *err;
  }
  if (response != NULL) {
    if (guest->party->round == PLACES) {
      stage->shared_memory_bytes = response->shared_memory_bytes;
      stage->pod = response->pod;
      keep_device(stage, response);
      keep_place(stage, response);
    }
    keep_reaches(stage, response, guest->party->exploration->count);
    for (size_t i = 0; i < response->n_paths; i++) {
      keep_path(stage, response->paths[i]);
    }
  }
  bl_ctl_calls_ended(&guest->party->calls);
}

// ---- questions

typedef struct question {
  Ballast__V1__ProbeRequest message;
  Ballast__V1__StoreToProbe *stores, **store_pointers;
  Ballast__V1__Peer *peers, **peer_pointers;
  char **gpus;
} question_t;

bool bl_ctl_machines_are_same(const char *machine, const char *other) { // a name with a "?" equals no other
  return machine != NULL && other != NULL && machine[0] != '\0' && strchr(machine, '?') == NULL &&
         strcmp(machine, other) == 0;
}

bool bl_ctl_explorers_are_near(const bl_ctl_explorer_t *a, const bl_ctl_explorer_t *b) {
  return bl_ctl_machines_are_same(a->place.machine, b->place.machine);
}

// Asks about the GPUs of other stages on its machine.
static void ask_for_gpus(const guest_t *guest, question_t *q) {
  const bl_ctl_exploration_t *exploration = guest->party->exploration;
  for (size_t i = 0; guest->stage->gpu[0] != '\0' && i < exploration->count; i++) {
    bl_ctl_explorer_t *other = &exploration->stages[i];
    if (i != guest->number && is_there(other) && other->gpu[0] != '\0' &&
        bl_ctl_explorers_are_near(guest->stage, other)) {
      q->gpus[q->message.n_gpus++] = other->gpu;
    }
  }
  q->message.gpus = q->gpus;
}

static bool make_question(const guest_t *guest, question_t *q) {
  const bl_ctl_exploration_t *exploration = guest->party->exploration;
  const bl_ctl_explorer_t *stage = guest->stage;
  *q = (question_t){.message = BALLAST__V1__PROBE_REQUEST__INIT,
                    .stores = calloc(stage->store_count + 1, sizeof *q->stores),
                    .store_pointers = calloc(stage->store_count + 1, sizeof(Ballast__V1__StoreToProbe *)),
                    .peers = calloc(stage->peer_count + 1, sizeof *q->peers),
                    .peer_pointers = calloc(stage->peer_count + 1, sizeof(Ballast__V1__Peer *)),
                    .gpus = calloc(exploration->count + 1, sizeof *q->gpus)};
  if (q->stores == NULL || q->store_pointers == NULL || q->peers == NULL || q->peer_pointers == NULL ||
      q->gpus == NULL) {
    return false;
  }
  Ballast__V1__ProbeRequest *message = &q->message;
  message->job = (char *)exploration->job;
  message->stage = guest->number;
  message->data_path = (char *)exploration->data_path;
  message->device = guest->party->round != CLOSING ? (char *)exploration->device : (char *)"";
  message->block_bytes = exploration->block_bytes;
  message->deadline_ms = EACH_MS;
  message->open = guest->party->round == PLACES;
  for (size_t i = 0; guest->party->round == PLACES && i < stage->store_count; i++) {
    q->stores[i] = (Ballast__V1__StoreToProbe)BALLAST__V1__STORE_TO_PROBE__INIT;
    q->stores[i].device = stage->stores[i];
    q->stores[i].address = (char *)exploration->stores[stage->stores[i]];
    q->store_pointers[message->n_stores++] = &q->stores[i];
  }
  for (size_t i = 0; guest->party->round == MEETING && i < stage->peer_count; i++) {
    const bl_ctl_explorer_t *other = &exploration->stages[stage->peers[i]];
    if (!is_there(other)) {
      continue;
    }
    Ballast__V1__Peer *peer = &q->peers[i];
    *peer = (Ballast__V1__Peer)BALLAST__V1__PEER__INIT;
    peer->stage = (int32_t)stage->peers[i];
    peer->unix_address = other->place.unix_address;
    peer->tcp_address = other->place.tcp_address;
    peer->machine = other->place.machine;
    peer->token = (ProtobufCBinaryData){.data = (uint8_t *)other->place.token, .len = other->place.token_bytes};
    q->peer_pointers[message->n_peers++] = peer;
  }
  if (guest->party->round == MEETING) {
    ask_for_gpus(guest, q);
  }
  message->stores = q->store_pointers;
  message->peers = q->peer_pointers;
  return true;
}

static void free_question(question_t *q) {
  free(q->stores);
  free(q->store_pointers);
  free(q->peers);
  free(q->peer_pointers);
  free(q->gpus);
}

static void ask(guest_t *guest) {
  question_t q;
  if (!make_question(guest, &q)) {
    (void)bl_error_set(&guest->stage->err, BL_EXHAUSTED, "no memory to ask");
  } else if (guest->party->round != MEETING || q.message.n_peers > 0 || q.message.n_gpus > 0) {
    const uint64_t deadline_ms = (q.message.n_stores + 2) * EACH_MS + SPARE_MS;
    if (bl_rpc_channel_call(guest->channel, &ballast__v1__stage__descriptor, "Probe", &q.message.base, deadline_ms,
                            answered, guest, &guest->stage->err) == BL_OK) {
      guest->party->calls.open++;
    }
  }
  free_question(&q);
}

// ---- rounds

static void hold_rounds(party_t *party) {
  for (party->round = PLACES; party->round < ROUNDS; party->round++) {
    party->calls.open = 0;
    for (size_t i = 0; i < party->exploration->count; i++) {
      guest_t *guest = &party->guests[i];
      if (guest->channel != NULL && (is_there(guest->stage) || party->round == CLOSING)) {
        ask(guest);
      }
    }
    bl_ctl_calls_wait(&party->calls);
  }
}

static void invite(party_t *party) {
  const bl_rpc_channel_options_t options = {.server_roles = BL_STAGES};
  for (size_t i = 0; i < party->exploration->count; i++) {
    bl_ctl_explorer_t *stage = &party->exploration->stages[i];
    guest_t *guest = &party->guests[i];
    *guest = (guest_t){.party = party, .stage = stage, .number = (uint32_t)i};
    bl_error_clear(&stage->err);
    stage->paths = calloc(stage->store_count + stage->peer_count + 1, sizeof *stage->paths);
    stage->reaches = calloc(party->exploration->count, sizeof *stage->reaches);
    if (stage->paths == NULL || stage->reaches == NULL) {
      (void)bl_error_set(&stage->err, BL_EXHAUSTED, "no memory for its paths");
    } else if (stage->address != NULL) {
      stage->err.status =
          bl_rpc_channel_create(party->calls.rpc, stage->address, &options, &guest->channel, &stage->err);
    }
  }
}

bl_status_t bl_ctl_paths_explore(const bl_ctl_exploration_t *exploration, bl_error_t *err) {
  party_t party = {.exploration = exploration, .guests = calloc(exploration->count + 1, sizeof *party.guests)};
  bl_status_t status =
      party.guests == NULL ? bl_error_set(err, BL_EXHAUSTED, "no memory") : bl_ctl_calls_init(&party.calls, err);
  if (status == BL_OK) {
    invite(&party);
    hold_rounds(&party);
    for (size_t i = 0; i < exploration->count; i++) {
      bl_rpc_channel_destroy(party.guests[i].channel);
    }
  }
  bl_ctl_calls_cleanup(&party.calls);
  free(party.guests);
  return status;
}

void bl_ctl_explorer_cleanup(bl_ctl_explorer_t *explorer) {
  free(explorer->place.unix_address);
  free(explorer->place.tcp_address);
  free(explorer->place.machine);
  free(explorer->paths);
  free(explorer->reaches);
  explorer->paths = NULL;
  explorer->reaches = NULL;
  explorer->path_count = explorer->reach_count = 0;
  explorer->place = (bl_ctl_place_t){0};
}
