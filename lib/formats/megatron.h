// SPDX-License-Identifier: Apache-2.0
// Token files of Megatron-LM: the tokens of all sequences in NAME.bin, and NAME.idx that says what they are.
//
//   NAME.idx, little-endian: "MMIDIDX\0\0", version u64 = 1, token type u8, sequences u64, document bounds u64,
//     lengths i32 [sequences] in tokens, offsets i64 [sequences] in bytes of NAME.bin,
//     bounds i64 [document bounds]: the first sequence of each document, then the number of sequences,
//     and, in files of several modalities, modes i8 [sequences], which are not read
//   token types: 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 8 u16 (6 and 7 are floats and no tokens)
//
// Sequences must lie in NAME.bin one after the other, as Megatron's own writer leaves them: the tokens are then one
// stream, in which documents follow each other, and a window of training data may hold the end of one and the start of
// the next, as it does in Megatron. (Its preprocessing ends documents with a token for it.)
//
// PURE. Thread: any; an index borrows the bytes it was parsed from.
#ifndef BALLAST_FORMATS_MEGATRON_H
#define BALLAST_FORMATS_MEGATRON_H

#include "formats/tokens.h"

typedef struct bl_megatron_index {
  bl_token_width_t width;
  bool is_signed;
  uint64_t sequences;
  uint64_t bounds;                                    // documents + 1
  uint64_t tokens;                                    // of all sequences
  const uint8_t *lengths, *offsets, *first_sequences; // borrowed, unaligned
} bl_megatron_index_t;

// Checks all of it, in time linear in the sequences. BL_INVALID: not an index, another version or type, numbers that
// contradict each other; BL_DATA_LOSS: truncated. The text names the field, the caller the file.
BL_MUST_USE bl_status_t bl_megatron_index_parse(bl_megatron_index_t *index, const uint8_t *bytes, uint64_t size_bytes,
                                                bl_error_t *err);
// The tokens of a .bin of `size_bytes`. BL_DATA_LOSS: shorter than the index says; BL_INVALID: longer.
BL_MUST_USE bl_status_t bl_megatron_part(bl_token_part_t *part, const bl_megatron_index_t *index, const uint8_t *bytes,
                                         uint64_t size_bytes, bl_error_t *err);
// The last start of a document at or before token `position` <= tokens.
uint64_t bl_megatron_document_start(const bl_megatron_index_t *index, uint64_t position);

#endif
