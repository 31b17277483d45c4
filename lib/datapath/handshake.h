// SPDX-License-Identifier: Apache-2.0
// How a link comes up: GREET, WELCOME, READY (greeting.h). The connector shows the acceptor's token; on shm both pass
// the descriptors of their arenas and map the other's. Inside of the transport; not for users.
// Thread: transfer.
#ifndef BALLAST_DATAPATH_HANDSHAKE_H
#define BALLAST_DATAPATH_HANDSHAKE_H

#include "datapath/link.h"

void bl__handshake_begin(bl__link_t *link); // outgoing, and connected: says GREET
void bl__handshake_frame(bl__link_t *link); // a frame came before the link was up

#endif
