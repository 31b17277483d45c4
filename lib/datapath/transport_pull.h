// SPDX-License-Identifier: Apache-2.0
// Private to lib/datapath: tensors of one link that this side's copy engine pulls out of the peer's memory (cuda-ipc).
// The frames are those of shm. The sender OFFERs a tensor when its device has finished with it. The receiver pulls once
// its buffer is posted too, and sends ACK.
//
// A lost link releases the peer's memory when nothing is pulled from it any more, whatever has happened to the peer.
// bl_transport_begin waits for all copies, as for a link that touches memory.
//
// Thread: transfer, except members marked [m] (guarded by the transport's mutex).
#ifndef BALLAST_DATAPATH_TRANSPORT_PULL_H
#define BALLAST_DATAPATH_TRANSPORT_PULL_H

#include "datapath/exchange.h"
#include "datapath/puller.h"

#define BL__LINK_PULLS 8 // in flight from one peer; further ones wait, so that peers share the copy engine

struct bl__link;

typedef struct bl__pull {
  bl_pull_t pull; // first
  struct bl__link *link;
  bl_tensor_t *tensor; // [m] NULL: no longer wanted
  bool used;           // [m]
} bl__pull_t;

// Mutex held. Starts to pull what is offered and posted.
void bl__pull_launch(struct bl__link *link);
// Closes the link if a copy from it has failed.
void bl__pull_iterate(struct bl__link *link);
// Mutex held. Called when the link is lost.
void bl__pull_part(struct bl__link *link);

#endif
