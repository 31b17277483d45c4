// SPDX-License-Identifier: Apache-2.0
#include "datapath/acceptor.h"

#include "datapath/socket.h"
#include "loop/timer.h"
#include "loop/watch.h"
#include "sys/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct bl_acceptor {
  bl_watch_t *watch;
  bl_timer_t *timer; // ends a rest
  int listener;
  bool told; // that nothing can be accepted
  bl_acceptor_fn accepted;
  void *context;
};

static void accept_all(bl_acceptor_t *self) {
  int fd;
  while ((fd = bl_socket_accept(self->listener)) >= 0) {
    self->told = false;
    self->accepted(self->context, fd);
  }
  const bool rests = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;
  if (rests && !self->told) {
    bl_log(BL_LOG_ERROR, "data path: cannot accept: %s; trying again", strerror(errno));
    self->told = true;
  }
  bl_watch_set(self->watch, rests ? 0 : BL_WATCH_READ);
  if (rests) {
    bl_timer_start(self->timer, BL_ACCEPTOR_REST_MS, 0);
  }
}

static void on_connection(bl_watch_t *watch, unsigned events, void *context) {
  (void)watch;
  (void)events;
  accept_all(context);
}

static void on_rested(bl_timer_t *timer, void *context) {
  (void)timer;
  accept_all(context);
}

bl_status_t bl_acceptor_create(bl_loop_t *loop, int listener, bl_acceptor_fn accepted, void *context,
                               bl_acceptor_t **acceptor, bl_error_t *err) {
  bl_acceptor_t *self = calloc(1, sizeof *self);
  if (self == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory to listen");
  }
  *self = (bl_acceptor_t){.listener = listener, .accepted = accepted, .context = context};
  bl_status_t status = bl_timer_create(loop, on_rested, self, &self->timer, err);
  if (status == BL_OK) {
    status = bl_watch_create(loop, listener, on_connection, self, &self->watch, err);
  }
  if (status != BL_OK) {
    bl_acceptor_destroy(self);
    return status;
  }
  bl_watch_set(self->watch, BL_WATCH_READ);
  *acceptor = self;
  return BL_OK;
}

void bl_acceptor_destroy(bl_acceptor_t *acceptor) {
  if (acceptor == NULL) {
    return;
  }
  bl_watch_destroy(acceptor->watch);
  bl_timer_destroy(acceptor->timer);
  free(acceptor);
}
