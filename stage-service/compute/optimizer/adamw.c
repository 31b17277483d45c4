// SPDX-License-Identifier: Apache-2.0
#include "compute/optimizer/adamw.h"

#include <math.h>

bl_adamw_t bl_adamw_for_step(const bl_adamw_settings_t *settings, const bl_adamw_step_t *step, bool matrix) {
  const bool decays = matrix || settings->decay == BL_DECAY_ALL;
  return (bl_adamw_t){.rate = (float)step->rate,
                      .beta1 = (float)settings->beta1,
                      .beta2 = (float)settings->beta2,
                      .epsilon = (float)settings->epsilon,
                      .weight_decay = decays ? (float)settings->weight_decay : 0,
                      .correction1 = (float)(1 - pow(settings->beta1, (double)step->step)),
                      .correction2 = (float)(1 - pow(settings->beta2, (double)step->step)),
                      .gradient_scale = (float)step->gradient_scale};
}
