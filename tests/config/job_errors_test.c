// SPDX-License-Identifier: Apache-2.0
// Verifies that every kind of wrong job file is refused, and that the message names place, key and what would be right.
#include "config/job_text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define MODEL "model: {family: gpt2, layers: 4, hidden: 64, heads: 4, vocab: 256, seq: 32}\n" // line 1
#define DATA  "data: {train: t}\n"                                                            // line 2
#define TRAIN "train: {steps: 10}\n"                                                          // line 3
#define GOOD  MODEL DATA TRAIN

typedef struct bad {
  const char *text, *message; // the message, or its beginning when it ends in "..."
} bad_t;

static bool matches(const char *message, const char *expected) {
  size_t length = strlen(expected);
  if (length > 3 && strcmp(expected + length - 3, "...") == 0) {
    return strncmp(message, expected, length - 3) == 0;
  }
  return strcmp(message, expected) == 0;
}

static void refuse(const bad_t *cases, size_t count) {
  size_t wrong = 0;
  for (size_t i = 0; i < count; i++) {
    bl_job_t job = {.file = (char *)7};
    bl_error_t err;
    bl_status_t status = parse(&job, cases[i].text, &err);
    if (status != BL_INVALID || !matches(err.text, cases[i].message)) {
      print_error("%s\n  expected: %s\n  message:  %s %s\n", cases[i].text, cases[i].message, bl_status_name(status),
                  err.text);
      wrong++;
    }
    assert_ptr_equal(job.file, (char *)7); // set only on success
  }
  assert_int_equal(wrong, 0);
}

#define REFUSE(cases) refuse(cases, sizeof(cases) / sizeof((cases)[0]))

static void unknown_names(void **state) {
  (void)state;
  static const bad_t cases[] = {
      {GOOD "pipeline: {stagse: 2}\n", "job.yaml:4:12: unknown key 'pipeline.stagse'; did you mean 'pipeline.stages'?"},
      {MODEL DATA "train:\n  steps: 1\n  microbatch: 4\n",
       "job.yaml:5:3: unknown key 'train.microbatch'; did you mean 'train.micro_batch'?"},
      {GOOD "memory: {layers: 4}\n", "job.yaml:4:10: unknown key 'memory.layers'; did you mean 'model.layers'?"},
      {"frobnication: {steps: 1}\n" MODEL DATA,
       "job.yaml:1:1: unknown section 'frobnication'; the nearest known one is ..."},
      {"trian: {steps: 1}\n" MODEL DATA, "job.yaml:1:1: unknown section 'trian'; did you mean 'train'?"},
      {GOOD "layers: 4\n", "job.yaml:4:1: unknown key 'layers'; did you mean 'model.layers'?"},
      {GOOD "zzz: 4\n", "job.yaml:4:1: unknown key 'zzz'; the nearest known one is ..."},
      {GOOD "train.lr: 4\n", "job.yaml:4:1: train.lr: write 'lr' under the section 'train:'"},
      {GOOD "pipeline: {schedule: 1f2b}\n", "job.yaml:4:22: pipeline.schedule: must be one of gpipe, 1f1b, ..."},
      {GOOD "balance: {policy: bpip}\n", "job.yaml:4:19: balance.policy: must be one of none, bpipe, cap, drop, "
                                         "offload, auto; is 'bpip', did you mean 'bpipe'?"},
  };
  REFUSE(cases);
}

