// SPDX-License-Identifier: Apache-2.0
// Ends the sessions of plans that are of no use any more, on a thread beside, so that no step waits for a store that is
// silent.
//
//   bl_closing_take(closing, parking);   // nothing touches its slots any more when this returns
//   bl_closing_wait(closing);            // before the device goes that slots lie on
//
// Thread: any. Plans are ended one after the other, in the order in which they come.
#ifndef BALLAST_PARKING_CLOSING_H
#define BALLAST_PARKING_CLOSING_H

#include "parking/store_parking.h"

typedef struct bl_closing bl_closing_t;

// BL_EXHAUSTED: no memory or thread.
BL_MUST_USE bl_status_t bl_closing_create(bl_closing_t **closing, bl_error_t *err);
// Waits until all are closed. NULL is fine.
void bl_closing_destroy(bl_closing_t *closing);
// Takes the parking over. NULL for it is fine.
void bl_closing_take(bl_closing_t *closing, bl_store_parking_t *parking);
// Until all that were taken are closed.
void bl_closing_wait(bl_closing_t *closing);

#endif
