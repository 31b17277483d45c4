// SPDX-License-Identifier: Apache-2.0
// Inside of lines.h, from the bottom: line.c (a connection, as frames), line_sources.c (memory that is shown over it),
// line_moves.c (blocks on their way), line_ways.c (the same over NCCL), lines.c (all connections, and what their frames ask).
// Who is below calls who is above through bl__line_ops_t.
//
// A line belongs to the loop's thread. While `reading` the reader and while `writing` the writer belong to a transfer
// thread; frames for the holder then wait in the backlog. `users` counts works on the pool: the line is freed when its
// connection is gone and it has none. Communicators count as users until they are dead.
#ifndef BALLAST_ACTIVATION_STORE_LINES_CORE_H
#define BALLAST_ACTIVATION_STORE_LINES_CORE_H

#include "lines.h"

#include "datapath/frame_reader.h"
#include "datapath/frame_writer.h"
#include "datapath/mover.h"
#include "datapath/nccl/pair.h"
#include "datapath/peer_memory.h"
#include "loop/timer.h"
#include "loop/watch.h"

#include <stdatomic.h>
#include <sys/queue.h>

#define BL__LINE_WINDOW  64u  // requests of a session that may wait for an answer (lib/lease/window.h)
#define BL__LINE_BACKLOG 128u // frames for a holder while its writer is busy: the window, and answers to shows

typedef struct bl__source {
  bl_work_t mapping;
  bl_line_t *line;
  uint32_t number;
  bool used, up, hiding, asked; // asked: the holder waits for HIDDEN
  unsigned users;               // moves that read it, and the mapping
  int fd;
  uint64_t bytes;
  bl_peer_memory_t map;
  bl_error_t err;
} bl__source_t;

typedef enum bl__move_kind {
  BL__MOVE_PULL,
  BL__MOVE_RECEIVE,
  BL__MOVE_SEND,
  BL__MOVE_MEET, // nccl, either way
} bl__move_kind_t;

typedef struct bl__way { // nccl: a communicator of a line
  bl_line_t *line;       // NULL: it was never made
  atomic_bool told;      // `died` is on its way, or was
  bl_message_t died;
} bl__way_t;

typedef struct bl__move bl__move_t;
struct bl__move {
  bl_work_t work; // of MEET only `done`
  bl_nccl_transfer_t transfer;
  STAILQ_ENTRY(bl__move) listed; // among the lines' unused ones, or the line's
  bl_line_t *line;
  bl__move_kind_t kind;
  bl_move_t what;
  bl_arena_t arena;     // part that has the room, as it was at the begin
  uint64_t offset;      // of the room in it
  bl__source_t *source; // PULL
  const uint8_t *from;
  uint8_t *to;
  uint64_t at, hash;
  bl_frame_sender_t sender;
  bool busy, verified; // busy: a transfer thread has it, or NCCL
  bool corrupt;        // a chunk did not match
  bl_frame_reader_event_t came;
  bl_frame_writer_result_t went;
  bl_status_t status;
  atomic_bool cancelled;
};

typedef struct bl__queued {
  bl_frame_t frame;
  char text[BL_FRAME_TEXT_BYTES + 1];
} bl__queued_t;

struct bl_line {
  bl_lines_t *lines;
  LIST_ENTRY(bl_line) listed;
  bl_stream_t stream;
  bl_watch_t *watch;
  bl_frame_reader_t reader;
  bl_frame_writer_t writer;
  bool shm, unverified, greeted, gone;
  bl_path_t by;          // the path
  bool reading, writing; // a transfer thread has the reader, the writer
  bool write_blocked;    // the socket takes no more
  bool frame_pending;    // in the reader: a transfer thread met a frame that is for the loop
  uint64_t session, since_ms;
  bl_lines_room_t room;
  char path[208];
  unsigned users;
  struct {
    uint64_t sequence, began_ns; // sequence 0: none
    bl_frame_kind_t kind;
  } waiting[BL__LINE_WINDOW];
  STAILQ_HEAD(, bl__move) moves; // all of the line that are not over
  bl__move_t *coming;            // the move whose chunk is under way
  bl__source_t **sources;
  uint32_t source_capacity;
  bl_nccl_pair_t pair;              // nccl; this is its second end
  bl__way_t ways[BL_MEET_CHANNELS]; // by direction
  bl__queued_t *backlog;            // of BL__LINE_BACKLOG
  unsigned backlog_count;
};

