// SPDX-License-Identifier: Apache-2.0
// Code that is loaded, kernels by name, and launches, whose arguments are looked at and then nothing is computed.
//
// Which arguments of a kernel are pointers says its name, which is mangled with the types of its parameters. What a table of
// tensors (compute/ops/cuda/kernels.h) points to is looked at as well, all of it.
#include "fake_cuda/core.h"

#include "compute/ops/cuda/kernels.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMES 8192u

typedef struct kernel {
  char *name; // mangled
  unsigned parameters, pointer_count;
  unsigned char pointers[64]; // which
  bool known;                 // its parameters are
  char table[64];             // the name of the type of its table, "" without
  unsigned table_at;          // which parameter it is
  size_t shared;              // bytes of shared memory that it was made ready for, above the 48 KiB that all have
} kernel_t;

static kernel_t kernels[NAMES];
static unsigned kernel_count;

char *__cxa_demangle(const char *name, char *buffer, size_t *bytes, int *status);

// "void f<bf16>(unsigned long, float const*, x*)": what stands between the last pair of brackets of the outermost level.
static void read_parameters(kernel_t *kernel) {
  int status = 0;
  char *text = __cxa_demangle(kernel->name, NULL, NULL, &status);
  char *open = NULL;
  if (text == NULL || status != 0) {
    free(text);
    return;
  }
  int depth = 0;
  for (char *at = text; *at != '\0'; at++) {
    if (*at == '(' && depth == 0 && strncmp(at, "(anonymous namespace)", 21) != 0) {
      open = at;
    }
    depth += (*at == '(' || *at == '<' || *at == '{') - (*at == ')' || *at == '>' || *at == '}');
  }
  if (open != NULL) {
    kernel->known = true;
    char last = '\0';
    const char *first = open + 1; // of the parameter
    depth = 0;
    for (char *at = open + 1; *at != '\0'; at++) {
      const bool ends = depth == 0 && (*at == ',' || *at == ')');
      if (ends && last != '\0') {
        if (last == '*' && kernel->pointer_count < sizeof kernel->pointers) {
          kernel->pointers[kernel->pointer_count++] = (unsigned char)kernel->parameters;
        }
        if (memmem(first, (size_t)(at - first), "_table", 6) != NULL) {
          (void)snprintf(kernel->table, sizeof kernel->table, "%.*s", (int)(at - first), first + (*first == ' '));
          kernel->table_at = kernel->parameters;
        }
        first = at + 1;
        kernel->parameters++;
      }
      if (ends && *at == ')') {
        break;
      }
      depth += (*at == '(' || *at == '<' || *at == '{') - (*at == ')' || *at == '>' || *at == '}');
      last = *at == ' ' ? last : *at;
    }
  }
  free(text);
}

static CUresult get_kernel(void **handle, const char *name) {
  for (unsigned i = 0; i < kernel_count; i++) {
    if (strcmp(kernels[i].name, name) == 0) {
      *handle = &kernels[i];
      return CUDA_SUCCESS;
    }
  }
  if (kernel_count == NAMES) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  kernel_t *made = &kernels[kernel_count++];
  made->name = strdup(name);
  read_parameters(made);
  *handle = made;
  return CUDA_SUCCESS;
}

static const kernel_t *find_kernel(const void *handle) {
  const kernel_t *kernel = handle;
  return kernel >= kernels && kernel < kernels + kernel_count ? kernel : NULL;
}

// A loss, and no bad row.
void fake_results(const char *kernel, const fake_use_t *uses, unsigned count) {
  if (strstr(kernel, "loss_sum") != NULL && count == 3 && fake_place(uses[1].address) == FAKE_PINNED &&
      fake_place(uses[2].address) == FAKE_PINNED) {
    *(double *)uses[1].address = 1.0;
    *(int64_t *)uses[2].address = -1;
  }
}

