// SPDX-License-Identifier: Apache-2.0
#include "plan/profile/profile.h"

#include <jansson.h>

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_MAX (1u << 24) // maximum rows of any list: far above any run, and a limit for broken files
#define COST_MIN 1e-12      // minimum seconds of an operation

static const char *const attentions[] = {"naive", "flash"};
static const char *const losses[] = {"all", "masked"};
static const char *const recomputes[] = {"none", "attention", "full"};
static const char *const dtypes[] = {"fp32", "bf16"};
static const char *const devices[] = {"host", "cuda"};

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

static double read_number(reader_t *r, const json_t *object, const char *where, const char *key, double least,
                          double most, const char *unit) {
  const json_t *value = json_object_get(object, key);
  double number = json_number_value(value);
  if (!json_is_number(value)) {
    refuse(r, where, key, value == NULL ? "is missing" : "is not a number");
  } else if (!isfinite(number) || number < least || number > most) {
    char text[96];
    snprintf(text, sizeof text, "must be from %g to %g %s, is %g", least, most, unit, number);
    refuse(r, where, key, text);
  }
  return number;
}

static double read_seconds(reader_t *r, const json_t *object, const char *where, const char *key) {
  return read_number(r, object, where, key, 0, BL_PROFILE_MOST_SECONDS, "seconds");
}

// Reads a cost that must be positive.
static double read_cost(reader_t *r, const json_t *object, const char *where, const char *key) {
  return read_number(r, object, where, key, COST_MIN, BL_PROFILE_MOST_SECONDS, "seconds");
}

// Reads a value that may not have been measured, or that older programs did not write.
static double read_or(reader_t *r, const json_t *object, const char *where, const char *key, double absent) {
  return json_object_get(object, key) != NULL ? read_seconds(r, object, where, key) : absent;
}

