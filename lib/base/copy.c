// SPDX-License-Identifier: Apache-2.0
#include "base/copy.h"

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>

// No manual prefetching: measured, it costs a third of the speed.
#define LINE 64u

void bl_copy_past_cache(void *target, const void *source, size_t bytes) {
  char *to = target;
  const char *from = source;
  const size_t head = (LINE - (uintptr_t)to % LINE) % LINE;
  if (bytes < head + LINE) {
    memcpy(to, from, bytes);
    return;
  }
  memcpy(to, from, head);
  to += head, from += head, bytes -= head;
  for (; bytes >= LINE; bytes -= LINE, to += LINE, from += LINE) {
    const __m128i a = _mm_loadu_si128((const __m128i *)(const void *)from);
    const __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(from + 16));
    const __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(from + 32));
    const __m128i d = _mm_loadu_si128((const __m128i *)(const void *)(from + 48));
    _mm_stream_si128((__m128i *)(void *)to, a);
    _mm_stream_si128((__m128i *)(void *)(to + 16), b);
    _mm_stream_si128((__m128i *)(void *)(to + 32), c);
    _mm_stream_si128((__m128i *)(void *)(to + 48), d);
  }
  memcpy(to, from, bytes);
  _mm_sfence(); // streaming stores are not ordered by the store that publishes the copy
}
#else
void bl_copy_past_cache(void *target, const void *source, size_t bytes) {
  memcpy(target, source, bytes);
}
#endif
