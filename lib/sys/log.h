// SPDX-License-Identifier: Apache-2.0
// The log: one line per event on stderr, written with one write(2) so that lines of several processes never mix.
//
//   bl_log_init("stage-service", BL_LOG_INFO);
//   bl_log_context("stage=2 run=7f3a");
//   bl_log(BL_LOG_WARNING, "store 1 is gone, %u leases lost", lost);
//   -> 2026-11-21T09:14:03.120Z warning stage-service stage=2 run=7f3a: store 1 is gone, 3 leases lost
//   bl_log_json(true);
//   -> {"time":"2026-11-21T09:14:03.120Z","level":"warning","program":"stage-service","stage":2,"run":"7f3a","step":12,
//       "attempt":12,"message":"store 1 is gone, 3 leases lost"}
//
// Log once, where an error is first known, with its cause and ids. No secrets.
// Thread: bl_log and bl_log_step from any; the rest from the main thread: the context at any time, what others log meanwhile
// has the one or the other; the format before others log. Never from a signal handler.
#ifndef BALLAST_SYS_LOG_H
#define BALLAST_SYS_LOG_H

#include <stdbool.h>
#include <stdint.h>

typedef enum { BL_LOG_ERROR, BL_LOG_WARNING, BL_LOG_INFO, BL_LOG_DEBUG } bl_log_level_t;

// First of all in main: standard streams that are closed become /dev/null, so that no socket gets the number of stderr
// and with it the log. `program` is kept, not copied. The environment variable BALLAST_LOG (error, warning, info, debug)
// wins over `level`.
void bl_log_init(const char *program, bl_log_level_t level);
// One JSON object per line instead of text. What does not fit a line of 2 KiB is cut.
void bl_log_json(bool json);
// Identifiers that go before every message, as key=value words separated by spaces ("" for none); cut at 120 bytes.
void bl_log_context(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define BL_LOG_WORD 64
// A name as a value of the context: spaces become '_', what is too long is cut. Returns `word`.
const char *bl_log_word(const char *name, char word[BL_LOG_WORD]);
// The step and attempt at work, which go before every message from then on; 0, 0 for none.
void bl_log_step(uint64_t step, uint64_t attempt);
void bl_log(bl_log_level_t level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
