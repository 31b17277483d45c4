// SPDX-License-Identifier: Apache-2.0
// Private to lib/formats: which layers of a config.json have a window, and its length (sliding_window,
// use_sliding_window, max_window_layers, sliding_window_pattern, layer_types).
//
// A model expresses this with window, window_first and window_period. Lists of layer_types that these cannot express
// are refused. Equal lists give equal numbers, and all of them are 0 if no layer has a window. Thread: pure functions.
#ifndef BALLAST_FORMATS_HF_WINDOW_H
#define BALLAST_FORMATS_HF_WINDOW_H

#include "formats/hf_family.h"

// Reads the windows. Before the call, the three numbers hold the family's defaults and model->layers is set.
BL_MUST_USE bl_status_t bl__hf_window_read(const json_t *document, const bl__hf_family_t *family, bl_model_t *model,
                                           bl_error_t *err);
// Returns nonzero if there is no memory.
int bl__hf_window_write(json_t *document, const bl__hf_family_t *family, const bl_model_t *model);

#endif
