// SPDX-License-Identifier: Apache-2.0
// Shared inside lib/client: the client's structure, and who does what.
//
//   client.c        what callers call; opening and closing, step by step
//   session.c       whether the session lives; wakes the loop
//   operations.c    tickets: starts, waits, cancels
//   requests.h      pure: what is asked of the store over the data connection, and what its answers mean
//   transfer.c      sends those requests, moves the bytes of blocks, reads answers
//   nccl.c          the same on nccl: a pair of communicators
//   connection.c        the data connection comes up and goes down
//   control.c       what goes as remote calls: open, keep-alive, reserve, close
//   request_wire.c  those as messages
//
// Thread: everything happens on the runtime's loop, but for what callers call, which touches only what is marked [m],
// under the client's mutex, and wakes the loop. Callbacks are called without the mutex.
#ifndef BALLAST_CLIENT_CLIENT_CORE_H
#define BALLAST_CLIENT_CLIENT_CORE_H

#include "client/client.h"
#include "client/fork.h"
#include "client/requests.h"
#include "client/runtime.h"

#include "datapath/endpoint.h"
#include "datapath/frame_reader.h"
#include "datapath/frame_writer.h"
#include "datapath/mover.h"
#include "datapath/nccl/pair.h"
#include "datapath/peer_memory.h"
#include "loop/thread.h"
#include "loop/timer.h"
#include "loop/watch.h"
#include "rpc/channel.h"

#include <pthread.h>
#include <stdatomic.h>

#define BL__ID_BYTES      16
#define BL__CONTROL_CALLS 8 // remote calls of callers at a time

struct bl_client_runtime {
  bl_loop_thread_t *thread;
  bl_rpc_t *rpc;
  bool owns_thread;
  unsigned forks; // when it was made
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  unsigned closing; // [its mutex] clients that are being closed
};

// ---- control calls: remote calls ------------------------------------------------------------------------------------

typedef enum {
  BL__CALL_OPEN, // not sequenced
  BL__CALL_CLOSE,
  BL__CALL_KEEP_ALIVE,
  BL__CALL_RESERVE, // sequenced from here on
  BL__CALL_UNRESERVE,
} bl__control_call_kind_t;

typedef struct bl__control_call {
  bl_message_t message;
  bl_client_t *client;
  struct bl__control_call *next; // waiting for its turn or for another try
  bl__control_call_kind_t verb;
  uint64_t sequence;
  uint64_t deadline_ns;
  bool used, over;                             // [m]
  void (*done)(struct bl__control_call *call); // NULL: a caller waits for it
  bl_error_t err;                              // of the outcome
  uint64_t plan;
  const bl_client_demand_t *demands;
  size_t demand_count;
} bl__control_call_t;

// ---- the data connection --------------------------------------------------------------------------------------------

typedef enum {
  BL__CONNECTION_DOWN,
  BL__CONNECTION_CONNECTING, // the socket
  BL__CONNECTION_SECURING,   // TLS
  BL__CONNECTION_GREETING,   // until the store's welcome
  BL__CONNECTION_JOINING,    // nccl, the first time: until the communicators are made
  BL__CONNECTION_UP,
} bl__connection_state_t;

// Our end of a transfer over a communicator, from GO until it is over; in the place of its request in the window.
typedef struct bl__pending_transfer {
  bl_nccl_transfer_t transfer; // first
  bl_client_t *client;
  uint64_t sequence; // 0: none
  atomic_bool over;  // set by a thread of NCCL's
  bool answered;     // the answer came before that, and waits here
  bl__answer_t answer;
  char text[BL_FRAME_TEXT_BYTES + 1];
} bl__pending_transfer_t;

typedef struct bl__client_region {
  bool used, registered;
  bool unanswered; // its REGISTER was given up, and the store may map it yet: the number is no other's in this session
  const uint8_t *base;
  uint64_t bytes;
  int fd;
} bl__client_region_t;

