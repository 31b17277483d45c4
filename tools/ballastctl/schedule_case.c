// SPDX-License-Identifier: Apache-2.0
#include "schedule_case.h"

#include "input_file.h"
#include "output.h"
#include "schedule_flags.h"

#include "config/nearest.h"
#include "draw/schedule_timeline.h"
#include "schedule/csv.h"
#include "schedule/drop.h"
#include "schedule/generate.h"
#include "schedule/recompute.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SCHEDULE_FILE_BYTES (1ull << 30) // p = 512, m = 4096 takes 40 MB

typedef enum balance { BALANCE_NONE, BALANCE_BPIPE, BALANCE_CAP, BALANCE_DROP, BALANCE_MIX } balance_t;
static const char *const balance_names[] = {"none", "bpipe", "cap", "drop", "mix", NULL};
// In the order of bl_ctl_csv_format_t.
static const char *const format_names[] = {"compute_only", "compute_comms", "compute_comms_no_wait", NULL};
const char *const bl_ctl_mode_names[] = {"overlap", "fewest", NULL}; // in the order of bl_balance_mode_t

#define OFFSET(member) offsetof(bl_ctl_schedule_flags_t, member)
const bl_option_t bl_ctl_schedule_rows[BL_CTL_SCHEDULE_ROWS] = {
    {.name = "to",
     .type = BL_OPTION_TEXT,
     .offset = OFFSET(to),
     .argument = "FILE",
     .help = "Where export writes; standard output if not given."},
    {.name = "format",
     .type = BL_OPTION_ENUM,
     .offset = OFFSET(format),
     .choices = format_names,
     .preset = "compute_only",
     .help =
         "What export writes: operations alone, or also a SEND, a RECV and a WAIT_SEND for all that passes a boundary, "
         "as PyTorch 2.15 asks for; earlier releases know no WAIT_SEND."},
    {.name = "schedule",
     .type = BL_OPTION_TEXT,
     .offset = OFFSET(schedule),
     .argument = "NAME|FILE.csv",
     .help = "gpipe, 1f1b, ... or a CSV file as PyTorch writes them."},
    {.name = "block",
     .type = BL_OPTION_TEXT,
     .offset = OFFSET(block),
     .argument = "FILE",
     .help = "In place of --schedule: a building block (YAML: placement, offsets, interval) to repeat and squeeze."},
    BL_CTL_STAGES_FLAG(bl_ctl_schedule_flags_t, stages, .help = "Pipeline stages; from the file if one is given."),
    BL_CTL_MICRO_BATCHES_FLAG(bl_ctl_schedule_flags_t, micro_batches,
                              .help = "Micro-batches of a step; from the file if one is given."),
    {.name = "chunks",
     .type = BL_OPTION_INT,
     .offset = OFFSET(chunks),
     .argument = "V",
     .minimum = 1,
     .maximum = BL_VIRTUAL_STAGES_MAX,
     .preset_help = "1, or 2 for V-shaped and interleaved schedules",
     .help = "Chunks a stage holds."},
    {.name = "group",
     .type = BL_OPTION_INT,
     .offset = OFFSET(group),
     .argument = "G",
     .minimum = 1,
     .maximum = BL_MICRO_BATCHES_MAX,
     .preset_help = "P",
     .help = "Micro-batches of a group (grouped-interleaved), slices of a sequence (seq1f1b: 2)."},
    BL_CTL_COST_FLAG(bl_ctl_schedule_flags_t, cost, .preset_help = "1,1,1,0, or the lengths of the block",
                     .help = "Time of a forward, a backward for the input, one for the weights, of a boundary, and of "
                             "a recomputation (as F if not given)."),
    {.name = "chunk-cost",
     .type = BL_OPTION_TEXT_LIST,
     .offset = OFFSET(chunk_costs),
     .argument = "S=F,B,W[,R]",
     .help = "What virtual stage S costs instead; may be repeated."},
    {.name = "recompute",
     .type = BL_OPTION_BOOL,
     .offset = OFFSET(recompute),
     .help = "Full recomputation: an R before every backward that needs one."},
    {.name = "recompute-chunks",
     .type = BL_OPTION_INT,
     .offset = OFFSET(recompute_chunks),
     .argument = "N",
     .minimum = 1,
     .maximum = BL_VIRTUAL_STAGES_MAX,
     .preset_help = "all",
     .help = "With --recompute: only the first N chunks of every stage; the others keep their blocks from F on."},
    {.name = "slots",
     .type = BL_OPTION_REAL,
     .offset = OFFSET(slots),
     .argument = "K",
     .minimum = 0,
     .minimum_open = true,
     .maximum = 1e9,
     .preset_help = "no limit",
     .help = "With --recompute: most blocks from R on, in device-micro-batches, of orders that are searched."},
    BL_CTL_PATH_COST_FLAG(bl_ctl_schedule_flags_t, path_cost, .help = "Time of one evict or load."),
    {.name = "slow-path",
     .type = BL_OPTION_TEXT_LIST,
     .offset = OFFSET(slow_paths),
     .argument = "S-D=X",
     .help =
         "Copies between the devices of stages S and D take X times --path-cost; may be repeated. With --balance cap "
         "blocks go where copies are shortest."},
    {.name = "pooled",
     .type = BL_OPTION_BOOL,
     .offset = OFFSET(pooled),
     .help =
         "An order for --balance: a stage may keep more than --memory where others keep less (zb-*, adaptive), or "
         "what its own timetable keeps (grouped-interleaved, 1f1b-v). Jobs with the policies bpipe and cap have it."},
    {.name = "memory",
     .type = BL_OPTION_TEXT,
     .offset = OFFSET(memory),
     .argument = "K[,K...]",
     .preset_help = "P; 2 P for zb-h2",
     .help = "Limit of zb-* and adaptive, in device-micro-batches: one for all stages, or one for each. What other "
             "schedules and files keep is held against it."},
    {.name = "balance",
     .type = BL_OPTION_ENUM,
     .offset = OFFSET(balance),
     .choices = balance_names,
     .preset = "none",
     .help =
         "Evict blocks to other devices: bpipe to stage P-1-s alone, cap to any with room; drop: none, they are made "
         "again; mix: parked as far as copies of --path-cost hide and there is room, the rest made again."},
    {.name = "cap",
     .type = BL_OPTION_INT,
     .offset = OFFSET(cap),
     .argument = "K",
     .minimum = 1,
     .maximum = 1 << 24,
     .preset_help = "ceil((P+2)/2) V for bpipe",
     .unit = "slots",
     .help = "Most slots of a device, own and lent."},
    BL_CTL_MODE_FLAG(bl_ctl_schedule_flags_t, mode),
    {.name = "svg",
     .type = BL_OPTION_TEXT,
     .offset = OFFSET(svg),
     .argument = "FILE",
     .help = "Also draw the timeline; FILE ends in .svg or .png."},
    {.name = "perfetto",
     .type = BL_OPTION_TEXT,
     .offset = OFFSET(perfetto),
     .argument = "FILE.json",
     .help = "Also write the timeline as a trace that ui.perfetto.dev and chrome://tracing open; a unit of cost is a "
             "millisecond there."},
    BL_CTL_OUTPUT_FLAG(bl_ctl_schedule_flags_t, output),
};

