// SPDX-License-Identifier: Apache-2.0
// Tensors of one peer that NCCL moves from device to device: two communicators, one per way, and what is on them.
// Inside of the transport; not for users.
//
// The link to the peer stays what carries words: the rendezvous at which communicators are made (nccl/rendezvous.h), a
// CREDIT for each tensor that this side can take, and GO for each that the other has queued. A transfer is queued only
// when both ends are ready for it, in the order of GO at both: a half never waits on the device for one that comes late
// or never, whatever the schedule, and its deadline is that of the bytes.
//
//   come up           bl__nccl_link_meet: both ends can
//   credit + send     bl__nccl_link_launch: GO, and our half is queued
//   GO                bl__nccl_link_go: our half is queued
//   link lost         bl__nccl_link_part: what moves is aborted; nobody waits for it any more
//   begin             waits until nothing moves (bl__nccl_link_is_still); then a lost pair is made again
//
// Thread: transfer, but for what is marked [m] (guarded by the transport's mutex).
#ifndef BALLAST_DATAPATH_TRANSPORT_DIRECT_H
#define BALLAST_DATAPATH_TRANSPORT_DIRECT_H

#include "datapath/exchange.h"
#include "datapath/link.h"
#include "datapath/nccl/pair.h"

struct bl__peer; // transport.h

// One tensor on its way.
typedef struct bl__move {
  bl_nccl_transfer_t transfer;
  struct bl__nccl_link *nccl_link;
  bl_nccl_channel_t *channel;
  bl_tensor_t *tensor; // [m] NULL: nobody waits for it any more
  bool used;           // [m]
} bl__move_t;

typedef struct bl__nccl_link {
  bl_transport_t *transport;
  int32_t stage;
  bl_nccl_rendezvous_t rendezvous;                        // [m] changed by the transfer thread, and by begin
  uint8_t ids[BL_RENDEZVOUS_CHANNELS][BL_FRAME_ID_BYTES]; // of the generation that is made
  bl_nccl_pair_t pair;                                    // its first end is the lower stage
  bool settled;            // [m] it has been up, or was given up for good: nobody waits to be connected
  uint64_t since_ns;       // [m] when it began to wait
  uint32_t moving;         // [m] transfers that may touch memory
  uint64_t broken_attempt; // [m] tensors of it were lost
  bl_error_t err;          // [m] ... and why
  uint32_t move_count;
  bl__move_t *moves;
} bl__nccl_link_t;

// Mutex held. The pair's state, made at its first rendezvous; NULL: no memory.
bl__nccl_link_t *bl__nccl_link_of(bl_transport_t *transport, struct bl__peer *peer);
// When the transport ends: waits until nothing moves. Then bl__nccl_link_free.
void bl__nccl_link_shut(bl__nccl_link_t *nccl_link);
void bl__nccl_link_free(bl__nccl_link_t *nccl_link); // NULL is fine

// The link is new, and both ends can.
void bl__nccl_link_meet(bl__link_t *link);
// Mutex held. The link is lost.
void bl__nccl_link_part(bl__nccl_link_t *nccl_link, bl_status_t status, const char *text);
// Whether it is up. Else it is wanted again, and bl__connect_up is called when it is, or when it has failed.
bool bl__nccl_link_is_up(bl__link_t *link);
// Frees communicators that have ended, of all peers.
void bl__nccl_link_sweep(bl_transport_t *transport);
// Looks at what has become of communicators, and goes on with the rendezvous.
void bl__nccl_link_turn(bl__link_t *link);
// A word of the peer: RENDEZVOUS in link->reader.
void bl__nccl_link_heard(bl__link_t *link);
// Mutex held. Queues the sends that the peer has given credit for, and says GO of each.
void bl__nccl_link_launch(bl__link_t *link);
// GO in link->reader.
void bl__nccl_link_go(bl__link_t *link);

// Mutex held.
static inline bool bl__nccl_link_is_still(const bl__nccl_link_t *nccl_link) {
  return nccl_link == NULL || nccl_link->moving == 0;
}
// Whether tensors of `attempt` were lost, or cannot move: *err says why, beside its status.
bool bl__nccl_link_is_broken(const bl__nccl_link_t *nccl_link, uint64_t attempt, bl_error_t *err);
// A new attempt has begun: what failed is tried again.
void bl__nccl_link_begin(bl__nccl_link_t *nccl_link);

#endif
