// SPDX-License-Identifier: Apache-2.0
// ballastctl simulate: predicts the step of a job before it runs.
#include "ballastctl/commands.h"
#include "ballastctl/job_file.h"
#include "ballastctl/output.h"
#include "ballastctl/output_path.h"
#include "ballastctl/plan/cluster_flags.h"
#include "ballastctl/plan/footprint_json.h"
#include "ballastctl/plan/operations.h"
#include "ballastctl/plan/order_json.h"
#include "ballastctl/plan/prediction.h"
#include "ballastctl/plan/profile_file.h"
#include "ballastctl/plan/schedule_advice.h"
#include "ballastctl/plan/simulated_trace.h"

#include "base/bytes.h"
#include "base/words.h"
#include "config/flags.h"
#include "draw/schedule_timeline.h"
#include "policy/policy.h"

#include <inttypes.h>
#include <string.h>

typedef struct arguments {
  bl_text_list_t sets;
  char *profile, *hardware, *svg, *perfetto;
  bl_ctl_cluster_flags_t cluster;
  bool replay;
  int order, output;
} arguments_t;

#define AT(member) .offset = offsetof(arguments_t, member)

static const char *const order_names[] = {"sequential", "pair-adjacent", NULL}; // in the order of bl_node_order_t

static const bl_option_t rows[] = {
    {.name = "profile",
     .type = BL_OPTION_PATH,
     AT(profile),
     .argument = "FILE",
     .help = "Measured times, as ballastctl run --profile records them."},
    {.name = "hardware",
     .type = BL_OPTION_TEXT,
     AT(hardware),
     .argument = "NAME",
     .preset_help = "host",
     .help = "Without a profile: the model of a device. host, a100-80g, h100 or h200."},
    {.name = "replay",
     .type = BL_OPTION_BOOL,
     AT(replay),
     .help = "Use every single duration of the step that the profile recorded, not their means."},
    BL_CTL_CLUSTER_FLAGS(arguments_t, cluster),
    {.name = "order",
     .type = BL_OPTION_ENUM,
     AT(order),
     .choices = order_names,
     .preset = "sequential",
     .help = "Of stages on nodes: neighbours together, or the pairs of bpipe."},
    {.name = "svg",
     .type = BL_OPTION_TEXT,
     AT(svg),
     .argument = "FILE",
     .help = "Also draw the timeline; FILE ends in .svg or .png."},
    {.name = "perfetto",
     .type = BL_OPTION_TEXT,
     AT(perfetto),
     .argument = "FILE.json",
     .help =
         "Also write the timeline as a trace that ui.perfetto.dev and chrome://tracing open, as ballastctl trace does "
         "of a real step."},
    BL_CTL_SET_FLAG(arguments_t, sets),
    BL_CTL_OUTPUT_FLAG(arguments_t, output),
};

static const bl_flags_t flags = {
    .program = "ballastctl simulate",
    .usage =
        "JOB.yaml [--profile FILE | --hardware NAME] [--nodes NxG] [--set KEY=VALUE]... [--svg FILE] [--perfetto FILE]",
    .about = "Times one step of a job without running it: seconds, bubble, and for every stage its slots, memory, "
             "evictions, loads and waits by cause. With a profile costs are measured. Without one they come from a "
             "model of a device, which is good for comparing candidates, not for absolute times.",
    .table = {rows, sizeof rows / sizeof rows[0], "command line"},
    .positional_minimum = 1,
    .positional_maximum = 1};

static const char *hardware_of(const arguments_t *a) {
  return a->hardware != NULL ? a->hardware : "host";
}

static bool has_copies(const bl_ctl_prediction_t *p) {
  return bl_copies_count(bl_grid_copies(&p->training->grid)) > 1;
}

static json_t *stalls_json(const bl_ctl_prediction_t *p, uint32_t s) {
  json_t *stalls = json_object();
  for (int cause = 0; cause < BL_STALL_CAUSES; cause++) {
    if (has_copies(p) || !bl_stall_cause_is_of_replicas((bl_stall_cause_t)cause)) {
      json_object_set_new(stalls, bl_stall_cause_name((bl_stall_cause_t)cause),
                          json_real(p->trial.simulation.stalls[s][cause]));
    }
  }
  return stalls;
}

