// SPDX-License-Identifier: Apache-2.0
// A trainer in one process and one thread: any number of chunks, any order of operations, no services. Every buffer of
// its own, and everything an operation must not read is NaN before it runs.
#ifndef BALLAST_TESTS_COMPUTE_TRAINER_H
#define BALLAST_TESTS_COMPUTE_TRAINER_H

#include "compute/model/chunk.h"

#define TRAINER_CHUNKS_MAX        4
#define TRAINER_MICRO_BATCHES_MAX 8
#define TRAINER_BLOCKS_MAX        32 // micro-batches, or slices of them

typedef enum {
  TRAINER_F, // forward; with a layout of full recomputation it keeps nothing
  TRAINER_R, // the slot is lost and made again
  TRAINER_I, // backward input
  TRAINER_W, // backward weight
  TRAINER_B, // both, fused, layer by layer
  TRAINER_D, // both, fused: I, then W at once, as the executor does to send the gradient early
} trainer_op_type_t;

typedef struct {
  trainer_op_type_t type;
  uint32_t chunk, block; // slice block % slices of micro-batch block / slices
} trainer_op_t;

typedef struct {
  bl_model_t model;
  uint32_t chunks;
  uint32_t micro_batches;
  bl_layout_options_t layout;
  bl_group_t *
      group; // of trainers, each on a thread of its own, that share the layers (layout.layer_parts); NULL: there is one
  bool prepack;
  uint32_t threads; // 0: 1
  bl_instruction_set_t instruction_set;
  uint64_t seed;
  const bl_ops_t *ops; // NULL: the host's
  bl_device_t *device; // of `ops`; NULL: the host
} trainer_options_t;

typedef struct trainer trainer_t;

trainer_t *trainer_create(const trainer_options_t *options);
void trainer_destroy(trainer_t *trainer);
bl_chunk_t *trainer_chunk(trainer_t *trainer, uint32_t chunk);
// Copies between memory of the CPU and that of the trainer's device, when everything before is over.
void trainer_copy(trainer_t *trainer, void *to, const void *from, uint64_t bytes);

// Zeroes gradients and runs the operations in the given order. tokens and labels: [micro_batches, micro_batch seq].
// losses: [micro_batches]. Ends the program when the back end reports a failure or a loss is not finite.
void trainer_run(trainer_t *trainer, const int32_t *tokens, const int32_t *labels, const trainer_op_t *ops,
                 size_t op_count, double *losses);
// Joins tied gradients, adds up those of norms, and puts the squares of what is here into squares[parameter * parts + part],
// of all parameters of the model.
void trainer_squares(trainer_t *trainer, double *squares);
double trainer_norm_of(const trainer_t *trainer, const double *squares); // in the order of parameters, then of parts
// Both, of a trainer that has all parts.
double trainer_gradient_norm(trainer_t *trainer);
// Copies what is here of a parameter between `whole`, the whole tensor in memory of the CPU, and the chunk.
void trainer_read_parameter(trainer_t *trainer, const bl_chunk_parameter_t *p, float *whole);
void trainer_write_parameter(trainer_t *trainer, const bl_chunk_parameter_t *p, const float *whole);
void trainer_update(trainer_t *trainer, const bl_adamw_settings_t *settings, uint64_t step, double rate, double clip,
                    double norm);

// Buffers of one micro-batch for tests on the host that call a chunk themselves: poisoned, with random tokens.
typedef struct {
  void *in, *out, *slot;
  int32_t *tokens, *labels; // [micro_batch seq]
  uint64_t rows;
} trainer_buffers_t;
trainer_buffers_t trainer_make_buffers(trainer_t *trainer, uint32_t chunk);
void trainer_free_buffers(trainer_buffers_t *buffers);

// Orders. Each writes at most TRAINER_OPS_MAX operations and returns how many.
#define TRAINER_OPS_MAX (4 * TRAINER_CHUNKS_MAX * TRAINER_BLOCKS_MAX)
typedef struct {
  bool one_forward_one_backward; // else gpipe: all forwards first
  bool split;                    // I, and W `delay` backwards later; else B
  uint32_t delay;
  bool recompute;      // an R before each backward
  bool gradient_first; // D instead of B
  uint32_t slices;     // of sequences, as the layout has them; 0: 1. Backwards go from the last one to the first
} trainer_order_t;
size_t trainer_make_order(trainer_order_t order, uint32_t chunks, uint32_t micro_batches, trainer_op_t *ops);

// A uniform token stream of the model's vocabulary, its labels shifted by one.
void trainer_random_tokens(const bl_model_t *model, uint64_t seed, uint64_t count, int32_t *tokens, int32_t *labels);

#endif