// What is registered when a module is loaded: the name of a kernel for a function of the host.
#define FUNCTIONS 4096u
static struct {
  const void *host;
  void *kernel;
} functions[FUNCTIONS];
static unsigned function_count;

FAKE_EXPORT void **__cudaRegisterFatBinary(void *binary) {
  static void *handle;
  (void)binary;
  return &handle;
}

FAKE_EXPORT void __cudaRegisterFatBinaryEnd(void **handle) {
  (void)handle;
}

FAKE_EXPORT void __cudaUnregisterFatBinary(void **handle) {
  (void)handle;
}

FAKE_EXPORT void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int threads,
                                        void *tid, void *bid, void *block, void *grid, int *warp) {
  (void)handle, (void)device, (void)threads, (void)tid, (void)bid, (void)block, (void)grid, (void)warp;
  fake_lock();
  if (function_count < FUNCTIONS && get_kernel(&functions[function_count].kernel, name) == CUDA_SUCCESS) {
    functions[function_count++].host = host;
  } else {
    (void)fake_broken("%s: too many kernels for this runtime", name);
  }
  fake_unlock();
}

FAKE_EXPORT cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host) {
  for (unsigned i = 0; i < function_count; i++) {
    if (functions[i].host == host) {
      *kernel = functions[i].kernel;
      return cudaSuccess;
    }
  }
  return cudaErrorInvalidDeviceFunction;
}

FAKE_EXPORT cudaError_t cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute which, int value) {
  cudaError_t result = cudaErrorInvalidValue;
  fake_lock();
  for (unsigned i = 0; i < function_count && result != cudaSuccess; i++) {
    if (functions[i].host == host && value >= 0 && value <= 232448) {
      kernel_t *kernel = functions[i].kernel;
      kernel->shared = which == cudaFuncAttributeMaxDynamicSharedMemorySize ? (size_t)value : kernel->shared;
      result = cudaSuccess;
    }
  }
  fake_unlock();
  return result;
}

static __thread struct {
  dim3 grid, block;
  size_t shared;
  void *stream;
} configuration;

FAKE_EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream) {
  configuration.grid = grid;
  configuration.block = block;
  configuration.shared = shared;
  configuration.stream = stream;
  return 0;
}

FAKE_EXPORT cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  *(void **)stream = configuration.stream;
  return cudaSuccess;
}

static unsigned put_use(fake_use_t *uses, unsigned count, const void *address, uint64_t bytes, bool writes) {
  if (address == NULL || bytes == 0) {
    return count;
  }
  uses[count] = (fake_use_t){(uint64_t)address, bytes, writes};
  return count + 1;
}

// Pages of the KV cache, whose shape is the first parameter; of gradients they are floats, and are written.
static unsigned page_uses(const kernel_t *kernel, const bl__pages_t *shape, const bl__page_table_t *table,
                          uint64_t element, fake_use_t *uses, unsigned count) {
  const bool gradients = strstr(kernel->name, "put_gradients") != NULL;
  const bl__key_rows_t rows = shape->page;
  const uint64_t elements =
      (shape->sequences - 1) * rows.sequence + (shape->rows - 1) * rows.row + rows.values + shape->width;
  for (unsigned i = 0; i < table->count; i++) {
    count = put_use(uses, count, table->pages[i], elements * (gradients ? 4 : element), gradients);
  }
  return count;
}