bl_status_t bl_ctl_schedule_read(const char *flag, const char *path, bl_schedule_t **schedule, bl_error_t *err) {
  char *text;
  size_t size;
  bl_status_t status = bl_ctl_input_file_read(flag, path, SCHEDULE_FILE_BYTES, &text, &size, err);
  if (status == BL_OK) {
    status = bl_csv_read(text, size, path, schedule, err);
    free(text);
  }
  return status;
}

static bl_status_t check_shape(const char *path, const char *flag, int64_t given, uint32_t found, bl_error_t *err) {
  if (given != 0 && given != (int64_t)found) {
    return bl_error_set(err, BL_INVALID, "--%s %" PRId64 ": %s has %u", flag, given, path, found);
  }
  return BL_OK;
}

static bl_status_t repeat_block(const bl_ctl_schedule_flags_t *a, bl_ctl_schedule_case_t *shown, bl_error_t *err) {
  const bl_block_pattern_t *block = &shown->block.block;
  if (a->micro_batches == 0) {
    return bl_error_set(err, BL_INVALID, "--block %s needs --micro-batches", a->block);
  }
  bl_status_t status = check_shape(a->block, "stages", a->stages, block->stages, err);
  if (status == BL_OK) {
    status = bl_block_pattern_repeat(block, (uint32_t)a->micro_batches, &shown->schedule, err);
  }
  return status == BL_OK ? check_shape(a->block, "chunks", a->chunks, shown->schedule->chunks, err) : status;
}

