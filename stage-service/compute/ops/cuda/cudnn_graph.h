// SPDX-License-Identifier: Apache-2.0
// Graphs of operations for cuDNN, built through its C interface (cudnn_graph.h), and the plans made from them.
//
// Building records the first failure, so callers need not check every line:
//
//   bl__cudnn_graph_t graph;
//   bl__cudnn_graph_init(&graph);
//   bl__cudnn_graph_tensor_t *x = bl__cudnn_graph_input_output(&graph, X_UID, CUDNN_DATA_BFLOAT16, dims, strides);
//   bl__cudnn_graph_tensor_t *y = bl__cudnn_graph_pointwise(&graph, CUDNN_POINTWISE_EXP, x, NULL);
//   ...
//   status = bl__cudnn_graph_plan(&graph, &target, &plan, err);  // reports the first failure so far
//   bl__cudnn_graph_cleanup(&graph);
//
// All tensors have four dimensions: batch, heads, rows, columns. Thread: the compute thread. Private to ops/cuda.
#ifndef BALLAST_COMPUTE_OPS_CUDA_CUDNN_GRAPH_H
#define BALLAST_COMPUTE_OPS_CUDA_CUDNN_GRAPH_H

#include "base/error.h"

#include <cudnn_graph.h>
#include <stdbool.h>
#include <stdint.h>

#define BL__CUDNN_GRAPH_NODES 160 // maximum number of descriptors of a graph

typedef struct bl__cudnn_graph_tensor {
  cudnnBackendDescriptor_t descriptor;
  cudnnDataType_t type;
  int64_t dims[4];
} bl__cudnn_graph_tensor_t;

typedef struct bl__cudnn_graph {
  cudnnBackendDescriptor_t owned[BL__CUDNN_GRAPH_NODES];
  int owned_count;
  cudnnBackendDescriptor_t operations[BL__CUDNN_GRAPH_NODES];
  int operations_count;
  bl__cudnn_graph_tensor_t tensors[BL__CUDNN_GRAPH_NODES];
  int tensors_count;
  int64_t next_uid; // of virtual tensors
  bl_error_t error; // the first failure
} bl__cudnn_graph_t;

// The GPU for which plans are made. With a handle, it is the GPU of the handle, which also runs them. Without one, it
// is the GPU that `device` (a finished CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR) describes, and the plans cannot run.
typedef struct bl__cudnn_graph_target {
  cudnnHandle_t handle;
  cudnnBackendDescriptor_t device;
} bl__cudnn_graph_target_t;

typedef struct bl__cudnn_graph_plan {
  cudnnBackendDescriptor_t plan;
  int64_t workspace_bytes;
  int64_t engine; // global index, for reports
} bl__cudnn_graph_plan_t;

void bl__cudnn_graph_init(bl__cudnn_graph_t *graph);
void bl__cudnn_graph_cleanup(bl__cudnn_graph_t *graph);

// Creates an input or output: a tensor in device memory that is bound to `uid`, 1 to 999, at each run.
bl__cudnn_graph_tensor_t *bl__cudnn_graph_input_output(bl__cudnn_graph_t *graph, int64_t uid, cudnnDataType_t type,
                                                       const int64_t dims[4], const int64_t strides[4]);
// Creates a tensor of one number in the CPU's memory, bound to `uid` likewise.
bl__cudnn_graph_tensor_t *bl__cudnn_graph_scalar(bl__cudnn_graph_t *graph, int64_t uid, cudnnDataType_t type);
// Creates a virtual tensor (cuDNN's term): it is between two operations and never in memory.
bl__cudnn_graph_tensor_t *bl__cudnn_graph_virtual(bl__cudnn_graph_t *graph, cudnnDataType_t type, const int64_t dims[4],
                                                  const int64_t strides[4]);
// The same, with dense strides.
bl__cudnn_graph_tensor_t *bl__cudnn_graph_virtual_dense(bl__cudnn_graph_t *graph, cudnnDataType_t type,
                                                        const int64_t dims[4]);

// y = a b. All these functions accept NULL tensors, as they appear after a failure.
void bl__cudnn_graph_matmul(bl__cudnn_graph_t *graph, const bl__cudnn_graph_tensor_t *a,
                            const bl__cudnn_graph_tensor_t *b, bl__cudnn_graph_tensor_t *y);
// y = mode(x, b, t), computed in `precision`; b and t are NULL if the mode does not use them.
void bl__cudnn_graph_pointwise_to(bl__cudnn_graph_t *graph, cudnnPointwiseMode_t mode, cudnnDataType_t precision,
                                  const bl__cudnn_graph_tensor_t *x, const bl__cudnn_graph_tensor_t *b,
                                  const bl__cudnn_graph_tensor_t *t, bl__cudnn_graph_tensor_t *y);
// The same in floats; returns y, a new virtual tensor with x's dimensions.
bl__cudnn_graph_tensor_t *bl__cudnn_graph_pointwise(bl__cudnn_graph_t *graph, cudnnPointwiseMode_t mode,
                                                    const bl__cudnn_graph_tensor_t *x,
                                                    const bl__cudnn_graph_tensor_t *b);
// Returns the indices (int32) of x along a dimension.
bl__cudnn_graph_tensor_t *bl__cudnn_graph_indices(bl__cudnn_graph_t *graph, const bl__cudnn_graph_tensor_t *x,
                                                  int64_t axis);
// y = x, reduced to y's dimensions.
void bl__cudnn_graph_reduce(bl__cudnn_graph_t *graph, cudnnReduceTensorOp_t mode, const bl__cudnn_graph_tensor_t *x,
                            bl__cudnn_graph_tensor_t *y);
// y = x, viewed with y's dimensions and strides.
void bl__cudnn_graph_reshape(bl__cudnn_graph_t *graph, const bl__cudnn_graph_tensor_t *x, bl__cudnn_graph_tensor_t *y);

// Makes a plan from the first deterministic choice of cuDNN's heuristics that works. BL_UNIMPLEMENTED: there is none.
bl_status_t bl__cudnn_graph_plan(bl__cudnn_graph_t *graph, const bl__cudnn_graph_target_t *target,
                                 bl__cudnn_graph_plan_t *plan, bl_error_t *err) BL_MUST_USE;
void bl__cudnn_graph_plan_cleanup(bl__cudnn_graph_plan_t *plan);
// Queues the plan on the stream of `handle`. Returns NULL, or a description of the failure.
const char *bl__cudnn_graph_run(const bl__cudnn_graph_plan_t *plan, cudnnHandle_t handle, int count,
                                const int64_t *uids, void *const *pointers, void *workspace);

#endif
