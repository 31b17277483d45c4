// SPDX-License-Identifier: Apache-2.0
#include "client/heap.h"

#include "base/bytes.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define PARTS_BYTES_MAX (UINT64_C(1) << 62)

typedef struct piece {
  uint64_t offset, bytes;
  bool used;
} piece_t;

struct bl_client_heap {
  uint8_t *base;
  pthread_mutex_t mutex; // guards what follows
  piece_t *pieces;       // by offset, without gaps
  size_t count, capacity;
};

bl_status_t bl_client_heap_create(const bl_client_region_t *memory, bl_client_heap_t **heap, bl_error_t *err) {
  const uint64_t bytes =
      memory == NULL || memory->base == NULL ? 0 : memory->bytes - memory->bytes % BL_CLIENT_HEAP_ALIGNMENT;
  if (bytes == 0) {
    return bl_error_set(err, BL_INVALID, "a heap needs at least %d bytes of memory", BL_CLIENT_HEAP_ALIGNMENT);
  }
  bl_client_heap_t *made = calloc(1, sizeof *made);
  piece_t *pieces = calloc(16, sizeof *pieces);
  if (made == NULL || pieces == NULL) {
    free(made);
    free(pieces);
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the pieces of a heap");
  }
  pieces[0] = (piece_t){.bytes = bytes};
  *made = (bl_client_heap_t){.base = memory->base, .pieces = pieces, .count = 1, .capacity = 16};
  pthread_mutex_init(&made->mutex, NULL);
  *heap = made;
  return BL_OK;
}

void bl_client_heap_destroy(bl_client_heap_t *heap) {
  if (heap == NULL) {
    return;
  }
  pthread_mutex_destroy(&heap->mutex);
  free(heap->pieces);
  free(heap);
}

static void measure(const bl_client_heap_t *heap, uint64_t *all_bytes, uint64_t *largest_bytes) {
  *all_bytes = *largest_bytes = 0;
  for (size_t i = 0; i < heap->count; i++) {
    const uint64_t bytes = heap->pieces[i].used ? 0 : heap->pieces[i].bytes;
    *all_bytes += bytes;
    *largest_bytes = bytes > *largest_bytes ? bytes : *largest_bytes;
  }
}

void bl_client_heap_free_bytes(bl_client_heap_t *heap, uint64_t *all_bytes, uint64_t *largest_bytes) {
  uint64_t all, largest;
  pthread_mutex_lock(&heap->mutex);
  measure(heap, &all, &largest);
  pthread_mutex_unlock(&heap->mutex);
  if (all_bytes != NULL) {
    *all_bytes = all;
  }
  if (largest_bytes != NULL) {
    *largest_bytes = largest;
  }
}

// Returns the smallest free piece of at least `bytes`; `count`: there is none.
static size_t find_free(const bl_client_heap_t *heap, uint64_t bytes) {
  size_t best = heap->count;
  for (size_t i = 0; i < heap->count; i++) {
    const piece_t *piece = &heap->pieces[i];
    if (!piece->used && piece->bytes >= bytes && (best == heap->count || piece->bytes < heap->pieces[best].bytes)) {
      best = i;
    }
  }
  return best;
}

// Cuts a piece in two, the first one of `bytes`.
static bl_status_t split(bl_client_heap_t *heap, size_t at, uint64_t bytes, bl_error_t *err) {
  if (heap->pieces[at].bytes == bytes) {
    return BL_OK;
  }
  if (heap->count == heap->capacity) {
    piece_t *pieces = realloc(heap->pieces, 2 * heap->capacity * sizeof *pieces);
    if (pieces == NULL) {
      return bl_error_set(err, BL_EXHAUSTED, "no memory for the pieces of a heap");
    }
    heap->pieces = pieces;
    heap->capacity *= 2;
  }
  piece_t *piece = &heap->pieces[at];
  memmove(piece + 2, piece + 1, (heap->count - at - 1) * sizeof *piece);
  piece[1] = (piece_t){.offset = piece->offset + bytes, .bytes = piece->bytes - bytes};
  piece->bytes = bytes;
  heap->count++;
  return BL_OK;
}

