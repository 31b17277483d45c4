// SPDX-License-Identifier: Apache-2.0
// Checks whether the services of a job answer. Asks every stage and store for its status, all at once, and repeats the
// call until it answers or the timeout ends.
//
//   bl_ctl_probe_t probes[] = {{.address = "host:7700"}, {.address = "host:7800", .store = true}};
//   if (bl_ctl_probe_all(probes, 2, 5000, &err) == BL_OK && probes[1].err.status == BL_OK) ... probes[1].free_bytes ...
//
// Thread: any one; has a loop of its own.
#ifndef BALLAST_BALLASTCTL_PROBE_WIRE_H
#define BALLAST_BALLASTCTL_PROBE_WIRE_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BL_CTL_PROBE_MACHINE_BYTES     96
#define BL_CTL_PROBE_INCARNATION_BYTES 16

typedef struct bl_ctl_probe {
  const char *address; // borrowed
  bool store;          // false: a stage
  uint32_t number;     // of a stage, or of a store (those of devices, then those of hosts); for the caller
  const char *job;     // of a store: whose memory is asked about; borrowed
  // Answers
  bl_error_t err;                                      // BL_OK: it answered; else the last failure
  int64_t process;                                     // pid
  uint8_t incarnation[BL_CTL_PROBE_INCARNATION_BYTES]; // random, one per process; zeros: not told
  uint64_t free_bytes;                      // of a store: what the job may use, its present reservations included
  uint64_t spare_bytes;                     // of a store: what no job has reserved
  bool draining;                            // a store that accepts no new sessions
  uint64_t capacity_bytes;                  // of a store
  char machine[BL_CTL_PROBE_MACHINE_BYTES]; // of a store: as bl_machine_text writes it
  double ahead_seconds;                     // of its machine's wall clock before this one's
} bl_ctl_probe_t;

// Fills in the answers. A failure of a service is in its probe; this function fails only for causes in this process.
// With TLS a service must have the role as which it is asked.
BL_MUST_USE bl_status_t bl_ctl_probe_all(bl_ctl_probe_t *probes, size_t count, uint64_t timeout_ms, bl_error_t *err);

#endif
