// SPDX-License-Identifier: Apache-2.0
// The GPU that a stage would compute on, examined before a run (ballastctl preflight): its identity, whether it can
// share memory with other processes and read that of other GPUs, and the installed NCCL.
//
//   bl_probed_device_t probed;
//   bl_probed_device_open(BL_DEVICE_CUDA, 2, -1, &probed);
//   if (probed.device != NULL) ... bl_probed_device_reaches(&probed, "GPU-...", &err) ...
//   bl_probed_device_close(&probed);
//
// Thread: any, never the loop's: opening a GPU takes long.
#ifndef BALLAST_STAGE_SERVICE_PROBE_DEVICE_H
#define BALLAST_STAGE_SERVICE_PROBE_DEVICE_H

#include "datapath/block_memory.h"
#include "datapath/nccl/version.h"
#include "device/open.h"

typedef struct bl_probed_device {
  uint32_t count;                  // that this process sees
  char text[512];                  // its name, or why the stage has none
  bl_device_t *device;             // NULL: none
  bl_block_memory_t block_memory;  // its memory
  char nccl[BL_NCCL_VERSION_TEXT]; // "2.28.9"; "": none
  char no_nccl[200];               // why there is no NCCL
} bl_probed_device_t;

// Never fails: the texts name what is missing. `number` and `wanted` as in bl_device_choose.
void bl_probed_device_open(bl_device_kind_t kind, uint32_t number, int32_t wanted, bl_probed_device_t *probed);
// Closes the device and keeps the findings. A second call does nothing.
void bl_probed_device_close(bl_probed_device_t *probed);
// Checks whether the device can read memory of another GPU of this machine. BL_UNIMPLEMENTED with the reason.
BL_MUST_USE bl_status_t bl_probed_device_reaches(const bl_probed_device_t *probed, const char *gpu, bl_error_t *err);

#endif
