// SPDX-License-Identifier: Apache-2.0
// One connection to another transport: its socket, its state, and the bytes in flight in both directions. It knows
// frames and the exchange; what frames of the handshake and of communicators mean, and what follows from its end, is
// the transport's (bl__link_ops_t). Inside of the transport; not for users.
// Thread: transfer (transport.h), but for what is marked [m] (guarded by the transport's mutex).
#ifndef BALLAST_DATAPATH_LINK_H
#define BALLAST_DATAPATH_LINK_H

#include "datapath/boundary.h"
#include "datapath/exchange.h"
#include "datapath/frame_reader.h"
#include "datapath/frame_writer.h"
#include "datapath/greeting.h"
#include "datapath/peer_memory.h"
#include "datapath/transport_pull.h"
#include "loop/watch.h"

#define BL__LINK_TURN_BYTES (4u << 20)   // moved per turn, so that links share the transfer thread
#define BL__LINK_PULL_BYTES (512u << 10) // copied at once: bounds how long bl_transport_begin waits

typedef enum {
  BL__LINK_CONNECTING,     // outgoing: connect in progress
  BL__LINK_AWAIT_WELCOME,  // outgoing: GREET is sent
  BL__LINK_AWAIT_GREETING, // incoming
  BL__LINK_AWAIT_READY,    // incoming: WELCOME is sent
  BL__LINK_UP,
  BL__LINK_REFUSING, // a BYE is on its way out, then the link closes
  BL__LINK_CLOSED,
} bl__link_state_t;

typedef struct bl__link {
  bl_transport_t *transport;
  struct bl__link *next;
  bl_watch_t *watch; // NULL once it is closed
  bl_stream_t stream;
  bl_frame_reader_t reader;
  bl_frame_writer_t writer;
  bl__link_state_t state;
  bool outgoing;
  bool unread;    // the turn was over before all was read
  bl_path_t path; // BL_PATH_SHM, BL_PATH_TCP or BL_PATH_CUDA_IPC
  int32_t stage;  // of the peer; -1 while a stranger
  uint64_t opened_ns;
  uint8_t peer_token[BL_FRAME_TOKEN_BYTES];
  char reason[BL_GREETING_REASON_BYTES];   // why this path
  bool wants_nccl;                         // the connector does
  bool meets;                              // so that communicators are to be made
  char obstacle[BL_GREETING_REASON_BYTES]; // why not, and
  bl_status_t obstacle_status;             // what kind of reason that is
  struct bl__nccl_link *nccl_link;         // [m] tensors go by it (transport_nccl.h); NULL: the link moves them
  bl_exchange_t *exchange;                 // [m] the peer's, once up
  bl_peer_memory_t maps[BL_FRAME_MAX_ARENAS];
  size_t map_count;
  uint64_t pinned_attempt; // [m] the last attempt that was given a map of these; 0: none

  bl__pull_t pulls[BL__LINK_PULLS]; // cuda-ipc
  unsigned pulling;                 // [m] how many are used: they read `maps`
  bl_error_t failure;               // [m] of one

  bl_tensor_t *receive;     // [m] whose chunk comes; NULL: none, or it is skipped
  bl_tensor_t *send;        // [m] whose bytes go out, by
  bl_frame_sender_t sender; // while `touching`
  uint8_t *side;            // tcp: the rest of a chunk whose attempt was given up
  bool touching;            // [m] the transfer thread is in tensor memory without the mutex
} bl__link_t;

// What the transport makes of a link's events. All on the transfer thread.
typedef struct bl__link_ops {
  void (*connected)(bl__link_t *link); // outgoing: AWAIT_WELCOME has begun
  void (*on_frame)(bl__link_t *link);  // a frame that moves no tensor of the link's exchange is in link->reader
  void (*launch)(bl__link_t *link);    // [m] tensors go from device to device: begin with those that can go now
  // The link is closed: what state it was in, and why it ended.
  void (*ended)(bl__link_t *link, bl__link_state_t state, bl_status_t status, const char *text);
} bl__link_ops_t;

// Whether tensors go from device to device: their addresses are the device's.
static inline bool bl__link_is_direct(const bl__link_t *link) {
  return link->nccl_link != NULL || link->path == BL_PATH_CUDA_IPC;
}

// Takes over `fd`. NULL when memory is short (the descriptor is then closed).
bl__link_t *bl__link_open(bl_transport_t *transport, int fd, bl_path_t path, bool outgoing);
// Whom it is to, and why by this path.
void bl__link_name(bl__link_t *link, int32_t stage, const uint8_t token[BL_FRAME_TOKEN_BYTES], const char *reason);
// Ends the link: it is freed in the transport's next turn, callers may still look at it.
void bl__link_lose(bl__link_t *link, bl_status_t status, const char *format, ...) __attribute__((format(printf, 3, 4)));
bool bl__link_is_pinned(const bl__link_t *link); // mutex held: the present attempt was given its maps
// Tells a connector why not, then closes.
void bl__link_refuse(bl__link_t *link, bl_status_t status, const char *text);
// Those that have ended, unless the present attempt was given their maps; nobody may be in the midst of one.
void bl__link_free_lost(bl_transport_t *transport);
// Sends what can be sent, moves what can be pulled. Returns true when there is more to do at once.
bool bl__link_turn(bl__link_t *link);
// Mutex held, not touching: a send of an older attempt under way goes on from `side`, its buffer is free.
void bl__link_let_go(bl__link_t *link);
// Mutex held. The link moves tensors itself: its exchange begins anew, and the peer's path is the link's.
void bl__link_settle(bl__link_t *link);
// Mutex held. The next tensor to move, stale ones dropped.
bl_tensor_t *bl__link_next_transfer(bl__link_t *link);
// Queues a frame with its body. False: the peer reads nothing, the queue is full.
BL_MUST_USE bool bl__link_put(bl__link_t *link, const bl_frame_t *frame, const void *body, const int *fds,
                              size_t fd_count);

#endif
