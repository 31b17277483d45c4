// SPDX-License-Identifier: Apache-2.0
// Private to lib/schedule: the acceptors of each stage, that is how many slots it reserves at each store, and which
// stores are near. With paths of
// unequal bandwidth a stage parks its blocks where copies are short and do not queue with another stage's copies.
#ifndef BALLAST_SCHEDULE_ACCEPTORS_H
#define BALLAST_SCHEDULE_ACCEPTORS_H

#include "schedule/balance/balance.h"

// reservation.c
// Gives every stage `wanted[stage]` slots at stores that it reaches, preferred ones first. Moves reservations of other
// stages to their later choices if that frees slots (augmenting paths), so it fails only if no division works.
// `reserved` is [stages * stores], zero on entry. BL_EXHAUSTED: names a stage that lacks slots, or no memory. For a
// stage that lacks slots, `rivals` [stages], or NULL, marks the stages of which one must want less: the stage itself
// and those whose slots it could take.
BL_MUST_USE bl_status_t bl__reserve(const bl_balance_request_t *request, uint32_t stages, const uint32_t *wanted,
                                    uint32_t *reserved, bool *rivals, bl_error_t *err);

// acceptors.c
// BL_INVALID names the stage and the store whose copy time is negative or not finite.
BL_MUST_USE bl_status_t bl__acceptors_check(const bl_balance_request_t *request, uint32_t stages, bl_error_t *err);
// Writes the rows of request->reach to `reach` [stages * reach_count], shorter copies first, otherwise in their order.
void bl__acceptors_sort(const bl_balance_request_t *request, uint32_t stages, uint16_t *reach);
// Moves and exchanges slots of a division that works, while that shortens the copies of a step. The cost of a store is
// the time of all its copies, and once more the time of those that are not its largest user's, because they wait.
// `slots` [stages]: what each stage reserves. `moves` [stages]: the blocks that it evicts. `reserved` [stages *
// stores]: the division, unchanged if all copies are equally long. BL_EXHAUSTED without memory.
BL_MUST_USE bl_status_t bl__acceptors_improve(const bl_balance_request_t *request, uint32_t stages,
                                              const uint32_t *slots, const uint32_t *moves, uint32_t *reserved);

#endif
