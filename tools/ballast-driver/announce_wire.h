// SPDX-License-Identifier: Apache-2.0
// Announces the driver's address to the stores of a run, so that they can relay requests about policies to it
// (ballast.v1.Store.Announce). The announcement is repeated every few seconds: a store that was restarted learns the
// address, and one that receives no more forgets it. Nothing depends on it, so an unreachable store is ignored.
//
// Thread: the loop's.
#ifndef BALLAST_DRIVER_ANNOUNCE_WIRE_H
#define BALLAST_DRIVER_ANNOUNCE_WIRE_H

#include "config/job.h"
#include "rpc/rpc.h"

typedef struct bl_announcer bl_announcer_t;

// Strings are borrowed. BL_INVALID: the address of a store is invalid.
BL_MUST_USE bl_status_t bl_announcer_create(bl_rpc_t *rpc, const bl_job_t *job, const char *run,
                                            bl_announcer_t **announcer, bl_error_t *err);
void bl_announcer_destroy(bl_announcer_t *announcer); // NULL is fine
// Starts to announce that the driver serves at `address` (borrowed).
void bl_announcer_start(bl_announcer_t *announcer, const char *address);

#endif
