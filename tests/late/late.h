// SPDX-License-Identifier: Apache-2.0
// A device that is not there: memory that the CPU cannot touch and operations that happen later, made of this machine's
// memory and threads. Built as the two modules of the CUDA back end (device/module.h), so that whatever a stage does on a
// GPU but the arithmetic can be tested without one: a CPU that touches device memory crashes, work that nobody waited for
// is not there, a buffer that is overwritten too early gives other losses.
//
//   BALLAST_MODULES=build/tests/late ballastctl run JOB.yaml --set pipeline.device=cuda ...
//
// Addresses of device memory are LATE_BIT away from the memory behind them. A stream is a thread that does what it is
// given one after the other, each a little later than asked.
#ifndef BALLAST_TESTS_LATE_LATE_H
#define BALLAST_TESTS_LATE_LATE_H

#include "device/device.h"

#include <pthread.h>

#define LATE_BIT        (UINT64_C(1) << 47) // above all addresses of a process
#define LATE_TASKS      4096                // a full queue makes who asks wait
#define LATE_TASK_BYTES 592                 // pointers to 64 parts, and more

typedef void (*late_fn)(void *arguments);

typedef struct late_task {
  late_fn run;
  const char *name; // of the kernel that it would be; NULL: no work of the device
  _Alignas(16) unsigned char arguments[LATE_TASK_BYTES];
} late_task_t;

struct bl_device_stream {
  pthread_t thread;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  late_task_t *tasks; // [LATE_TASKS]
  size_t first, count;
  uint64_t done;
  bool stop;
};

// The memory behind an address of the device; other addresses as they are.
static inline void *late_real(const void *address) {
  return (void *)((uintptr_t)address & ~(uintptr_t)LATE_BIT);
}
static inline bool late_is_device(const void *address) {
  return ((uintptr_t)address & LATE_BIT) != 0;
}

// Queues a call with a copy of its arguments.
static inline void late_put(bl_device_stream_t *stream, const char *name, late_fn run, const void *arguments,
                            size_t bytes) {
  pthread_mutex_lock(&stream->mutex);
  while (stream->count == LATE_TASKS) {
    pthread_cond_wait(&stream->changed, &stream->mutex);
  }
  late_task_t *task = &stream->tasks[(stream->first + stream->count++) % LATE_TASKS];
  task->run = run;
  task->name = name;
  __builtin_memcpy(task->arguments, arguments, bytes);
  pthread_cond_broadcast(&stream->changed);
  pthread_mutex_unlock(&stream->mutex);
}

#endif
