// SPDX-License-Identifier: Apache-2.0
// Tells the stores of a run where its driver is, so that they can pass on what they are asked about policies
// (ballast.v1.Store.Announce). Said again every few seconds: a store that was restarted learns it anew, and one that
// hears nothing more forgets it. Nothing depends on it: a store that cannot be reached is none of its business.
//
// Thread: the loop's.
#ifndef BALLAST_DRIVER_ANNOUNCE_WIRE_H
#define BALLAST_DRIVER_ANNOUNCE_WIRE_H

#include "config/job.h"
#include "rpc/rpc.h"

typedef struct bl_announcer bl_announcer_t;

// Strings are borrowed. BL_INVALID: a store's address is none.
BL_MUST_USE bl_status_t bl_announcer_create(bl_rpc_t *rpc, const bl_job_t *job, const char *run,
                                            bl_announcer_t **announcer, bl_error_t *err);
void bl_announcer_destroy(bl_announcer_t *announcer); // NULL is fine
// From now on: the driver serves at `address` (borrowed).
void bl_announcer_start(bl_announcer_t *announcer, const char *address);

#endif
