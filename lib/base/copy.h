// SPDX-License-Identifier: Apache-2.0
// Copies memory past the caches, for data that is not read soon. The lines of the target are not fetched only to be
// overwritten, and the caches keep what the next step needs.
//
// Thread: any.
#ifndef BALLAST_BASE_COPY_H
#define BALLAST_BASE_COPY_H

#include <stddef.h>

// Copies as memcpy does. A thread that is notified of the copy through an atomic or a lock sees all of it.
void bl_copy_past_cache(void *target, const void *source, size_t bytes);

#endif
