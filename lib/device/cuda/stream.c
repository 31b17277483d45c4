// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/stream.h"

#include "device/cuda/cuda_device.h"

#include <stdlib.h>

#define NS_PER_MS 1e6

static bl_status_t no_memory(bl_error_t *err) {
  return bl_error_set(err, BL_EXHAUSTED, "no memory for a stream or event");
}

bl_status_t bl__cuda_stream_create(bl_device_t *device, bl_device_stream_kind_t kind, bl_device_stream_t **stream,
                                   bl_error_t *err) {
  bl_device_stream_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return no_memory(err);
  }
  int least = 0, greatest = 0; // the greatest priority is the smallest number
  bl_status_t status = bl_cuda_make_current(bl_cuda_device(device), err);
  if (status == BL_OK) {
    status =
        bl_cuda_check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange", err);
  }
  if (status == BL_OK) {
    int priority = kind == BL_STREAM_COPY ? greatest : least;
    status = bl_cuda_check(cudaStreamCreateWithPriority(&made->handle, cudaStreamNonBlocking, priority),
                           "cudaStreamCreateWithPriority", err);
  }
  if (status != BL_OK) {
    free(made);
    return status;
  }
  made->copies = kind == BL_STREAM_COPY;
  *stream = made;
  return BL_OK;
}

void bl__cuda_stream_destroy(bl_device_t *device, bl_device_stream_t *stream) {
  (void)bl_cuda_make_current(bl_cuda_device(device), NULL);
  (void)cudaStreamDestroy(stream->handle);
  free(stream);
}

bl_status_t bl__cuda_stream_wait_event(bl_device_t *device, bl_device_stream_t *stream, bl_device_event_t *event,
                                       bl_error_t *err) {
  bl_status_t status = bl_cuda_make_current(bl_cuda_device(device), err);
  return status == BL_OK
             ? bl_cuda_check(cudaStreamWaitEvent(stream->handle, event->handle, 0), "cudaStreamWaitEvent", err)
             : status;
}

bl_status_t bl__cuda_event_create(bl_device_t *device, bool timed, bl_device_event_t **event, bl_error_t *err) {
  bl_device_event_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return no_memory(err);
  }
  bl_status_t status = bl_cuda_make_current(bl_cuda_device(device), err);
  if (status == BL_OK) {
    unsigned flags = timed ? cudaEventDefault : cudaEventDisableTiming;
    status = bl_cuda_check(cudaEventCreateWithFlags(&made->handle, flags), "cudaEventCreateWithFlags", err);
  }
  if (status != BL_OK) {
    free(made);
    return status;
  }
  *event = made;
  return BL_OK;
}

void bl__cuda_event_destroy(bl_device_t *device, bl_device_event_t *event) {
  (void)bl_cuda_make_current(bl_cuda_device(device), NULL);
  (void)cudaEventDestroy(event->handle);
  free(event);
}

bl_status_t bl__cuda_event_record(bl_device_t *device, bl_device_event_t *event, bl_device_stream_t *stream,
                                  bl_error_t *err) {
  bl_status_t status = bl_cuda_make_current(bl_cuda_device(device), err);
  cudaStream_t handle = stream == NULL ? cudaStreamPerThread : stream->handle;
  return status == BL_OK ? bl_cuda_check(cudaEventRecord(event->handle, handle), "cudaEventRecord", err) : status;
}

bl_status_t bl__cuda_event_query(bl_device_t *device, bl_device_event_t *event, bool *done, bl_error_t *err) {
  bl_status_t status = bl_cuda_make_current(bl_cuda_device(device), err);
  if (status != BL_OK) {
    return status;
  }
  cudaError_t result = cudaEventQuery(event->handle);
  if (result == cudaErrorNotReady) {
    (void)cudaGetLastError(); // not an error, so no later call must find it
    *done = false;
    return BL_OK;
  }
  *done = true;
  return bl_cuda_check(result, "cudaEventQuery (of work queued before)", err);
}

bl_status_t bl__cuda_event_elapsed(bl_device_t *device, bl_device_event_t *from, bl_device_event_t *to, uint64_t *ns,
                                   bl_error_t *err) {
  float ms = 0;
  bl_status_t status = bl_cuda_make_current(bl_cuda_device(device), err);
  if (status == BL_OK) {
    status = bl_cuda_check(cudaEventElapsedTime(&ms, from->handle, to->handle), "cudaEventElapsedTime", err);
  }
  if (status == BL_OK) {
    *ns = ms > 0 ? (uint64_t)((double)ms * NS_PER_MS) : 0;
  }
  return status;
}