static json_t *stages_json(const bl_ctl_prediction_t *p) {
  json_t *stages = json_array();
  for (uint32_t s = 0; s < p->trial.simulation.stages; s++) {
    const bl_trial_stage_t *stage = &p->trial.stages[s];
    const json_int_t slot_bytes = (json_int_t)p->training->stages[s].slot_bytes,
                     peak = p->trial.simulation.peak_slots[s];
    json_array_append_new(stages,
                          json_pack("{s:i, s:i, s:i, s:I, s:I, s:I, s:i, s:i, s:i, s:f, s:o, s:f, s:o, s:f}", "stage",
                                    (int)s, "peak_slots", (int)peak, "lent_slots", (int)p->plan.device_slots.lent[s],
                                    "slot_bytes", slot_bytes, "peak_slot_bytes", peak * slot_bytes, "evict_bytes",
                                    (json_int_t)stage->evict_bytes, "evictions", (int)stage->evictions, "loads",
                                    (int)stage->loads, "recomputed", (int)stage->recomputed, "busy_seconds",
                                    p->trial.simulation.busy[s], "stall_seconds", stalls_json(p, s), "memory_bytes",
                                    bl_footprint_total(&p->demand[s]), "memory", bl_ctl_footprint_json(&p->demand[s]),
                                    "optimizer_uneven_bytes", p->demand[s].uneven));
  }
  return stages;
}

// Returns the rows of the table for people: bytes, and percentages of the step.
static json_t *table_rows(const bl_ctl_prediction_t *p) {
  json_t *shown = json_array();
  const bl_simulation_t *simulation = &p->trial.simulation;
  for (uint32_t s = 0; s < simulation->stages; s++) {
    char slot[BL_BYTES_TEXT], peak[BL_BYTES_TEXT], memory[BL_BYTES_TEXT], text[32];
    json_t *row = json_object();
    uint64_t slot_bytes = p->training->stages[s].slot_bytes;
    json_object_set_new(row, "stage", json_integer(s));
    json_object_set_new(row, "slots", json_integer(simulation->peak_slots[s]));
    json_object_set_new(row, "lent", json_integer(p->plan.device_slots.lent[s]));
    json_object_set_new(row, "slot", json_string(bl_bytes_format(slot_bytes, slot)));
    json_object_set_new(row, "peak", json_string(bl_bytes_format(slot_bytes * simulation->peak_slots[s], peak)));
    json_object_set_new(row, "memory",
                        json_string(bl_bytes_format((uint64_t)bl_footprint_total(&p->demand[s]), memory)));
    json_object_set_new(row, "evictions", json_integer(p->trial.stages[s].evictions));
    json_object_set_new(row, "recomputed", json_integer(p->trial.stages[s].recomputed));
    snprintf(text, sizeof text, "%.1f %%", 100 * simulation->busy[s] / simulation->t_end);
    json_object_set_new(row, "busy", json_string(text));
    for (int cause = 0; cause < BL_STALL_CAUSES; cause++) {
      snprintf(text, sizeof text, "%.1f %%", 100 * simulation->stalls[s][cause] / simulation->t_end);
      const char *name = cause == BL_STALL_SLOT ? "slot_stall" : bl_stall_cause_name((bl_stall_cause_t)cause);
      json_object_set_new(row, name, json_string(text));
    }
    json_array_append_new(shown, row);
  }
  return shown;
}

