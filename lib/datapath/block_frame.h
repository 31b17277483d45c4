// SPDX-License-Identifier: Apache-2.0
// The wire format between the holder of a session and its store, on unix sockets and on TCP alike: bytes in, fields out,
// no I/O. One connection serves one session.
//
// Every frame is a header of BL_BLOCK_FRAME_BYTES, little-endian, protected by its own XXH3, then `body_bytes` of body:
//
//   kind     direction        body           meaning
//   GREET    holder -> store  greeting       who I am; on shm, the connection is how memory is shown
//   WELCOME  store -> holder  text           status; `bytes` of the job's arena (+ its descriptor on shm)
//   SHOW     holder -> store  -              shm: sealed memory `source` of `bytes` (+ its descriptor), to evict from
//            store -> holder  -              after a WELCOME with `source` 1: the second part of the arena, of `bytes`
//   SHOWN    store -> holder  text           status: it is mapped, or why not
//   HIDE     holder -> store  -              shm: let go of `source`
//   HIDDEN   store -> holder  text           nothing reads it any more and it is unmapped
//   EVICT    holder -> store  -              a block comes: shm: pull it from (source, offset); tcp: DATA follows
//   LOAD     holder -> store  -              tcp: DATA comes before the answer; shm: the holder reads the arena
//   RELEASE  holder -> store  -              the lease is over; `loaded`: with this checksum
//   DATA     both             a chunk        of the block of request `sequence`: `offset`, `checksum` of the block so far
//   ANSWER   store -> holder  text           to request `sequence`: status, lease and room; the text says why not
//   BYE      store -> holder  text           the session is over: status and why; the connection ends
//   JOIN     holder -> store  unique id      nccl: the communicator of way `source`, which both now make
//   BEGUN    store -> holder  -              nccl: our half of the transfer of request `sequence` is queued; queue yours
//
// What is said of shm holds for cuda-ipc, where the memory is that of GPUs and copy engines pull: no side computes a
// checksum, the store keeps the holder's.
//
// On nccl the connection is TCP's and carries no DATA: two communicators of two ranks, of ids that came over it with JOIN
// and as long-lived as it, one per way (BL_BLOCK_WAY_*). Transfers are queued in the order of BEGUN at both ends, only for
// requests that were granted, so that a half never waits for one that nobody will queue. Checksums as on cuda-ipc. When a
// communicator fails either end closes the connection; the holder makes another one, with other ids, and asks again.
//
// EVICT, LOAD and RELEASE are requests of the lease table (lib/lease/window.h): `sequence` is one of the session's, shared
// with its RPCs, and `acknowledged` as there. Asked again under the same number, the same answer comes.
// Thread: pure functions, any thread.
#ifndef BALLAST_DATAPATH_BLOCK_FRAME_H
#define BALLAST_DATAPATH_BLOCK_FRAME_H

#include "base/status.h"
#include "datapath/path.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BL_BLOCK_FRAME_BYTES   104ul
#define BL_BLOCK_FRAME_VERSION 1

// Limits. A frame beyond them is refused before anything is read or allocated for it.
#define BL_BLOCK_CHUNK_BYTES (256u << 10) // of DATA: what one check covers; fits into the second-level cache
#define BL_BLOCK_MAX_BYTES   (1ull << 40) // of a block, source or arena: sums of offsets stay far below overflow
#define BL_BLOCK_TEXT_BYTES  240u         // of a text body; longer texts are cut
#define BL_BLOCK_SOURCES     4096u        // shown per session: bounds maps and descriptors
#define BL_BLOCK_KEY_BYTES   16

typedef enum bl_block_frame_kind {
  BL_BLOCK_GREET = 1,
  BL_BLOCK_WELCOME,
  BL_BLOCK_SHOW,
  BL_BLOCK_SHOWN,
  BL_BLOCK_HIDE,
  BL_BLOCK_HIDDEN,
  BL_BLOCK_EVICT,
  BL_BLOCK_LOAD,
  BL_BLOCK_RELEASE,
  BL_BLOCK_DATA,
  BL_BLOCK_ANSWER,
  BL_BLOCK_BYE,
  BL_BLOCK_JOIN,
  BL_BLOCK_BEGUN,
  BL_BLOCK_LAST = BL_BLOCK_BEGUN,
} bl_block_frame_kind_t;

#define BL_BLOCK_WAYS      2u
#define BL_BLOCK_WAY_EVICT 0u // blocks from the holder to the store
#define BL_BLOCK_WAY_LOAD  1u // and back
#define BL_BLOCK_ID_BYTES  128ul

typedef struct bl_block_frame {
  bl_block_frame_kind_t kind;
  bl_status_t status; // WELCOME, SHOWN, HIDDEN, ANSWER
  bool loaded;        // RELEASE
  uint32_t body_bytes;
  uint32_t source; // SHOW, SHOWN, HIDE, HIDDEN, EVICT; the way of JOIN
  uint32_t retry_after_ms;
  uint64_t sequence, acknowledged;
  uint64_t id, generation;
  uint64_t bytes, offset, checksum;
  uint64_t step; // label of EVICT, with:
  uint32_t chunk, micro_batch;
} bl_block_frame_t;

void bl_block_frame_encode(const bl_block_frame_t *frame, uint8_t header[BL_BLOCK_FRAME_BYTES]);
// Checks magic, version, kind, header checksum and the range of every field that the kind uses. BL_INVALID sets *reason
// to a fixed text for the log; *frame is then untouched.
BL_MUST_USE bl_status_t bl_block_frame_decode(const uint8_t header[BL_BLOCK_FRAME_BYTES], bl_block_frame_t *frame,
                                              const char **reason);
const char *bl_block_frame_kind_name(bl_block_frame_kind_t kind); // "EVICT"; "unknown" for any other

// Body of GREET.
#define BL_BLOCK_GREETING_BYTES 240ul
typedef struct bl_block_greeting {
  uint64_t session;
  uint8_t key[BL_BLOCK_KEY_BYTES];         // of the session
  uint8_t incarnation[BL_BLOCK_KEY_BYTES]; // of the store
  bool shm;                                // over a unix socket, with memory shown by descriptor; else TCP
  bl_path_t path;                          // BL_PATH_AUTO: shm or tcp, as the socket
  bool unverified;                         // no checksums, for measurements
  char reason[192];                        // why this path, for those who look at the store
} bl_block_greeting_t;
void bl_block_greeting_encode(const bl_block_greeting_t *greeting, uint8_t body[BL_BLOCK_GREETING_BYTES]);
BL_MUST_USE bl_status_t bl_block_greeting_decode(const uint8_t body[BL_BLOCK_GREETING_BYTES],
                                                 bl_block_greeting_t *greeting, const char **reason);

#endif
