// SPDX-License-Identifier: Apache-2.0
// What operations of a job took on the machine that ran it: the measured costs that the simulator and the planner use.
// `ballastctl run --profile FILE` records one, from steps after the first, when the optimizer's state exists.
//
// A profile is a JSON document of one version and names the model it is of, and what the run was made with that changes
// times; who may use it, and with what doubts, is in plan/profile/profile_use.h. It holds per virtual stage the seconds
// of F, I, W and R, per stage the bytes of a block and, where the stage did any, the seconds of an evict and a load,
// the rate of their copies and the latency of the boundaries that it waited for; of all stages together the latency of
// a boundary and of a core that changes hands, the seconds between the last operation and the next step (votes, commit,
// optimizer), and the durations of all operations of one step, for a replay.
//
// Pure: bytes in, bytes out. Thread: a profile belongs to its caller.
#ifndef BALLAST_PLAN_PROFILE_H
#define BALLAST_PLAN_PROFILE_H

#include "model/layout.h"
#include "schedule/ir/costs.h"
#include "schedule/ir/schedule.h"

#define BL_PROFILE_VERSION 1
#define BL_PROFILE_NAME    32
// Of one operation, or any other number of seconds: eleven days. Sums and multiples of them stay numbers.
#define BL_PROFILE_MOST_SECONDS 1e6
// Bytes per second of a copy: no path is slower or faster.
#define BL_PROFILE_LEAST_RATE 1
#define BL_PROFILE_MOST_RATE  1e15

typedef struct bl_profile_chunk {
  uint32_t stage;
  bl_chunk_span_t span;
  bl_chunk_costs_t costs;   // seconds; where sequences were in slices, of one on average
  bl_chunk_costs_t *slices; // [options.slices], then, of every one; else NULL
  bool measured_input;      // I was seen apart from W; otherwise their sum was, and its parts are by FLOPs
  bool measured_recompute;
} bl_profile_chunk_t;

typedef struct bl_profile_stage {
  uint64_t slot_bytes; // of one block
  double evict, load;  // seconds of its compute thread (the copy runs beside it); 0: it did none
  double path_rate; // bytes per second of its copies to stores and back, as they took beside compute; 0: it made none
  double host_rate; // the same of those at a host store
  double boundary;  // as of the profile, of the messages that this stage waited for; 0: it waited for none
  double *times;    // [time_count] durations in the step for replays, in the order of its operations (E and L left out)
  uint32_t time_count;
  double step_end; // seconds from the first operation of any stage to its last one, in that step
} bl_profile_stage_t;

typedef enum bl_profile_device { BL_PROFILE_HOST, BL_PROFILE_CUDA } bl_profile_device_t;

// What the run was made with that changes times, beside options. Profiles of older programs do not say it.
typedef struct bl_profile_setting {
  bool known;
  bl_profile_device_t device;
  uint32_t threads; // of a stage
  uint64_t order;   // bl_profile_order of the recorded step; 0: no step is kept
} bl_profile_setting_t;

// One step, that of the median makespan, whose durations the stages keep; all in seconds. Boundary and handover are
// means of that step; in profiles of older programs those of the profile.
typedef struct bl_profile_replay {
  double makespan, boundary, handover;
} bl_profile_replay_t;

typedef struct bl_profile {
  uint64_t model_digest;
  char model_text[192];
  char schedule[BL_PROFILE_NAME];
  bl_layout_options_t options; // dtype is fp32 unless the setting is known
  bl_profile_setting_t setting;
  uint32_t micro_batches;
  uint32_t cores;  // of the machine; 0: not known, or several machines
  uint32_t steps;  // that were recorded
  double step;     // median seconds of a step, as the report has them
  double makespan; // median seconds from the first operation to the end of the last
  double overhead; // median of what is left of a step, without what replicas bring to each other then
  // Means of a step, of these the median over steps: seconds
  double boundary; // between the end of an operation and the start of the one that waited for its result
  double handover; // until a core that an operation had is with the one that waited for it
  bl_profile_replay_t replay;
  uint32_t stage_count, chunk_count;
  uint32_t pipes; // of the schedule: chunks of the second have the layers of the first's again
  bl_profile_stage_t *stages;
  bl_profile_chunk_t *chunks; // by virtual stage
} bl_profile_t;

// Identity of the mathematics: two jobs with the same digest train the same model.
uint64_t bl_profile_model_digest(const bl_model_t *model);
const char *bl_profile_model_text(const bl_model_t *model, char text[192]);

// Identity of an order: equal where every stage does the same operations in the same order, but for E and L. Never 0.
uint64_t bl_profile_order(const bl_schedule_t *schedule);

// `name` is for messages. BL_INVALID: not a profile, another version, a field that is missing or no number that it can
// be, fields that contradict each other (chunks that do not follow each other, stages without a chunk, durations of a
// step that are too few or too many); names the field.
BL_MUST_USE bl_status_t bl_profile_read(bl_profile_t *profile, const char *bytes, size_t size_bytes, const char *name,
                                        bl_error_t *err);
// *text is malloc'd and terminated; the caller frees it. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_profile_write(const bl_profile_t *profile, char **text);
void bl_profile_cleanup(bl_profile_t *profile); // a zeroed one is fine

// Costs of chunks on this machine, costs[count]. Where the profile was taken with the same chunks, these; otherwise
// what it says of a layer, the embedding and the head, added up. Another micro-batch scales in proportion;
// recomputation of attention adds its share of the forward to I.
void bl_profile_costs(const bl_profile_t *profile, const bl_model_t *model, const bl_chunk_span_t *spans,
                      uint32_t count, bl_layout_options_t options, bl_chunk_costs_t *costs);

// What every slice of options.slices costs, slices[count, options.slices], by the mean of its chunk, costs[count]: as
// measured where the profile has these slices of these chunks, else by how many keys attention sees.
void bl_profile_slice_costs(const bl_profile_t *profile, const bl_model_t *model, const bl_chunk_span_t *spans,
                            uint32_t count, bl_layout_options_t options, const bl_chunk_costs_t *costs,
                            bl_chunk_costs_t *slices);
// The latter alone, of one chunk: its mean spread over slices[options.slices].
void bl_profile_spread(const bl_model_t *model, bl_chunk_span_t span, bl_layout_options_t options,
                       bl_chunk_costs_t mean, bl_chunk_costs_t *slices);

#endif
