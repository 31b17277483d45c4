// SPDX-License-Identifier: Apache-2.0
// Field numbers are those of google/protobuf/descriptor.proto.
#include "rpc/descriptors.h"

#include <string.h>

enum { SET_FILE = 1, NAME = 1, FILE_PACKAGE = 2, FILE_DEPENDENCY = 3, ENUM_VALUE = 2 };

// Nested messages. Generated code nests two or three deep.
#define DEPTH_MAX 16

typedef enum { LEAF, MESSAGE, ENUM, SERVICE, FILE_SCOPE } scope_t;

// A named member of a scope: the field that holds it, and its kind.
typedef struct child {
  scope_t scope;
  uint32_t field;
  scope_t is;
} child_t;

static const child_t children[] = {
    {FILE_SCOPE, 4, MESSAGE}, {FILE_SCOPE, 5, ENUM}, {FILE_SCOPE, 6, SERVICE}, {FILE_SCOPE, 7, LEAF},
    {MESSAGE, 2, LEAF},       {MESSAGE, 3, MESSAGE}, {MESSAGE, 4, ENUM},       {MESSAGE, 6, LEAF},
    {MESSAGE, 8, LEAF},       {SERVICE, 2, LEAF},
};

// ---- wire format ----------------------------------------------------------------------------------------------------

static bool take_varint(bl__span_t *rest, uint64_t *value) {
  *value = 0;
  for (unsigned shift = 0; shift < 64 && rest->size_bytes > 0; shift += 7) {
    uint8_t byte = *rest->bytes++;
    rest->size_bytes--;
    *value |= (uint64_t)(byte & 0x7f) << shift;
    if ((byte & 0x80) == 0) {
      return true;
    }
  }
  return false;
}

static bool take_bytes(bl__span_t *rest, uint64_t count, bl__span_t *taken) {
  if (count > rest->size_bytes) {
    return false;
  }
  *taken = (bl__span_t){rest->bytes, (size_t)count};
  rest->bytes += count;
  rest->size_bytes -= (size_t)count;
  return true;
}

// Returns the next field that is a text, bytes or message, and skips others. False: end of the bytes, or malformed
// bytes.
static bool next_field(bl__span_t *rest, uint32_t *number, bl__span_t *value) {
  uint64_t key, scalar;
  while (take_varint(rest, &key)) {
    bool ok;
    switch (key & 7) {
    case 0:
      ok = take_varint(rest, &scalar);
      break;
    case 1:
      ok = take_bytes(rest, 8, value);
      break;
    case 5:
      ok = take_bytes(rest, 4, value);
      break;
    case 2:
      *number = (uint32_t)(key >> 3);
      return take_varint(rest, &scalar) && take_bytes(rest, scalar, value);
    default:
      ok = false;
    }
    if (!ok) {
      return false;
    }
  }
  return false;
}

static bl__span_t text_of(bl__span_t message, uint32_t wanted) {
  uint32_t number;
  bl__span_t value;
  while (next_field(&message, &number, &value)) {
    if (number == wanted) {
      return value;
    }
  }
  return (bl__span_t){(const uint8_t *)"", 0};
}

static bool equals(bl__span_t a, bl__span_t b) {
  return a.size_bytes == b.size_bytes && memcmp(a.bytes, b.bytes, a.size_bytes) == 0;
}

static bl__span_t span_of(const char *text) {
  return (bl__span_t){(const uint8_t *)text, strlen(text)};
}

// ---- symbols --------------------------------------------------------------------------------------------------------

// An enum's values are named in the scope that contains the enum, not inside the enum.
static bool enum_has_value(bl__span_t message, bl__span_t name) {
  uint32_t number;
  bl__span_t value;
  while (next_field(&message, &number, &value)) {
    if (number == ENUM_VALUE && equals(text_of(value, NAME), name)) {
      return true;
    }
  }
  return false;
}

static bool child_of(scope_t scope, uint32_t field, scope_t *is) {
  for (size_t i = 0; i < sizeof children / sizeof children[0]; i++) {
    if (children[i].scope == scope && children[i].field == field) {
      *is = children[i].is;
      return true;
    }
  }
  return false;
}

// Returns whether `path`, e.g. "Outer.Inner.field", is defined in `message`, and its kind.
static bool find(bl__span_t message, scope_t scope, const char *path, scope_t *found, unsigned depth) {
  const char *dot = strchr(path, '.');
  const bl__span_t first = {(const uint8_t *)path, dot != NULL ? (size_t)(dot - path) : strlen(path)};
  uint32_t number;
  bl__span_t value;
  scope_t is;
  while (next_field(&message, &number, &value)) {
    if (!child_of(scope, number, &is)) {
      continue;
    }
    if (equals(text_of(value, NAME), first)) {
      if (dot == NULL) {
        *found = is;
        return true;
      }
      return depth < DEPTH_MAX && find(value, is, dot + 1, found, depth + 1);
    }
    if (is == ENUM && dot == NULL && enum_has_value(value, first)) {
      *found = LEAF;
      return true;
    }
  }
  return false;
}

static bool find_symbol(bl__span_t set, const char *symbol, bl__span_t *file, scope_t *found) {
  uint32_t number;
  bl__span_t value;
  while (next_field(&set, &number, &value)) {
    if (number != SET_FILE) {
      continue;
    }
    const bl__span_t package = text_of(value, FILE_PACKAGE);
    const char *path = symbol;
    if (package.size_bytes > 0) {
      if (strncmp(symbol, (const char *)package.bytes, package.size_bytes) != 0 || symbol[package.size_bytes] != '.') {
        continue;
      }
      path = symbol + package.size_bytes + 1;
    }
    if (find(value, FILE_SCOPE, path, found, 0)) {
      *file = value;
      return true;
    }
  }
  return false;
}

bool bl__descriptors_symbol(bl__span_t set, const char *symbol, bl__span_t *file) {
  scope_t found;
  return find_symbol(set, symbol, file, &found);
}

bool bl__descriptors_message(bl__span_t set, const char *name) {
  bl__span_t file;
  scope_t found;
  return find_symbol(set, name, &file, &found) && found == MESSAGE;
}

// ---- files ----------------------------------------------------------------------------------------------------------

static bool find_file(bl__span_t set, bl__span_t name, bl__span_t *file) {
  uint32_t number;
  bl__span_t value;
  while (next_field(&set, &number, &value)) {
    if (number == SET_FILE && equals(text_of(value, NAME), name)) {
      *file = value;
      return true;
    }
  }
  return false;
}

bool bl__descriptors_file(bl__span_t set, const char *name, bl__span_t *file) {
  return find_file(set, span_of(name), file);
}

static bool holds(const bl__span_t *files, size_t count, bl__span_t file) {
  for (size_t i = 0; i < count; i++) {
    if (files[i].bytes == file.bytes) {
      return true;
    }
  }
  return false;
}

size_t bl__descriptors_closure(bl__span_t set, bl__span_t file, bl__span_t *files, size_t capacity) {
  size_t count = 0;
  if (capacity > 0) {
    files[count++] = file;
  }
  for (size_t next = 0; next < count; next++) {
    bl__span_t rest = files[next], value, import;
    uint32_t number;
    while (next_field(&rest, &number, &value)) {
      if (number == FILE_DEPENDENCY && count < capacity && find_file(set, value, &import) &&
          !holds(files, count, import)) {
        files[count++] = import;
      }
    }
  }
  return count;
}