struct bl_lines {
  const struct bl__line_ops *ops;
  bl_loop_t *loop;
  bl_pool_t *pool;
  bl_lines_callbacks_t callbacks;
  void *context;
  int unix_fd, tcp_fd;
  bl_tls_t *tls;          // of TCP; NULL: plaintext
  bl_device_t *device;    // NULL: the host
  bl_mover_t *mover;      // of the device; NULL: the CPU copies
  bl_nccl_engine_t *nccl; // NULL: there is none
  bl_watch_t *unix_watch, *tcp_watch;
  bl_timer_t *timer;
  bool stopped;
  char unix_address[160], tcp_address[160];
  LIST_HEAD(, bl_line) all;
  uint32_t count, strangers;
  STAILQ_HEAD(, bl__move) unused;
  bl_lines_counters_t counters;
};

// What is above a connection. All on the loop.
typedef struct bl__line_ops {
  void (*on_frame)(bl_line_t *line);    // a frame is in the reader
  void (*on_readable)(bl_line_t *line); // before frames are read: a body that has begun may go on
  void (*on_writable)(bl_line_t *line); // all that was queued is written: blocks may go out
  void (*on_ended)(bl_line_t *line);    // it is gone: what moves over it ends
  void (*on_free)(bl_line_t *line);     // nobody uses it any more
} bl__line_ops_t;

// line.c
// Takes over `fd`, also when it fails: NULL.
bl_line_t *bl__line_open(bl_lines_t *lines, int fd, bool is_unix, bl_error_t *err);
void bl__line_lose(bl_line_t *line, const char *format, ...) __attribute__((format(printf, 2, 3)));
void bl__line_hang_up(bl_line_t *line);                                  // without a word
void bl__line_bye(bl_line_t *line, bl_status_t status, const char *why); // a last word, if there is room for it
void bl__line_settle(bl_line_t *line);                                   // frees it when nobody needs it any more
void bl__line_read(bl_line_t *line);                                     // handles what has come
void bl__line_flush(bl_line_t *line); // writes what is queued; goes on with blocks that are sent
void bl__line_put(bl_line_t *line, const bl_frame_t *frame, const char *text);
void bl__line_asked(bl_line_t *line, const bl_frame_t *frame); // a request that waits for its answer from now on
// line_sources.c
void bl__source_show(bl_line_t *line, const bl_frame_t *frame);
void bl__source_hide(bl_line_t *line, const bl_frame_t *frame);
// That is up, and has these bytes (> 0) at `offset`.
bl__source_t *bl__source_at(const bl_line_t *line, uint32_t number, uint64_t offset, uint64_t bytes);
void bl__source_release(bl__source_t *source);
void bl__sources_free(bl_line_t *line); // no users are left
// line_moves.c
bool bl__move_pull(bl_line_t *line, const bl_move_t *what, uint32_t number, uint64_t source_offset);
bool bl__move_receive(bl_line_t *line, const bl_move_t *what);
bool bl__move_send(bl_line_t *line, const bl_move_t *what);
bl__move_t *bl__move_begin(bl_line_t *line, bl__move_kind_t kind, const bl_move_t *what); // NULL: not possible
void bl__move_drop(bl__move_t *move);                                                     // nothing was begun after all
void bl__move_over(bl__move_t *move, bool moved); // nothing touches the room any more
void bl__moves_data(bl_line_t *line);             // a DATA frame is in the reader
void bl__moves_continue_reading(bl_line_t *line);
void bl__moves_continue_writing(bl_line_t *line);
void bl__moves_lose(bl_line_t *line);
void bl__moves_free(bl_lines_t *lines);
// line_ways.c
void bl__ways_meet(bl_line_t *line); // MEET is in the reader
// False: nothing was begun.
BL_MUST_USE bool bl__way_move(bl_line_t *line, bl_pair_direction_t direction, const bl_move_t *what);
void bl__ways_abort(bl_line_t *line); // returns at once
void bl__ways_close(bl_line_t *line); // waits

#endif
