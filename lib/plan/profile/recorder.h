// SPDX-License-Identifier: Apache-2.0
// Makes a profile from the events of traced steps. Steps are added one after the other, each with all its operations:
//
//   bl_recorder_create(schedule, spans, &recorder);
//   for (each traced step) {
//     bl_recorder_begin(recorder);
//     for (each event) bl_recorder_add(recorder, stage, name, start_ns, end_ns);   // in start order of a stage, with
//                      bl_recorder_wait(...) for its waits before an operation
//     bl_recorder_end(recorder, seconds_of_the_step);
//   }
//   bl_recorder_fill(recorder, model, &profile);
//
// A step that lacks operations (a stage's trace was truncated) is left out. For every operation, message and core
// handover the recorder takes the mean within a step, and then the median over steps. Sums over a step stay correct,
// and one disturbed step has little influence. For replays, it keeps all durations of the step with the median
// makespan.
//
// Pure. Thread: belongs to its caller.
#ifndef BALLAST_PLAN_RECORDER_H
#define BALLAST_PLAN_RECORDER_H

#include "plan/profile/profile.h"

typedef struct bl_recorder bl_recorder_t;

#define BL_RECORDER_STEPS 64 // maximum number of steps kept

// `schedule` is what runs, with or without its E and L. Both are borrowed until after bl_recorder_fill.
BL_MUST_USE bl_status_t bl_recorder_create(const bl_schedule_t *schedule, const bl_chunk_span_t *spans,
                                           bl_recorder_t **recorder);
void bl_recorder_destroy(bl_recorder_t *recorder); // NULL is fine

void bl_recorder_begin(bl_recorder_t *recorder);
// Leaves out names that are not a cell of the schedule (waits). E and L are timed and need not be in `schedule`.
void bl_recorder_add(bl_recorder_t *recorder, uint32_t stage, const char *name, uint64_t start_ns, uint64_t end_ns);
// Records a wait before the next operation, with its cause. If no waits are recorded, a message's arrival time is known
// only if the operation started as soon as the message arrived.
void bl_recorder_wait(bl_recorder_t *recorder, uint32_t stage, const char *name, uint64_t start_ns, uint64_t end_ns);
void bl_recorder_end(bl_recorder_t *recorder, double step_seconds);

uint32_t bl_recorder_steps(const bl_recorder_t *recorder);
// Sets everything that was measured: times, medians, stages, chunks and the model. The caller sets options, cores, slot
// and path bytes, and all of the setting but the order. `input_shows`: every stage had a core, so that the starts of
// operations show when messages arrived; recorded waits show it anyway. BL_PRECONDITION: no complete step;
// BL_EXHAUSTED. On failure *profile is unchanged.
BL_MUST_USE bl_status_t bl_recorder_fill(const bl_recorder_t *recorder, const bl_model_t *model,
                                         bl_attention_t attention, bool input_shows, bl_profile_t *profile,
                                         bl_error_t *err);

#endif
