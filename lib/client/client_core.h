// SPDX-License-Identifier: Apache-2.0
// Private to lib/client: the client's structure, and the tasks of the files.
//
//   client.c        functions that callers call; opening and closing, step by step
//   session.c       whether the session lives; wakes the loop
//   operations.c    tickets: start, wait, cancel
//   requests.h      pure: requests to the store over the data connection, and the meaning of its answers
//   transfer.c      sends these requests, moves the bytes of blocks, reads answers
//   nccl.c          the same on nccl: a pair of communicators
//   connection.c    opens, closes and reopens the data connection
//   control.c       remote calls: open, keep-alive, reserve, close
//   request_wire.c  their messages
//
// Thread: everything happens on the runtime's loop, except the functions that callers call. Those touch only fields
// marked [m], under the client's mutex, and wake the loop. Callbacks are called without the mutex.
#ifndef BALLAST_CLIENT_CLIENT_CORE_H
#define BALLAST_CLIENT_CLIENT_CORE_H

#include "client/client.h"
#include "client/fork.h"
#include "client/requests.h"
#include "client/runtime.h"

#include "datapath/block_memory.h"
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
#define BL__CONTROL_CALLS 8  // remote calls of callers in progress at a time
#define BL__DEMANDS_MAX   64 // of one reservation

struct bl_client_runtime {
  bl_loop_thread_t *thread;
  bl_rpc_t *rpc;
  bool owns_thread;
  unsigned forks; // bl__forks() at its creation
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  unsigned closing; // [its mutex] clients whose close has begun
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
  struct bl__control_call *next; // in the list of calls to be sent or to be retried
  bl__control_call_kind_t kind;
  uint64_t sequence;
  uint64_t deadline_ns;
  bool used, over;                             // [m]
  void (*done)(struct bl__control_call *call); // NULL: a caller waits for the outcome
  bl_error_t err;                              // the outcome
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
  BL__CONNECTION_JOINING,    // nccl, the first time: until the communicators are created
  BL__CONNECTION_UP,
} bl__connection_state_t;

// This client's end of an NCCL transfer, from GO until it is over. Its index is that of its request in the window.
typedef struct bl__pending_transfer {
  bl_nccl_transfer_t transfer; // first
  bl_client_t *client;
  uint64_t sequence; // 0: none
  atomic_bool over;  // set by an NCCL thread
  bool answered;     // the answer arrived before that, and is kept here
  bl__answer_t answer;
  char text[BL_FRAME_TEXT_BYTES + 1];
} bl__pending_transfer_t;

typedef struct bl__client_region {
  bool used, registered;
  bool unanswered; // its REGISTER got no answer, and the store may still map it: this session does not reuse the number
  const uint8_t *base;
  uint64_t bytes;
  int fd;
} bl__client_region_t;

typedef enum {
  BL__PHASE_OPENING,     // requests a session
  BL__PHASE_CONNECTING,  // opens its data connection
  BL__PHASE_REGISTERING, // registers regions
  BL__PHASE_RESERVING,   // reserves slots, if open_start was given demands
  BL__PHASE_OPEN,
  BL__PHASE_FAILED, // opening failed
  BL__PHASE_CLOSING,
} bl__phase_t;

struct bl_client {
  // Set at creation, then constant.
  bl_client_runtime_t *runtime;
  unsigned forks; // bl__forks() when it was opened
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
  bl_block_memory_t block_memory;
  char own_machine[128];
  bool unverified;
  bl_rpc_security_t security; // of the connections to the store; holds a reference
  void (*on_end)(void *context, bl_client_t *client, bl_client_ticket_t ticket);
  void *context;

  // Life cycle. Used by the loop.
  bl__phase_t phase;
  bl_message_t begin, end;       // opens the client; closes or reopens it
  bl_client_opened_fn opened;    // NULL: a caller waits
  void (*closed)(void *context); // may be NULL
  void *closed_context;
  bool reopens;                // closing is followed by another session
  bool says_goodbye;           // opening failed, but the session lives: the store is notified of its end
  bl_error_t opening_err;      // why opening failed: set by the connection while CONNECTING and REGISTERING
  bool registered;             // the region `registering` is registered
  uint32_t registering;        // index of the region that is being registered, while REGISTERING
  bl_client_demand_t *demands; // of the first reservation
  size_t demand_count;
  bl__control_call_t step, goodbye; // the remote call of opening that is in progress; that of closing
  bl_message_t wake;                // posted while `woken`
  atomic_bool woken;
  bool gone; // to be freed when `wake` is handled

  // The session. Set when it opens; callers read it once the client is open.
  uint8_t holder[BL__ID_BYTES], key[BL__ID_BYTES], incarnation[BL__ID_BYTES];
  uint64_t session, ttl_ms, grace_ms, arena_bytes, flow_bytes;
  bl_block_memory_t store_memory;
  char data_address[BL_RPC_ADDRESS_BYTES], data_tcp_address[BL_RPC_ADDRESS_BYTES], machine[128];
  bl_path_t by;
  bool shm;                        // `by` shares memory over a unix socket
  char path[BL_CLIENT_PATH_BYTES]; // `by` and its reason

  // Remote calls. Used by the loop.
  bl_rpc_channel_t *channel;
  bl_timer_t *timer;
  bool ticks_fast;
  bl__control_call_t *turn_first, *turn_last; // wait to be sent
  bl__control_call_t *again;                  // wait for a retry
  bl__control_call_t renewal;
  bool renewing;
  uint64_t renewal_sent_ns, renewed_ns; // send time of the renewal in flight; of the last one that succeeded
  uint64_t next_renewal_ns;
  uint64_t control_ns; // when bl__control_iterate last ran

