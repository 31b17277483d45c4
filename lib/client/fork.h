// SPDX-License-Identifier: Apache-2.0
// Private to lib/client: detects that this process was forked from the one that created an object. A fork does not copy
// threads, so a client of the parent can do nothing in the child, and the store would take what the child does with its
// connections for the parent's. gRPC does not survive a fork either, even if the parent had shut it down before.
// Thread: any; never blocks.
#ifndef BALLAST_CLIENT_FORK_H
#define BALLAST_CLIENT_FORK_H

// Returns the number of forks between the process of the first call and this one. Objects keep the value of their
// creation.
unsigned bl__forks(void);

#endif
