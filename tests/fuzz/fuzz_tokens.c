// SPDX-License-Identifier: Apache-2.0
// Whatever bytes come, every token of a file that is accepted can be read, alone and beside another file.
#include "target.h"

#include "formats/tokens.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes) {
  bl_token_part_t parts[2];
  bl_error_t err = {0};
  if (bl_token_part_bin(&parts[0], bytes, size_bytes, &err) != BL_OK) {
    FUZZ_CHECK(err.status != BL_OK && err.text[0] != '\0');
    return 0;
  }
  FUZZ_CHECK(parts[0].count * (uint64_t)parts[0].width <= size_bytes);
  bl_token_part_text(&parts[1], bytes, size_bytes);
  bl_tokens_t tokens;
  FUZZ_CHECK(bl_tokens_init(&tokens, parts, 2) == BL_OK);
  FUZZ_CHECK(tokens.count == parts[0].count + size_bytes);
  uint32_t vocab = size_bytes > 0 ? bytes[size_bytes - 1] + 1u : 1;
  uint64_t expected = BL_TOKENS_NONE;
  for (uint64_t i = tokens.count; i-- > 0;) {
    int32_t token;
    bl_tokens_read(&tokens, i, 1, &token);
    FUZZ_CHECK(token >= 0);
    expected = (uint32_t)token >= vocab ? i : expected;
    bl_token_place_t place = bl_tokens_place(&tokens, i);
    FUZZ_CHECK(place.part < 2 && place.offset_bytes < size_bytes);
  }
  FUZZ_CHECK(bl_tokens_find_above(&tokens, 0, tokens.count, vocab) == expected);
  return 0;
}
