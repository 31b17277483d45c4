// SPDX-License-Identifier: Apache-2.0
// Whatever bytes come as an index, one that is accepted describes a .bin whose tokens and documents can all be found.
#include "target.h"

#include "formats/megatron.h"

#include <stdlib.h>

#define TOKENS_MAX 4096 // of a .bin that is made up

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes) {
  bl_megatron_index_t index;
  bl_token_part_t part;
  bl_error_t err = {0};
  if (bl_megatron_index_parse(&index, bytes, size_bytes, &err) != BL_OK) {
    FUZZ_CHECK(err.status != BL_OK && err.text[0] != '\0');
    return 0;
  }
  FUZZ_CHECK(bl_megatron_part(&part, &index, bytes, index.tokens * (uint64_t)index.width + 1, &err) == BL_INVALID);
  if (index.tokens > TOKENS_MAX) {
    return 0;
  }
  uint8_t *tokens = calloc(index.tokens + 1, 8);
  FUZZ_CHECK(tokens != NULL);
  FUZZ_CHECK(bl_megatron_part(&part, &index, tokens, index.tokens * (uint64_t)index.width, &err) == BL_OK);
  for (uint64_t i = 0; i <= index.tokens; i++) {
    uint64_t start = bl_megatron_document_start(&index, i);
    FUZZ_CHECK(start <= i && bl_megatron_document_start(&index, start) == start);
  }
  free(tokens);
  return 0;
}
