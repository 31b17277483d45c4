// SPDX-License-Identifier: Apache-2.0
// Whatever a caller sends as the input of a method of ballast.v1.Store: it is refused, or read as a message that packs to
// bytes which read as the same. The first byte of the input chooses the method.
#include "target.h"

#include "ballast/v1/store.pb-c.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes) {
  const ProtobufCServiceDescriptor *service = &ballast__v1__store__descriptor;
  if (size_bytes == 0) {
    return 0;
  }
  const ProtobufCMessageDescriptor *descriptor = service->methods[bytes[0] % service->n_methods].input;
  ProtobufCMessage *message = protobuf_c_message_unpack(descriptor, NULL, size_bytes - 1, bytes + 1);
  if (message == NULL) {
    return 0;
  }
  FUZZ_CHECK(protobuf_c_message_check(message));
  size_t packed_bytes = protobuf_c_message_get_packed_size(message);
  uint8_t *packed = malloc(2 * packed_bytes + 1);
  FUZZ_CHECK(packed != NULL);
  FUZZ_CHECK(protobuf_c_message_pack(message, packed) == packed_bytes);
  ProtobufCMessage *again = protobuf_c_message_unpack(descriptor, NULL, packed_bytes, packed);
  FUZZ_CHECK(again != NULL);
  FUZZ_CHECK(protobuf_c_message_get_packed_size(again) == packed_bytes);
  FUZZ_CHECK(protobuf_c_message_pack(again, packed + packed_bytes) == packed_bytes);
  FUZZ_CHECK(memcmp(packed, packed + packed_bytes, packed_bytes) == 0);
  protobuf_c_message_free_unpacked(again, NULL);
  protobuf_c_message_free_unpacked(message, NULL);
  free(packed);
  return 0;
}
