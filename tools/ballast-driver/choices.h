// SPDX-License-Identifier: Apache-2.0
// What the libraries of stages chose for their products. A shape that two stages plan otherwise gives them other bits: losses
// are then not those of another number of stages. It is said, once, and no reason to end a run.
//
// Thread: the driver's loop.
#ifndef BALLAST_DRIVER_CHOICES_H
#define BALLAST_DRIVER_CHOICES_H

#include "driver.h"

// Warns of each stage and shape whose choice is another one than that of the first stage with the shape.
void bl__choices_compare(const bl_driver_t *driver);

#endif
