// SPDX-License-Identifier: Apache-2.0
// Files that a command names to be read: the same exit code and words, whichever verb reads them. (Files to be written:
// output_path.h.)
#ifndef BALLAST_BALLASTCTL_INPUT_FILE_H
#define BALLAST_BALLASTCTL_INPUT_FILE_H

#include "base/error.h"

#include <stddef.h>

// bl_file_read of a file that a flag names, `flag` with its dashes, or a word without one (NULL). A file that is missing,
// closed to us, no file or too large is a wrong word: BL_INVALID names the flag, the path and the cause. BL_IO: reading
// failed.
BL_MUST_USE bl_status_t bl_ctl_input_file_read(const char *flag, const char *path, size_t limit_bytes, char **bytes,
                                               size_t *size_bytes, bl_error_t *err);

#endif
