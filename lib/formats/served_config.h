// SPDX-License-Identifier: Apache-2.0
// The values of a Hugging Face config.json that serving needs and training does not: bos_token_id, eos_token_id and
// pad_token_id, which end generated text, and the number of positions that the model was made for, which may exceed the
// length of a run's sequences. bl_model_t has none of these.
//
// PURE. Thread: any.
#ifndef BALLAST_FORMATS_SERVED_CONFIG_H
#define BALLAST_FORMATS_SERVED_CONFIG_H

#include "base/error.h"

#include <stddef.h>

// Copies the token ids of the config.json `from` into the config.json `to`, and writes the result to *text. A token id
// is a number, null, or a list of numbers; other values are not copied. Also copies max_position_embeddings if both
// have it and that of `from` is larger. *text is malloc'd, freed by the caller. BL_INVALID: one of them is not a JSON
// object; BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_served_config_keep(const char *from, size_t from_bytes, const char *to, size_t to_bytes,
                                              char **text, size_t *text_bytes, bl_error_t *err);

#endif
