// SPDX-License-Identifier: Apache-2.0
// Graphs of operations for cuDNN, built through its C interface (cudnn_graph.h), and what becomes of them: a plan.
//
// Building keeps the first failure, so that a graph can be written down without a check per line:
//
//   bl__graph_t graph;
//   bl__graph_init(&graph);
//   bl__graph_tensor_t *x = bl__graph_given(&graph, X_UID, CUDNN_DATA_BFLOAT16, dims, strides);
//   bl__graph_tensor_t *y = bl__graph_pointwise(&graph, CUDNN_POINTWISE_EXP, x, NULL, NULL, CUDNN_DATA_FLOAT);
//   ...
//   status = bl__graph_plan(&graph, &target, &plan, err);  // every failure so far ends up here
//   bl__graph_cleanup(&graph);
//
// All tensors have four dimensions: batch, heads, rows, columns. Thread: the compute thread. Internal to ops/cuda.
#ifndef BALLAST_COMPUTE_OPS_CUDA_GRAPH_H
#define BALLAST_COMPUTE_OPS_CUDA_GRAPH_H

#include "base/error.h"

#include <cudnn_graph.h>
#include <stdbool.h>
#include <stdint.h>

#define BL__GRAPH_NODES 160 // descriptors of the largest graph that is built here

typedef struct bl__graph_tensor {
  cudnnBackendDescriptor_t descriptor;
  cudnnDataType_t type;
  int64_t dims[4];
} bl__graph_tensor_t;

typedef struct bl__graph {
  cudnnBackendDescriptor_t owned[BL__GRAPH_NODES];
  int owned_count;
  cudnnBackendDescriptor_t operations[BL__GRAPH_NODES];
  int operations_count;
  bl__graph_tensor_t tensors[BL__GRAPH_NODES];
  int tensors_count;
  int64_t next_uid; // of virtual tensors
  bl_error_t error; // the first failure
} bl__graph_t;

// What plans are made for: the GPU of a handle, which runs them; or, without a handle, one that `device` (a finished
// CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR) describes, and then they are made and not run.
typedef struct bl__graph_target {
  cudnnHandle_t handle;
  cudnnBackendDescriptor_t device;
} bl__graph_target_t;

typedef struct bl__graph_plan {
  cudnnBackendDescriptor_t plan;
  int64_t workspace_bytes;
  int64_t engine; // global index, for reports
} bl__graph_plan_t;

void bl__graph_init(bl__graph_t *graph);
void bl__graph_cleanup(bl__graph_t *graph);

// Memory of the device that is bound to `uid` at each run: 1 to 999.
bl__graph_tensor_t *bl__graph_given(bl__graph_t *graph, int64_t uid, cudnnDataType_t type, const int64_t dims[4],
                                    const int64_t strides[4]);
// One number in the CPU's memory, bound to `uid` likewise.
bl__graph_tensor_t *bl__graph_scalar(bl__graph_t *graph, int64_t uid, cudnnDataType_t type);
// Never in memory: between two operations.
bl__graph_tensor_t *bl__graph_between(bl__graph_t *graph, cudnnDataType_t type, const int64_t dims[4],
                                      const int64_t strides[4]);
// The same, dense.
bl__graph_tensor_t *bl__graph_between_dense(bl__graph_t *graph, cudnnDataType_t type, const int64_t dims[4]);

// y = a b. NULL tensors (after a failure) are fine everywhere.
void bl__graph_matmul(bl__graph_t *graph, const bl__graph_tensor_t *a, const bl__graph_tensor_t *b,
                      bl__graph_tensor_t *y);
// y = mode(x, b, t), computed in `precision`; b and t as the mode asks for, else NULL.
void bl__graph_pointwise_to(bl__graph_t *graph, cudnnPointwiseMode_t mode, cudnnDataType_t precision,
                            const bl__graph_tensor_t *x, const bl__graph_tensor_t *b, const bl__graph_tensor_t *t,
                            bl__graph_tensor_t *y);
// The same in floats, into a tensor between of x's dimensions.
bl__graph_tensor_t *bl__graph_pointwise(bl__graph_t *graph, cudnnPointwiseMode_t mode, const bl__graph_tensor_t *x,
                                        const bl__graph_tensor_t *b);
// Indices (int32) of x along a dimension.
bl__graph_tensor_t *bl__graph_indices(bl__graph_t *graph, const bl__graph_tensor_t *x, int64_t axis);
// y = x reduced to y's dimensions.
void bl__graph_reduce(bl__graph_t *graph, cudnnReduceTensorOp_t mode, const bl__graph_tensor_t *x,
                      bl__graph_tensor_t *y);
// y = x seen with y's dimensions and strides.
void bl__graph_reshape(bl__graph_t *graph, const bl__graph_tensor_t *x, bl__graph_tensor_t *y);

// The first choice of cuDNN's heuristics that can be made into a plan and is deterministic. BL_UNIMPLEMENTED: there is
// none.
bl_status_t bl__graph_plan(bl__graph_t *graph, const bl__graph_target_t *target, bl__graph_plan_t *plan,
                           bl_error_t *err) BL_MUST_USE;
void bl__graph_plan_cleanup(bl__graph_plan_t *plan);
// Queues it on the stream of `handle`. Returns NULL, or what went wrong.
const char *bl__graph_run(const bl__graph_plan_t *plan, cudnnHandle_t handle, int count, const int64_t *uids,
                          void *const *pointers, void *workspace);

#endif
