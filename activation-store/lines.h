// SPDX-License-Identifier: Apache-2.0
// The data connections of a store's sessions (lib/datapath/frame.h): one per session, over a unix socket (shm: both
// sides show each other sealed memory, and each pulls) or over TCP (each writes its own memory from frames). Evict, load and
// release come and are answered here; the table decides, through the callbacks.
//
// On cuda-ipc the shown memory is that of GPUs, and the copy engine of the store's device pulls. On nccl requests and answers
// go over TCP, blocks over a pair of communicators per line, which end with it, and it with them; a room is nobody's until
// its communicator has let go of it.
//
// Thread: the loop's. Reading and writing blocks runs on the pool's transfer threads.
#ifndef BALLAST_ACTIVATION_STORE_LINES_H
#define BALLAST_ACTIVATION_STORE_LINES_H

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

#define BL_LINES_MAX         1024u // at a time, with those that have not greeted; bounds descriptors
#define BL_LINES_STRANGERS   64u   // that have not greeted
#define BL_LINES_GREETING_MS 5000u // until a connection must have greeted

typedef struct bl_lines bl_lines_t;
typedef struct bl_line bl_line_t;

#define BL_LINES_PARTS 2u // of an arena: one per tier of memory

typedef struct bl_lines_room { // what a session may use: the parts that are there, one after the other
  uint32_t job;
  const bl_arena_t *parts[BL_LINES_PARTS]; // of the job; NULL: none. Live while its sessions do
} bl_lines_room_t;

typedef struct bl_move { // one block on its way, for the table
  uint64_t id, generation, sequence;
  uint64_t offset_bytes; // in the arena
  uint64_t bytes, checksum;
} bl_move_t;

typedef struct bl_lines_callbacks {
  // `fd` is its connection.
  bl_status_t (*admit)(void *context, const bl_greeting_t *greeting, int fd, bl_lines_room_t *room, bl_error_t *err);
  // EVICT, LOAD or RELEASE of a session. Answer now or later: bl_line_answer.
  void (*on_request)(void *context, bl_line_t *line, const bl_frame_t *frame);
  // How a transfer ended, once nothing touches the room any more. `bytes_checksum` is that of the bytes that came or went;
  // move->checksum what their owner says it is.
  void (*on_moved)(void *context, const bl_move_t *move, bool moved, uint64_t bytes_checksum);
  void (*on_answered)(void *context, bl_frame_kind_t kind, uint64_t began_ns); // on bl_clock_now_ns
} bl_lines_callbacks_t;

typedef struct bl_lines_options {
  const char *unix_address; // "unix:/path"
  const bl_address_t *tcp;  // NULL: no TCP; port 0 takes a free one
  bl_tls_t *tls;            // for TCP; NULL: plaintext
  bl_device_t *device;      // whose memory is lent; NULL: the host
  bl_nccl_engine_t *nccl;   // over which it can go; NULL: none. Outlives the lines
} bl_lines_options_t;

typedef struct bl_lines_counters {
  uint32_t up[BL_PATHS]; // that are there now, by the path of their blocks
  uint64_t refused;      // connections that did not greet well
  uint64_t lost;         // sessions' connections that ended before their session
  uint64_t broken;       // those for a violation of the protocol
  uint64_t bytes_copied; // into arenas by a copy of ours: equals the bytes evicted on shm and cuda-ipc, 0 on TCP
} bl_lines_counters_t;

// BL_PRECONDITION: somebody serves there. BL_INVALID, BL_IO.
BL_MUST_USE bl_status_t bl_lines_create(bl_loop_t *loop, bl_pool_t *pool, const bl_lines_options_t *options,
                                        const bl_lines_callbacks_t *callbacks, void *context, bl_lines_t **lines,
                                        bl_error_t *err);
// Stops accepting and cancels what runs on the pool. Before the pool is destroyed.
void bl_lines_stop(bl_lines_t *lines);
// After the pool is gone and its messages are handled. NULL is fine.
void bl_lines_destroy(bl_lines_t *lines);
const char *bl_lines_unix_address(const bl_lines_t *lines);
const char *bl_lines_tcp_address(const bl_lines_t *lines); // "" when there is none
const bl_lines_counters_t *bl_lines_counters(const bl_lines_t *lines);

// ---- requests and transfers

uint64_t bl_line_session(const bl_line_t *line);
bool bl_line_is_shm(const bl_line_t *line);
// Answers the request of this number that came over the session's line, if one did and waits.
void bl_lines_answer(bl_lines_t *lines, uint64_t session, uint64_t sequence, const bl_lease_answer_t *answer);
void bl_line_answer(bl_line_t *line, uint64_t sequence, const bl_lease_answer_t *answer, const char *what);
// The same for a failure before the table was asked.
void bl_line_fail(bl_line_t *line, uint64_t sequence, const bl_error_t *err);
// The up line of a session, NULL when there is none.
bl_line_t *bl_lines_find(const bl_lines_t *lines, uint64_t session);

// Whether `bytes` (> 0) lie in the memory that was shown as `source`.
bool bl_line_has(const bl_line_t *line, uint32_t source, uint64_t offset_bytes, uint64_t bytes);
// A granted EVICT: on shm it is pulled from what was shown as `source`, on tcp it comes as DATA, on nccl its communicator
// receives it. False: not possible (any more), nothing was begun.
BL_MUST_USE bool bl_line_evict(bl_line_t *line, const bl_move_t *move, uint32_t source, uint64_t source_offset);
// A granted LOAD of a client that cannot read the arena itself: the other way.
BL_MUST_USE bool bl_line_load(bl_line_t *line, const bl_move_t *move);
// The move of this lease ends soon, badly unless it is over already; on nccl it ends as it would, by its deadline.
void bl_lines_cancel(bl_lines_t *lines, uint64_t id, uint64_t generation);

// The session is over: its line goes, after a last word.
void bl_lines_end(bl_lines_t *lines, uint64_t session, const char *why);
// "shm: same machine", "tcp: ...": path and reason; "none" without a line. Valid until the next call.
const char *bl_lines_path(const bl_lines_t *lines, uint64_t session);

#endif
