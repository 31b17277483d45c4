// SPDX-License-Identifier: Apache-2.0
// The version of cuDNN that modules see, as FAKE_CUDNN_VERSION says: the library itself is NVIDIA's, and makes no handle without
// a driver.
#include "fake_cuda/core.h"

#include <cudnn.h>
#include <stdlib.h>

FAKE_EXPORT size_t cudnnGetVersion(void) {
  const char *text = getenv("FAKE_CUDNN_VERSION");
  return text != NULL ? strtoull(text, NULL, 10) : CUDNN_VERSION;
}
