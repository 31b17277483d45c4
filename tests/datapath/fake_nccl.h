// SPDX-License-Identifier: Apache-2.0
// NCCL as a test sees it: both ranks in this process, over ordinary memory, with every way to fail that the path must live
// through. The n-th send of a communicator meets the n-th receive, as in NCCL; a pair moves when both are launched.
//
//   fake_nccl_world_t world;  fake_nccl_init(&world);
//   bl_nccl_api_t left = fake_nccl_api(&world, 0, 22809), right = fake_nccl_api(&world, 1, 22809);
//   world.side[1].never_moves = true;
//
// The first transfer of a communicator connects its ranks, which may take long (connect_ns); faults of transfers are of those
// with buffers, not of the one that the engine makes to connect.
//
// Misuse of the table is counted: calls on one communicator at a time from two threads, calls after its abort began (but
// when interrupting), tickets in use, and launches in which the two ranks differ in size.
#ifndef TESTS_DATAPATH_FAKE_NCCL_H
#define TESTS_DATAPATH_FAKE_NCCL_H

#include "datapath/nccl/api.h"
#include "sys/clock.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FAKE_PAIRS 64u

typedef struct fake_side { // faults of one end; read under the mutex
  atomic_bool never_made;  // its communicators never get ready
  atomic_bool create_fails;
  atomic_bool launch_fails;
  atomic_bool launch_blocks; // the call itself does not return until the abort, or until this is false again
  atomic_bool launch_slow;   // in progress for a while first
  atomic_bool never_moves;   // what it launches never moves
  atomic_bool dies_half_way; // half of the bytes, then nothing: the process is gone
  atomic_bool peer_error;    // its communicators report that the peer failed
  atomic_bool own_error;     // ... or that they did
  atomic_bool abort_blocks;  // until this is false again
  atomic_ullong connect_ns;  // what the first transfer takes
  int only_pair;             // -1: faults are of all communicators; else of that made in this place
  atomic_uint creates, launches, aborts, misuses;
} fake_side_t;

typedef struct fake_launch {
  void *buffer;
  uint64_t bytes;
  bool used, over, greets;
} fake_launch_t;

typedef struct fake_pair { // the two ranks of one id
  uint8_t id[BL_NCCL_ID_BYTES];
  int number;
  bool made[2], aborted[2];
  unsigned launched[2], moved;             // counts
  uint64_t first_ns;                       // when both had launched the first
  fake_launch_t sends[256], receives[256]; // by count
} fake_pair_t;

typedef struct fake_nccl_world {
  pthread_mutex_t mutex;
  fake_side_t side[2];
  fake_pair_t pairs[FAKE_PAIRS];
  unsigned pair_count;
  atomic_uint ids;
} fake_nccl_world_t;

typedef struct fake_end { // context of a table
  fake_nccl_world_t *world;
  int side;
} fake_end_t;

struct bl_nccl_comm {
  fake_nccl_world_t *world;
  fake_pair_t *pair;
  int side, rank;
  atomic_int inside; // calls under way
  atomic_bool aborting;
  unsigned launching; // polls until the last launch is done
  unsigned ticket_launch[BL_NCCL_IN_FLIGHT];
  uint8_t greeting[BL_NCCL_GREETING_BYTES];
};

static inline bool fake_is(const bl_nccl_comm_t *comm, const atomic_bool *fault) {
  const fake_side_t *side = &comm->world->side[comm->side];
  return atomic_load(fault) && (side->only_pair < 0 || side->only_pair == comm->pair->number);
}

static inline void fake_nap(void) {
  struct timespec pause = {.tv_nsec = 200000};
  nanosleep(&pause, NULL);
}

static inline void fake_enter(bl_nccl_comm_t *comm) {
  if (atomic_fetch_add(&comm->inside, 1) != 0 || atomic_load(&comm->aborting)) {
    atomic_fetch_add(&comm->world->side[comm->side].misuses, 1);
  }
}

static inline void fake_leave(bl_nccl_comm_t *comm) {
  atomic_fetch_sub(&comm->inside, 1);
}

