// SPDX-License-Identifier: Apache-2.0
// UTF-8, one sequence at a time: distinguishes text from other bytes in names and messages from outside.
// Thread: any; no state.
#ifndef BL_BASE_UTF8_H
#define BL_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

// Decodes the sequence at the start of `text` into *code (a Unicode scalar value). At most `bytes` (at least 1) are
// read. Returns the length of the sequence in bytes, 1 to 4. Returns 0, with *code untouched, if the sequence is
// truncated, longer than needed, a surrogate, beyond U+10FFFF or not UTF-8 at all.
size_t bl_utf8_decode(const char *text, size_t bytes, uint32_t *code);

#endif
