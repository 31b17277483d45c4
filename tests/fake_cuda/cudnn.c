// SPDX-License-Identifier: Apache-2.0
// cuDNN as the modules call it: graphs become plans of one engine, and a run is a launch, for which all memory of every tensor
// that is bound must be there. Whether cuDNN itself takes a graph is asked of the real one (tests/ops/plans). Its version is as
// FAKE_CUDNN_VERSION says.
#include "fake_cuda/core.h"

#include <cudnn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORKSPACE (UINT64_C(1) << 20) // of every plan
#define TENSORS   20                  // of a graph that have memory
#define OPERANDS  6

typedef struct tensor {
  int64_t uid;
  uint64_t bytes;
  bool by_value, written;
} tensor_t;

typedef struct descriptor {
  cudnnBackendDescriptorType_t type;
  bool finished;
  // of a tensor
  tensor_t tensor;
  bool is_virtual;
  cudnnDataType_t element;
  int64_t dims[4], strides[4];
  // of an operation
  struct descriptor *operands[OPERANDS];
  bool written[OPERANDS];
  unsigned operand_count;
  // of a graph, and of what is made of it
  tensor_t tensors[TENSORS];
  unsigned tensor_count;
  // of what is bound
  int64_t uids[TENSORS];
  void *pointers[TENSORS], *workspace;
  int64_t bound;
} descriptor_t;

FAKE_EXPORT size_t cudnnGetVersion(void) {
  const char *text = getenv("FAKE_CUDNN_VERSION");
  return text != NULL ? strtoull(text, NULL, 10) : CUDNN_VERSION;
}

FAKE_EXPORT const char *cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDNN_STATUS_SUCCESS ? "success" : "refused by a cuDNN that is none";
}

FAKE_EXPORT void cudnnGetLastErrorString(char *text, size_t bytes) {
  (void)snprintf(text, bytes, "%s", "");
}

static void count(int handles) {
  fake_lock();
  fake_figures.live_handles += (uint64_t)handles;
  fake_unlock();
}

typedef struct library {
  cudaStream_t stream;
} library_t;

FAKE_EXPORT cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
  *handle = calloc(1, sizeof(library_t));
  count(1);
  return *handle != NULL ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_ALLOC_FAILED;
}

FAKE_EXPORT cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  free(handle);
  count(-1);
  return CUDNN_STATUS_SUCCESS;
}

FAKE_EXPORT cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  ((library_t *)(void *)handle)->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

FAKE_EXPORT cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                                       cudnnBackendDescriptor_t *made) {
  descriptor_t *descriptor = calloc(1, sizeof *descriptor);
  if (descriptor == NULL) {
    return CUDNN_STATUS_ALLOC_FAILED;
  }
  descriptor->type = type;
  *made = descriptor;
  count(1);
  return CUDNN_STATUS_SUCCESS;
}

FAKE_EXPORT cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  free(descriptor);
  count(-1);
  return CUDNN_STATUS_SUCCESS;
}

// Which attributes of operations are tensors, and whether they are made.
static bool is_operand(cudnnBackendAttributeName_t name, bool *written) {
  switch ((int)name) {
  case CUDNN_ATTR_OPERATION_MATMUL_CDESC:
  case CUDNN_ATTR_OPERATION_POINTWISE_YDESC:
  case CUDNN_ATTR_OPERATION_REDUCTION_YDESC:
  case CUDNN_ATTR_OPERATION_RESHAPE_YDESC:
    *written = true;
    return true;
  case CUDNN_ATTR_OPERATION_MATMUL_ADESC:
  case CUDNN_ATTR_OPERATION_MATMUL_BDESC:
  case CUDNN_ATTR_OPERATION_POINTWISE_XDESC:
  case CUDNN_ATTR_OPERATION_POINTWISE_BDESC:
  case CUDNN_ATTR_OPERATION_POINTWISE_TDESC:
  case CUDNN_ATTR_OPERATION_REDUCTION_XDESC:
  case CUDNN_ATTR_OPERATION_RESHAPE_XDESC:
    *written = false;
    return true;
  default:
    return false;
  }
}

// A tensor of a graph that has memory, once.
static bool note(descriptor_t *graph, const descriptor_t *operand, bool written) {
  if (operand->is_virtual) {
    return true;
  }
  for (unsigned i = 0; i < graph->tensor_count; i++) {
    if (graph->tensors[i].uid == operand->tensor.uid) {
      graph->tensors[i].written |= written;
      return graph->tensors[i].bytes == operand->tensor.bytes;
    }
  }
  if (graph->tensor_count == TENSORS) {
    return false;
  }
  graph->tensors[graph->tensor_count] = operand->tensor;
  graph->tensors[graph->tensor_count++].written = written;
  return true;
}

