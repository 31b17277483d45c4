// SPDX-License-Identifier: Apache-2.0
// Binary heaps in arrays of the caller. The element that precedes all others is at [0]:
//
//   static bool sooner(const clock_t *clock, event_t a, event_t b) { return a.at < b.at; }
//   BL_HEAP(events, event_t, const clock_t *, sooner)
//
//   events_push(clock, heap, &count, event);      adds an element; the array must have room for it
//   event = events_pop(clock, heap, &count);      removes the first element; the heap must not be empty
//   events_put(clock, heap, count, 0, event);     replaces the first element and restores the order
//
// The comparison may use the caller's context. What it depends on must not change while the element is in the heap.
// Thread: any; the caller serializes.
#ifndef BALLAST_BASE_HEAP_H
#define BALLAST_BASE_HEAP_H

#include <stdbool.h>
#include <stddef.h>

// `before` returns whether its second argument precedes its third.
#define BL_HEAP(name, type, context_type, before)                                                                      \
  static inline void name##_push(context_type context, type *heap, size_t *count, type element) {                      \
    size_t at = (*count)++;                                                                                            \
    for (; at > 0 && before(context, element, heap[(at - 1) / 2]); at = (at - 1) / 2) {                                \
      heap[at] = heap[(at - 1) / 2];                                                                                   \
    }                                                                                                                  \
    heap[at] = element;                                                                                                \
  }                                                                                                                    \
  /* Precondition: the subtrees below `at` are heaps. */                                                               \
  static inline void name##_put(context_type context, type *heap, size_t count, size_t at, type element) {             \
    for (size_t child = 2 * at + 1; child < count; child = 2 * at + 1) {                                               \
      child += child + 1 < count && before(context, heap[child + 1], heap[child]);                                     \
      if (!before(context, heap[child], element)) {                                                                    \
        break;                                                                                                         \
      }                                                                                                                \
      heap[at] = heap[child];                                                                                          \
      at = child;                                                                                                      \
    }                                                                                                                  \
    heap[at] = element;                                                                                                \
  }                                                                                                                    \
  static inline type name##_pop(context_type context, type *heap, size_t *count) {                                     \
    const type first = heap[0], last = heap[--*count];                                                                 \
    name##_put(context, heap, *count, 0, last);                                                                        \
    return first;                                                                                                      \
  }

#endif
