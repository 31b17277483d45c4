// SPDX-License-Identifier: Apache-2.0
// Checks of NCCL versions. Two ranks of a communicator must run one version of NCCL. Different versions are refused by
// name before communicators are created, because the library itself would hang or misread.
// Pure. Thread: any.
#ifndef BALLAST_DATAPATH_NCCL_VERSION_H
#define BALLAST_DATAPATH_NCCL_VERSION_H

#include "base/error.h"

#include <stdint.h>

#define BL_NCCL_VERSION_TEXT 24
// "2.28.9" for 22809; "2.7.8" for 2708, as versions before 2.9 counted; "none" for 0.
const char *bl_nccl_version_format(int version, char text[BL_NCCL_VERSION_TEXT]);
// BL_PRECONDITION if they differ; `err` names both sides with their versions.
BL_MUST_USE bl_status_t bl_nccl_version_check(const char *own_name, int own, const char *peer_name, int peer,
                                              bl_error_t *err);

#endif
