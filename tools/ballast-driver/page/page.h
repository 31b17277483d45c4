// SPDX-License-Identifier: Apache-2.0
// The page that a driver serves in addition to its metrics: memory of every device over the steps, leases by state, the
// last step's timeline. One self-contained document (page.html, built in) and its JSON data:
//
//   /              the page                       /api/run         phase, devices, history of steps
//   /api/stores    what every store holds now     /api/timeline    operations and waits of the last step
//
// What needs calls to other processes (stores, timeline) is answered with the last result, and requested for the next
// time: the page polls every second. While no browser polls, no calls are made.
// Thread: the loop's.
#ifndef BALLAST_DRIVER_PAGE_H
#define BALLAST_DRIVER_PAGE_H

#include "driver.h"

#include "observe/http.h"

// Steps in the page's history; at 8 devices about 400 bytes each.
#define BL_PAGE_STEPS 1024

typedef struct bl_page bl_page_t;

// All borrowed. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_page_create(bl_rpc_t *rpc, bl_driver_t *driver, const char *run, bl_page_t **page,
                                       bl_error_t *err);
void bl_page_destroy(bl_page_t *page); // before the driver; NULL is fine

// The journal has changed: adds new steps to the history.
void bl_page_changed(bl_page_t *page);
// A bl_http_fn whose context is the page. NULL: the driver is starting, and the page has no data yet.
void bl_page_answer(const char *path, bl_http_answer_t *answer, void *context);

#endif
