// SPDX-License-Identifier: Apache-2.0
// Verifies config.json: files of transformers 5, spellings of transformers 4, defaults, and that each key that would
// change the mathematics is refused by name.
#include "formats/hf_config.h"

#include "sys/file.h"

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

#define QWEN2                                                                                                          \
  "\"model_type\":\"qwen2\",\"num_hidden_layers\":2,\"hidden_size\":8,\"num_attention_heads\":4,"                      \
  "\"num_key_value_heads\":2,\"intermediate_size\":24,\"vocab_size\":11,\"max_position_embeddings\":16"

static bl_hf_config_t parse(const char *text) {
  bl_hf_config_t config;
  bl_error_t err = {0};
  if (bl_hf_config_parse(&config, text, strlen(text), &err) != BL_OK) {
    fail_msg("%s: %s", text, err.text);
  }
  return config;
}

static bl_hf_config_t parse_file(const char *path) {
  bl_error_t err = {0};
  char *bytes;
  size_t size;
  if (bl_file_read(path, 1 << 20, &bytes, &size, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  bl_hf_config_t config = parse(bytes);
  free(bytes);
  return config;
}

static void reads_files_of_transformers_5(void **state) {
  (void)state;
  bl_hf_config_t gpt2 = parse_file(BALLAST_SOURCE_DIR "/tests/golden/gpt2/config.json");
  assert_int_equal(gpt2.family, BL_HF_GPT2);
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
  bl_hf_config_t llama = parse_file(BALLAST_SOURCE_DIR "/tests/golden/llama/config.json");
  assert_int_equal(llama.family, BL_HF_LLAMA);
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
  bl_hf_config_t c =
      parse("{\"model_type\":\"gpt2\",\"num_hidden_layers\":2,\"hidden_size\":8,\"num_attention_heads\":2,"
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
  bl_hf_config_t gpt2 = parse("{" GPT2 "}");
  assert_true(gpt2.tied);
  assert_int_equal(gpt2.ffn, 32);
  assert_true(gpt2.norm_epsilon == 1e-5);
  bl_hf_config_t llama = parse("{" LLAMA "}");
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
  bl_hf_config_t config;
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
      {"\"pruned_heads\":{\"0\":[1]}", "pruned_heads"},
      {"\"quantization_config\":{\"bits\":4}", "quantization_config: {\"bits\":4}"},
  };
  static const char *const llama[][2] = {
      {"\"hidden_act\":\"gelu\"", "hidden_act"},
      {"\"attention_bias\":true", "attention_bias: true"},
      {"\"mlp_bias\":true", "mlp_bias"},
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
          "model_type: 'qwen9' is not supported; gpt2, llama, mistral and qwen2 are");
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
  refuses(BL_UNIMPLEMENTED, "{" QWEN2 ",\"use_sliding_window\":true}", "use_sliding_window: true is not supported");
  refuses(BL_INVALID, "{" MISTRAL ",\"sliding_window\":0}", "sliding_window: must be a whole number");
  refuses(BL_INVALID, "{" LLAMA ",\"tie_word_embeddings\":1}", "tie_word_embeddings: must be true or false");
  refuses(BL_INVALID,
          "{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_embd\":8,\"n_head\":3,\"vocab_size\":11,\"n_positions\":16}",
          "n_head: 3 heads do not divide n_embd 8");
}

// Slowed rotations and windows, as both versions of transformers write them, and back.
static void rotations_and_windows_survive(void **state) {
  (void)state;
  static const char llama3[] = "\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4,"
                               "\"original_max_position_embeddings\":8192";
  char old[512], new[512];
  snprintf(old, sizeof old, "{" LLAMA ",\"rope_theta\":500000.0,\"rope_scaling\":{%s}}", llama3);
  snprintf(new, sizeof new, "{" LLAMA ",\"rope_parameters\":{\"rope_theta\":500000.0,%s}}", llama3);
  const bl_hf_config_t first = parse(old), second = parse(new);
  assert_true(bl_rope_equal(&first.rope, &second.rope));
  assert_int_equal(first.rope.kind, BL_ROPE_LLAMA3);
  assert_true(first.rope.theta == 500000 && first.rope.factor == 8 && first.rope.original == 8192);
  const bl_hf_config_t configs[] = {first,
                                    parse("{" LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.0}}"),
                                    parse("{" MISTRAL "}"),
                                    parse("{" MISTRAL ",\"sliding_window\":null}"),
                                    parse("{" MISTRAL ",\"sliding_window\":16}"),
                                    parse("{" QWEN2 ",\"sliding_window\":4096,\"use_sliding_window\":false}")};
  assert_int_equal(configs[1].rope.kind, BL_ROPE_LINEAR);
  assert_true(configs[2].variant == BL_VARIANT_MISTRAL && configs[2].window == 4096 && configs[2].kv_heads == 8);
  assert_true(configs[3].variant == BL_VARIANT_MISTRAL && configs[3].window == 0 && configs[4].window == 16);
  for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
    char *text;
    size_t bytes;
    bl_error_t err;
    assert_int_equal(bl_hf_config_write(&configs[i], &text, &bytes, &err), BL_OK);
    const bl_hf_config_t again = parse(text);
    assert_true(bl_rope_equal(&again.rope, &configs[i].rope));
    assert_int_equal(again.window, configs[i].window);
    assert_int_equal(again.variant, configs[i].variant);
    free(text);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(reads_files_of_transformers_5),        cmocka_unit_test(reads_both_spellings),
      cmocka_unit_test(defaults_are_those_of_transformers),   cmocka_unit_test(what_does_not_matter_is_ignored),
      cmocka_unit_test(other_mathematics_is_refused_by_name), cmocka_unit_test(malformed_files_are_refused),
      cmocka_unit_test(rotations_and_windows_survive),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