static inline bl_nccl_result_t fake_new_id(const bl_nccl_api_t *api, uint8_t id[BL_NCCL_ID_BYTES], char *text) {
  fake_end_t *end = api->context;
  (void)text;
  memset(id, 0, BL_NCCL_ID_BYTES);
  unsigned number = atomic_fetch_add(&end->world->ids, 1) + 1;
  memcpy(id, &number, sizeof number);
  return BL_NCCL_DONE;
}

static inline bl_nccl_result_t fake_create(const bl_nccl_api_t *api, const uint8_t id[BL_NCCL_ID_BYTES], int rank,
                                           const bl_nccl_config_t *config, bl_nccl_comm_t **made, char *text) {
  fake_end_t *end = api->context;
  fake_nccl_world_t *world = end->world;
  (void)config;
  atomic_fetch_add(&world->side[end->side].creates, 1);
  bl_nccl_comm_t *comm = calloc(1, sizeof *comm);
  pthread_mutex_lock(&world->mutex);
  fake_pair_t *pair = NULL;
  for (unsigned i = 0; i < world->pair_count; i++) {
    pair = memcmp(world->pairs[i].id, id, BL_NCCL_ID_BYTES) == 0 ? &world->pairs[i] : pair;
  }
  if (pair == NULL && world->pair_count < FAKE_PAIRS) {
    pair = &world->pairs[world->pair_count];
    memcpy(pair->id, id, BL_NCCL_ID_BYTES);
    pair->number = (int)world->pair_count++;
  }
  pthread_mutex_unlock(&world->mutex);
  *comm = (bl_nccl_comm_t){.world = world, .pair = pair, .side = end->side, .rank = rank};
  if (fake_is(comm, &world->side[end->side].create_fails)) {
    free(comm);
    snprintf(text, BL_NCCL_TEXT_BYTES, "unhandled system error");
    return BL_NCCL_BROKEN;
  }
  pthread_mutex_lock(&world->mutex);
  pair->made[rank] = !fake_is(comm, &world->side[end->side].never_made);
  pthread_mutex_unlock(&world->mutex);
  *made = comm;
  return BL_NCCL_IN_PROGRESS;
}

static inline bl_nccl_result_t fake_poll(const bl_nccl_api_t *api, bl_nccl_comm_t *comm, char *text) {
  (void)api;
  fake_enter(comm);
  fake_side_t *side = &comm->world->side[comm->side];
  pthread_mutex_lock(&comm->world->mutex);
  bool both = comm->pair->made[0] && comm->pair->made[1];
  pthread_mutex_unlock(&comm->world->mutex);
  bl_nccl_result_t result = !both || comm->launching > 0 ? BL_NCCL_IN_PROGRESS : BL_NCCL_DONE;
  comm->launching -= comm->launching > 0;
  if (fake_is(comm, &side->peer_error)) {
    snprintf(text, BL_NCCL_TEXT_BYTES, "remote process exited or there was a network error");
    result = BL_NCCL_PEER_FAILED;
  } else if (fake_is(comm, &side->own_error)) {
    snprintf(text, BL_NCCL_TEXT_BYTES, "unhandled cuda error");
    result = BL_NCCL_BROKEN;
  }
  fake_leave(comm);
  return result;
}

// Mutex held. Moves what both have launched, in order; `half`: only half of it, and the end never comes.
static inline void fake_move(bl_nccl_comm_t *comm) {
  fake_pair_t *pair = comm->pair;
  fake_side_t *sides = comm->world->side;
  while (pair->moved < pair->launched[0] && pair->moved < pair->launched[1]) {
    fake_launch_t *send = &pair->sends[pair->moved % 256], *receive = &pair->receives[pair->moved % 256];
    bool stops = false, half = false;
    uint64_t connect_ns = 0;
    for (int s = 0; s < 2; s++) {
      uint64_t own_ns = atomic_load(&sides[s].connect_ns);
      connect_ns = own_ns > connect_ns ? own_ns : connect_ns;
    }
    pair->first_ns = pair->first_ns == 0 ? bl_clock_now_ns() : pair->first_ns;
    if (pair->moved == 0 && bl_clock_now_ns() - pair->first_ns < connect_ns) {
      return;
    }
    for (int s = 0; s < 2 && !send->greets; s++) {
      bool own = sides[s].only_pair < 0 || sides[s].only_pair == pair->number;
      stops |= own && atomic_load(&sides[s].never_moves);
      half |= own && atomic_load(&sides[s].dies_half_way);
    }
    if (send->bytes != receive->bytes) {
      atomic_fetch_add(&sides[comm->side].misuses, 1);
      return;
    }
    if (pair->aborted[0] || pair->aborted[1] || stops) {
      return;
    }
    if (send->greets != receive->greets) {
      atomic_fetch_add(&sides[comm->side].misuses, 1);
    }
    memcpy(receive->buffer, send->buffer, half ? send->bytes / 2 : send->bytes);
    if (half) {
      return;
    }
    send->over = receive->over = true;
    pair->moved++;
  }
}

