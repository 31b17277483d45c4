// SPDX-License-Identifier: Apache-2.0
// Inside lib/client: whether this process is a fork of the one that made something. Threads do not come along with a fork, so a
// client of the parent can do nothing in the child, and what the child would do with its connections would be said in the
// parent's name. gRPC does not live through a fork either, not even where the parent had shut it down before.
// Thread: any; never blocks.
#ifndef BALLAST_CLIENT_FORK_H
#define BALLAST_CLIENT_FORK_H

// How often this process and those it was forked from have been forked since the first call; kept by what is made.
unsigned bl__forks(void);

#endif
