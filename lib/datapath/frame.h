// SPDX-License-Identifier: Apache-2.0
// The wire format of the data path, on unix sockets and on TCP alike: bytes in, fields out, no I/O.
//
// Every frame is a header of BL_FRAME_HEADER_BYTES, little-endian, protected by its own XXH3, then `body_bytes` of body:
//
//   kind      direction             body                           meaning
//   HELLO     connector -> acceptor bl_hello_t (+ descriptors)     who I am, the acceptor's token, my arenas
//   WELCOME   acceptor -> connector bl_hello_t (+ descriptors)     accepted; header.session names the link from here
//   READY     connector -> acceptor -                              the acceptor's arenas are mapped too: link is up
//   REFUSE    either                bl_refusal_t                   why not; the sender closes after it
//   OFFER     sender -> receiver    -                              shm: tensor lies at (arena, offset), pull it
//   ACK       receiver -> sender    -                              shm: pulled, the source is yours again
//   CREDIT    receiver -> sender    -                              tcp: a destination of `bytes` is free
//   DATA      sender -> receiver    a chunk, offset .. + body      tcp: `checksum` is the XXH3 of the body
//   GO        sender -> receiver    -                              nccl: our half of the transfer is queued, queue yours
//   MEET      either                bl_meet_t                      nccl: of making communicators (nccl/meeting.h)
//
// nccl takes CREDIT from tcp, and GO for DATA, on a connection of either kind.
//
// Thread: pure functions, any thread.
#ifndef BALLAST_DATAPATH_FRAME_H
#define BALLAST_DATAPATH_FRAME_H

#include "base/status.h"
#include "datapath/key.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BL_FRAME_HEADER_BYTES 80ul
#define BL_FRAME_VERSION      2

// Limits. A frame beyond them is refused before anything is read or allocated for it.
#define BL_FRAME_MAX_CHUNK_BYTES  (256u << 10) // bounds what a link buffers and what one checksum covers (fits in L2)
#define BL_FRAME_MAX_TENSOR_BYTES (1ull << 40) // bounds sums of offsets far below overflow
#define BL_FRAME_MAX_ARENAS       8            // bounds the descriptors one message can make us hold
#define BL_FRAME_TOKEN_BYTES      16
#define BL_FRAME_TEXT_BYTES       192
#define BL_FRAME_GPU_BYTES        40
#define BL_FRAME_ID_BYTES         128

typedef enum bl_frame_kind {
  BL_FRAME_HELLO = 1,
  BL_FRAME_WELCOME,
  BL_FRAME_READY,
  BL_FRAME_REFUSE,
  BL_FRAME_OFFER,
  BL_FRAME_ACK,
  BL_FRAME_CREDIT,
  BL_FRAME_DATA,
  BL_FRAME_GO,
  BL_FRAME_MEET,
} bl_frame_kind_t;

typedef struct bl_frame {
  bl_frame_kind_t kind;
  uint32_t body_bytes;
  uint64_t session; // 0 in HELLO and in a REFUSE that answers it
  uint64_t attempt;
  bl_tensor_key_t key;
  uint32_t arena;    // OFFER; GO: the generation of the communicator
  uint64_t offset;   // OFFER: in the arena; DATA: in the tensor
  uint64_t bytes;    // of the whole tensor (OFFER, CREDIT, DATA, GO)
  uint64_t checksum; // of the body, XXH3 with seed 0
} bl_frame_t;

// Writes the header. The fields are the caller's own and must be valid.
void bl_frame_encode(const bl_frame_t *frame, uint8_t header[BL_FRAME_HEADER_BYTES]);
// Reads and checks a header: magic, version, kind, header checksum, and every field that the kind uses against its
// range. BL_INVALID sets *reason to a fixed text for the log; *frame is then untouched.
BL_MUST_USE bl_status_t bl_frame_decode(const uint8_t header[BL_FRAME_HEADER_BYTES], bl_frame_t *frame,
                                        const char **reason);
const char *bl_frame_kind_name(bl_frame_kind_t kind); // "HELLO"; "unknown" for any other

// Body of HELLO and WELCOME.
#define BL_HELLO_BYTES 360
typedef struct bl_hello {
  int32_t stage;                             // of the sender of this frame
  int32_t peer;                              // the stage it means to talk to
  uint8_t token[BL_FRAME_TOKEN_BYTES];       // of the acceptor: the right to connect
  uint8_t own_token[BL_FRAME_TOKEN_BYTES];   // of the sender, so that the acceptor can tell incarnations apart
  uint32_t path;                             // bl_path_t: BL_PATH_SHM or BL_PATH_TCP
  uint32_t arena_count;                      // 0 on tcp
  uint64_t arena_bytes[BL_FRAME_MAX_ARENAS]; // the descriptors follow in the same order
  char reason[BL_FRAME_TEXT_BYTES];          // why this path
  char gpu[BL_FRAME_GPU_BYTES];              // that tensors lie on (endpoint.h); "": memory of the host
  int32_t nccl;                              // version; 0: none
  bool shared_gpu;                           // NCCL is set up for several processes per GPU
  bool wants_nccl;                           // of the connector: tensors shall go by it if they can
} bl_hello_t;
void bl_hello_encode(const bl_hello_t *hello, uint8_t body[BL_HELLO_BYTES]);
BL_MUST_USE bl_status_t bl_hello_decode(const uint8_t body[BL_HELLO_BYTES], bl_hello_t *hello, const char **reason);

// Body of MEET.
#define BL_MEET_BYTES 464
typedef struct bl_meet {
  uint32_t verb; // bl_nccl_meeting_verb_t
  uint32_t generation;
  bl_status_t status;                // MADE: BL_OK, or why not; DROP, BROKE: why
  uint8_t ids[2][BL_FRAME_ID_BYTES]; // IDS: of the way from the lower to the higher stage, and back
  char text[BL_FRAME_TEXT_BYTES];
} bl_meet_t;
void bl_meet_encode(const bl_meet_t *meet, uint8_t body[BL_MEET_BYTES]);
BL_MUST_USE bl_status_t bl_meet_decode(const uint8_t body[BL_MEET_BYTES], bl_meet_t *meet, const char **reason);

#define BL_FRAME_MAX_BODY_BYTES BL_MEET_BYTES // but for DATA

// Body of REFUSE.
#define BL_REFUSAL_BYTES 196
typedef struct bl_refusal {
  bl_status_t status;
  char text[BL_FRAME_TEXT_BYTES];
} bl_refusal_t;
void bl_refusal_encode(const bl_refusal_t *refusal, uint8_t body[BL_REFUSAL_BYTES]);
BL_MUST_USE bl_status_t bl_refusal_decode(const uint8_t body[BL_REFUSAL_BYTES], bl_refusal_t *refusal,
                                          const char **reason);

#endif
