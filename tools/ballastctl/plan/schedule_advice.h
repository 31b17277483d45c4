// SPDX-License-Identifier: Apache-2.0
// Advice for a job with a V-shaped schedule. There every block crosses twice as many boundaries, and if boundaries are
// slow this costs more than the order gains. The search for such an order never leaves the V, but `ballastctl plan`
// does.
#ifndef BALLAST_BALLASTCTL_SCHEDULE_ADVICE_H
#define BALLAST_BALLASTCTL_SCHEDULE_ADVICE_H

#include "ballastctl/plan/prediction.h"

#define BL_CTL_SCHEDULE_ADVICE 512

// Times 1f1b for the same job, without a policy and with its own division of layers. Writes one line if it is faster by
// more than 2 % and no stage needs more memory than the fullest one of the prediction: both times, and the keys to
// change. Writes "" otherwise, for other schedules, for a replayed step, and if 1f1b is not possible. `source` and
// `profile_name` are the prediction's.
void bl_ctl_schedule_advice_find(const bl_ctl_prediction_t *prediction, const bl_ctl_prediction_source_t *source,
                                 const char *profile_name, char text[BL_CTL_SCHEDULE_ADVICE]);

#endif
