// SPDX-License-Identifier: Apache-2.0
// Private to lib/formats: which file names found in a file, and so from an untrusted origin, may be opened in its
// folder.
#ifndef BALLAST_FORMATS_FILE_NAME_H
#define BALLAST_FORMATS_FILE_NAME_H

#include <stdbool.h>
#include <string.h>

// True if the name stays in the same folder.
static inline bool bl__file_name_is_plain(const char *name) {
  return name[0] != '\0' && strchr(name, '/') == NULL && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

#endif