static uint32_t read_count(reader_t *r, const json_t *object, const char *where, const char *key, json_int_t least,
                           json_int_t most) {
  const json_t *value = json_object_get(object, key);
  json_int_t number = json_integer_value(value);
  if (!json_is_integer(value)) {
    refuse(r, where, key, value == NULL ? "is missing" : "is not a count");
  } else if (number < least || number > most) {
    char text[96];
    snprintf(text, sizeof text, "must be from %" PRId64 " to %" PRId64 ", is %" PRId64, (int64_t)least, (int64_t)most,
             (int64_t)number);
    refuse(r, where, key, text);
  }
  return r->failed ? (uint32_t)least : (uint32_t)number;
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

static uint64_t read_digest(reader_t *r, const json_t *object, const char *key) {
  const char *text = read_text(r, object, key);
  size_t length = strlen(text);
  if (!r->failed && (length == 0 || length > 16 || strspn(text, "0123456789abcdef") != length)) {
    refuse(r, "", key, "is not a number of up to 16 hexadecimal digits");
  }
  return strtoull(text, NULL, 16);
}

static bool read_flag(reader_t *r, const json_t *object, const char *where, const char *key) {
  const json_t *value = json_object_get(object, key);
  if (!json_is_boolean(value)) {
    refuse(r, where, key, value == NULL ? "is missing" : "is neither true nor false");
  }
  return json_is_true(value);
}

static bl_chunk_costs_t read_costs(reader_t *r, const json_t *object, const char *where) {
  return (bl_chunk_costs_t){.forward = read_cost(r, object, where, "F"),
                            .input = read_cost(r, object, where, "I"),
                            .weight = read_cost(r, object, where, "W"),
                            .recompute = read_cost(r, object, where, "R")};
}

static void read_slices(reader_t *r, const json_t *object, const char *where, const bl_profile_t *p,
                        bl_profile_chunk_t *chunk) {
  const json_t *slices = json_object_get(object, "slices");
  const uint32_t count = bl_layout_slices(p->options);
  if (slices == NULL) {
    return;
  }
  if (count < 2 || json_array_size(slices) != count) {
    refuse(r, where, "slices", "is no list of as many costs as sequences had slices");
    return;
  }
  chunk->slices = calloc(count, sizeof *chunk->slices);
  if (chunk->slices == NULL) {
    refuse(r, where, "slices", "do not fit into memory");
  }
  for (uint32_t i = 0; i < count && !r->failed; i++) {
    char place[64];
    snprintf(place, sizeof place, "%s.slices[%u]", where, i);
    chunk->slices[i] = read_costs(r, json_array_get(slices, i), place);
  }
}

static void read_chunk(reader_t *r, const json_t *object, bl_profile_t *p, uint32_t index) {
  bl_profile_chunk_t *chunk = &p->chunks[index];
  const uint32_t depth = p->chunk_count / p->pipes;
  char where[32];
  snprintf(where, sizeof where, "chunks[%u]", index);
  chunk->stage = read_count(r, object, where, "stage", 0, BL_STAGES_MAX - 1);
  if (chunk->stage >= p->stage_count) {
    refuse(r, where, "stage", "is not one of the stages");
  }
  chunk->span = (bl_chunk_span_t){.first_layer = read_count(r, object, where, "first_layer", 0, BL_MODEL_LAYERS_MAX),
                                  .layer_count = read_count(r, object, where, "layers", 1, BL_MODEL_LAYERS_MAX),
                                  .embedding = index % depth == 0,
                                  .head = (index + 1) % depth == 0};
  chunk->costs = read_costs(r, object, where);
  read_slices(r, object, where, p, chunk);
  chunk->measured_input = read_flag(r, object, where, "measured_I");
  chunk->measured_recompute = read_flag(r, object, where, "measured_R");
}

static void read_times(reader_t *r, const json_t *times, const char *where, bl_profile_stage_t *stage) {
  size_t count = json_array_size(times);
  if (!json_is_array(times)) {
    refuse(r, where, "times", times == NULL ? "is missing" : "is not a list of seconds");
    return;
  }
  stage->times = count <= ROWS_MAX ? calloc(count + 1, sizeof *stage->times) : NULL;
  if (stage->times == NULL) {
    refuse(r, where, "times", "is too long");
    return;
  }
  stage->time_count = (uint32_t)count;
  for (size_t i = 0; i < count && !r->failed; i++) {
    const json_t *time = json_array_get(times, i);
    stage->times[i] = json_number_value(time);
    if (!json_is_number(time) || !(stage->times[i] >= 0 && stage->times[i] <= BL_PROFILE_MOST_SECONDS)) {
      char text[96];
      snprintf(text, sizeof text, "has an entry, number %zu from 0, that is not from 0 to %g seconds", i,
               BL_PROFILE_MOST_SECONDS);
      refuse(r, where, "times", text);
    }
  }
}

// Reads a rate. 0, which older programs wrote: no copies were measured.
static double read_rate(reader_t *r, const json_t *object, const char *where, const char *key) {
  const json_t *rate = json_object_get(object, key);
  if (rate != NULL && !json_is_number(rate)) {
    refuse(r, where, key, "is not a number");
  }
  return rate != NULL && json_number_value(rate) != 0
             ? read_number(r, object, where, key, BL_PROFILE_LEAST_RATE, BL_PROFILE_MOST_RATE, "bytes per second")
             : 0;
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
  stage->evict = read_or(r, object, where, "evict", 0);
  stage->load = read_or(r, object, where, "load", 0);
  stage->boundary = read_or(r, object, where, "boundary", 0);
  stage->path_rate = read_rate(r, object, where, "path_rate");
  stage->host_rate = read_rate(r, object, where, "host_rate");
  stage->step_end = read_seconds(r, object, where, "step_end");
  read_times(r, times, where, stage);
}

// Reads the setting. Its fields were added together: a profile has all of them, or an older program wrote it.
static void read_setting(reader_t *r, const json_t *root, bl_profile_t *p) {
  static const char *const keys[] = {"dtype", "device", "threads", "order"};
  for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
    p->setting.known = p->setting.known || json_object_get(root, keys[i]) != NULL;
  }
  if (p->setting.known) {
    p->options.dtype = (bl_dtype_t)read_choice(r, root, "dtype", dtypes, 2);
    p->setting.device = (bl_profile_device_t)read_choice(r, root, "device", devices, 2);
    p->setting.threads = read_count(r, root, "", "threads", 1, INT32_MAX);
    p->setting.order = read_digest(r, root, "order");
    if (json_object_get(root, "tensor") != NULL) { // layers are divided over ranks
      p->options.layer_parts.ranks = read_count(r, root, "", "tensor", 1, BL_LAYER_PARTS_MAX);
    }
    if (json_object_get(root, "loss") != NULL) {
      p->setting.masked = read_choice(r, root, "loss", losses, 2) == 1;
    }
  }
}

