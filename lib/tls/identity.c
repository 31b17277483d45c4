// SPDX-License-Identifier: Apache-2.0
#include "tls/identity.h"

#include <stdio.h>
#include <string.h>

static const char *const names[BL_ROLE_COUNT] = {"none", "stage", "store", "driver", "operator"};

static const char *role_name(bl_role_t role) {
  return (unsigned)role < BL_ROLE_COUNT ? names[role] : "unknown";
}

const char *bl_roles_format(unsigned roles, char text[BL_IDENTITY_TEXT_BYTES]) {
  size_t used = 0;
  text[0] = '\0';
  for (bl_role_t role = BL_ROLE_STAGE; role < BL_ROLE_COUNT; role++) {
    if ((roles & BL_ROLE_BIT(role)) != 0) { // the role names always fit
      used += (size_t)snprintf(text + used, BL_IDENTITY_TEXT_BYTES - used, "%s%s", used > 0 ? " or " : "", names[role]);
    }
  }
  return text;
}

const char *bl_identity_format(const bl_identity_t *identity, char text[BL_IDENTITY_TEXT_BYTES]) {
  snprintf(text, BL_IDENTITY_TEXT_BYTES, "%s%s%s", role_name(identity->role),
           identity->job[0] != '\0' ? " of job " : "", identity->job);
  return text;
}

bl_status_t bl_identity_parse(const char *uri, bl_identity_t *identity, bl_error_t *err) {
  const size_t scheme = strlen(BL_IDENTITY_SCHEME);
  if (strncmp(uri, BL_IDENTITY_SCHEME, scheme) != 0) {
    return bl_error_set(err, BL_NOT_FOUND, "%.100s is no %sROLE", uri, BL_IDENTITY_SCHEME);
  }
  const char *role = uri + scheme;
  size_t length = strcspn(role, "/");
  bl_identity_t read = {.role = BL_ROLE_NONE};
  for (bl_role_t candidate = BL_ROLE_STAGE; candidate < BL_ROLE_COUNT; candidate++) {
    if (strlen(names[candidate]) == length && memcmp(role, names[candidate], length) == 0) {
      read.role = candidate;
    }
  }
  if (read.role == BL_ROLE_NONE) {
    return bl_error_set(err, BL_INVALID, "%.100s names no role; it must be stage, store, driver or operator", uri);
  }
  const char *job = role[length] == '/' ? role + length + 1 : "";
  if (strlen(job) >= sizeof read.job || strpbrk(job, "/?#") != NULL || (role[length] == '/' && job[0] == '\0')) {
    return bl_error_set(err, BL_INVALID, "%.100s: after the role comes nothing or /JOB, the name of one job", uri);
  }
  if (job[0] != '\0' && read.role != BL_ROLE_STAGE) {
    return bl_error_set(err, BL_INVALID, "%.100s: only a stage is bound to one job; leave out /%.60s", uri, job);
  }
  memcpy(read.job, job, strlen(job) + 1);
  *identity = read;
  return BL_OK;
}

bool bl_identity_is_for_job(const bl_identity_t *identity, const char *job) {
  return identity->role == BL_ROLE_NONE || identity->job[0] == '\0' || strcmp(identity->job, job) == 0;
}
