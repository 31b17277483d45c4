// SPDX-License-Identifier: Apache-2.0
// Input files that a command line names. All commands that read one report the same exit code and the same message.
// (Output files: output_path.h.)
#ifndef BALLAST_BALLASTCTL_INPUT_FILE_H
#define BALLAST_BALLASTCTL_INPUT_FILE_H

#include "base/error.h"

#include <stddef.h>

// bl_file_read of the file that a flag names. `flag` includes its dashes; NULL: the path is a positional argument.
// BL_INVALID: the file is missing, not readable for us, not a regular file or too large; the message names the flag,
// the path and the cause. BL_IO: reading failed.
BL_MUST_USE bl_status_t bl_ctl_input_file_read(const char *flag, const char *path, size_t limit_bytes, char **bytes,
                                               size_t *size_bytes, bl_error_t *err);

#endif
