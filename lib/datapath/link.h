// SPDX-License-Identifier: Apache-2.0
// Private to lib/datapath: a link, the connection to one peer's transport, with its socket, its state, and the bytes in
// flight in both directions. The link knows frames and the exchange. The transport (bl__link_ops_t) handles frames of
// the handshake and of communicators, and decides what follows when a link ends.
//
// Thread: transfer (transport.h), except members marked [m] (guarded by the transport's mutex).
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

#define BL__LINK_ITERATION_BYTES (4u << 20)   // moved per iteration, so that links share the transfer thread
#define BL__LINK_PULL_BYTES      (512u << 10) // copied at once: bounds how long bl_transport_begin waits
#define BL__LINK_SPARE_FRAMES    16           // free frames kept in the writer for messages about communicators

typedef enum {
  BL__LINK_CONNECTING,     // outgoing: connect in progress
  BL__LINK_AWAIT_WELCOME,  // outgoing: GREET was sent
  BL__LINK_AWAIT_GREETING, // incoming
  BL__LINK_AWAIT_READY,    // incoming: WELCOME was sent
  BL__LINK_UP,
  BL__LINK_REFUSING, // a BYE is being sent, then the link closes
  BL__LINK_CLOSED,
} bl__link_state_t;

typedef struct bl__link {
  bl_transport_t *transport;
  struct bl__link *next;
  bl_watch_t *watch; // NULL once the link is closed
  bl_stream_t stream;
  bl_frame_reader_t reader;
  bl_frame_writer_t writer;
  bl__link_state_t state;
  bool outgoing;
  bool unread;    // the iteration ended before all was read
  bl_path_t path; // BL_PATH_SHM, BL_PATH_TCP or BL_PATH_CUDA_IPC
  int32_t stage;  // of the peer; -1 until it has shown a token
  uint64_t opened_ns;
  uint8_t peer_token[BL_FRAME_TOKEN_BYTES];
  char reason[BL_GREETING_REASON_BYTES];   // why this path
  bool notes_only;                         // no tensors (bl_transport_peer_t)
  bool wants_nccl;                         // the connector wants NCCL
  bool meets;                              // communicators are to be created
  char obstacle[BL_GREETING_REASON_BYTES]; // why tensors cannot move by NCCL,
  bl_status_t obstacle_status;             // and the status for it
  struct bl__nccl_link *nccl_link;         // [m] moves the tensors (transport_nccl.h); NULL: the link moves them
  bl_exchange_t *exchange;                 // [m] the peer's, once the link is up
  bl_peer_memory_t maps[BL_FRAME_MAX_ARENAS];
  size_t map_count;
  uint64_t pinned_attempt; // [m] the last attempt in which the compute thread got one of `maps`; 0: none

  bl__pull_t pulls[BL__LINK_PULLS]; // cuda-ipc
  unsigned pulling;                 // [m] number of pulls in use, which read `maps`
  bl_error_t failure;               // [m] of a pull

  bl_tensor_t *receive;     // [m] whose chunk is being read; NULL: none, or it is skipped
  bl_tensor_t *send;        // [m] whose bytes are being sent, with
  bl_frame_sender_t sender; // this sender, used while `touching`
  uint8_t *side;            // tcp: the rest of a chunk whose attempt was aborted
  bool touching;            // [m] the transfer thread accesses tensor memory without the mutex
} bl__link_t;

// Callbacks to the transport for a link's events. All on the transfer thread.
typedef struct bl__link_ops {
  void (*connected)(bl__link_t *link); // outgoing: AWAIT_WELCOME has begun
  // A frame that is not for the link's exchange is in link->reader.
  void (*on_frame)(bl__link_t *link);
  // [m] Queues notes that wait for this peer.
  void (*put_notes)(bl__link_t *link);
  // [m] Tensors move from device to device: starts those that can move now.
  void (*launch)(bl__link_t *link);
  // The link is closed. `state` is its state before, and `status` and `text` say why it ended.
  void (*ended)(bl__link_t *link, bl__link_state_t state, bl_status_t status, const char *text);
} bl__link_ops_t;

// Returns whether tensors move from device to device, so that their addresses are the device's.
static inline bool bl__link_is_direct(const bl__link_t *link) {
  return link->nccl_link != NULL || link->path == BL_PATH_CUDA_IPC;
}

// Creates a link and takes ownership of `fd`. NULL if there is no memory (the descriptor is then closed).
bl__link_t *bl__link_open(bl_transport_t *transport, int fd, bl_path_t path, bool outgoing);
// Sets the peer's stage and token, and why this path was chosen.
void bl__link_name(bl__link_t *link, int32_t stage, const uint8_t token[BL_FRAME_TOKEN_BYTES], const char *reason);
// Closes the link. The transport's next iteration frees it, so callers may still access it.
void bl__link_lose(bl__link_t *link, bl_status_t status, const char *format, ...) __attribute__((format(printf, 3, 4)));
// Mutex held. Returns whether the compute thread got one of its maps in the current attempt.
bool bl__link_is_pinned(const bl__link_t *link);
// Sends a BYE with the reason to a connector, then closes.
void bl__link_refuse(bl__link_t *link, bl_status_t status, const char *text);
// Frees closed links, unless the current attempt uses their maps. No caller may be using one.
void bl__link_free_lost(bl_transport_t *transport);
// Sends what can be sent and copies what can be pulled. Returns true if there is more to do at once.
bool bl__link_iterate(bl__link_t *link);
// Mutex held, not touching. Drops a stale send. The rest of its chunk in progress is sent from `side`, so its buffer is
// free.
void bl__link_let_go(bl__link_t *link);
// Mutex held. Makes the link itself move tensors: resets its exchange and sets the peer's path to the link's.
void bl__link_take_over(bl__link_t *link);
// Mutex held. Returns the next tensor to move, and drops stale ones.
bl_tensor_t *bl__link_next_transfer(bl__link_t *link);
// Queues a frame with its body. False: the queue is full, because the peer does not read.
BL_MUST_USE bool bl__link_put(bl__link_t *link, const bl_frame_t *frame, const void *body, const int *fds,
                              size_t fd_count);

#endif
