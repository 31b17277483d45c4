// SPDX-License-Identifier: Apache-2.0
// The safetensors file format: a header that names every tensor of a file, then the tensors' bytes.
//
//   file = header length (8 bytes, little endian) | header (JSON object) | data
//   header = {"__metadata__": {text: text}, "<name>": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
//
// Offsets count from the start of data. As in the reference implementation, tensors must cover data exactly: no
// overlap, no hole, nothing after the last. Files are not trusted: every number is checked before it is used. So the
// entries of an accepted index can be read without further checks.
//
//   bl_safetensors_t index;
//   if (bl_safetensors_parse(&index, map.bytes, map.size_bytes, err) == BL_OK) {
//     const bl_tensor_entry_t *wte = bl_safetensors_find(&index, "transformer.wte.weight");
//     ... map.bytes + wte->offset_bytes ...
//     bl_safetensors_cleanup(&index);
//   }
//
// PURE. Thread: any; an index is immutable after parsing and belongs to its caller. Errors do not name the
// file, which the caller knows (bl_error_prefix).
#ifndef BALLAST_FORMATS_SAFETENSORS_H
#define BALLAST_FORMATS_SAFETENSORS_H

#include "base/error.h"
#include "base/library.h"

#include <stddef.h>
#include <stdint.h>

// Bounds the memory that a hostile length field can make the parser allocate. The reference implementation has the same
// limit.
#define BL_SAFETENSORS_MAX_HEADER_BYTES 100000000u
#define BL_SAFETENSORS_MAX_RANK         8
#define BL_SAFETENSORS_LENGTH_BYTES     8

// X(identifier, name in the header, bits per element)
#define BL_TENSOR_DTYPE_TABLE(X)                                                                                       \
  X(BL_TENSOR_F32, "F32", 32)                                                                                          \
  X(BL_TENSOR_F16, "F16", 16)                                                                                          \
  X(BL_TENSOR_BF16, "BF16", 16)                                                                                        \
  X(BL_TENSOR_F64, "F64", 64)                                                                                          \
  X(BL_TENSOR_BOOL, "BOOL", 8)                                                                                         \
  X(BL_TENSOR_U8, "U8", 8)                                                                                             \
  X(BL_TENSOR_I8, "I8", 8)                                                                                             \
  X(BL_TENSOR_U16, "U16", 16)                                                                                          \
  X(BL_TENSOR_I16, "I16", 16)                                                                                          \
  X(BL_TENSOR_U32, "U32", 32)                                                                                          \
  X(BL_TENSOR_I32, "I32", 32)                                                                                          \
  X(BL_TENSOR_U64, "U64", 64)                                                                                          \
  X(BL_TENSOR_I64, "I64", 64)                                                                                          \
  X(BL_TENSOR_C64, "C64", 64)                                                                                          \
  X(BL_TENSOR_F4, "F4", 4)                                                                                             \
  X(BL_TENSOR_F6_E2M3, "F6_E2M3", 6)                                                                                   \
  X(BL_TENSOR_F6_E3M2, "F6_E3M2", 6)                                                                                   \
  X(BL_TENSOR_F8_E5M2, "F8_E5M2", 8)                                                                                   \
  X(BL_TENSOR_F8_E4M3, "F8_E4M3", 8)                                                                                   \
  X(BL_TENSOR_F8_E8M0, "F8_E8M0", 8)

typedef enum bl_tensor_dtype {
#define X(identifier, name, bits) identifier,
  BL_TENSOR_DTYPE_TABLE(X)
#undef X
      BL_TENSOR_DTYPE_COUNT
} bl_tensor_dtype_t;

const char *bl_tensor_dtype_name(bl_tensor_dtype_t dtype); // "F32"; never NULL
unsigned bl_tensor_dtype_bits(bl_tensor_dtype_t dtype);

typedef struct bl_tensor_entry {
  const char *name; // owned by the index
  bl_tensor_dtype_t dtype;
  unsigned rank; // 0 for a scalar
  uint64_t shape[BL_SAFETENSORS_MAX_RANK];
  uint64_t elements;     // product of the shape
  uint64_t offset_bytes; // from the start of the file
  uint64_t size_bytes;
} bl_tensor_entry_t;

typedef struct bl_safetensors {
  bl_tensor_entry_t *tensors; // sorted by name (strcmp)
  size_t count;
  uint64_t data_offset_bytes; // where data starts in the file
  char *names;                // private: storage of all names
} bl_safetensors_t;

// Parses the header of a whole file of `size_bytes` bytes. BL_DATA_LOSS: the file is truncated (fewer bytes than its
// header announces). BL_INVALID: not a safetensors file, or a header that contradicts itself. BL_EXHAUSTED: no memory.
// On failure there is nothing to clean up.
BL_MUST_USE bl_status_t bl_safetensors_parse(bl_safetensors_t *index, const uint8_t *bytes, uint64_t size_bytes,
                                             bl_error_t *err);
void bl_safetensors_cleanup(bl_safetensors_t *index);

// Returns the entry called `name`, owned by the index, or NULL.
const bl_tensor_entry_t *bl_safetensors_find(const bl_safetensors_t *index, const char *name);

#define BL_SHAPE_TEXT 160
// Writes "[101, 48]" into `text` and returns it.
const char *bl_shape_format(const uint64_t *shape, unsigned rank, char text[BL_SHAPE_TEXT]);

// Lays the tensors out back to back in the given order and creates the first bytes of the file: length and header,
// padded with spaces so that data starts at a multiple of 8. Reads name, dtype, rank and shape of each tensor; sets
// elements, offset_bytes and size_bytes. *bytes is malloc'd, freed by the caller. BL_INVALID (err names the tensor): a
// shape that overflows, a duplicate or reserved name, a name that is not valid UTF-8; BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_safetensors_write_header(bl_tensor_entry_t *tensors, size_t count, char **bytes,
                                                    size_t *size_bytes, bl_error_t *err);

// The length of a file to which tensors are added one after the other, computed without creating its first bytes.
// Names must be ASCII that JSON does not escape.
typedef struct bl_safetensors_length { // all zero: no tensors yet
  uint64_t text_bytes, data_bytes;
} bl_safetensors_length_t;
void bl_safetensors_length_add(bl_safetensors_length_t *length, const char *name, bl_tensor_dtype_t dtype,
                               const uint64_t *shape, unsigned rank);
uint64_t bl_safetensors_length_header(const bl_safetensors_length_t *length); // of bl_safetensors_write_header

extern const bl_library_t bl_formats_library; // jansson, which reads headers, indexes and config.json

#endif
