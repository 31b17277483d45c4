// SPDX-License-Identifier: Apache-2.0
// Private to lib/datapath: tensors of one peer that NCCL moves from device to device, and the pair of communicators
// that they use, one per direction.
//
// The link to the peer still carries the frames: the rendezvous that creates communicators (nccl/rendezvous.h), a
// CREDIT for each tensor that this side can take, and a GO for each that the peer has queued. A transfer is queued only
// when both ends are ready for it, in the order of GO at both. So under any schedule no half waits on the device for
// one that is late or missing, and the deadline of a transfer is that of its bytes.
//
//   link is up        bl__nccl_link_meet: both ends have NCCL
//   credit + send     bl__nccl_link_launch: sends GO and queues our half
//   GO                bl__nccl_link_go: queues our half
//   link lost         bl__nccl_link_part: aborts what moves, and drops its tensors
//   begin             waits until nothing moves (bl__nccl_link_is_still); then a lost pair is created again
//
// Thread: transfer, except members marked [m] (guarded by the transport's mutex).
#ifndef BALLAST_DATAPATH_TRANSPORT_DIRECT_H
#define BALLAST_DATAPATH_TRANSPORT_DIRECT_H

#include "datapath/exchange.h"
#include "datapath/link.h"
#include "datapath/nccl/pair.h"

struct bl__peer; // transport.h

// One tensor in flight.
typedef struct bl__move {
  bl_nccl_transfer_t transfer;
  struct bl__nccl_link *nccl_link;
  bl_nccl_channel_t *channel;
  bl_tensor_t *tensor; // [m] NULL: no longer wanted
  bool used;           // [m]
} bl__move_t;

typedef struct bl__nccl_link {
  bl_transport_t *transport;
  int32_t stage;
  bl_nccl_rendezvous_t rendezvous; // [m] changed by the transfer thread, and by begin
  // Of the generation that is being created.
  uint8_t ids[BL_RENDEZVOUS_CHANNELS][BL_FRAME_ID_BYTES];
  bl_nccl_pair_t pair;     // its first end is the lower stage
  bool decided;            // [m] it was up, or was abandoned for good: connect need not wait
  uint32_t moving;         // [m] transfers that may touch memory
  uint64_t broken_attempt; // [m] the attempt that lost tensors
  bl_error_t err;          // [m] ... and why
  uint32_t move_count;
  bl__move_t *moves;
} bl__nccl_link_t;

// Mutex held. Returns the pair's state, created at its first rendezvous. NULL: no memory.
bl__nccl_link_t *bl__nccl_link_of(bl_transport_t *transport, struct bl__peer *peer);
// Called when the transport ends. Waits until nothing moves. Then call bl__nccl_link_free.
void bl__nccl_link_shut(bl__nccl_link_t *nccl_link);
void bl__nccl_link_free(bl__nccl_link_t *nccl_link); // NULL is allowed

// Called for a new link if both ends have NCCL.
void bl__nccl_link_meet(bl__link_t *link);
// Mutex held. Called when the link is lost.
void bl__nccl_link_part(bl__nccl_link_t *nccl_link, bl_status_t status, const char *text);
// Returns whether the pair is up. If not, requests a new rendezvous; bl__connect_up is called when the pair is up or
// has failed.
bool bl__nccl_link_is_up(bl__link_t *link);
// Frees communicators that have ended, of all peers.
void bl__nccl_link_sweep(bl_transport_t *transport);
// Checks the state of the communicators and continues the rendezvous.
void bl__nccl_link_iterate(bl__link_t *link);
// Processes RENDEZVOUS in link->reader.
void bl__nccl_link_heard(bl__link_t *link);
// Mutex held. Queues the sends that the peer has given credit for, and sends GO for each.
void bl__nccl_link_launch(bl__link_t *link);
// Processes GO in link->reader.
void bl__nccl_link_go(bl__link_t *link);

// Mutex held.
static inline bool bl__nccl_link_is_still(const bl__nccl_link_t *nccl_link) {
  return nccl_link == NULL || nccl_link->moving == 0;
}
// Mutex held. Returns whether no communicators are being created or ended.
static inline bool bl__nccl_link_is_quiet(const bl__nccl_link_t *nccl_link) {
  const bl_nccl_rendezvous_state_t state = nccl_link->rendezvous.state;
  return state == BL_NCCL_RENDEZVOUS_UP || state == BL_NCCL_RENDEZVOUS_APART;
}
// Returns whether tensors of `attempt` were lost or cannot move; *err has the status and the reason.
bool bl__nccl_link_is_broken(const bl__nccl_link_t *nccl_link, uint64_t attempt, bl_error_t *err);
// Called when a new attempt has begun: a pair that failed is tried again.
void bl__nccl_link_begin(bl__nccl_link_t *nccl_link);

#endif
