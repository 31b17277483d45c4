// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/verdict.h"

#include "base/bytes.h"
#include "base/words.h"

#include <inttypes.h>

static int major_of(int version) {
  return version / 1000;
}

static int minor_of(int version) {
  return version % 1000 / 10;
}

bl_status_t bl_cuda_verdict(const bl_cuda_findings_t *f, bl_error_t *err) {
  if (f->driver == 0) {
    return bl_error_set(err, BL_UNIMPLEMENTED,
                        "no NVIDIA driver: libcuda.so.1 is not on this machine, or not in this container; install "
                        "driver 580 or later (CUDA %d.%d), in containers with the NVIDIA container toolkit",
                        major_of(f->runtime), minor_of(f->runtime));
  }
  if (major_of(f->driver) < major_of(f->runtime) || f->result == BL_CUDA_INSUFFICIENT_DRIVER) {
    return bl_error_set(err, BL_UNIMPLEMENTED,
                        "the NVIDIA driver is too old: it serves CUDA %d.%d, this build needs %d.%d; install a driver "
                        "of CUDA %d or later",
                        major_of(f->driver), minor_of(f->driver), major_of(f->runtime), minor_of(f->runtime),
                        major_of(f->runtime));
  }
  if (f->result == BL_CUDA_NO_DEVICE || (f->result == 0 && f->count == 0)) {
    return bl_error_set(err, BL_NOT_FOUND,
                        "no NVIDIA device: the driver (CUDA %d.%d) sees none; is there a GPU, and is it given to this "
                        "container (CUDA_VISIBLE_DEVICES, NVIDIA_VISIBLE_DEVICES)?",
                        major_of(f->driver), minor_of(f->driver));
  }
  if (f->result != 0) {
    return bl_error_set(err, BL_UNAVAILABLE, "the NVIDIA devices cannot be used: %s (%d)", f->result_text, f->result);
  }
  return BL_OK;
}

bl_status_t bl_cuda_verdict_ordinal(const bl_cuda_findings_t *f, uint32_t ordinal, bl_error_t *err) {
  if (ordinal < (uint32_t)f->count) {
    return BL_OK;
  }
  return bl_error_set(err, BL_NOT_FOUND, "device %u: this process sees %d NVIDIA device%s, numbered from 0", ordinal,
                      f->count, bl_plural((uint64_t)f->count));
}

bl_status_t bl_cuda_verdict_capability(const char *name, int major, int minor, bl_error_t *err) {
  if (major >= BL_CUDA_MAJOR_MIN) {
    return BL_OK;
  }
  return bl_error_set(err, BL_UNIMPLEMENTED,
                      "%s has compute capability %d.%d: %d.0 or later is needed (A100, H100, H200 and newer)", name,
                      major, minor, BL_CUDA_MAJOR_MIN);
}

bl_status_t bl_cuda_verdict_library(const char *library, int built_major, int built_minor, int found_major,
                                    int found_minor, bl_error_t *err) {
  if (found_major == built_major && found_minor >= built_minor) {
    return BL_OK;
  }
  return bl_error_set(err, BL_UNIMPLEMENTED,
                      "%s %d.%d is loaded, Ballast was built with %d.%d and needs that or a later %d: install it, or "
                      "put its folder first in LD_LIBRARY_PATH",
                      library, found_major, found_minor, built_major, built_minor, built_major);
}

bl_status_t bl_cuda_verdict_memory(const char *device, uint64_t wanted_bytes, uint64_t free_bytes, uint64_t total_bytes,
                                   bl_error_t *err) {
  char wanted[BL_BYTES_TEXT], available[BL_BYTES_TEXT], total[BL_BYTES_TEXT];
  return bl_error_set(err, BL_EXHAUSTED,
                      "%s (%" PRIu64 " bytes) wanted, %s (%" PRIu64
                      " bytes) available of the %s of %s: who else uses it says nvidia-smi",
                      bl_bytes_format(wanted_bytes, wanted), wanted_bytes, bl_bytes_format(free_bytes, available),
                      free_bytes, bl_bytes_format(total_bytes, total), device);
}
