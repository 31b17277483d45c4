// SPDX-License-Identifier: Apache-2.0
// Devices as numbers from their data sheets, and the predicted times of a chunk's operations on them. These are MODELS,
// not measurements: the vendor's peaks times the shares of them that large kernels reach. With the device at hand,
// record a profile (profile.h), which replaces all of this.
//
// Time of an operation = products with weights at `matmul` of the peak + attention products at `attention` of it
//   + bytes that element-wise kernels move, over `stream` of the memory's bandwidth
//   + tensor-parallel collectives over `link` of the link's, + `launch` seconds a layer.
// Collectives of a layer are two ring all-reduces in F and in I (with sequence parallelism two all-gathers and two
// reduce-scatters, which move as much), and with sequence parallelism four all-gathers in W, as in our executor.
// A slice of a sequence takes its share of that, and in addition: the launches and the traffic of weight gradients of a
// whole operation, and the keys and values of the slices before it, which are gathered and whose gradients are added
// to. That products of few rows reach less of the peak is not counted.
//
// tests/plan compares it with published times of a layer (Korthikanti et al., arXiv 2205.05198, table 4).
//
// Pure. Thread: constants and values, any thread.
#ifndef BALLAST_PLAN_HARDWARE_H
#define BALLAST_PLAN_HARDWARE_H

#include "model/chunk_span.h"
#include "model/layout.h"
#include "schedule/ir/costs.h"

#include <stdint.h>

// Bytes per second that AdamW on one thread moves. `ballast-bench ops` measures 29 to 34 GB/s on one core of a virtual
// AMD EPYC that had its memory to itself.
#define BL_HARDWARE_THREAD_RATE 30e9
// Share of a GPU's memory that remains after the driver, communicators and fragmentation.
#define BL_HARDWARE_USABLE 0.92

typedef struct bl_hardware {
  const char *name;          // "a100-80g"
  const char *source;        // origin of the numbers
  double peak_flops;         // dense, per second, in the training dtype
  double other_flops;        // the same in the other dtype: bl_hardware_in
  double memory_bytes;       // of the device
  double memory_rate;        // bytes per second
  double intra_rate;         // bytes per second and direction between devices of a node
  double inter_rate;         // between nodes, per device
  double host_rate;          // bytes per second between a device and its host's memory, as large copies reach it
  uint32_t devices_per_link; // devices that share the link to the host; 0: all of a machine
  double latency;            // seconds of a message
  uint32_t value_bytes;      // of an activation scalar: 2 in mixed precision
  uint32_t state_bytes;      // weight and gradient of a parameter
  uint32_t moment_bytes;     // optimizer state of a parameter: master copy and moments
  double matmul, attention, stream, link; // shares of the peaks
  double launch;                          // seconds a layer and operation
  double host_memory_rate;                // share of the host's memory bandwidth for one device, bytes per second
  const char *host_source;                // origin of that and of host_rate; NULL: the device is the host
} bl_hardware_t;

// Returns whether the device has memory of its own; otherwise it is the host.
static inline bool bl_hardware_is_gpu(const bl_hardware_t *hardware) {
  return hardware->host_source != NULL;
}
const bl_hardware_t *bl_hardware_all(size_t *count);
const bl_hardware_t *bl_hardware_find(const char *name); // NULL if there is none
// Returns the device for training in `dtype`: its peak for that dtype, and the matching bytes. The table holds devices
// in mixed precision, and the host in fp32.
bl_hardware_t bl_hardware_in(const bl_hardware_t *hardware, bl_dtype_t dtype);

// How a stage is spread over devices; pipeline stages are not part of it.
typedef struct bl_parallel {
  uint32_t tensor; // t: devices over which every layer is divided
  bool sequence;   // what tensor parallelism does not divide is divided along the sequence
  uint32_t data;   // d: replicas of the pipeline
  bool shard;      // the replicas shard the optimizer's state
} bl_parallel_t;

#define BL_PARALLEL_NONE ((bl_parallel_t){.tensor = 1, .data = 1})

// Returns the seconds of F, I, W and R of a chunk for one micro-batch; with options.slices, for one slice of it on
// average. The head runs inside I (EXECUTION.md 6). Under recompute attention I recomputes the scores. R is F without
// its last product.
bl_chunk_costs_t bl_hardware_costs(const bl_hardware_t *hardware, const bl_model_t *model, bl_chunk_span_t span,
                                   bl_layout_options_t options, bl_parallel_t parallel);
// Returns the seconds in which a boundary tensor of one block crosses a link of `rate` bytes per second.
double bl_hardware_boundary(const bl_hardware_t *hardware, const bl_model_t *model, bl_layout_options_t options,
                            bl_parallel_t parallel, double rate);
// Returns the seconds to update a device's share of `parameters`, in which moments, weights and gradients pass through
// its memory.
double bl_hardware_update(const bl_hardware_t *hardware, double parameters, bl_parallel_t parallel);
// Returns the utilisation of the peak in a step, in [0, 1]: model FLOPs as published figures count them
// (bl_flops_attention_published, no recomputation) over time and devices.
double bl_hardware_mfu(const bl_hardware_t *hardware, const bl_model_t *model, double sequences, double devices,
                       double seconds_of_step);

#endif
