// SPDX-License-Identifier: Apache-2.0
// Inside of the transport (boundary.h), shared by the hub_*.c files, link.c and handshake.c; not for users.
//
// Threads. "transfer" is the thread of the loop that the transport is on, its own or shared with other transports and
// with clients of stores; it alone touches sockets, watches, maps and the connect operation once it runs. A turn of the
// transport is bounded: what is left it does in another one (bl__transport_wake), so that the others get theirs. What
// other threads share with it is guarded by `mutex` and marked [m].
// Memory of tensors is read and written by the transfer thread without the mutex, but only while link->touching is set;
// bl_transport_begin waits for that flag before it lets go of buffers.
#ifndef BALLAST_DATAPATH_TRANSPORT_H
#define BALLAST_DATAPATH_TRANSPORT_H

#include "datapath/address.h"
#include "datapath/boundary.h"
#include "datapath/exchange.h"
#include "datapath/link.h"
#include "datapath/puller.h"
#include "datapath/transport_nccl.h"
#include "datapath/transport_pull.h"
#include "loop/thread.h"
#include "loop/timer.h"
#include "loop/watch.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>

#define BL__TRANSPORT_MAX_UNGREETED     16 // bounds descriptors held by connections that have not shown a token
#define BL__TRANSPORT_HANDSHAKE_NS      (5ull * 1000000000ull) // bounds how long such a connection may stay silent
#define BL__TRANSPORT_TICK_MS           200   // grain of the two limits above and of the connect deadline
#define BL__TRANSPORT_MAX_WAITS         16    // threads that can be shown waiting at once
#define BL__TRANSPORT_LOGGED_REFUSALS   32    // bounds what strangers can write into the log
#define BL__TRANSPORT_SPIN_NS           20000 // shorter waits end without a sleep
#define BL__TRANSPORT_DEFAULT_IN_FLIGHT 1024
#define BL__TRANSPORT_MAX_IN_FLIGHT     (1u << 20)

// What the transport knows of one other stage. Made at connect or at its first valid greeting, kept until destroy.
typedef struct bl__peer {
  int32_t stage;
  bl_exchange_t *exchange;                // [m]
  bl__link_t *link;                       // [m] NULL while there is none that is up
  bl_path_t path;                         // [m] of `link`
  char reason[BL_TRANSPORT_REASON_BYTES]; // [m] why this path, or why the link was lost
  bl_status_t lost;                       // [m] what waits get while there is no link
  uint64_t mapped_bytes;                  // [m]
  bool crosses;                           // [m] what goes there goes to another machine (machine.h)
  bl__nccl_link_t *nccl_link;             // NULL: never met; while link->direct is set, tensors go by it
} bl__peer_t;

