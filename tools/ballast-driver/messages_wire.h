// SPDX-License-Identifier: Apache-2.0
// Events and plans as messages of driver.proto.
//
// A message created here borrows texts and numbers and owns the rest. It is valid until freed by the matching destroy
// function. Thread: the loop's.
#ifndef BALLAST_DRIVER_MESSAGES_WIRE_H
#define BALLAST_DRIVER_MESSAGES_WIRE_H

#include "driver.h"

#include "ballast/v1/driver.pb-c.h"

// Returns NULL if memory is exhausted.
Ballast__V1__WatchResponse *bl_watch_message_create(const bl_driver_t *driver, const bl_event_t *event);
void bl_watch_message_destroy(Ballast__V1__WatchResponse *message);

#endif
