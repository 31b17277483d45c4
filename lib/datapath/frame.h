// SPDX-License-Identifier: Apache-2.0
// The wire format of all data connections, between stages and between a client and its store, on unix sockets and on
// TCP. It converts bytes to fields and back, without I/O. frame_reader.h and frame_writer.h move frames over a
// connection.
//
// Every frame is a header of BL_FRAME_HEADER_BYTES, little-endian, protected by its own XXH3, and then `body_bytes` of
// body:
//
//   kind          direction             body                     meaning
//   GREET         connector -> acceptor greeting (+ descriptors) who I am, the acceptor's token, my memory (greeting.h)
//   WELCOME       acceptor -> connector greeting (+ descriptors) accepted; the acceptor's memory
//   READY         connector -> acceptor -                        stages: acceptor's memory is mapped, link is up
//   BYE           either                text                     the connection ends here: status and why
//   RENDEZVOUS    either                rendezvous_message.h     nccl: agreement on communicators (folder nccl)
//   GO            either                -                        nccl: our half of a transfer is queued, queue yours
//   DATA          either                a chunk                  tcp: `offset` .. of a tensor or block of `bytes`;
//                                                                `checksum` of all so far (block.h)
//
//   of tensors: between stages, identified by (attempt, key)
//   OFFER         sender -> receiver    -                        shm: it lies at `offset` of memory `region`, pull it
//   ACK           receiver -> sender    -                        shm: pulled, the source is yours again
//   CREDIT        receiver -> sender    -                        tcp, nccl: a destination of `bytes` is free
//
//   NOTE          either                a note                   stages: message number `key.boundary` of the attempt,
//                                                                from one compute thread to the other (boundary.h)
//
//   of blocks: between a client and its store
//   REGISTER      client -> store       - (+ descriptor)         shm: sealed memory `region` of `bytes`, to evict from
//   REGISTERED    store -> client       text                     status: it is mapped, or why not
//   UNREGISTER    client -> store       -                        shm: unmap `region`
//   UNREGISTERED  store -> client       text                     it is no longer read and is unmapped
//   EVICT         client -> store       -                        a block; shm: pull it from (region, offset); tcp: DATA
//   LOAD          client -> store       -                        tcp: DATA before the answer; shm: the client reads
//   RELEASE       client -> store       -                        the lease is over; `loaded`: with this checksum
//   KEEP          client -> store       -                        the load is over, with this checksum; the block stays
//   ANSWER        store -> client       text                     to request `sequence`: status, lease, slot; why not
//
// All of shm holds for cuda-ipc too, where the memory is that of GPUs and copy engines pull. There no side computes a
// checksum; the store keeps the client's.
//
// On nccl the connection carries GO in place of DATA. Both ends queue transfers in the order of GO, and only those for
// which both are ready, so that a half never waits for one that will not be queued. Checksums as on cuda-ipc. With a
// store, the two communicators live as long as the connection. If one fails, either end closes the connection; the
// client opens a new one, with other ids, and repeats its request.
//
// EVICT, LOAD, RELEASE and KEEP are requests of the lease table (lib/lease/request_window.h). Their `sequence` is a
// number of the session, shared with its RPCs, and `acknowledged` is as there. A request that is repeated under the
// same number gets the same answer.
//
// Thread: pure functions, any thread.
#ifndef BALLAST_DATAPATH_FRAME_H
#define BALLAST_DATAPATH_FRAME_H

#include "base/status.h"
#include "datapath/key.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BL_FRAME_HEADER_BYTES 128ul
#define BL_FRAME_VERSION      4

// Limits. A frame that exceeds them is refused before anything is read or allocated for it.
#define BL_FRAME_CHUNK_BYTES      (256u << 10) // of DATA: covered by one checksum; fits into the second-level cache
#define BL_FRAME_MAX_BYTES        (1ull << 40) // of a tensor, block or region: sums of offsets stay far below overflow
#define BL_FRAME_MAX_ARENAS       8            // of a greeting: bounds the descriptors that one message makes us hold
#define BL_FRAME_REGIONS          4096u        // per session: bounds maps and descriptors
#define BL_FRAME_TEXT_BYTES       240u         // of a text body; longer texts are truncated
#define BL_FRAME_TOKEN_BYTES      16
#define BL_FRAME_ID_BYTES         128 // of a communicator
#define BL_FRAME_GREETING_BYTES   368ul
#define BL_FRAME_RENDEZVOUS_BYTES 464ul
#define BL_FRAME_NOTE_BYTES       128ul
#define BL_FRAME_MAX_BODY_BYTES   BL_FRAME_RENDEZVOUS_BYTES // except DATA

typedef enum bl_frame_kind {
  BL_FRAME_GREET = 1,
  BL_FRAME_WELCOME,
  BL_FRAME_READY,
  BL_FRAME_BYE,
  BL_FRAME_RENDEZVOUS,
  BL_FRAME_GO,
  BL_FRAME_DATA,
  BL_FRAME_OFFER,
  BL_FRAME_ACK,
  BL_FRAME_CREDIT,
  BL_FRAME_REGISTER,
  BL_FRAME_REGISTERED,
  BL_FRAME_UNREGISTER,
  BL_FRAME_UNREGISTERED,
  BL_FRAME_EVICT,
  BL_FRAME_LOAD,
  BL_FRAME_RELEASE,
  BL_FRAME_KEEP,
  BL_FRAME_ANSWER,
  BL_FRAME_NOTE,
  BL_FRAME_LAST = BL_FRAME_NOTE,
} bl_frame_kind_t;

// Fields that a kind does not use are 0.
typedef struct bl_frame {
  bl_frame_kind_t kind;
  bl_status_t status; // BYE, REGISTERED, UNREGISTERED, ANSWER
  uint32_t body_bytes;
  // OFFER, REGISTER, REGISTERED, UNREGISTER, UNREGISTERED, EVICT; GO of a tensor: generation of communicators
  uint32_t region;
  // `bytes`: of the whole tensor, block or region; `offset`: in it, or in its region.
  uint64_t bytes, offset, checksum;
  // Tensors:
  uint64_t attempt; // 0: not of a tensor
  bl_tensor_key_t key;
  // Blocks:
  uint64_t sequence, acknowledged;
  uint64_t id, generation;
  uint64_t step; // label of EVICT, together with:
  uint32_t chunk, micro_batch;
  uint32_t retry_after_ms;
  bool loaded; // RELEASE
} bl_frame_t;

// Writes the header. The caller supplies the fields, which must be valid.
void bl_frame_encode(const bl_frame_t *frame, uint8_t header[BL_FRAME_HEADER_BYTES]);
// Reads and checks a header: magic, version, kind, header checksum, and the range of every field that the kind uses.
// BL_INVALID sets *reason to a fixed text for the log and leaves *frame untouched.
BL_MUST_USE bl_status_t bl_frame_decode(const uint8_t header[BL_FRAME_HEADER_BYTES], bl_frame_t *frame,
                                        const char **reason);
// Returns whether a frame may begin with these bytes. Others can be refused before the rest has arrived.
bool bl_frame_may_begin(const uint8_t *bytes, size_t count);
const char *bl_frame_kind_name(bl_frame_kind_t kind); // "GREET"; "unknown" for any other
// Returns the body size of a kind whose bodies have one size. 0: the kind has none, or the size varies (DATA and
// texts).
uint32_t bl_frame_fixed_body_bytes(bl_frame_kind_t kind);

#endif
