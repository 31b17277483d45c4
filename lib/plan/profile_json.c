// SPDX-License-Identifier: Apache-2.0
#include "plan/profile.h"

#include <jansson.h>

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_MAX (1u << 24) // of any list: far above any run, and bounds what a broken file can ask for

static const char *const attentions[] = {"naive", "flash"};
static const char *const recomputes[] = {"none", "attention", "full"};

// ---- reading

typedef struct reader {
  const char *name; // of the file
  bl_error_t *err;
  bool failed;
} reader_t;

static void refuse(reader_t *r, const char *where, const char *key, const char *what) {
  if (!r->failed) {
    (void)bl_error_set(r->err, BL_INVALID, "profile %s: %s%s%s %s", r->name, where, *where != '\0' ? "." : "", key,
                       what);
    r->failed = true;
  }
}

static double read_seconds(reader_t *r, const json_t *object, const char *where, const char *key) {
  const json_t *value = json_object_get(object, key);
  double number = json_number_value(value);
  if (!json_is_number(value)) {
    refuse(r, where, key, "is not a number");
  } else if (!isfinite(number) || number < 0) {
    char text[64];
    snprintf(text, sizeof text, "must be 0 or more seconds, is %g", number);
    refuse(r, where, key, text);
  }
  return number;
}

static uint32_t read_count(reader_t *r, const json_t *object, const char *where, const char *key, json_int_t least) {
  const json_t *value = json_object_get(object, key);
  json_int_t number = json_integer_value(value);
  if (!json_is_integer(value) || number < least || number > UINT32_MAX) {
    refuse(r, where, key, "is not a count");
    return (uint32_t)least;
  }
  return (uint32_t)number;
}

static const char *read_text(reader_t *r, const json_t *object, const char *key) {
  const char *text = json_string_value(json_object_get(object, key));
  if (text == NULL) {
    refuse(r, "", key, "is not a text");
    return "";
  }
  return text;
}

static uint32_t read_choice(reader_t *r, const json_t *object, const char *key, const char *const *choices,
                            uint32_t count) {
  const char *text = read_text(r, object, key);
  for (uint32_t i = 0; i < count; i++) {
    if (strcmp(text, choices[i]) == 0) {
      return i;
    }
  }
  refuse(r, "", key, "is none of the known words");
  return 0;
}

static void read_chunk(reader_t *r, const json_t *object, bl_profile_t *p, uint32_t index) {
  bl_profile_chunk_t *chunk = &p->chunks[index];
  char where[32];
  snprintf(where, sizeof where, "chunks[%u]", index);
  chunk->stage = read_count(r, object, where, "stage", 0);
  if (chunk->stage >= p->stage_count) {
    refuse(r, where, "stage", "is not one of the stages");
  }
  chunk->span = (bl_chunk_span_t){.first_layer = read_count(r, object, where, "first_layer", 0),
                                  .layer_count = read_count(r, object, where, "layers", 0),
                                  .embedding = index == 0,
                                  .head = index + 1 == p->chunk_count};
  chunk->costs = (bl_chunk_costs_t){.forward = read_seconds(r, object, where, "F"),
                                    .input = read_seconds(r, object, where, "I"),
                                    .weight = read_seconds(r, object, where, "W"),
                                    .recompute = read_seconds(r, object, where, "R")};
  chunk->measured_input = json_is_true(json_object_get(object, "measured_I"));
  chunk->measured_recompute = json_is_true(json_object_get(object, "measured_R"));
}

