// SPDX-License-Identifier: Apache-2.0
// Private to lib/datapath: the handshake of a link, GREET, WELCOME, READY (greeting.h). The connector shows the
// acceptor's token. On shm both ends pass the descriptors of their arenas, and each maps the other's.
//
// Thread: transfer.
#ifndef BALLAST_DATAPATH_HANDSHAKE_H
#define BALLAST_DATAPATH_HANDSHAKE_H

#include "datapath/link.h"

void bl__handshake_begin(bl__link_t *link); // outgoing, and connected: sends GREET
void bl__handshake_frame(bl__link_t *link); // a frame arrived before the link was up

#endif
