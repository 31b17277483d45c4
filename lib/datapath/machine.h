// SPDX-License-Identifier: Apache-2.0
// Identifies the machine, as far as shared memory is concerned. Two processes with the same text can very likely map
// each other's memory. Two containers of one host that have separate shared-memory folders have different texts.
// Thread: any.
#ifndef BALLAST_DATAPATH_MACHINE_H
#define BALLAST_DATAPATH_MACHINE_H

#include <stdbool.h>
#include <stddef.h>

// "<boot id>/<device number of /dev/shm>"; unknown parts read "?", and a text with one never matches another.
void bl_machine_text(char *text, size_t text_bytes);
bool bl_machine_same(const char *a, const char *b); // of two such texts; "" equals no other

#endif
