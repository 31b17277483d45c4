// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/formats: which names that stand in a file, and so come from outside, may be opened beside it.
#ifndef BALLAST_FORMATS_FILE_NAME_H
#define BALLAST_FORMATS_FILE_NAME_H

#include <stdbool.h>
#include <string.h>

// A name in the same folder: one that leads nowhere else.
static inline bool bl__file_name_is_plain(const char *name) {
  return name[0] != '\0' && strchr(name, '/') == NULL && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

#endif
