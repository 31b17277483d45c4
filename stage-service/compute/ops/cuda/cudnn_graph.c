// SPDX-License-Identifier: Apache-2.0
#include "compute/ops/cuda/cudnn_graph.h"

#include <stdio.h>
#include <string.h>

#define VIRTUAL_UIDS 1000 // uids of virtual tensors start here
#define CONFIGS_MAX  64

// Sets an error with the library's own text, which says more than its status. For an unsupported graph the library may
// also return a "bad parameter" status: a graph of another shape would be accepted. So both give BL_UNIMPLEMENTED.
static bl_status_t failed(bl_error_t *err, const char *call, cudnnStatus_t status) {
  char more[256] = "";
  cudnnGetLastErrorString(more, sizeof more);
  const bool lacks =
      status / 1000 == CUDNN_STATUS_NOT_SUPPORTED / 1000 || status / 1000 == CUDNN_STATUS_BAD_PARAM / 1000;
  return bl_error_set(err, lacks ? BL_UNIMPLEMENTED : BL_INTERNAL, "%s: %s%s%s", call, cudnnGetErrorString(status),
                      more[0] ? ": " : "", more);
}

static bool fine(bl__cudnn_graph_t *graph, const char *call, cudnnStatus_t status) {
  if (status != CUDNN_STATUS_SUCCESS && graph->error.status == BL_OK) {
    failed(&graph->error, call, status);
  }
  return graph->error.status == BL_OK;
}

void bl__cudnn_graph_init(bl__cudnn_graph_t *graph) {
  memset(graph, 0, sizeof *graph);
  graph->next_uid = VIRTUAL_UIDS;
}

void bl__cudnn_graph_cleanup(bl__cudnn_graph_t *graph) {
  while (graph->owned_count > 0) {
    cudnnBackendDestroyDescriptor(graph->owned[--graph->owned_count]);
  }
}

static cudnnBackendDescriptor_t create(bl__cudnn_graph_t *graph, cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t made = NULL;
  if (graph->error.status != BL_OK) {
    return NULL;
  }
  if (graph->owned_count == BL__CUDNN_GRAPH_NODES) {
    bl_error_set(&graph->error, BL_INTERNAL, "more than %d descriptors in a graph", BL__CUDNN_GRAPH_NODES);
    return NULL;
  }
  if (fine(graph, "cudnnBackendCreateDescriptor", cudnnBackendCreateDescriptor(type, &made))) {
    graph->owned[graph->owned_count++] = made;
  }
  return made;
}

static void set(bl__cudnn_graph_t *graph, cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t count, const void *values) {
  if (graph->error.status == BL_OK) {
    fine(graph, "cudnnBackendSetAttribute", cudnnBackendSetAttribute(of, name, type, count, values));
  }
}

static void set_tensor(bl__cudnn_graph_t *graph, cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t name,
                       const bl__cudnn_graph_tensor_t *tensor) {
  if (tensor != NULL) {
    set(graph, of, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &tensor->descriptor);
  }
}

static void finish(bl__cudnn_graph_t *graph, cudnnBackendDescriptor_t of, const char *what) {
  if (graph->error.status == BL_OK) {
    fine(graph, what, cudnnBackendFinalize(of));
  }
}

static void add_operation(bl__cudnn_graph_t *graph, cudnnBackendDescriptor_t operation, const char *what) {
  finish(graph, operation, what);
  if (graph->error.status == BL_OK) {
    graph->operations[graph->operations_count++] = operation;
  }
}

// ---- tensors -----------------------------------------------------------------------------------------------------