// One call of bl_transport_connect.
typedef struct bl__connect_peer {
  int32_t stage;
  uint8_t token[BL_TRANSPORT_TOKEN_BYTES];
  char unix_address[BL_TRANSPORT_ADDRESS_BYTES];
  char tcp_address[BL_TRANSPORT_ADDRESS_BYTES];
  char machine[BL_TRANSPORT_MACHINE_BYTES];
  char no_ipc[BL_TRANSPORT_REASON_BYTES]; // transfer: why not cuda-ipc, once it was tried; "": it was not
  bool up;                                // [m]
  bl__link_t *opening;                    // transfer
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
  bl_watch_t *watch;
  int fd; // -1: none
  bl_path_t path;
  bool paused; // out of descriptors; the tick tries again
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
  bl_endpoint_t endpoint;
  uint8_t token[BL_TRANSPORT_TOKEN_BYTES];
  char machine[BL_TRANSPORT_MACHINE_BYTES];
  char unix_address[BL_TRANSPORT_ADDRESS_BYTES];
  char tcp_address[BL_TRANSPORT_ADDRESS_BYTES];
  bl_device_t *device;    // NULL: memory of the host
  bl_puller_t *puller;    // with a device whose memory can be handed to other processes; else NULL
  bl__arenas_t of_device; // empty without one
  bl__arenas_t of_host;   // [m] with a device: its twins, once they are made
  bool twins_made;        // transfer
  bl_status_t (*make_twins)(void *context, bl_arena_t *twins, size_t *count, bl_error_t *err);
  void *context;

  bl_loop_thread_t *thread;
  bl_loop_thread_t *own_thread;               // NULL: it is another's
  bl_loop_t *loop;                            // of `thread`
  bl_message_t wake;                          // a turn
  atomic_bool woken;                          // ... that is on its way
  bl_timer_t *tick;                           // transfer
  bl__listener_t unix_listener, tcp_listener; // transfer
  bl__link_t *links;                          // transfer: all, up or not
  size_t strangers;                           // transfer: incoming links that are not up
  bool connect_started;                       // transfer
  bool closing;                               // transfer

  pthread_mutex_t mutex;
  pthread_cond_t changed;                             // [m] completions, losses, aborts
  pthread_cond_t untouched;                           // [m] a link has stopped touching memory
  _Atomic uint32_t changes;                           // counts broadcasts, for spinning waiters
  bl__peer_t *peers[BL_TRANSPORT_MAX_PEERS];          // [m] ascending by stage; appended to by the transfer thread only
  size_t peer_count;                                  // [m]
  uint64_t attempt;                                   // [m]
  bool aborted;                                       // [m]
  size_t pulling;                                     // [m] copies of all links that may touch memory
  bool keeps_lost;                                    // [m] links whose maps are pinned: the next begin lets go of them
  bl__connect_t *connect;                             // [m] NULL: none in progress
  bl_transport_wait_t waits[BL__TRANSPORT_MAX_WAITS]; // [m] since_ns == 0: free
  bl_transport_counters_t counters;                   // [m]
  uint64_t taken_cross_machine_bytes;                 // [m] of them
};

// Debug builds stop when something of the transfer thread is touched by another one.
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
// What people call a peer, "stage 2" or "stage 2 of replica 0", in `text`, which is returned.
#define BL__TRANSPORT_NAME_BYTES 48
const char *bl__transport_name(const bl_transport_t *transport, int32_t number, char text[BL__TRANSPORT_NAME_BYTES]);
#define BL__NAME(transport, number) bl__transport_name(transport, number, (char[BL__TRANSPORT_NAME_BYTES]){0})
void bl__transport_wake(
    bl_transport_t *transport); // any thread: a turn of the transport is due. Neither blocks nor allocates
void bl__transport_changed(bl_transport_t *transport); // mutex held: wakes waiters
void bl__transport_count_refused(bl_transport_t *transport, const char *format, ...)
    __attribute__((format(printf, 2, 3)));                                               // transfer
void bl__transport_count_sent(bl_transport_t *transport, int32_t stage, uint64_t bytes); // mutex held
bl__peer_t *bl__transport_find(bl_transport_t *transport, int32_t stage);                // mutex held
bl__peer_t *bl__transport_add(bl_transport_t *transport,
                              int32_t stage);             // transfer, mutex held: found or made; NULL: no room
void bl__transport_watch_time(bl_transport_t *transport); // transfer: the tick is needed
// Transfer. A link will move tensors by way of the host, or may: their twins are made, once.
BL_MUST_USE bl_status_t bl__transport_hold_twins(bl_transport_t *transport, bl_error_t *err);

// transport_connect.c, all transfer
void bl__connect_run(bl_transport_t *transport);                  // starts what is pending, ends what is complete
void bl__connect_up(bl_transport_t *transport, bl__link_t *link); // a link is up
// An opened link ended before it was up. Falls back to tcp or ends the operation.
void bl__connect_failed(bl_transport_t *transport, bl__link_t *link, bl_status_t status, const char *text);
// A link that was up ended while connecting: the operation fails if it counted on that link.
void bl__connect_lost(bl_transport_t *transport, int32_t stage, bl_status_t status, const char *text);
void bl__connect_finish(bl_transport_t *transport, bl_status_t status, const bl_error_t *err);

#endif
