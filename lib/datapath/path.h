// SPDX-License-Identifier: Apache-2.0
// The paths that tensors and blocks take between processes (boundary.h, frame.h).
#ifndef BALLAST_DATAPATH_PATH_H
#define BALLAST_DATAPATH_PATH_H

#include <stdbool.h>

// X(identifier, name). The numbers are sent in greetings.
#define BL_PATH_TABLE(X)                                                                                               \
  X(BL_PATH_AUTO, "auto")                                                                                              \
  X(BL_PATH_SHM, "shm")                                                                                                \
  X(BL_PATH_TCP, "tcp")                                                                                                \
  X(BL_PATH_CUDA_IPC, "cuda-ipc")                                                                                      \
  X(BL_PATH_NCCL, "nccl")

typedef enum bl_path {
#define X(identifier, name) identifier,
  BL_PATH_TABLE(X)
#undef X
      BL_PATHS
} bl_path_t;

const char *bl_path_name(bl_path_t path);              // "cuda-ipc"; never NULL
bool bl_path_parse(const char *name, bl_path_t *path); // false for any other name
// Returns whether the path's control connection is a unix socket. That of other paths is TCP.
static inline bool bl_path_is_unix(bl_path_t path) {
  return path == BL_PATH_SHM || path == BL_PATH_CUDA_IPC;
}

#endif
