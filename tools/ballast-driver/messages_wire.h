// SPDX-License-Identifier: Apache-2.0
// Events and plans as messages of driver.proto.
//
// A message that is made here borrows texts and numbers, owns the rest, and is valid until it is freed by the function
// beside it. Thread: the loop's.
#ifndef BALLAST_DRIVER_MESSAGES_WIRE_H
#define BALLAST_DRIVER_MESSAGES_WIRE_H

#include "driver.h"

#include "ballast/v1/driver.pb-c.h"

// NULL without memory.
Ballast__V1__WatchResponse *bl_watch_message_create(const bl_driver_t *driver, const bl_event_t *event);
void bl_watch_message_destroy(Ballast__V1__WatchResponse *message);

#endif
