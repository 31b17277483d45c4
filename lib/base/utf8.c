// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

static size_t sequence_length(unsigned char lead) {
  if (lead < 0x80) {
    return 1;
  }
  return (lead & 0xE0) == 0xC0 ? 2 : (lead & 0xF0) == 0xE0 ? 3 : (lead & 0xF8) == 0xF0 ? 4 : 0;
}

size_t bl_utf8_decode(const char *text, size_t bytes, uint32_t *code) {
  static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const unsigned char *at = (const unsigned char *)text;
  size_t length = sequence_length(at[0]);
  if (length == 0 || length > bytes) {
    return 0;
  }
  uint32_t value = length == 1 ? at[0] : at[0] & (0xFFu >> (length + 1));
  for (size_t i = 1; i < length; i++) {
    if ((at[i] & 0xC0) != 0x80) {
      return 0;
    }
    value = value << 6 | (at[i] & 0x3Fu);
  }
  if (value < smallest[length] || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) {
    return 0;
  }
  *code = value;
  return length;
}
