// SPDX-License-Identifier: Apache-2.0
// Verifies that cuDNN takes our graphs of flash attention: it finds deterministic engines for them, forward and backward,
// on an A100, an H100 and an H200 that are described and not here, and compiles their kernels. Skipped, with the reason,
// where this cuDNN does not plan without a GPU.
#include "compute/ops/cuda/flash.h"
#include "seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

// What only a run asks for.
bl__stream_t bl__gpu_stream(const bl__gpu_t *gpu) {
  (void)gpu;
  return NULL;
}

const char *bl__gpu_error_text(int error) {
  (void)error;
  return "";
}

int bl__launch_scatter(bl__stream_t stream, bool bf16, bool floats, const bl__heads_t *shape, unsigned count,
                       const bl__scattered_t *sets) {
  (void)stream;
  (void)bf16;
  (void)floats;
  (void)shape;
  (void)count;
  (void)sets;
  return 0;
}

typedef struct gpu {
  const char *name;
  int version, multiprocessors, shared_bytes, l2_bytes;
  unsigned long long memory_bytes;
} gpu_t;

static const gpu_t gpus[] = {
    {"NVIDIA A100-SXM4-80GB", 800, 108, 166912, 41943040, 85094039552ull},
    {"NVIDIA H100 80GB HBM3", 900, 132, 232448, 52428800, 85028896768ull},
    {"NVIDIA H200", 900, 132, 232448, 62914560, 150754820096ull},
};

// cuDNN's own text of a device.
static void describe(const gpu_t *gpu, char *text, size_t bytes) {
  snprintf(text, bytes,
           "{\"deviceVer\":%d,\"driverVer\":13000,\"cudaDeviceId\":0,\"totalGlobalMem\":%llu,"
           "\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,"
           "\"multiProcessorCount\":%d,\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,"
           "\"maxSharedMemoryPerBlockOptin\":%d,\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,"
           "\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"pciDeviceId\":0,"
           "\"isTccDriver\":0,\"supportCoopLaunch\":1,\"smClockRateKHz\":1980000,\"memClockRateKHz\":2619000,"
           "\"l2CacheSize\":%d,\"deviceName\":\"%s\"}",
           gpu->version, gpu->memory_bytes, gpu->multiprocessors, gpu->shared_bytes, gpu->l2_bytes, gpu->name);
}

// The scale is a number of the run. Each plan compiles kernels for one to three seconds: every kind of shape is planned for
// one GPU, and where BALLAST_SOAK is set for all that have an engine.
enum { A100 = 1, H100 = 2 };
typedef struct planned {
  bl__flash_shape_t shape;
  unsigned each_time; // GPUs
  unsigned engines;   // ... that have one
} planned_t;

static const planned_t planned[] = {
    {{1, 2048, 16, 16, 128, 0, 0.088f, 0, false, 0}, H100, A100 | H100}, // a quarter of LLaMA 65B's heads
    // Key heads that are shared, positions that fill no tile.
    {{2, 130, 4, 2, 64, 0, 0.125f, 0, false, 0}, A100, A100 | H100},
    {{1, 65, 2, 2, 16, 0, 0.25f, 0, false, 0}, H100, H100},
    {{1, 200, 3, 1, 80, 0, 0.112f, 0, false, 0}, H100, H100},
    // A window, a softcap, or both, and heads that are larger than of other models.
    {{1, 8192, 32, 8, 128, 4096, 0.088f, 0, false, 0}, H100, A100 | H100},   // Mistral 7B
    {{1, 4096, 32, 32, 96, 2047, 0.102f, 0, false, 0}, H100, A100 | H100},   // Phi-3 mini
    {{1, 130, 4, 2, 64, 7, 0.125f, 0, false, 0}, A100, A100 | H100},         // a window inside of a tile
    {{1, 8192, 32, 16, 128, 4096, 0.083f, 50, false, 0}, A100, A100 | H100}, // Gemma 2 27B, a layer with a window
    {{1, 8192, 32, 16, 128, 0, 0.083f, 50, false, 0}, H100, A100 | H100},    // and one without
    // Gemma 2 9B and Gemma 3 4B: heads that an A100 has no engine for.
    {{1, 8192, 16, 8, 256, 4096, 0.0625f, 50, false, 0}, H100, H100},
    {{1, 8192, 8, 4, 256, 1024, 0.0625f, 0, false, 0}, 0, H100},
    // Slices of sequences: queries after keys.
    {{1, 2048, 32, 16, 128, 4096, 0.083f, 50, true, 6144}, A100 | H100, A100 | H100}, // Gemma 2 27B, the last of four
    {{2, 32, 4, 2, 64, 0, 0.125f, 0, true, 0}, H100, H100},                           // a first slice
    {{1, 65, 3, 1, 80, 0, 0.112f, 0, true, 130}, H100, H100},                         // as of whole sequences
};

