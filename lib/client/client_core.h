// SPDX-License-Identifier: Apache-2.0
// Shared inside lib/client: the client's structure and the roles of its threads.
//
// Loop thread (asking.c): questions that go as RPCs: open, keep-alive, reserve. A caller fills one, posts it and waits.
// Transfer thread (transfer.c): operations that go over the data connection: evict, load, release, show, hide. A caller
// fills one, hands it over and may wait later.
// Both draw from one series of sequence numbers (window.h of lib/lease at the store's side).
#ifndef BALLAST_CLIENT_CLIENT_CORE_H
#define BALLAST_CLIENT_CLIENT_CORE_H

#include "client/client.h"

#include "datapath/endpoint.h"
#include "datapath/inlet.h"
#include "datapath/mover.h"
#include "datapath/nccl/engine.h"
#include "datapath/outlet.h"
#include "datapath/peer_memory.h"
#include "loop/loop.h"
#include "loop/timer.h"
#include "rpc/channel.h"

#include <pthread.h>
#include <stdatomic.h>

#define BL__ID_BYTES  16
#define BL__WINDOW    64 // requests without an acknowledged answer; the store's window is at least that
#define BL__QUESTIONS 8  // RPCs of callers at a time
#define BL__RELEASES  (BL_CLIENT_TICKETS + BL__WINDOW)

// ---- questions (loop thread) -------------------------------------------------------------------------------------------

typedef enum {
  BL__ASK_OPEN, // not sequenced
  BL__ASK_CLOSE,
  BL__ASK_KEEP_ALIVE,
  BL__ASK_RESERVE, // sequenced from here on
  BL__ASK_UNRESERVE,
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
  uint64_t plan;
  const bl_client_demand_t *demands;
  size_t demand_count;
} bl__question_t;

// ---- operations (transfer thread) --------------------------------------------------------------------------------------

typedef enum { BL__EVICT, BL__LOAD, BL__RELEASE, BL__SHOW, BL__HIDE } bl__operation_verb_t;

typedef struct bl__operation {
  struct bl__operation *next;
  bl__operation_verb_t verb;
  uint32_t serial;
  bool used, over; // [mutex]
  atomic_bool cancelled;
  uint64_t deadline_ns;
  bl_error_t err;
  uint64_t room, generation, bytes;
  const uint8_t *from; // evict
  uint8_t *to;         // load
  uint32_t source;     // evict, show, hide
  uint64_t source_offset;
  int fd; // show
  bl_client_label_t label;
  bool known; // evict: its checksum is
  uint64_t checksum;
  uint64_t sequence; // 0: not sent
  bl_block_sender_t sender;
  uint64_t at, hash; // load on tcp; on nccl `at` is all or nothing
  bool corrupt;
  uint64_t patience_ns; // a cancelled load on nccl: until when it may still end by itself
} bl__operation_t;

// A request that was sent over the data connection and is not answered; kept to be sent again, and to know what a late
// answer means for its room.
typedef struct bl__sent {
  uint64_t sequence;          // 0: unused
  bl__operation_t *operation; // NULL: nobody waits (any more)
  bl_block_frame_t frame;
  bl__operation_verb_t verb;
  const uint8_t *from; // evict: stays readable while its source is shown, whoever waits
  bool sets;           // a release: its answer says what state the room is in
} bl__sent_t;

// Our half of a transfer over a communicator, from BEGUN until it is over; in the place of its request in the window.
typedef struct bl__half {
  bl_nccl_transfer_t transfer; // first
  bl_client_t *client;
  uint64_t sequence; // 0: none
  atomic_bool over;  // set by a thread of NCCL's
  bool answered;     // the answer came before that, and waits here
  bl_block_frame_t answer;
  char text[BL_BLOCK_TEXT_BYTES + 1];
} bl__half_t;

typedef struct bl__release { // the end of a use of a room, to be told to the store
  uint64_t id, generation, bytes, checksum;
  bool loaded;
  bool sets; // else the room is in use again already
} bl__release_t;