typedef enum {
  BL__PHASE_OPENING,     // for a session
  BL__PHASE_CONNECTING,  // its data connection
  BL__PHASE_REGISTERING, // regions
  BL__PHASE_RESERVING,   // slots, where open_start was given demands
  BL__PHASE_OPEN,
  BL__PHASE_FAILED, // to open
  BL__PHASE_CLOSING,
} bl__phase_t;

struct bl_client {
  // Set when it is made, then constant.
  bl_client_runtime_t *runtime;
  unsigned forks; // when it was opened
  bool owns_runtime;
  bl_loop_t *loop;
  char job[BL_CLIENT_JOB_LENGTH + 1], store[BL_RPC_ADDRESS_BYTES];
  uint64_t plan;
  uint32_t stage;
  uint64_t deadline_ms, open_ms, asked_ttl_ms;
  bl_client_path_t wanted_path;
  bl_device_t *device;    // NULL: the host
  bl_mover_t *mover;      // of the device
  bl_nccl_engine_t *nccl; // NULL: none
  uint64_t unit_bytes;
  bl_endpoint_t endpoint;
  char own_machine[128];
  bool unverified;
  bl_rpc_security_t security; // the store is met so; a reference
  void (*on_end)(void *context, bl_client_t *client, bl_client_ticket_t ticket);
  void *context;

  // Life. The loop's.
  bl__phase_t phase;
  bl_message_t begin, end;       // to open, or to reopen; to close
  bl_client_opened_fn opened;    // NULL: a caller waits
  void (*closed)(void *context); // NULL: nobody is told
  void *closed_context;
  bool reopens;                // closing makes way for another session
  bool says_goodbye;           // opening failed, but not by the end of the session
  bl_error_t opening_err;      // why it cannot be opened: what the connection found, while CONNECTING and REGISTERING
  bool registered;             // the region that was being registered is
  uint32_t registering;        // the region that is being registered, while REGISTERING
  bl_client_demand_t *demands; // of the first reservation
  size_t demand_count;
  bl__control_call_t step, goodbye; // the remote call of opening that is under way; that of closing
  bl_message_t wake;                // posted while `woken`
  atomic_bool woken;
  bool gone; // to be freed when `wake` has come

  // The session, set with each; read by callers once it is open.
  uint8_t holder[BL__ID_BYTES], key[BL__ID_BYTES], incarnation[BL__ID_BYTES];
  uint64_t session, ttl_ms, grace_ms, arena_bytes, flow_bytes;
  bl_endpoint_t store_endpoint;
  char data_address[BL_RPC_ADDRESS_BYTES], data_tcp_address[BL_RPC_ADDRESS_BYTES], machine[128];
  bl_path_t by;
  bool shm;                        // `by` shows memory over a unix socket
  char path[BL_CLIENT_PATH_BYTES]; // and why

  // Remote calls. The loop's.
  bl_rpc_channel_t *channel;
  bl_timer_t *timer;
  bool ticks_fast;
  bl__control_call_t *turn_first, *turn_last; // wait for their turn
  bl__control_call_t *again;                  // wait for another try
  bl__control_call_t renewal;
  bool renewing;
  uint64_t renewal_sent_ns, renewed_ns; // of the renewal under way; of the last that arrived
  uint64_t next_renewal_ns;
  uint64_t control_ns; // when they were looked at last

  // The data connection. The loop's.
  bl__connection_state_t link;
  bl_path_choice_t choice;   // while CONNECTING: the path that is tried,
  unsigned choices_failed;   // those that have failed,
  bl_error_t choice_failure; // and why the last did
  char link_address[BL_RPC_ADDRESS_BYTES];
  uint64_t link_deadline_ns;
  bool refused; // nobody listens where it was
  bl_watch_t *watch;
  bl_watch_fn on_ready;      // of the watch: a turn
  bool blocked;              // the socket takes no more
  bl_peer_memory_t parts[2]; // of the job's arena
  size_t part_count;
  bl_stream_t stream;
  bl_frame_reader_t reader;
  bl_frame_writer_t writer;
  bl_frame_sender_t sender;            // of the evict whose bytes go out,
  bl__operation_t *sending;            // this one
  bl__operation_t *coming;             // load whose chunk is under way
  uint8_t side[BL_FRAME_CHUNK_BYTES];  // rest of a chunk whose block was given up
  uint8_t aside[BL_FRAME_CHUNK_BYTES]; // of a block of which a part is wanted
  bl_nccl_pair_t pair;
  bl__pending_transfer_t pending_transfers[BL__WINDOW];
  atomic_bool nccl_changed; // a communicator is ready, or dead
  char link_why[192];       // why it went down last; "": it is up
  uint64_t link_at_ns, link_wait_ns;
  uint64_t tick_ns; // when deadlines are looked at next

