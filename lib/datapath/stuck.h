// SPDX-License-Identifier: Apache-2.0
// The end of a process whose device does not end what it has begun: memory may be touched for ever.
// Thread: any.
#ifndef BALLAST_DATAPATH_STUCK_H
#define BALLAST_DATAPATH_STUCK_H

#include "base/error.h"

// Logs the cause and ends the process with the exit code of BL_DEADLINE, which nothing else gives it. `context` is for those
// who take a callback.
_Noreturn void bl_stuck_end(void *context, const bl_error_t *err);

#endif
