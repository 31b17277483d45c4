// SPDX-License-Identifier: Apache-2.0
// Token files of Megatron-LM: NAME.bin has the tokens of all sequences, and NAME.idx describes them.
//
//   NAME.idx, little-endian: "MMIDIDX\0\0", version u64 = 1, token type u8, sequences u64, document bounds u64,
//     lengths i32 [sequences] in tokens, offsets i64 [sequences] in bytes of NAME.bin,
//     bounds i64 [document bounds]: the first sequence of each document, then the number of sequences,
//     and, in files of several modalities, modes i8 [sequences], which are not read
//   token types: 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 8 u16 (6 and 7 are floats, not tokens)
//
// Sequences must lie in NAME.bin one after the other, as Megatron's own writer places them. The tokens are then one
// stream of consecutive documents. A window of training data may hold the end of one document and the start of the
// next, as in Megatron, whose preprocessing ends each document with a special token.
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

// Checks all of the index, in time linear in the number of sequences. BL_INVALID: not an index, another version or
// type, numbers that contradict each other. BL_DATA_LOSS: truncated. The error names the field; the caller adds the
// file.
BL_MUST_USE bl_status_t bl_megatron_index_parse(bl_megatron_index_t *index, const uint8_t *bytes, uint64_t size_bytes,
                                                bl_error_t *err);
// Makes a part of the tokens of a .bin of `size_bytes`. BL_DATA_LOSS: shorter than the index says; BL_INVALID: longer.
BL_MUST_USE bl_status_t bl_megatron_part(bl_token_part_t *part, const bl_megatron_index_t *index, const uint8_t *bytes,
                                         uint64_t size_bytes, bl_error_t *err);
// Returns the last start of a document at or before token `position` <= tokens.
uint64_t bl_megatron_document_start(const bl_megatron_index_t *index, uint64_t position);

#endif
