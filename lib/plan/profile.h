// SPDX-License-Identifier: Apache-2.0
// What operations of a job took on the machine that ran it: the measured costs that the simulator and the planner use.
// `ballastctl run --profile FILE` records one, from steps after the first, when the optimizer's state exists.
//
// A profile is a JSON document of one version and names the model it is of; one of another model is refused. It holds
// per virtual stage the seconds of F, I, W and R, per stage the bytes of a block, the seconds of an evict and a load and
// the rate of their copies, the latency of a boundary and of a core that changes hands, the seconds between the last
// operation and the next step (votes, commit, optimizer), and the durations of all operations of one step, for a replay.
//
// Pure: bytes in, bytes out. Thread: a profile belongs to its caller.
#ifndef BALLAST_PLAN_PROFILE_H
#define BALLAST_PLAN_PROFILE_H

#include "model/layout.h"
#include "schedule/costs.h"
#include "schedule/schedule.h"

#define BL_PROFILE_VERSION 1
#define BL_PROFILE_NAME    32

typedef struct bl_profile_chunk {
  uint32_t stage;
  bl_chunk_span_t span;
  bl_chunk_costs_t costs; // seconds
  bool measured_input;    // I was seen apart from W; otherwise their sum was, and its parts are by FLOPs
  bool measured_recompute;
} bl_profile_chunk_t;

typedef struct bl_profile_stage {
  uint64_t slot_bytes; // of one block
  double evict, load;  // seconds of the compute thread (the copy runs beside it); 0: none seen
  double path_rate;    // bytes per second of copies to stores and back, as they took beside compute; 0: none seen
  double *times;       // [time_count] durations in one step, in the order of its operations (E and L left out)
  uint32_t time_count;
  double step_end; // seconds from the first operation of any stage to its last one, in that step
} bl_profile_stage_t;

typedef struct bl_profile {
  uint64_t model_digest;
  char model_text[192];
  char schedule[BL_PROFILE_NAME];
  bl_layout_options_t options;
  uint32_t micro_batches;
  uint32_t cores;         // of the machine; 0: not known, or several machines
  uint32_t steps;         // that were recorded
  double step;            // median seconds of a step, as the report has them
  double makespan;        // median seconds from the first operation to the end of the last
  double between;         // median of what is left of a step
  double boundary;        // seconds between the end of an operation and the start of the one that waited for its result
  double handover;        // seconds until a core that an operation had is with the one that waited for it
  double replay_makespan; // of the step whose durations are kept
  uint32_t stage_count, chunk_count;
  bl_profile_stage_t *stages;
  bl_profile_chunk_t *chunks; // by virtual stage
} bl_profile_t;

// Identity of the mathematics: two jobs with the same digest train the same model.
uint64_t bl_profile_model_digest(const bl_model_t *model);
const char *bl_profile_model_text(const bl_model_t *model, char text[192]);

// `name` is for messages. BL_INVALID: not a profile, another version, a cost that is negative or no number (says which).
BL_MUST_USE bl_status_t bl_profile_read(bl_profile_t *profile, const char *bytes, size_t size_bytes, const char *name,
                                        bl_error_t *err);
// *text is malloc'd and terminated; the caller frees it. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_profile_write(const bl_profile_t *profile, char **text);
void bl_profile_cleanup(bl_profile_t *profile); // a zeroed one is fine

// BL_INVALID naming both models when the profile is of another one.
BL_MUST_USE bl_status_t bl_profile_check_model(const bl_profile_t *profile, const bl_model_t *model, const char *name,
                                               bl_error_t *err);

// Costs of chunks on this machine, costs[count]. Where the profile was taken with the same chunks, these; otherwise what
// it says of a layer, the embedding and the head, added up. Another micro-batch scales in proportion; recomputation of
// attention adds its share of the forward to I.
void bl_profile_costs(const bl_profile_t *profile, const bl_model_t *model, const bl_chunk_span_t *spans,
                      uint32_t count, bl_layout_options_t options, bl_chunk_costs_t *costs);

#endif
