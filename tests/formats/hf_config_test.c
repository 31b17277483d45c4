// SPDX-License-Identifier: Apache-2.0
// Verifies config.json: files of transformers 5, spellings of transformers 4, defaults, that each key that would change the
// mathematics is refused by name, and that a model that is written is read back as the same, field by field.
#include "formats/hf_config.h"

#include "sys/file.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GPT2 "\"model_type\":\"gpt2\",\"n_layer\":2,\"n_embd\":8,\"n_head\":2,\"vocab_size\":11,\"n_positions\":16"
#define LLAMA                                                                                                          \
  "\"model_type\":\"llama\",\"num_hidden_layers\":2,\"hidden_size\":8,\"num_attention_heads\":4,"                      \
  "\"intermediate_size\":24,\"vocab_size\":11,\"max_position_embeddings\":16"

#define MISTRAL                                                                                                        \
  "\"model_type\":\"mistral\",\"num_hidden_layers\":2,\"hidden_size\":32,\"num_attention_heads\":16,"                  \
  "\"intermediate_size\":24,\"vocab_size\":11,\"max_position_embeddings\":16"

// Of those that need no other keys.
#define SIZES                                                                                                          \
  "\"num_hidden_layers\":6,\"hidden_size\":48,\"num_attention_heads\":4,\"num_key_value_heads\":2,"                    \
  "\"intermediate_size\":24,\"vocab_size\":11,\"max_position_embeddings\":16"
#define QWEN2  "\"model_type\":\"qwen2\"," SIZES
#define QWEN3  "\"model_type\":\"qwen3\"," SIZES
#define PHI3   "\"model_type\":\"phi3\"," SIZES
#define GEMMA  "\"model_type\":\"gemma\"," SIZES
#define GEMMA2 "\"model_type\":\"gemma2\"," SIZES
#define GEMMA3 "\"model_type\":\"gemma3_text\"," SIZES

// layer_types of the six layers: F full, S sliding.
static const char *layer_types(const char *kinds) {
  static char text[512];
  size_t at = (size_t)snprintf(text, sizeof text, "\"layer_types\":[");
  for (size_t i = 0; kinds[i] != '\0'; i++) {
    at += (size_t)snprintf(text + at, sizeof text - at, "%s\"%s_attention\"", i > 0 ? "," : "",
                           kinds[i] == 'S' ? "sliding" : "full");
  }
  snprintf(text + at, sizeof text - at, "]");
  return text;
}

static bl_model_t parse(const char *text) {
  bl_model_t config;
  bl_error_t err = {0};
  if (bl_hf_config_parse(&config, text, strlen(text), &err) != BL_OK) {
    fail_msg("%s: %s", text, err.text);
  }
  return config;
}