static const bl_ctl_column_t columns[] = {
    {.key = "stage", .title = "STAGE", .right = true},
    {.key = "slots", .title = "PEAK SLOTS", .right = true},
    {.key = "lent", .title = "LENT", .right = true},
    {.key = "slot", .title = "SLOT", .right = true},
    {.key = "peak", .title = "BLOCKS", .right = true},
    {.key = "memory", .title = "MEMORY", .right = true},
    {.key = "evictions", .title = "EVICTIONS", .right = true},
    {.key = "recomputed", .title = "RECOMPUTED", .right = true},
    {.key = "busy", .title = "BUSY", .right = true},
    {.key = "activation", .title = "ACTIVATION", .right = true},
    {.key = "gradient", .title = "GRADIENT", .right = true},
    {.key = "load", .title = "LOAD", .right = true},
    {.key = "slot_stall", .title = "SLOT STALL", .right = true, .wide = true},
    {.key = "card", .title = "CARD", .right = true, .wide = true},
    {.key = "core", .title = "CORE", .right = true},
    {.key = "end", .title = "END", .right = true},
    {.key = "gather", .title = "GATHER", .right = true}, // the last two: only with several replicas
    {.key = "reduction", .title = "REDUCTION", .right = true},
};
#define OF_REPLICAS 2

static void print_summary(const arguments_t *a, const bl_ctl_prediction_t *p) {
  const bl_simulation_t *s = &p->trial.simulation;
  char tensor[32] = "", replicas[48] = "";
  // A cluster of GPUs trains in mixed precision, whatever the job says.
  const bool mixed = a->cluster.nodes != NULL && p->training->layout.dtype == BL_DTYPE_BF16;
  const char *precision = mixed ? " in mixed precision (bf16)" : "";
  if (p->training->grid.tensor > 1) {
    snprintf(tensor, sizeof tensor, " of %u tensor ranks", p->training->grid.tensor);
  }
  if (p->training->grid.data > 1) {
    snprintf(replicas, sizeof replicas, " in each of %u replicas", p->training->grid.data);
  }
  printf("%s, %u stage%s%s%s, %u micro-batch%s: step %.4g s = %.4g s of operations + %.3g s between steps; bubble %.1f "
         "%%\n",
         p->plan.schedule->name, p->plan.schedule->stages, bl_plural(p->plan.schedule->stages), tensor, replicas,
         p->plan.schedule->micro_batches, bl_one_or_many(p->plan.schedule->micro_batches, "", "es"), p->trial.step,
         s->t_end, p->trial.overhead, 100 * s->bubble_total);
  if (a->profile != NULL) {
    printf("costs: measured, %s%s", a->profile, a->replay ? ", one step replayed" : "");
    if (p->trial.cores > 0) {
      printf(", on %u core%s that the stages share", p->trial.cores, bl_plural(p->trial.cores));
    }
    printf("\n\n");
  } else {
    printf("costs: estimated from data sheets for %s%s, not measured (%s)\n\n", hardware_of(a), precision,
           bl_hardware_find(hardware_of(a))->source);
  }
}

#define WARNINGS     3 // in addition to that of a profile
#define FULL_WARNING 320
// Says that a stage does not fit into the GPU that is modelled; else "".
static void warn_of_memory(const bl_ctl_prediction_t *p, const bl_hardware_t *hardware, char warning[FULL_WARNING]) {
  uint32_t most = 0;
  warning[0] = '\0';
  for (uint32_t s = 1; s < p->plan.schedule->stages; s++) {
    most = bl_footprint_total(&p->demand[s]) > bl_footprint_total(&p->demand[most]) ? s : most;
  }
  const double bytes = bl_footprint_total(&p->demand[most]);
  if (hardware != NULL && bl_hardware_is_gpu(hardware) && bytes > BL_HARDWARE_USABLE * hardware->memory_bytes) {
    char taken[BL_BYTES_TEXT], has[BL_BYTES_TEXT], usable[BL_BYTES_TEXT];
    snprintf(warning, FULL_WARNING,
             "stage %u takes %s of memory, and of the %s of %s %s are usable: it does not run there; ballastctl plan "
             "--hardware %s finds what fits",
             most, bl_bytes_format((uint64_t)bytes, taken), bl_bytes_format((uint64_t)hardware->memory_bytes, has),
             hardware->name, bl_bytes_format((uint64_t)(BL_HARDWARE_USABLE * hardware->memory_bytes), usable),
             hardware->name);
  }
}