static void wrong_types(void **state) {
  (void)state;
  static const bad_t cases[] = {
      {MODEL DATA "train: {steps: ten}\n", "job.yaml:3:16: train.steps: must be an integer, is 'ten'"},
      {MODEL DATA "train: {steps: 1.5}\n", "job.yaml:3:16: train.steps: must be an integer, is '1.5'"},
      {MODEL DATA "train: {steps: 10x}\n", "job.yaml:3:16: train.steps: must be an integer, is '10x'"},
      {MODEL DATA "train: {steps: 0x10}\n", "job.yaml:3:16: train.steps: must be an integer, is '0x10'"},
      {MODEL DATA "train: {steps: '10'}\n", "job.yaml:3:16: train.steps: must be an integer, is text in quotes: '10'"},
      {MODEL DATA "train: {steps: 99999999999999999999}\n",
       "job.yaml:3:16: train.steps: must be an integer below 2^63, is '99999999999999999999'"},
      {MODEL DATA "train: {steps: [1]}\n", "job.yaml:3:16: train.steps: must be a single value, is a list"},
      {MODEL DATA "train: {steps: {a: 1}}\n", "job.yaml:3:16: train.steps: must be a single value, is a mapping"},
      {MODEL DATA "train:\n  steps:\n", "job.yaml:4:9: train.steps: has no value; write null for the default, or leave "
                                        "the key out"},
      {MODEL DATA "train: {steps: 1, lr: nan}\n", "job.yaml:3:23: train.lr: must be a number, is 'nan'"},
      {MODEL DATA "train: {steps: 1, lr: .inf}\n", "job.yaml:3:23: train.lr: must be a number, is '.inf'"},
      {MODEL DATA "train: {steps: 1, lr: 1e999}\n",
       "job.yaml:3:23: train.lr: must be a number that a double can hold, is '1e999'"},
      {MODEL DATA "train: {steps: 1, lr: 1e-3x}\n", "job.yaml:3:23: train.lr: must be a number, is '1e-3x'"},
      {MODEL DATA "train: {steps: 1, lr: -1}\n", "job.yaml:3:23: train.lr: must be at least 0, is '-1'"},
      {MODEL DATA "train: {steps: 1, beta1: 1}\n", "job.yaml:3:26: train.beta1: must be in [0, 1), is '1'"},
      {MODEL DATA "train: {steps: 1, eps: 0}\n", "job.yaml:3:24: train.eps: must be more than 0, is '0'"},
      {MODEL DATA "train: {steps: 1, beta1: 0.99999999}\n",
       "job.yaml:3:26: train.beta1: 0.99999999 rounds to 1 in fp32; at most 0.99999994 does not"},
      {MODEL DATA "train: {steps: 1, beta2: 0.99999999}\n",
       "job.yaml:3:26: train.beta2: 0.99999999 rounds to 1 in fp32; at most 0.99999994 does not"},
      {MODEL DATA "train: {steps: 1, eps: 1e-46}\n",
       "job.yaml:3:24: train.eps: 1e-46 rounds to 0 in fp32; at least 1.1754944e-38 does not"},
      {MODEL DATA "train: {steps: 1, eps: 1e-40}\n", "job.yaml:3:24: train.eps: 1e-40 rounds to 0 ..."}, // denormal
      {"model: {tied: yes}\n", "job.yaml:1:15: model.tied: must be true or false, is 'yes'"},
      {GOOD "memory: {activation_bytes: 64 parsec}\n",
       "job.yaml:4:28: memory.activation_bytes: must be a size in bytes such as 1048576 or 64 MiB, is '64 parsec'"},
      {GOOD "pipeline: {layers_per_stage: 4}\n",
       "job.yaml:4:30: pipeline.layers_per_stage: must be a list such as [2, 1]"},
      {GOOD "pipeline: {layers_per_stage: [4, x]}\n",
       "job.yaml:4:34: pipeline.layers_per_stage: must be an integer, is 'x'"},
      {GOOD "services: {stages: {a: b}}\n", "job.yaml:4:20: services.stages: must be a list, is a mapping"},
      {GOOD "services: {stages: [[a]]}\n", "job.yaml:4:21: services.stages: an entry must be a single value"},
      {GOOD "name: \"a\\tb\"\n", "job.yaml:4:7: name: holds a control character (code 9)"},
      {GOOD "name: ''\n", "job.yaml:4:7: name: is empty"},
      {MODEL "data: {train: t, validation: 1.5}\n" TRAIN,
       "job.yaml:2:30: data.validation: must be in (0, 1), is '1.5'"},
      {MODEL "data: {train: []}\n" TRAIN, "job.yaml:2:15: data.train: names no file"},
  };
  REFUSE(cases);
}