bool bl_ctl_schedule_is_file(const char *schedule) {
  size_t length = strlen(schedule);
  return length > 4 && strcmp(schedule + length - 4, ".csv") == 0;
}

bl_status_t bl_ctl_schedule_find(const char *name, const bl_schedule_info_t **info, bl_error_t *err) {
  size_t count;
  const bl_schedule_info_t *infos = bl_schedule_infos(&count);
  bl_nearest_t nearest = {.name = name};
  for (size_t k = 0; k < count; k++) {
    bl_nearest_offer(&nearest, infos[k].name);
  }
  *info = bl_schedule_info_find(name);
  char advice[BL_NEAREST_ADVICE_BYTES] = "";
  if (*info != NULL) {
    return BL_OK;
  }
  const bool near = bl_nearest_is_near(name, nearest.best);
  return bl_error_set(err, BL_INVALID, "--schedule %s: no such schedule; %s%sballastctl schedule list names all", name,
                      near ? bl_nearest_advise(&nearest, advice) : "", near ? " " : "");
}

// Virtual stages of what is asked for, before it is made.
static uint32_t virtual_stages_of(const bl_ctl_schedule_flags_t *a, const bl_ctl_schedule_case_t *shown) {
  if (shown->schedule != NULL) {
    return shown->schedule->virtual_stages;
  }
  if (a->block != NULL) {
    return shown->block.block.virtual_stages;
  }
  const bl_schedule_info_t *info = bl_schedule_info_find(a->schedule);
  int64_t chunks = a->chunks != 0 ? a->chunks : info != NULL ? info->default_chunks : 1;
  return (uint32_t)(a->stages * chunks); // both flags have limits
}

static bl_status_t find_chunk_costs(const bl_ctl_schedule_flags_t *a, bl_ctl_schedule_case_t *shown, bl_error_t *err) {
  uint32_t count = virtual_stages_of(a, shown);
  if (count > BL_VIRTUAL_STAGES_MAX) {
    return BL_OK; // the generator says that these are too many
  }
  shown->chunk_costs = malloc((count + 1) * sizeof *shown->chunk_costs);
  if (shown->chunk_costs == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "out of memory for the costs of %u virtual stages", count);
  }
  for (uint32_t s = 0; s < count; s++) {
    shown->chunk_costs[s] = shown->costs.every;
  }
  for (size_t i = 0; i < a->chunk_costs.count; i++) {
    const char *text = a->chunk_costs.items[i];
    bl_status_t status = bl_costs_parse_chunk(text, count, shown->chunk_costs, err);
    for (size_t k = 0; k < i && status == BL_OK; k++) {
      if (strtoul(a->chunk_costs.items[k], NULL, 10) == strtoul(text, NULL, 10)) {
        status = bl_error_set(err, BL_INVALID, "\"%.100s\": the costs of virtual stage %lu are given twice", text,
                              strtoul(text, NULL, 10));
      }
    }
    if (status != BL_OK) {
      (void)bl_error_prefix(err, "--chunk-cost");
      return status;
    }
  }
  shown->costs.chunks = shown->chunk_costs;
  return BL_OK;
}