// What the table of a kernel points to, added to `count` uses. Returns the new count, or 0 and a broken rule.
static unsigned table_uses(const kernel_t *kernel, void **arguments, fake_use_t *uses, unsigned count) {
  const void *value = arguments[kernel->table_at];
  const uint64_t element = strstr(kernel->name, "bf16") != NULL ? 2 : 4;
  if (strstr(kernel->table, "bl__column_table") != NULL) {
    const bl__column_table_t *table = value;
    for (unsigned i = 0; i < table->count; i++) {
      const bl__column_groups_t *sum = &table->entries[i];
      count = put_use(uses, count, sum->x, sum->rows * sum->columns * element, false);
      count = put_use(uses, count, sum->lines, sum->groups * sum->columns * 4, true);
    }
  } else if (strstr(kernel->table, "bl__lines_table") != NULL) {
    const bl__lines_table_t *table = value;
    for (unsigned i = 0; i < table->count; i++) {
      const bl__lines_t *sum = &table->entries[i];
      count = put_use(uses, count, sum->from, sum->lines * sum->columns * 4, false);
      count = put_use(uses, count, sum->sums, sum->columns * 4, true);
    }
  } else if (strstr(kernel->table, "bl__adamw_table") != NULL) {
    const bl__adamw_table_t *table = value;
    for (unsigned i = 0; i < table->count; i++) {
      const bl__adamw_t *t = &table->entries[i];
      count = put_use(uses, count, t->dw, t->count * 4, false);
      count = put_use(uses, count, t->w, t->count * 4, true);
      count = put_use(uses, count, t->m, t->count * 4, true);
      count = put_use(uses, count, t->v, t->count * 4, true);
      count = put_use(uses, count, t->packed, t->count * 2, true);
    }
  } else if (strstr(kernel->table, "bl__squares_table") != NULL) {
    const bl__squares_table_t *table = value;
    for (unsigned i = 0; i < table->count; i++) {
      count = put_use(uses, count, table->entries[i].x, table->entries[i].count * 4, false);
      count = put_use(uses, count, table->entries[i].sum, 8, true);
    }
  } else if (strstr(kernel->table, "bl__scatter_table") != NULL) {
    const bl__scatter_table_t *table = value;
    for (unsigned i = 0; i < table->count; i++) {
      count = put_use(uses, count, table->entries[i].from, 1, false);
      count = put_use(uses, count, table->entries[i].rows, 1, true);
    }
  } else if (strstr(kernel->table, "bl__parts_table") != NULL) {
    const bl__parts_table_t *table = value;
    for (unsigned i = 0; i < table->count; i++) {
      count = put_use(uses, count, table->entries[i], table->elements * element, false);
    }
  } else if (strstr(kernel->table, "bl__page_table") != NULL) {
    count = page_uses(kernel, arguments[0], value, element, uses, count);
  } else {
    (void)fake_broken("%s: a table of which nothing is known", kernel->name);
    return 0;
  }
  return count;
}

FAKE_EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t handle, dim3 grid, dim3 block, void **arguments, size_t shared,
                                           cudaStream_t stream) {
  fake_lock();
  CUresult result = CUDA_SUCCESS;
  const kernel_t *kernel = find_kernel(handle);
  const uint64_t threads = (uint64_t)block.x * block.y * block.z, blocks = (uint64_t)grid.x * grid.y * grid.z;
  if (kernel == NULL) {
    result = fake_broken("a launch: no such kernel");
  } else if (threads == 0 || threads > 1024 || blocks == 0 || grid.y > 65535 || grid.z > 65535 ||
             (shared > 49152 && shared > kernel->shared)) {
    result = fake_broken("%s: %llu blocks of %llu threads, %zu bytes of shared memory", kernel->name,
                         (unsigned long long)blocks, (unsigned long long)threads, shared);
  } else if (!kernel->known) {
    result = fake_broken("%s: its parameters are not known", kernel->name);
  } else {
    fake_use_t uses[FAKE_USES];
    unsigned count = 0;
    for (unsigned i = 0; i < kernel->pointer_count; i++) {
      uint64_t address;
      memcpy(&address, arguments[kernel->pointers[i]], sizeof address);
      if (address != 0) {
        uses[count++] = (fake_use_t){.address = address, .bytes = 1};
      }
    }
    if (kernel->table[0] != '\0') {
      count = table_uses(kernel, arguments, uses, count);
      result = count == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    }
    result = result == CUDA_SUCCESS ? fake_work_launch(stream, kernel->name, uses, count) : result;
  }
  fake_unlock();
  return fake_launched(result);
}
