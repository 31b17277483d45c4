// SPDX-License-Identifier: Apache-2.0
#include "datapath/nccl/version.h"

#include <stdio.h>

const char *bl_nccl_version_format(int version, char text[BL_NCCL_VERSION_TEXT]) {
  if (version <= 0) {
    snprintf(text, BL_NCCL_VERSION_TEXT, "none");
  } else if (version >= 10000) {
    snprintf(text, BL_NCCL_VERSION_TEXT, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
  } else {
    snprintf(text, BL_NCCL_VERSION_TEXT, "%d.%d.%d", version / 1000, version / 100 % 10, version % 100);
  }
  return text;
}

bl_status_t bl_nccl_version_check(const char *own_name, int own, const char *peer_name, int peer, bl_error_t *err) {
  char ours[BL_NCCL_VERSION_TEXT], theirs[BL_NCCL_VERSION_TEXT];
  if (own == peer && own > 0) {
    return BL_OK;
  }
  return bl_error_set(err, BL_PRECONDITION, "%s has NCCL %s and %s has NCCL %s: install one version on both", own_name,
                      bl_nccl_version_format(own, ours), peer_name, bl_nccl_version_format(peer, theirs));
}