static bl__cudnn_graph_tensor_t *tensor(bl__cudnn_graph_t *graph, int64_t uid, cudnnDataType_t type,
                                        const int64_t dims[4], const int64_t strides[4], bool is_virtual,
                                        bool is_scalar) {
  const int64_t alignment = is_virtual || is_scalar ? 4 : 16;
  cudnnBackendDescriptor_t made = create(graph, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  set(graph, made, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
  set(graph, made, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims);
  set(graph, made, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides);
  set(graph, made, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
  set(graph, made, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
  set(graph, made, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
  set(graph, made, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &is_scalar);
  finish(graph, made, "a tensor of cuDNN");
  if (graph->error.status != BL_OK) {
    return NULL;
  }
  bl__cudnn_graph_tensor_t *place = &graph->tensors[graph->tensors_count++];
  *place = (bl__cudnn_graph_tensor_t){.descriptor = made, .type = type};
  memcpy(place->dims, dims, sizeof place->dims);
  return place;
}

bl__cudnn_graph_tensor_t *bl__cudnn_graph_input_output(bl__cudnn_graph_t *graph, int64_t uid, cudnnDataType_t type,
                                                       const int64_t dims[4], const int64_t strides[4]) {
  return tensor(graph, uid, type, dims, strides, false, false);
}

bl__cudnn_graph_tensor_t *bl__cudnn_graph_scalar(bl__cudnn_graph_t *graph, int64_t uid, cudnnDataType_t type) {
  static const int64_t ones[4] = {1, 1, 1, 1};
  return tensor(graph, uid, type, ones, ones, false, true);
}

bl__cudnn_graph_tensor_t *bl__cudnn_graph_virtual(bl__cudnn_graph_t *graph, cudnnDataType_t type, const int64_t dims[4],
                                                  const int64_t strides[4]) {
  return tensor(graph, graph->next_uid++, type, dims, strides, true, false);
}

bl__cudnn_graph_tensor_t *bl__cudnn_graph_virtual_dense(bl__cudnn_graph_t *graph, cudnnDataType_t type,
                                                        const int64_t dims[4]) {
  const int64_t strides[4] = {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1};
  return bl__cudnn_graph_virtual(graph, type, dims, strides);
}

// ---- operations --------------------------------------------------------------------------------------------------

void bl__cudnn_graph_matmul(bl__cudnn_graph_t *graph, const bl__cudnn_graph_tensor_t *a,
                            const bl__cudnn_graph_tensor_t *b, bl__cudnn_graph_tensor_t *y) {
  const cudnnDataType_t precision = CUDNN_DATA_FLOAT;
  cudnnBackendDescriptor_t how = create(graph, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  set(graph, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &precision);
  finish(graph, how, "a product of cuDNN");
  cudnnBackendDescriptor_t operation = create(graph, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  set_tensor(graph, operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
  set_tensor(graph, operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
  set_tensor(graph, operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, y);
  set(graph, operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &how);
  add_operation(graph, operation, "a product of cuDNN");
}

static cudnnBackendDescriptor_t pointwise(bl__cudnn_graph_t *graph, cudnnPointwiseMode_t mode,
                                          cudnnDataType_t precision, const int64_t *axis) {
  cudnnBackendDescriptor_t how = create(graph, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  set(graph, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
  set(graph, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &precision);
  if (axis != NULL) {
    set(graph, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, axis);
  }
  finish(graph, how, "an element-wise operation of cuDNN");
  return how;
}

static void apply(bl__cudnn_graph_t *graph, cudnnBackendDescriptor_t how, const bl__cudnn_graph_tensor_t *x,
                  const bl__cudnn_graph_tensor_t *b, const bl__cudnn_graph_tensor_t *t, bl__cudnn_graph_tensor_t *y) {
  cudnnBackendDescriptor_t operation = create(graph, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  set(graph, operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &how);
  set_tensor(graph, operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
  set_tensor(graph, operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
  set_tensor(graph, operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
  set_tensor(graph, operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  add_operation(graph, operation, "an element-wise operation of cuDNN");
}

void bl__cudnn_graph_pointwise_to(bl__cudnn_graph_t *graph, cudnnPointwiseMode_t mode, cudnnDataType_t precision,
                                  const bl__cudnn_graph_tensor_t *x, const bl__cudnn_graph_tensor_t *b,
                                  const bl__cudnn_graph_tensor_t *t, bl__cudnn_graph_tensor_t *y) {
  apply(graph, pointwise(graph, mode, precision, NULL), x, b, t, y);
}

bl__cudnn_graph_tensor_t *bl__cudnn_graph_pointwise(bl__cudnn_graph_t *graph, cudnnPointwiseMode_t mode,
                                                    const bl__cudnn_graph_tensor_t *x,
                                                    const bl__cudnn_graph_tensor_t *b) {
  if (x == NULL) {
    return NULL;
  }
  bl__cudnn_graph_tensor_t *y = bl__cudnn_graph_virtual_dense(graph, CUDNN_DATA_FLOAT, x->dims);
  bl__cudnn_graph_pointwise_to(graph, mode, CUDNN_DATA_FLOAT, x, b, NULL, y);
  return y;
}

bl__cudnn_graph_tensor_t *bl__cudnn_graph_indices(bl__cudnn_graph_t *graph, const bl__cudnn_graph_tensor_t *x,
                                                  int64_t axis) {
  if (x == NULL) {
    return NULL;
  }
  bl__cudnn_graph_tensor_t *y = bl__cudnn_graph_virtual_dense(graph, CUDNN_DATA_INT32, x->dims);
  apply(graph, pointwise(graph, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, &axis), x, NULL, NULL, y);
  return y;
}

void bl__cudnn_graph_reduce(bl__cudnn_graph_t *graph, cudnnReduceTensorOp_t mode, const bl__cudnn_graph_tensor_t *x,
                            bl__cudnn_graph_tensor_t *y) {
  const cudnnDataType_t precision = CUDNN_DATA_FLOAT;
  cudnnBackendDescriptor_t how = create(graph, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  set(graph, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode);
  set(graph, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &precision);
  finish(graph, how, "a reduction of cuDNN");
  cudnnBackendDescriptor_t operation = create(graph, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  set_tensor(graph, operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
  set_tensor(graph, operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
  set(graph, operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &how);
  add_operation(graph, operation, "a reduction of cuDNN");
}

void bl__cudnn_graph_reshape(bl__cudnn_graph_t *graph, const bl__cudnn_graph_tensor_t *x, bl__cudnn_graph_tensor_t *y) {
  cudnnBackendDescriptor_t operation = create(graph, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  set_tensor(graph, operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
  set_tensor(graph, operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
  add_operation(graph, operation, "a reshape of cuDNN");
}

// ---- plans -------------------------------------------------------------------------------------------------------

// True if the engine of a configuration is not marked as nondeterministic. *index: the engine's number.
static bool is_deterministic(bl__cudnn_graph_t *graph, cudnnBackendDescriptor_t config, int64_t *index) {
  cudnnBackendDescriptor_t engine = NULL;
  cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
  int64_t count = 0, found = 0;
  bool is = false;
  (void)graph;
  *index = -1;
  if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine) != CUDNN_STATUS_SUCCESS) {
    return false;
  }
  if (cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &found,
                               &engine) == CUDNN_STATUS_SUCCESS &&
      cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                               CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes) == CUDNN_STATUS_SUCCESS) {
    is = true;
    for (int64_t i = 0; i < count; i++) {
      is = is && notes[i] != CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    }
    cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &found, index);
  }
  cudnnBackendDestroyDescriptor(engine);
  return is;
}

static bool make_plan(bl__cudnn_graph_t *graph, cudnnBackendDescriptor_t config, const bl__cudnn_graph_target_t *target,
                      bl__cudnn_graph_plan_t *plan, bl_error_t *why) {
  cudnnBackendDescriptor_t made = NULL;
  bl__cudnn_graph_plan_t result = {0};
  int64_t found = 0;
  if (!is_deterministic(graph, config, &result.engine)) {
    bl_error_set(why, BL_UNIMPLEMENTED, "engine %lld is not deterministic", (long long)result.engine);
    return false;
  }
  cudnnStatus_t status = cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &made);
  if (status == CUDNN_STATUS_SUCCESS) {
    status = cudnnBackendSetAttribute(made, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                      &config);
  }
  if (status == CUDNN_STATUS_SUCCESS) {
    status = target->handle != NULL ? cudnnBackendSetAttribute(made, CUDNN_ATTR_EXECUTION_PLAN_HANDLE,
                                                               CUDNN_TYPE_HANDLE, 1, &target->handle)
                                    : cudnnBackendSetAttribute(made, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP,
                                                               CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &target->device);
  }
  if (status == CUDNN_STATUS_SUCCESS) {
    status = cudnnBackendFinalize(made);
  }
  if (status == CUDNN_STATUS_SUCCESS) {
    status = cudnnBackendGetAttribute(made, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &found,
                                      &result.workspace_bytes);
  }
  if (status != CUDNN_STATUS_SUCCESS) {
    failed(why, "a plan of cuDNN", status);
    if (made != NULL) {
      cudnnBackendDestroyDescriptor(made);
    }
    return false;
  }
  result.plan = made;
  *plan = result;
  return true;
}

// Tries the configurations that one heuristic proposes, in its order.
static bool try_mode(bl__cudnn_graph_t *graph, cudnnBackendDescriptor_t operations,
                     const bl__cudnn_graph_target_t *target, cudnnBackendHeurMode_t mode, bl__cudnn_graph_plan_t *plan,
                     bl_error_t *why) {
  cudnnBackendDescriptor_t heuristic = NULL, configs[CONFIGS_MAX];
  int64_t found = 0, created = 0;
  bool made = false;
  cudnnStatus_t status = cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &heuristic);
  if (status == CUDNN_STATUS_SUCCESS) {
    status = cudnnBackendSetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                      1, &operations);
  }
  if (status == CUDNN_STATUS_SUCCESS) {
    status = cudnnBackendSetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
  }
  if (status == CUDNN_STATUS_SUCCESS && target->handle == NULL) { // otherwise the graph's handle identifies the GPU
    status = cudnnBackendSetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                      &target->device);
  }
  if (status == CUDNN_STATUS_SUCCESS) {
    status = cudnnBackendFinalize(heuristic);
  }
  while (status == CUDNN_STATUS_SUCCESS && created < CONFIGS_MAX) {
    status = cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &configs[created]);
    created += status == CUDNN_STATUS_SUCCESS;
  }
  if (status == CUDNN_STATUS_SUCCESS) {
    status = cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, created,
                                      &found, configs);
  }
  if (status != CUDNN_STATUS_SUCCESS) {
    failed(why, "the heuristics of cuDNN", status);
    found = 0;
  }
  for (int64_t i = 0; !made && i < found && i < created; i++) {
    made = make_plan(graph, configs[i], target, plan, why);
  }
  for (int64_t i = 0; i < created; i++) {
    cudnnBackendDestroyDescriptor(configs[i]);
  }
  if (heuristic != NULL) {
    cudnnBackendDestroyDescriptor(heuristic);
  }
  return made;
}

bl_status_t bl__cudnn_graph_plan(bl__cudnn_graph_t *graph, const bl__cudnn_graph_target_t *target,
                                 bl__cudnn_graph_plan_t *plan, bl_error_t *err) {
  cudnnBackendDescriptor_t operations = create(graph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  set(graph, operations, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, graph->operations_count,
      graph->operations);
  if (target->handle != NULL) {
    set(graph, operations, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &target->handle);
  }
  finish(graph, operations, "a graph of cuDNN");
  if (graph->error.status != BL_OK) {
    return bl_error_set(err, graph->error.status, "%s", graph->error.text);
  }
  bl_error_t why = {0};
  if (try_mode(graph, operations, target, CUDNN_HEUR_MODE_A, plan, &why) ||
      try_mode(graph, operations, target, CUDNN_HEUR_MODE_FALLBACK, plan, &why)) {
    return BL_OK;
  }
  return bl_error_set(err, BL_UNIMPLEMENTED, "no engine: %s", why.text[0] ? why.text : "none was proposed");
}

void bl__cudnn_graph_plan_cleanup(bl__cudnn_graph_plan_t *plan) {
  if (plan->plan != NULL) {
    cudnnBackendDestroyDescriptor(plan->plan);
    plan->plan = NULL;
  }
}

const char *bl__cudnn_graph_run(const bl__cudnn_graph_plan_t *plan, cudnnHandle_t handle, int count,
                                const int64_t *uids, void *const *pointers, void *workspace) {
  cudnnBackendDescriptor_t pack = NULL;
  cudnnStatus_t status = cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
  if (status == CUDNN_STATUS_SUCCESS) {
    status = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, uids);
  }
  if (status == CUDNN_STATUS_SUCCESS) {
    status =
        cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers);
  }
  if (status == CUDNN_STATUS_SUCCESS) {
    status = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  }
  if (status == CUDNN_STATUS_SUCCESS) {
    status = cudnnBackendFinalize(pack);
  }
  if (status == CUDNN_STATUS_SUCCESS) {
    status = cudnnBackendExecute(handle, plan->plan, pack);
  }
  if (pack != NULL) {
    cudnnBackendDestroyDescriptor(pack);
  }
  return status == CUDNN_STATUS_SUCCESS ? NULL : cudnnGetErrorString(status);
}