// Returns the number of blocks for which hosts lend memory, over the whole plane.
static uint32_t at_hosts(const bl_ctl_prediction_t *p) {
  uint32_t slots = 0;
  for (uint32_t h = p->plan.device_slots.devices; h < p->plan.device_slots.stores; h++) {
    slots += bl_device_slots_lent(&p->plan.device_slots, h);
  }
  return slots;
}

// How uneven copies of the model are, where they are the most uneven.
static void print_uneven(const bl_ctl_prediction_t *p) {
  uint32_t most = 0;
  for (uint32_t s = 1; s < p->plan.schedule->stages; s++) {
    most = p->demand[s].uneven > p->demand[most].uneven ? s : most;
  }
  char all[BL_BYTES_TEXT], uneven[BL_BYTES_TEXT];
  if (has_copies(p)) {
    printf("\noptimizer of stage %u: %s on its fullest rank, %s more than an even share of the stage\n", most,
           bl_bytes_format((uint64_t)p->demand[most].optimizer, all),
           bl_bytes_format((uint64_t)p->demand[most].uneven, uneven));
  }
}

static void print_hosts(const bl_ctl_prediction_t *p) {
  const bl_hosts_t *hosts = &p->training->hosts;
  const uint32_t slots = at_hosts(p);
  const uint64_t all = (uint64_t)hosts->count * hosts->slots;
  char held[BL_BYTES_TEXT], room[BL_BYTES_TEXT];
  if (hosts->count > 0) {
    printf("\nmemory of the host: room for %u of %" PRIu64 " block%s, %s of %s\n", slots, all, bl_plural(all),
           bl_bytes_format(slots * hosts->slot_bytes, held), bl_bytes_format(all * hosts->slot_bytes, room));
  }
}

static bl_status_t print(const arguments_t *a, const bl_ctl_prediction_t *p, const bl_ctl_operations_t *operations,
                         const char *const warnings[WARNINGS], bl_error_t *err) {
  bl_status_t status;
  json_t *shown;
  if (a->output == BL_CTL_TABLE || a->output == BL_CTL_WIDE) {
    print_summary(a, p);
    if (operations->unknown.text[0] != '\0') {
      printf("left out of MEMORY: %s: %s\n\n", operations->without, operations->unknown.text);
    }
    shown = table_rows(p);
    const size_t shown_columns = sizeof columns / sizeof columns[0] - (has_copies(p) ? 0 : OF_REPLICAS);
    status = bl_ctl_print_rows((bl_ctl_output_t)a->output, columns, shown_columns, shown, stdout);
    print_uneven(p);
    print_hosts(p);
  } else {
    const bl_simulation_t *s = &p->trial.simulation;
    shown =
        json_pack("{s:s, s:f, s:f, s:f, s:f, s:s, s:b, s:i, s:o, s:o, s:o}", "schedule", p->plan.schedule->name,
                  "step_seconds", p->trial.step, "operations_seconds", s->t_end, "between_seconds", p->trial.overhead,
                  "bubble", s->bubble_total, "costs", a->profile != NULL ? a->profile : hardware_of(a), "measured",
                  a->profile != NULL, "cores", (int)p->trial.cores, "stages", stages_json(p), "order",
                  bl_ctl_order_json(p->plan.schedule), "warnings", bl_ctl_warning_json(p->warning));
    for (int i = 0; i < WARNINGS; i++) {
      bl_ctl_warning_append(json_object_get(shown, "warnings"), warnings[i]);
    }
    if (p->training->hosts.count > 0) {
      json_object_set_new(shown, "host_slots", json_integer(at_hosts(p)));
      json_object_set_new(shown, "host_bytes",
                          json_integer((json_int_t)at_hosts(p) * (json_int_t)p->training->hosts.slot_bytes));
    }
    json_object_set_new(shown, "dtype", json_string(bl_dtype_name(p->training->layout.dtype)));
    bl_ctl_footprint_left_out(shown, operations);
    static const bl_ctl_column_t name = {.key = "schedule", .title = "SCHEDULE"};
    status = bl_ctl_print_object((bl_ctl_output_t)a->output, &name, 1, shown, stdout);
  }
  json_decref(shown);
  return bl_ctl_printed(status, err);
}

