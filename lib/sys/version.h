// SPDX-License-Identifier: Apache-2.0
// What this build is. Thread: any.
#ifndef BALLAST_SYS_VERSION_H
#define BALLAST_SYS_VERSION_H

#include <stdio.h>

const char *bl_version(void);  // "0.1.0"
const char *bl_revision(void); // of the source, "" when unknown
// "stage-service 0.1.0 (1a2b3c4)\n"
void bl_version_print(const char *program, FILE *stream);

#endif
