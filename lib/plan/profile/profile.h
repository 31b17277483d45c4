// SPDX-License-Identifier: Apache-2.0
// Measured costs of a job's operations on the machine that ran it, for the simulator and the planner. `ballastctl run
// --profile FILE` records one from steps after the first, when the optimizer's state exists.
//
// A profile is a JSON document with a version. It names its model, and the settings of the run that change times. Who
// may use it, and with which warnings, is in plan/profile/profile_use.h. It holds:
// - per virtual stage: the seconds of F, I, W and R;
// - per stage: the bytes of a block and, if the stage did any, the seconds of an evict and a load, the rate of their
//   copies, and the latency of the boundaries that it waited for;
// - for all stages together: the latency of a boundary and of a core handover, the seconds between the last operation
//   and the next step (votes, commit, optimizer), and the durations of all operations of one step, for a replay.
//
// Pure: bytes in, bytes out. Thread: a profile belongs to its caller.
#ifndef BALLAST_PLAN_PROFILE_H
#define BALLAST_PLAN_PROFILE_H

#include "model/layout.h"
#include "schedule/ir/costs.h"
#include "schedule/ir/schedule.h"

#define BL_PROFILE_VERSION 1
#define BL_PROFILE_NAME    32
// Maximum of an operation and of any other time: eleven days. Sums and multiples stay finite.
#define BL_PROFILE_MOST_SECONDS 1e6
// Limits of bytes per second of a copy; no path is slower or faster.
#define BL_PROFILE_LEAST_RATE 1
#define BL_PROFILE_MOST_RATE  1e15

typedef struct bl_profile_chunk {
  uint32_t stage;
  bl_chunk_span_t span;
  bl_chunk_costs_t costs;   // seconds; with slices, the mean of one slice
  bl_chunk_costs_t *slices; // [options.slices] with slices: costs of each; else NULL
  bool measured_input;      // I was measured apart from W; otherwise their sum was, divided by FLOPs
  bool measured_recompute;
} bl_profile_chunk_t;

typedef struct bl_profile_stage {
  uint64_t slot_bytes; // of one block
  double evict, load;  // seconds of the compute thread (the copy runs in the background); 0: it did none
  double path_rate;    // bytes per second of its copies to and from stores, during compute; 0: it made none
  double host_rate;    // the same for copies to and from a host store
  double boundary;     // as that of the profile, for messages that this stage waited for; 0: it waited for none
  double *times;       // [time_count] durations in the recorded step, in order of operations (without E and L)
  uint32_t time_count;
  double step_end; // seconds from the first operation of any stage to the last one of this, in the recorded step
} bl_profile_stage_t;

typedef enum bl_profile_device { BL_PROFILE_HOST, BL_PROFILE_CUDA } bl_profile_device_t;

// Settings of the run that change times, in addition to options. Profiles of older programs lack them.
typedef struct bl_profile_setting {
  bool known;
  bl_profile_device_t device;
  uint32_t threads; // of a stage
  uint64_t order;   // bl_profile_order of the recorded step; 0: there is none
  bool masked;      // losses of some tokens alone: on CPUs the head leaves out others
} bl_profile_setting_t;

// The recorded step, with the median makespan, whose durations the stages keep; all in seconds. Boundary and handover
// are means of that step; in profiles of older programs, those of the profile.
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
  uint32_t steps;  // number of recorded steps
  double step;     // median seconds of a step, as in the report
  double makespan; // median seconds from the first operation to the end of the last
  double overhead; // median rest of a step, without the exchange between replicas
  // Seconds: mean in a step, then median over steps
  double boundary; // from the end of an operation to the start of the one that waited for its result
  double handover; // from the release of a core to the start of the operation that waited for it
  bl_profile_replay_t replay;
  uint32_t stage_count, chunk_count;
  uint32_t pipes; // of the schedule; chunks of the second pipe have the layers of the first
  bl_profile_stage_t *stages;
  bl_profile_chunk_t *chunks; // by virtual stage
} bl_profile_t;

// Returns the identity of the mathematics: two jobs with the same digest train the same model.
uint64_t bl_profile_model_digest(const bl_model_t *model);
const char *bl_profile_model_text(const bl_model_t *model, char text[192]);

// Returns the identity of an order: equal if every stage does the same operations in the same order, except for E and
// L. Never 0.
uint64_t bl_profile_order(const bl_schedule_t *schedule);

// Reads a profile; `name` is for messages. BL_INVALID names the field: not a profile, another version, a missing field
// or an impossible number, or fields that contradict each other (chunks that are not contiguous, stages without a
// chunk, too few or too many durations of a step).
BL_MUST_USE bl_status_t bl_profile_read(bl_profile_t *profile, const char *bytes, size_t size_bytes, const char *name,
                                        bl_error_t *err);
// *text is malloc'd and NUL-terminated; the caller frees it. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_profile_write(const bl_profile_t *profile, char **text);
void bl_profile_cleanup(bl_profile_t *profile); // a zeroed one is fine

// Sets the costs of chunks on this machine, costs[count]. If the profile has the same chunks, these are its own costs;
// otherwise the sum of its costs of a layer, the embedding and the head. Costs scale in proportion to the micro-batch.
// Recomputation of attention adds its share of the forward to I.
void bl_profile_costs(const bl_profile_t *profile, const bl_model_t *model, const bl_chunk_span_t *spans,
                      uint32_t count, bl_layout_options_t options, bl_chunk_costs_t *costs);

// Returns the latency of a boundary between blocks of `options`, if it is `boundary` between blocks of the profile. It
// is in proportion to the micro-batch. Of what slices divide, a message keeps at least 50 us, or what it took.
double bl_profile_boundary(const bl_profile_t *profile, double boundary, bl_layout_options_t options);

// Returns the seconds of the compute thread for an evict of a block of `bytes` of a stage on CPUs: its checksum, as this
// stage took it or else the others did, in proportion to bytes; if none did, at 20 GB/s. On a GPU the checksum is queued,
// and no operation waits for the thread.
double bl_profile_evict_call(const bl_profile_t *profile, uint32_t stage, double bytes);

// Returns what a message takes at least: 50 us, or less if a boundary does.
double bl_profile_message(const bl_profile_t *profile);

// Sets the costs of every slice of options.slices, slices[count, options.slices], from the mean of its chunk,
// costs[count]: as measured if the profile has these slices of these chunks, else by how many keys attention sees.
void bl_profile_slice_costs(const bl_profile_t *profile, const bl_model_t *model, const bl_chunk_span_t *spans,
                            uint32_t count, bl_layout_options_t options, const bl_chunk_costs_t *costs,
                            bl_chunk_costs_t *slices);
// Does the latter for one chunk: spreads its mean over slices[options.slices].
void bl_profile_spread(const bl_model_t *model, bl_chunk_span_t span, bl_layout_options_t options,
                       bl_chunk_costs_t mean, bl_chunk_costs_t *slices);

#endif
