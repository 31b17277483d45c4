// SPDX-License-Identifier: Apache-2.0
#include "holders.h"

#include "loop/watch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD // Linux 6.5
#define SO_PEERPIDFD 77
#endif

typedef struct holder {
  bl_holders_t *holders;
  struct holder *next;
  uint64_t session;
  int pidfd;
  bl_watch_t *watch; // set once the session is over
} holder_t;

struct bl_holders {
  bl_loop_t *loop;
  void (*gone)(void *context, uint64_t session);
  void *context;
  holder_t *first;
};

bl_status_t bl_holders_create(bl_loop_t *loop, void (*gone)(void *context, uint64_t session), void *context,
                              bl_holders_t **out, bl_error_t *err) {
  bl_holders_t *holders = calloc(1, sizeof *holders);
  if (holders == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for a list of holders");
  }
  *holders = (bl_holders_t){.loop = loop, .gone = gone, .context = context};
  *out = holders;
  return BL_OK;
}

static void drop(holder_t *holder) {
  holder_t **at = &holder->holders->first;
  while (*at != holder) {
    at = &(*at)->next;
  }
  *at = holder->next;
  bl_watch_destroy(holder->watch);
  close(holder->pidfd);
  free(holder);
}

void bl_holders_destroy(bl_holders_t *holders) {
  if (holders != NULL) {
    while (holders->first != NULL) {
      drop(holders->first);
    }
    free(holders);
  }
}

static holder_t *find(const bl_holders_t *holders, uint64_t session) {
  holder_t *holder = holders->first;
  while (holder != NULL && (holder->session != session || holder->watch != NULL)) {
    holder = holder->next;
  }
  return holder;
}

// Opens a pidfd of the peer. While the connection lives, its pid cannot belong to another process.
static int open_process(int fd) {
  int pidfd = -1;
  socklen_t length = sizeof pidfd;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &length) == 0) {
    return pidfd;
  }
  struct ucred peer = {0};
  length = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return -1;
  }
  if (peer.pid <= 0) { // in another pid namespace
    errno = ESRCH;
    return -1;
  }
  return (int)syscall(SYS_pidfd_open, peer.pid, 0);
}

bl_status_t bl_holders_add(bl_holders_t *holders, uint64_t session, int fd, bl_error_t *err) {
  int pidfd = open_process(fd);
  if (pidfd < 0) {
    return bl_error_set(err, BL_UNIMPLEMENTED,
                        "the holder's process cannot be watched (%s): for cuda-ipc both must see each other's "
                        "processes, as in one pod with shareProcessNamespace",
                        strerror(errno));
  }
  holder_t *known = find(holders, session), *holder = known != NULL ? known : calloc(1, sizeof *holder);
  if (holder == NULL) {
    close(pidfd);
    return bl_error_set(err, BL_EXHAUSTED, "no memory for a holder");
  }
  if (known != NULL) {
    close(known->pidfd);
  } else {
    *holder = (holder_t){.holders = holders, .session = session, .next = holders->first};
    holders->first = holder;
  }
  holder->pidfd = pidfd;
  return BL_OK;
}

static void on_gone(bl_watch_t *watch, unsigned events, void *context) {
  (void)watch;
  (void)events;
  holder_t *holder = context;
  bl_holders_t *holders = holder->holders;
  uint64_t session = holder->session;
  drop(holder);
  holders->gone(holders->context, session);
}

void bl_holders_end(bl_holders_t *holders, uint64_t session, bool closed) {
  holder_t *holder = find(holders, session);
  if (holder == NULL) {
    return;
  }
  bl_error_t err;
  if (closed || bl_watch_create(holders->loop, holder->pidfd, on_gone, holder, &holder->watch, &err) != BL_OK) {
    drop(holder); // without a watch its slots stay quarantined: none is reused too early
    return;
  }
  bl_watch_set(holder->watch, BL_WATCH_READ);
}
