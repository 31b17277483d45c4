// SPDX-License-Identifier: Apache-2.0
#include "datapath/stuck.h"

#include "sys/log.h"

#include <unistd.h>

void bl_stuck_end(void *context, const bl_error_t *err) {
  (void)context;
  bl_log(BL_LOG_ERROR, "%s", err->text);
  _exit(bl_status_exit_code(BL_DEADLINE)); // no exit handlers: they would wait for work that does not end
}
