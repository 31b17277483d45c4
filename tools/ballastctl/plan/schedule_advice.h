// SPDX-License-Identifier: Apache-2.0
// What a job with a V-shaped schedule gives away: every block crosses twice as many boundaries there, which costs more
// than its order gains where they are slow. The search of such an order never leaves the V; `ballastctl plan` does.
#ifndef BALLAST_BALLASTCTL_SCHEDULE_ADVICE_H
#define BALLAST_BALLASTCTL_SCHEDULE_ADVICE_H

#include "ballastctl/plan/prediction.h"

#define BL_CTL_SCHEDULE_ADVICE 512

// Times 1f1b for the same job, with no policy and its own division of layers. One line where it is faster by more than
// 2 % and no stage takes more than the fullest one of the prediction: both times, and the keys to change. Else "", as
// for other schedules, a replayed step, and whatever 1f1b cannot do. `source` and `profile_name` are the prediction's.
void bl_ctl_schedule_advice_find(const bl_ctl_prediction_t *prediction, const bl_ctl_prediction_source_t *source,
                                 const char *profile_name, char text[BL_CTL_SCHEDULE_ADVICE]);

#endif
