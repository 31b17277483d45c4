// SPDX-License-Identifier: Apache-2.0
// Inside of fake_cuda.h: what its files share. Everything is under `fake_lock`, which every entry point takes.
#ifndef TESTS_FAKE_CUDA_CORE_H
#define TESTS_FAKE_CUDA_CORE_H

#include "fake_cuda/fake_cuda.h"

#include <cuda.h>
#include <driver_types.h>

#include <stddef.h>

#define FAKE_GRANULARITY (UINT64_C(2) << 20)
#define FAKE_BASE        UINT64_C(0x600000000000) // all addresses of devices lie here
#define FAKE_SPAN        UINT64_C(0x080000000000)
#define FAKE_MEMORY      (UINT64_C(80) << 30) // of a device
#define FAKE_EXPORT      __attribute__((visibility("default")))

extern fake_cuda_figures_t fake_figures;
void fake_lock(void);
void fake_unlock(void);
// A rule is broken. Returns CUDA_ERROR_INVALID_VALUE.
CUresult fake_broken(const char *format, ...) __attribute__((format(printf, 1, 2)));

// runtime.c: keeps the error of a launch.
cudaError_t fake_launched(CUresult result);

static inline bool fake_is_device(uint64_t address) {
  return address >= FAKE_BASE && address < FAKE_BASE + FAKE_SPAN;
}

// memory.c: what an address may be used for.
typedef enum { FAKE_PAGEABLE, FAKE_PINNED, FAKE_DEVICE } fake_place_t;
fake_place_t fake_place(uint64_t address);
// Bytes behind an address, up to *bytes of them that lie together; NULL and a broken rule when it may not be used so.
uint8_t *fake_bytes(uint64_t address, uint64_t *bytes, bool writes, const char *what);
// Whether all of it may be used; says what is broken.
bool fake_may_use(uint64_t address, uint64_t bytes, bool writes, const char *what);
void fake_memory_leaks(void);

// work.c
bool fake_work_uses(uint64_t address, uint64_t bytes); // queued work needs memory there
void fake_work_drain(void);                            // the CPU waits for everything
void fake_work_leaks(void);
#define FAKE_USES 264u // of a launch, at most
// Memory that a launch reads or writes: `bytes` of it, or as many as there are where that is not known (1).
typedef struct fake_use {
  uint64_t address, bytes;
  bool writes;
} fake_use_t;
// kernels.c: what the CPU reads of a kernel and cannot go on without.
void fake_results(const char *kernel, const fake_use_t *uses, unsigned count);
CUresult fake_work_launch(CUstream stream, const char *kernel, const fake_use_t *uses, unsigned count); // lock held
// The others take the lock.
CUresult fake_work_copy(uint64_t to, uint64_t from, uint64_t bytes, CUstream stream);
CUresult fake_work_fill(uint64_t to, uint8_t value, uint64_t bytes, CUstream stream);
CUresult fake_work_stream_create(CUstream *stream, unsigned flags);
CUresult fake_work_stream_destroy(CUstream stream);
CUresult fake_work_stream_synchronize(CUstream stream);
CUresult fake_work_stream_wait(CUstream stream, CUevent event, unsigned flags);
CUresult fake_work_event_create(CUevent *event, unsigned flags);
CUresult fake_work_event_destroy(CUevent event);
CUresult fake_work_event_record(CUevent event, CUstream stream);
CUresult fake_work_event_query(CUevent event);
CUresult fake_work_event_elapsed(float *ms, CUevent from, CUevent to);

#endif
