// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/plan/footprint_json.h"

#include "base/bytes.h"

#include <stdio.h>

#define PARTS 10

typedef struct part {
  const char *name;
  double bytes;
} part_t;

static void list_parts(const bl_footprint_t *f, part_t parts[PARTS]) {
  const part_t list[PARTS] = {{"weights", f->weights},   {"gradients", f->gradients},   {"optimizer", f->optimizer},
                              {"slots", f->activations}, {"edges", f->edges},           {"workspace", f->workspace},
                              {"data", f->data},         {"checkpoint", f->checkpoint}, {"shadow", f->shadow},
                              {"kv-cache", f->kv_cache}};
  for (size_t i = 0; i < PARTS; i++) {
    parts[i] = list[i];
  }
}

json_t *bl_ctl_footprint_json(const bl_footprint_t *footprint) {
  json_t *object = json_object();
  part_t parts[PARTS];
  list_parts(footprint, parts);
  for (size_t i = 0; i < PARTS; i++) {
    json_object_set_new(object, parts[i].name, json_real(parts[i].bytes));
  }
  if (footprint->host > 0) { // in host memory
    json_object_set_new(object, "optimizer-host", json_real(footprint->host));
  }
  return object;
}

const char *bl_ctl_footprint_text(const bl_footprint_t *footprint, char *text, size_t bytes) {
  part_t parts[PARTS];
  size_t used = 0;
  text[0] = '\0';
  list_parts(footprint, parts);
  for (size_t i = 0; i < PARTS && used < bytes; i++) {
    char value[BL_BYTES_TEXT];
    if (parts[i].bytes >= 1) {
      used += (size_t)snprintf(text + used, bytes - used, "%s%s %s", used > 0 ? ", " : "", parts[i].name,
                               bl_bytes_format((uint64_t)parts[i].bytes, value));
    }
  }
  return text;
}

void bl_ctl_footprint_left_out(json_t *object, const bl_ctl_operations_t *operations) {
  if (object != NULL && operations->unknown.text[0] != '\0') {
    json_object_set_new(object, "memory_without", json_string(operations->without));
    json_object_set_new(object, "memory_unknown", json_string(operations->unknown.text));
  }
}
