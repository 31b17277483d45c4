// SPDX-License-Identifier: Apache-2.0
// Whatever bytes come, a header that is accepted has tensors that lie inside the file, in order of name, without overlap.
#include "target.h"

#include "formats/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes) {
  bl_safetensors_t index;
  bl_error_t err = {0};
  if (bl_safetensors_parse(&index, bytes, size_bytes, &err) != BL_OK) {
    FUZZ_CHECK(err.status != BL_OK && err.text[0] != '\0');
    return 0;
  }
  uint64_t sum = index.data_offset_bytes;
  for (size_t i = 0; i < index.count; i++) {
    const bl_tensor_entry_t *tensor = &index.tensors[i];
    FUZZ_CHECK(tensor->offset_bytes >= index.data_offset_bytes && tensor->offset_bytes <= size_bytes);
    FUZZ_CHECK(tensor->size_bytes <= size_bytes - tensor->offset_bytes);
    FUZZ_CHECK(tensor->elements * bl_tensor_dtype_bits(tensor->dtype) == tensor->size_bytes * 8);
    FUZZ_CHECK(bl_safetensors_find(&index, tensor->name) == tensor);
    sum += tensor->size_bytes;
  }
  FUZZ_CHECK(sum == size_bytes);
  bl_safetensors_cleanup(&index);
  return 0;
}
