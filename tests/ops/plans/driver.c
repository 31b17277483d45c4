// SPDX-License-Identifier: Apache-2.0
// A CUDA driver without a GPU, as far as cuDNN asks it while it plans: it takes every kernel that is loaded, and fails
// everything else.
#define FAILS 34 // CUDA_ERROR_STUB_LIBRARY

#define CALLS(X)                                                                                                       \
  X(cuCtxGetCurrent)                                                                                                   \
  X(cuCtxGetLimit)                                                                                                     \
  X(cuCtxPopCurrent)                                                                                                   \
  X(cuCtxPushCurrent)                                                                                                  \
  X(cuDeviceGet)                                                                                                       \
  X(cuDeviceGetCount)                                                                                                  \
  X(cuDriverGetVersion)                                                                                                \
  X(cuGetErrorName)                                                                                                    \
  X(cuGetErrorString)                                                                                                  \
  X(cuKernelGetAttribute)                                                                                              \
  X(cuLaunchCooperativeKernel)                                                                                         \
  X(cuLaunchKernel)                                                                                                    \
  X(cuLaunchKernelEx)                                                                                                  \
  X(cuLibraryLoadFromFile)                                                                                             \
  X(cuLinkAddData)                                                                                                     \
  X(cuLinkComplete)                                                                                                    \
  X(cuLinkCreate)                                                                                                      \
  X(cuLinkDestroy)                                                                                                     \
  X(cuOccupancyMaxPotentialClusterSize)                                                                                \
  X(cuStreamGetCtx)

#define X(name)                                                                                                        \
  int name(void);                                                                                                      \
  int name(void) {                                                                                                     \
    return FAILS;                                                                                                      \
  }
CALLS(X)
#undef X

// Calls whose first argument is where a handle goes.
#define X(name)                                                                                                        \
  int name(void **handle);                                                                                             \
  int name(void **handle) {                                                                                            \
    static char taken;                                                                                                 \
    *handle = &taken;                                                                                                  \
    return 0;                                                                                                          \
  }
X(cuLibraryLoadData)
X(cuLibraryGetKernel)
X(cuKernelGetFunction)
#undef X

#define X(name)                                                                                                        \
  int name(void);                                                                                                      \
  int name(void) {                                                                                                     \
    return 0;                                                                                                          \
  }
X(cuLibraryUnload)
X(cuFuncSetAttribute)
X(cuKernelSetAttribute)