static inline bl_nccl_result_t fake_launch(const bl_nccl_api_t *api, bl_nccl_comm_t *comm, void *buffer, uint64_t bytes,
                                           uint32_t ticket, char *text) {
  (void)api;
  fake_enter(comm);
  fake_side_t *side = &comm->world->side[comm->side];
  fake_pair_t *pair = comm->pair;
  const bool greets = buffer == NULL;
  atomic_fetch_add(&side->launches, !greets);
  while (!greets && fake_is(comm, &side->launch_blocks) && !atomic_load(&comm->aborting)) {
    fake_nap();
  }
  bl_nccl_result_t result = BL_NCCL_DONE;
  if (!greets && fake_is(comm, &side->launch_fails)) {
    snprintf(text, BL_NCCL_TEXT_BYTES, "internal error");
    result = BL_NCCL_BROKEN;
  } else if (!atomic_load(&comm->aborting)) {
    pthread_mutex_lock(&comm->world->mutex);
    unsigned count = pair->launched[comm->rank]++;
    fake_launch_t *launch = comm->rank == 0 ? &pair->sends[count % 256] : &pair->receives[count % 256];
    *launch =
        (fake_launch_t){.buffer = greets ? comm->greeting : buffer, .bytes = bytes, .used = true, .greets = greets};
    comm->ticket_launch[ticket] = count;
    fake_move(comm);
    pthread_mutex_unlock(&comm->world->mutex);
    comm->launching = fake_is(comm, &side->launch_slow) ? 3 : 0;
    result = comm->launching > 0 ? BL_NCCL_IN_PROGRESS : BL_NCCL_DONE;
  }
  fake_leave(comm);
  return result;
}

static inline bl_nccl_result_t fake_over(const bl_nccl_api_t *api, bl_nccl_comm_t *comm, uint32_t ticket, char *text) {
  (void)api;
  (void)text;
  fake_enter(comm);
  pthread_mutex_lock(&comm->world->mutex);
  fake_move(comm);
  unsigned count = comm->ticket_launch[ticket];
  const fake_launch_t *launch = comm->rank == 0 ? &comm->pair->sends[count % 256] : &comm->pair->receives[count % 256];
  bool over = launch->over;
  pthread_mutex_unlock(&comm->world->mutex);
  fake_leave(comm);
  return over ? BL_NCCL_DONE : BL_NCCL_IN_PROGRESS;
}

static inline void fake_abort(const bl_nccl_api_t *api, bl_nccl_comm_t *comm) {
  (void)api;
  fake_side_t *side = &comm->world->side[comm->side];
  atomic_store(&comm->aborting, true);
  while (atomic_load(&comm->inside) != 0) { // a call that is interrupted
    fake_nap();
  }
  while (fake_is(comm, &side->abort_blocks)) {
    fake_nap();
  }
  pthread_mutex_lock(&comm->world->mutex);
  comm->pair->aborted[comm->rank] = true;
  pthread_mutex_unlock(&comm->world->mutex);
  atomic_fetch_add(&side->aborts, 1);
  free(comm);
}

static inline void fake_nccl_init(fake_nccl_world_t *world) {
  memset(world, 0, sizeof *world);
  pthread_mutex_init(&world->mutex, NULL);
  world->side[0].only_pair = world->side[1].only_pair = -1;
}

static inline bl_nccl_api_t fake_nccl_api(fake_end_t *end, int version) {
  return (bl_nccl_api_t){.version = version,
                         .new_id = fake_new_id,
                         .create = fake_create,
                         .poll = fake_poll,
                         .launch = fake_launch,
                         .over = fake_over,
                         .abort = fake_abort,
                         .context = end};
}

#endif