  // The data connection. Used by the loop.
  bl__connection_state_t link;
  bl_path_choice_t choice;   // while CONNECTING: the path that is being tried,
  unsigned choices_failed;   // the paths that have failed, as bits,
  bl_error_t choice_failure; // and why the last one failed
  char link_address[BL_RPC_ADDRESS_BYTES];
  uint64_t link_deadline_ns;
  bool refused; // no process listens at the address
  bl_watch_t *watch;
  bl_watch_fn on_ready;      // callback of `watch`: runs an iteration
  bool blocked;              // the socket accepts no more bytes
  bl_peer_memory_t parts[2]; // of the job's arena, one per tier
  size_t part_count;
  bl_stream_t stream;
  bl_frame_reader_t reader;
  bl_frame_writer_t writer;
  bl_frame_sender_t sender;            // of the evict that is being sent,
  bl__operation_t *sending;            // which is this one
  bl__operation_t *coming;             // load whose chunk is being received
  uint8_t side[BL_FRAME_CHUNK_BYTES];  // rest of an outgoing chunk whose evict has ended
  uint8_t aside[BL_FRAME_CHUNK_BYTES]; // for a block of which only a part is wanted
  bl_nccl_pair_t pair;
  bl__pending_transfer_t pending_transfers[BL__WINDOW];
  atomic_bool nccl_changed; // a communicator became ready or failed
  char link_why[192];       // why it last went down; "": it is up
  uint64_t link_at_ns, link_wait_ns;
  uint64_t tick_ns; // when deadlines are checked next

  pthread_mutex_t mutex;  // guards the fields below, and those marked [m]
  pthread_cond_t changed; // opening has ended; a control call or operation is unused again
  bl_error_t lost;        // BL_OK while the session lives
  bool opening_ended;     // opening has ended, with `outcome`
  bl_error_t outcome;
  bool draining;
  bl__control_call_t calls[BL__CONTROL_CALLS];
  pthread_cond_t ended[BL__CONTROL_CALLS]; // one per control call: wakes only its caller
  bl__requests_t requests;
  pthread_cond_t done[BL_CLIENT_TICKETS]; // one per operation
  bl__client_region_t *regions;           // [region_capacity], at most BL_CLIENT_REGIONS; grows
  uint32_t region_capacity;
};

// session.c
uint64_t bl__process(void);                                  // returns a random number of this process
void bl__lose(bl_client_t *client, const bl_error_t *cause); // ends the session; the first cause stays
bool bl__is_lost(bl_client_t *client, bl_error_t *err);
void bl__wake(bl_client_t *client);                             // any thread: requests an iteration soon
bool bl__is_forked(const bl_client_t *client, bl_error_t *err); // any thread: another process opened it; takes no lock

// arguments.c
BL_MUST_USE bl_status_t bl__options_check(const bl_client_options_t *options, bl_error_t *err);
BL_MUST_USE bl_status_t bl__demands_check(uint64_t plan, const bl_client_demand_t *demands, size_t count,
                                          bl_error_t *err);

// control.c
void bl__control_iterate(bl_client_t *client, uint64_t now_ns);
void bl__on_control_call(bl_message_t *message);
void bl__control_call_start(bl__control_call_t *call);
void bl__control_call_end(bl__control_call_t *call); // called by request_wire.c
void bl__control_calls_end(bl_client_t *client, const bl_error_t *cause);
// In request_wire.c. Sends the call; bl__control_call_end is called with the outcome in call->err.
BL_MUST_USE bl_status_t bl__send(bl__control_call_t *call, uint64_t deadline_ms, bl_error_t *err);

// connection.c
void bl__connection_begin(bl_client_t *client);                    // tries the paths one after the other
void bl__connection_iterate(bl_client_t *client, uint64_t now_ns); // reconnects, or continues to connect
void bl__connection_lost(bl_client_t *client, const char *why);    // handles the loss of a connection that was up
void bl__connection_close(bl_client_t *client);                    // afterwards nothing of it touches memory
void bl__connection_arm(bl_client_t *client);                      // watches for the events that are needed now

// transfer.c
void bl__transfer_iterate(bl_client_t *client, uint64_t now_ns, bool *more);
// Finishes the operations that have ended: releases their memory and notifies their callers.
void bl__transfer_finish_ended(bl_client_t *client);
void bl__transfer_answer(bl_client_t *client, const bl__answer_t *answer);

// nccl.c
BL_MUST_USE bl_status_t bl__nccl_open(bl_client_t *client, bl_error_t *err);
// BL_DEADLINE: the communicators are not ready yet.
BL_MUST_USE bl_status_t bl__nccl_made(bl_client_t *client, bl_error_t *err);
void bl__nccl_close(bl_client_t *client);          // waits until nothing of it touches memory
void bl__nccl_transfer_begin(bl_client_t *client); // a GO frame is in the reader
// Handles ended transfers and failed communicators. False: no progress.
bool bl__nccl_iterate(bl_client_t *client);
// Keeps an answer that must wait until this end of its transfer is over. False: it need not wait.
bool bl__nccl_keeps_answer(bl_client_t *client, const bl__answer_t *answer);

// operations.c
bl__operation_t *bl__operation_new(bl_client_t *client, bl__operation_type_t type); // waits for a free one
void bl__operation_submit(bl_client_t *client, bl__operation_t *operation, bl_client_ticket_t *ticket);
void bl__operation_over(bl_client_t *client, bl__operation_t *operation); // [m] wakes the thread that waits for it

#endif
