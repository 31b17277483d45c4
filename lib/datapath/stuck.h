// SPDX-License-Identifier: Apache-2.0
// Ends a process whose device does not complete the work that it has begun, so that memory may be touched without end.
// Thread: any.
#ifndef BALLAST_DATAPATH_STUCK_H
#define BALLAST_DATAPATH_STUCK_H

#include "base/error.h"

// Logs the cause and ends the process with the exit code of BL_DEADLINE, which nothing else produces. `context` is
// unused; it makes the function usable as a callback.
_Noreturn void bl_stuck_end(void *context, const bl_error_t *err);

#endif
