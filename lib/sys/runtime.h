// SPDX-License-Identifier: Apache-2.0
// The folder for files that live as long as a run: sockets and the endpoints of local runs. It is
// `$XDG_RUNTIME_DIR/ballast` if that can be written to, else `ballast-UID` under $TMPDIR or /tmp. It belongs to this
// user and has mode 0700.
// Thread: any.
#ifndef BALLAST_SYS_RUNTIME_H
#define BALLAST_SYS_RUNTIME_H

#include "base/error.h"

#include <stddef.h>

// Writes the path of the first of these that fits. Creates nothing. BL_INVALID: none fits.
BL_MUST_USE bl_status_t bl_runtime_path(char *path, size_t path_bytes, bl_error_t *err);
// Creates the folder if it does not exist and writes its path. BL_DENIED: it belongs to another user or is open to
// others. BL_INVALID: the path does not fit. BL_IO.
BL_MUST_USE bl_status_t bl_runtime_folder(char *path, size_t path_bytes, bl_error_t *err);

#endif