  pthread_mutex_t mutex;  // guards what follows, and what is marked [m]
  pthread_cond_t changed; // it is open, or closed; a control call or operation is unused again
  bl_error_t lost;        // BL_OK while the session lives
  bool settled;           // opening has ended, with `settled_err`
  bl_error_t settled_err;
  bool draining;
  bl__control_call_t calls[BL__CONTROL_CALLS];
  pthread_cond_t ended[BL__CONTROL_CALLS]; // of each control call: wakes its asker alone
  bl__requests_t requests;
  pthread_cond_t done[BL_CLIENT_TICKETS]; // of each operation
  bl__client_region_t *regions;           // of BL_CLIENT_REGIONS; grows
  uint32_t region_capacity;
};

// session.c
uint64_t bl__process(void);                                  // a random number of this process
void bl__lose(bl_client_t *client, const bl_error_t *cause); // the session is lost; the first cause stays
bool bl__is_lost(bl_client_t *client, bl_error_t *err);
void bl__wake(bl_client_t *client);                             // any thread: a turn soon
bool bl__is_forked(const bl_client_t *client, bl_error_t *err); // any thread: another process opened it; locks nothing

// control.c
void bl__control_turn(bl_client_t *client, uint64_t now_ns);
void bl__on_control_call(bl_message_t *message);
void bl__control_call_start(bl__control_call_t *call);
void bl__control_call_end(bl__control_call_t *call); // what request_wire.c calls back
void bl__control_calls_end(bl_client_t *client, const bl_error_t *cause);
// request_wire.c: sends; the outcome comes to bl__control_call_end with control call->err.
BL_MUST_USE bl_status_t bl__send(bl__control_call_t *call, uint64_t deadline_ms, bl_error_t *err);

// connection.c
void bl__connection_begin(bl_client_t *client);                 // tries the paths, one after the other
void bl__connection_turn(bl_client_t *client, uint64_t now_ns); // connects again, or goes on with connecting
void bl__connection_lost(bl_client_t *client, const char *why); // it was up
void bl__connection_close(bl_client_t *client);                 // nothing of it touches memory any more
void bl__connection_arm(bl_client_t *client);                   // watches for what is needed now

// transfer.c
void bl__transfer_turn(bl_client_t *client, uint64_t now_ns, bool *more);
// What has ended is over: its memory is let go of, and its caller told.
void bl__transfer_settle(bl_client_t *client);
void bl__transfer_answer(bl_client_t *client, const bl__answer_t *answer);

// nccl.c
BL_MUST_USE bl_status_t bl__nccl_open(bl_client_t *client, bl_error_t *err);
// BL_DEADLINE: not made yet.
BL_MUST_USE bl_status_t bl__nccl_made(bl_client_t *client, bl_error_t *err);
void bl__nccl_close(bl_client_t *client);          // waits until nothing of it touches memory any more
void bl__nccl_transfer_begin(bl_client_t *client); // GO is in the reader
bool bl__nccl_turn(bl_client_t *client);           // what has ended, and failed. False: nothing
// An answer that has to wait until our end of its transfer is over is kept there.
bool bl__nccl_keeps_answer(bl_client_t *client, const bl__answer_t *answer);

// operations.c
bl__operation_t *bl__operation_new(bl_client_t *client, bl__verb_t verb); // waits for a free one
void bl__operation_submit(bl_client_t *client, bl__operation_t *operation, bl_client_ticket_t *ticket);
void bl__operation_over(bl_client_t *client, bl__operation_t *operation); // [m] wakes who waits for it

#endif
