// SPDX-License-Identifier: Apache-2.0
// The store without its RPCs. The lease table (lib/lease) decides. The store keeps the arenas of jobs, the data
// connections to holders (connections.h) and the transfers, and notifies its observer of answers that the table gives
// later.
//
// Memory: of the host, or of a GPU with a second tier in pinned memory of the host. On the host there is one sealed
// memfd per plan of a job (PROTOCOL.md section 1). It is created on a transfer thread when the first session of the plan
// opens, and closed when no session holds a slot of it any more, so another job never sees its bytes. Holders only read it. The
// store pulls evicted blocks from their sealed memory, or receives them in frames.
//
// Thread: the loop's.
#ifndef BALLAST_ACTIVATION_STORE_STORE_H
#define BALLAST_ACTIVATION_STORE_STORE_H

#include "connections.h"
#include "datapath/block_memory.h"
#include "lease/table.h"
#include "loop/loop.h"

typedef struct bl_store bl_store_t;

typedef struct bl_store_observer {
  // The answer to a request that got BL_LEASE_BEGIN or BL_LEASE_WAIT.
  void (*on_later_answer)(void *context, uint64_t session, uint64_t sequence, const bl_lease_answer_t *answer);
  // A request over a session's data connection was answered.
  void (*on_answered)(void *context, bl_frame_kind_t kind, uint64_t began_ns);
  // No request of this session is answered any more.
  void (*on_session_over)(void *context, uint64_t session, bl_session_end_t end);
  // The arena of a job that open asked for exists, or could not be created: err->status.
  void (*on_arena)(void *context, uint32_t job, const bl_error_t *err);
  // The journal has new entries.
  void (*on_change)(void *context);
  void *context;
} bl_store_observer_t;

typedef struct bl_store_options {
  bl_lease_config_t leases;     // `incarnation` is drawn by create
  const char *data_address;     // "unix:/path" of the data path on shm
  const bl_address_t *data_tcp; // address on which tcp listens; NULL: none
  bl_tls_t *tls;                // for tcp; NULL: plaintext
  bl_device_t *device;          // whose memory is lent, outlives the store; NULL: the host
  bool nccl_shared_gpu;         // holders have the same GPU (datapath/nccl/start.h)
  unsigned transfer_threads;    // 0: 1
  bool turns;                   // blocks of holders on this machine move one at a time (transfer_queue.h)
  uint64_t bytes_per_second;    // rate of that link; 0: unlimited. Implies `turns`
  bl_store_observer_t observer;
} bl_store_options_t;

// Creates a store, and tests it by writing, reading and checking a block. BL_INVALID, BL_EXHAUSTED, BL_PRECONDITION
// (another process serves the data address), BL_DATA_LOSS (the self-test).
BL_MUST_USE bl_status_t bl_store_create(bl_loop_t *loop, const bl_store_options_t *options, bl_store_t **store,
                                        bl_error_t *err);
// Waits for running transfers. NULL is fine.
void bl_store_destroy(bl_store_t *store);

// Returns the table, for calls that need no shell. Call bl_store_carry_out, which does what the table decides, after
// each that may have changed something.
bl_lease_table_t *bl_store_table(bl_store_t *store);
void bl_store_carry_out(bl_store_t *store);
uint64_t bl_store_now_ns(void);

// As bl_lease_table_open, for a holder that describes its memory (NULL: the host's) and its machine and asks for a
// path. A holder that cannot reach the store's device gets memory of the second tier alone. *arena_waits: the answer
// must wait for on_arena of opened->job.
bl_lease_decision_t bl_store_open(bl_store_t *store, bl_lease_open_t *open, const bl_block_memory_t *holder,
                                  const char *machine, bl_path_t asked, bl_lease_opened_t *opened, bool *arena_waits,
                                  bl_lease_answer_t *answer);
const bl_block_memory_t *bl_store_block_memory(const bl_store_t *store); // its own memory

typedef struct bl_store_region { // where an evicted block lies in the memory that its holder registered (shm)
  uint32_t number;
  uint64_t offset_bytes;
} bl_store_region_t;
// As bl_lease_table_evict, and begins the transfer of BL_LEASE_BEGIN. BL_INVALID before the table is asked: the source
// lies outside of what the holder registered.
BL_MUST_USE bl_status_t bl_store_evict(bl_store_t *store, const bl_lease_request_t *request,
                                       const bl_lease_evict_t *evict, const bl_store_region_t *region,
                                       bl_lease_decision_t *decision, bl_lease_answer_t *answer, bl_error_t *err);
// As bl_lease_table_load, and begins the transfer of BL_LEASE_BEGIN.
bl_lease_decision_t bl_store_load(bl_store_t *store, const bl_lease_request_t *request, const bl_lease_token_t *token,
                                  bl_lease_answer_t *answer);

const bl_connections_counters_t *bl_store_data_counters(const bl_store_t *store);
const char *bl_store_data_address(const bl_store_t *store);
const char *bl_store_tcp_address(const bl_store_t *store); // "" when there is none
const char *bl_store_machine(const bl_store_t *store);
const char *bl_store_device(const bl_store_t *store); // name of the device whose memory is lent
// "shm: same machine", "tcp: ...", or "none". Valid until the next call.
const char *bl_store_path_of(const bl_store_t *store, uint64_t session);

#endif
