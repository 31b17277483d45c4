// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/schedule: which stage reserves how many slots at which store.
#ifndef BALLAST_SCHEDULE_RESERVATION_H
#define BALLAST_SCHEDULE_RESERVATION_H

#include "schedule/balance/balance.h"

// Gives every stage `wanted[stage]` slots at stores it reaches, preferred ones first; moves reservations of others to
// their further choices where that makes room (augmenting paths), so that it fails only when no division works.
// `reserved` is [stages * stores], zero on entry. BL_EXHAUSTED names a stage that is left without.
BL_MUST_USE bl_status_t bl__reserve(const bl_balance_request_t *request, uint32_t stages, const uint32_t *wanted,
                                    uint32_t *reserved, bl_error_t *err);

#endif
