// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/schedule: which stage reserves how many slots at which store, and which stores are near. With paths of unequal bandwidth a stage parks its blocks where
// copies are short, and where another stage's copies do not stand in the way.
#ifndef BALLAST_SCHEDULE_ACCEPTORS_H
#define BALLAST_SCHEDULE_ACCEPTORS_H

#include "schedule/balance/balance.h"

// reservation.c
// Gives every stage `wanted[stage]` slots at stores it reaches, preferred ones first; moves reservations of others to
// their further choices where that makes room (augmenting paths), so that it fails only when no division works.
// `reserved` is [stages * stores], zero on entry. BL_EXHAUSTED names a stage that is left without; then `rivals` [stages], or
// NULL, says which stages have to want less for it to have more: itself, and those whose slots it could take.
BL_MUST_USE bl_status_t bl__reserve(const bl_balance_request_t *request, uint32_t stages, const uint32_t *wanted,
                                    uint32_t *reserved, bool *rivals, bl_error_t *err);

// acceptors.c
// BL_INVALID names the stage and the store between which a copy takes no time that could be.
BL_MUST_USE bl_status_t bl__acceptors_check(const bl_balance_request_t *request, uint32_t stages, bl_error_t *err);
// The rows of request->reach, those with shorter copies first, else in their order. `reach` [stages * reach_count].
void bl__acceptors_sort(const bl_balance_request_t *request, uint32_t stages, uint16_t *reach);
// Moves and exchanges rooms of a division that works while that makes the copies of a step shorter: the sum of all, and of
// those at each store but its largest user's once more, as they wait. `slots` [stages] is what each stage reserves, `moves`
// [stages] how many blocks it evicts, `reserved` [stages * stores] the division. Where all copies are equally long it stays.
// BL_EXHAUSTED without memory.
BL_MUST_USE bl_status_t bl__acceptors_improve(const bl_balance_request_t *request, uint32_t stages,
                                              const uint32_t *slots, const uint32_t *moves, uint32_t *reserved);

#endif
