// SPDX-License-Identifier: Apache-2.0
// From the events of traced steps to a profile. Steps are added one after the other, each with all its operations:
//
//   bl_recorder_create(schedule, spans, &recorder);
//   for (each traced step) {
//     bl_recorder_begin(recorder);
//     for (each event) bl_recorder_add(recorder, stage, name, start_ns, end_ns);   // in start order of a stage, with
//                      bl_recorder_wait(...) for what it waited for before an operation
//     bl_recorder_end(recorder, seconds_of_the_step);
//   }
//   bl_recorder_fill(recorder, model, &profile);
//
// A step that lacks operations (a stage's trace was cut) is left out. Of every operation, message and core that changes
// hands the mean of a step is taken, and of that the median over steps: sums over a step come out right, and a disturbed
// step counts little. For replays, all durations of the step of the median makespan are kept.
//
// Pure. Thread: belongs to its caller.
#ifndef BALLAST_PLAN_RECORDER_H
#define BALLAST_PLAN_RECORDER_H

#include "plan/profile/profile.h"

typedef struct bl_recorder bl_recorder_t;

#define BL_RECORDER_STEPS 64 // most steps kept

// `schedule` is what runs, with or without its E and L; both are borrowed until the last step is added and filled in.
BL_MUST_USE bl_status_t bl_recorder_create(const bl_schedule_t *schedule, const bl_chunk_span_t *spans,
                                           bl_recorder_t **recorder);
void bl_recorder_destroy(bl_recorder_t *recorder); // NULL is fine

void bl_recorder_begin(bl_recorder_t *recorder);
// Names that are no cell of the schedule (waits) are left out; E and L are timed and need not be in `schedule`.
void bl_recorder_add(bl_recorder_t *recorder, uint32_t stage, const char *name, uint64_t start_ns, uint64_t end_ns);
// A wait before the operation that comes next, under its reason. Without any, when messages came shows only where the
// operation began at once.
void bl_recorder_wait(bl_recorder_t *recorder, uint32_t stage, const char *name, uint64_t start_ns, uint64_t end_ns);
void bl_recorder_end(bl_recorder_t *recorder, double step_seconds);

uint32_t bl_recorder_steps(const bl_recorder_t *recorder);
// Sets everything that was measured: times, medians, stages, chunks and the model; the caller sets options, cores,
// slot and path bytes, and of the setting all but the order. `input_shows`: every stage had a core, so that the starts of
// operations show when messages came; waits that were told of show it anyway. BL_PRECONDITION without any whole step; BL_EXHAUSTED. On failure *profile is unchanged.
BL_MUST_USE bl_status_t bl_recorder_fill(const bl_recorder_t *recorder, const bl_model_t *model,
                                         bl_attention_t attention, bool input_shows, bl_profile_t *profile,
                                         bl_error_t *err);

#endif