static void read_head(reader_t *r, const json_t *root, bl_profile_t *p) {
  p->model_digest = read_digest(r, root, "model_digest");
  snprintf(p->model_text, sizeof p->model_text, "%s", read_text(r, root, "model"));
  snprintf(p->schedule, sizeof p->schedule, "%s", read_text(r, root, "schedule"));
  p->options = (bl_layout_options_t){.micro_batch = read_count(r, root, "", "micro_batch", 1, INT32_MAX),
                                     .attention = (bl_attention_t)read_choice(r, root, "attention", attentions, 2),
                                     .recompute = (bl_recompute_t)read_choice(r, root, "recompute", recomputes, 3),
                                     .backward = read_flag(r, root, "", "split_backward") ? BL_BACKWARD_SPLIT
                                                                                          : BL_BACKWARD_FUSED,
                                     .lean = read_flag(r, root, "", "lean")};
  if (json_object_get(root, "slices") != NULL) {
    p->options.slices = read_count(r, root, "", "slices", 1, BL_SLICES_MAX);
  }
  read_setting(r, root, p);
  p->micro_batches = read_count(r, root, "", "micro_batches", 1, BL_MICRO_BATCHES_MAX);
  p->cores = read_count(r, root, "", "cores", 0, INT32_MAX);
  p->steps = read_count(r, root, "", "steps", 1, INT32_MAX);
  p->step = read_cost(r, root, "", "step");
  p->makespan = read_cost(r, root, "", "makespan");
  p->overhead = read_seconds(r, root, "", "between");
  p->boundary = read_seconds(r, root, "", "boundary");
  p->handover = read_or(r, root, "", "handover", 0);
  p->replay.makespan = read_cost(r, root, "", "replay_makespan");
  p->replay.boundary = read_or(r, root, "", "replay_boundary", p->boundary);
  p->replay.handover = read_or(r, root, "", "replay_handover", p->handover);
}

// Returns whether the second half of the chunks begins with the first layer; then they belong to a second pipe.
static bool begins_again(const json_t *chunks) {
  const size_t count = json_array_size(chunks);
  const json_t *first = json_object_get(json_array_get(chunks, count / 2), "first_layer");
  return count > 0 && count % 2 == 0 && json_is_integer(first) && json_integer_value(first) == 0;
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
  p->pipes = begins_again(chunks) ? 2 : 1;
  for (uint32_t i = 0; i < p->stage_count && !r->failed; i++) {
    read_stage(r, json_array_get(stages, i), p, i);
  }
  for (uint32_t i = 0; i < p->chunk_count && !r->failed; i++) {
    read_chunk(r, json_array_get(chunks, i), p, i);
  }
}

// Checks that chunks are contiguous along the model, that those of a second pipe are those of the first, and that every
// stage has the same number.
static void check_chunks(reader_t *r, const bl_profile_t *p) {
  char where[32], text[96];
  for (uint32_t v = 0, next = 0; v < p->chunk_count && !r->failed; v++) {
    const bl_chunk_span_t span = p->chunks[v].span;
    snprintf(where, sizeof where, "chunks[%u]", v);
    next = v % (p->chunk_count / p->pipes) == 0 ? 0 : next;
    if (span.first_layer != next) {
      snprintf(text, sizeof text, "must be %u, where the chunk before it ends, is %u", next, span.first_layer);
      refuse(r, where, "first_layer", text);
    }
    next += span.layer_count;
    if (next > BL_MODEL_LAYERS_MAX) {
      refuse(r, where, "layers", "makes more layers than a model can have");
    }
  }
  if (!r->failed && p->chunk_count % p->stage_count != 0) {
    snprintf(text, sizeof text, "has %u entries, which %u stages cannot share evenly", p->chunk_count, p->stage_count);
    refuse(r, "", "chunks", text);
  }
}

// Checks a stage. It has as many durations as its chunks have operations in a step, two to four per block; or no stage
// has any.
static void check_stage(reader_t *r, const bl_profile_t *p, uint32_t s) {
  const uint64_t chunks = p->chunk_count / p->stage_count,
                 blocks = chunks * p->micro_batches * bl_layout_slices(p->options) / p->pipes,
                 times = p->stages[s].time_count;
  uint64_t found = 0;
  char where[32], text[128];
  snprintf(where, sizeof where, "stages[%u]", s);
  for (uint32_t v = 0; v < p->chunk_count; v++) {
    found += p->chunks[v].stage == s;
  }
  if (found != chunks) {
    snprintf(text, sizeof text, "of %" PRIu64 " chunk%s names it, %" PRIu64 " should", found, found == 1 ? "" : "s",
             chunks);
    refuse(r, where, "chunks", text);
  }
  if ((times == 0) != (p->stages[0].time_count == 0) || (times > 0 && (times < 2 * blocks || times > 4 * blocks))) {
    snprintf(text, sizeof text,
             "has %" PRIu64 " entries, a step of %u micro-batches has %" PRIu64 " to %" PRIu64 " operations there",
             times, p->micro_batches, 2 * blocks, 4 * blocks);
    refuse(r, where, "times", text);
  }
}

static void check(reader_t *r, const bl_profile_t *p) {
  check_chunks(r, p);
  for (uint32_t s = 0; s < p->stage_count && !r->failed; s++) {
    check_stage(r, p, s);
  }
}

