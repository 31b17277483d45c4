// SPDX-License-Identifier: Apache-2.0
// Verifies unpacking at its edges: memory that runs out at every allocation, bytes that are no message, limits.
#include "rpc/message.h"

#include "echo_wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

// A request with a text, a payload and three sub-messages, as bytes on the wire.
static const uint8_t sample[] = {0x0a, 5,    'h', 'e',  'l', 'l',  'o', 0x12, 3, 1,    2,
                                 3,    0x18, 7,   0x28, 9,   0x32, 0,   0x32, 0, 0x32, 0};

static const ProtobufCMessageDescriptor *request_type(void) {
  return protobuf_c_service_descriptor_get_method_by_name(echo_service(), "Say")->input;
}

static bl_status_t unpack(const uint8_t *bytes, size_t size_bytes, bl__arena_t *arena, ProtobufCMessage **message) {
  bl_error_t err;
  grpc_slice slice = grpc_slice_from_copied_buffer((const char *)bytes, size_bytes);
  grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
  grpc_slice_unref(slice);
  bl_status_t status = bl__message_unpack(request_type(), buffer, arena, message, &err);
  grpc_byte_buffer_destroy(buffer);
  return status;
}

static void memory_may_run_out_at_every_allocation(void **state) {
  (void)state;
  bl__arena_t arena;
  ProtobufCMessage *message = NULL;
  unsigned refused = 0;
  size_t limit_bytes = 0;
  for (;; limit_bytes += _Alignof(max_align_t)) {
    bl__arena_init(&arena, limit_bytes);
    bl_status_t status = unpack(sample, sizeof sample, &arena, &message);
    if (status == BL_OK) {
      break;
    }
    assert_int_equal(status, BL_EXHAUSTED);
    refused++;
    bl__arena_reset(&arena);
    assert_in_range(limit_bytes, 0, 4096);
  }
  assert_in_range(refused, 5, 256);
  echo_request_t request = echo_read_request(message);
  assert_string_equal(request.text, "hello");
  assert_int_equal(request.payload_bytes, 3);
  assert_int_equal(request.delay_ms, 7);
  assert_int_equal(request.count, 9);
  assert_int_equal(request.nothings, 3);
  bl__arena_reset(&arena);
}

static void every_truncation_is_refused_or_a_shorter_message(void **state) {
  (void)state;
  bl__arena_t arena;
  ProtobufCMessage *message;
  unsigned whole = 0;
  bl__arena_init(&arena, 1 << 16);
  for (size_t size_bytes = 0; size_bytes <= sizeof sample; size_bytes++) {
    bl_status_t status = unpack(sample, size_bytes, &arena, &message);
    assert_true(status == BL_OK || status == BL_INVALID);
    whole += status == BL_OK;
    bl__arena_reset(&arena);
  }
  assert_int_equal(whole, 8); // nothing, and after each of the seven fields
}

static void garbage_is_refused_or_harmless(void **state) {
  (void)state;
  bl__arena_t arena;
  ProtobufCMessage *message;
  uint8_t bytes[64];
  uint32_t x = 99;
  unsigned refused = 0;
  bl__arena_init(&arena, 1 << 16);
  for (unsigned round = 0; round < 20000; round++) {
    size_t size_bytes = round % sizeof bytes;
    for (size_t i = 0; i < size_bytes; i++) {
      x = x * 1664525 + 1013904223;
      bytes[i] = (uint8_t)(x >> 24);
    }
    refused += unpack(bytes, size_bytes, &arena, &message) != BL_OK;
    bl__arena_reset(&arena);
  }
  assert_in_range(refused, 10000, 20000);
}

int main(void) {
  grpc_init();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(memory_may_run_out_at_every_allocation),
      cmocka_unit_test(every_truncation_is_refused_or_a_shorter_message),
      cmocka_unit_test(garbage_is_refused_or_harmless),
  };
  int failures = cmocka_run_group_tests(tests, NULL, NULL);
  grpc_shutdown();
  return failures;
}
