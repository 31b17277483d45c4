// SPDX-License-Identifier: Apache-2.0
// Private to lib/datapath: the transport (boundary.h), shared by the transport_*.c files, link.c and handshake.c.
//
// Threads. "transfer" is the thread of the transport's loop, which may be shared with other transports and with clients
// of stores. Once it runs, only it touches sockets, watches, maps and the connect operation. An iteration of the
// transport is bounded. It leaves the rest to another one (bl__transport_wake), so that the other users of the loop
// run, too. State shared with other threads is guarded by `mutex` and marked [m].
// The transfer thread reads and writes memory of tensors without the mutex, but only while link->touching is set.
// bl_transport_begin waits for that flag before it releases buffers.
#ifndef BALLAST_DATAPATH_TRANSPORT_H
#define BALLAST_DATAPATH_TRANSPORT_H

#include "datapath/acceptor.h"
#include "datapath/address.h"
#include "datapath/boundary.h"
#include "datapath/exchange.h"
#include "datapath/link.h"
#include "datapath/notes.h"
#include "datapath/puller.h"
#include "datapath/transport_nccl.h"
#include "datapath/transport_pull.h"
#include "loop/thread.h"
#include "loop/timer.h"
#include "loop/watch.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>

// Bounds descriptors held by connections that have not shown a token. All peers may connect at once.
#define BL__TRANSPORT_MAX_UNGREETED     BL_TRANSPORT_MAX_PEERS
#define BL__TRANSPORT_HANDSHAKE_NS      (5ull * 1000000000ull) // bounds how long such a connection may stay silent
#define BL__TRANSPORT_TICK_MS           200   // resolution of the two limits above and of the connect deadline
#define BL__TRANSPORT_MAX_WAITS         16    // waits that bl_transport_waits can report at once
#define BL__TRANSPORT_LOGGED_REFUSALS   32    // bounds how much unauthenticated peers can write to the log
#define BL__TRANSPORT_SPIN_NS           20000 // shorter waits end without a sleep
#define BL__TRANSPORT_DEFAULT_IN_FLIGHT 1024
#define BL__TRANSPORT_MAX_IN_FLIGHT     (1u << 20)

// State of one other stage. Created at connect or at its first valid greeting, kept until destroy.
typedef struct bl__peer {
  int32_t stage;
  bl_exchange_t *exchange;                // [m]
  bl__link_t *link;                       // [m] NULL while none is up
  bl_path_t path;                         // [m] of `link`
  char reason[BL_TRANSPORT_REASON_BYTES]; // [m] why this path, or why the link was lost
  bl_status_t lost;                       // [m] status that waits return while there is no link
  uint64_t mapped_bytes;                  // [m]
  bool crosses;                           // [m] it is on another machine (machine.h)
  uint32_t links, links_at_begin;         // [m] that were up so far; ... when the attempt began
  bl__notes_t said, heard;                // [m] notes for this peer that are not yet sent; from it, not yet read
  bl__nccl_link_t *nccl_link;             // NULL: no rendezvous yet; while link->nccl_link is set, it moves the tensors
} bl__peer_t;

// One call of bl_transport_connect.
typedef struct bl__connect_peer {
  int32_t stage;
  uint8_t token[BL_TRANSPORT_TOKEN_BYTES];
  char unix_address[BL_TRANSPORT_ADDRESS_BYTES];
  char tcp_address[BL_TRANSPORT_ADDRESS_BYTES];
  char machine[BL_TRANSPORT_MACHINE_BYTES];
  char no_ipc[BL_TRANSPORT_REASON_BYTES]; // transfer: why not cuda-ipc, once it was tried; "": not tried
  bool notes_only;
  bool up;             // [m]
  bl__link_t *opening; // transfer
} bl__connect_peer_t;

typedef struct bl__connect {
  bl__connect_peer_t *peers;
  size_t peer_count;
  bl_path_t path;
  uint64_t deadline_ns;
  uint64_t since_ns;
  bl_transport_connected_fn done;
  void *user;
} bl__connect_t;

// Memory that sends leave from.
typedef struct bl__arenas {
  bl_arena_t at[BL_TRANSPORT_MAX_ARENAS];
  size_t count;
} bl__arenas_t;

typedef struct bl__listener {
  bl_transport_t *transport;
  bl_acceptor_t *acceptor;
  int fd; // -1: none
  bl_path_t path;
} bl__listener_t;

