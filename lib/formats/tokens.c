// SPDX-License-Identifier: Apache-2.0
#include "formats/tokens.h"

#include "base/bytes.h"
#include "base/words.h"

#include <inttypes.h>
#include <stdbool.h>

// llm.c's header has 256 little-endian int32, of which three have a meaning.
#define HEADER_BYTES 1024u
#define MAGIC_U16    20240520u
#define VERSION_U16  1u
#define MAGIC_U32    20240801u
#define VERSION_U32  7u
#define VERSION_AT   4u
#define COUNT_AT     8u
#define MAGIC_BYTES  4u

static uint32_t read_u32(const uint8_t *bytes) {
  return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

void bl_token_part_text(bl_token_part_t *part, const uint8_t *bytes, uint64_t size_bytes) {
  *part = (bl_token_part_t){.bytes = bytes, .count = size_bytes, .width = BL_TOKEN_BYTE, .offset_bytes = 0};
}

static bl_status_t read_with_header(bl_token_part_t *part, const uint8_t *bytes, uint64_t size_bytes,
                                    bl_token_width_t width, uint32_t version, bl_error_t *err) {
  if (size_bytes < HEADER_BYTES) {
    return bl_error_set(err, BL_DATA_LOSS, "truncated: %" PRIu64 " byte%s, llm.c's header alone has %u", size_bytes,
                        bl_plural(size_bytes), HEADER_BYTES);
  }
  uint32_t found = read_u32(bytes + VERSION_AT);
  if (found != version) {
    return bl_error_set(err, BL_INVALID, "llm.c header: version %" PRIu32 " is not known for this magic, only %" PRIu32,
                        found, version);
  }
  uint32_t count = read_u32(bytes + COUNT_AT);
  if (count > INT32_MAX) {
    return bl_error_set(err, BL_INVALID, "llm.c header: negative token count");
  }
  uint64_t present = size_bytes - HEADER_BYTES, needed = (uint64_t)count * width;
  if (present < needed) {
    return bl_error_set(err, BL_DATA_LOSS,
                        "truncated: the header announces %" PRIu32 " token%s of %d bytes, the file has %" PRIu64
                        " byte%s after it",
                        count, bl_plural(count), (int)width, present, bl_plural(present));
  }
  if (present > needed) {
    return bl_error_set(err, BL_INVALID,
                        "llm.c header: it announces %" PRIu32 " token%s of %d bytes, the file has %" PRIu64
                        " byte%s more",
                        count, bl_plural(count), (int)width, present - needed, bl_plural(present - needed));
  }
  *part =
      (bl_token_part_t){.bytes = bytes + HEADER_BYTES, .count = count, .width = width, .offset_bytes = HEADER_BYTES};
  return BL_OK;
}

bl_status_t bl_token_part_bin(bl_token_part_t *part, const uint8_t *bytes, uint64_t size_bytes, bl_error_t *err) {
  uint32_t magic = size_bytes >= MAGIC_BYTES ? read_u32(bytes) : 0;
  if (magic == MAGIC_U16) {
    return read_with_header(part, bytes, size_bytes, BL_TOKEN_U16, VERSION_U16, err);
  }
  if (magic == MAGIC_U32) {
    return read_with_header(part, bytes, size_bytes, BL_TOKEN_U32, VERSION_U32, err);
  }
  if (size_bytes % BL_TOKEN_U16 != 0) {
    return bl_error_set(err, BL_INVALID,
                        "without llm.c's magic it is read as uint16 tokens, but it has %" PRIu64
                        " byte%s, which is odd",
                        size_bytes, bl_plural(size_bytes));
  }
  *part = (bl_token_part_t){.bytes = bytes, .count = size_bytes / BL_TOKEN_U16, .width = BL_TOKEN_U16};
  return BL_OK;
}

bl_status_t bl_tokens_init(bl_tokens_t *tokens, const bl_token_part_t *parts, size_t part_count) {
  uint64_t count = 0;
  for (size_t i = 0; i < part_count; i++) {
    if (!bl_add_u64(count, parts[i].count, &count)) {
      return BL_INVALID;
    }
  }
  *tokens = (bl_tokens_t){.parts = parts, .part_count = part_count, .count = count};
  return BL_OK;
}

// Consecutive tokens of one part.
typedef struct {
  const uint8_t *bytes;
  const uint8_t *mask; // NULL: none
  uint64_t count;
  bl_token_width_t width;
  bool is_signed;
  size_t part;
  uint64_t index; // of the first token in its part
} run_t;

// Returns the run that starts at `position` of the stream and has at most `limit` tokens.
static run_t find_run(const bl_tokens_t *tokens, uint64_t position, uint64_t limit) {
  uint64_t index = position;
  size_t part = 0;
  while (part + 1 < tokens->part_count && index >= tokens->parts[part].count) {
    index -= tokens->parts[part++].count;
  }
  const bl_token_part_t *p = &tokens->parts[part];
  uint64_t left = p->count - index;
  return (run_t){.bytes = p->bytes + index * p->width,
                 .mask = p->mask != NULL ? p->mask + index : NULL,
                 .count = left < limit ? left : limit,
                 .width = p->width,
                 .is_signed = p->is_signed,
                 .part = part,
                 .index = index};
}

// Returns UINT32_MAX for a token that does not fit 32 bits, and for a negative one.
static uint32_t token_at(const run_t *run, uint64_t i) {
  const uint8_t *bytes = run->bytes + i * run->width;
  if (run->is_signed && bytes[run->width - 1] >= 0x80) {
    return UINT32_MAX;
  }
  switch (run->width) {
  case BL_TOKEN_BYTE:
    return bytes[0];
  case BL_TOKEN_U16:
    return (uint32_t)(bytes[0] | bytes[1] << 8);
  case BL_TOKEN_U64:
    return read_u32(bytes + 4) == 0 ? read_u32(bytes) : UINT32_MAX;
  case BL_TOKEN_U32:
    break;
  }
  return read_u32(bytes);
}

static void read_run(const run_t *run, int32_t *out) {
  for (uint64_t i = 0; i < run->count; i++) {
    uint32_t token = token_at(run, i);
    out[i] = token > INT32_MAX ? INT32_MAX : (int32_t)token;
  }
}

void bl_tokens_read(const bl_tokens_t *tokens, uint64_t first, uint64_t count, int32_t *out) {
  for (uint64_t done = 0; done < count;) {
    run_t run = find_run(tokens, first + done, count - done);
    read_run(&run, out + done);
    done += run.count;
  }
}

void bl_tokens_read_labels(const bl_tokens_t *tokens, uint64_t first, uint64_t count, int32_t *out) {
  for (uint64_t done = 0; done < count;) {
    run_t run = find_run(tokens, first + done, count - done);
    read_run(&run, out + done);
    for (uint64_t i = 0; run.mask != NULL && i < run.count; i++) {
      out[done + i] = run.mask[i] != 0 ? out[done + i] : BL_LABEL_NONE;
    }
    done += run.count;
  }
}

uint64_t bl_tokens_count_labels(const bl_tokens_t *tokens, uint64_t first, uint64_t count, uint64_t *bad) {
  uint64_t counted = 0;
  *bad = BL_TOKENS_NONE;
  for (uint64_t done = 0; done < count;) {
    run_t run = find_run(tokens, first + done, count - done);
    for (uint64_t i = 0; run.mask != NULL && i < run.count; i++) {
      *bad = run.mask[i] > 1 && *bad == BL_TOKENS_NONE ? first + done + i : *bad;
      counted += run.mask[i];
    }
    counted += run.mask == NULL ? run.count : 0;
    done += run.count;
  }
  return counted;
}

int64_t bl_tokens_value(const bl_tokens_t *tokens, uint64_t position) {
  const run_t run = find_run(tokens, position, 1);
  uint64_t value = run.is_signed && run.bytes[run.width - 1] >= 0x80 ? UINT64_MAX : 0;
  for (int i = (int)run.width - 1; i >= 0; i--) {
    value = value << 8 | run.bytes[i];
  }
  return (int64_t)value;
}

uint64_t bl_tokens_find_above(const bl_tokens_t *tokens, uint64_t first, uint64_t count, uint32_t vocab) {
  for (uint64_t done = 0; done < count;) {
    run_t run = find_run(tokens, first + done, count - done);
    bool possible = run.width >= BL_TOKEN_U32 || run.is_signed || vocab < UINT32_C(1) << (8 * run.width);
    for (uint64_t i = 0; possible && i < run.count; i++) {
      if (token_at(&run, i) >= vocab) {
        return first + done + i;
      }
    }
    done += run.count;
  }
  return BL_TOKENS_NONE;
}

bl_token_place_t bl_tokens_place(const bl_tokens_t *tokens, uint64_t position) {
  run_t run = find_run(tokens, position, 1);
  const bl_token_part_t *part = &tokens->parts[run.part];
  return (bl_token_place_t){
      .part = run.part, .index = run.index, .offset_bytes = part->offset_bytes + run.index * part->width};
}
