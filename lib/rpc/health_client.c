// SPDX-License-Identifier: Apache-2.0
// The asking side of health.h.
#include "rpc/health.h"

#include "loop/timer.h"
#include "rpc/health_wire.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_RETRY_MS   100
#define LARGEST_RETRY_MS 1000

const char *bl_rpc_health_state_name(bl_rpc_health_state_t state) {
  static const char *const names[] = {"serving", "not serving", "unknown service", "unreachable"};
  return names[state];
}

// ---- check -------------------------------------------------------------------------------------------------------

typedef struct check {
  bl_rpc_health_checked_fn checked;
  void *context;
} check_t;

static void on_checked(bl_rpc_request_t *request, const ProtobufCMessage *output, const bl_error_t *err,
                       void *context) {
  (void)request;
  check_t check = *(check_t *)context;
  free(context);
  bl_error_t fine = {.status = BL_OK};
  if (err->status == BL_OK) {
    check.checked(bl__health_read_response(output), &fine, check.context);
  } else if (err->status == BL_NOT_FOUND) {
    check.checked(BL_RPC_HEALTH_UNKNOWN, &fine, check.context);
  } else {
    check.checked(BL_RPC_HEALTH_UNREACHABLE, err, check.context);
  }
}

bl_status_t bl_rpc_health_check(bl_rpc_channel_t *channel, const char *service, uint64_t deadline_ms,
                                bl_rpc_health_checked_fn checked, void *context, bl_error_t *err) {
  check_t *check = malloc(sizeof *check);
  if (check == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "health check: out of memory");
  }
  check->checked = checked;
  check->context = context;
  bl_status_t status = bl__health_start_check(channel, service, deadline_ms, on_checked, check, err);
  if (status != BL_OK) {
    free(check);
  }
  return status;
}

// ---- watch -------------------------------------------------------------------------------------------------------

struct bl_rpc_health_watch {
  bl_rpc_channel_t *channel;
  bl_rpc_request_t *request; // NULL between attempts
  bl_timer_t *retry;
  uint64_t retry_ms;
  bl_rpc_health_checked_fn changed;
  void *context;
  bool told;
  bool destroyed; // freed when its request has ended
  bl_rpc_health_state_t last;
  char service[];
};

static void tell(bl_rpc_health_watch_t *watch, bl_rpc_health_state_t state, const bl_error_t *err) {
  if (!watch->told || watch->last != state) {
    watch->told = true;
    watch->last = state;
    watch->changed(state, err, watch->context); // may destroy the watch
  }
}

static void on_message(bl_rpc_request_t *request, const ProtobufCMessage *output, void *context) {
  (void)request;
  bl_rpc_health_watch_t *watch = context;
  if (!watch->destroyed) {
    bl_error_t fine = {.status = BL_OK};
    watch->retry_ms = FIRST_RETRY_MS;
    tell(watch, bl__health_read_response(output), &fine);
  }
}

static void on_done(bl_rpc_request_t *request, const ProtobufCMessage *output, const bl_error_t *err, void *context) {
  (void)request;
  (void)output;
  bl_rpc_health_watch_t *watch = context;
  watch->request = NULL;
  if (watch->destroyed) {
    free(watch);
    return;
  }
  bl_timer_start(watch->retry, watch->retry_ms, 0);
  watch->retry_ms = watch->retry_ms * 2 < LARGEST_RETRY_MS ? watch->retry_ms * 2 : LARGEST_RETRY_MS;
  bl_error_t lost = *err;
  if (lost.status == BL_OK) {
    (void)bl_error_set(&lost, BL_UNAVAILABLE, "%s: Watch: the server ended it", bl_rpc_channel_address(watch->channel));
  }
  tell(watch, BL_RPC_HEALTH_UNREACHABLE, &lost);
}

static bl_status_t start(bl_rpc_health_watch_t *watch, bl_error_t *err) {
  return bl__health_start_watch(watch->channel, watch->service, on_message, on_done, watch, &watch->request, err);
}

static void on_retry(bl_timer_t *timer, void *context) {
  bl_rpc_health_watch_t *watch = context;
  bl_error_t err;
  if (start(watch, &err) != BL_OK) { // out of memory: later there may be some
    watch->request = NULL;
    bl_timer_start(timer, LARGEST_RETRY_MS, 0);
    tell(watch, BL_RPC_HEALTH_UNREACHABLE, &err);
  }
}

bl_status_t bl_rpc_health_watch_create(bl_rpc_channel_t *channel, const char *service, bl_rpc_health_checked_fn changed,
                                       void *context, bl_rpc_health_watch_t **result, bl_error_t *err) {
  size_t name_bytes = strlen(service) + 1;
  bl_rpc_health_watch_t *watch = calloc(1, sizeof *watch + name_bytes);
  if (watch == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "health watch: out of memory");
  }
  watch->channel = channel;
  watch->retry_ms = FIRST_RETRY_MS;
  watch->changed = changed;
  watch->context = context;
  memcpy(watch->service, service, name_bytes);
  bl_status_t status = bl_timer_create(bl_rpc_channel_loop(channel), on_retry, watch, &watch->retry, err);
  if (status == BL_OK) {
    status = start(watch, err);
    if (status != BL_OK) {
      bl_timer_destroy(watch->retry);
    }
  }
  if (status != BL_OK) {
    free(watch);
    return status;
  }
  *result = watch;
  return BL_OK;
}

void bl_rpc_health_watch_destroy(bl_rpc_health_watch_t *watch) {
  if (watch == NULL) {
    return;
  }
  bl_timer_destroy(watch->retry);
  if (watch->request == NULL) {
    free(watch);
    return;
  }
  watch->destroyed = true;
  bl_rpc_request_cancel(watch->request);
}