static bl_model_t parse_file(const char *path) {
  bl_error_t err = {0};
  char *bytes;
  size_t size;
  if (bl_file_read(path, 1 << 20, &bytes, &size, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  bl_model_t config = parse(bytes);
  free(bytes);
  return config;
}

static void reads_files_of_transformers_5(void **state) {
  (void)state;
  bl_model_t gpt2 = parse_file(BALLAST_SOURCE_DIR "/tests/golden/gpt2/config.json");
  assert_int_equal(gpt2.family, BL_FAMILY_GPT2);
  assert_int_equal(gpt2.layers, 3);
  assert_int_equal(gpt2.hidden, 48);
  assert_int_equal(gpt2.heads, 4);
  assert_int_equal(gpt2.kv_heads, 4);
  assert_int_equal(gpt2.head_dim, 12);
  assert_int_equal(gpt2.ffn, 192);
  assert_int_equal(gpt2.vocab, 101);
  assert_int_equal(gpt2.seq, 32);
  assert_true(gpt2.tied);
  assert_true(gpt2.norm_epsilon == 1e-5);
  bl_model_t llama = parse_file(BALLAST_SOURCE_DIR "/tests/golden/llama/config.json");
  assert_int_equal(llama.family, BL_FAMILY_LLAMA);
  assert_int_equal(llama.heads, 6);
  assert_int_equal(llama.kv_heads, 2);
  assert_int_equal(llama.head_dim, 8);
  assert_int_equal(llama.ffn, 112);
  assert_false(llama.tied);
  assert_true(llama.norm_epsilon == 1e-5);
  assert_true(llama.rope.theta == 10000.0);
}

static void reads_both_spellings(void **state) {
  (void)state;
  bl_model_t c = parse("{\"model_type\":\"gpt2\",\"num_hidden_layers\":2,\"hidden_size\":8,\"num_attention_heads\":2,"
                       "\"vocab_size\":11,\"max_position_embeddings\":16,\"n_inner\":20}");
  assert_int_equal(c.layers, 2);
  assert_int_equal(c.hidden, 8);
  assert_int_equal(c.seq, 16);
  assert_int_equal(c.ffn, 20);
  assert_true(parse("{" LLAMA ",\"rope_theta\":500000.0}").rope.theta == 500000.0);
  assert_true(parse("{" LLAMA ",\"rope_theta\":7,\"rope_scaling\":null}").rope.theta == 7.0);
  assert_true(parse("{" LLAMA ",\"rope_scaling\":{\"type\":\"default\"}}").rope.theta == 10000.0);
  assert_true(parse("{" LLAMA ",\"rope_theta\":5,\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":9.5}}")
                  .rope.theta == 9.5);
}

static void defaults_are_those_of_transformers(void **state) {
  (void)state;
  bl_model_t gpt2 = parse("{" GPT2 "}");
  assert_true(gpt2.tied);
  assert_int_equal(gpt2.ffn, 32);
  assert_true(gpt2.norm_epsilon == 1e-5);
  bl_model_t llama = parse("{" LLAMA "}");
  assert_false(llama.tied);
  assert_int_equal(llama.kv_heads, 4);
  assert_int_equal(llama.head_dim, 2);
  assert_true(llama.norm_epsilon == 1e-6);
  assert_int_equal(parse("{" LLAMA ",\"head_dim\":6}").head_dim, 6);
  assert_true(parse("{" LLAMA ",\"tie_word_embeddings\":true}").tied);
}

static void what_does_not_matter_is_ignored(void **state) {
  (void)state;
  parse("{" GPT2 ",\"resid_pdrop\":0.1,\"attn_pdrop\":0.1,\"embd_pdrop\":0.1,\"torch_dtype\":\"float16\","
        "\"n_ctx\":1024,\"summary_type\":\"cls_index\",\"task_specific_params\":{\"a\":[1]},\"bos_token_id\":50256,"
        "\"reorder_and_upcast_attn\":true,\"scale_attn_by_inverse_layer_idx\":false,\"scale_attn_weights\":true,"
        "\"activation_function\":\"gelu_pytorch_tanh\",\"pruned_heads\":{},\"quantization_config\":null}");
  parse("{" LLAMA ",\"attention_bias\":false,\"mlp_bias\":false,\"attention_dropout\":0.1,\"pretraining_tp\":2,"
        "\"hidden_act\":\"silu\",\"sliding_window\":null,\"layer_types\":[\"full_attention\",\"full_attention\"],"
        "\"eos_token_id\":[1,2],\"partial_rotary_factor\":1.0}");
}

static void refuses(bl_status_t expected, const char *text, const char *message) {
  bl_model_t config;
  bl_error_t err = {0};
  bl_status_t status = bl_hf_config_parse(&config, text, strlen(text), &err);
  if (status != expected || strstr(err.text, message) == NULL) {
    fail_msg("%s:\n expected %s '%s'\n got %s '%s'", text, bl_status_name(expected), message, bl_status_name(status),
             err.text);
  }
}

static void other_mathematics_is_refused_by_name(void **state) {
  (void)state;
  static const char *const gpt2[][2] = {
      {"\"activation_function\":\"gelu\"", "activation_function: \"gelu\" is not supported"},
      {"\"activation_function\":\"gelu_\"", "activation_function"},
      {"\"activation_function\":\"\"", "activation_function"},
      {"\"activation_function\":\"relu\"", "supported: gelu_new|"},
      {"\"scale_attn_weights\":false", "scale_attn_weights: false"},
      {"\"scale_attn_by_inverse_layer_idx\":true", "scale_attn_by_inverse_layer_idx"},
      {"\"add_cross_attention\":true", "add_cross_attention"},
      {"\"is_causal\":false", "is_causal: false is not supported"},
      {"\"pruned_heads\":{\"0\":[1]}", "pruned_heads"},
      {"\"quantization_config\":{\"bits\":4}", "quantization_config: {\"bits\":4}"},
  };
  static const char *const llama[][2] = {
      {"\"hidden_act\":\"gelu\"", "hidden_act"},
      {"\"attention_bias\":true", "attention_bias: true"},
      {"\"mlp_bias\":true", "mlp_bias"},
      {"\"is_causal\":false", "is_causal: false"},
      {"\"sliding_window\":4096", "sliding_window: 4096"},
      {"\"layer_types\":[\"full_attention\",\"sliding_attention\"]", "layer_types"},
      {"\"partial_rotary_factor\":0.5", "partial_rotary_factor: 0.5"},
      {"\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2.0}", "rope_scaling: type: \"dynamic\""},
      {"\"rope_parameters\":{\"rope_type\":\"yarn\"}", "rope_parameters: rope_type: \"yarn\""},
      {"\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}", "rope_parameters.full_attention"},
      {"\"rope_parameters\":{\"partial_rotary_factor\":0.25}", "rope_parameters: partial_rotary_factor"},
  };
  char text[1024];
  for (size_t i = 0; i < sizeof gpt2 / sizeof gpt2[0]; i++) {
    snprintf(text, sizeof text, "{" GPT2 ",%s}", gpt2[i][0]);
    refuses(BL_UNIMPLEMENTED, text, gpt2[i][1]);
  }
  for (size_t i = 0; i < sizeof llama / sizeof llama[0]; i++) {
    snprintf(text, sizeof text, "{" LLAMA ",%s}", llama[i][0]);
    refuses(BL_UNIMPLEMENTED, text, llama[i][1]);
  }
  refuses(BL_UNIMPLEMENTED, "{\"model_type\":\"qwen9\"}",
          "model_type: 'qwen9' is not supported; gpt2, llama, mistral, qwen2, qwen3, phi3, gemma, gemma2 and "
          "gemma3_text are");
  refuses(BL_UNIMPLEMENTED, "{\"model_type\":\"gemma3\",\"text_config\":{}}",
          "gemma3_text are, of gemma3 the language model alone");
}

static void malformed_files_are_refused(void **state) {
  (void)state;
  refuses(BL_INVALID, "", "line 1");
  refuses(BL_INVALID, "[]", "not a JSON object");
  refuses(BL_INVALID, "{\"a\":\n 1,}", "line 2");
  refuses(BL_INVALID, "{}", "model_type: missing");
  refuses(BL_INVALID, "{\"model_type\":\"gpt2\"}", "n_layer or num_hidden_layers: missing");
  refuses(BL_INVALID, "{\"model_type\":\"llama\",\"num_hidden_layers\":0}",
          "num_hidden_layers: must be a whole number");
  refuses(BL_INVALID, "{\"model_type\":\"llama\",\"num_hidden_layers\":\"2\"}", "is \"2\"");
  refuses(BL_INVALID, "{\"model_type\":\"llama\",\"num_hidden_layers\":2.5}", "is 2.5");
  refuses(BL_INVALID, "{\"model_type\":\"llama\",\"num_hidden_layers\":4294967296}", "from 1 to 2147483647");
  refuses(BL_INVALID, "{" GPT2 ",\"n_head\":2}", "duplicate");
  refuses(BL_INVALID, "{" LLAMA ",\"num_key_value_heads\":3}", "num_key_value_heads: 3 does not divide");
  refuses(BL_INVALID, "{" LLAMA ",\"rms_norm_eps\":0}", "rms_norm_eps: must be a number above 0");
  refuses(BL_INVALID, "{" LLAMA ",\"rope_theta\":-1}", "rope_theta");
  refuses(BL_INVALID, "{" LLAMA ",\"rope_scaling\":[]}", "rope_scaling: must be an object");
  refuses(BL_INVALID, "{" LLAMA ",\"rope_scaling\":{\"type\":\"linear\"}}", "rope_scaling: factor: missing");
  refuses(BL_INVALID, "{" LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":0.5}}",
          "rope_scaling: factor must be at least 1");
  refuses(BL_INVALID, "{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0}}",
          "rope_scaling: low_freq_factor: missing");
  refuses(BL_INVALID,
          "{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
          "\"high_freq_factor\":4,\"original_max_position_embeddings\":8192}}",
          "low_freq_factor must be above 0 and below high_freq_factor");
  refuses(BL_INVALID, "{" MISTRAL ",\"sliding_window\":0}", "sliding_window: must be a whole number");
  refuses(BL_INVALID, "{" LLAMA ",\"tie_word_embeddings\":1}", "tie_word_embeddings: must be true or false");
  refuses(BL_INVALID,
          "{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_embd\":8,\"n_head\":3,\"vocab_size\":11,\"n_positions\":16}",
          "n_head: 3 heads do not divide n_embd 8");
}

static void expect_rope(const bl_rope_t *found, const bl_rope_t *expected, const char *text) {
  if (!bl_rope_equal(found, expected)) {
    fail_msg("%s: the rotation is another: theta %g and %g, kind %d and %d, dims %u and %u", text, found->theta,
             expected->theta, found->kind, expected->kind, found->dims, expected->dims);
  }
}

// Field by field.
static void expect_model(const bl_model_t *found, const bl_model_t *expected, const char *text) {
#define FIELD(name)                                                                                                    \
  { #name, (double)found->name, (double)expected->name }
  const struct {
    const char *name;
    double found, expected;
  } fields[] = {FIELD(family),       FIELD(layers),        FIELD(hidden),        FIELD(heads),
                FIELD(kv_heads),     FIELD(head_dim),      FIELD(ffn),           FIELD(vocab),
                FIELD(seq),          FIELD(positions),     FIELD(tied),          FIELD(shard),
                FIELD(norm_epsilon), FIELD(variant),       FIELD(gate),          FIELD(qkv_bias),
                FIELD(fused),        FIELD(head_norm),     FIELD(post_norm),     FIELD(gains_from_one),
                FIELD(window),       FIELD(window_first),  FIELD(window_period), FIELD(embedding_scale),
                FIELD(score_scale),  FIELD(score_softcap), FIELD(logit_softcap)};
#undef FIELD
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
    if (fields[i].found != fields[i].expected) {
      fail_msg("%s: %s is %.17g, expected %.17g", text, fields[i].name, fields[i].found, fields[i].expected);
    }
  }
  expect_rope(&found->rope, &expected->rope, text);
  expect_rope(&found->window_rope, &expected->window_rope, text);
}

static char *write(const bl_model_t *model) {
  char *text;
  size_t bytes;
  bl_error_t err = {0};
  if (bl_hf_config_write(model, &text, &bytes, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  assert_int_equal(bytes, strlen(text));
  return text;
}

#define LLAMA3                                                                                                         \
  "\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4,"                                \
  "\"original_max_position_embeddings\":8192"

static void what_is_written_is_read_as_the_same_model(void **state) {
  (void)state;
  static const char *const texts[] = {
      "{" GPT2 "}",
      "{" GPT2 ",\"n_inner\":20,\"tie_word_embeddings\":false,\"layer_norm_epsilon\":1e-6}",
      "{" LLAMA "}",
      "{" LLAMA ",\"head_dim\":6,\"tie_word_embeddings\":true,\"rope_parameters\":{\"rope_theta\":5e5," LLAMA3 "}}",
      "{" LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.5}}",
      "{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
      "\"high_freq_factor\":4,\"original_max_position_embeddings\":81.5}}",
      "{" MISTRAL "}",
      "{" MISTRAL ",\"sliding_window\":null}",
      "{" MISTRAL ",\"sliding_window\":8}",
      "{" QWEN2 ",\"sliding_window\":4096,\"use_sliding_window\":false}",
      "{" QWEN2 ",\"sliding_window\":8,\"use_sliding_window\":true,\"max_window_layers\":2}",
      "{" QWEN2 ",\"sliding_window\":8,\"use_sliding_window\":true,\"max_window_layers\":6}",
      "{" QWEN3 "}",
      "{" QWEN3 ",\"head_dim\":16,\"sliding_window\":8,\"use_sliding_window\":true,\"max_window_layers\":0}",
      "{" QWEN3 ",\"sliding_window\":8,\"use_sliding_window\":true,\"layer_types\":[\"full_attention\","
      "\"sliding_attention\",\"full_attention\",\"sliding_attention\",\"sliding_attention\",\"full_attention\"]}",
      "{" PHI3 "}",
      "{" PHI3 ",\"partial_rotary_factor\":0.7,\"sliding_window\":8,\"tie_word_embeddings\":true}",
      "{" PHI3 ",\"head_dim\":98,\"rope_parameters\":{\"rope_type\":\"default\",\"partial_rotary_factor\":0.6}}",
      "{" GEMMA "}",
      "{" GEMMA ",\"head_dim\":12,\"hidden_act\":\"gelu\",\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":false}",
      "{" GEMMA2 "}",
      "{" GEMMA2 ",\"head_dim\":12,\"query_pre_attn_scalar\":144,\"attn_logit_softcapping\":5.5,"
      "\"final_logit_softcapping\":null,\"sliding_window\":8}",
      "{" GEMMA2 ",\"attn_logit_softcapping\":null,\"layer_types\":[\"full_attention\",\"full_attention\","
      "\"full_attention\",\"full_attention\",\"full_attention\",\"full_attention\"]}",
      "{" GEMMA3 "}",
      "{" GEMMA3 ",\"sliding_window_pattern\":2,\"sliding_window\":8,\"rope_theta\":77,\"rope_local_base_freq\":33,"
      "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8},\"query_pre_attn_scalar\":168}",
      "{" GEMMA3 ",\"rope_parameters\":{\"full_attention\":{" LLAMA3 "},\"sliding_attention\":{\"rope_theta\":9,"
      "\"rope_type\":\"linear\",\"factor\":3}},\"final_logit_softcapping\":30}",
  };
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
    const bl_model_t model = parse(texts[i]);
    bl_error_t err = {0};
    if (bl_model_check(&model, &err) != BL_OK) {
      fail_msg("%s: %s", texts[i], err.text);
    }
    char *text = write(&model);
    const bl_model_t again = parse(text);
    expect_model(&again, &model, texts[i]);
    bl_model_t shorter = again;
    shorter.seq = 5;
    if (bl_hf_config_compare(&shorter, &model, &err) != BL_OK) {
      fail_msg("%s: %s", texts[i], err.text);
    }
    free(text);
  }
}

