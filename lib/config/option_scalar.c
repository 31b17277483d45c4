// SPDX-License-Identifier: Apache-2.0
#include "config/option_scalar.h"

#include "base/bytes.h"
#include "config/nearest.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

bool bl__scalar_is_null(const bl__scalar_t *scalar) {
  const char *text = scalar->text;
  return !scalar->quoted && (strcmp(text, "null") == 0 || strcmp(text, "~") == 0 || strcmp(text, "Null") == 0 ||
                             strcmp(text, "NULL") == 0);
}

const char *bl__quote(const char *text, size_t length, char quoted[BL__QUOTE_TEXT]) {
  size_t room = BL__QUOTE_TEXT - 6; // without two quotes, three dots and the terminator
  size_t used = 0;
  quoted[used++] = '\'';
  size_t shown = length <= room ? length : room;
  while (shown < length && shown > 0 && ((unsigned char)text[shown] & 0xC0) == 0x80) {
    shown--; // never truncates inside a UTF-8 sequence
  }
  for (size_t i = 0; i < shown; i++) {
    unsigned char byte = (unsigned char)text[i];
    quoted[used++] = byte < 0x20 || byte == 0x7F ? '?' : (char)byte;
  }
  if (shown < length) {
    memcpy(quoted + used, "...", 3);
    used += 3;
  }
  quoted[used++] = '\'';
  quoted[used] = '\0';
  return quoted;
}

const char *bl__real_format(double value, char text[BL__REAL_TEXT]) {
  for (int digits = 6; digits <= 17; digits++) {
    snprintf(text, BL__REAL_TEXT, "%.*g", digits, value);
    if (strtod(text, NULL) == value) {
      break;
    }
  }
  return text;
}

const char *bl__range_format(const bl_option_t *row, char text[BL__RANGE_TEXT]) {
  char low[BL__REAL_TEXT], high[BL__REAL_TEXT];
  if (row->minimum == 0 && row->maximum == 0) {
    text[0] = '\0';
  } else if (row->maximum == HUGE_VAL) {
    snprintf(text, BL__RANGE_TEXT, "%s %s", row->minimum_open ? ">" : ">=", bl__real_format(row->minimum, low));
  } else {
    snprintf(text, BL__RANGE_TEXT, "%c%s, %s%c", row->minimum_open ? '(' : '[', bl__real_format(row->minimum, low),
             bl__real_format(row->maximum, high), row->maximum_open ? ')' : ']');
  }
  return text;
}

// ---- numbers ----

static const char *skip_digits(const char *at) {
  while (isdigit((unsigned char)*at)) {
    at++;
  }
  return at;
}

// [-+]? digits: the integers of YAML 1.2 without octal and hexadecimal.
static bool looks_like_integer(const char *text) {
  const char *at = text + (*text == '-' || *text == '+');
  const char *end = skip_digits(at);
  return end > at && *end == '\0';
}

// [-+]? (digits [. digits] | . digits) [(e|E) [-+]? digits]: no inf, no nan, no hexadecimal.
bool bl__scalar_is_real_text(const char *text) {
  const char *at = text + (*text == '-' || *text == '+');
  const char *whole_end = skip_digits(at);
  size_t digits = (size_t)(whole_end - at);
  at = whole_end;
  if (*at == '.') {
    const char *fraction_end = skip_digits(at + 1);
    digits += (size_t)(fraction_end - at - 1);
    at = fraction_end;
  }
  if (digits == 0) {
    return false;
  }
  if (*at == 'e' || *at == 'E') {
    at += 1 + (at[1] == '-' || at[1] == '+');
    const char *exponent_end = skip_digits(at);
    if (exponent_end == at) {
      return false;
    }
    at = exponent_end;
  }
  return *at == '\0';
}

static bl_status_t expected(bl_error_t *err, const char *what, const bl__scalar_t *scalar) {
  char quoted[BL__QUOTE_TEXT];
  if (scalar->quoted && strstr(what, "text") == NULL) {
    return bl_error_set(err, BL_INVALID, "must be %s, is text in quotes: %s", what,
                        bl__quote(scalar->text, scalar->length, quoted));
  }
  return bl_error_set(err, BL_INVALID, "must be %s, is %s", what, bl__quote(scalar->text, scalar->length, quoted));
}

static bl_status_t check_range(const bl_option_t *row, double value, const bl__scalar_t *scalar, bl_error_t *err) {
  if (row->minimum == 0 && row->maximum == 0) {
    return BL_OK;
  }
  bool low = row->minimum_open ? value <= row->minimum : value < row->minimum;
  bool high = row->maximum_open ? value >= row->maximum : value > row->maximum;
  if (!low && !high) {
    return BL_OK;
  }
  char range[BL__RANGE_TEXT], bound[BL__REAL_TEXT], quoted[BL__QUOTE_TEXT];
  bl__quote(scalar->text, scalar->length, quoted);
  if (low) {
    return bl_error_set(err, BL_INVALID, "must be %s %s, is %s", row->minimum_open ? "more than" : "at least",
                        bl__real_format(row->minimum, bound), quoted);
  }
  return bl_error_set(err, BL_INVALID, "must be in %s, is %s", bl__range_format(row, range), quoted);
}

