// SPDX-License-Identifier: Apache-2.0
// A libcupti that is none: between enabling and flushing it has seen four kernels, a copy and a fill, in two buffers. With
// FAKE_CUPTI_VERSION=120008 it is of another major version.
#include <cupti.h>
#include <stdlib.h>
#include <string.h>

static CUpti_BuffersCallbackRequestFunc request;
static CUpti_BuffersCallbackCompleteFunc complete;
static unsigned enabled;

CUptiResult cuptiGetVersion(uint32_t *version) {
  const char *text = getenv("FAKE_CUPTI_VERSION");
  *version = text != NULL ? (uint32_t)atoi(text) : CUPTI_API_VERSION;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiGetResultString(CUptiResult result, const char **text) {
  *text = result == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES ? "no permission" : "something";
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc requested,
                                           CUpti_BuffersCallbackCompleteFunc completed) {
  request = requested;
  complete = completed;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
  if (getenv("FAKE_CUPTI_DENIED") != NULL) {
    return CUPTI_ERROR_INSUFFICIENT_PRIVILEGES;
  }
  enabled |= 1u << kind;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) {
  enabled &= ~(1u << kind);
  return CUPTI_SUCCESS;
}

static size_t bytes_of(CUpti_ActivityKind kind) {
  return kind == CUPTI_ACTIVITY_KIND_MEMCPY   ? sizeof(CUpti_ActivityMemcpy6)
         : kind == CUPTI_ACTIVITY_KIND_MEMSET ? sizeof(CUpti_ActivityMemset4)
                                              : sizeof(CUpti_ActivityKernel10);
}

CUptiResult cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, CUpti_Activity **record) {
  uint8_t *at = *record == NULL ? buffer : (uint8_t *)*record + bytes_of((*record)->kind);
  if (at >= buffer + valid) {
    return CUPTI_ERROR_MAX_LIMIT_REACHED;
  }
  *record = (CUpti_Activity *)(void *)at;
  return CUPTI_SUCCESS;
}

static size_t put_kernel(uint8_t *at, const char *name, uint64_t start, uint64_t end) {
  const CUpti_ActivityKernel10 kernel = {
      .kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, .name = name, .start = start, .end = end};
  memcpy(at, &kernel, sizeof kernel);
  return enabled & 1u << CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL ? sizeof kernel : 0;
}

CUptiResult cuptiActivityFlushAll(uint32_t flag) {
  uint8_t *buffer;
  size_t bytes, most;
  (void)flag;
  request(&buffer, &bytes, &most);
  size_t used = put_kernel(buffer, "long", 1000, 1700);
  used += put_kernel(buffer + used, "short", 2000, 2050);
  const CUpti_ActivityMemcpy6 copy = {
      .kind = CUPTI_ACTIVITY_KIND_MEMCPY, .copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_DTOD, .start = 10, .end = 110};
  memcpy(buffer + used, &copy, sizeof copy);
  complete(NULL, 0, buffer, bytes, used + sizeof copy);
  request(&buffer, &bytes, &most);
  used = put_kernel(buffer, "long", 3000, 3300);
  used += put_kernel(buffer + used, "short", 4000, 4050);
  const CUpti_ActivityMemset4 fill = {.kind = CUPTI_ACTIVITY_KIND_MEMSET, .start = 0, .end = 7};
  memcpy(buffer + used, &fill, sizeof fill);
  complete(NULL, 0, buffer, bytes, used + sizeof fill);
  return CUPTI_SUCCESS;
}
