// SPDX-License-Identifier: Apache-2.0
// Flash attention by cuDNN: causal, optionally with a window or a softcap, grouped-query, bf16, deterministic. The
// graphs are composed of single operations (products, mask, softmax), which cuDNN's fused engines recognise. The
// one-node forms of cuDNN 9.19 do not support a mask.
//
// The forward reads heads from the rows of qkv and writes att and the log-sum-exps. The backward writes dq, dk and dv
// to the workspace, each head dense, and then scatters them into the rows of dqkv. So dqkv may be qkv.
//
// A slice of a sequence has fewer queries than keys: those of `first` positions before it and its own. Keys and values
// then come from a block, and their gradients go to another one, which the caller takes apart. Only dq is scattered.
//
// Thread: the compute thread. Private to ops/cuda.
#ifndef BALLAST_COMPUTE_OPS_CUDA_FLASH_H
#define BALLAST_COMPUTE_OPS_CUDA_FLASH_H

#include "base/error.h"
#include "compute/ops/cuda/runtime.h"

typedef struct bl__flash_engine bl__flash_engine_t;
typedef struct bl__flash bl__flash_t;

typedef struct bl__flash_shape {
  uint64_t batch, seq, heads, kv_heads, head_dim; // qkv [batch seq, (heads + 2 kv_heads) head_dim]; seq: queries
  uint64_t window;                                // keys that a query sees; 0: all up to its own position
  float scale;                                    // factor of query times key
  float softcap;                                  // scores s become softcap tanh(s / softcap); 0: no softcap
  bool slice;                                     // keys and values in blocks [batch first + seq, 2 kv_heads head_dim]
  uint64_t first;                                 // positions before the first query
} bl__flash_shape_t;

// Creates an engine. Large objects are created by the first plan. BL_EXHAUSTED.
bl_status_t bl__flash_engine_create(bl__gpu_t *gpu, bl__flash_engine_t **engine, bl_error_t *err) BL_MUST_USE;
// Creates an engine for an absent GPU from cuDNN's JSON description of it. The engine can build plans but cannot run
// them.
bl_status_t bl__flash_engine_create_described(const char *json, bl__flash_engine_t **engine,
                                              bl_error_t *err) BL_MUST_USE;
void bl__flash_engine_destroy(bl__flash_engine_t *engine); // NULL is fine
void bl__flash_describe(char *text, size_t bytes);         // "cuDNN 9.19.0"

// Plans forward and backward. BL_UNIMPLEMENTED: cuDNN has no deterministic engine for this shape, or is older than the
// headers.
bl_status_t bl__flash_create(bl__flash_engine_t *engine, const bl__flash_shape_t *shape, bl__flash_t **flash,
                             bl_error_t *err) BL_MUST_USE;
void bl__flash_destroy(bl__flash_t *flash); // NULL is fine
size_t bl__flash_workspace_bytes(const bl__flash_t *flash);
// Returns the numbers of the chosen engines, for reports.
void bl__flash_engines(const bl__flash_t *flash, int64_t *forward, int64_t *backward);

// Queue a run: att [batch seq, heads head_dim], lse float [batch, heads, seq]. `keys` is the block of a slice, keys of a
// row before its values; NULL for a whole sequence. Each returns NULL, or a description of the failure.
const char *bl__flash_forward(bl__flash_t *flash, const void *qkv, const void *keys, void *att, float *lse,
                              void *workspace);
// Writes the gradients of a slice's keys and values to `dkeys`, as they lie in `keys`. Both are NULL for a whole
// sequence, whose gradients all go to dqkv.
const char *bl__flash_backward(bl__flash_t *flash, const void *datt, const void *qkv, const void *keys, const void *att,
                               const float *lse, void *dqkv, void *dkeys, void *workspace);

#endif
