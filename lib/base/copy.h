// SPDX-License-Identifier: Apache-2.0
// Copying what will not be read again soon: past the caches, so that lines of the target are not fetched only to be
// overwritten, and what the next step needs stays in them.
//
// Thread: any.
#ifndef BALLAST_BASE_COPY_H
#define BALLAST_BASE_COPY_H

#include <stddef.h>

// As memcpy. Other threads that are told of it through an atomic or a lock see all of it.
void bl_copy_past_cache(void *target, const void *source, size_t bytes);

#endif
