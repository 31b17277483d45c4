// SPDX-License-Identifier: Apache-2.0
// Finds the other programs of Ballast.
#ifndef BALLAST_BALLASTCTL_PROGRAM_H
#define BALLAST_BALLASTCTL_PROGRAM_H

#include <limits.h>

// Returns the path of the program `name` next to this one, written to `path`; else `name` itself, to be found in PATH.
const char *bl_ctl_program_path(const char *name, char path[PATH_MAX]);

#endif
