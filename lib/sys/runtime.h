// SPDX-License-Identifier: Apache-2.0
// The folder for what lives as long as a run: sockets and the endpoints of local runs. `$XDG_RUNTIME_DIR/ballast` where
// that can be written to, else `ballast-UID` under $TMPDIR or /tmp; mode 0700, of this user.
// Thread: any.
#ifndef BALLAST_SYS_RUNTIME_H
#define BALLAST_SYS_RUNTIME_H

#include "base/error.h"

#include <stddef.h>

// Writes the path of the first of these that fits; nothing is made. BL_INVALID: none does.
BL_MUST_USE bl_status_t bl_runtime_path(char *path, size_t path_bytes, bl_error_t *err);
// Makes the folder if need be and writes its path. BL_DENIED: it exists and belongs to somebody else or is open to
// others; BL_INVALID: the path does not fit; BL_IO.
BL_MUST_USE bl_status_t bl_runtime_folder(char *path, size_t path_bytes, bl_error_t *err);

#endif
