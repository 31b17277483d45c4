// SPDX-License-Identifier: Apache-2.0
// Waits at a condition until a time of the monotonic clock, as every deadline here is.
// Thread: any.
#ifndef BALLAST_SYS_CONDITION_H
#define BALLAST_SYS_CONDITION_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

// A condition whose waits go by bl_clock_now_ns. End it with pthread_cond_destroy.
void bl_condition_init(pthread_cond_t *condition);
// Waits with the mutex held, as pthread_cond_wait. UINT64_MAX: without end. False: the deadline is over.
bool bl_condition_wait(pthread_cond_t *condition, pthread_mutex_t *mutex, uint64_t deadline_ns);

#endif
