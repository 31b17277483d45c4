// SPDX-License-Identifier: Apache-2.0
// Files: whole reads, read-only maps, and replacing a file so that a crash leaves the old or the new one, never half.
// Thread: any; each object belongs to its caller.
#ifndef BALLAST_SYS_FILE_H
#define BALLAST_SYS_FILE_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

// Reads a regular file whole. *bytes is malloc'd by this function, freed by the caller, and has a '\0' after its
// last byte (not counted). BL_NOT_FOUND, BL_DENIED, BL_EXHAUSTED (larger than `limit_bytes`), BL_IO; `err` names the path.
BL_MUST_USE bl_status_t bl_file_read(const char *path, size_t limit_bytes, char **bytes, size_t *size_bytes,
                                     bl_error_t *err);

typedef struct bl_file_map {
  const uint8_t *bytes; // NULL for an empty file
  size_t size_bytes;
} bl_file_map_t;

// Maps a regular file read-only. The map stays valid when the file is renamed; a file that is truncated by another
// process while mapped is the caller's risk (SIGBUS), as with every map.
BL_MUST_USE bl_status_t bl_file_map_open(bl_file_map_t *map, const char *path, bl_error_t *err);
void bl_file_map_close(bl_file_map_t *map);

// Writes `path` through a temporary name in the same folder: write, fsync, rename, fsync of the folder.
BL_MUST_USE bl_status_t bl_file_replace(const char *path, const void *bytes, size_t size_bytes, bl_error_t *err);

// mkdir -p with `mode` for what it makes.
BL_MUST_USE bl_status_t bl_folder_create(const char *path, unsigned mode, bl_error_t *err);

// Joins folder and name with one '/'; BL_INVALID if it does not fit. An absolute name replaces the folder.
BL_MUST_USE bl_status_t bl_path_join(char *path, size_t path_bytes, const char *folder, const char *name);

#endif
