// SPDX-License-Identifier: Apache-2.0
// Whatever a caller sends as the input of a method of ballast.v1.Store: it is refused, or read as a message that packs to
// bytes which read as the same. The first byte of the input chooses the method.
// Not so for an unknown field with the number 0: protobuf-c takes it where the tag is written longer than it need be.
#include "target.h"

#include "ballast/v1/store.pb-c.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static bool has_field_zero(const ProtobufCMessage *message) {
  for (unsigned i = 0; i < message->n_unknown_fields; i++) {
    if (message->unknown_fields[i].tag == 0) {
      return true;
    }
  }
  for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
    const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
    if (field->type != PROTOBUF_C_TYPE_MESSAGE) {
      continue;
    }
    FUZZ_CHECK((field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) == 0); // none yet
    const void *member = (const char *)message + field->offset;
    const bool repeated = field->label == PROTOBUF_C_LABEL_REPEATED;
    ProtobufCMessage *const *inner = repeated ? *(ProtobufCMessage *const *const *)member : member;
    const size_t count =
        repeated ? *(const size_t *)(const void *)((const char *)message + field->quantifier_offset) : *inner != NULL;
    for (size_t k = 0; k < count; k++) {
      if (has_field_zero(inner[k])) {
        return true;
      }
    }
  }
  return false;
}

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
  if (has_field_zero(message)) {
    protobuf_c_message_free_unpacked(message, NULL);
    return 0;
  }
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
