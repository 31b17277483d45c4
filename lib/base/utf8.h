// SPDX-License-Identifier: Apache-2.0
// UTF-8, one sequence at a time.
//
// Purpose: tell bytes that are text from bytes that are not, in names and messages that others gave.
// Thread: any; no state.
#ifndef BL_BASE_UTF8_H
#define BL_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

// Decodes the sequence that begins text, of which `bytes` (at least 1) may be read, into *code (Unicode scalar value).
// Returns its length in bytes, 1 to 4; 0, with *code untouched, when it is cut off, longer than needed, a surrogate, beyond
// U+10FFFF or no sequence at all.
size_t bl_utf8_decode(const char *text, size_t bytes, uint32_t *code);

#endif
