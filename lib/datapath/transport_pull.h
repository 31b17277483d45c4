// SPDX-License-Identifier: Apache-2.0
// Tensors of one link that this side's copy engine pulls out of the peer's memory (cuda-ipc). The words are those of
// shm: the sender OFFERs what its device is done with, the receiver, once its buffer is posted too, pulls and says ACK.
// Inside of the transport; not for users.
//
// A link that is lost gives its memory back when nothing is pulled from it any more: what its peer has become has no
// part in that. bl_transport_begin waits for all that moves, as for a link that touches memory.
//
// Thread: transfer, but for what is marked [m] (guarded by the transport's mutex).
#ifndef BALLAST_DATAPATH_TRANSPORT_PULL_H
#define BALLAST_DATAPATH_TRANSPORT_PULL_H

#include "datapath/exchange.h"
#include "datapath/puller.h"

#define BL__LINK_PULLS 8 // under way from one peer; more wait, so that peers share the copy engine

struct bl__link;

typedef struct bl__pull {
  bl_pull_t pull; // first
  struct bl__link *link;
  bl_tensor_t *tensor; // [m] NULL: nobody waits for it any more
  bool used;           // [m]
} bl__pull_t;

// Mutex held. Begins to pull what is offered and posted.
void bl__pull_launch(struct bl__link *link);
// Loses the link when a copy from it has failed.
void bl__pull_turn(struct bl__link *link);
// Mutex held. The link is lost.
void bl__pull_part(struct bl__link *link);

#endif
