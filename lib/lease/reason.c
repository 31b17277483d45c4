// SPDX-License-Identifier: Apache-2.0
#include "lease/reason.h"

static const struct {
  const char *name, *text;
  bl_status_t status;
} reasons[] = {
#define X(identifier, name, status, text) {name, text, status},
    BL_LEASE_REASON_TABLE(X)
#undef X
};

static const char unknown[] = "unknown";

const char *bl_lease_reason_name(bl_lease_reason_t reason) {
  return (unsigned)reason < BL_LEASE_REASONS ? reasons[reason].name : unknown;
}

const char *bl_lease_reason_text(bl_lease_reason_t reason) {
  return (unsigned)reason < BL_LEASE_REASONS ? reasons[reason].text : unknown;
}

bl_status_t bl_lease_reason_status(bl_lease_reason_t reason) {
  return (unsigned)reason < BL_LEASE_REASONS ? reasons[reason].status : BL_INTERNAL;
}
