// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/plan/schedule_case.h"

#include "ballastctl/plan/schedule_flags.h"
#include "ballastctl/plan/schedule_name.h"

#include "draw/schedule_timeline.h"
#include "schedule/balance/drop.h"
#include "schedule/generate.h"
#include "schedule/ir/recompute.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bl_status_t check_shape(const char *path, const char *flag, int64_t given, uint32_t found, bl_error_t *err) {
  if (given != 0 && given != (int64_t)found) {
    return bl_error_set(err, BL_INVALID, "--%s %" PRId64 ": %s has %u", flag, given, path, found);
  }
  return BL_OK;
}

static bl_status_t repeat_block(const bl_ctl_schedule_flags_t *flags, bl_ctl_schedule_case_t *shown, bl_error_t *err) {
  const bl_block_pattern_t *block = &shown->block.block;
  if (flags->micro_batches == 0) {
    return bl_error_set(err, BL_INVALID, "--block %s needs --micro-batches", flags->block);
  }
  bl_status_t status = check_shape(flags->block, "stages", flags->stages, block->stages, err);
  if (status == BL_OK) {
    status = bl_block_pattern_repeat(block, (uint32_t)flags->micro_batches, &shown->schedule, err);
  }
  return status == BL_OK ? check_shape(flags->block, "chunks", flags->chunks, shown->schedule->chunks, err) : status;
}

// Returns the virtual stages of the requested schedule, before it is generated.
static uint32_t virtual_stages_of(const bl_ctl_schedule_flags_t *flags, const bl_ctl_schedule_case_t *shown) {
  if (shown->schedule != NULL) {
    return shown->schedule->virtual_stages;
  }
  if (flags->block != NULL) {
    return shown->block.block.virtual_stages;
  }
  const bl_schedule_info_t *info = bl_schedule_info_find(flags->schedule);
  int64_t chunks = flags->chunks != 0 ? flags->chunks : info != NULL ? info->default_chunks : 1;
  return (uint32_t)(flags->stages * chunks); // cannot overflow: both flags have limits
}

