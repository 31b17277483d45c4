// SPDX-License-Identifier: Apache-2.0
#include "rpc/message.h"

#include "base/bytes.h"

#include <grpc/byte_buffer_reader.h>

bl_status_t bl__message_pack(const ProtobufCMessage *message, size_t limit_bytes, grpc_byte_buffer **buffer,
                             bl_error_t *err) {
  size_t size_bytes = protobuf_c_message_get_packed_size(message);
  if (size_bytes > limit_bytes) {
    char size[BL_BYTES_TEXT], limit[BL_BYTES_TEXT];
    return bl_error_set(err, BL_EXHAUSTED, "%s takes %s, more than the limit of %s for one message",
                        message->descriptor->short_name, bl_bytes_format(size_bytes, size),
                        bl_bytes_format(limit_bytes, limit));
  }
  grpc_slice slice = grpc_slice_malloc(size_bytes);
  protobuf_c_message_pack(message, GRPC_SLICE_START_PTR(slice));
  *buffer = grpc_raw_byte_buffer_create(&slice, 1);
  grpc_slice_unref(slice);
  return BL_OK;
}

// Returns the buffer's bytes as one slice, without a copy if the buffer is one slice. The caller unrefs it.
static bool read_slice(grpc_byte_buffer *buffer, grpc_slice *slice) {
  grpc_byte_buffer_reader reader;
  size_t size_bytes = grpc_byte_buffer_length(buffer);
  if (!grpc_byte_buffer_reader_init(&reader, buffer)) {
    return false;
  }
  if (size_bytes == 0) {
    *slice = grpc_empty_slice();
  } else if (!grpc_byte_buffer_reader_next(&reader, slice)) {
    grpc_byte_buffer_reader_destroy(&reader);
    return false;
  } else if (GRPC_SLICE_LENGTH(*slice) != size_bytes) {
    grpc_slice_unref(*slice);
    grpc_byte_buffer_reader_destroy(&reader);
    if (!grpc_byte_buffer_reader_init(&reader, buffer)) {
      return false;
    }
    *slice = grpc_byte_buffer_reader_readall(&reader);
  }
  grpc_byte_buffer_reader_destroy(&reader);
  return true;
}

bl_status_t bl__message_unpack(const ProtobufCMessageDescriptor *descriptor, grpc_byte_buffer *buffer,
                               bl__arena_t *arena, ProtobufCMessage **message, bl_error_t *err) {
  grpc_slice slice;
  if (!read_slice(buffer, &slice)) {
    return bl_error_set(err, BL_INVALID, "%s cannot be decompressed", descriptor->short_name);
  }
  size_t size_bytes = GRPC_SLICE_LENGTH(slice);
  ProtobufCMessage *unpacked =
      protobuf_c_message_unpack(descriptor, &arena->allocator, size_bytes, GRPC_SLICE_START_PTR(slice));
  grpc_slice_unref(slice);
  if (unpacked == NULL) {
    char size[BL_BYTES_TEXT], limit[BL_BYTES_TEXT];
    if (arena->exceeded) {
      return bl_error_set(err, BL_EXHAUSTED, "%s of %s needs more than the limit of %s in memory",
                          descriptor->short_name, bl_bytes_format(size_bytes, size),
                          bl_bytes_format(arena->limit_bytes, limit));
    }
    return bl_error_set(err, BL_INVALID, "these %s are not a %s", bl_bytes_format(size_bytes, size), descriptor->name);
  }
  *message = unpacked;
  return BL_OK;
}
