// SPDX-License-Identifier: Apache-2.0
// Whether the services of a job answer: every stage and store is asked for its status, again and again until it answers
// or time is up, all at once.
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

#define BL_CTL_PROBE_MACHINE_BYTES 96

typedef struct bl_ctl_probe {
  const char *address; // borrowed
  bool store;          // else a stage
  uint32_t number;     // among the stages, or the stores of devices, then of hosts; for the caller
  const char *job;     // of a store: whose room; borrowed
  // Answers
  bl_error_t err;                           // BL_OK: it answered; else the last failure
  int64_t process;                          // pid
  uint64_t free_bytes;                      // of a store: what it has for the job, with what the job has there already
  uint64_t spare_bytes;                     // of a store: what no job has
  bool draining;                            // a store that takes nothing new
  uint64_t capacity_bytes;                  // of a store
  char machine[BL_CTL_PROBE_MACHINE_BYTES]; // of a store: as bl_machine_text says it
  double ahead_seconds;                     // its machine's wall clock of this one's
} bl_ctl_probe_t;

// Fills in the answers. What a service says is in its probe; a failure of this function is one of this process.
// With TLS a service must have the role that it is asked as.
BL_MUST_USE bl_status_t bl_ctl_probe_all(bl_ctl_probe_t *probes, size_t count, uint64_t timeout_ms, bl_error_t *err);

#endif
