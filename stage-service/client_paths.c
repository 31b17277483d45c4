// SPDX-License-Identifier: Apache-2.0
#include "client_paths.h"

#include <stddef.h>

static const struct {
  bl_path_t path;
  bl_client_path_t client;
  bl_job_data_path_t job;
} paths[] = {
    {BL_PATH_AUTO, BL_CLIENT_PATH_AUTO, BL_JOB_DATA_PATH_AUTO},
    {BL_PATH_SHM, BL_CLIENT_PATH_SHM, BL_JOB_DATA_PATH_SHM},
    {BL_PATH_TCP, BL_CLIENT_PATH_TCP, BL_JOB_DATA_PATH_TCP},
    {BL_PATH_CUDA_IPC, BL_CLIENT_PATH_CUDA_IPC, BL_JOB_DATA_PATH_CUDA_IPC},
    {BL_PATH_NCCL, BL_CLIENT_PATH_NCCL, BL_JOB_DATA_PATH_NCCL},
};

bl_client_path_t bl_client_path_of(bl_path_t path) {
  for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
    if (paths[i].path == path) {
      return paths[i].client;
    }
  }
  return BL_CLIENT_PATH_AUTO;
}

bl_client_path_t bl_client_path_of_job(const bl_job_t *job) {
  const bl_job_data_path_t path = bl_job_block_path(job);
  for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
    if (paths[i].job == path) {
      return paths[i].client;
    }
  }
  return BL_CLIENT_PATH_AUTO;
}

bl_path_t bl_path_of_client(bl_client_path_t path) {
  for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
    if (paths[i].client == path) {
      return paths[i].path;
    }
  }
  return BL_PATH_AUTO;
}