static void read_stage(reader_t *r, const json_t *object, bl_profile_t *p, uint32_t index) {
  bl_profile_stage_t *stage = &p->stages[index];
  char where[32];
  snprintf(where, sizeof where, "stages[%u]", index);
  const json_t *bytes = json_object_get(object, "slot_bytes"), *times = json_object_get(object, "times");
  if (!json_is_integer(bytes) || json_integer_value(bytes) < 0) {
    refuse(r, where, "slot_bytes", "is not a number of bytes");
  }
  stage->slot_bytes = (uint64_t)json_integer_value(bytes);
  stage->evict = read_seconds(r, object, where, "evict");
  stage->load = read_seconds(r, object, where, "load");
  const json_t *rate = json_object_get(object, "path_rate"); // absent in profiles of older programs
  stage->path_rate = json_number_value(rate);
  if (rate != NULL && (!json_is_number(rate) || !isfinite(stage->path_rate) || stage->path_rate < 0)) {
    refuse(r, where, "path_rate", "is not a number of bytes per second");
  }
  stage->step_end = read_seconds(r, object, where, "step_end");
  size_t count = json_array_size(times);
  stage->times = count <= ROWS_MAX ? calloc(count + 1, sizeof *stage->times) : NULL;
  if (stage->times == NULL) {
    refuse(r, where, "times", "is too long");
    return;
  }
  stage->time_count = (uint32_t)count;
  for (size_t i = 0; i < count; i++) {
    stage->times[i] = json_number_value(json_array_get(times, i));
    if (!json_is_number(json_array_get(times, i)) || !isfinite(stage->times[i]) || stage->times[i] < 0) {
      refuse(r, where, "times", "has an entry that is not a number of seconds");
    }
  }
}

static void read_head(reader_t *r, const json_t *root, bl_profile_t *p) {
  p->model_digest = strtoull(read_text(r, root, "model_digest"), NULL, 16);
  snprintf(p->model_text, sizeof p->model_text, "%s", read_text(r, root, "model"));
  snprintf(p->schedule, sizeof p->schedule, "%s", read_text(r, root, "schedule"));
  p->options = (bl_layout_options_t){
      .micro_batch = read_count(r, root, "", "micro_batch", 1),
      .attention = (bl_attention_t)read_choice(r, root, "attention", attentions, 2),
      .recompute = (bl_recompute_t)read_choice(r, root, "recompute", recomputes, 3),
      .backward = json_is_true(json_object_get(root, "split_backward")) ? BL_BACKWARD_SPLIT : BL_BACKWARD_FUSED,
      .lean = json_is_true(json_object_get(root, "lean"))};
  p->micro_batches = read_count(r, root, "", "micro_batches", 1);
  p->cores = read_count(r, root, "", "cores", 0);
  p->steps = read_count(r, root, "", "steps", 1);
  p->step = read_seconds(r, root, "", "step");
  p->makespan = read_seconds(r, root, "", "makespan");
  p->between = read_seconds(r, root, "", "between");
  p->boundary = read_seconds(r, root, "", "boundary");
  p->handover =
      json_object_get(root, "handover") != NULL ? read_seconds(r, root, "", "handover") : 0; // of older programs
  p->replay_makespan = read_seconds(r, root, "", "replay_makespan");
}

static void read_lists(reader_t *r, const json_t *root, bl_profile_t *p) {
  const json_t *stages = json_object_get(root, "stages"), *chunks = json_object_get(root, "chunks");
  if (json_array_size(stages) == 0 || json_array_size(stages) > BL_STAGES_MAX) {
    refuse(r, "", "stages", "is not a list of stages");
  } else if (json_array_size(chunks) < json_array_size(stages) || json_array_size(chunks) > BL_VIRTUAL_STAGES_MAX) {
    refuse(r, "", "chunks", "is not a list of the stages' chunks");
  }
  if (r->failed) {
    return;
  }
  p->stages = calloc(json_array_size(stages), sizeof *p->stages);
  p->chunks = calloc(json_array_size(chunks), sizeof *p->chunks);
  if (p->stages == NULL || p->chunks == NULL) {
    refuse(r, "", "stages", "do not fit into memory");
    return;
  }
  p->stage_count = (uint32_t)json_array_size(stages);
  p->chunk_count = (uint32_t)json_array_size(chunks);
  for (uint32_t i = 0; i < p->stage_count && !r->failed; i++) {
    read_stage(r, json_array_get(stages, i), p, i);
  }
  for (uint32_t i = 0; i < p->chunk_count && !r->failed; i++) {
    read_chunk(r, json_array_get(chunks, i), p, i);
  }
}

