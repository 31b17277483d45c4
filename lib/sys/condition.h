// SPDX-License-Identifier: Apache-2.0
// Condition variables with deadlines of the monotonic clock, as all deadlines of this project are.
// Thread: any.
#ifndef BALLAST_SYS_CONDITION_H
#define BALLAST_SYS_CONDITION_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

// Initializes a condition whose deadlines are times of bl_clock_now_ns. Destroy it with pthread_cond_destroy.
void bl_condition_init(pthread_cond_t *condition);
// Waits with the mutex held, as pthread_cond_wait does. UINT64_MAX: no deadline. Returns false after the deadline.
bool bl_condition_wait(pthread_cond_t *condition, pthread_mutex_t *mutex, uint64_t deadline_ns);

#endif
