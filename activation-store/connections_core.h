// SPDX-License-Identifier: Apache-2.0
// Private to activation-store: the structures behind connections.h. Its files, from the bottom: connection.c (one
// connection, as frames), connection_regions.c (memory registered over it), connection_transfers.c (blocks in
// transfer), connection_nccl.c (the same over NCCL), connections.c (all connections, and the requests in their frames).
// Lower files call higher ones through bl__connection_ops_t.
//
// A connection belongs to the loop's thread. While `reading` its reader, and while `writing` its writer, belongs to a
// transfer thread; frames for the holder then wait in the backlog. `users` counts transfers, mappings, communicators
// that are not dead yet, a posted message, and functions that still use the connection. The connection is freed when it
// is `gone` and has no users.
#ifndef BALLAST_ACTIVATION_STORE_CONNECTIONS_CORE_H
#define BALLAST_ACTIVATION_STORE_CONNECTIONS_CORE_H

#include "connections.h"

#include "datapath/acceptor.h"
#include "datapath/frame_reader.h"
#include "datapath/frame_writer.h"
#include "datapath/mover.h"
#include "datapath/nccl/pair.h"
#include "datapath/peer_memory.h"
#include "loop/timer.h"
#include "loop/watch.h"

#include <stdatomic.h>
#include <sys/queue.h>

#define BL__CONNECTION_WINDOW  64u  // unanswered requests of a session (lib/lease/request_window.h)
#define BL__CONNECTION_BACKLOG 128u // frames for a holder while its writer is busy: the window, and answers to REGISTER

typedef struct bl__region {
  bl_work_t mapping;
  bl_connection_t *connection;
  uint32_t number;
  bool used, up, unregistering, asked; // asked: the holder waits for UNREGISTERED
  unsigned users;                      // transfers that read it, and the mapping
  int fd;
  uint64_t bytes;
  bl_peer_memory_t map;
  bl_error_t err;
} bl__region_t;

typedef enum bl__store_transfer_kind {
  BL__STORE_TRANSFER_PULL,
  BL__STORE_TRANSFER_RECEIVE,
  BL__STORE_TRANSFER_SEND,
  BL__STORE_TRANSFER_NCCL, // nccl, either direction
} bl__store_transfer_kind_t;

typedef struct bl__channel_watch { // nccl: watches a communicator of a connection
  bl_connection_t *connection;     // NULL: it was never created
  atomic_bool told;                // `died` is posted, or was handled
  bl_message_t died;
} bl__channel_watch_t;

typedef struct bl__store_transfer bl__store_transfer_t;
struct bl__store_transfer {
  bl_work_t work; // NCCL uses only `done`
  bl_nccl_transfer_t nccl_transfer;
  STAILQ_ENTRY(bl__store_transfer) listed; // in the list of unused ones, or in the connection's
  bl_connection_t *connection;
  bl__store_transfer_kind_t kind;
  bl_leased_block_t leased;
  bl_arena_t arena;     // tier that contains the slot, as it was at the beginning
  uint64_t offset;      // of the slot in that tier
  bl__region_t *region; // PULL
  const uint8_t *from;
  uint8_t *to;
  uint64_t at, hash;
  bl_frame_sender_t sender;
  bool busy, verified; // busy: a transfer thread owns it, or NCCL
  bool corrupt;        // a chunk did not match its checksum
  bl_frame_reader_event_t came;
  bl_frame_writer_result_t went;
  bl_status_t status;
  atomic_bool cancelled;
};

typedef struct bl__queued {
  bl_frame_t frame;
  char text[BL_FRAME_TEXT_BYTES + 1];
} bl__queued_t;

struct bl_connection {
  bl_connections_t *connections;
  LIST_ENTRY(bl_connection) listed;
  bl_stream_t stream;
  bl_watch_t *watch;
  bl_frame_reader_t reader;
  bl_frame_writer_t writer;
  bool shm, unverified, greeted, gone;
  bl_path_t by;          // the path
  bool reading, writing; // a transfer thread owns the reader, the writer
  bool write_blocked;    // the socket accepts no more bytes
  bool frame_pending;    // a transfer thread has read a frame for the loop, which is in the reader
  bool body_stalled;     // a transfer thread has read all that had arrived of a body
  bool reads_on;         // `read_more` is posted
  bl_message_t read_more;
  uint64_t session, since_ms;
  bl_connection_arenas_t arenas;
  char path[208];
  unsigned users;
  struct {
    uint64_t sequence, began_ns; // sequence 0: none
    bl_frame_kind_t kind;
  } waiting[BL__CONNECTION_WINDOW];
  STAILQ_HEAD(, bl__store_transfer) transfers; // all of the connection that are not over
  bl__store_transfer_t *coming;                // the transfer whose chunk is being received
  bl__region_t **regions;
  uint32_t region_capacity;
  bl_nccl_pair_t pair;                                         // nccl; this side is its second end
  bl__channel_watch_t channel_watches[BL_RENDEZVOUS_CHANNELS]; // by direction
  bl__queued_t *backlog;                                       // of BL__CONNECTION_BACKLOG
  unsigned backlog_count;
};

