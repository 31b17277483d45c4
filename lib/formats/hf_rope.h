// SPDX-License-Identifier: Apache-2.0
// Private to lib/formats: the rotation of positions in a config.json.
//
//   transformers 4   rope_theta, rope_scaling {rope_type or type, ...}, partial_rotary_factor, rope_local_base_freq
//   transformers 5   rope_parameters {rope_theta, rope_type, partial_rotary_factor, ...}, or one such object for
//                    each of full_attention and sliding_attention
//
// If both are present, rope_scaling takes precedence, as in either version. Thread: pure functions.
#ifndef BALLAST_FORMATS_HF_ROPE_H
#define BALLAST_FORMATS_HF_ROPE_H

#include "formats/hf_family.h"

// Reads the rotation. Before the call, model->rope and window_rope hold the family's defaults and model->head_dim is
// set.
BL_MUST_USE bl_status_t bl__hf_rope_read(const json_t *document, const bl__hf_family_t *family, bl_model_t *model,
                                         bl_error_t *err);
// Writes both spellings. Returns nonzero if there is no memory.
int bl__hf_rope_write(json_t *document, const bl__hf_family_t *family, const bl_model_t *model);

#endif
