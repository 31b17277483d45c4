// SPDX-License-Identifier: Apache-2.0
// Whatever bytes come, a config.json that is accepted has numbers that a model can have.
#include "target.h"

#include "formats/hf_config.h"

#include <math.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes) {
  bl_hf_config_t config;
  bl_error_t err = {0};
  if (bl_hf_config_parse(&config, (const char *)bytes, size_bytes, &err) != BL_OK) {
    FUZZ_CHECK(err.status != BL_OK && err.text[0] != '\0');
    return 0;
  }
  FUZZ_CHECK(config.layers > 0 && config.hidden > 0 && config.heads > 0 && config.kv_heads > 0);
  FUZZ_CHECK(config.head_dim > 0 && config.ffn > 0 && config.vocab > 0 && config.seq > 0);
  FUZZ_CHECK(config.heads % config.kv_heads == 0);
  FUZZ_CHECK(isfinite(config.norm_epsilon) && config.norm_epsilon > 0);
  FUZZ_CHECK(config.family == BL_HF_GPT2 || (isfinite(config.rope.theta) && config.rope.theta > 0));
  return 0;
}
