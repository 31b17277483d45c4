// SPDX-License-Identifier: Apache-2.0
// The log: one line per event on stderr. Each line is one write(2), so that lines of several processes never mix.
//
//   bl_log_init("stage-service", BL_LOG_INFO);
//   bl_log_context("stage=2 run=7f3a");
//   bl_log(BL_LOG_WARNING, "store 1 is gone, %u leases lost", lost);
//   -> 2026-11-21T09:14:03.120Z warning stage-service stage=2 run=7f3a: store 1 is gone, 3 leases lost
//   bl_log_json(true);
//   -> {"time":"2026-11-21T09:14:03.120Z","level":"warning","program":"stage-service","stage":2,"run":"7f3a","step":12,
//       "attempt":12,"message":"store 1 is gone, 3 leases lost"}
//
// Log an error once, where it is first known, with its cause and ids. Log no secrets.
// Thread: bl_log and bl_log_step on any thread, the rest on the main thread. The context may change at any time: a line
// that is logged during the change has the old or the new one. Set the format before other threads log. Never log from
// a signal handler.
#ifndef BALLAST_SYS_LOG_H
#define BALLAST_SYS_LOG_H

#include <stdbool.h>
#include <stdint.h>

typedef enum { BL_LOG_ERROR, BL_LOG_WARNING, BL_LOG_INFO, BL_LOG_DEBUG } bl_log_level_t;

// Call this first in main. Standard streams that are closed become /dev/null, so that no socket gets the number of
// stderr and with it the log. `program` is kept, not copied. The environment variable BALLAST_LOG (error, warning,
// info, debug) overrides `level`.
void bl_log_init(const char *program, bl_log_level_t level);
// Writes one JSON object per line instead of text. A line is truncated at 2 KiB.
void bl_log_json(bool json);
// Sets identifiers that precede every message, as key=value pairs separated by spaces ("": none). Truncated at 120
// bytes.
void bl_log_context(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define BL_LOG_WORD 64
// Makes a name usable as a value of the context: replaces spaces by '_' and truncates. Returns `word`.
const char *bl_log_word(const char *name, char word[BL_LOG_WORD]);
// Sets the current step and attempt, which precede every message from then on. 0, 0: none.
void bl_log_step(uint64_t step, uint64_t attempt);
void bl_log(bl_log_level_t level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
