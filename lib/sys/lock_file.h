// SPDX-License-Identifier: Apache-2.0
// Exclusive locks on open files. The kernel frees a lock when the open file is closed, so a process that dies leaves no
// stale lock. A lock belongs to the open file, not to the process, and so also excludes other open files of the same
// process.
//
//   int fd;
//   bl_status_t status = bl_lock_file_open("/runs/a/.run.lock", 0666, &fd);   // BL_PRECONDITION: another holder has it
//   ...
//   bl_lock_file_close("/runs/a/.run.lock", fd);
//
// Thread: any.
#ifndef BALLAST_SYS_LOCK_FILE_H
#define BALLAST_SYS_LOCK_FILE_H

#include "base/status.h"

// Locks a file that is open for writing, without waiting. BL_PRECONDITION: another open file holds the lock.
// BL_UNIMPLEMENTED: the file system has no locks. Otherwise the status of errno. On failure errno is that of the call.
BL_MUST_USE bl_status_t bl_lock_try(int fd);

// Opens the file, creates it with `mode` if absent, and locks it. Returns what bl_lock_try returns, or the status of
// errno. Sets *fd only on BL_OK.
BL_MUST_USE bl_status_t bl_lock_file_open(const char *path, unsigned mode, int *fd);
// Removes the file and frees the lock.
void bl_lock_file_close(const char *path, int fd);

#endif
