// SPDX-License-Identifier: Apache-2.0
// The reference as a back end: every operation of the table in double, one after the other, in plain C, so that a whole
// model can be trained on it where no library is (tests/gpu). Inputs are what the tensors hold, outputs are rounded once.
// Slow: for small shapes.
//
// It agrees with the contract of compute/ops/ops.h, packs nothing, and needs no workspace. Thread: one per context.
#ifndef BALLAST_TESTS_OPS_REFERENCE_BACKEND_H
#define BALLAST_TESTS_OPS_REFERENCE_BACKEND_H

#include "compute/ops/ops.h"

const bl_ops_t *bl_ops_reference(void);

#endif
