// SPDX-License-Identifier: Apache-2.0
// What a Hugging Face config.json says for those who serve the model, and training does not need: bos_token_id, eos_token_id,
// pad_token_id, by which generating text ends, and how many positions it was made for, which may be more than a run's sequences
// have. bl_model_t has none of it.
//
// PURE. Thread: any.
#ifndef BALLAST_FORMATS_SERVED_CONFIG_H
#define BALLAST_FORMATS_SERVED_CONFIG_H

#include "base/error.h"

#include <stddef.h>

// Writes the config.json `to` again with the token ids of `from`: a number, null, or a list of numbers; what is none of these
// is left as it was. Likewise max_position_embeddings, where both have it and that of `from` is larger. *text is malloc'd,
// freed by the caller. BL_INVALID: one of them is no JSON object; BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_served_config_keep(const char *from, size_t from_bytes, const char *to, size_t to_bytes,
                                              char **text, size_t *text_bytes, bl_error_t *err);

#endif
