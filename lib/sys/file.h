// SPDX-License-Identifier: Apache-2.0
// Files: reads of whole files, and atomic replacement (a crash leaves the old file or the new one, never a part).
// Thread: any; each object belongs to its caller.
#ifndef BALLAST_SYS_FILE_H
#define BALLAST_SYS_FILE_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

// Opens a regular file for reading; a named pipe is refused at once. BL_NOT_FOUND, BL_DENIED, BL_INVALID, BL_IO. `err`
// names the path.
BL_MUST_USE bl_status_t bl_file_open(const char *path, int *fd, size_t *size_bytes, bl_error_t *err);

// Reads a whole regular file. *bytes is malloc'd, has a '\0' after its last byte (not counted), and is freed by the
// caller. BL_NOT_FOUND, BL_DENIED, BL_EXHAUSTED (larger than `limit_bytes`), BL_IO. `err` names the path.
BL_MUST_USE bl_status_t bl_file_read(const char *path, size_t limit_bytes, char **bytes, size_t *size_bytes,
                                     bl_error_t *err);

// Writes `path` through a temporary file in the same folder: write, fsync, rename, fsync of the folder. Of a symbolic
// link the target is replaced and the link stays. Devices, pipes, and the file that standard output goes to are written
// in place.
BL_MUST_USE bl_status_t bl_file_replace(const char *path, const void *bytes, size_t size_bytes, bl_error_t *err);

// Creates the folder and its parents, as mkdir -p does. New folders get `mode`.
BL_MUST_USE bl_status_t bl_folder_create(const char *path, unsigned mode, bl_error_t *err);
// Checks that it could, as far as permissions and the kind of mount tell, and creates nothing. The messages are the
// same.
BL_MUST_USE bl_status_t bl_folder_check(const char *path, bl_error_t *err);

// Joins folder and name with one '/'. BL_INVALID: the path does not fit. An absolute name replaces the folder.
BL_MUST_USE bl_status_t bl_path_join(char *path, size_t path_bytes, const char *folder, const char *name);

#endif
