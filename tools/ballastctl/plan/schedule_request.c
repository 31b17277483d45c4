// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/plan/schedule_request.h"

#include "ballastctl/output.h"
#include "ballastctl/plan/schedule_flags.h"
#include "ballastctl/plan/schedule_name.h"

#include "schedule/balance/balance.h"

#include <inttypes.h>
#include <string.h>

const char *const bl_ctl_balance_names[] = {"none", "bpipe", "cap", "drop", "offload", "", "mix", NULL};
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
     .help = "Micro-batches of a group (grouped-interleaved); of seq1f1b the same as --slices."},
    {.name = "slices",
     .type = BL_OPTION_INT,
     .offset = OFFSET(slices),
     .argument = "N",
     .minimum = 1,
     .maximum = BL_SLICES_MAX,
     .preset_help = "1; 2 for seq1f1b",
     .help = "Slices that sequences are cut into; costs are those of one."},
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
     .choices = bl_ctl_balance_names,
     .preset = "none",
     .help = "Evict blocks to other devices: bpipe to stage P-1-s alone, cap to any with free slots; offload: to "
             "--host alone; "
             "drop: none, they are recomputed; mix: parked as far as copies of --path-cost hide and slots are free, "
             "the others recomputed."},
    {.name = "cap",
     .type = BL_OPTION_INT,
     .offset = OFFSET(cap),
     .argument = "K",
     .minimum = 1,
     .maximum = 1 << 24,
     .preset_help = "ceil((P+2)/2) V, or the least above that works, for bpipe",
     .unit = "slots",
     .help = "Most slots of a device, own and lent."},
    {.name = "host",
     .type = BL_OPTION_INT,
     .offset = OFFSET(host),
     .argument = "BLOCKS",
     .minimum = 1,
     .maximum = 1 << 30,
     .preset_help = "none",
     .help = "Slots in memory of the host: for all evicted blocks with --balance offload, otherwise for those that "
             "devices have no slots for."},
    {.name = "host-cost",
     .type = BL_OPTION_REAL,
     .offset = OFFSET(host_cost),
     .optional = true,
     .argument = "X",
     .minimum = 0,
     .maximum = 1e12,
     .preset_help = "as --path-cost",
     .help = "Time of one evict or load at the host. Every stage has a link of its own to it."},
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

// A file may name host stores itself.
static bl_status_t check_host(const bl_ctl_schedule_flags_t *flags, bl_error_t *err) {
  const bool is_file = flags->schedule != NULL && bl_ctl_schedule_is_file(flags->schedule);
  if (flags->host > 0 && !bl_policy_copies((bl_policy_kind_t)flags->balance)) {
    return bl_error_set(err, BL_INVALID, "--host %" PRId64 ": is room for blocks that leave; add --balance offload",
                        flags->host);
  }
  if (flags->balance == BL_POLICY_OFFLOAD && flags->host == 0) {
    return bl_error_set(err, BL_INVALID,
                        "--balance offload needs --host: the blocks that memory of the host has room for");
  }
  if (flags->host_cost.set && flags->host == 0 && !is_file) {
    return bl_error_set(err, BL_INVALID, "--host-cost %g: is what an evict or load at the host takes; add --host",
                        flags->host_cost.value);
  }
  return BL_OK;
}

bl_status_t bl_ctl_schedule_request_check(const bl_ctl_schedule_flags_t *flags, bl_error_t *err) {
  if ((flags->schedule == NULL) == (flags->block == NULL)) {
    return bl_error_set(err, BL_INVALID, "give either --schedule (ballastctl schedule list names all) or --block");
  }
  if (flags->slots > 0 && !flags->recompute) {
    return bl_error_set(err, BL_INVALID,
                        "--slots %g: limits blocks that are recomputed; add --recompute, or use "
                        "--memory",
                        flags->slots);
  }
  if (flags->recompute_chunks > 0 && !flags->recompute) {
    return bl_error_set(err, BL_INVALID, "--recompute-chunks %" PRId64 ": says what is recomputed; add --recompute",
                        flags->recompute_chunks);
  }
  if (flags->cap > 0 && flags->balance == BL_POLICY_NONE) {
    return bl_error_set(err, BL_INVALID, "--cap %" PRId64 ": says how far to balance; add --balance", flags->cap);
  }
  if (flags->mode != BL_BALANCE_OVERLAP && (flags->balance == BL_POLICY_NONE || flags->balance == BL_POLICY_DROP)) {
    return bl_error_set(err, BL_INVALID, "--mode %s: says when blocks are evicted and loaded%s",
                        bl_ctl_mode_names[flags->mode],
                        flags->balance == BL_POLICY_NONE ? "; add --balance" : ", which --balance drop does not do");
  }
  const bool moves =
      flags->balance != BL_POLICY_NONE || (flags->schedule != NULL && bl_ctl_schedule_is_file(flags->schedule));
  if (flags->path_cost > 0 && !moves) {
    return bl_error_set(err, BL_INVALID, "--path-cost %g: is what an evict or load takes; add --balance",
                        flags->path_cost);
  }
  if (flags->slow_paths.count > 0 && !moves) {
    return bl_error_set(err, BL_INVALID, "--slow-path %s: is about evicts and loads; add --balance",
                        flags->slow_paths.items[0]);
  }
  bl_status_t status = check_host(flags, err);
  if (status != BL_OK) {
    return status;
  }
  if (flags->pooled && (flags->block != NULL || bl_ctl_schedule_is_file(flags->schedule))) {
    return bl_error_set(err, BL_INVALID, "--pooled: is about orders that are made; a file has its own");
  }
  const bool groups = flags->schedule != NULL && strcmp(flags->schedule, "grouped-interleaved") == 0,
             sliced = flags->schedule != NULL && strcmp(flags->schedule, "seq1f1b") == 0;
  if (flags->group > 0 && !groups && !sliced) {
    return bl_error_set(err, BL_INVALID, "--group %" PRId64 ": belongs to grouped-interleaved and seq1f1b, not to %s",
                        flags->group, flags->schedule != NULL ? flags->schedule : flags->block);
  }
  if (flags->group > 0 && sliced && flags->slices > 0) {
    return bl_error_set(err, BL_INVALID, "--group %" PRId64 ": of seq1f1b is what --slices says; give one of the two",
                        flags->group);
  }
  if (flags->slices > 0 && (flags->block != NULL || bl_ctl_schedule_is_file(flags->schedule))) {
    return bl_error_set(err, BL_INVALID, "--slices: is about orders that are made; a file has its own");
  }
  return BL_OK;
}