// Those of one GPU's engines, or the first `count` of the table (0: all).
static void plan_all(const gpu_t *gpu, unsigned engines, size_t count) {
  const bool all = test_soak();
  char text[1024];
  bl_error_t err = {0};
  bl__flash_engine_t *engine = NULL;
  describe(gpu, text, sizeof text);
  if (bl__flash_engine_create_described(text, &engine, &err) != BL_OK) {
    printf("skipped: %s\n", err.text);
    skip();
  }
  for (size_t i = 0; i < (count > 0 ? count : sizeof planned / sizeof planned[0]); i++) {
    const bl__flash_shape_t *shape = &planned[i].shape;
    if (((all || count > 0 ? planned[i].engines : planned[i].each_time) & engines) == 0) {
      continue;
    }
    bl__flash_t *flash = NULL;
    int64_t forward, backward;
    if (bl__flash_create(engine, shape, &flash, &err) != BL_OK) {
      // Without a driver or a compiler to load it cannot tell.
      const bool cannot_tell = strstr(err.text, "PREREQUISITE_MISSING") != NULL;
      printf("%s: %s\n", gpu->name, err.text);
      bl__flash_engine_destroy(engine);
      if (cannot_tell) {
        skip();
      }
      fail();
    }
    bl__flash_engines(flash, &forward, &backward);
    printf("%s: batch %llu, %llu positions after %llu, %llu over %llu heads of %llu, window %llu, softcap %g: "
           "engines %lld and %lld, workspace %zu bytes\n",
           gpu->name, (unsigned long long)shape->batch, (unsigned long long)shape->seq,
           (unsigned long long)shape->first, (unsigned long long)shape->heads, (unsigned long long)shape->kv_heads,
           (unsigned long long)shape->head_dim, (unsigned long long)shape->window, (double)shape->softcap,
           (long long)forward, (long long)backward, bl__flash_workspace_bytes(flash));
    assert_true(forward >= 0 && backward >= 0);
    // Gradients of the heads are in it at least; of a slice's keys the caller has room.
    const uint64_t heads = shape->heads + (shape->slice ? 0 : 2 * shape->kv_heads);
    assert_true(bl__flash_workspace_bytes(flash) > shape->batch * shape->seq * shape->head_dim * 2 * heads);
    bl__flash_destroy(flash);
  }
  bl__flash_engine_destroy(engine);
}

static void an_a100_has_engines(void **state) {
  (void)state;
  plan_all(&gpus[0], A100, 0);
}

static void an_h100_has_engines(void **state) {
  (void)state;
  plan_all(&gpus[1], H100, 0);
}

static void an_h200_has_engines(void **state) {
  (void)state;
  plan_all(&gpus[2], H100, 1);
}

static void heads_that_no_engine_takes_are_refused(void **state) {
  (void)state;
  char text[1024];
  bl_error_t err = {0};
  bl__flash_engine_t *engine = NULL;
  bl__flash_t *flash = NULL;
  describe(&gpus[1], text, sizeof text);
  if (bl__flash_engine_create_described(text, &engine, &err) != BL_OK) {
    printf("skipped: %s\n", err.text);
    skip();
  }
  const bl__flash_shape_t odd = {1, 64, 2, 2, 1024, 0, 0.03f, 0, false, 0};
  assert_int_equal(bl__flash_create(engine, &odd, &flash, &err), BL_UNIMPLEMENTED); // attention is composed then
  assert_null(flash);
  bl__flash_engine_destroy(engine);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_a100_has_engines),
      cmocka_unit_test(an_h100_has_engines),
      cmocka_unit_test(an_h200_has_engines),
      cmocka_unit_test(heads_that_no_engine_takes_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