bl_status_t bl__scalar_read_integer(const bl_option_t *row, const bl__scalar_t *scalar, int64_t *value,
                                    bl_error_t *err) {
  if (scalar->quoted || !looks_like_integer(scalar->text)) {
    return expected(err, "an integer", scalar);
  }
  errno = 0;
  long long number = strtoll(scalar->text, NULL, 10);
  if (errno != 0) {
    return expected(err, "an integer below 2^63", scalar);
  }
  bl_status_t status = check_range(row, (double)number, scalar, err);
  if (status == BL_OK) {
    *value = number;
  }
  return status;
}

bl_status_t bl__scalar_read_real(const bl_option_t *row, const bl__scalar_t *scalar, double *value, bl_error_t *err) {
  if (scalar->quoted || !bl__scalar_is_real_text(scalar->text)) {
    return expected(err, "a number", scalar);
  }
  double number = strtod(scalar->text, NULL);
  if (!isfinite(number)) {
    return expected(err, "a number that a double can hold", scalar);
  }
  bl_status_t status = check_range(row, number, scalar, err);
  if (status == BL_OK) {
    *value = number;
  }
  return status;
}

bl_status_t bl__scalar_read_bytes(const bl_option_t *row, const bl__scalar_t *scalar, int64_t *value, bl_error_t *err) {
  uint64_t bytes;
  if (!bl_bytes_parse(scalar->text, &bytes) || bytes > INT64_MAX) {
    return expected(err, "a size in bytes such as 1048576 or 64 MiB", scalar);
  }
  bl_status_t status = check_range(row, (double)bytes, scalar, err);
  if (status == BL_OK) {
    *value = (int64_t)bytes;
  }
  return status;
}

bl_status_t bl__scalar_read_bool(const bl__scalar_t *scalar, bool *value, bl_error_t *err) {
  if (!scalar->quoted && strcmp(scalar->text, "true") == 0) {
    *value = true;
    return BL_OK;
  }
  if (!scalar->quoted && strcmp(scalar->text, "false") == 0) {
    *value = false;
    return BL_OK;
  }
  return expected(err, "true or false", scalar);
}

bl_status_t bl__scalar_read_choice(const bl_option_t *row, const bl__scalar_t *scalar, int *value, bl_error_t *err) {
  bl_nearest_t nearest = {.name = scalar->text};
  char list[512] = "";
  size_t used = 0;
  for (int i = 0; row->choices[i] != NULL; i++) {
    const char *choice = row->choices[i];
    if (choice[0] == '\0') {
      continue;
    }
    if (strcmp(choice, scalar->text) == 0) {
      *value = i;
      return BL_OK;
    }
    bl_nearest_offer(&nearest, choice);
    used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", used > 0 ? ", " : "", choice);
    if (used >= sizeof list) {
      used = sizeof list - 1;
    }
  }
  char quoted[BL__QUOTE_TEXT];
  bl__quote(scalar->text, scalar->length, quoted);
  if (nearest.best != NULL && bl_nearest_is_near(scalar->text, nearest.best)) {
    return bl_error_set(err, BL_INVALID, "must be one of %s; is %s, did you mean '%s'?", list, quoted, nearest.best);
  }
  return bl_error_set(err, BL_INVALID, "must be one of %s; is %s", list, quoted);
}

// ---- texts ----

bl_status_t bl__scalar_read_text(const bl_option_t *row, const bl__scalar_t *scalar, const char *folder, char **value,
                                 bl_error_t *err) {
  if (scalar->length == 0) {
    return bl_error_set(err, BL_INVALID, "is empty");
  }
  if (scalar->length > BL_OPTIONS_TEXT_BYTES) {
    return bl_error_set(err, BL_INVALID, "is longer than %d bytes", BL_OPTIONS_TEXT_BYTES);
  }
  for (size_t i = 0; i < scalar->length; i++) {
    unsigned char byte = (unsigned char)scalar->text[i];
    if (byte < 0x20 || byte == 0x7F) {
      return bl_error_set(err, BL_INVALID, "holds a control character (code %u)", byte);
    }
  }
  bool path =
      row->type == BL_OPTION_PATH || row->type == BL_OPTION_PATH_LIST || row->type == BL_OPTION_FILES_OR_FRACTION;
  bool joined = path && folder != NULL && folder[0] != '\0' && scalar->text[0] != '/';
  size_t folder_bytes = joined ? strlen(folder) : 0;
  char *copy = malloc(folder_bytes + 1 + scalar->length + 1);
  if (copy == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory");
  }
  size_t used = 0;
  if (joined) {
    memcpy(copy, folder, folder_bytes);
    used = folder_bytes;
    if (copy[used - 1] != '/') {
      copy[used++] = '/';
    }
  }
  memcpy(copy + used, scalar->text, scalar->length);
  copy[used + scalar->length] = '\0';
  *value = copy;
  return BL_OK;
}
