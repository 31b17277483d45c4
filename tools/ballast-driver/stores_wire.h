// SPDX-License-Identifier: Apache-2.0
// The stores of a run as the driver sees them: which process serves each, checked twice a second. What is reserved
// there concerns only the stages.
//
//   bl_stores_create(rpc, job, &stores, err);
//   bl_stores_tick(stores, now_ms);                    // often
//   bl_stores_get(stores, device).process
//
// Thread: the loop's.
#ifndef BALLAST_DRIVER_STORES_WIRE_H
#define BALLAST_DRIVER_STORES_WIRE_H

#include "config/job.h"
#include "rpc/channel.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct bl_stores bl_stores_t;

typedef struct bl_store_view {
  const char *address;
  int64_t process;  // pid; 0: it has not answered yet
  bool reachable;   // it answered the last call
  uint64_t seen_ms; // start of the last call that it answered; 0: none
  bool draining;
} bl_store_view_t;

// All stores of the job, device stores first. BL_INVALID: not an address. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_stores_create(bl_rpc_t *rpc, const bl_job_t *job, bl_stores_t **stores, bl_error_t *err);
void bl_stores_destroy(bl_stores_t *stores); // NULL is fine
void bl_stores_tick(bl_stores_t *stores, uint64_t now_ms);
void bl_stores_look(bl_stores_t *stores, uint64_t now_ms); // calls all of them as soon as possible
size_t bl_stores_count(const bl_stores_t *stores);         // 0 for NULL
bl_store_view_t bl_stores_get(const bl_stores_t *stores, size_t device);
// Returns whether every store has answered or failed to answer once. Before, processes are not known.
bool bl_stores_known(const bl_stores_t *stores);

#endif
