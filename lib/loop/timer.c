// SPDX-License-Identifier: Apache-2.0
#include "loop/timer.h"

#include "loop/loop_uv.h"

#include <stdlib.h>

struct bl_timer {
  uv_timer_t uv;
  bl_loop_t *loop;
  bl_timer_fn fire;
  void *context;
};

static void on_fire(uv_timer_t *uv) {
  bl_timer_t *timer = uv->data;
  timer->fire(timer, timer->context);
}

bl_status_t bl_timer_create(bl_loop_t *loop, bl_timer_fn fire, void *context, bl_timer_t **result, bl_error_t *err) {
  BL__ASSERT_LOOP(loop);
  bl_timer_t *timer = calloc(1, sizeof *timer);
  if (timer == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "timer: out of memory");
  }
  uv_timer_init(&loop->uv, &timer->uv); // cannot fail
  timer->uv.data = timer;
  timer->loop = loop;
  timer->fire = fire;
  timer->context = context;
  *result = timer;
  return BL_OK;
}

static void on_closed(uv_handle_t *handle) {
  free(handle->data);
}

void bl_timer_destroy(bl_timer_t *timer) {
  if (timer == NULL) {
    return;
  }
  BL__ASSERT_LOOP(timer->loop);
  uv_timer_stop(&timer->uv);
  uv_close((uv_handle_t *)&timer->uv, on_closed);
}

void bl_timer_start(bl_timer_t *timer, uint64_t delay_ms, uint64_t repeat_ms) {
  BL__ASSERT_LOOP(timer->loop);
  uv_update_time(&timer->loop->uv); // delays count from now, not from the start of this iteration
  uv_timer_start(&timer->uv, on_fire, delay_ms, repeat_ms);
}

void bl_timer_stop(bl_timer_t *timer) {
  BL__ASSERT_LOOP(timer->loop);
  uv_timer_stop(&timer->uv);
}

bool bl_timer_is_active(const bl_timer_t *timer) {
  return uv_is_active((const uv_handle_t *)&timer->uv) != 0;
}