static bl_status_t find_costs(const bl_ctl_schedule_flags_t *a, bl_ctl_schedule_case_t *shown, bl_error_t *err) {
  bl_status_t status = BL_OK;
  shown->costs = BL_COSTS_UNIT;
  if (a->cost != NULL) {
    status = bl_costs_parse(a->cost, &shown->costs, err);
    if (status != BL_OK) {
      (void)bl_error_prefix(err, "--cost");
    }
  } else if (a->block != NULL) {
    const uint32_t *lengths = shown->block.block.lengths;
    shown->costs.every = (bl_chunk_costs_t){lengths[0], lengths[1], lengths[2], lengths[0]};
  }
  shown->costs.path = a->path_cost;
  return status == BL_OK && a->chunk_costs.count > 0 ? find_chunk_costs(a, shown, err) : status;
}

static bl_status_t read_file(const bl_ctl_schedule_flags_t *a, bl_schedule_t **schedule, bl_error_t *err) {
  bl_status_t status = bl_ctl_schedule_read("--schedule", a->schedule, schedule, err);
  if (status == BL_OK) {
    status = check_shape(a->schedule, "stages", a->stages, (*schedule)->stages, err);
  }
  if (status == BL_OK) {
    status = check_shape(a->schedule, "chunks", a->chunks, (*schedule)->chunks, err);
  }
  return status == BL_OK ? check_shape(a->schedule, "micro-batches", a->micro_batches, (*schedule)->micro_batches, err)
                         : status;
}

// What would say nothing is refused, as are all flags that cannot mean what they say.
static bl_status_t check_flags(const bl_ctl_schedule_flags_t *a, bl_error_t *err) {
  if (a->slots > 0 && !a->recompute) {
    return bl_error_set(err, BL_INVALID,
                        "--slots %g: limits blocks that are made again; add --recompute, or use "
                        "--memory",
                        a->slots);
  }
  if (a->recompute_chunks > 0 && !a->recompute) {
    return bl_error_set(err, BL_INVALID, "--recompute-chunks %" PRId64 ": says what is made again; add --recompute",
                        a->recompute_chunks);
  }
  if (a->cap > 0 && a->balance == BALANCE_NONE) {
    return bl_error_set(err, BL_INVALID, "--cap %" PRId64 ": says how far to balance; add --balance", a->cap);
  }
  if (a->mode != BL_BALANCE_OVERLAP && (a->balance == BALANCE_NONE || a->balance == BALANCE_DROP)) {
    return bl_error_set(err, BL_INVALID, "--mode %s: says when blocks are evicted and loaded%s",
                        bl_ctl_mode_names[a->mode],
                        a->balance == BALANCE_NONE ? "; add --balance" : ", which --balance drop does not do");
  }
  const bool moves = a->balance != BALANCE_NONE || (a->schedule != NULL && bl_ctl_schedule_is_file(a->schedule));
  if (a->path_cost > 0 && !moves) {
    return bl_error_set(err, BL_INVALID, "--path-cost %g: is what an evict or load takes; add --balance", a->path_cost);
  }
  if (a->slow_paths.count > 0 && !moves) {
    return bl_error_set(err, BL_INVALID, "--slow-path %s: is about evicts and loads; add --balance",
                        a->slow_paths.items[0]);
  }
  if (a->pooled && (a->block != NULL || bl_ctl_schedule_is_file(a->schedule))) {
    return bl_error_set(err, BL_INVALID, "--pooled: is about orders that are made; a file has its own");
  }
  bool groups =
      a->schedule != NULL && (strcmp(a->schedule, "grouped-interleaved") == 0 || strcmp(a->schedule, "seq1f1b") == 0);
  if (a->group > 0 && !groups) {
    return bl_error_set(err, BL_INVALID, "--group %" PRId64 ": belongs to grouped-interleaved and seq1f1b, not to %s",
                        a->group, a->schedule != NULL ? a->schedule : a->block);
  }
  return BL_OK;
}

