// SPDX-License-Identifier: Apache-2.0
// Which layers of a config.json have a window, and how long it is: sliding_window, use_sliding_window, max_window_layers,
// sliding_window_pattern, layer_types. Shared inside lib/formats.
//
// A model says it with window, window_first and window_period; a list of layer_types that these cannot say is refused. Equal
// lists give equal numbers, and all of them are 0 where no layer has a window. Thread: pure functions.
#ifndef BALLAST_FORMATS_HF_WINDOW_H
#define BALLAST_FORMATS_HF_WINDOW_H

#include "formats/hf_family.h"

// The three numbers of the model hold the family's defaults before; model->layers is there.
BL_MUST_USE bl_status_t bl__hf_window_read(const json_t *document, const bl__hf_family_t *family, bl_model_t *model,
                                           bl_error_t *err);
// Not 0: no memory.
int bl__hf_window_write(json_t *document, const bl__hf_family_t *family, const bl_model_t *model);

#endif