// Finds the device's model, in the dtype of the job that is moved there.
static bl_status_t read_device(const arguments_t *a, bl_job_t *job, bl_hardware_t *device, bl_error_t *err) {
  const bl_hardware_t *found;
  bl_status_t status = bl_ctl_hardware_find(hardware_of(a), &found, err);
  if (status == BL_OK) {
    bl_ctl_hardware_place(found, a->cluster.nodes != NULL, job);
    *device = bl_hardware_in(found, job->train.dtype == BL_JOB_DTYPE_BF16 ? BL_DTYPE_BF16 : BL_DTYPE_FP32);
  }
  return status;
}

static bl_status_t read_cluster(const arguments_t *a, const bl_job_t *job, bl_hardware_t *device,
                                bl_ctl_prediction_source_t *source, bl_error_t *err) {
  bl_cluster_t *cluster = &source->cluster;
  if (a->profile != NULL && a->cluster.nodes != NULL) {
    return bl_error_set(err, BL_INVALID, "--profile is of one machine: it does not go with --nodes");
  }
  bl_status_t status = bl_ctl_cluster_read(&a->cluster, device, cluster, err);
  const bl_grid_t grid = bl_job_grid(job);
  const uint32_t ranks = bl_grid_ranks(&grid);
  if (status == BL_OK && cluster->nodes > 0 && ranks > (uint64_t)cluster->nodes * cluster->devices_per_node) {
    return bl_error_set(err, BL_INVALID, "--nodes %s: has no room for the %u %s of the job", a->cluster.nodes, ranks,
                        ranks > grid.stages ? "ranks" : "stages");
  }
  source->order = (bl_node_order_t)a->order;
  return status;
}

// Refuses flags that have no effect or contradict each other.
static bl_status_t check_flags(const arguments_t *a, bool ordered, bl_error_t *err) {
  if (a->replay && a->profile == NULL) {
    return bl_error_set(err, BL_INVALID, "--replay needs --profile FILE: what is replayed");
  }
  if (a->profile != NULL && a->hardware != NULL) {
    return bl_error_set(err, BL_INVALID, "--hardware %s: --profile has measured costs; give one of the two",
                        a->hardware);
  }
  if (ordered && a->cluster.nodes == NULL) {
    return bl_error_set(err, BL_INVALID, "--order: is about a cluster, which --nodes NxG gives");
  }
  return BL_OK;
}

// Returns what moves of a block of every virtual stage, which the caller frees. NULL: no memory.
static uint64_t *block_bytes(const bl_training_t *training) {
  uint64_t *bytes = calloc(training->partition.count + 1u, sizeof *bytes);
  for (uint32_t v = 0; v < training->partition.count && bytes != NULL; v++) {
    bl_chunk_memory_t chunk;
    if (bl_chunk_memory(&training->model, training->partition.spans[v], training->layout, &chunk) == BL_OK) {
      bytes[v] = chunk.evict_bytes;
    }
  }
  return bytes;
}

static bl_status_t draw(const bl_ctl_prediction_t *p, bl_policy_t policy, const uint64_t *bytes, const char *path,
                        bl_error_t *err) {
  bl_policy_resolve(&policy, p->training); // auto: the policy that it begins with
  const bl_policy_kind_t kind = policy.kind == BL_POLICY_AUTO ? policy.chosen : policy.kind;
  const bool balanced = kind != BL_POLICY_NONE;
  const uint32_t cap = bl_policy_cap(&policy, p->training);
  const bl_schedule_timeline_t picture = {.schedule = p->plan.schedule,
                                          .simulation = &p->trial.simulation,
                                          .unit = "s",
                                          .block_bytes = bytes,
                                          .policy = bl_policy_kind_name(kind),
                                          .mode = balanced && kind != BL_POLICY_DROP ? bl_policy_mode_name(policy.mode)
                                                                                     : NULL,
                                          .cap = balanced && cap != UINT32_MAX ? cap : 0};
  return bl_schedule_timeline_draw(&picture, path, err);
}