static void what_computes_otherwise_differs(void **state) {
  (void)state;
  static const struct {
    const char *found, *wanted, *message;
  } cases[] = {
      {"{" GPT2 "}", "{" LLAMA "}", "model_type is \"gpt2\", the job's model has \"llama\""},
      {"{" LLAMA "}", "{" MISTRAL "}", "model_type is "},
      {"{" GPT2 "}", "{" GPT2 ",\"layer_norm_epsilon\":1e-6}",
       "layer_norm_epsilon is 1e-05, the job's model has 1e-06"},
      {"{" LLAMA "}", "{" LLAMA ",\"tie_word_embeddings\":true}",
       "tie_word_embeddings is false, the job's model has true"},
      {"{" LLAMA "}", "{" LLAMA ",\"rope_theta\":77}", "rope_theta is 10000, the job's model has 77"},
      {"{" LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}",
       "{" LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}}", "factor is 2, the job's model has 4"},
      {"{" LLAMA "}", "{" LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}}",
       "rope_type is \"default\", the job's model has \"linear\""},
      {"{" MISTRAL ",\"sliding_window\":8}", "{" MISTRAL ",\"sliding_window\":9}",
       "sliding_window is 8, the job's model has 9"},
      {"{" PHI3 "}", "{" PHI3 ",\"partial_rotary_factor\":0.5}", "partial_rotary_factor is "},
      {"{" GEMMA2 "}", "{" GEMMA2 ",\"attn_logit_softcapping\":null}",
       "attn_logit_softcapping is 50, the job's model has null"},
  };
  for (size_t i = 0; i < 2 * (sizeof cases / sizeof cases[0]); i++) {
    const bool swapped = i % 2 == 1;
    const char *texts[] = {cases[i / 2].found, cases[i / 2].wanted};
    const bl_model_t found = parse(texts[swapped]), wanted = parse(texts[!swapped]);
    bl_error_t err = {0};
    bl_status_t status = bl_hf_config_compare(&found, &wanted, &err);
    if (status != BL_INVALID || (!swapped && strstr(err.text, cases[i / 2].message) == NULL)) {
      fail_msg("%s, %s: %s '%s'", texts[swapped], texts[!swapped], bl_status_name(status), err.text);
    }
  }
}

