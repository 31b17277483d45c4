// SPDX-License-Identifier: Apache-2.0
#include "job/threads.h"

#include "base/words.h"
#include "sys/thread.h"

#include <stdio.h>

// Somewhat more threads than processors are allowed: a small machine reproduces the losses of a larger one that way.
#define THREADS_OF_A_PROCESSOR 4

bool bl_threads_warning(const bl_job_t *job, char text[BL_THREADS_WARNING]) {
  const int64_t threads = job->pipeline.threads, processors = bl_thread_processors();
  if (job->pipeline.device == BL_JOB_DEVICE_CUDA || threads <= THREADS_OF_A_PROCESSOR * processors) {
    return false;
  }
  snprintf(
      text, BL_THREADS_WARNING,
      "pipeline.threads: %lld threads of a stage would take turns on the %lld processor%s here, which is slower than "
      "%lld; losses depend on the number, so it is kept",
      (long long)threads, (long long)processors, bl_plural((uint64_t)processors), (long long)processors);
  return true;
}
