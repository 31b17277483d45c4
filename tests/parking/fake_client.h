// SPDX-License-Identifier: Apache-2.0
// What parking calls of lib/client, without a store: a program linked with this has it in place of the library's.
// Nothing happens by itself. The test says when a session is open or refused, when a transfer ends and how, when a
// client is gone; or lets chance say it (fake_step). Blocks are really read and written, at any time between the start
// and the end.
//
// It checks what client.h demands of its callers: a slot is used once at a time, nothing but the wait for an end comes
// after close_start, every ticket is waited for once and no wait waits, the sources are shown before blocks leave from
// them.
//
// Thread: the functions of client.h from any; fake_ functions that call back from one, which is the runtime's.
#ifndef TESTS_PARKING_FAKE_CLIENT_H
#define TESTS_PARKING_FAKE_CLIENT_H

#include "client/client.h"

#define FAKE_SLOTS 16u

// Begins anew: nothing is left of the test before. Chance goes by the seed.
void fake_reset(uint64_t seed);
void fake_cross(bool far); // stores are on another machine, until fake_reset; before sessions open
// The client that was opened last and is not gone; NULL: none.
bl_client_t *fake_client(void);
unsigned fake_client_count(void);
void fake_close_all(void); // until all that are being closed are gone

// Callbacks. `text` is that of an error. A session may be opened when its close was begun already: then the callback
// was on its way, and had to wait for a mutex of the caller's.
void fake_open(bl_client_t *client, bl_status_t status, const char *text);
// Of whatever is under way with this memory; for a source that is shown: NULL.
void fake_end(bl_client_t *client, const void *memory, bl_status_t status, const char *text);
void fake_close(bl_client_t *client); // ends what is under way before

// One thing of those that could happen; false: there was none. `trouble` in a thousand of them are errors.
bool fake_step(unsigned trouble);

// Looks.
bool fake_touches(const void *memory);              // something under way reads or writes it
unsigned fake_under_way(const bl_client_t *client); // but for sources
bool fake_is_cancelled(bl_client_t *client, const void *memory);
bool fake_is_closing(const bl_client_t *client);
unsigned fake_slots_used(const bl_client_t *client); // that are not known to be empty
// Memory in the order in which its transfers were started since fake_reset, modulo the capacity.
#define FAKE_STARTS 1024u
unsigned fake_starts(const void *memory[FAKE_STARTS]);

#endif