static void all_positions_of_gpt2_are_written(void **state) {
  (void)state;
  bl_model_t model = parse("{" GPT2 "}");
  model.seq = 8;
  model.positions = 16;
  char *text = write(&model);
  assert_int_equal(parse(text).seq, 16);
  free(text);
}

// Slowed rotations, as both versions of transformers write them.
static void rotations_are_read(void **state) {
  (void)state;
  const bl_model_t old = parse("{" LLAMA ",\"rope_theta\":500000.0,\"rope_scaling\":{" LLAMA3 "}}");
  const bl_model_t new = parse("{" LLAMA ",\"rope_parameters\":{\"rope_theta\":500000.0," LLAMA3 "}}");
  expect_model(&old, &new, "llama3");
  const bl_rope_t expected = {
      .kind = BL_ROPE_LLAMA3, .theta = 500000, .factor = 8, .low_frequency = 1, .high_frequency = 4, .original = 8192};
  expect_rope(&old.rope, &expected, "llama3");
  const bl_model_t linear = parse("{" LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.0}}");
  expect_rope(&linear.rope, &(bl_rope_t){.kind = BL_ROPE_LINEAR, .theta = 10000, .factor = 2}, "linear");
  // rope_scaling holds where both stand, in transformers 4 and 5.
  const bl_model_t both = parse("{" LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.0},"
                                "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":7}}");
  expect_rope(&both.rope, &linear.rope, "both");
  assert_true(parse("{" LLAMA ",\"rope_scaling\":{},\"rope_parameters\":{\"rope_theta\":7}}").rope.theta == 7);
}

static void rotations_of_gemma3_are_of_layers(void **state) {
  (void)state;
  const bl_rope_t whole = {.kind = BL_ROPE_LINEAR, .theta = 1e6, .factor = 8}, window = {.theta = 10000};
  static const char *const texts[] = {
      "{" GEMMA3 ",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8.0}}",
      "{" GEMMA3
      ",\"rope_theta\":1e6,\"rope_local_base_freq\":1e4,\"rope_scaling\":{\"type\":\"linear\",\"factor\":8}}",
      "{" GEMMA3
      ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\",\"factor\":8.0,\"rope_theta\":1e6},"
      "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":10000.0}}}",
      "{" GEMMA3 ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\",\"factor\":8.0},"
      "\"sliding_attention\":null}}",
  };
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
    const bl_model_t model = parse(texts[i]);
    expect_rope(&model.rope, &whole, texts[i]);
    expect_rope(&model.window_rope, &window, texts[i]);
  }
  refuses(BL_UNIMPLEMENTED, "{" GEMMA3 ",\"rope_parameters\":{\"rope_type\":\"default\"}}",
          "rope_parameters.rope_type: not supported; gemma3_text has one rotation for full_attention");
  refuses(BL_UNIMPLEMENTED, "{" GEMMA3 ",\"rope_parameters\":{\"sliding_attention\":{\"rope_type\":\"yarn\"}}}",
          "rope_parameters: sliding_attention: rope_type: \"yarn\"");
  refuses(BL_INVALID, "{" GEMMA3 ",\"rope_parameters\":[1]}", "rope_parameters: must be an object or null");
  refuses(BL_INVALID, "{" GEMMA3 ",\"rope_parameters\":{\"full_attention\":7}}",
          "rope_parameters: full_attention: must be an object or null, is 7");
  refuses(BL_INVALID, "{" GEMMA3 ",\"rope_local_base_freq\":0}", "rope_local_base_freq: must be a number above 0");
  refuses(BL_UNIMPLEMENTED, "{" GEMMA2 ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}}",
          "rope_parameters.full_attention: a rotation per kind of layer is not supported in gemma2");
}