static void wrong_shapes(void **state) {
  (void)state;
  static const bad_t cases[] = {
      {"", "job.yaml:1:1: is empty"},
      {"# nothing\n", "job.yaml:1:1: is empty"},
      {"- a\n", "job.yaml:1:1: must hold sections such as 'model:' and 'train:'"},
      {"model: 4\n", "job.yaml:1:8: model: is a section of keys, not a single value"},
      {"model: [4]\n", "job.yaml:1:8: model: is a section of keys, not a list"},
      {GOOD "name: a\nname: b\n", "job.yaml:5:1: name: given twice"},
      {GOOD "train: {lr: 1}\n", "job.yaml:4:1: train: given twice"},
      {MODEL DATA "train:\n  steps: 1\n  steps: 2\n", "job.yaml:5:3: train.steps: given twice"},
      {GOOD "---\nname: b\n", "job.yaml:4:1: a second document begins here; a job is one document"},
      {"model:\n\tlayers: 4\n", "job.yaml:2:1: YAML does not allow tabs for indentation; use spaces"},
      {"model: {layers: 4\n", "job.yaml:2:1: not valid YAML: ..."},
      {"model:\n  layers: 4\n hidden: 64\n",
       "job.yaml:3:2: not valid YAML: indented unlike the lines around it; keys of one section stand in one column"},
      {"model:\n  layers: 4\n    hidden: 64\n", "job.yaml:2:11: model.layers: must be an integer, is '4 hidden'\n"
                                                "job.yaml:3:11: not valid YAML: no key may stand here; is the line "
                                                "indented as its neighbours are?"},
      {"name: &a b\n", "job.yaml:1:7: anchors and aliases (& and *) are not supported; write the value out"},
      {"name: *a\n", "job.yaml:1:7: anchors and aliases (& and *) are not supported; write the value out"},
      {"name: !!str a\n", "job.yaml:1:7: tags (!) are not supported; write the value plainly"},
      {"? [a]\n: 1\n", "job.yaml:1:3: a key must be a plain scalar"},
      {"name: \xFF\n", "job.yaml:1:7: is not a text file in UTF-8: ..."},
  };
  REFUSE(cases);
}