static bl_status_t find_chunk_costs(const bl_ctl_schedule_flags_t *flags, bl_ctl_schedule_case_t *shown,
                                    bl_error_t *err) {
  uint32_t count = virtual_stages_of(flags, shown);
  if (count > BL_VIRTUAL_STAGES_MAX) {
    return BL_OK; // the generator reports that these are too many
  }
  shown->chunk_costs = malloc((count + 1) * sizeof *shown->chunk_costs);
  if (shown->chunk_costs == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "out of memory for the costs of %u virtual stages", count);
  }
  for (uint32_t s = 0; s < count; s++) {
    shown->chunk_costs[s] = shown->costs.every;
  }
  for (size_t i = 0; i < flags->chunk_costs.count; i++) {
    const char *text = flags->chunk_costs.items[i];
    bl_status_t status = bl_costs_parse_chunk(text, count, shown->chunk_costs, err);
    for (size_t k = 0; k < i && status == BL_OK; k++) {
      if (strtoul(flags->chunk_costs.items[k], NULL, 10) == strtoul(text, NULL, 10)) {
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

static bl_status_t find_costs(const bl_ctl_schedule_flags_t *flags, bl_ctl_schedule_case_t *shown, bl_error_t *err) {
  bl_status_t status = BL_OK;
  shown->costs = BL_COSTS_UNIT;
  if (flags->cost != NULL) {
    status = bl_costs_parse(flags->cost, &shown->costs, err);
    if (status != BL_OK) {
      (void)bl_error_prefix(err, "--cost");
    }
  } else if (flags->block != NULL) {
    const uint32_t *lengths = shown->block.block.lengths;
    shown->costs.every = (bl_chunk_costs_t){lengths[0], lengths[1], lengths[2], lengths[0]};
  }
  shown->costs.path = flags->path_cost;
  if (flags->host_cost.set && flags->balance == BL_POLICY_OFFLOAD) { // every transfer is one to or from the host
    shown->costs.path = flags->host_cost.value;
  }
  return status == BL_OK && flags->chunk_costs.count > 0 ? find_chunk_costs(flags, shown, err) : status;
}

static bl_status_t read_file(const bl_ctl_schedule_flags_t *flags, bl_schedule_t **schedule, bl_error_t *err) {
  bl_status_t status = bl_ctl_schedule_read("--schedule", flags->schedule, schedule, err);
  if (status == BL_OK) {
    status = check_shape(flags->schedule, "stages", flags->stages, (*schedule)->stages, err);
  }
  if (status == BL_OK) {
    status = check_shape(flags->schedule, "chunks", flags->chunks, (*schedule)->chunks, err);
  }
  return status == BL_OK
             ? check_shape(flags->schedule, "micro-batches", flags->micro_batches, (*schedule)->micro_batches, err)
             : status;
}

static uint32_t slices_of(const bl_ctl_schedule_flags_t *flags) {
  const bool by_group = flags->group > 0 && strcmp(flags->schedule, "seq1f1b") == 0;
  return (uint32_t)(by_group ? flags->group : flags->slices);
}

static bl_status_t generate(const bl_ctl_schedule_flags_t *flags, bl_ctl_schedule_case_t *shown, bl_error_t *err) {
  bl_schedule_request_t request = {.name = flags->schedule,
                                   .stages = (uint32_t)flags->stages,
                                   .micro_batches = (uint32_t)flags->micro_batches,
                                   .chunks = (uint32_t)flags->chunks,
                                   .group = (uint32_t)flags->group,
                                   .slices = slices_of(flags),
                                   .memory = shown->limits.every,
                                   .memory_of_stage = shown->limits.of_stage,
                                   .costs = &shown->costs,
                                   .recompute = flags->recompute,
                                   .pooled = flags->pooled,
                                   .hosted = flags->pooled && flags->balance == BL_POLICY_OFFLOAD,
                                   .slots = flags->recompute ? flags->slots : 0,
                                   .recompute_chunks = (uint32_t)flags->recompute_chunks};
  bl_status_t status = bl_ctl_limits_check_count(&shown->limits, request.stages, err);
  if (status == BL_OK && flags->pooled && !bl_schedule_pools(&request)) {
    const bool limited = bl_schedule_info_find(flags->schedule)->limited && !flags->recompute && flags->stages > 1;
    status =
        bl_error_set(err, BL_INVALID, "--pooled: %s has the same order for balancing as without%s", flags->schedule,
                     limited ? "; give the limit that is pooled, --memory K, one for all stages" : "");
  }
  if (status == BL_OK) {
    status = bl_schedule_generate(&request, &shown->schedule, err);
  }
  return status;
}

// Reads the file if one is given, determines costs, and generates the schedule.
static bl_status_t make(const bl_ctl_schedule_flags_t *flags, bl_ctl_schedule_case_t *shown, bl_error_t *err) {
  const bool generates = flags->block == NULL && !bl_ctl_schedule_is_file(flags->schedule);
  const bl_schedule_info_t *info;
  bl_status_t status = generates ? bl_ctl_schedule_find(flags->schedule, &info, err) : BL_OK;
  if (status != BL_OK) {
    return status;
  }
  if (flags->block != NULL) {
    status = bl_ctl_block_file_read(flags->block, &shown->block, err);
  } else if (!generates) {
    status = read_file(flags, &shown->schedule, err);
  } else if (flags->stages == 0 || flags->micro_batches == 0) {
    return bl_error_set(err, BL_INVALID, "--schedule %s needs --stages and --micro-batches", flags->schedule);
  }
  if (status == BL_OK) {
    status = find_costs(flags, shown, err);
  }
  if (status == BL_OK && generates) {
    return generate(flags, shown, err);
  }
  if (status == BL_OK && flags->block != NULL) {
    status = repeat_block(flags, shown, err);
  }
  if (status == BL_OK) {
    status = bl_ctl_limits_check_count(&shown->limits, shown->schedule->stages, err);
  }
  return status == BL_OK && flags->recompute
             ? bl_schedule_recompute_chunks(shown->schedule, (uint32_t)flags->recompute_chunks, err)
             : status;
}

static bl_status_t make_within(const bl_ctl_schedule_flags_t *flags, bl_ctl_schedule_case_t *shown, bl_error_t *err) {
  bl_status_t status = bl_ctl_limits_read(&shown->limits, flags->memory, err);
  if (status == BL_OK) {
    status = make(flags, shown, err);
  }
  const bl_schedule_info_t *info = flags->schedule != NULL ? bl_schedule_info_find(flags->schedule) : NULL;
  const bool pooled = flags->pooled && info != NULL && info->limited; // stays within the limit once it is balanced
  if (status == BL_OK && !pooled) {
    status = bl_ctl_limits_check(&shown->limits, shown->schedule, err);
  }
  return status == BL_OK ? bl_ctl_limits_check_slots(flags->slots, shown->schedule, err) : status;
}

// Sets transfer times: in units of --path-cost for balancing, in units of the costs for the simulator.
static bl_status_t find_copies(const bl_ctl_schedule_flags_t *flags, bl_ctl_schedule_case_t *shown, bl_error_t *err) {
  bl_status_t status = bl_costs_parse_paths(flags->slow_paths.items, flags->slow_paths.count, shown->schedule->stages,
                                            &shown->copies, err);
  if (status != BL_OK) {
    (void)bl_error_prefix(err, "--slow-path");
  }
  return status;
}

// Sets the times of transfers to the host. Every stage is assumed to have a host link of its own, as with paths between
// devices.
static bl_status_t find_host_paths(const bl_ctl_schedule_flags_t *flags, bl_ctl_schedule_case_t *shown,
                                   bl_error_t *err) {
  if (!flags->host_cost.set) {
    return BL_OK;
  }
  shown->host_paths = malloc(shown->schedule->stages * sizeof *shown->host_paths);
  if (shown->host_paths == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "out of memory for the paths of %u stages", shown->schedule->stages);
  }
  for (uint32_t s = 0; s < shown->schedule->stages; s++) {
    shown->host_paths[s] = flags->host_cost.value;
  }
  return BL_OK;
}

static bl_status_t time_it(const bl_ctl_schedule_flags_t *flags, bl_ctl_schedule_case_t *shown, bl_error_t *err) {
  const size_t pairs = (size_t)shown->schedule->stages * shown->schedule->stages;
  for (size_t i = 0; shown->copies != NULL && i < pairs; i++) {
    shown->copies[i] *= flags->path_cost;
  }
  bl_status_t status = find_host_paths(flags, shown, err);
  const bl_machine_t machine = {.copies = shown->copies, .host_paths = shown->host_paths};
  return status != BL_OK ? status : bl_simulate_on(shown->schedule, &shown->costs, &machine, &shown->simulation, err);
}

static bl_status_t balance(const bl_ctl_schedule_flags_t *flags, bl_ctl_schedule_case_t *shown, bl_error_t *err) {
  const double forward = bl_costs_chunk(&shown->costs, 0)->forward, copy = forward > 0 ? flags->path_cost / forward : 0;
  bl_balance_cap_t cap = {.slots = (uint32_t)flags->cap,
                          .pairs_only = flags->balance == BL_POLICY_BPIPE,
                          .mode = (bl_balance_mode_t)flags->mode,
                          .copies = shown->copies,
                          .copy = flags->balance == BL_POLICY_MIX ? fmax(copy, 1e-6) : 0,
                          .hosts = flags->host > 0,
                          .host_slots = (uint32_t)flags->host,
                          .host_only = flags->balance == BL_POLICY_OFFLOAD};
  if (flags->balance != BL_POLICY_BPIPE && cap.slots == 0) {
    return bl_error_set(err, BL_INVALID, "--balance %s needs --cap", bl_ctl_balance_names[flags->balance]);
  }
  if (cap.slots == 0) {
    cap.slots = bl_balance_bpipe_default(shown->schedule, &cap);
  }
  shown->cap = cap.slots;
  bl_status_t status = flags->balance == BL_POLICY_DROP
                           ? bl_schedule_drop(shown->schedule, cap.slots, &shown->balanced.schedule, NULL, err)
                           : bl_balance_within(shown->schedule, &cap, &shown->balanced, err);
  if (status == BL_OK) {
    bl_schedule_destroy(shown->schedule);
    shown->schedule = shown->balanced.schedule;
    shown->balanced.schedule = NULL;
  }
  return status;
}

bl_status_t bl_ctl_schedule_case_draw(const bl_ctl_schedule_case_t *shown, const bl_ctl_schedule_flags_t *flags,
                                      bl_error_t *err) {
  const bool balanced = flags->balance != BL_POLICY_NONE, moves = balanced && flags->balance != BL_POLICY_DROP;
  const bl_schedule_timeline_t picture = {.schedule = shown->schedule,
                                          .simulation = &shown->simulation,
                                          .unit = "units of cost",
                                          .policy = balanced ? bl_ctl_balance_names[flags->balance] : NULL,
                                          .mode = moves ? bl_ctl_mode_names[flags->mode] : NULL,
                                          .cap = shown->cap};
  return bl_schedule_timeline_draw(&picture, flags->svg, err);
}

uint32_t bl_ctl_schedule_case_at_hosts(const bl_ctl_schedule_case_t *shown) {
  uint32_t slots = 0;
  for (uint32_t h = 0; h < shown->schedule->hosts; h++) {
    slots += bl_device_slots_lent(&shown->device_slots, shown->schedule->stages + h);
  }
  return slots;
}

void bl_ctl_schedule_case_cleanup(bl_ctl_schedule_case_t *shown) {
  bl_simulation_cleanup(&shown->simulation);
  bl_balance_result_cleanup(&shown->balanced);
  bl_schedule_destroy(shown->schedule);
  bl_ctl_block_file_cleanup(&shown->block);
  bl_ctl_limits_cleanup(&shown->limits);
  free(shown->chunk_costs);
  free(shown->copies);
  free(shown->host_paths);
  bl_device_slots_cleanup(&shown->device_slots);
}

bl_status_t bl_ctl_schedule_case_init(bl_ctl_schedule_case_t *shown, const bl_ctl_schedule_flags_t *flags,
                                      bl_error_t *err) {
  memset(shown, 0, sizeof *shown);
  bl_status_t status = bl_ctl_schedule_request_check(flags, err);
  if (status == BL_OK) {
    status = make_within(flags, shown, err);
  }
  if (status == BL_OK) {
    status = find_copies(flags, shown, err);
  }
  if (status == BL_OK && flags->balance != BL_POLICY_NONE) {
    status = balance(flags, shown, err);
  }
  if (status == BL_OK) {
    status = bl_schedule_validate(shown->schedule, &shown->facts, err);
  }
  if (status == BL_OK && shown->schedule->hosts > 0) {
    status = bl_device_slots_init(&shown->device_slots, shown->schedule, err);
  }
  if (status == BL_OK) {
    status = time_it(flags, shown, err);
  }
  return status;
}
