// SPDX-License-Identifier: Apache-2.0
// The data connections of a store's sessions (lib/datapath/frame.h): one per session, over a unix socket (shm: each
// side shares sealed memory, and each pulls) or over TCP (each writes its own memory from frames). Evict, load and
// release arrive and are answered here; the table decides, through the callbacks.
//
// On cuda-ipc the shared memory is that of GPUs, and the copy engine of the store's device pulls. On nccl requests and
// answers are sent over TCP, blocks over a pair of communicators per connection. The communicators end with the
// connection, and it with them. A slot is not reused before its communicator no longer touches it.
//
// Thread: the loop's. Reading and writing blocks runs on the pool's transfer threads.
#ifndef BALLAST_ACTIVATION_STORE_CONNECTIONS_H
#define BALLAST_ACTIVATION_STORE_CONNECTIONS_H

#include "datapath/address.h"
#include "datapath/greeting.h"
#include "datapath/nccl/engine.h"
#include "datapath/path.h"
#include "device/device.h"
#include "lease/answer.h"
#include "lease/table.h"
#include "lease/token.h"
#include "loop/loop.h"
#include "pool.h"
#include "tls/tls.h"

#define BL_CONNECTIONS_MAX         1024u // at a time, including those that have not greeted; bounds descriptors
#define BL_CONNECTIONS_UNGREETED   64u   // that have not greeted; the next one takes the place of the oldest
#define BL_CONNECTIONS_GREETING_MS 5000u // until a connection must have greeted

typedef struct bl_connections bl_connections_t;
typedef struct bl_connection bl_connection_t;

typedef struct bl_connection_arenas {      // what a session may use: the tiers that exist, one after the other
  const bl_arena_t *tiers[BL_LEASE_TIERS]; // of the job; NULL: none. Valid while its sessions live
} bl_connection_arenas_t;

typedef struct bl_leased_block { // a block and the lease under which it moves, for the table
  uint64_t id, generation, sequence;
  uint64_t offset_bytes; // in the arena
  uint64_t bytes, checksum;
} bl_leased_block_t;

typedef struct bl_connections_callbacks {
  // Admits a connection with this greeting to a session, and sets *arenas. `fd` is its socket.
  bl_status_t (*admit)(void *context, const bl_greeting_t *greeting, int fd, bl_connection_arenas_t *arenas,
                       bl_error_t *err);
  // Handles EVICT, LOAD or RELEASE of a session. Answer now or later with bl_connection_answer.
  void (*on_request)(void *context, bl_connection_t *connection, const bl_frame_t *frame);
  // Reports how a transfer ended, once nothing touches the slot any more. `computed_checksum` is that of the bytes
  // received or sent, leased->checksum the one that their owner gave.
  void (*on_moved)(void *context, const bl_leased_block_t *leased, bool moved, uint64_t computed_checksum);
  void (*on_answered)(void *context, bl_frame_kind_t kind, uint64_t began_ns); // on bl_clock_now_ns
} bl_connections_callbacks_t;

typedef struct bl_connections_options {
  const char *unix_address; // "unix:/path"
  const bl_address_t *tcp;  // NULL: no TCP; port 0 takes a free one
  bl_tls_t *tls;            // for TCP; NULL: plaintext
  bl_device_t *device;      // whose memory is lent; NULL: the host
  bl_nccl_engine_t *nccl;   // for blocks over nccl; NULL: none. Outlives the connections
} bl_connections_options_t;

typedef struct bl_connections_counters {
  uint32_t up[BL_PATHS]; // open now, by the path of their blocks
  uint64_t refused;      // connections whose greeting failed
  uint64_t lost;         // sessions' connections that ended before their session
  uint64_t broken;       // of these, for a violation of the protocol
  uint64_t bytes_copied; // into arenas by this process: equals the bytes evicted on shm and cuda-ipc, 0 on TCP
} bl_connections_counters_t;

// BL_PRECONDITION: another process serves the address. BL_INVALID, BL_IO.
BL_MUST_USE bl_status_t bl_connections_create(bl_loop_t *loop, bl_pool_t *pool, const bl_connections_options_t *options,
                                              const bl_connections_callbacks_t *callbacks, void *context,
                                              bl_connections_t **connections, bl_error_t *err);
// Stops accepting and cancels work on the pool. Call it before the pool is destroyed.
void bl_connections_stop(bl_connections_t *connections);
// Call it after the pool is gone and its messages are handled. NULL is fine.
void bl_connections_destroy(bl_connections_t *connections);
const char *bl_connections_unix_address(const bl_connections_t *connections);
const char *bl_connections_tcp_address(const bl_connections_t *connections); // "" when there is none
const bl_connections_counters_t *bl_connections_counters(const bl_connections_t *connections);

// ---- requests and transfers

uint64_t bl_connection_session(const bl_connection_t *connection);
bool bl_connection_is_shm(const bl_connection_t *connection);
// Answers the request of this number if it arrived over the session's connection and waits.
void bl_connections_answer(bl_connections_t *connections, uint64_t session, uint64_t sequence,
                           const bl_lease_answer_t *answer);
void bl_connection_answer(bl_connection_t *connection, uint64_t sequence, const bl_lease_answer_t *answer,
                          const char *what);
// The same for a failure before the table was asked.
void bl_connection_fail(bl_connection_t *connection, uint64_t sequence, const bl_error_t *err);
// Returns the session's connection that is up. NULL: there is none.
bl_connection_t *bl_connections_find(const bl_connections_t *connections, uint64_t session);

// Returns whether `bytes` (> 0) lie in the memory that was registered as `region`.
bool bl_connection_has(const bl_connection_t *connection, uint32_t region, uint64_t offset_bytes, uint64_t bytes);
// Starts a granted EVICT: on shm it is pulled from `region`, on tcp it arrives as DATA, on nccl its communicator
// receives it. False: not possible (any more), nothing was begun.
BL_MUST_USE bool bl_connection_evict(bl_connection_t *connection, const bl_leased_block_t *leased, uint32_t region,
                                     uint64_t region_offset);
// Starts a granted LOAD of a client that cannot read the arena itself: the opposite direction.
BL_MUST_USE bool bl_connection_load(bl_connection_t *connection, const bl_leased_block_t *leased);
// Cancels the transfer of this lease. It ends soon, as failed unless it is over already; on nccl it ends on its own, at
// the latest by its deadline.
void bl_connections_cancel(bl_connections_t *connections, uint64_t id, uint64_t generation);

// Closes the connection of a session that is over, after a message with `why`.
void bl_connections_end(bl_connections_t *connections, uint64_t session, const char *why);
// Returns path and reason: "shm: same machine", "tcp: ..."; "none" without a connection. Valid until the next call.
const char *bl_connections_path(const bl_connections_t *connections, uint64_t session);

#endif
