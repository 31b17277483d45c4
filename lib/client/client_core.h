// SPDX-License-Identifier: Apache-2.0
// Shared inside lib/client: the client's structure and the questions it asks.
//
// A caller fills a question, posts it to the client's loop and waits for `over`. On the loop it gets a sequence number,
// is sent, sent again while the store cannot be reached, and answered.
#ifndef BALLAST_CLIENT_CLIENT_CORE_H
#define BALLAST_CLIENT_CLIENT_CORE_H

#include "client/client.h"

#include "datapath/shared_map.h"
#include "loop/loop.h"
#include "loop/timer.h"
#include "rpc/channel.h"

#include <pthread.h>
#include <stdatomic.h>

#define BL__ID_BYTES 16

typedef enum {
  BL__ASK_OPEN, // not sequenced
  BL__ASK_CLOSE,
  BL__ASK_KEEP_ALIVE,
  BL__ASK_RESERVE, // sequenced from here on
  BL__ASK_UNRESERVE,
  BL__ASK_EVICT,
  BL__ASK_LOAD,
  BL__ASK_RELEASE,
} bl__verb_t;

typedef struct bl__question {
  bl_message_t message;
  bl_client_t *client;
  struct bl__question *next; // waiting for its turn or for another try
  bl__verb_t verb;
  uint64_t sequence;
  uint64_t deadline_ns;
  bool used, over; // [mutex]
  bl_error_t err;  // of the outcome
  // What is asked:
  uint64_t plan;
  const bl_client_demand_t *demands;
  size_t demand_count;
  uint64_t id, generation;
  uint64_t bytes, checksum;
  uint32_t source_arena;
  uint64_t source_offset;
  bl_client_label_t label;
  bool loaded;
  // What was answered:
  uint64_t answer_generation, answer_offset, answer_bytes, answer_checksum;
} bl__question_t;

typedef enum { BL__ROOM_EMPTY, BL__ROOM_EVICTING, BL__ROOM_FULL, BL__ROOM_LOADING, BL__ROOM_UNKNOWN } bl__room_state_t;

typedef struct bl__room {
  uint64_t id, generation, bytes;
  bl__room_state_t state;
  bool listed; // while the rooms of an answer are taken over
} bl__room_t;

struct bl_client {
  // Set by open, then constant.
  char job[BL_CLIENT_JOB_LENGTH + 1], store[BL_RPC_ADDRESS_BYTES];
  uint32_t stage;
  uint64_t arena_bytes, ttl_ms, deadline_ms;
  bl_arena_t sources[BL_CLIENT_SOURCES];
  size_t source_count;
  uint8_t holder[BL__ID_BYTES], key[BL__ID_BYTES], incarnation[BL__ID_BYTES];
  uint64_t session, grace_ms;
  char data_address[BL_RPC_ADDRESS_BYTES];
  atomic_int door_fd;  // -1: not connected yet
  bl_shared_map_t map; // of the job's arena

  // The loop's.
  bl_loop_t *loop;
  bl_rpc_t *rpc;
  bl_rpc_channel_t *channel;
  bl_timer_t *timer;
  pthread_t thread;
  bool thread_started, runs;
  uint64_t sequence, acknowledged;
  uint64_t answered; // bit i: acknowledged + 1 + i is over
  unsigned in_flight;
  bl__question_t *turn_first, *turn_last; // wait for their turn
  bl__question_t *again;                  // wait for another try
  bl__question_t renewal;
  bool renewing;
  uint64_t renewal_sent_ns, renewed_ns; // of the renewal under way; of the last that arrived
  uint64_t next_renewal_ns;
  bl_message_t stop;

  pthread_mutex_t mutex;  // guards what follows, and used and over of questions
  pthread_cond_t changed; // the thread has started, a question is unused again
  bl_error_t lost;        // BL_OK while the session lives
  bool started;           // the thread has its loop, or `lost` says why not
  bool draining;
  bl__question_t questions[BL_CLIENT_IN_FLIGHT * 2];
  pthread_cond_t ended[BL_CLIENT_IN_FLIGHT * 2]; // of each question: wakes its asker alone
  bl__room_t *rooms;
  size_t room_count, room_capacity;
  bl_client_counters_t counters;
};

// request_wire.c: sends; `done` gets the outcome in question->err and the answer fields.
typedef void (*bl__asked_fn)(bl__question_t *question);
BL_MUST_USE bl_status_t bl__send(bl__question_t *question, uint64_t deadline_ms, bl_error_t *err);
// asking.c: what request_wire.c calls back on the loop; the handlers of messages to it; the thread.
void bl__asked(bl__question_t *question);
void bl__on_question(bl_message_t *message);
void bl__on_stop(bl_message_t *message);
void *bl__run(void *argument); // the client
// rooms.c. [mutex]
bl__room_t *bl__room_find(bl_client_t *client, uint64_t id);
// Takes over a list of rooms: begin, one call per room, end. False: no memory.
void bl__rooms_begin(bl_client_t *client);
bool bl__rooms_add(bl_client_t *client, uint64_t id, uint64_t generation, uint64_t bytes, bool empty);
void bl__rooms_end(bl_client_t *client);

#endif
