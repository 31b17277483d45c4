// SPDX-License-Identifier: Apache-2.0
// The folder of a local run: its sockets, its job, and endpoints.json, by which other commands find it. It is in
// $XDG_RUNTIME_DIR/ballast, else in ballast-UID in the temporary folder. It is private to the user and exists as long
// as the run. What a killed run left is removed when the next one starts.
//
// Liveness is a lock on the folder, never a process number, because these are reused.
// Thread: belongs to its caller.
#ifndef BALLAST_BALLASTCTL_RUN_FOLDER_H
#define BALLAST_BALLASTCTL_RUN_FOLDER_H

#include "base/error.h"

// Maximum path length of a folder. The whole path of a unix socket must fit 107 bytes, and names in the folder take up
// to 24.
#define BL_CTL_RUN_FOLDER_BYTES 84
#define BL_CTL_RUN_PATH_BYTES   108

typedef struct bl_ctl_run_folder {
  char base[BL_CTL_RUN_FOLDER_BYTES];
  char path[BL_CTL_RUN_FOLDER_BYTES];
  int lock_fd; // of the folder itself
} bl_ctl_run_folder_t;

// Creates and locks a new folder. BL_DENIED: another user owns the base folder. BL_INVALID: no path is short enough.
// BL_IO.
BL_MUST_USE bl_status_t bl_ctl_run_folder_create(bl_ctl_run_folder_t *folder, bl_error_t *err);
// Removes the folder with all its files.
void bl_ctl_run_folder_remove(bl_ctl_run_folder_t *folder);

// Sets `path` to folder/name.
void bl_ctl_run_folder_path(const bl_ctl_run_folder_t *folder, const char *name, char path[BL_CTL_RUN_PATH_BYTES]);
// Writes a small file into the folder atomically.
BL_MUST_USE bl_status_t bl_ctl_run_folder_write(const bl_ctl_run_folder_t *folder, const char *name, const char *text,
                                                bl_error_t *err);

// Finds file `name` of the newest live run that has it. BL_NOT_FOUND: no run is live.
BL_MUST_USE bl_status_t bl_ctl_run_folder_find(const char *name, char path[BL_CTL_RUN_PATH_BYTES], bl_error_t *err);

#endif