bl_status_t bl_profile_read(bl_profile_t *profile, const char *bytes, size_t size_bytes, const char *name,
                            bl_error_t *err) {
  json_error_t fault;
  bl_profile_t made = {0};
  reader_t r = {.name = name, .err = err};
  json_t *root = json_loadb(bytes, size_bytes, 0, &fault);
  if (root == NULL) {
    return bl_error_set(err, BL_INVALID, "profile %s, line %d: %s", name, fault.line, fault.text);
  }
  const json_t *version = json_object_get(root, "ballast_profile");
  if (!json_is_integer(version)) {
    r.failed = true;
    (void)bl_error_set(err, BL_INVALID, "%s is no profile; ballastctl run --profile FILE records one", name);
  } else if (json_integer_value(version) != BL_PROFILE_VERSION) {
    r.failed = true;
    (void)bl_error_set(err, BL_INVALID, "profile %s has version %" PRId64 ", this program reads version %d", name,
                       (int64_t)json_integer_value(version), BL_PROFILE_VERSION);
  }
  if (!r.failed) {
    read_head(&r, root, &made);
  }
  if (!r.failed) {
    read_lists(&r, root, &made);
  }
  json_decref(root);
  if (r.failed) {
    bl_profile_cleanup(&made);
    return BL_INVALID;
  }
  *profile = made;
  return BL_OK;
}

// ---- writing

static json_t *stage_json(const bl_profile_stage_t *stage) {
  json_t *times = json_array();
  for (uint32_t i = 0; i < stage->time_count; i++) {
    json_array_append_new(times, json_real(stage->times[i]));
  }
  return json_pack("{s:I, s:f, s:f, s:f, s:f, s:o}", "slot_bytes", (json_int_t)stage->slot_bytes, "evict", stage->evict,
                   "load", stage->load, "path_rate", stage->path_rate, "step_end", stage->step_end, "times", times);
}

static json_t *chunk_json(const bl_profile_chunk_t *chunk) {
  return json_pack("{s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:b, s:b}", "stage", (int)chunk->stage, "first_layer",
                   (int)chunk->span.first_layer, "layers", (int)chunk->span.layer_count, "F", chunk->costs.forward, "I",
                   chunk->costs.input, "W", chunk->costs.weight, "R", chunk->costs.recompute, "measured_I",
                   chunk->measured_input, "measured_R", chunk->measured_recompute);
}

bl_status_t bl_profile_write(const bl_profile_t *p, char **text) {
  char digest[24];
  snprintf(digest, sizeof digest, "%016" PRIx64, p->model_digest);
  json_t *stages = json_array(), *chunks = json_array();
  for (uint32_t i = 0; i < p->stage_count; i++) {
    json_array_append_new(stages, stage_json(&p->stages[i]));
  }
  for (uint32_t i = 0; i < p->chunk_count; i++) {
    json_array_append_new(chunks, chunk_json(&p->chunks[i]));
  }
  json_t *root = json_pack(
      "{s:i, s:s, s:s, s:s, s:i, s:s, s:s, s:b, s:b, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:o}",
      "ballast_profile", BL_PROFILE_VERSION, "model", p->model_text, "model_digest", digest, "schedule", p->schedule,
      "micro_batch", (int)p->options.micro_batch, "attention", attentions[p->options.attention], "recompute",
      recomputes[p->options.recompute], "split_backward", p->options.backward == BL_BACKWARD_SPLIT, "lean",
      p->options.lean, "micro_batches", (int)p->micro_batches, "cores", (int)p->cores, "steps", (int)p->steps, "step",
      p->step, "makespan", p->makespan, "between", p->between, "boundary", p->boundary, "handover", p->handover,
      "replay_makespan", p->replay_makespan, "chunks", chunks, "stages", stages);
  *text = root != NULL ? json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) : NULL;
  json_decref(root);
  return *text != NULL ? BL_OK : BL_EXHAUSTED;
}
