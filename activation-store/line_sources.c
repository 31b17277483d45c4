// SPDX-License-Identifier: Apache-2.0
// The memory that holders show: mapped on a transfer thread, unmapped once nothing reads it.
#include "lines_core.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void tell(bl_line_t *line, bl_frame_kind_t kind, uint32_t number, const bl_error_t *err) {
  bl_frame_t frame = {.kind = kind, .region = number, .status = err != NULL ? err->status : BL_OK};
  bl__line_put(line, &frame, err != NULL && err->status != BL_OK ? err->text : NULL);
}

static void unmap(bl__source_t *source) {
  bl_peer_memory_close(&source->map);
  if (source->fd >= 0) {
    close(source->fd);
  }
  source->fd = -1;
  source->used = source->up = source->hiding = false;
}

static void finish_hiding(bl__source_t *source) {
  bool asked = source->asked;
  unmap(source);
  source->asked = false;
  if (asked && !source->line->gone) {
    tell(source->line, BL_FRAME_HIDDEN, source->number, NULL);
    bl__line_flush(source->line);
  }
}

void bl__source_release(bl__source_t *source) {
  source->users--;
  if (source->users == 0 && source->hiding) {
    finish_hiding(source);
  }
}

static void map_memory(bl_work_t *work) {
  bl__source_t *source = BL_WORK_OWNER(work, bl__source_t, mapping);
  const bl_line_t *line = source->line;
  bl_device_t *device = line->by == BL_PATH_CUDA_IPC ? line->lines->device : NULL;
  source->err.status = bl_peer_memory_open(&source->map, device, source->fd, source->bytes, &source->err);
  close(source->fd);
  source->fd = -1;
}

static void memory_mapped(bl_message_t *message) {
  bl__source_t *source = BL_MESSAGE_OWNER(message, bl__source_t, mapping.done);
  bl_line_t *line = source->line;
  line->users--;
  if (!line->gone) {
    tell(line, BL_FRAME_SHOWN, source->number, &source->err);
    bl__line_flush(line);
  }
  source->up = source->err.status == BL_OK;
  source->hiding = source->hiding || !source->up;
  bl__source_release(source);
  bl__line_settle(line);
}

// The entry of a number; NULL when memory is short.
static bl__source_t *entry(bl_line_t *line, uint32_t number) {
  if (number >= line->source_capacity) {
    uint32_t capacity = line->source_capacity == 0 ? 16 : line->source_capacity;
    while (capacity <= number) {
      capacity *= 2;
    }
    bl__source_t **sources = realloc(line->sources, capacity * sizeof(bl__source_t *));
    if (sources == NULL) {
      return NULL;
    }
    memset(sources + line->source_capacity, 0, (capacity - line->source_capacity) * sizeof(bl__source_t *));
    line->sources = sources;
    line->source_capacity = capacity;
  }
  if (line->sources[number] == NULL) {
    line->sources[number] = calloc(1, sizeof(bl__source_t));
  }
  return line->sources[number];
}

void bl__source_show(bl_line_t *line, const bl_frame_t *frame) {
  bl_error_t err = {0};
  int fd = bl_stream_take_descriptor(&line->stream);
  bl__source_t *source = entry(line, frame->region);
  if (!line->shm) {
    (void)bl_error_set(&err, BL_PRECONDITION, "memory can be shown over a unix socket only");
  } else if (fd < 0) {
    (void)bl_error_set(&err, BL_INVALID, "source %" PRIu32 " came without a descriptor", frame->region);
  } else if (source == NULL) {
    (void)bl_error_set(&err, BL_EXHAUSTED, "the store has no memory for source %" PRIu32, frame->region);
  } else if (source->used) {
    (void)bl_error_set(&err, BL_PRECONDITION, "source %" PRIu32 " is shown already", frame->region);
  }
  if (err.status != BL_OK) {
    if (fd >= 0) {
      close(fd);
    }
    tell(line, BL_FRAME_SHOWN, frame->region, &err);
    return;
  }
  *source = (bl__source_t){.mapping = {.run = map_memory, .done = {.handle = memory_mapped}},
                           .line = line,
                           .number = frame->region,
                           .used = true,
                           .users = 1,
                           .fd = fd,
                           .bytes = frame->bytes};
  line->users++;
  bl_pool_submit(line->lines->pool, &source->mapping);
}

void bl__source_hide(bl_line_t *line, const bl_frame_t *frame) {
  bl__source_t *source = frame->region < line->source_capacity ? line->sources[frame->region] : NULL;
  if (source == NULL || !source->used) {
    tell(line, BL_FRAME_HIDDEN, frame->region, NULL); // gone already: as asked
    return;
  }
  source->hiding = source->asked = true;
  if (source->users == 0) {
    finish_hiding(source);
  }
}

bl__source_t *bl__source_at(const bl_line_t *line, uint32_t number, uint64_t offset, uint64_t bytes) {
  bl__source_t *source = number < line->source_capacity ? line->sources[number] : NULL;
  const bool is_up = source != NULL && source->used && source->up && !source->hiding;
  return is_up && bytes > 0 && offset <= source->map.bytes && bytes <= source->map.bytes - offset ? source : NULL;
}

void bl__sources_free(bl_line_t *line) {
  for (uint32_t i = 0; i < line->source_capacity; i++) {
    if (line->sources[i] != NULL && line->sources[i]->used) {
      unmap(line->sources[i]);
    }
    free(line->sources[i]);
  }
  free(line->sources);
  line->sources = NULL;
  line->source_capacity = 0;
}
