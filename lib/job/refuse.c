// SPDX-License-Identifier: Apache-2.0
#include "job/refuse.h"

// As bl_job_fail, with BL_UNIMPLEMENTED: the value is known but not supported, and a run never ignores it silently.
static bl_status_t refuse(const bl_job_t *job, bl_error_t *err, const char *key, const char *text) {
  bl_status_t status = bl_job_fail(job, err, key, "%s", text);
  if (err != NULL && status == BL_INVALID) {
    err->status = BL_UNIMPLEMENTED;
  }
  return BL_UNIMPLEMENTED;
}

bl_status_t bl__job_check_supported(const bl_job_t *job, bl_error_t *err) {
  const int64_t pipes = bl_job_pipes(job->pipeline.schedule);
  const struct {
    bool asked;
    const char *key, *text;
  } rules[] = {
      {job->balance.data_path == BL_JOB_DATA_PATH_NCCL && job->pipeline.device != BL_JOB_DEVICE_CUDA,
       "balance.data_path", "nccl moves memory of GPUs: it needs pipeline.device cuda"},
      {job->balance.data_path == BL_JOB_DATA_PATH_CUDA_IPC && job->pipeline.device != BL_JOB_DEVICE_CUDA,
       "balance.data_path", "cuda-ipc moves memory of GPUs: it needs pipeline.device cuda"},
      {job->balance.require == BL_JOB_DATA_PATH_NCCL && job->pipeline.device != BL_JOB_DEVICE_CUDA, "balance.require",
       "nccl moves memory of GPUs: it needs pipeline.device cuda"},
      {job->balance.require == BL_JOB_DATA_PATH_CUDA_IPC && job->pipeline.device != BL_JOB_DEVICE_CUDA,
       "balance.require", "cuda-ipc moves memory of GPUs: it needs pipeline.device cuda"},
      {job->train.optimizer_memory == BL_JOB_OPTIMIZER_ON_HOST && job->pipeline.device != BL_JOB_DEVICE_CUDA,
       "train.optimizer_memory",
       "host saves nothing where the device is the host itself: leave it out, or compute on a GPU (pipeline.device "
       "cuda)"},
      {(pipes > 1 || job->parallel.data_parts.value > 1) && job->train.optimizer_memory == BL_JOB_OPTIMIZER_ON_HOST,
       "train.optimizer_memory",
       "host takes gradients that are one sum: not those of replicas, of parallel.data_parts, or of the two copies of "
       "chimera and dualpipe; take device with them"},
      {pipes > 1 && job->pipeline.slices.value > 1, "pipeline.slices",
       "schedules of two directions, chimera and dualpipe, have whole sequences; leave it out with them"},
  };
  for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
    if (rules[i].asked) {
      return refuse(job, err, rules[i].key, rules[i].text);
    }
  }
  return BL_OK;
}