struct bl_transport {
  const bl__link_ops_t *link_ops;
  int32_t stage;
  uint32_t replica_stages; // 0: there is one replica
  uint32_t tensor_ranks;   // at least 1
  bool plaintext_ok;
  bl_tls_t *tls; // of tcp; NULL: plaintext
  uint32_t max_in_flight;
  bl_nccl_engine_t *nccl; // NULL: none
  bl_block_memory_t block_memory;
  uint8_t token[BL_TRANSPORT_TOKEN_BYTES];
  char machine[BL_TRANSPORT_MACHINE_BYTES];
  char unix_address[BL_TRANSPORT_ADDRESS_BYTES];
  char tcp_address[BL_TRANSPORT_ADDRESS_BYTES];
  bl_device_t *device;    // NULL: memory of the host
  bl_puller_t *puller;    // for a device whose memory can be shared with other processes; else NULL
  bl__arenas_t of_device; // empty without a device
  bl__arenas_t of_host;   // [m] with a device: its twins, once they are created
  bool twins_made;        // transfer
  bl_status_t (*make_twins)(void *context, bl_arena_t *twins, size_t *count, bl_error_t *err);
  void *context;

  bl_loop_thread_t *thread;
  bl_loop_thread_t *own_thread;               // NULL: the thread is shared
  bl_loop_t *loop;                            // of `thread`
  bl_message_t wake;                          // starts an iteration
  atomic_bool woken;                          // ... and is posted
  bl_timer_t *tick;                           // transfer
  bl__listener_t unix_listener, tcp_listener; // transfer
  bl__link_t *links;                          // transfer: all, whether up or not
  size_t strangers;                           // transfer: incoming links that are not up
  bool connect_started;                       // transfer
  bool closing;                               // transfer

  pthread_mutex_t mutex;
  pthread_cond_t changed;                    // [m] completions, losses, aborts
  pthread_cond_t untouched;                  // [m] a link no longer touches memory
  _Atomic uint32_t changes;                  // counts broadcasts, for spinning waiters
  bl__peer_t *peers[BL_TRANSPORT_MAX_PEERS]; // [m] ascending by stage; appended to by the transfer thread only
  size_t peer_count;                         // [m]
  uint64_t attempt;                          // [m]
  bool aborted;                              // [m]
  size_t pulling;                            // [m] copies of all links that may touch memory
  bool keeps_lost;                           // [m] lost links whose maps are pinned; the next begin releases them
  bl__connect_t *connect;                    // [m] NULL: none in progress
  bl_transport_wait_t waits[BL__TRANSPORT_MAX_WAITS]; // [m] since_ns == 0: free
  bl_transport_counters_t counters;                   // [m]
  uint64_t taken_cross_machine_bytes;                 // [m] the part of them that was taken
};

// In debug builds, stops the process if another thread touches state of the transfer thread.
static inline void bl__assert_transfer(const bl_transport_t *transport) {
#ifdef BALLAST_DEBUG
  assert(bl_loop_is_current(transport->loop));
#else
  (void)transport;
#endif
}

// transport_links.c
extern const bl__link_ops_t bl__transport_link_ops;

// transport_state.c
// Writes the display name of a peer, "stage 2" or "stage 2 of replica 0", to `text` and returns `text`.
#define BL__TRANSPORT_NAME_BYTES 48
const char *bl__transport_name(const bl_transport_t *transport, int32_t number, char text[BL__TRANSPORT_NAME_BYTES]);
#define BL__NAME(transport, number) bl__transport_name(transport, number, (char[BL__TRANSPORT_NAME_BYTES]){0})
// Any thread. Schedules an iteration of the transport. Neither blocks nor allocates.
void bl__transport_wake(bl_transport_t *transport);
void bl__transport_changed(bl_transport_t *transport); // mutex held: wakes waiters
void bl__transport_count_refused(bl_transport_t *transport, const char *format, ...)
    __attribute__((format(printf, 2, 3)));                                               // transfer
void bl__transport_count_sent(bl_transport_t *transport, int32_t stage, uint64_t bytes); // mutex held
bl__peer_t *bl__transport_find(bl_transport_t *transport, int32_t stage);                // mutex held
// Transfer, mutex held. Finds or creates the peer. NULL: no memory, or too many peers.
bl__peer_t *bl__transport_add(bl_transport_t *transport, int32_t stage);
void bl__transport_watch_time(bl_transport_t *transport); // transfer: starts the tick
// Transfer. Called if a link moves tensors through the host, or may do so. Creates their twins, once.
BL_MUST_USE bl_status_t bl__transport_hold_twins(bl_transport_t *transport, bl_error_t *err);

// transport_connect.c, all transfer
void bl__connect_run(bl_transport_t *transport);                  // starts a pending connect, ends a complete one
void bl__connect_up(bl_transport_t *transport, bl__link_t *link); // a link is up
// A link that was being opened ended before it was up. Falls back to tcp or ends the operation.
void bl__connect_failed(bl_transport_t *transport, bl__link_t *link, bl_status_t status, const char *text);
// A link that was up ended during a connect. The operation fails if it needed that link, or its communicators.
void bl__connect_lost(bl_transport_t *transport, const bl__link_t *link, bl_status_t status, const char *text);
void bl__connect_finish(bl_transport_t *transport, bl_status_t status, const bl_error_t *err);

#endif
