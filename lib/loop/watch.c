// SPDX-License-Identifier: Apache-2.0
#include "loop/watch.h"

#include "loop/loop_uv.h"

#include <stdlib.h>

struct bl_watch {
  uv_poll_t uv;
  bl_loop_t *loop;
  bl_watch_fn ready;
  void *context;
  unsigned events;
};

static void start(bl_watch_t *watch);

static void on_ready(uv_poll_t *uv, int status, int events) {
  bl_watch_t *watch = uv->data;
  unsigned told = BL_WATCH_READ | BL_WATCH_WRITE;
  if (status == 0) {
    told = ((events & UV_READABLE) != 0 ? BL_WATCH_READ : 0) | ((events & UV_WRITABLE) != 0 ? BL_WATCH_WRITE : 0);
  } else {
    start(watch); // libuv has stopped the handle; data that arrived before the error may need several reads
  }
  watch->ready(watch, told, watch->context);
}

static void start(bl_watch_t *watch) {
  int wanted = ((watch->events & BL_WATCH_READ) != 0 ? UV_READABLE : 0) |
               ((watch->events & BL_WATCH_WRITE) != 0 ? UV_WRITABLE : 0);
  (void)uv_poll_start(&watch->uv, wanted, on_ready); // fails only for a closed handle or other bits
}

bl_status_t bl_watch_create(bl_loop_t *loop, int fd, bl_watch_fn ready, void *context, bl_watch_t **result,
                            bl_error_t *err) {
  BL__ASSERT_LOOP(loop);
  bl_watch_t *watch = calloc(1, sizeof *watch);
  if (watch == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory to watch a descriptor");
  }
  int failed = uv_poll_init(&loop->uv, &watch->uv, fd);
  if (failed != 0) {
    free(watch);
    return bl_error_set(err, bl__uv_status(failed), "a descriptor cannot be watched: %s", uv_strerror(failed));
  }
  watch->uv.data = watch;
  watch->loop = loop;
  watch->ready = ready;
  watch->context = context;
  *result = watch;
  return BL_OK;
}

static void on_closed(uv_handle_t *handle) {
  free(handle->data);
}

void bl_watch_destroy(bl_watch_t *watch) {
  if (watch == NULL) {
    return;
  }
  BL__ASSERT_LOOP(watch->loop);
  uv_poll_stop(&watch->uv);
  uv_close((uv_handle_t *)&watch->uv, on_closed);
}

void bl_watch_set(bl_watch_t *watch, unsigned events) {
  BL__ASSERT_LOOP(watch->loop);
  if (watch->events == events) {
    return;
  }
  watch->events = events;
  if (events == 0) {
    uv_poll_stop(&watch->uv);
    return;
  }
  start(watch);
}
