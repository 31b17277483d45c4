// SPDX-License-Identifier: Apache-2.0
// A schedule's building block from a YAML file (docs/schedules.md): read, checked, ready to be repeated.
#ifndef BALLAST_BALLASTCTL_BLOCK_FILE_H
#define BALLAST_BALLASTCTL_BLOCK_FILE_H

#include "config/options.h"
#include "schedule/generate/block_pattern.h"

typedef struct bl_ctl_block_file {
  char *name;
  int64_t stages, interval;
  bl_int_list_t placement, lengths, forward, input, weight, backward;
  uint32_t *times;          // storage of `block`
  bl_block_pattern_t block; // borrows from the other members
} bl_ctl_block_file_t;

// Reads the file. BL_INVALID names the file and line, or the virtual stage, operation and time that are wrong; BL_IO.
// Call bl_ctl_block_file_cleanup after errors too.
BL_MUST_USE bl_status_t bl_ctl_block_file_read(const char *path, bl_ctl_block_file_t *file, bl_error_t *err);
// The same from the contents of a file; `path` is for messages.
BL_MUST_USE bl_status_t bl_ctl_block_file_parse(const char *path, const char *bytes, size_t size_bytes,
                                                bl_ctl_block_file_t *file, bl_error_t *err);
void bl_ctl_block_file_cleanup(bl_ctl_block_file_t *file);

#endif