static void phi3_rotates_a_part_of_a_head(void **state) {
  (void)state;
  assert_int_equal(parse("{" PHI3 "}").rope.dims, 0);
  assert_int_equal(parse("{" PHI3 ",\"partial_rotary_factor\":1}").rope.dims, 0);
  assert_int_equal(parse("{" PHI3 ",\"head_dim\":128,\"partial_rotary_factor\":0.75}").rope.dims, 96);
  assert_int_equal(parse("{" PHI3 ",\"rope_parameters\":{\"partial_rotary_factor\":0.5}}").rope.dims, 6);
  assert_int_equal(parse("{" PHI3 ",\"partial_rotary_factor\":0.7}").rope.dims, 8); // int(8.4)
  refuses(BL_INVALID, "{" PHI3 ",\"partial_rotary_factor\":0.77}",
          "partial_rotary_factor: 0.77 of a head of 12 are 9 dimensions; an even number must rotate");
  refuses(BL_INVALID, "{" PHI3 ",\"partial_rotary_factor\":0.01}", "of a head of 12 are 0 dimensions");
  refuses(BL_INVALID, "{" PHI3 ",\"partial_rotary_factor\":1.5}", "partial_rotary_factor: must be at most 1, is 1.5");
  refuses(BL_INVALID, "{" PHI3 ",\"partial_rotary_factor\":\"half\"}",
          "partial_rotary_factor: must be a number above 0");
  refuses(BL_UNIMPLEMENTED, "{" PHI3 ",\"rope_scaling\":{\"type\":\"su\"}}", "rope_scaling: type: \"su\"");
  refuses(BL_UNIMPLEMENTED, "{" PHI3 ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}",
          "rope_scaling: type: \"linear\"");
  refuses(BL_UNIMPLEMENTED, "{" GEMMA ",\"partial_rotary_factor\":0.5}", "partial_rotary_factor: 0.5");
}

#define LONG_BESIDE(beside, numbers, more)                                                                             \
  "{" PHI3 beside ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":" numbers                                 \
  ",\"long_factor\":[2,2,2,2,2,2]" more "}}"
#define LONG(numbers, more)    LONG_BESIDE("", numbers, more)
#define ONES                   "[1,1,1,1,1,1]"
#define ORIGINAL(number)       ",\"original_max_position_embeddings\":" number
#define FACTOR(original, more) LONG_BESIDE(ORIGINAL(original), ONES, more)

// Numbers for each of six pairs, in sequences up to the original ones and in longer ones.
static void phi3_rotates_pairs_by_numbers(void **state) {
  (void)state;
  bl_model_t model = parse(LONG_BESIDE(ORIGINAL("4"), "[1,1.5,1,1,1,1]", ORIGINAL("4")));
  bl_rope_t *rope = &model.rope;
  assert_int_equal(rope->kind, BL_ROPE_LONG);
  assert_true(rope->original == 4 && rope->factor == 4);
  bl_rope_t plain = *rope;
  plain.kind = BL_ROPE_DEFAULT;
  const double usual = bl_rope_frequency(&plain, 1, 12, 4);
  assert_true(bl_rope_frequency(rope, 1, 12, 4) == usual / 1.5 && bl_rope_frequency(rope, 1, 12, 5) == usual / 2);
  assert_true(fabs(bl_rope_scale(rope) - sqrt(2)) < 1e-15 && bl_rope_scale(&plain) == 1);
  bl_model_t changed = model;
  changed.rope.divisors[true][5] = 3;
  assert_false(bl_rope_equal(rope, &changed.rope));
  assert_true(parse(LONG("[1,1,1,1,1,1]", "")).rope.original == 4096);

  model.seq = 64; // of a job: the file keeps what says how much larger turns are made
  char *text = write(&model);
  const bl_model_t again = parse(text);
  assert_true(bl_rope_equal(&again.rope, rope));
  free(text);
  refuses(BL_INVALID, LONG("[1,1,1,1,1]", ""),
          "short_factor and long_factor must have a number above 0 for every pair");
  refuses(BL_INVALID, LONG("[1,1,1,1,1,-1]", ""), "short_factor and long_factor must have a number above 0");
  refuses(BL_INVALID, LONG("[1,1,1,1,1,\"one\"]", ""), "short_factor and long_factor must have a number above 0");
  refuses(BL_INVALID, LONG("7", ""), "rope_scaling: short_factor: must be a list of at most 64 numbers, is 7");
  refuses(BL_INVALID, FACTOR("1", ""), "original_max_position_embeddings must be above 1");
  // What transformers takes from beside the rotation.
  refuses(BL_INVALID, FACTOR("4", ORIGINAL("8")), "original_max_position_embeddings: is 8, and 4 beside it");
  refuses(BL_INVALID, LONG(ONES, ORIGINAL("4")), "original_max_position_embeddings: is 4, and 4096 beside it");
  refuses(BL_INVALID, "{" LLAMA ORIGINAL("100") ",\"rope_scaling\":{" LLAMA3 "}}",
          "original_max_position_embeddings: is 8192, and 100 beside it");
  // Files that Ballast writes could not keep another factor.
  assert_true(parse(FACTOR("4", ",\"factor\":4")).rope.factor == 4);
  assert_true(parse(FACTOR("4096", ",\"factor\":0.5")).rope.factor == 1);
  refuses(BL_UNIMPLEMENTED, FACTOR("4", ",\"factor\":2"), "rope_scaling: factor: 2 is not supported");
  refuses(BL_UNIMPLEMENTED, LONG("[1,1,1,1,1,1]", ",\"attention_factor\":1.2"), "attention_factor: 1.2");
  refuses(BL_UNIMPLEMENTED, "{" GEMMA ",\"rope_scaling\":{\"type\":\"longrope\"}}", "rope_scaling: type: \"longrope\"");
}

