// SPDX-License-Identifier: Apache-2.0
// Streams and events of a CUDA device: the members of bl_device_ops_t for them.
#ifndef BALLAST_DEVICE_CUDA_STREAM_H
#define BALLAST_DEVICE_CUDA_STREAM_H

#include "device/device.h"

bl_status_t bl__cuda_stream_create(bl_device_t *device, bl_device_stream_kind_t kind, bl_device_stream_t **stream,
                                   bl_error_t *err);
void bl__cuda_stream_destroy(bl_device_t *device, bl_device_stream_t *stream);
bl_status_t bl__cuda_stream_wait_event(bl_device_t *device, bl_device_stream_t *stream, bl_device_event_t *event,
                                       bl_error_t *err);
bl_status_t bl__cuda_event_create(bl_device_t *device, bool timed, bl_device_event_t **event, bl_error_t *err);
void bl__cuda_event_destroy(bl_device_t *device, bl_device_event_t *event);
bl_status_t bl__cuda_event_record(bl_device_t *device, bl_device_event_t *event, bl_device_stream_t *stream,
                                  bl_error_t *err);
bl_status_t bl__cuda_event_query(bl_device_t *device, bl_device_event_t *event, bool *done, bl_error_t *err);
bl_status_t bl__cuda_event_elapsed(bl_device_t *device, bl_device_event_t *from, bl_device_event_t *to, uint64_t *ns,
                                   bl_error_t *err);

#endif