static void missing_and_contradictory(void **state) {
  (void)state;
  static const bad_t cases[] = {
      {MODEL TRAIN, "job.yaml: 'data.train' is missing; give it in the file or with --set data.train=VALUE"},
      {MODEL DATA, "job.yaml: 'train.steps' is missing; give it in the file or with --set train.steps=VALUE"},
      {DATA TRAIN, "job.yaml: model.family: is missing; give gpt2 or llama, or a model.config"},
      {"model: {family: llama, layers: 1, hidden: 8, heads: 2, vocab: 9, seq: 4}\n" DATA TRAIN,
       "job.yaml: model.ffn: is missing; a llama model given inline needs it"},
      {"model: {family: gpt2, layers: 1, hidden: 10, heads: 4, vocab: 9, seq: 4}\n" DATA TRAIN,
       "job.yaml:1:53: model.heads: 4 heads do not divide hidden 10"},
      {"model: {family: llama, layers: 1, hidden: 8, heads: 4, kv_heads: 3, ffn: 9, vocab: 9, seq: 4}\n" DATA TRAIN,
       "job.yaml:1:66: model.kv_heads: 3 do not divide 4 heads"},
      {"model: {family: llama, layers: 1, hidden: 12, heads: 4, ffn: 9, vocab: 9, seq: 4}\n" DATA TRAIN,
       "job.yaml:1:54: model.heads: hidden / heads is 3; rotary positions need an even number"},
      {"model: {family: gpt2, layers: 1, hidden: 8, heads: 4, kv_heads: 2, vocab: 9, seq: 4}\n" DATA TRAIN,
       "job.yaml:1:65: model.kv_heads: gpt2 has as many as heads (4); leave it out"},
      {MODEL DATA "train: {steps: 1, lr: 1, min_lr: 2}\n", "job.yaml:3:34: train.min_lr: 2 is above train.lr 1"},
      {GOOD "pipeline: {stages: 5}\n", "job.yaml:4:20: pipeline.stages: 5 chunks (5 stages of 1) are more than the "
                                       "model's 4 layers; every chunk needs a "
                                       "layer"},
      {GOOD "pipeline: {stages: 2, layers_per_stage: [2, 1]}\n",
       "job.yaml:4:41: pipeline.layers_per_stage: covers 3 layers; the model has 4"},
      {GOOD "pipeline: {stages: 2, layers_per_stage: [4]}\n",
       "job.yaml:4:41: pipeline.layers_per_stage: has 1 entry for 2 chunks (2 stages of 1)"},
      {GOOD "pipeline: {stages: 2, costs: {forward: 1, input: [1, -2], weight: 1}}\n",
       "job.yaml:4:50: pipeline.costs.input: virtual stage 1: must be a number from 0 to 1e+12, is -2"},
      {GOOD "pipeline: {stages: 2, costs: {forward: [1, .nan], input: 1, weight: 1}}\n",
       "job.yaml:4:44: pipeline.costs.forward: must be a number, is '.nan'"},
      {GOOD "pipeline: {stages: 2, costs: {forward: 1, input: [1, 2, 3], weight: 1}}\n",
       "job.yaml:4:50: pipeline.costs.input: has 3 entries; give one for all, or one for each of the 2 virtual stages "
       "(2 stages with 1 chunk each)"},
      {GOOD "pipeline: {stages: 2, costs: {forward: 1, input: 2}}\n",
       "job.yaml: pipeline.costs.weight: is missing; forward, input and weight go together"},
      {GOOD "pipeline: {stages: 2, costs: {recompute: 1}}\n",
       "job.yaml: pipeline.costs.forward: is missing; forward, input and weight go together"},
      {GOOD "pipeline: {stages: 2, costs: {boundary: 1}}\n",
       "job.yaml: pipeline.costs.forward: is missing; forward, input and weight go together"},
      {GOOD "pipeline: {stages: 2, costs: {forward: [0, 0], input: 1, weight: 1}}\n",
       "job.yaml:4:40: pipeline.costs.forward: must be above 0 on some virtual stage"},
      {GOOD "pipeline: {stages: 2, costs: {forward: 1, input: 1, weight: 1, boundary: -1}}\n",
       "job.yaml:4:74: pipeline.costs.boundary: must be at least 0, is '-1'"},
      {GOOD "pipeline: {stages: 2, costs: {forwards: 1}}\n",
       "job.yaml:4:31: unknown key 'pipeline.costs.forwards'; did you mean 'pipeline.costs.forward'?"},
      {GOOD "pipeline: {chunks: 2}\n",
       "job.yaml:4:20: pipeline.chunks: is 2; the schedule 1f1b has one chunk per stage"},
      {GOOD "pipeline: {group: 2}\n",
       "job.yaml:4:19: pipeline.group: belongs to the schedule grouped-interleaved, not to 1f1b"},
      {GOOD "memory: {slots: 1, activation_bytes: 5}\n",
       "job.yaml:4:38: memory.activation_bytes: memory.slots says the same; give one of the two"},
      {GOOD "balance: {policy: cap}\n", "job.yaml: balance.cap: is missing; the policy cap needs it"},
      {GOOD "balance: {data_path: tcp, require: shm}\n",
       "job.yaml:4:36: balance.require: is shm, balance.data_path asks for tcp; leave one of them out"},
      {GOOD "checkpoint: {every: 5}\n", "job.yaml: checkpoint.folder: is missing; checkpoints need a place"},
      {GOOD "services: {stages: [a]}\n",
       "job.yaml:4:20: services.stages: 'a' is no address; write host:port or unix:/path"},
      {GOOD "services: {stages: ['a:70000']}\n",
       "job.yaml:4:20: services.stages: 'a:70000' is no address; write host:port or unix:/path"},
      {GOOD "services: {stages: ['::1:7700']}\n",
       "job.yaml:4:20: services.stages: '::1:7700' is no address; write host:port or unix:/path"},
      {GOOD "services: {stages: ['unix:here']}\n",
       "job.yaml:4:20: services.stages: 'unix:here' is no address; write host:port or unix:/path"},
      {GOOD "services: {stages: ['a:1', 'b:1']}\n",
       "job.yaml:4:20: services.stages: names 2; the pipeline has 1 stage, one each"},
      {MODEL DATA "train: {steps: 1, micro_batches: 4}\nparallel: {data: 2}\npipeline: {stages: 2}\n"
                  "services: {stages: ['a:1', 'b:1']}\n",
       "job.yaml:6:20: services.stages: names 2; 2 replicas of 2 stages are 4 ranks, one each, replica by replica"},
      {GOOD "pipeline: {stages: 2}\nservices: {stages: ['a:1', 'a:1']}\n",
       "job.yaml:5:20: services.stages: names a:1 twice; every stage needs a stage-service of its own"},
      {GOOD "pipeline: {stages: 2}\nservices: {stores: ['a:1', 'a:1']}\n",
       "job.yaml:5:20: services.stores: names a:1 twice; every device needs an activation-store of its own"},
      {GOOD "services: {stages: ['a:1'], stores: ['a:1']}\n",
       "job.yaml:4:37: services.stores: names a:1, which services.stages names, too; each is a service of its own"},
      {GOOD "balance: {host: 1GiB}\nservices: {stages: ['a:1'], host_stores: ['a:1']}\n",
       "job.yaml:5:42: services.host_stores: names a:1, which services.stages names, too; ..."},
      {GOOD "balance: {host: 1GiB}\nservices: {stores: ['a:1'], host_stores: ['a:1']}\n",
       "job.yaml:5:42: services.host_stores: names a:1, which services.stores names, too; ..."},
  };
  REFUSE(cases);
}