// partial_rotary_factor is a quotient, which rounding may leave a little below what gives the dimensions back.
static void every_part_of_a_head_survives(void **state) {
  (void)state;
  bl_model_t model = parse("{" PHI3 "}");
  for (model.head_dim = 2; model.head_dim <= 200; model.head_dim += 2) {
    for (model.rope.dims = 2; model.rope.dims < model.head_dim; model.rope.dims += 2) {
      char *text = write(&model);
      const bl_model_t again = parse(text);
      expect_model(&again, &model, "phi3");
      free(text);
    }
  }
}

static void families_have_their_properties(void **state) {
  (void)state;
  const bl_model_t qwen3 = parse("{" QWEN3 "}");
  assert_true(qwen3.head_norm && !qwen3.qkv_bias && !qwen3.gains_from_one && !qwen3.tied);
  assert_int_equal(qwen3.head_dim, 128);
  const bl_model_t phi3 = parse("{" PHI3 "}");
  assert_true(phi3.fused && !phi3.head_norm && phi3.norm_epsilon == 1e-5 && phi3.window == 0);
  const bl_model_t gemma = parse("{" GEMMA "}");
  assert_true(gemma.gains_from_one && gemma.tied && gemma.gate == BL_GATE_GELU && !gemma.post_norm);
  assert_int_equal(gemma.head_dim, 256);
  assert_true(gemma.embedding_scale > 6.9282 && gemma.embedding_scale < 6.9283 && gemma.score_scale == 0);
  const bl_model_t gemma2 = parse("{" GEMMA2 "}");
  assert_true(gemma2.post_norm && gemma2.gains_from_one && !gemma2.head_norm && gemma2.gate == BL_GATE_GELU);
  assert_true(gemma2.score_softcap == 50 && gemma2.logit_softcap == 30 && gemma2.score_scale == 0);
  const bl_model_t gemma3 = parse("{" GEMMA3 "}");
  assert_true(gemma3.post_norm && gemma3.head_norm && gemma3.gains_from_one && gemma3.embedding_scale > 6.9);
  assert_true(gemma3.score_softcap == 0 && gemma3.logit_softcap == 0 && gemma3.rope.theta == 1e6);
  assert_true(gemma3.window_rope.theta == 10000);
  assert_true(parse("{" QWEN2 "}").qkv_bias && !parse("{" LLAMA "}").qkv_bias);
  assert_true(parse("{" GEMMA2 ",\"query_pre_attn_scalar\":144}").score_scale == 1.0 / 12);
  assert_true(parse("{" GEMMA2 ",\"query_pre_attn_scalar\":144,\"head_dim\":144}").score_scale == 0);
}

// num_key_value_heads where it is absent.
static void heads_have_the_defaults_of_each(void **state) {
  (void)state;
  static const struct {
    const char *model_type;
    uint32_t kv_heads, head_dim; // of 32 heads, hidden 64
  } expected[] = {{"llama", 32, 2}, {"mistral", 8, 2},  {"qwen2", 32, 2},   {"qwen3", 32, 128},
                  {"phi3", 32, 2},  {"gemma", 16, 256}, {"gemma2", 4, 256}, {"gemma3_text", 4, 256}};
  for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
    char text[512];
    for (int null = 0; null < 2; null++) {
      snprintf(text, sizeof text,
               "{\"model_type\":\"%s\",\"num_hidden_layers\":2,\"hidden_size\":64,\"num_attention_heads\":32,"
               "\"intermediate_size\":24,\"vocab_size\":11,\"max_position_embeddings\":16%s}",
               expected[i].model_type, null ? ",\"num_key_value_heads\":null,\"head_dim\":null" : "");
      const bl_model_t model = parse(text);
      if (model.kv_heads != (null ? 32 : expected[i].kv_heads) || model.head_dim != expected[i].head_dim) {
        fail_msg("%s: %u key heads of %u", text, model.kv_heads, model.head_dim);
      }
    }
  }
}

static void windows_are_of_layers(void **state) {
  (void)state;
#define WINDOW ",\"sliding_window\":8,\"use_sliding_window\":true"
  static const struct {
    const char *text, *list; // list NULL: none
    uint32_t window, first, period;
  } cases[] = {
      {MISTRAL, NULL, 4096, 0, 0},
      {MISTRAL ",\"sliding_window\":null", NULL, 0, 0, 0},
      {PHI3, NULL, 0, 0, 0},
      {PHI3 ",\"sliding_window\":2047", NULL, 2047, 0, 0},
      {PHI3 ",\"sliding_window\":2047", "SSSSSS", 2047, 0, 0},
      {PHI3, "FFFFFF", 0, 0, 0},
      {QWEN2 ",\"sliding_window\":8", NULL, 0, 0, 0},
      {QWEN2 WINDOW, NULL, 0, 0, 0}, // from layer 28 on
      {QWEN2 WINDOW ",\"max_window_layers\":4", NULL, 8, 4, 0},
      {QWEN2 WINDOW ",\"max_window_layers\":0", NULL, 8, 0, 0},
      {QWEN2 WINDOW ",\"max_window_layers\":4", "FFFFFF", 0, 0, 0}, // the list holds
      {QWEN2 ",\"use_sliding_window\":true,\"max_window_layers\":1", NULL, 4096, 1, 0},
      {QWEN3 WINDOW, "FFSSSS", 8, 2, 0},
      {QWEN3 WINDOW, "FFFFFS", 8, 5, 0},
      {QWEN3 WINDOW, "SSSFSS", 8, 0, 4},
      {QWEN3 WINDOW, "FSFSSF", 8, 1, 3},
      {QWEN3 WINDOW, "FFSSSF", 8, 2, 6},
      {GEMMA2, NULL, 4096, 0, 2},
      {GEMMA2 ",\"sliding_window\":8", "SFSFSF", 8, 0, 2},
      {GEMMA2, "SSSSSS", 4096, 0, 0},
      {GEMMA2 ",\"sliding_window\":null", "FFFFFF", 0, 0, 0},
      {GEMMA3, NULL, 4096, 0, 6},
      {GEMMA3 ",\"sliding_window_pattern\":3", NULL, 4096, 0, 3},
      {GEMMA3 ",\"sliding_window_pattern\":7", NULL, 4096, 0, 0},
      {GEMMA3 ",\"sliding_window_pattern\":1", NULL, 0, 0, 0},
      {GEMMA3 ",\"sliding_window_pattern\":3", "SFSFSF", 4096, 0, 2}, // the list holds
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char text[1024];
    snprintf(text, sizeof text, "{%s%s%s}", cases[i].text, cases[i].list != NULL ? "," : "",
             cases[i].list != NULL ? layer_types(cases[i].list) : "");
    const bl_model_t model = parse(text);
    if (model.window != cases[i].window || model.window_first != cases[i].first ||
        model.window_period != cases[i].period) {
      fail_msg("%s: window %u from layer %u with period %u, expected %u, %u, %u", text, model.window,
               model.window_first, model.window_period, cases[i].window, cases[i].first, cases[i].period);
    }
  }
}

