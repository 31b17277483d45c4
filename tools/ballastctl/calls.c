// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/calls.h"

bl_status_t bl_ctl_calls_init(bl_ctl_calls_t *calls, bl_error_t *err) {
  *calls = (bl_ctl_calls_t){0};
  bl_status_t status = bl_loop_create(&calls->loop, err);
  return status == BL_OK ? bl_rpc_create(calls->loop, &calls->rpc, err) : status;
}

void bl_ctl_calls_cleanup(bl_ctl_calls_t *calls) {
  bl_rpc_destroy(calls->rpc);
  if (calls->loop != NULL) {
    bl_loop_destroy(calls->loop);
  }
}

void bl_ctl_calls_ended(bl_ctl_calls_t *calls) {
  if (--calls->open == 0) {
    bl_loop_stop(calls->loop);
  }
}

void bl_ctl_calls_wait(bl_ctl_calls_t *calls) {
  if (calls->open > 0) {
    bl_loop_run(calls->loop);
  }
}
