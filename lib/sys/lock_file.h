// SPDX-License-Identifier: Apache-2.0
// Locks that one holder at a time has, through an open file. The kernel frees them when that file is closed, so whoever
// ends, however it ends, holds nothing any more: no lock is ever stale. They are of the open file, not of the process, and so
// work within one process, too.
//
//   int fd;
//   bl_status_t status = bl_lock_file_open("/runs/a/.run.lock", 0666, &fd);   // BL_PRECONDITION: somebody holds it
//   ...
//   bl_lock_file_close("/runs/a/.run.lock", fd);
//
// Thread: any.
#ifndef BALLAST_SYS_LOCK_FILE_H
#define BALLAST_SYS_LOCK_FILE_H

#include "base/status.h"

// Locks a file that is open for writing, without waiting. BL_PRECONDITION: it is locked through another open file;
// BL_UNIMPLEMENTED: its file system has no locks; else what errno says, which is left as it is.
BL_MUST_USE bl_status_t bl_lock_try(int fd);

// Opens the file, made with `mode` when absent, and locks it. What bl_lock_try reports, or what errno says; *fd is set on
// BL_OK alone.
BL_MUST_USE bl_status_t bl_lock_file_open(const char *path, unsigned mode, int *fd);
// Removes the file and frees the lock.
void bl_lock_file_close(const char *path, int fd);

#endif
