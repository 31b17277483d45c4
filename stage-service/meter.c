// SPDX-License-Identifier: Apache-2.0
#include "meter.h"

#include "sys/clock.h"

#include <string.h>

// Metrics of the stage counters: their index, row and total.
#define INDEX_TOTAL(name, ...) TOTAL_##name,
#define INDEX_NONE
#define ROW_TOTAL(name, metric, help, run_help) [TOTAL_##name] = COUNTER("ballast_" metric "_total", help),
#define ROW_NONE
#define ADD_TOTAL(name, ...) bl_registry_add(registry, TOTAL_##name, 0, (double)counters->name);
#define ADD_NONE

enum {
  RANK,
  REPLICA,
  TENSOR_RANK,
  STEP,
  PLAN_VERSION,
  STEPS,
  STEPS_AHEAD,
  ATTEMPTS,
  STEP_SECONDS,
  BUSY,
  STALLS,
  BUBBLE,
  MEMORY,
  MEMORY_PEAK,
  MEMORY_PLANNED,
  SLOTS_OWN,
  SLOTS_USED,
  SLOTS_PEAK,
  SLOT_BYTES,
  BL_STAGE_COUNTERS(BL_COUNTER_METRIC, INDEX, ) // TOTAL_evicted, ...
  PATHS,
  STORE_PATHS,
  ROWS
};

// ---- values of labels

static const char *const outcomes[] = {"voted", "aborted", "failed"};
static const char *outcome_name(unsigned index) {
  return outcomes[index];
}

static const char *tag_name(unsigned index) {
  return bl_memory_tag_name((bl_memory_tag_t)index);
}

static const bl_path_t peer_paths[] = {BL_PATH_SHM, BL_PATH_TCP, BL_PATH_CUDA_IPC, BL_PATH_NCCL};
#define PEER_PATH_COUNT (sizeof peer_paths / sizeof peer_paths[0])

static const char *path_name(unsigned index) {
  return bl_path_name(peer_paths[index]);
}

static const bl_path_t store_paths[] = {BL_PATH_SHM, BL_PATH_TCP, BL_PATH_CUDA_IPC, BL_PATH_NCCL};
#define STORE_PATH_COUNT (sizeof store_paths / sizeof store_paths[0])

static const char *store_path_name(unsigned index) {
  return bl_path_name(store_paths[index]);
}

// The name of a wait is its reason (executor/stall.h) followed by the peer's number, which is not part of the cause.
typedef struct cause {
  const char *prefix, *name;
} cause_t;
enum { CORE = 8, COLLECTIVE }; // causes of waits inside operations, too
static const cause_t causes[] = {{"activation from", "activation"},
                                 {"gradient from", "gradient"},
                                 {"tied gradient from", "tied_gradient"},
                                 {"send to", "send"},
                                 {"gather of", "gather"},
                                 {"reduction of", "reduction"},
                                 {"eviction", "eviction"},
                                 {"load", "load"},
                                 [CORE] = {"core", "core"},
                                 [COLLECTIVE] = {"collective", "collective"},
                                 {"", "other"}};
#define CAUSES (sizeof causes / sizeof causes[0])

static const char *cause_name(unsigned index) {
  return causes[index].name;
}

static unsigned cause_of(const char *wait) {
  unsigned i = 0;
  while (strncmp(wait, causes[i].prefix, strlen(causes[i].prefix)) != 0) {
    i++;
  }
  return i;
}

// ---- the table

#define COUNTER(name_, help_)                                                                                          \
  { .name = name_, .kind = BL_METRIC_COUNTER, .help = help_ }
#define GAUGE(name_, help_)                                                                                            \
  { .name = name_, .kind = BL_METRIC_GAUGE, .help = help_ }
#define BY_TAG(name_, help_)                                                                                           \
  {                                                                                                                    \
    .name = name_, .kind = BL_METRIC_GAUGE, .label = "tag", .value_of = tag_name, .series = BL_MEMORY_TAGS,            \
    .help = help_                                                                                                      \
  }

