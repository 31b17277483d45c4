// SPDX-License-Identifier: Apache-2.0
// Token streams over the bytes of one or several files, without copying them.
//
// A part is one file, or a range of its tokens (for training or held out):
//   text     every byte is a token;
//   bin      llm.c: a header of 256 little-endian int32 {magic, version, count, 0...}, then the tokens;
//              magic 20240520, version 1: uint16 tokens; magic 20240801, version 7: uint32 tokens;
//            without such a magic, nanoGPT: uint16 tokens from the first byte.
//   (Megatron-LM's files: formats/megatron.h)
// A part may have a mask: one byte per token, 1 if it counts as a label, 0 if it has no loss.
// A stream is several parts one after the other.
//
// PURE. Thread: any; parts and streams are immutable and borrow the files' bytes.
#ifndef BALLAST_FORMATS_TOKENS_H
#define BALLAST_FORMATS_TOKENS_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum { BL_TOKEN_BYTE = 1, BL_TOKEN_U16 = 2, BL_TOKEN_U32 = 4, BL_TOKEN_U64 = 8 } bl_token_width_t; // bytes

typedef struct bl_token_part {
  const uint8_t *bytes; // the first token; borrowed
  uint64_t count;       // tokens
  bl_token_width_t width;
  uint64_t offset_bytes; // of the first token in its file, for messages
  bool is_signed;        // negative tokens read as INT32_MAX
  const uint8_t *mask;   // [count], borrowed; NULL: every token counts
} bl_token_part_t;

void bl_token_part_text(bl_token_part_t *part, const uint8_t *bytes, uint64_t size_bytes);
// Reads a bin file. BL_DATA_LOSS: fewer bytes than the header's count needs. BL_INVALID: another version, bytes after
// the last token, a negative count, an odd number of bytes without header.
BL_MUST_USE bl_status_t bl_token_part_bin(bl_token_part_t *part, const uint8_t *bytes, uint64_t size_bytes,
                                          bl_error_t *err);

typedef struct bl_tokens {
  const bl_token_part_t *parts; // borrowed
  size_t part_count;
  uint64_t count; // tokens of this stream
} bl_tokens_t;

// Makes a stream of all of `parts`. BL_INVALID if the sum of the counts overflows.
BL_MUST_USE bl_status_t bl_tokens_init(bl_tokens_t *tokens, const bl_token_part_t *parts, size_t part_count);

// Copies `count` tokens from `first` on into out [count]; the range lies within the stream. Tokens above INT32_MAX or
// below 0 read as INT32_MAX, which no vocabulary contains.
void bl_tokens_read(const bl_tokens_t *tokens, uint64_t first, uint64_t count, int32_t *out);

// Like bl_tokens_read, for labels: a token that does not count reads as BL_LABEL_NONE.
#define BL_LABEL_NONE (-1)
void bl_tokens_read_labels(const bl_tokens_t *tokens, uint64_t first, uint64_t count, int32_t *out);
// Returns how many tokens of first .. first + count - 1 count as labels, and sets *bad to the position of the first one
// whose mask is neither 0 nor 1, or to BL_TOKENS_NONE.
uint64_t bl_tokens_count_labels(const bl_tokens_t *tokens, uint64_t first, uint64_t count, uint64_t *bad);

// Returns the token at `position` of the stream as the file has it, for messages.
int64_t bl_tokens_value(const bl_tokens_t *tokens, uint64_t position);

#define BL_TOKENS_NONE UINT64_MAX
// Returns the position of the first token >= vocab in first .. first + count - 1, or BL_TOKENS_NONE.
uint64_t bl_tokens_find_above(const bl_tokens_t *tokens, uint64_t first, uint64_t count, uint32_t vocab);

typedef struct bl_token_place {
  size_t part;
  uint64_t index;        // in the part
  uint64_t offset_bytes; // in the part's file
} bl_token_place_t;
// Returns where the token at `position` of the stream lies, for messages.
bl_token_place_t bl_tokens_place(const bl_tokens_t *tokens, uint64_t position);

#endif