static void windows_that_cannot_be_said_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *text, *list, *message;
    bl_status_t status;
  } cases[] = {
      {QWEN3 WINDOW, "FSFSFS", "layer_types: layer 4 is full_attention, which does not go on as the layers before it",
       BL_UNIMPLEMENTED},
      {QWEN3 WINDOW, "SFFSSS", "layer_types: layer 2 is full_attention", BL_UNIMPLEMENTED},
      {QWEN3 WINDOW, "SSFSFS", "layer_types: layer 4 is full_attention", BL_UNIMPLEMENTED},
      {QWEN3 WINDOW, "SFSSSS", "layer_types: layer 3 is sliding_attention", BL_UNIMPLEMENTED},
      {GEMMA3, "SFSFFS", "layer_types: layer 4 is full_attention", BL_UNIMPLEMENTED},
      {QWEN3, "FFFFFS", "sliding_window: layer 5 is sliding_attention, and there is no window (use_sliding_window",
       BL_INVALID},
      {GEMMA2 ",\"sliding_window\":null", "FSSSSS", "sliding_window: layer 1 is sliding_attention, and there is no",
       BL_INVALID},
      {GEMMA2, "SFSFS", "layer_types: must have an entry for each of 6 layers, has 5", BL_INVALID},
      {MISTRAL, "SF",
       "layer_types: layer 1 is full_attention, which is not supported in mistral; supported: "
       "sliding_attention in every layer, as there is a sliding_window",
       BL_UNIMPLEMENTED},
      {PHI3, "FFFSFF", "layer_types: layer 3 is sliding_attention, which is not supported in phi3", BL_UNIMPLEMENTED},
      {LLAMA, "FS",
       "layer_types: layer 1 is sliding_attention, which is not supported in llama; supported: "
       "full_attention in every layer",
       BL_UNIMPLEMENTED},
  };
  char text[1024];
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    snprintf(text, sizeof text, "{%s,%s}", cases[i].text, layer_types(cases[i].list));
    refuses(cases[i].status, text, cases[i].message);
  }
#undef WINDOW
  static const char *const others[][2] = {
      {"\"layer_types\":\"full_attention\"", "layer_types: must be a list or null, is \"full"},
      {"\"layer_types\":{}", "layer_types: must be a list"},
      {"\"layer_types\":[1,2,3,4,5,6]", "layer_types: layer 0: must be a text, is 1"},
      {"\"layer_types\":[]", "layer_types: must have an entry for each of 6 layers, has 0"},
      {"\"sliding_window\":-8,\"use_sliding_window\":true", "sliding_window: must be a whole number from 1"},
      {"\"sliding_window\":8.5,\"use_sliding_window\":true", "sliding_window: must be a whole number from 1"},
      {"\"use_sliding_window\":1", "use_sliding_window: must be true or false, is 1"},
      {"\"max_window_layers\":-1", "max_window_layers: must be a whole number from 0"},
  };
  for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
    snprintf(text, sizeof text, "{" QWEN3 ",%s}", others[i][0]);
    refuses(BL_INVALID, text, others[i][1]);
  }
  refuses(BL_UNIMPLEMENTED,
          "{" GEMMA2 ",\"layer_types\":[\"full_attention\",\"linear_attention\",\"a\",\"b\",\"c\",\"d\"]}",
          "layer_types: layer 1: \"linear_attention\" is not supported and would change");
  refuses(BL_INVALID, "{" GEMMA2 ",\"sliding_window\":null}",
          "sliding_window: layer 0 is sliding_attention, and there");
  refuses(BL_INVALID, "{" GEMMA3 ",\"sliding_window_pattern\":0}", "sliding_window_pattern: must be a whole number");
}

