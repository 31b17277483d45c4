// SPDX-License-Identifier: Apache-2.0
// Where the other programs of Ballast are.
#ifndef BALLAST_BALLASTCTL_PROGRAM_H
#define BALLAST_BALLASTCTL_PROGRAM_H

#include <limits.h>

// The program of that name beside this one, in `path`, else `name`, which PATH may have.
const char *bl_ctl_program_path(const char *name, char path[PATH_MAX]);

#endif
