// SPDX-License-Identifier: Apache-2.0
// Opens and lists devices: the host, or a GPU of this machine, whose back end is a module (module.h).
//
//   bl_device_t *device;
//   bl_device_open(BL_DEVICE_CUDA, 0, &device, err);   // err: no module, no driver, driver too old, no such device
//   ...
//   bl_device_close(device);
//
// Thread: any; a device may be used from any thread until it is closed.
#ifndef BALLAST_DEVICE_OPEN_H
#define BALLAST_DEVICE_OPEN_H

#include "device/device.h"

#include <stddef.h>

typedef enum bl_device_kind { BL_DEVICE_HOST, BL_DEVICE_CUDA } bl_device_kind_t;

#define BL_DEVICE_NAME_BYTES 96

// One device of a machine, for display (ballastctl doctor, version) and for choosing.
typedef struct bl_device_summary {
  uint32_t ordinal;
  char name[BL_DEVICE_NAME_BYTES]; // "NVIDIA H200"
  char address[32];                // PCI address: "0000:18:00.0"
  uint8_t uuid[16];                // the same in every process and container of the machine
  uint64_t total_bytes;
  uint32_t major, minor; // compute capability
  uint32_t processors;   // multiprocessors
} bl_device_summary_t;

// The table of a module that has devices (its interface "device").
typedef struct bl_device_driver {
  // Returns "CUDA runtime 13.0, driver 580.65 (CUDA 13.0)". Works without a device and without a driver.
  const char *(*describe)(void);
  // BL_UNIMPLEMENTED: no driver, or it is too old; then *count is 0.
  bl_status_t (*list)(bl_device_summary_t *summaries, uint32_t capacity, uint32_t *count, bl_error_t *err);
  bl_status_t (*open)(uint32_t ordinal, bl_device_t **device, bl_error_t *err);
  void (*close)(bl_device_t *device);
} bl_device_driver_t;

const char *bl_device_kind_name(bl_device_kind_t kind); // "host", "cuda"

// Opens a device. BL_UNIMPLEMENTED: no module, no driver, or a driver or GPU that is too old; BL_NOT_FOUND: no such
// device; BL_EXHAUSTED, BL_UNAVAILABLE: the device exists and cannot be used now. `err` says what to do.
BL_MUST_USE bl_status_t bl_device_open(bl_device_kind_t kind, uint32_t ordinal, bl_device_t **device, bl_error_t *err);
// Closes the device, after everything that was created on it is destroyed. NULL and the host are allowed.
void bl_device_close(bl_device_t *device);

// Chooses the device for process `number` of this machine: `wanted` if it is not negative, else `number` modulo the
// number of devices that this process sees. Failures as bl_device_list.
BL_MUST_USE bl_status_t bl_device_choose(bl_device_kind_t kind, int32_t wanted, uint32_t number, uint32_t *ordinal,
                                         bl_error_t *err);

// Lists the devices of a kind on this machine. Writes up to `capacity` of them; *count is how many exist. Failures as
// bl_device_open.
BL_MUST_USE bl_status_t bl_device_list(bl_device_kind_t kind, bl_device_summary_t *summaries, uint32_t capacity,
                                       uint32_t *count, bl_error_t *err);
// Writes one line about the back end of a kind and the devices it found, or why it has none: "cuda: 2 devices: NVIDIA
// H200 ...", "cuda: no driver: ...". Never fails.
void bl_device_survey(bl_device_kind_t kind, char *text, size_t text_bytes);

#endif
