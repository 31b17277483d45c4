// SPDX-License-Identifier: Apache-2.0
// Which run's driver the stage follows, where it is, and when it was last heard of. Nothing of the step protocol depends on
// it: it is for people, and for the driver of another job, which does not take over stages from one that is alive.
// Thread: the loop's.
#ifndef BALLAST_STAGE_SERVICE_FOLLOWED_H
#define BALLAST_STAGE_SERVICE_FOLLOWED_H

#include <stdint.h>

typedef struct bl_followed {
  char run[128], address[256];
  uint64_t heard_ns; // 0: never
} bl_followed_t;

// Another driver is followed from now on. What does not fit is cut.
void bl_followed_take(bl_followed_t *followed, const char *run, const char *address);
// It was heard of just now.
void bl_followed_hear(bl_followed_t *followed);
// How long it has been silent, at least 1; 0: none was ever heard of.
uint64_t bl_followed_silent_ms(const bl_followed_t *followed);

#endif