static bl_status_t generate(const bl_ctl_schedule_flags_t *a, bl_ctl_schedule_case_t *shown, bl_error_t *err) {
  bl_schedule_request_t request = {.name = a->schedule,
                                   .stages = (uint32_t)a->stages,
                                   .micro_batches = (uint32_t)a->micro_batches,
                                   .chunks = (uint32_t)a->chunks,
                                   .group = (uint32_t)a->group,
                                   .memory = shown->limits.every,
                                   .memory_of_stage = shown->limits.of_stage,
                                   .costs = &shown->costs,
                                   .recompute = a->recompute,
                                   .pooled = a->pooled,
                                   .slots = a->recompute ? a->slots : 0,
                                   .recompute_chunks = (uint32_t)a->recompute_chunks};
  bl_status_t status = bl_ctl_limits_check_count(&shown->limits, request.stages, err);
  if (status == BL_OK && a->pooled && !bl_schedule_pools(&request)) {
    const bool limited = bl_schedule_info_find(a->schedule)->limited && !a->recompute && a->stages > 1;
    status = bl_error_set(err, BL_INVALID, "--pooled: %s has the same order for balancing as without%s", a->schedule,
                          limited ? "; give the limit that is pooled, --memory K, one for all stages" : "");
  }
  if (status == BL_OK) {
    status = bl_schedule_generate(&request, &shown->schedule, err);
  }
  return status;
}

// Reads what a file gives, finds costs, and makes the schedule.
static bl_status_t make(const bl_ctl_schedule_flags_t *a, bl_ctl_schedule_case_t *shown, bl_error_t *err) {
  const bool generates = a->block == NULL && !bl_ctl_schedule_is_file(a->schedule);
  const bl_schedule_info_t *info;
  bl_status_t status = generates ? bl_ctl_schedule_find(a->schedule, &info, err) : BL_OK;
  if (status != BL_OK) {
    return status;
  }
  if (a->block != NULL) {
    status = bl_ctl_block_file_read(a->block, &shown->block, err);
  } else if (!generates) {
    status = read_file(a, &shown->schedule, err);
  } else if (a->stages == 0 || a->micro_batches == 0) {
    return bl_error_set(err, BL_INVALID, "--schedule %s needs --stages and --micro-batches", a->schedule);
  }
  if (status == BL_OK) {
    status = find_costs(a, shown, err);
  }
  if (status == BL_OK && generates) {
    return generate(a, shown, err);
  }
  if (status == BL_OK && a->block != NULL) {
    status = repeat_block(a, shown, err);
  }
  if (status == BL_OK) {
    status = bl_ctl_limits_check_count(&shown->limits, shown->schedule->stages, err);
  }
  return status == BL_OK && a->recompute
             ? bl_schedule_recompute_chunks(shown->schedule, (uint32_t)a->recompute_chunks, err)
             : status;
}

static bl_status_t make_within(const bl_ctl_schedule_flags_t *a, bl_ctl_schedule_case_t *shown, bl_error_t *err) {
  bl_status_t status = bl_ctl_limits_read(&shown->limits, a->memory, err);
  if (status == BL_OK) {
    status = make(a, shown, err);
  }
  const bl_schedule_info_t *info = a->schedule != NULL ? bl_schedule_info_find(a->schedule) : NULL;
  const bool pooled = a->pooled && info != NULL && info->limited; // keeps to it when it is balanced
  if (status == BL_OK && !pooled) {
    status = bl_ctl_limits_check(&shown->limits, shown->schedule, err);
  }
  return status == BL_OK ? bl_ctl_limits_check_slots(a->slots, shown->schedule, err) : status;
}

// In units of --path-cost for balancing, in those of costs for the simulator.
static bl_status_t find_copies(const bl_ctl_schedule_flags_t *a, bl_ctl_schedule_case_t *shown, bl_error_t *err) {
  bl_status_t status =
      bl_costs_parse_paths(a->slow_paths.items, a->slow_paths.count, shown->schedule->stages, &shown->copies, err);
  if (status != BL_OK) {
    (void)bl_error_prefix(err, "--slow-path");
  }
  return status;
}

