// SPDX-License-Identifier: Apache-2.0
// The algorithms that the stages' libraries chose for matrix products. If two stages compute the same shape with
// different algorithms, they get different bits, so losses differ from those of another number of stages. That is
// reported once and does not end the run.
//
// Thread: the driver's loop.
#ifndef BALLAST_DRIVER_CHOICES_H
#define BALLAST_DRIVER_CHOICES_H

#include "driver.h"

// Warns of each stage and shape whose algorithm differs from that of the first stage with the shape.
void bl__choices_compare(const bl_driver_t *driver);

#endif