const bl_metric_row_t bl_meter_rows[] = {
    [RANK] = GAUGE("ballast_stage_rank", "Number of the stage in its job, -1 while it has none."),
    [REPLICA] = GAUGE("ballast_stage_replica", "Replica of the pipeline that the stage is of, -1 while it has no job."),
    [TENSOR_RANK] =
        GAUGE("ballast_stage_tensor_rank", "Tensor rank of the process in its stage, -1 while it has no job."),
    [STEP] = GAUGE("ballast_stage_step", "The last step applied to the weights."),
    [PLAN_VERSION] = GAUGE("ballast_plan_version", "Version of the plan that the last applied step followed."),
    [STEPS] = COUNTER("ballast_steps_total", "Steps applied by this process."),
    [STEPS_AHEAD] = COUNTER("ballast_steps_ahead_total", "Steps applied by this process ahead of their commit."),
    [ATTEMPTS] = {.name = "ballast_attempts_total",
                  .kind = BL_METRIC_COUNTER,
                  .label = "outcome",
                  .value_of = outcome_name,
                  .series = sizeof outcomes / sizeof outcomes[0],
                  .help = "Attempts at a step, a validation or a token that ended, by how."},
    [STEP_SECONDS] = {.name = "ballast_step_seconds",
                      .kind = BL_METRIC_HISTOGRAM,
                      .bounds = BL_REGISTRY_STEP_SECONDS,
                      .help = "Time of an applied step on this stage, computing and waiting."},
    [BUSY] = COUNTER("ballast_busy_seconds_total", "Time spent computing in applied steps."),
    [STALLS] = {.name = "ballast_stall_seconds_total",
                .kind = BL_METRIC_COUNTER,
                .label = "cause",
                .value_of = cause_name,
                .series = CAUSES,
                .help = "Time the compute thread waited in runs that came to a vote, by what for."},
    [BUBBLE] = GAUGE("ballast_bubble_ratio", "Share of the last applied step that was not spent computing."),
    [MEMORY] = BY_TAG("ballast_memory_bytes", "Memory held now, by what it is for."),
    [MEMORY_PEAK] = BY_TAG("ballast_memory_peak_bytes", "The most memory held since the job was configured."),
    [MEMORY_PLANNED] = BY_TAG("ballast_memory_planned_bytes", "Memory planned, which is the limit."),
    [SLOTS_OWN] = GAUGE("ballast_own_slots", "Slots for activation blocks of this stage's own in the last step."),
    [SLOTS_USED] = GAUGE("ballast_used_slots", "Slots in use now."),
    [SLOTS_PEAK] = GAUGE("ballast_peak_slots", "The most slots in use at one instant of the last applied step."),
    [SLOT_BYTES] = GAUGE("ballast_slot_bytes", "Size of one slot."),
    [PATHS] = {.name = "ballast_data_path_peers",
               .kind = BL_METRIC_GAUGE,
               .label = "path",
               .value_of = path_name,
               .series = PEER_PATH_COUNT,
               .help = "Peer stages by the data path chosen for them."},
    [STORE_PATHS] = {.name = "ballast_data_path_stores",
                     .kind = BL_METRIC_GAUGE,
                     .label = "path",
                     .value_of = store_path_name,
                     .series = STORE_PATH_COUNT,
                     .help = "Stores that blocks are parked at, by the data path chosen for them."},
    BL_STAGE_COUNTERS(BL_COUNTER_METRIC, ROW, ) // TOTAL_evicted, ...
};
const size_t bl_meter_row_count = ROWS;

// ---- events

static void add_stall(bl_registry_t *registry, unsigned cause, uint64_t waited_ns) {
  bl_registry_add(registry, STALLS, cause, (double)waited_ns / BL_NS_PER_S);
}

static void add_stalls(bl_registry_t *registry, const bl_engine_t *engine) {
  for (size_t i = 0; i < bl_trace_count(engine->trace); i++) {
    const bl_trace_event_t *event = bl_trace_get(engine->trace, i);
    if (event->wait) {
      add_stall(registry, cause_of(event->name), event->end_ns - event->start_ns);
    }
  }
  add_stall(registry, COLLECTIVE, engine->waited_inside_ns);
  add_stall(registry, CORE, engine->core_inside_ns);
}

