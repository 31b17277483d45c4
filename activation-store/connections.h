// SPDX-License-Identifier: Apache-2.0
// The data connections of a store's sessions (lib/datapath/frame.h): one per session, over a unix socket (shm: both
// sides show each other sealed memory, and each pulls) or over TCP (each writes its own memory from frames). Evict,
// load and release come and are answered here; the table decides, through the callbacks.
//
// On cuda-ipc the shown memory is that of GPUs, and the copy engine of the store's device pulls. On nccl requests and
// answers go over TCP, blocks over a pair of communicators per connection, which end with it, and it with them; a slot
// is nobody's until its communicator has let go of it.
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
#include "lease/token.h"
#include "loop/loop.h"
#include "pool.h"
#include "tls/tls.h"

#define BL_CONNECTIONS_MAX         1024u // at a time, with those that have not greeted; bounds descriptors
#define BL_CONNECTIONS_UNGREETED   64u   // that have not greeted
#define BL_CONNECTIONS_GREETING_MS 5000u // until a connection must have greeted

typedef struct bl_connections bl_connections_t;
typedef struct bl_connection bl_connection_t;

#define BL_CONNECTIONS_PARTS 2u // of an arena: one per tier of memory

typedef struct bl_connection_arenas { // what a session may use: the parts that are there, one after the other
  uint32_t job;
  const bl_arena_t *parts[BL_CONNECTIONS_PARTS]; // of the job; NULL: none. Live while its sessions do
} bl_connection_arenas_t;

typedef struct bl_store_transfer { // one block on its way, for the table
  uint64_t id, generation, sequence;
  uint64_t offset_bytes; // in the arena
  uint64_t bytes, checksum;
} bl_store_transfer_t;

typedef struct bl_connections_callbacks {
  // `fd` is its connection.
  bl_status_t (*admit)(void *context, const bl_greeting_t *greeting, int fd, bl_connection_arenas_t *slot,
                       bl_error_t *err);
  // EVICT, LOAD or RELEASE of a session. Answer now or later: bl_connection_answer.
  void (*on_request)(void *context, bl_connection_t *connection, const bl_frame_t *frame);
  // How a transfer ended, once nothing touches the slot any more. `bytes_checksum` is that of the bytes that came or
  // went; move->checksum what their owner says it is.
  void (*on_moved)(void *context, const bl_store_transfer_t *transfer, bool moved, uint64_t bytes_checksum);
  void (*on_answered)(void *context, bl_frame_kind_t kind, uint64_t began_ns); // on bl_clock_now_ns
} bl_connections_callbacks_t;

typedef struct bl_connections_options {
  const char *unix_address; // "unix:/path"
  const bl_address_t *tcp;  // NULL: no TCP; port 0 takes a free one
  bl_tls_t *tls;            // for TCP; NULL: plaintext
  bl_device_t *device;      // whose memory is lent; NULL: the host
  bl_nccl_engine_t *nccl;   // over which it can go; NULL: none. Outlives the connections
} bl_connections_options_t;

typedef struct bl_connections_counters {
  uint32_t up[BL_PATHS]; // that are there now, by the path of their blocks
  uint64_t refused;      // connections that did not greet well
  uint64_t lost;         // sessions' connections that ended before their session
  uint64_t broken;       // those for a violation of the protocol
  uint64_t bytes_copied; // into arenas by a copy of ours: equals the bytes evicted on shm and cuda-ipc, 0 on TCP
} bl_connections_counters_t;

// BL_PRECONDITION: somebody serves there. BL_INVALID, BL_IO.
BL_MUST_USE bl_status_t bl_connections_create(bl_loop_t *loop, bl_pool_t *pool, const bl_connections_options_t *options,
                                              const bl_connections_callbacks_t *callbacks, void *context,
                                              bl_connections_t **connections, bl_error_t *err);
// Stops accepting and cancels what runs on the pool. Before the pool is destroyed.
void bl_connections_stop(bl_connections_t *connections);
// After the pool is gone and its messages are handled. NULL is fine.
void bl_connections_destroy(bl_connections_t *connections);
const char *bl_connections_unix_address(const bl_connections_t *connections);
const char *bl_connections_tcp_address(const bl_connections_t *connections); // "" when there is none
const bl_connections_counters_t *bl_connections_counters(const bl_connections_t *connections);

// ---- requests and transfers

uint64_t bl_connection_session(const bl_connection_t *connection);
bool bl_connection_is_shm(const bl_connection_t *connection);
// Answers the request of this number that came over the session's connection, if one did and waits.
void bl_connections_answer(bl_connections_t *connections, uint64_t session, uint64_t sequence,
                           const bl_lease_answer_t *answer);
void bl_connection_answer(bl_connection_t *connection, uint64_t sequence, const bl_lease_answer_t *answer,
                          const char *what);
// The same for a failure before the table was asked.
void bl_connection_fail(bl_connection_t *connection, uint64_t sequence, const bl_error_t *err);
// The up connection of a session, NULL when there is none.
bl_connection_t *bl_connections_find(const bl_connections_t *connections, uint64_t session);

// Whether `bytes` (> 0) lie in the memory that was shown as `region`.
bool bl_connection_has(const bl_connection_t *connection, uint32_t region, uint64_t offset_bytes, uint64_t bytes);
// A granted EVICT: on shm it is pulled from what was shown as `region`, on tcp it comes as DATA, on nccl its
// communicator receives it. False: not possible (any more), nothing was begun.
BL_MUST_USE bool bl_connection_evict(bl_connection_t *connection, const bl_store_transfer_t *transfer, uint32_t region,
                                     uint64_t region_offset);
// A granted LOAD of a client that cannot read the arena itself: the other way.
BL_MUST_USE bool bl_connection_load(bl_connection_t *connection, const bl_store_transfer_t *transfer);
// The transfer of this lease ends soon, badly unless it is over already; on nccl it ends as it would, by its deadline.
void bl_connections_cancel(bl_connections_t *connections, uint64_t id, uint64_t generation);

// The session is over: its connection goes, after a last word.
void bl_connections_end(bl_connections_t *connections, uint64_t session, const char *why);
// "shm: same machine", "tcp: ...": path and reason; "none" without a connection. Valid until the next call.
const char *bl_connections_path(const bl_connections_t *connections, uint64_t session);

#endif