static void several_errors_come_together(void **state) {
  (void)state;
  bl_job_t job;
  bl_error_t err;
  assert_int_equal(parse(&job, "modle: {layers: 4}\ntrain:\n  stepps: 1\n  lr: fast\n", &err), BL_INVALID);
  assert_string_equal(err.text, "job.yaml:1:1: unknown section 'modle'; did you mean 'model'?\n"
                                "job.yaml:3:3: unknown key 'train.stepps'; did you mean 'train.steps'?\n"
                                "job.yaml:4:7: train.lr: must be a number, is 'fast'");
}

static void sets_are_checked_too(void **state) {
  (void)state;
  static const bad_t cases[] = {
      {"train.steps", "--set 'train.steps': must be KEY=VALUE, such as train.steps=100"},
      {"=4", "--set '=4': must be KEY=VALUE, such as train.steps=100"},
      {"train.stepps=4", "--set: unknown key 'train.stepps'; did you mean 'train.steps'?"},
      {"train=4", "--set: unknown key 'train'; did you mean 'data.train'?"},
      {"frobnicate.everything=4", "--set: unknown key 'frobnicate.everything'; the nearest known one is ..."},
      {"train.steps=", "--set train.steps: has no value; write train.steps=null for the default"},
      {"train.steps=x", "--set train.steps: must be an integer, is 'x'"},
      {"train.steps=[1]", "--set train.steps: must be a single value, is a list"},
      {"train.steps=1\n---\n2", "--set a second document begins here; a job is one document"},
      {"train.steps=null", "job.yaml: 'train.steps' is missing; ..."},
      {"model.heads=5", "--set model.heads: 5 heads do not divide hidden 64"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    bl_job_t job;
    bl_error_t err;
    const char *const sets[] = {cases[i].text};
    bl_status_t status = parse_with(&job, small_job, sets, 1, &err);
    if (status != BL_INVALID || !matches(err.text, cases[i].message)) {
      fail_msg("%s\n  expected: %s\n  message:  %s", cases[i].text, cases[i].message, err.text);
    }
  }
}

// A text of `count` copies of `piece` between two others.
static char *repeated(const char *before, const char *piece, size_t count, const char *after) {
  size_t piece_bytes = strlen(piece), before_bytes = strlen(before);
  char *text = malloc(before_bytes + count * piece_bytes + strlen(after) + 1);
  assert_non_null(text);
  memcpy(text, before, before_bytes);
  for (size_t i = 0; i < count; i++) {
    memcpy(text + before_bytes + i * piece_bytes, piece, piece_bytes);
  }
  strcpy(text + before_bytes + count * piece_bytes, after);
  return text;
}

static void hostile_sizes_end_early(void **state) {
  (void)state;
  const struct {
    const char *before, *piece;
    size_t count;
    const char *after, *message;
  } cases[] = {
      {"", "#", BL_OPTIONS_FILE_BYTES + 1, "", "job.yaml: has 1048577 bytes, more than the 1048576 ..."},
      {"name: ", "[", 100000, "", "job.yaml:1:7: name: must be a single value, is a list\njob.yaml:1:..."},
      {"a: ", "{a: ", 10000, "", "job.yaml:1:1: unknown section 'a'; ..."},
      {"data: {train: [", "a,", BL_OPTIONS_LIST_COUNT + 10, "]}", "job.yaml:1:8208: data.train: has more than 4096..."},
      {"", "x", 100000, ": 1\n", "job.yaml:1:1: ..."},
      {"name: ", "x", 5000, "\n", "job.yaml:1:7: name: is longer than 4096 bytes"},
      {"", "b: 1\n", 200000, "", "job.yaml:1:1: unknown key 'b'; ..."},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char *text = repeated(cases[i].before, cases[i].piece, cases[i].count, cases[i].after);
    bl_job_t job;
    bl_error_t err;
    bl_status_t status = parse(&job, text, &err);
    if (status != BL_INVALID || !matches(err.text, cases[i].message)) {
      fail_msg("%.40s...\n  expected: %s\n  message:  %s", text, cases[i].message, err.text);
    }
    free(text);
  }
}

static void replicas_that_cannot_share(void **state) {
  (void)state;
  static const bad_t cases[] = {
      {MODEL DATA "train: {steps: 1, micro_batches: 6}\nparallel: {data: 4}\n",
       "job.yaml:4:18: parallel.data: 4 does not divide train.micro_batches 6, which all replicas share; 3 does, and "
       "so does "
       "4 with 4 micro-batches"},
      {MODEL DATA "train: {steps: 1, micro_batches: 8}\nparallel: {data: 2, data_parts: 6}\n",
       "job.yaml:4:33: parallel.data_parts: 6 parts cannot be shared by 2 replicas (parallel.data); 4 can: as many as "
       "replicas, or a power of two that they divide"},
      {MODEL DATA "train: {steps: 1, micro_batches: 6}\nparallel: {data: 3, data_parts: 6}\n",
       "job.yaml:4:33: parallel.data_parts: 6 parts cannot be shared by 3 replicas (parallel.data); 3 can: as many as "
       "replicas"},
      {MODEL DATA "train: {steps: 1, micro_batches: 6}\nparallel: {data_parts: 4}\n",
       "job.yaml:4:24: parallel.data_parts: 4 does not divide train.micro_batches 6, which all replicas share; 3 does, "
       "and so "
       "does 4 with 4 micro-batches"},
      {GOOD "parallel: {data: 65}\n", "job.yaml:4:18: parallel.data: must be ..."},
      {MODEL DATA "train: {steps: 1, micro_batches: 128}\npipeline: {stages: 2, schedule: chimera}\n"
                  "parallel: {data: 64}\n",
       "job.yaml:5:18: parallel.data: 64 replicas with 2 copies of the model each (chimera); 32 can: a run has at most "
       "64 "
       "copies"},
  };
  REFUSE(cases);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(unknown_names),
      cmocka_unit_test(replicas_that_cannot_share),
      cmocka_unit_test(wrong_types),
      cmocka_unit_test(wrong_shapes),
      cmocka_unit_test(missing_and_contradictory),
      cmocka_unit_test(several_errors_come_together),
      cmocka_unit_test(sets_are_checked_too),
      cmocka_unit_test(hostile_sizes_end_early),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
