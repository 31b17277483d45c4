// SPDX-License-Identifier: Apache-2.0
// Whatever bytes come, an index that is accepted names files of its own folder only, and finds every tensor it lists.
#include "target.h"

#include "formats/shard_index.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes) {
  bl_shard_index_t index;
  bl_error_t err = {0};
  if (bl_shard_index_parse(&index, (const char *)bytes, size_bytes, &err) != BL_OK) {
    FUZZ_CHECK(err.status != BL_OK && err.text[0] != '\0');
    return 0;
  }
  FUZZ_CHECK(index.count > 0 && index.file_count > 0 && index.file_count <= index.count);
  for (size_t i = 0; i < index.file_count; i++) {
    FUZZ_CHECK(strchr(index.files[i], '/') == NULL && strcmp(index.files[i], "..") != 0);
  }
  for (size_t i = 0; i < index.count; i++) {
    FUZZ_CHECK(index.entries[i].file < index.file_count);
    FUZZ_CHECK(bl_shard_index_find(&index, index.entries[i].tensor) == &index.entries[i]);
  }
  bl_shard_index_cleanup(&index);
  return 0;
}
