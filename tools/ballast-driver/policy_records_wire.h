// SPDX-License-Identifier: Apache-2.0
// Policy records and history as messages of stage.proto. Thread: any.
#ifndef BALLAST_DRIVER_POLICY_RECORDS_WIRE_H
#define BALLAST_DRIVER_POLICY_RECORDS_WIRE_H

#include "policy/history.h"

#include "ballast/v1/stage.pb-c.h"

// One message with everything that it points to. It borrows nothing of the record.
typedef struct bl_policy_wire {
  Ballast__V1__PolicyRecord message;
  uint32_t devices[BL_POLICY_DEVICES];
} bl_policy_wire_t;
void bl_policy_to_wire(const bl_policy_record_t *record, bl_policy_wire_t *wire);

typedef struct bl_policy_history_wire {
  bl_policy_wire_t wires[BL_POLICY_HISTORY_MAX];
  Ballast__V1__PolicyRecord *pointers[BL_POLICY_HISTORY_MAX]; // oldest first
  size_t count;
} bl_policy_history_wire_t;
void bl_policy_history_to_wire(const bl_policy_history_t *history, bl_policy_history_wire_t *wire);

// Reads what a stage kept. Returns false if it is not what a driver writes; then *history is empty.
bool bl_policy_history_from_wire(Ballast__V1__PolicyRecord *const *records, size_t count, bl_policy_history_t *history);

#endif