static void mathematics_of_new_families_is_refused_by_name(void **state) {
  (void)state;
  static const char *const unimplemented[][2] = {
      {QWEN3 ",\"attention_bias\":true", "attention_bias: true"},
      {QWEN3 ",\"hidden_act\":\"gelu\"", "hidden_act: \"gelu\""},
      {QWEN3 ",\"attn_logit_softcapping\":50.0", "attn_logit_softcapping: 50.0"},
      {PHI3 ",\"lm_head_bias\":true", "lm_head_bias: true"},
      {PHI3 ",\"full_attn_mod\":2", "full_attn_mod: 2"},
      {PHI3 ",\"interpolate_factor\":2", "interpolate_factor: 2"},
      {PHI3 ",\"attention_bias\":true", "attention_bias: true"},
      {PHI3 ",\"hidden_act\":\"gelu_new\"", "hidden_act: \"gelu_new\""},
      {GEMMA ",\"hidden_act\":\"silu\"", "hidden_act: \"silu\""},
      {GEMMA ",\"hidden_activation\":\"gelu\"", "hidden_activation: \"gelu\""},
      {GEMMA ",\"attention_bias\":true", "attention_bias: true"},
      {GEMMA ",\"use_bidirectional_attention\":true", "use_bidirectional_attention: true"},
      {GEMMA ",\"sliding_window\":8", "sliding_window: 8"},
      {GEMMA ",\"final_logit_softcapping\":30", "final_logit_softcapping: 30"},
      {GEMMA2 ",\"use_bidirectional_attention\":true", "use_bidirectional_attention: true"},
      {GEMMA2 ",\"hidden_activation\":\"gelu\"", "hidden_activation: \"gelu\""},
      {GEMMA2 ",\"quantization_config\":{\"bits\":4}", "quantization_config"},
      {GEMMA3 ",\"use_bidirectional_attention\":true", "use_bidirectional_attention: true"},
      {GEMMA3 ",\"attn_logit_softcapping\":50.0", "attn_logit_softcapping: 50.0"}, // transformers does not apply it
      {GEMMA3 ",\"is_causal\":false", "is_causal: false"},
      {GEMMA3 ",\"per_layer_config\":{\"0\":{\"head_dim\":8}}", "per_layer_config"},
  };
  static const char *const invalid[][2] = {
      {GEMMA2 ",\"attn_logit_softcapping\":-50.0", "attn_logit_softcapping: must be a number above 0, is -50.0"},
      {GEMMA2 ",\"attn_logit_softcapping\":0", "attn_logit_softcapping: must be a number above 0, is 0"},
      {GEMMA2 ",\"final_logit_softcapping\":\"30\"", "final_logit_softcapping: must be a number above 0, is \"30\""},
      {GEMMA2 ",\"final_logit_softcapping\":true", "final_logit_softcapping: must be a number above 0, is true"},
      {GEMMA2 ",\"query_pre_attn_scalar\":0", "query_pre_attn_scalar: must be a whole number from 1"},
      {GEMMA2 ",\"query_pre_attn_scalar\":144.5", "query_pre_attn_scalar: must be a whole number from 1"},
      {GEMMA3 ",\"head_dim\":0", "head_dim: must be a whole number from 1"},
      {QWEN3 ",\"head_dim\":\"128\"", "head_dim: must be a whole number from 1"},
  };
  char text[1024];
  for (size_t i = 0; i < sizeof unimplemented / sizeof unimplemented[0]; i++) {
    snprintf(text, sizeof text, "{%s}", unimplemented[i][0]);
    refuses(BL_UNIMPLEMENTED, text, unimplemented[i][1]);
  }
  for (size_t i = 0; i < sizeof invalid / sizeof invalid[0]; i++) {
    snprintf(text, sizeof text, "{%s}", invalid[i][0]);
    refuses(BL_INVALID, text, invalid[i][1]);
  }
}

// Keys that stand in files of the models people have and change nothing.
static void files_as_published_are_read(void **state) {
  (void)state;
  const bl_model_t phi4 = parse(
      "{" PHI3 ",\"attention_bias\":false,\"mlp_bias\":false,\"lm_head_bias\":false,\"full_attn_mod\":1,"
      "\"interpolate_factor\":1,\"embd_pdrop\":0.0,\"original_max_position_embeddings\":4096,\"rope_theta\":10000.0,"
      "\"partial_rotary_factor\":0.5,\"sliding_window\":262144,\"tie_word_embeddings\":true,\"pad_token_id\":199999}");
  assert_true(phi4.tied && phi4.rope.dims == 6 && phi4.window == 262144);
  const bl_model_t qwen = parse("{" QWEN3 ",\"attention_bias\":false,\"max_window_layers\":36,\"rope_scaling\":null,"
                                "\"sliding_window\":null,\"use_sliding_window\":false,\"rope_theta\":1000000}");
  assert_true(qwen.window == 0 && qwen.rope.theta == 1e6);
  parse("{" GEMMA ",\"hidden_act\":\"gelu\",\"hidden_activation\":null,\"attention_bias\":false,\"pad_token_id\":0}");
  parse("{" GEMMA2 ",\"hidden_act\":\"gelu_pytorch_tanh\",\"hidden_activation\":\"gelu_pytorch_tanh\","
        "\"cache_implementation\":\"hybrid\",\"sliding_window_size\":4096,\"use_bidirectional_attention\":null}");
  const bl_model_t gemma3 =
      parse("{" GEMMA3
            ",\"attn_logit_softcapping\":null,\"cache_implementation\":\"hybrid\",\"final_logit_softcapping\":null,"
            "\"rope_local_base_freq\":10000,\"rope_scaling\":null,\"rope_theta\":1000000,\"sliding_window\":512,"
            "\"sliding_window_pattern\":6,\"_sliding_window_pattern\":6,\"use_bidirectional_attention\":false}");
  assert_true(gemma3.window == 512 && gemma3.window_period == 6 && gemma3.rope.theta == 1e6);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(reads_files_of_transformers_5),
      cmocka_unit_test(reads_both_spellings),
      cmocka_unit_test(defaults_are_those_of_transformers),
      cmocka_unit_test(what_does_not_matter_is_ignored),
      cmocka_unit_test(other_mathematics_is_refused_by_name),
      cmocka_unit_test(malformed_files_are_refused),
      cmocka_unit_test(what_is_written_is_read_as_the_same_model),
      cmocka_unit_test(what_computes_otherwise_differs),
      cmocka_unit_test(all_positions_of_gpt2_are_written),
      cmocka_unit_test(rotations_are_read),
      cmocka_unit_test(rotations_of_gemma3_are_of_layers),
      cmocka_unit_test(phi3_rotates_a_part_of_a_head),
      cmocka_unit_test(phi3_rotates_pairs_by_numbers),
      cmocka_unit_test(every_part_of_a_head_survives),
      cmocka_unit_test(families_have_their_properties),
      cmocka_unit_test(heads_have_the_defaults_of_each),
      cmocka_unit_test(windows_are_of_layers),
      cmocka_unit_test(windows_that_cannot_be_said_are_refused),
      cmocka_unit_test(mathematics_of_new_families_is_refused_by_name),
      cmocka_unit_test(files_as_published_are_read),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
