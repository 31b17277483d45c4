// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron.h"

#include "base/bytes.h"
#include "base/words.h"

#include <inttypes.h>
#include <string.h>

#define MAGIC_BYTES  9u
#define HEADER_BYTES (MAGIC_BYTES + 8u + 1u + 8u + 8u)
#define VERSION      1u

static uint64_t read_u64(const uint8_t *bytes) {
  uint64_t value = 0;
  for (int i = 7; i >= 0; i--) {
    value = value << 8 | bytes[i];
  }
  return value;
}

static uint32_t length_of(const bl_megatron_index_t *index, uint64_t sequence) {
  const uint8_t *bytes = index->lengths + sequence * 4;
  return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static uint64_t offset_of(const bl_megatron_index_t *index, uint64_t sequence) {
  return read_u64(index->offsets + sequence * 8);
}

static bl_status_t read_type(bl_megatron_index_t *index, unsigned code, bl_error_t *err) {
  static const struct {
    bl_token_width_t width;
    bool is_signed;
  } types[] = {[1] = {BL_TOKEN_BYTE, false}, [2] = {BL_TOKEN_BYTE, true}, [3] = {BL_TOKEN_U16, true},
               [4] = {BL_TOKEN_U32, true},   [5] = {BL_TOKEN_U64, true},  [8] = {BL_TOKEN_U16, false}};
  if (code == 6 || code == 7) {
    return bl_error_set(err, BL_INVALID, "index: token type %u is a floating-point type: these are no tokens", code);
  }
  if (code >= sizeof types / sizeof types[0] || types[code].width == 0) {
    return bl_error_set(err, BL_INVALID, "index: token type %u is not known", code);
  }
  index->width = types[code].width;
  index->is_signed = types[code].is_signed;
  return BL_OK;
}

static bl_status_t read_header(bl_megatron_index_t *index, const uint8_t *bytes, uint64_t size_bytes, bl_error_t *err) {
  if (size_bytes >= 8 && memcmp(bytes, "TNTIDX\0\0", 8) == 0) {
    return bl_error_set(err, BL_INVALID,
                        "index: of the older kind (TNTIDX); convert it with Megatron's preprocess_data.py");
  }
  if (size_bytes < MAGIC_BYTES || memcmp(bytes, "MMIDIDX\0\0", MAGIC_BYTES) != 0) {
    return bl_error_set(err, BL_INVALID, "not an index of Megatron-LM: it does not begin with MMIDIDX");
  }
  if (size_bytes < HEADER_BYTES) {
    return bl_error_set(err, BL_DATA_LOSS, "index: truncated in its header: %" PRIu64 " byte%s", size_bytes,
                        bl_plural(size_bytes));
  }
  const uint64_t version = read_u64(bytes + MAGIC_BYTES);
  if (version != VERSION) {
    return bl_error_set(err, BL_INVALID, "index: version %" PRIu64 " is not known, only %u", version, VERSION);
  }
  index->sequences = read_u64(bytes + MAGIC_BYTES + 9);
  index->bounds = read_u64(bytes + MAGIC_BYTES + 17);
  return read_type(index, bytes[MAGIC_BYTES + 8], err);
}

// Locates the arrays. The file must end after them, or after the modes that follow them.
static bl_status_t place_arrays(bl_megatron_index_t *index, const uint8_t *bytes, uint64_t size_bytes,
                                bl_error_t *err) {
  uint64_t per_sequence, per_bound, needed;
  if (!bl_mul_u64(index->sequences, 12, &per_sequence) || !bl_mul_u64(index->bounds, 8, &per_bound) ||
      !bl_add_u64(per_sequence, per_bound, &needed) || !bl_add_u64(needed, HEADER_BYTES, &needed) ||
      needed > size_bytes) {
    return bl_error_set(err, BL_DATA_LOSS,
                        "index: truncated: %" PRIu64 " sequences and %" PRIu64
                        " document bounds need more than its %" PRIu64 " bytes",
                        index->sequences, index->bounds, size_bytes);
  }
  const uint64_t rest = size_bytes - needed;
  if (rest != 0 && rest != index->sequences) {
    return bl_error_set(err, BL_INVALID, "index: %" PRIu64 " byte%s after its last array", rest, bl_plural(rest));
  }
  index->lengths = bytes + HEADER_BYTES;
  index->offsets = index->lengths + index->sequences * 4;
  index->first_sequences = index->offsets + index->sequences * 8;
  return BL_OK;
}

static bl_status_t check_sequences(bl_megatron_index_t *index, bl_error_t *err) {
  for (uint64_t i = 0; i < index->sequences; i++) {
    const uint32_t length = length_of(index, i);
    if (length > INT32_MAX) {
      return bl_error_set(err, BL_INVALID, "index: sequence %" PRIu64 " has a negative length", i);
    }
    if (offset_of(index, i) != index->tokens * (uint64_t)index->width) {
      return bl_error_set(err, BL_INVALID,
                          "index: sequence %" PRIu64 " lies at byte %" PRIu64 ", the one before it ends at %" PRIu64
                          "; only sequences that follow each other can be read",
                          i, offset_of(index, i), index->tokens * (uint64_t)index->width);
    }
    // This cannot overflow: a file of 2^63 bytes cannot have so many entries.
    index->tokens += length;
  }
  return BL_OK;
}

static bl_status_t check_documents(const bl_megatron_index_t *index, bl_error_t *err) {
  uint64_t before = 0;
  for (uint64_t i = 0; i < index->bounds; i++) {
    const uint64_t first = read_u64(index->first_sequences + i * 8);
    if ((i == 0 && first != 0) || first < before || first > index->sequences) {
      return bl_error_set(err, BL_INVALID,
                          "index: document %" PRIu64 " begins with sequence %" PRIu64 " after %" PRIu64 " of %" PRIu64,
                          i, first, before, index->sequences);
    }
    before = first;
  }
  if (before != index->sequences) {
    return bl_error_set(err, BL_INVALID, "index: its documents end at sequence %" PRIu64 " of %" PRIu64, before,
                        index->sequences);
  }
  return BL_OK;
}

bl_status_t bl_megatron_index_parse(bl_megatron_index_t *index, const uint8_t *bytes, uint64_t size_bytes,
                                    bl_error_t *err) {
  bl_megatron_index_t parsed = {0};
  bl_status_t status = read_header(&parsed, bytes, size_bytes, err);
  if (status == BL_OK) {
    status = place_arrays(&parsed, bytes, size_bytes, err);
  }
  if (status == BL_OK) {
    status = check_sequences(&parsed, err);
  }
  if (status == BL_OK) {
    status = check_documents(&parsed, err);
  }
  if (status == BL_OK) {
    *index = parsed;
  }
  return status;
}

bl_status_t bl_megatron_part(bl_token_part_t *part, const bl_megatron_index_t *index, const uint8_t *bytes,
                             uint64_t size_bytes, bl_error_t *err) {
  const uint64_t needed = index->tokens * (uint64_t)index->width;
  if (size_bytes != needed) {
    return bl_error_set(
        err, size_bytes < needed ? BL_DATA_LOSS : BL_INVALID,
        "%s: its index tells of %" PRIu64 " tokens of %d bytes, which are %" PRIu64 " bytes, and it has %" PRIu64 "%s",
        size_bytes < needed ? "truncated" : "does not belong to its index", index->tokens, (int)index->width, needed,
        size_bytes, size_bytes < needed ? "" : "; is the index of another file?");
  }
  *part =
      (bl_token_part_t){.bytes = bytes, .count = index->tokens, .width = index->width, .is_signed = index->is_signed};
  return BL_OK;
}

uint64_t bl_megatron_document_start(const bl_megatron_index_t *index, uint64_t position) {
  uint64_t start = 0, tokens = 0, sequence = 0;
  for (uint64_t i = 0; i < index->bounds; i++) {
    const uint64_t first = read_u64(index->first_sequences + i * 8);
    for (; sequence < first; sequence++) {
      tokens += length_of(index, sequence);
    }
    if (tokens > position) {
      break;
    }
    start = tokens;
  }
  return start;
}
