// SPDX-License-Identifier: Apache-2.0
#include "operation_memory.h"

#include "compute/model/operations.h"
#include "compute/ops/select.h"
#include "config/job.h"
#include "device/open.h"
#include "job/architecture.h"

#include <inttypes.h>
#include <stdlib.h>

#define JOB_BYTES_MAX ((size_t)1 << 20)

typedef struct machine {
  bl_job_t job;
  bl_model_t model;
  bl_device_t *device;
  const bl_ops_t *ops;
} machine_t;

static bl_status_t read_job(FILE *in, bl_job_t *job, bl_error_t *err) {
  char *text = malloc(JOB_BYTES_MAX);
  if (text == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for a job file");
  }
  bl_job_source_t source = {.file = {.name = "job", .bytes = text, .size_bytes = fread(text, 1, JOB_BYTES_MAX, in)}};
  bl_status_t status = bl_job_parse(job, &source, err);
  free(text);
  return status;
}

static bl_status_t open_machine(machine_t *machine, int32_t gpu, bl_error_t *err) {
  const bool cuda = machine->job.pipeline.device == BL_JOB_DEVICE_CUDA;
  const bl_device_kind_t kind = cuda ? BL_DEVICE_CUDA : BL_DEVICE_HOST;
  uint32_t ordinal = 0;
  bl_status_t status = bl_device_choose(kind, gpu, 0, &ordinal, err);
  if (status == BL_OK) {
    status = bl_device_open(kind, ordinal, &machine->device, err);
  }
  return status == BL_OK ? bl_ops_select(kind, &machine->ops, err) : status;
}

static bl_status_t print_shape(const machine_t *machine, uint32_t micro_batch, bl_attention_t attention, FILE *out,
                               bl_error_t *err) {
  const bl_grid_t grid = bl_job_grid(&machine->job);
  const bl_layout_options_t layout = {.micro_batch = micro_batch,
                                      .slices = (uint32_t)machine->job.pipeline.slices.value,
                                      .layer_parts = {.count = grid.tensor_parts, .ranks = grid.tensor},
                                      .attention = attention,
                                      .dtype = machine->job.train.dtype == BL_JOB_DTYPE_BF16 ? BL_DTYPE_BF16
                                                                                             : BL_DTYPE_FP32};
  bl_operation_memory_t m;
  bl_status_t status = bl_operations_measure(machine->ops, machine->device, (uint32_t)machine->job.pipeline.threads,
                                             &machine->model, layout, &m, err);
  if (status == BL_OK) {
    fprintf(out, "%" PRIu32 " %s %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n",
            micro_batch, bl_attention_name(attention), m.packed_layer_bytes, m.packed_head_bytes,
            m.layer_workspace_bytes, m.head_workspace_bytes, m.held_bytes, m.logits.piece_elements,
            m.logits.row_multiple);
  }
  return status == BL_INVALID ? BL_OK : status;
}

static bl_status_t print_all(const machine_t *machine, const char *micro_batches, FILE *out, bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (const char *next = micro_batches; status == BL_OK && *next != '\0';) {
    char *end;
    const unsigned long micro_batch = strtoul(next, &end, 10);
    if (end == next || micro_batch == 0 || micro_batch > UINT32_MAX || (*end != ',' && *end != '\0')) {
      return bl_error_set(err, BL_INVALID, "--operation-memory %s: micro-batches, separated by commas, are asked for",
                          micro_batches);
    }
    status = print_shape(machine, (uint32_t)micro_batch, BL_ATTENTION_NAIVE, out, err);
    if (status == BL_OK) {
      status = print_shape(machine, (uint32_t)micro_batch, BL_ATTENTION_FLASH, out, err);
    }
    next = *end == ',' ? end + 1 : end;
  }
  return status;
}

bl_status_t bl_operation_memory_print(FILE *in, const char *micro_batches, int32_t gpu, FILE *out, bl_error_t *err) {
  machine_t machine = {0};
  bl_status_t status = read_job(in, &machine.job, err);
  if (status != BL_OK) {
    return status;
  }
  status = bl_architecture_read(&machine.job, &machine.model, err);
  if (status == BL_OK) {
    status = open_machine(&machine, gpu, err);
  }
  if (status == BL_OK) {
    status = print_all(&machine, micro_batches, out, err);
  }
  bl_device_close(machine.device);
  bl_job_cleanup(&machine.job);
  return status;
}