typedef enum { BL__ROOM_EMPTY, BL__ROOM_EVICTING, BL__ROOM_FULL, BL__ROOM_LOADING, BL__ROOM_UNKNOWN } bl__room_state_t;

typedef struct bl__room {
  uint64_t id, generation, bytes;
  uint64_t block_bytes; // of the block it holds
  bl__room_state_t state;
  bool listed; // while the rooms of an answer are taken over
} bl__room_t;

typedef struct bl__client_source {
  bool used, shown; // [mutex]
  const uint8_t *base;
  uint64_t bytes;
  int fd;
} bl__client_source_t;

typedef struct bl__sequences { // window.c
  uint64_t last, acknowledged;
  uint64_t answered; // bit i: acknowledged + 1 + i is over
} bl__sequences_t;

struct bl_client {
  // Set by open (and reopen), then constant.
  char job[BL_CLIENT_JOB_LENGTH + 1], store[BL_RPC_ADDRESS_BYTES];
  uint64_t plan;
  uint32_t stage;
  uint64_t arena_bytes, ttl_ms, deadline_ms, open_ms, asked_ttl_ms;
  bl_client_path_t wanted_path;
  bl_device_t *device;    // NULL: the host
  bl_mover_t *mover;      // of the device
  bl_nccl_engine_t *nccl; // NULL: none
  uint64_t unit_bytes;
  bl_endpoint_t endpoint, store_endpoint;
  char own_machine[128];
  bool unverified;
  uint8_t holder[BL__ID_BYTES], key[BL__ID_BYTES], incarnation[BL__ID_BYTES];
  uint64_t session, grace_ms, flow_bytes;
  char data_address[BL_RPC_ADDRESS_BYTES], data_tcp_address[BL_RPC_ADDRESS_BYTES], machine[128];

  // The loop's.
  bl_loop_t *loop;
  bl_rpc_t *rpc;
  bl_rpc_channel_t *channel;
  bl_timer_t *timer;
  pthread_t thread;
  bool thread_started, runs;
  unsigned in_flight;
  bl__question_t *turn_first, *turn_last; // wait for their turn
  bl__question_t *again;                  // wait for another try
  bl__question_t renewal;
  bool renewing;
  uint64_t renewal_sent_ns, renewed_ns; // of the renewal under way; of the last that arrived
  uint64_t next_renewal_ns;
  atomic_bool connected; // the data path is up: renew
  bl_message_t stop;

  // The transfer thread's, from its start to its end.
  pthread_t transfer_thread;
  bool transfer_started;
  int wake_fd;
  bl_path_t by;
  bool shm;                        // `by` shows memory over a unix socket
  char path[BL_CLIENT_PATH_BYTES]; // and why
  bl_peer_memory_t parts[2];       // of the job's arena, shm
  bl_stream_t stream;
  bl_inlet_t inlet;
  bl_outlet_t outlet;
  bl_nccl_channel_t *ways[BL_BLOCK_WAYS];
  bl__half_t halves[BL__WINDOW];
  atomic_bool way_changed; // a communicator is ready, or dead
  char link_why[192];      // why it went down last; "": it is up
  bool linked;             // the stream is up
  bool refused;            // nobody listens where it was
  uint64_t link_at_ns, link_wait_ns;
  bl__operation_t *queue_first, *queue_last;     // wait for their turn
  bl__operation_t *sending_first, *sending_last; // tcp: evicts whose bytes go out, in order
  bl__sent_t sent[BL__WINDOW];
  unsigned sent_count;
  uint64_t flow;                        // bytes in flight
  bl__operation_t *shown[BL__WINDOW];   // shows and hides without an answer
  bl__operation_t *coming;              // load whose chunk is under way
  bl__release_t releases[BL__RELEASES]; // wait for the window
  unsigned release_count;
  uint64_t pause_until_ns;            // the store has no credit: nothing new before
  atomic_bool cancels;                // something was cancelled
  uint8_t side[BL_BLOCK_CHUNK_BYTES]; // rest of a chunk whose block was given up

