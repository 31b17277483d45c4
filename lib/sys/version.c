// SPDX-License-Identifier: Apache-2.0
#include "sys/version.h"

const char *bl_version(void) {
  return BALLAST_VERSION;
}

const char *bl_revision(void) {
  return BALLAST_REVISION;
}

const char *bl_build(void) {
  return BALLAST_REVISION[0] == '\0' ? BALLAST_VERSION : BALLAST_VERSION " (" BALLAST_REVISION ")";
}

void bl_version_print(const char *program, FILE *stream) {
  fprintf(stream, "%s %s\n", program, bl_build());
}

void bl_version_print_library(const char *name, const char *version, FILE *stream) {
  fprintf(stream, "  %s %s\n", name, version);
}

void bl_version_print_libraries(const bl_library_t *const *libraries, size_t count, FILE *stream) {
  for (size_t i = 0; i < count; i++) {
    bl_version_print_library(libraries[i]->name, libraries[i]->version(), stream);
  }
}