static bl_status_t draw_all(const arguments_t *a, const bl_ctl_prediction_t *p, bl_policy_t policy, bl_error_t *err) {
  uint64_t *bytes = block_bytes(p->training);
  bl_status_t status = bytes != NULL ? BL_OK : bl_error_set(err, BL_EXHAUSTED, "no memory for the pictures");
  if (status == BL_OK && a->svg != NULL) {
    status = draw(p, policy, bytes, a->svg, err);
  }
  if (status == BL_OK && a->perfetto != NULL) {
    status = bl_ctl_simulated_trace_write(p->plan.schedule, &p->trial.simulation, 1, bytes, a->perfetto, err);
  }
  free(bytes);
  return status;
}

static bl_status_t simulate(const arguments_t *a, const char *path, bl_error_t *err) {
  bl_job_t job = {0};
  bl_profile_t profile = {0};
  bl_training_t training = {0};
  bl_policy_t policy;
  bl_ctl_prediction_t prediction = {0};
  bl_hardware_t device = {0};
  bl_ctl_operations_t operations = {0};
  bl_ctl_prediction_source_t source = {.replay = a->replay, .policy = &policy};
  bl_status_t status = bl_ctl_job_read(path, &a->sets, NULL, &job, err);
  if (status == BL_OK && a->profile != NULL) {
    status = bl_ctl_profile_read("--profile", a->profile, &profile, err);
    source.profile = &profile;
  } else if (status == BL_OK) {
    status = read_device(a, &job, &device, err);
    source.hardware = &device;
  }
  if (status == BL_OK) {
    status = read_cluster(a, &job, &device, &source, err);
  }
  if (status == BL_OK) {
    policy = bl_policy_of_job(&job);
    status = bl_ctl_job_resolve(&job, &training, err);
  }
  if (status == BL_OK) {
    bl_ctl_operations_init(&operations, &job);
    source.operations = bl_ctl_operations_find(&operations, training.layout.micro_batch, training.layout.slices,
                                               training.layout.attention);
    source.job = &job;
    source.cores = job.pipeline.cores.set ? (uint32_t)job.pipeline.cores.value : 0;
    status = bl_ctl_prediction_init(&prediction, &training, &source, a->profile, err);
  }
  if (status == BL_OK) {
    char alternative[BL_CTL_SCHEDULE_ADVICE], parks_nothing[BL_HOSTS_WARNING] = "", full[FULL_WARNING];
    bl_ctl_schedule_advice_find(&prediction, &source, a->profile, alternative);
    (void)bl_hosts_warning(&job, parks_nothing);
    warn_of_memory(&prediction, source.hardware, full);
    const char *const warnings[WARNINGS] = {parks_nothing, alternative, full};
    bl_ctl_warning_tell(prediction.warning);
    for (int i = 0; i < WARNINGS; i++) {
      bl_ctl_warning_tell(warnings[i]);
    }
    status = print(a, &prediction, &operations, warnings, err);
  }
  if (status == BL_OK) {
    status = draw_all(a, &prediction, policy, err);
  }
  bl_ctl_prediction_cleanup(&prediction);
  bl_ctl_operations_cleanup(&operations);
  bl_training_cleanup(&training);
  bl_profile_cleanup(&profile);
  bl_job_cleanup(&job);
  return status;
}

static bl_status_t body(void *arguments, const bl_flags_result_t *words, bl_error_t *err) {
  const arguments_t *a = arguments;
  bl_status_t status = check_flags(a, bl_flags_given(&flags, words, "order"), err);
  if (status == BL_OK) {
    status = bl_ctl_picture_path_check("svg", a->svg, err);
  }
  if (status == BL_OK) {
    status = bl_ctl_output_path_check("perfetto", a->perfetto, err);
  }
  return status == BL_OK ? simulate(arguments, words->positional[0], err) : status;
}

static int run(int argc, char *const *argv) {
  arguments_t arguments = {0};
  return bl_ctl_run(&flags, &arguments, body, argc, argv);
}

const bl_ctl_command_t bl_ctl_simulate_command = {"simulate", "what a step of a job would take", run};