struct bl_connections {
  const struct bl__connection_ops *ops;
  bl_loop_t *loop;
  bl_pool_t *pool;
  bl_connections_callbacks_t callbacks;
  void *context;
  int unix_fd, tcp_fd;
  bl_tls_t *tls;          // of TCP; NULL: plaintext
  bl_device_t *device;    // NULL: the host
  bl_mover_t *mover;      // of the device; NULL: the CPU copies
  bl_nccl_engine_t *nccl; // NULL: none
  bl_acceptor_t *unix_acceptor, *tcp_acceptor;
  bl_timer_t *timer;
  bool stopped;
  char unix_address[160], tcp_address[160];
  LIST_HEAD(, bl_connection) all;
  uint32_t count, ungreeted;
  STAILQ_HEAD(, bl__store_transfer) unused;
  bl_connections_counters_t counters;
};

// Callbacks to the files above connection.c. All on the loop.
typedef struct bl__connection_ops {
  void (*on_frame)(bl_connection_t *connection);    // a frame is in the reader
  void (*on_readable)(bl_connection_t *connection); // before frames are read: a body that has begun may continue
  void (*on_writable)(bl_connection_t *connection); // all queued frames are written: blocks may be sent
  void (*on_ended)(bl_connection_t *connection);    // it is gone: its transfers end
  void (*on_free)(bl_connection_t *connection);     // it has no users any more
} bl__connection_ops_t;

// connection.c
// Takes over `fd`, even if it fails (NULL).
bl_connection_t *bl__connection_open(bl_connections_t *connections, int fd, bool is_unix, bl_error_t *err);
void bl__connection_lose(bl_connection_t *connection, const char *format, ...) __attribute__((format(printf, 2, 3)));
void bl__connection_hang_up(bl_connection_t *connection); // closes it without a message
// Sends a final message, if the writer has space for it.
void bl__connection_goodbye(bl_connection_t *connection, bl_status_t status, const char *why);
void bl__connection_free_if_unused(bl_connection_t *connection); // frees it if it is gone and has no users
void bl__connection_read(bl_connection_t *connection);           // handles what has arrived
void bl__connection_flush(bl_connection_t *connection);          // writes what is queued, and continues to send blocks
void bl__connection_put(bl_connection_t *connection, const bl_frame_t *frame, const char *text);
void bl__connection_asked(bl_connection_t *connection,
                          const bl_frame_t *frame); // records a request that waits for its answer from now on
// connection_regions.c
void bl__region_register(bl_connection_t *connection, const bl_frame_t *frame);
void bl__region_unregister(bl_connection_t *connection, const bl_frame_t *frame);
// Returns the region if it is up and has these bytes (> 0) at `offset`, or NULL.
bl__region_t *bl__region_at(const bl_connection_t *connection, uint32_t number, uint64_t offset, uint64_t bytes);
void bl__region_release(bl__region_t *region);
void bl__regions_free(bl_connection_t *connection); // requires that it has no users
// connection_transfers.c
bool bl__store_transfer_pull(bl_connection_t *connection, const bl_leased_block_t *leased, uint32_t number,
                             uint64_t region_offset);
bool bl__store_transfer_receive(bl_connection_t *connection, const bl_leased_block_t *leased);
bool bl__store_transfer_send(bl_connection_t *connection, const bl_leased_block_t *leased);
bl__store_transfer_t *bl__store_transfer_begin(bl_connection_t *connection, bl__store_transfer_kind_t kind,
                                               const bl_leased_block_t *leased); // NULL: not possible
void bl__store_transfer_drop(bl__store_transfer_t *transfer);                    // puts it on the list of unused ones
void bl__store_transfer_end(bl__store_transfer_t *transfer, bool moved);         // nothing touches the slot any more
void bl__store_transfers_data(bl_connection_t *connection);                      // a DATA frame is in the reader
void bl__store_transfers_continue_reading(bl_connection_t *connection);
void bl__store_transfers_continue_writing(bl_connection_t *connection);
void bl__store_transfers_lose(bl_connection_t *connection);
void bl__store_transfers_free(bl_connections_t *connections);
// connection_nccl.c
void bl__nccl_channels_meet(bl_connection_t *connection); // a RENDEZVOUS frame is in the reader
// False: nothing was begun.
BL_MUST_USE bool bl__nccl_transfer(bl_connection_t *connection, bl_pair_direction_t direction,
                                   const bl_leased_block_t *leased);
void bl__nccl_channels_abort(bl_connection_t *connection); // returns at once
void bl__nccl_channels_close(bl_connection_t *connection); // waits

#endif
