// SPDX-License-Identifier: Apache-2.0
// Who waits for what, since when, and who everybody waits for in the end: from a driver's status alone, so that it can
// be said while the job is stuck. PURE: JSON in, JSON out.
#ifndef BALLAST_BALLASTCTL_DIAGNOSIS_H
#define BALLAST_BALLASTCTL_DIAGNOSIS_H

#include <jansson.h>
#include <stddef.h>

#define BL_CTL_VERDICT_BYTES 256

// `status` as bl_ctl_driver_status gives it; borrowed. The result is the caller's: one object per wait, the driver's
// first, {"who", "state", "waits_for", "seconds", "peer", "micro_batch", "operation", "cause"}; a stage that waits for
// nothing has one, too, without "waits_for". `cause` is true for a stage that others wait for, directly or through
// others, and that itself waits for nobody: one that does not answer, or that computes. NULL: no memory.
// Writes one sentence to `verdict`. A wait for a store also has "store", "chunk" and, once the block has one there,
// "lease" ("3/17"). Stores that do not answer follow. *silent: how many stages and stores do not answer.
json_t *bl_ctl_diagnose(const json_t *status, char verdict[BL_CTL_VERDICT_BYTES], size_t *silent);

#endif
