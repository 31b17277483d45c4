// SPDX-License-Identifier: Apache-2.0
#include "base/bytes.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

static const char *const binary_units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
static const char *const decimal_units[] = {"B", "KB", "MB", "GB", "TB", "PB", "EB"};
#define UNIT_COUNT (sizeof binary_units / sizeof binary_units[0])

const char *bl_bytes_format(uint64_t bytes, char text[BL_BYTES_TEXT]) {
  double value = (double)bytes;
  size_t unit = 0;
  while (value >= 1023.5 && unit + 1 < UNIT_COUNT) {
    value /= 1024;
    unit++;
  }
  int decimals = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  snprintf(text, BL_BYTES_TEXT, "%.*f %s", decimals, value, binary_units[unit]);
  return text;
}

static bool unit_factor(const char *unit, double *factor) {
  if (unit[0] == '\0') {
    *factor = 1;
    return true;
  }
  double binary = 1, decimal = 1;
  for (size_t i = 0; i < UNIT_COUNT; i++, binary *= 1024, decimal *= 1000) {
    if (strcasecmp(unit, binary_units[i]) == 0) {
      *factor = binary;
      return true;
    }
    if (strcasecmp(unit, decimal_units[i]) == 0) {
      *factor = decimal;
      return true;
    }
  }
  return false;
}

bool bl_bytes_parse(const char *text, uint64_t *bytes) {
  while (isspace((unsigned char)*text)) {
    text++;
  }
  if (!isdigit((unsigned char)text[0]) || (text[0] == '0' && (text[1] == 'x' || text[1] == 'X'))) {
    return false; // no sign, no "inf", no hexadecimal numbers
  }
  char *end;
  double number = strtod(text, &end);
  while (isspace((unsigned char)*end)) {
    end++;
  }
  double factor;
  if (!unit_factor(end, &factor) || !(number * factor < 0x1p64)) {
    return false;
  }
  *bytes = (uint64_t)(number * factor);
  return true;
}