static cudnnStatus_t take_graph(descriptor_t *to, const descriptor_t *from) {
  memcpy(to->tensors, from->tensors, sizeof to->tensors);
  to->tensor_count = from->tensor_count;
  return from->finished ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

FAKE_EXPORT cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t handle, cudnnBackendAttributeName_t name,
                                                   cudnnBackendAttributeType_t type, int64_t n, const void *values) {
  descriptor_t *d = handle;
  const descriptor_t *const *others = values;
  bool written;
  (void)type;
  if (d->finished) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  if (is_operand(name, &written)) {
    if (d->operand_count == OPERANDS || !others[0]->finished) {
      return CUDNN_STATUS_BAD_PARAM;
    }
    d->written[d->operand_count] = written;
    d->operands[d->operand_count++] = (descriptor_t *)(uintptr_t)others[0];
    return CUDNN_STATUS_SUCCESS;
  }
  switch ((int)name) {
  case CUDNN_ATTR_TENSOR_DATA_TYPE:
    d->element = *(const cudnnDataType_t *)values;
    break;
  case CUDNN_ATTR_TENSOR_DIMENSIONS:
    memcpy(d->dims, values, sizeof d->dims);
    break;
  case CUDNN_ATTR_TENSOR_STRIDES:
    memcpy(d->strides, values, sizeof d->strides);
    break;
  case CUDNN_ATTR_TENSOR_UNIQUE_ID:
    d->tensor.uid = *(const int64_t *)values;
    break;
  case CUDNN_ATTR_TENSOR_IS_VIRTUAL:
    d->is_virtual = *(const bool *)values;
    break;
  case CUDNN_ATTR_TENSOR_IS_BY_VALUE:
    d->tensor.by_value = *(const bool *)values;
    break;
  case CUDNN_ATTR_OPERATIONGRAPH_OPS:
    for (int64_t i = 0; i < n; i++) {
      for (unsigned k = 0; k < others[i]->operand_count; k++) {
        if (!note(d, others[i]->operands[k], others[i]->written[k])) {
          return CUDNN_STATUS_BAD_PARAM;
        }
      }
    }
    break;
  case CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH:
  case CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG:
    return take_graph(d, others[0]);
  case CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS:
    d->bound = n;
    memcpy(d->uids, values, (size_t)(n < TENSORS ? n : TENSORS) * sizeof d->uids[0]);
    break;
  case CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS:
    memcpy(d->pointers, values, (size_t)(n < TENSORS ? n : TENSORS) * sizeof d->pointers[0]);
    break;
  case CUDNN_ATTR_VARIANT_PACK_WORKSPACE:
    d->workspace = *(void *const *)values;
    break;
  default:
    break; // how an operation computes
  }
  return n > TENSORS && d->type == CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR ? CUDNN_STATUS_NOT_SUPPORTED
                                                                         : CUDNN_STATUS_SUCCESS;
}

static uint64_t element_bytes(cudnnDataType_t type) {
  return type == CUDNN_DATA_BFLOAT16 ? 2 : type == CUDNN_DATA_BOOLEAN ? 1 : 4;
}

FAKE_EXPORT cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t handle) {
  descriptor_t *d = handle;
  if (d->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR) {
    uint64_t last = 0;
    for (int i = 0; i < 4; i++) {
      if (d->dims[i] <= 0 || d->strides[i] <= 0) {
        return CUDNN_STATUS_BAD_PARAM;
      }
      last += (uint64_t)(d->dims[i] - 1) * (uint64_t)d->strides[i];
    }
    d->tensor.bytes = (last + 1) * element_bytes(d->element);
  }
  d->finished = true;
  return CUDNN_STATUS_SUCCESS;
}

FAKE_EXPORT cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const handle,
                                                   cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                                   int64_t wanted, int64_t *found, void *values) {
  const descriptor_t *d = handle;
  descriptor_t *const *others = values;
  (void)type;
  (void)wanted;
  *found = 1;
  switch ((int)name) {
  case CUDNN_ATTR_ENGINEHEUR_RESULTS: // one engine
    others[0]->finished = true;
    return take_graph(others[0], d);
  case CUDNN_ATTR_ENGINECFG_ENGINE:
    return CUDNN_STATUS_SUCCESS;
  case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE: // of which there is nothing to say
    *found = 0;
    return CUDNN_STATUS_SUCCESS;
  case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
    *(int64_t *)values = 1;
    return CUDNN_STATUS_SUCCESS;
  case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
    *(int64_t *)values = WORKSPACE;
    return CUDNN_STATUS_SUCCESS;
  default:
    return CUDNN_STATUS_NOT_SUPPORTED;
  }
}

// Where a tensor of the plan is bound; NULL and a broken rule where it is not.
static void *bound_to(const descriptor_t *pack, int64_t uid) {
  for (int64_t i = 0; i < pack->bound; i++) {
    if (pack->uids[i] == uid) {
      return pack->pointers[i];
    }
  }
  (void)fake_broken("a plan of cuDNN: nothing is bound to tensor %lld", (long long)uid);
  return NULL;
}

FAKE_EXPORT cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t planned,
                                              cudnnBackendDescriptor_t bound) {
  const descriptor_t *plan = planned, *pack = bound;
  fake_use_t uses[TENSORS + 1];
  unsigned used = 0;
  fake_lock();
  CUresult result = plan->finished && pack->finished ? CUDA_SUCCESS : fake_broken("a plan of cuDNN: not finished");
  for (unsigned i = 0; i < plan->tensor_count; i++) {
    const tensor_t *tensor = &plan->tensors[i];
    void *pointer = bound_to(pack, tensor->uid);
    if (tensor->by_value || pointer == NULL) {
      result = pointer == NULL ? CUDA_ERROR_INVALID_VALUE : result;
      continue;
    }
    if ((uint64_t)pointer % 16 != 0) {
      result = fake_broken("a plan of cuDNN: tensor %lld is not aligned to 16 bytes", (long long)tensor->uid);
    }
    uses[used++] = (fake_use_t){(uint64_t)pointer, tensor->bytes, tensor->written};
  }
  uses[used++] = (fake_use_t){(uint64_t)pack->workspace, WORKSPACE, true};
  if (result == CUDA_SUCCESS) {
    result = fake_work_launch(((library_t *)(void *)handle)->stream, "plan of cuDNN", uses, used);
  }
  fake_unlock();
  return result == CUDA_SUCCESS ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}
