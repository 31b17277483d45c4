// SPDX-License-Identifier: Apache-2.0
#include "policy_records_wire.h"

#include <string.h>

void bl_policy_to_wire(const bl_policy_record_t *record, bl_policy_wire_t *wire) {
  Ballast__V1__PolicyRecord *message = &wire->message;
  *message = (Ballast__V1__PolicyRecord)BALLAST__V1__POLICY_RECORD__INIT;
  message->version = record->version;
  message->name = (char *)bl_policy_kind_name(record->policy.kind);
  message->cap = record->policy.cap;
  message->mode = (char *)bl_policy_mode_name(record->policy.mode);
  message->from_step = record->from_step;
  message->request = record->request;
  message->restores = record->restores;
  if (record->policy.kind == BL_POLICY_AUTO) {
    message->chosen = (char *)bl_policy_kind_name(record->policy.chosen);
    message->copy = record->policy.copy;
  }
  message->devices = wire->devices;
  for (uint32_t i = 0; i < BL_POLICY_DEVICES; i++) {
    if ((record->policy.devices >> i & 1) != 0) {
      wire->devices[message->n_devices++] = i;
    }
  }
}

void bl_policy_history_to_wire(const bl_policy_history_t *history, bl_policy_history_wire_t *wire) {
  wire->count = history->count;
  for (size_t i = 0; i < history->count; i++) {
    bl_policy_to_wire(&history->records[i], &wire->wires[i]);
    wire->pointers[i] = &wire->wires[i].message;
  }
}

static bool read_record(const Ballast__V1__PolicyRecord *message, bl_policy_record_t *record) {
  *record = (bl_policy_record_t){.version = message->version,
                                 .from_step = message->from_step,
                                 .request = message->request,
                                 .restores = message->restores};
  bl_status_t status =
      bl_policy_read(message->name, message->cap, message->mode, BL_BALANCE_OVERLAP, &record->policy, NULL);
  if (status == BL_OK && record->policy.kind == BL_POLICY_AUTO && message->chosen[0] != '\0') {
    status = bl_policy_read_chosen(message->chosen, message->copy, &record->policy, NULL);
  }
  for (size_t i = 0; i < message->n_devices && status == BL_OK; i++) {
    status = bl_policy_add_device(&record->policy, message->devices[i], NULL);
  }
  return status == BL_OK && record->version > 0;
}

bool bl_policy_history_from_wire(Ballast__V1__PolicyRecord *const *records, size_t count,
                                 bl_policy_history_t *history) {
  *history = (bl_policy_history_t){0};
  if (count > BL_POLICY_HISTORY_MAX) {
    return false;
  }
  for (size_t i = 0; i < count; i++) {
    if (!read_record(records[i], &history->records[i])) {
      return false;
    }
  }
  history->count = count;
  return true;
}