void bl_meter_ran(bl_registry_t *registry, const bl_stage_t *stage, bl_stage_outcome_t outcome) {
  if (outcome == BL_STAGE_UNDO) { // ends as BL_STAGE_DROP
    return;
  }
  bool voted = outcome == BL_STAGE_KEEP || outcome == BL_STAGE_AHEAD;
  unsigned index = voted ? 0 : outcome == BL_STAGE_DROP ? 1 : 2;
  bl_registry_add(registry, ATTEMPTS, index, 1);
  const bl_engine_t *engine = bl_stage_engine(stage);
  if (voted && engine != NULL) {
    add_stalls(registry, engine);
  }
}

void bl_meter_committed(bl_registry_t *registry, const bl_stage_t *stage, bool ahead) {
  const bl_vote_t *vote = bl_stage_commit_vote(stage);
  const bl_stage_counters_t *counters = &vote->counters;
  double busy = (double)counters->busy_ns / BL_NS_PER_S, seconds = busy + (double)counters->stall_ns / BL_NS_PER_S;
  bl_registry_add(registry, STEPS, 0, 1);
  bl_registry_add(registry, STEPS_AHEAD, 0, ahead);
  bl_registry_observe(registry, STEP_SECONDS, 0, seconds);
  bl_registry_add(registry, BUSY, 0, busy);
  bl_registry_set(registry, BUBBLE, 0, seconds > 0 ? 1 - busy / seconds : 0);
  bl_registry_set(registry, PLAN_VERSION, 0, (double)vote->plan_version);
  bl_registry_set(registry, SLOTS_OWN, 0, counters->own_slots);
  bl_registry_set(registry, SLOTS_PEAK, 0, counters->peak_slots);
  BL_STAGE_COUNTERS(BL_COUNTER_METRIC, ADD, )
}

static void collect_paths(bl_registry_t *registry, bl_transport_t *transport) {
  bl_transport_path_t paths[BL_TRANSPORT_MAX_PEERS];
  const size_t all = transport == NULL ? 0 : bl_transport_paths(transport, paths, BL_TRANSPORT_MAX_PEERS);
  for (unsigned p = 0; p < PEER_PATH_COUNT; p++) {
    size_t count = 0;
    for (size_t i = 0; i < all && i < BL_TRANSPORT_MAX_PEERS; i++) {
      count += paths[i].path == peer_paths[p];
    }
    bl_registry_set(registry, PATHS, p, (double)count);
  }
}

void bl_meter_collect(bl_registry_t *registry, const bl_stage_t *stage) {
  const bl_engine_t *engine = bl_stage_engine(stage);
  bl_registry_set(registry, RANK, 0, engine == NULL ? -1 : (double)engine->coords.stage);
  bl_registry_set(registry, REPLICA, 0, engine == NULL ? -1 : (double)engine->coords.data);
  bl_registry_set(registry, TENSOR_RANK, 0, engine == NULL ? -1 : (double)engine->coords.tensor);
  bl_registry_set(registry, STEP, 0, (double)bl_stage_step(stage)->applied);
  bl_registry_set(registry, SLOTS_USED, 0, atomic_load(&bl_stage_progress(stage)->slots));
  bl_registry_set(registry, SLOT_BYTES, 0, engine == NULL ? 0 : (double)engine->slot_bytes);
  for (unsigned tag = 0; tag < BL_MEMORY_TAGS; tag++) {
    bl_memory_usage_t usage = {0};
    if (engine != NULL) {
      usage = bl_memory_usage(&engine->account, (bl_memory_tag_t)tag);
    }
    bl_registry_set(registry, MEMORY, tag, (double)usage.current_bytes);
    bl_registry_set(registry, MEMORY_PEAK, tag, (double)usage.peak_bytes);
    bl_registry_set(registry, MEMORY_PLANNED, tag, (double)usage.planned_bytes);
  }
  collect_paths(registry, engine != NULL && bl_stage_is_connected(stage) ? engine->transport : NULL);
  uint32_t counts[BL_PATHS];
  bl_stage_store_paths(stage, counts);
  for (unsigned i = 0; i < STORE_PATH_COUNT; i++) {
    bl_registry_set(registry, STORE_PATHS, i, counts[store_paths[i]]);
  }
}
