// SPDX-License-Identifier: Apache-2.0
// Version of this build and of its libraries. Thread: any.
//
//   stage-service 0.1.0 (1a2b3c4)
//     libuv 1.44.2
//     grpc 29.0.0
#ifndef BALLAST_SYS_VERSION_H
#define BALLAST_SYS_VERSION_H

#include "base/library.h"

#include <stddef.h>
#include <stdio.h>

const char *bl_version(void);  // "0.1.0"
const char *bl_revision(void); // of the source; "": unknown
const char *bl_build(void);    // "0.1.0 (1a2b3c4)", without the revision if it is unknown
// Prints "stage-service 0.1.0 (1a2b3c4)\n".
void bl_version_print(const char *program, FILE *stream);
// Prints a line for each library that a program links.
void bl_version_print_libraries(const bl_library_t *const *libraries, size_t count, FILE *stream);
// Prints one such line: "  libuv 1.44.2\n".
void bl_version_print_library(const char *name, const char *version, FILE *stream);

#endif
