// SPDX-License-Identifier: Apache-2.0
// Every message that a server or a client of ours unpacks: input and output of each method of each service, within a limit
// of memory. The first byte picks the message. What was unpacked packs to a message that unpacks to the same bytes.
#include "target.h"

#include "rpc/arena.h"

#include "ballast/v1/driver.pb-c.h"
#include "ballast/v1/stage.pb-c.h"
#include "ballast/v1/store.pb-c.h"
#include "grpc/health/v1/health.pb-c.h"
#include "grpc/reflection/v1/reflection.pb-c.h"
#include "grpc/reflection/v1alpha/reflection.pb-c.h"

#include <string.h>

#define LIMIT_BYTES (1u << 20)

static const ProtobufCServiceDescriptor *const services[] = {
    &ballast__v1__stage__descriptor,
    &ballast__v1__driver__descriptor,
    &ballast__v1__store__descriptor,
    &grpc__health__v1__health__descriptor,
    &grpc__reflection__v1__server_reflection__descriptor,
    &grpc__reflection__v1alpha__server_reflection__descriptor,
};

// Message `index` of all, counting inputs and outputs; NULL: there are fewer.
static const ProtobufCMessageDescriptor *message_at(unsigned index) {
  for (size_t i = 0; i < sizeof services / sizeof services[0]; i++) {
    if (index < 2 * services[i]->n_methods) {
      const ProtobufCMethodDescriptor *method = &services[i]->methods[index / 2];
      return index % 2 == 0 ? method->input : method->output;
    }
    index -= 2 * services[i]->n_methods;
  }
  return NULL;
}

static void try_message(const ProtobufCMessageDescriptor *descriptor, const uint8_t *bytes, size_t size_bytes) {
  static bl__arena_t arena;
  bl__arena_init(&arena, LIMIT_BYTES);
  ProtobufCMessage *message = protobuf_c_message_unpack(descriptor, &arena.allocator, size_bytes, bytes);
  FUZZ_CHECK(arena.total_bytes <= LIMIT_BYTES);
  if (message != NULL) {
    size_t packed_bytes = protobuf_c_message_get_packed_size(message);
    uint8_t *packed = malloc(packed_bytes + 1), *again = malloc(packed_bytes + 1);
    FUZZ_CHECK(packed != NULL && again != NULL);
    FUZZ_CHECK(protobuf_c_message_pack(message, packed) == packed_bytes);
    bl__arena_reset(&arena);
    message = protobuf_c_message_unpack(descriptor, &arena.allocator, packed_bytes, packed);
    if (message != NULL) { // else over the limit
      FUZZ_CHECK(protobuf_c_message_get_packed_size(message) == packed_bytes);
      FUZZ_CHECK(protobuf_c_message_pack(message, again) == packed_bytes);
      FUZZ_CHECK(memcmp(packed, again, packed_bytes) == 0);
    }
    free(packed);
    free(again);
  }
  bl__arena_reset(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes) {
  if (size_bytes == 0) {
    return 0;
  }
  unsigned count = 0;
  while (message_at(count) != NULL) {
    count++;
  }
  FUZZ_CHECK(count > 60 && count <= 256); // one byte must reach all
  if (bytes[0] == 255) {                  // the same bytes as every one of them
    for (unsigned i = 0; i < count; i++) {
      try_message(message_at(i), bytes + 1, size_bytes - 1);
    }
  } else {
    try_message(message_at(bytes[0] % count), bytes + 1, size_bytes - 1);
  }
  return 0;
}
