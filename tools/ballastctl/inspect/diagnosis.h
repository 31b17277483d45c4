// SPDX-License-Identifier: Apache-2.0
// Diagnosis of a stuck job: which process waits for which, since when, and which ones all others wait for in the end.
// Needs only a driver's status. PURE: JSON in, JSON out.
#ifndef BALLAST_BALLASTCTL_DIAGNOSIS_H
#define BALLAST_BALLASTCTL_DIAGNOSIS_H

#include <jansson.h>
#include <stddef.h>

#define BL_CTL_VERDICT_BYTES 256

// `status` as bl_ctl_driver_status returns it; borrowed. Returns a new reference to a list with one object per wait,
// the driver's first: {"who", "state", "waits_for", "seconds", "peer", "micro_batch", "operation", "cause"}; a wait that
// is for no peer or of no micro-batch lacks these. A stage that waits for nothing also has an object, without
// "waits_for". `cause` is true for a stage that other stages wait for, directly or through others, and that itself waits
// for no stage: it does not answer, or it computes. A wait for a store also has "store", "chunk" and, once the block has
// a lease there, "lease" ("3/17"). Stores that do not answer follow. NULL: no memory. Writes one sentence to `verdict`.
// *silent: number of stages and stores that do not answer.
json_t *bl_ctl_diagnose(const json_t *status, char verdict[BL_CTL_VERDICT_BYTES], size_t *silent);

#endif
