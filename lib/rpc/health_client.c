// SPDX-License-Identifier: Apache-2.0
// The client of health.h.
#include "rpc/health.h"

#include "rpc/health_wire.h"

#include <stdlib.h>

const char *bl_rpc_health_state_name(bl_rpc_health_state_t state) {
  static const char *const names[] = {"serving", "not serving", "unknown service", "unreachable"};
  return names[state];
}

typedef struct check {
  bl_rpc_health_checked_fn checked;
  void *context;
} check_t;

static void on_checked(const ProtobufCMessage *output, const bl_error_t *err, void *context) {
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