bl_status_t bl_profile_read(bl_profile_t *profile, const char *bytes, size_t size_bytes, const char *name,
                            bl_error_t *err) {
  json_error_t fault;
  bl_profile_t made = {0};
  reader_t r = {.name = name, .err = err};
  json_t *root = json_loadb(bytes, size_bytes, JSON_REJECT_DUPLICATES, &fault);
  if (root == NULL) {
    return bl_error_set(err, BL_INVALID, "%s is no profile: line %d: %s; ballastctl run --profile FILE records one",
                        name, fault.line, fault.text);
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
  if (!r.failed) {
    check(&r, &made);
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

// Sets the value unless the stage never did this.
static void set_seen(json_t *object, const char *key, double value) {
  if (value > 0) {
    json_object_set_new(object, key, json_real(value));
  }
}

static json_t *stage_json(const bl_profile_stage_t *stage) {
  json_t *times = json_array();
  for (uint32_t i = 0; i < stage->time_count; i++) {
    json_array_append_new(times, json_real(stage->times[i]));
  }
  json_t *object = json_pack("{s:I, s:f, s:o}", "slot_bytes", (json_int_t)stage->slot_bytes, "step_end",
                             stage->step_end, "times", times);
  set_seen(object, "evict", stage->evict);
  set_seen(object, "load", stage->load);
  set_seen(object, "path_rate", stage->path_rate);
  set_seen(object, "host_rate", stage->host_rate);
  set_seen(object, "boundary", stage->boundary);
  return object;
}

static json_t *costs_json(bl_chunk_costs_t costs) {
  return json_pack("{s:f, s:f, s:f, s:f}", "F", costs.forward, "I", costs.input, "W", costs.weight, "R",
                   costs.recompute);
}

static json_t *chunk_json(const bl_profile_t *p, const bl_profile_chunk_t *chunk) {
  json_t *object =
      json_pack("{s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:b, s:b}", "stage", (int)chunk->stage, "first_layer",
                (int)chunk->span.first_layer, "layers", (int)chunk->span.layer_count, "F", chunk->costs.forward, "I",
                chunk->costs.input, "W", chunk->costs.weight, "R", chunk->costs.recompute, "measured_I",
                chunk->measured_input, "measured_R", chunk->measured_recompute);
  json_t *slices = chunk->slices != NULL ? json_array() : NULL;
  for (uint32_t i = 0; slices != NULL && i < bl_layout_slices(p->options); i++) {
    json_array_append_new(slices, costs_json(chunk->slices[i]));
  }
  if (slices != NULL) {
    json_object_set_new(object, "slices", slices);
  }
  return object;
}

bl_status_t bl_profile_write(const bl_profile_t *p, char **text) {
  char digest[24];
  snprintf(digest, sizeof digest, "%016" PRIx64, p->model_digest);
  json_t *stages = json_array(), *chunks = json_array();
  for (uint32_t i = 0; i < p->stage_count; i++) {
    json_array_append_new(stages, stage_json(&p->stages[i]));
  }
  for (uint32_t i = 0; i < p->chunk_count; i++) {
    json_array_append_new(chunks, chunk_json(p, &p->chunks[i]));
  }
  json_t *root = json_pack(
      "{s:i, s:s, s:s, s:s, s:i, s:s, s:s, s:b, s:b, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:o}",
      "ballast_profile", BL_PROFILE_VERSION, "model", p->model_text, "model_digest", digest, "schedule", p->schedule,
      "micro_batch", (int)p->options.micro_batch, "attention", attentions[p->options.attention], "recompute",
      recomputes[p->options.recompute], "split_backward", p->options.backward == BL_BACKWARD_SPLIT, "lean",
      p->options.lean, "micro_batches", (int)p->micro_batches, "cores", (int)p->cores, "steps", (int)p->steps, "step",
      p->step, "makespan", p->makespan, "between", p->overhead, "boundary", p->boundary, "handover", p->handover,
      "replay_makespan", p->replay.makespan, "replay_boundary", p->replay.boundary, "replay_handover",
      p->replay.handover, "chunks", chunks, "stages", stages);
  if (root != NULL && bl_layout_slices(p->options) > 1) {
    json_object_set_new(root, "slices", json_integer(p->options.slices));
  }
  if (root != NULL && p->setting.known) {
    char order[24];
    snprintf(order, sizeof order, "%016" PRIx64, p->setting.order);
    json_object_update_new(root,
                           json_pack("{s:s, s:s, s:i, s:s}", "dtype", dtypes[p->options.dtype], "device",
                                     devices[p->setting.device], "threads", (int)p->setting.threads, "order", order));
    if (bl_layer_parts_ranks(p->options.layer_parts) > 1) {
      json_object_set_new(root, "tensor", json_integer(bl_layer_parts_ranks(p->options.layer_parts)));
    }
    if (p->setting.masked) {
      json_object_set_new(root, "loss", json_string(losses[1]));
    }
  }
  *text = root != NULL ? json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) : NULL;
  json_decref(root);
  return *text != NULL ? BL_OK : BL_EXHAUSTED;
}
