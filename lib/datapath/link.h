// SPDX-License-Identifier: Apache-2.0
// One connection to another hub: its socket, the handshake, and the bytes in flight in both directions. Inside of the
// hub; not for users.
// Thread: transfer (hub.h), but for what is marked [m] (guarded by the hub's mutex).
#ifndef BALLAST_DATAPATH_LINK_H
#define BALLAST_DATAPATH_LINK_H

#include "datapath/boundary.h"
#include "datapath/exchange.h"
#include "datapath/frame.h"
#include "datapath/shared_map.h"
#include "datapath/socket.h"
#include "loop/watch.h"
#include "tls/session.h"

#define BL__LINK_SPARE_BYTES   (4ul * (BL_FRAME_HEADER_BYTES + BL_MEET_BYTES)) // of `out`, for words about communicators
#define BL__LINK_OUT_BYTES     (64ul * BL_FRAME_HEADER_BYTES + BL__LINK_SPARE_BYTES) // bounds memory, not progress
#define BL__LINK_TURN_BYTES    (4u << 20)   // moved per turn, so that links share the transfer thread
#define BL__LINK_PULL_BYTES    (512u << 10) // copied at once: bounds how long bl_hub_begin waits
#define BL__LINK_DISCARD_BYTES (64u << 10)

typedef enum {
  BL__LINK_CONNECTING,    // outgoing: connect in progress
  BL__LINK_AWAIT_WELCOME, // outgoing: HELLO is sent
  BL__LINK_AWAIT_HELLO,   // incoming
  BL__LINK_AWAIT_READY,   // incoming: WELCOME is sent
  BL__LINK_UP,
  BL__LINK_REFUSING, // a REFUSE is on its way out, then the link closes
  BL__LINK_CLOSED,
} bl__link_state_t;

typedef struct bl__link {
  bl_hub_t *hub;
  struct bl__link *next;
  bl_watch_t *watch; // NULL once it is closed
  int fd;
  bl_tls_session_t *tls; // NULL: plain
  bl__link_state_t state;
  bool outgoing;
  bl_path_t path; // BL_PATH_SHM or BL_PATH_TCP
  int32_t stage;  // of the peer; -1 while a stranger
  uint64_t opened_ns;
  uint64_t session;
  uint8_t peer_token[BL_FRAME_TOKEN_BYTES];
  char reason[BL_FRAME_TEXT_BYTES];   // why this path
  bool wants_nccl;                    // the connector does
  bool meets;                         // so that communicators are to be made
  char obstacle[BL_FRAME_TEXT_BYTES]; // why not, and
  bl_status_t obstacle_status;        // what kind of reason that is
  struct bl__direct *direct;          // [m] tensors go by it (hub_direct.h); NULL: the link moves them
  bl_exchange_t *exchange;            // [m] the peer's, once up
  bl_shared_map_t maps[BL_FRAME_MAX_ARENAS];
  size_t map_count;

  // Reading: a header, then its body into `body` or, for DATA, straight into `receive` or into `discard`.
  uint8_t header[BL_FRAME_HEADER_BYTES];
  size_t header_read;
  bl_frame_t frame; // of the header once it is whole
  size_t body_read;
  uint8_t body[BL_FRAME_MAX_BODY_BYTES];
  bl_tensor_t *receive; // [m] NULL: the chunk is skipped
  uint8_t *discard;     // tcp
  int fds[BL_SOCKET_MAX_DESCRIPTORS];
  size_t fd_count;

  // Writing: control frames in `out`, and after them at most one chunk of a tensor.
  uint8_t out[BL__LINK_OUT_BYTES];
  size_t out_start, out_end;
  int out_fds[BL_SOCKET_MAX_DESCRIPTORS]; // borrowed; go with the next byte
  size_t out_fd_count;
  bl_tensor_t *send;    // [m] whose chunk is under way; NULL: the rest comes from `side`
  const uint8_t *chunk; // [m]
  size_t chunk_bytes;   // [m]
  size_t chunk_sent;    // [m]
  uint8_t *side;        // tcp: the rest of a chunk whose attempt was given up

  bool touching; // [m] the transfer thread is in tensor memory without the mutex
} bl__link_t;

// link.c
// Takes over `fd`. NULL when memory is short (the descriptor is then closed).
bl__link_t *bl__link_open(bl_hub_t *hub, int fd, bl_path_t path, bool outgoing);
// Ends the link: logs `text` once, wakes waiters with `status`. It is freed in the hub's next turn: callers may still
// look at it.
void bl__link_lose(bl__link_t *link, bl_status_t status, const char *format, ...) __attribute__((format(printf, 3, 4)));
void bl__link_free_lost(bl_hub_t *hub); // those that have ended; nobody may be in the midst of one
// The same for what a system call said about the connection; 0 is the end of the stream.
void bl__link_broke(bl__link_t *link, int errno_value);
// Sends what can be sent, moves what can be pulled. Returns true when there is more to do at once.
bool bl__link_turn(bl__link_t *link);
// Mutex held, not touching: a send of an older attempt under way goes on from `side`, its buffer is free.
void bl__link_let_go(bl__link_t *link);
// Mutex held. The link moves tensors itself: its exchange begins anew, and the peer's path is the link's.
void bl__link_settle(bl__link_t *link);
// Puts a frame and its body (all but DATA's) into the out buffer.
void bl__link_put(bl__link_t *link, const bl_frame_t *frame, const uint8_t *body);

// link_read.c
void bl__link_read(bl__link_t *link);

// handshake.c
void bl__handshake_start(bl__link_t *link, int32_t stage, const uint8_t token[BL_FRAME_TOKEN_BYTES],
                         const char *reason);
// Tells a connector why not, then closes.
void bl__handshake_refuse(bl__link_t *link, bl_status_t status, const char *text);
void bl__handshake_connected(bl__link_t *link); // the socket of an outgoing link became writable
void bl__handshake_frame(bl__link_t *link);     // a whole frame came before the link was up

#endif
