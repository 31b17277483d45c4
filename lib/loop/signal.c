// SPDX-License-Identifier: Apache-2.0
#include "loop/signal.h"

#include "loop/loop_uv.h"

#include <stdlib.h>

struct bl_signal {
  uv_signal_t uv;
  bl_loop_t *loop;
  bl_signal_fn fire;
  void *context;
};

static void on_fire(uv_signal_t *uv, int number) {
  bl_signal_t *signal = uv->data;
  signal->fire(signal, number, signal->context);
}

static void on_closed(uv_handle_t *handle) {
  free(handle->data);
}

bl_status_t bl_signal_create(bl_loop_t *loop, int number, bl_signal_fn fire, void *context, bl_signal_t **result,
                             bl_error_t *err) {
  BL__ASSERT_LOOP(loop);
  bl_signal_t *signal = calloc(1, sizeof *signal);
  if (signal == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "signal %d: out of memory", number);
  }
  signal->loop = loop;
  signal->fire = fire;
  signal->context = context;
  int error = uv_signal_init(&loop->uv, &signal->uv);
  if (error != 0) {
    free(signal);
    return bl_error_set(err, bl__uv_status(error), "signal %d: %s", number, uv_strerror(error));
  }
  signal->uv.data = signal;
  error = uv_signal_start(&signal->uv, on_fire, number);
  if (error != 0) {
    uv_close((uv_handle_t *)&signal->uv, on_closed);
    return bl_error_set(err, bl__uv_status(error), "signal %d cannot be watched: %s", number, uv_strerror(error));
  }
  *result = signal;
  return BL_OK;
}

void bl_signal_destroy(bl_signal_t *signal) {
  if (signal == NULL) {
    return;
  }
  BL__ASSERT_LOOP(signal->loop);
  uv_signal_stop(&signal->uv);
  uv_close((uv_handle_t *)&signal->uv, on_closed);
}