static bl_status_t time_it(const bl_ctl_schedule_flags_t *a, bl_ctl_schedule_case_t *shown, bl_error_t *err) {
  const size_t pairs = (size_t)shown->schedule->stages * shown->schedule->stages;
  for (size_t i = 0; shown->copies != NULL && i < pairs; i++) {
    shown->copies[i] *= a->path_cost;
  }
  const bl_machine_t machine = {.copies = shown->copies};
  return bl_simulate_on(shown->schedule, &shown->costs, &machine, &shown->simulation, err);
}

static bl_status_t balance(const bl_ctl_schedule_flags_t *a, bl_ctl_schedule_case_t *shown, bl_error_t *err) {
  const double forward = bl_costs_chunk(&shown->costs, 0)->forward, copy = forward > 0 ? a->path_cost / forward : 0;
  bl_balance_cap_t cap = {.slots = (uint32_t)a->cap,
                          .pairs_only = a->balance == BALANCE_BPIPE,
                          .mode = (bl_balance_mode_t)a->mode,
                          .copies = shown->copies,
                          .copy = a->balance == BALANCE_MIX ? fmax(copy, 1e-6) : 0};
  if (a->balance != BALANCE_BPIPE && cap.slots == 0) {
    return bl_error_set(err, BL_INVALID, "--balance %s needs --cap", balance_names[a->balance]);
  }
  if (cap.slots == 0) {
    cap.slots = bl_balance_bpipe_cap(shown->schedule->stages) * shown->schedule->chunks;
  }
  shown->cap = cap.slots;
  bl_status_t status = a->balance == BALANCE_DROP
                           ? bl_schedule_drop(shown->schedule, cap.slots, &shown->balanced.schedule, NULL, err)
                           : bl_balance_within(shown->schedule, &cap, &shown->balanced, err);
  if (status == BL_OK) {
    bl_schedule_destroy(shown->schedule);
    shown->schedule = shown->balanced.schedule;
    shown->balanced.schedule = NULL;
  }
  return status;
}

bl_status_t bl_ctl_schedule_case_draw(const bl_ctl_schedule_case_t *shown, const bl_ctl_schedule_flags_t *a,
                                      bl_error_t *err) {
  const bool balanced = a->balance != BALANCE_NONE, moves = balanced && a->balance != BALANCE_DROP;
  const bl_schedule_timeline_t picture = {.schedule = shown->schedule,
                                          .simulation = &shown->simulation,
                                          .unit = "units of cost",
                                          .policy = balanced ? balance_names[a->balance] : NULL,
                                          .mode = moves ? bl_ctl_mode_names[a->mode] : NULL,
                                          .cap = shown->cap};
  return bl_schedule_timeline_draw(&picture, a->svg, err);
}

void bl_ctl_schedule_case_cleanup(bl_ctl_schedule_case_t *shown) {
  bl_simulation_cleanup(&shown->simulation);
  bl_balance_result_cleanup(&shown->balanced);
  bl_schedule_destroy(shown->schedule);
  bl_ctl_block_file_cleanup(&shown->block);
  bl_ctl_limits_cleanup(&shown->limits);
  free(shown->chunk_costs);
  free(shown->copies);
}

bl_status_t bl_ctl_schedule_case_init(bl_ctl_schedule_case_t *shown, const bl_ctl_schedule_flags_t *a,
                                      bl_error_t *err) {
  memset(shown, 0, sizeof *shown);
  if ((a->schedule == NULL) == (a->block == NULL)) {
    return bl_error_set(err, BL_INVALID, "give either --schedule or --block");
  }
  bl_status_t status = check_flags(a, err);
  if (status == BL_OK) {
    status = make_within(a, shown, err);
  }
  if (status == BL_OK) {
    status = find_copies(a, shown, err);
  }
  if (status == BL_OK && a->balance != BALANCE_NONE) {
    status = balance(a, shown, err);
  }
  if (status == BL_OK) {
    status = bl_schedule_validate(shown->schedule, &shown->facts, err);
  }
  if (status == BL_OK) {
    status = time_it(a, shown, err);
  }
  return status;
}
