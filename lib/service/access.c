// SPDX-License-Identifier: Apache-2.0
#include "service/access.h"

#include <string.h>

#define OWNERS (BL_DRIVERS | BL_OPERATORS)

#define STAGE(method)  "ballast.v1.Stage", method
#define STORE(method)  "ballast.v1.Store", method
#define DRIVER(method) "ballast.v1.Driver", method

static const bl_access_row_t rows[] = {
    // A run belongs to its driver. Operators may look and end processes.
    {STAGE("Takeover"), BL_DRIVERS},
    {STAGE("Configure"), BL_DRIVERS},
    {STAGE("Connect"), BL_DRIVERS},
    {STAGE("PreparePlan"), BL_DRIVERS},
    {STAGE("Run"), BL_DRIVERS},
    {STAGE("Commit"), BL_DRIVERS},
    {STAGE("Abort"), BL_DRIVERS},
    {STAGE("Snapshot"), BL_DRIVERS},
    {STAGE("WriteSnapshot"), BL_DRIVERS},
    {STAGE("Release"), BL_DRIVERS},
    {STAGE("Status"), OWNERS},
    {STAGE("Trace"), OWNERS},
    {STAGE("Probe"), OWNERS},
    {STAGE("Stop"), OWNERS},

    // Leases belong to stages, each to the stage with the session's key (and job, activation-store/). Only operators
    // and the driver may take leases away.
    {STORE("OpenSession"), BL_STAGES},
    {STORE("KeepAlive"), BL_STAGES},
    {STORE("CloseSession"), BL_STAGES},
    {STORE("Reserve"), BL_STAGES},
    {STORE("Unreserve"), BL_STAGES},
    {STORE("Evict"), BL_STAGES},
    {STORE("Load"), BL_STAGES},
    {STORE("ReleaseLease"), BL_STAGES},
    {STORE("ListLeases"), OWNERS},
    {STORE("GetLease"), OWNERS},
    {STORE("WatchLeases"), OWNERS},
    {STORE("Status"), OWNERS},
    {STORE("Revoke"), OWNERS},
    {STORE("Drain"), OWNERS},
    {STORE("SetQuota"), OWNERS},
    {STORE("Announce"), BL_DRIVERS},

    {DRIVER("Status"), OWNERS},
    {DRIVER("Watch"), OWNERS},
    {DRIVER("Acknowledge"), OWNERS},
    {DRIVER("Pause"), OWNERS},
    {DRIVER("Checkpoint"), OWNERS},
    {DRIVER("Generate"), OWNERS},
    {DRIVER("Trace"), OWNERS},
    // Stages and stores relay the calls of people (lib/service/policy_proxy_wire.h).
    {DRIVER("GetPolicy"), OWNERS | BL_STAGES | BL_STORES},
    {DRIVER("SetPolicy"), OWNERS | BL_STAGES | BL_STORES},
    {DRIVER("PolicyHistory"), OWNERS | BL_STAGES | BL_STORES},
    {DRIVER("Stop"), OWNERS},

    {"grpc.health.v1.Health", "Check", BL_EVERY_ROLE},
    {"grpc.health.v1.Health", "Watch", BL_EVERY_ROLE},
    {"grpc.reflection.v1.ServerReflection", "ServerReflectionInfo", BL_EVERY_ROLE},
    {"grpc.reflection.v1alpha.ServerReflection", "ServerReflectionInfo", BL_EVERY_ROLE},
};

const bl_access_row_t *bl_access_table(size_t *count) {
  *count = sizeof rows / sizeof rows[0];
  return rows;
}

bl_status_t bl_access_check(const char *service, const char *method, const bl_identity_t *caller, bl_error_t *err) {
  unsigned roles = 0;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    if (strcmp(rows[i].service, service) == 0 && strcmp(rows[i].method, method) == 0) {
      roles = rows[i].roles;
    }
  }
  if ((roles & BL_ROLE_BIT(caller->role)) != 0) {
    return BL_OK;
  }
  char have[BL_IDENTITY_TEXT_BYTES], want[BL_IDENTITY_TEXT_BYTES];
  return bl_error_set(err, BL_DENIED, "%s.%s is not for your certificate's role (%s); it wants %s", service, method,
                      bl_identity_format(caller, have), roles == 0 ? "nobody" : bl_roles_format(roles, want));
}