  pthread_mutex_t mutex;  // guards what follows, and used and over above
  pthread_cond_t changed; // the thread has started, a question or operation is unused again
  bl_error_t lost;        // BL_OK while the session lives
  bool started;           // the thread has its loop, or `lost` says why not
  bool draining, ending;
  bl__sequences_t sequences;
  bl__question_t questions[BL__QUESTIONS];
  pthread_cond_t ended[BL__QUESTIONS]; // of each question: wakes its asker alone
  bl__operation_t operations[BL_CLIENT_TICKETS];
  pthread_cond_t done[BL_CLIENT_TICKETS];
  uint32_t operation_hint;
  bl__operation_t *submitted_first, *submitted_last;
  bl__room_t *rooms;
  size_t room_count, room_capacity;
  bl__client_source_t *sources; // of BL_CLIENT_SOURCES; grows
  uint32_t source_capacity;
  bl_client_counters_t counters;
};

// request_wire.c: sends; the outcome comes to bl__asked with question->err.
BL_MUST_USE bl_status_t bl__send(bl__question_t *question, uint64_t deadline_ms, bl_error_t *err);
// asking.c: what request_wire.c calls back on the loop; the handlers of messages to it; the thread.
void bl__asked(bl__question_t *question);
void bl__on_question(bl_message_t *message);
void bl__on_stop(bl_message_t *message);
void *bl__run(void *argument); // the client
// The session is lost; the first cause stays. Any thread; the threads notice by themselves.
void bl__lose(bl_client_t *client, const bl_error_t *cause);
bool bl__is_lost(bl_client_t *client, bl_error_t *err);

// client.c: a random number of this process.
uint64_t bl__process(void);

// connection.c: makes the data connection: greets, maps, joins communicators (`waits`: until they are made). `shm`, `by` and
// `path` of the client say which.
BL_MUST_USE bl_status_t bl__connect(bl_client_t *client, bool waits, uint64_t deadline_ns, bl_error_t *err);
// Chooses the path and connects for the first time.
BL_MUST_USE bl_status_t bl__connect_first(bl_client_t *client, bl_error_t *err);
void bl__disconnect(bl_client_t *client);

// ways.c: the communicators of a connection by nccl. By the thread that has the connection.
BL_MUST_USE bl_status_t bl__ways_open(bl_client_t *client, bool waits, uint64_t deadline_ns, bl_error_t *err);
void bl__ways_close(bl_client_t *client); // nothing of it touches memory any more

// transfer.c
void *bl__transfer(void *argument); // the client
void bl__transfer_wake(bl_client_t *client);

// operations.c
bl__operation_t *bl__operation_new(bl_client_t *client, bl__operation_verb_t verb);
void bl__operation_submit(bl__operation_t *operation, bl_client_t *client, bl_client_ticket_t *ticket);
// By the transfer thread: it is over, with operation->err.
void bl__operation_end(bl_client_t *client, bl__operation_t *operation);

// window.c. [mutex]
bool bl__sequences_next(bl__sequences_t *sequences, uint64_t *sequence); // false: the window is full
void bl__sequences_over(bl__sequences_t *sequences, uint64_t sequence);

// rooms.c. [mutex]
bl__room_t *bl__room_find(bl_client_t *client, uint64_t id);
// A generation of 0 means that the room is gone.
void bl__room_settle(bl_client_t *client, uint64_t id, bl__room_state_t state, uint64_t generation);
// Takes over a list of rooms: begin, one call per room, end. False: no memory.
void bl__rooms_begin(bl_client_t *client);
bool bl__rooms_add(bl_client_t *client, uint64_t id, uint64_t generation, uint64_t bytes, bool empty);
void bl__rooms_end(bl_client_t *client);

#endif
