// SPDX-License-Identifier: Apache-2.0
#include "sys/version.h"

const char *bl_version(void) {
  return BALLAST_VERSION;
}

const char *bl_revision(void) {
  return BALLAST_REVISION;
}

void bl_version_print(const char *program, FILE *stream) {
  if (bl_revision()[0] == '\0') {
    fprintf(stream, "%s %s\n", program, bl_version());
  } else {
    fprintf(stream, "%s %s (%s)\n", program, bl_version(), bl_revision());
  }
}