static bl_status_t no_room(const bl_client_heap_t *heap, uint64_t bytes, bl_error_t *err) {
  char wanted[BL_BYTES_TEXT], all[BL_BYTES_TEXT], largest[BL_BYTES_TEXT];
  uint64_t all_bytes, largest_bytes;
  measure(heap, &all_bytes, &largest_bytes);
  return bl_error_set(err, BL_EXHAUSTED, "no piece of %s: %s are free, at most %s in one piece",
                      bl_bytes_format(bytes, wanted), bl_bytes_format(all_bytes, all),
                      bl_bytes_format(largest_bytes, largest));
}

bl_status_t bl_client_heap_acquire(bl_client_heap_t *heap, uint64_t bytes, void **at, bl_error_t *err) {
  if (bytes == 0) {
    return bl_error_set(err, BL_INVALID, "a piece has at least one byte");
  }
  pthread_mutex_lock(&heap->mutex);
  const size_t i = find_free(heap, bytes);
  // The piece that was found is a multiple of the alignment, so rounding up cannot exceed it.
  bl_status_t status =
      i == heap->count ? no_room(heap, bytes, err) : split(heap, i, bl_align_up(bytes, BL_CLIENT_HEAP_ALIGNMENT), err);
  if (status == BL_OK) {
    heap->pieces[i].used = true;
    *at = heap->base + heap->pieces[i].offset;
  }
  pthread_mutex_unlock(&heap->mutex);
  return status;
}

// Merges a free piece with the next one if that is free, too.
static void join_next(bl_client_heap_t *heap, size_t at) {
  piece_t *piece = &heap->pieces[at];
  if (at + 1 < heap->count && !piece[0].used && !piece[1].used) {
    piece->bytes += piece[1].bytes;
    memmove(piece + 1, piece + 2, (heap->count - at - 2) * sizeof *piece);
    heap->count--;
  }
}

bl_status_t bl_client_heap_release(bl_client_heap_t *heap, void *at, bl_error_t *err) {
  if (at == NULL) {
    return BL_OK;
  }
  bl_status_t status = BL_OK;
  size_t i = 0;
  pthread_mutex_lock(&heap->mutex);
  while (i < heap->count && heap->base + heap->pieces[i].offset != at) {
    i++;
  }
  if (i == heap->count || !heap->pieces[i].used) {
    status = bl_error_set(err, BL_INVALID, "nothing that the heap gave begins at %p", at);
  } else {
    heap->pieces[i].used = false;
    join_next(heap, i);
    if (i > 0) {
      join_next(heap, i - 1);
    }
  }
  pthread_mutex_unlock(&heap->mutex);
  return status;
}

uint64_t bl_client_heap_gathered(const bl_client_part_t *parts, size_t index) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < index; i++) {
    bytes += bl_align_up(parts[i].bytes, BL_CLIENT_PART_ALIGNMENT);
  }
  return bytes;
}

bl_status_t bl_client_heap_gather(bl_client_heap_t *heap, const bl_client_part_t *parts, size_t count, void **at,
                                  uint64_t *bytes, bl_error_t *err) {
  uint64_t all = 0;
  if (parts == NULL && count > 0) {
    return bl_error_set(err, BL_INVALID, "cannot gather %zu parts: their table is NULL", count);
  }
  for (size_t i = 0; i < count; i++) {
    if (parts[i].base == NULL && parts[i].bytes > 0) {
      return bl_error_set(err, BL_INVALID, "cannot gather part %zu of %" PRIu64 " bytes: its base is NULL", i,
                          parts[i].bytes);
    }
    if (parts[i].bytes > PARTS_BYTES_MAX - all) {
      return bl_error_set(err, BL_INVALID, "parts of more than 2^62 bytes");
    }
    all += bl_align_up(parts[i].bytes, BL_CLIENT_PART_ALIGNMENT);
  }
  void *found = NULL;
  bl_status_t status = bl_client_heap_acquire(heap, all, &found, err);
  if (status != BL_OK) {
    return status;
  }
  uint8_t *to = found;
  for (size_t i = 0; i < count; i++) {
    const size_t part = (size_t)parts[i].bytes, padded = (size_t)bl_align_up(part, BL_CLIENT_PART_ALIGNMENT);
    if (part > 0) {
      memcpy(to, parts[i].base, part);
    }
    memset(to + part, 0, padded - part); // nothing of earlier blocks is sent with it
    to += padded;
  }
  *at = found;
  *bytes = all;
  return BL_OK;
}
