// SPDX-License-Identifier: Apache-2.0
// Read-only maps of files.
// Thread: any; each map belongs to its caller.
#ifndef BALLAST_SYS_FILE_MAP_H
#define BALLAST_SYS_FILE_MAP_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

typedef struct bl_file_map {
  const uint8_t *bytes; // NULL for an empty file
  size_t size_bytes;
} bl_file_map_t;

// Maps a regular file. The map stays valid when the file is renamed. If another process truncates the file, or its disk
// fails, reading the map raises SIGBUS, as with every map. Errors as bl_file_open, and BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_file_map_open(bl_file_map_t *map, const char *path, bl_error_t *err);
void bl_file_map_close(bl_file_map_t *map);

// From now on the process logs which mapped file could not be read before SIGBUS ends it. Call once, on the main thread.
void bl_file_map_log_faults(void);

#endif
