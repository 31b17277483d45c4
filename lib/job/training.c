// SPDX-License-Identifier: Apache-2.0
#include "job/training.h"

#include "base/bytes.h"
#include "job/architecture.h"
#include "job/balance.h"
#include "job/companions.h"
#include "job/costs.h"
#include "job/order.h"
#include "job/refuse.h"
#include "job/shortage.h"
#include "job/weights.h"
#include "schedule/ir/peaks.h"
#include "schedule/ir/stage_plan.h"
#include "schedule/ir/validate.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bl_status_t check_weights(const bl_job_t *job, const bl_model_t *model, bl_error_t *err) {
  bl_status_t status = bl_companions_check(job, err);
  if (status != BL_OK || job->model.init == NULL) {
    return status;
  }
  bl_weights_t weights;
  status = bl_weights_open(&weights, job->model.init, err);
  if (status == BL_OK) {
    status = bl_weights_check(&weights, model, err);
    bl_weights_close(&weights);
  }
  if (status != BL_OK) {
    bl_error_prefix(err, "model.init");
  }
  return status;
}

// Whether lean blocks save memory: they do if a stage keeps several at once, and they always cost about 1 % of the
// time. With one slot per stage, the workspace takes what the slot saves (model/layout.h). With a split backward slots
// stay large.
static bool saves_by_being_lean(const bl_training_t *training, bool splits_backward) {
  uint32_t most = 0;
  for (uint32_t i = 0; i < training->stage_count; i++) {
    most = training->stages[i].slots_needed > most ? training->stages[i].slots_needed : most;
  }
  return most > 1 && !splits_backward;
}

// Checks that layers can be cut into the job's parts, and the rows of micro-batches among them.
static bl_status_t check_layer_parts(const bl_training_t *training, const bl_job_t *job, bl_error_t *err) {
  const char *key = bl_job_given(job, "parallel.tensor_parts") ? "parallel.tensor_parts" : "parallel.tensor";
  const uint64_t rows = (uint64_t)job->train.micro_batch * training->model.seq / (uint64_t)job->pipeline.slices.value;
  bl_error_t fault;
  return bl_layer_parts_check(&training->model, training->grid.tensor_parts, rows, &fault) == BL_OK
             ? BL_OK
             : bl_job_fail(job, err, key, "%s", fault.text);
}

static bl_status_t check_slices(const bl_training_t *training, const bl_job_t *job, bl_error_t *err) {
  const int64_t slices = job->pipeline.slices.value, seq = training->model.seq;
  if (seq % slices == 0) {
    return BL_OK;
  }
  int64_t near = slices;
  while (seq % near != 0) {
    near--;
  }
  return bl_job_fail(job, err, "pipeline.slices", "%" PRId64 " do not divide model.seq %" PRId64 "; %" PRId64 " would",
                     slices, seq, near);
}

static bl_recompute_t recompute_of(const bl_job_t *job) {
  switch (job->pipeline.recompute) {
  case BL_JOB_RECOMPUTE_ATTENTION:
    return BL_RECOMPUTE_ATTENTION;
  case BL_JOB_RECOMPUTE_FULL:
    return BL_RECOMPUTE_FULL;
  default:
    return BL_RECOMPUTE_NONE;
  }
}

static bl_status_t choose_layout(bl_training_t *training, const bl_job_t *job, bl_error_t *err) {
  bl_schedule_facts_t facts;
  bl_status_t status = bl_schedule_validate(training->schedule, &facts, err);
  if (status != BL_OK) {
    return status;
  }
  const bl_layer_parts_t layer_parts = {.count = training->grid.tensor_parts, .ranks = training->grid.tensor};
  training->layout = (bl_layout_options_t){
      .layer_parts = layer_parts,
      .micro_batch = (uint32_t)job->train.micro_batch,
      .slices = training->schedule->slices,
      .attention = job->pipeline.attention == BL_JOB_ATTENTION_FLASH ? BL_ATTENTION_FLASH : BL_ATTENTION_NAIVE,
      .backward = facts.splits_backward ? BL_BACKWARD_SPLIT : BL_BACKWARD_FUSED,
      .lean = saves_by_being_lean(training, facts.splits_backward),
      .recompute = recompute_of(job),
      .dtype = job->train.dtype == BL_JOB_DTYPE_BF16 ? BL_DTYPE_BF16 : BL_DTYPE_FP32,
  };
  return BL_OK;
}

// Sets slot_bytes and evict_bytes of every stage: all slots of a device are equal, so each fits the largest of its
// blocks.
static bl_status_t measure_slots(bl_training_t *training, bl_error_t *err) {
  for (uint32_t i = 0; i < training->partition.count; i++) {
    bl_layout_t layout;
    if (bl_layout_init(&layout, &training->model, training->partition.spans[i], training->layout) != BL_OK) {
      return bl_error_set(err, BL_INVALID, "train.micro_batch: an activation block would exceed all memory");
    }
    bl_training_stage_t *stage = &training->stages[training->schedule->stage_of[i]];
    if (layout.slot_bytes > stage->slot_bytes) {
      stage->slot_bytes = layout.slot_bytes;
    }
    if (layout.evict_bytes > stage->evict_bytes) {
      stage->evict_bytes = layout.evict_bytes;
    }
  }
  return BL_OK;
}

// Raises *bytes to the pages that the stage's plan of one order needs, with the sizes of `largest`.
static bl_status_t measure_pages(const bl_schedule_t *order, uint32_t stage, const bl_layout_t *largest,
                                 uint64_t *bytes, bl_error_t *err) {
  bl_stage_plan_t plan;
  bl_status_t status = bl_stage_plan_init(order, stage, (bl_plan_limits_t){0}, &plan, err);
  if (status == BL_OK) {
    const uint64_t needed = plan.pages * largest->page_bytes + plan.page_gradients * largest->page_gradient_bytes;
    *bytes = needed > *bytes ? needed : *bytes;
    bl_stage_plan_cleanup(&plan);
  }
  return status;
}

static bl_status_t measure_kv_cache(bl_training_t *training, bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (uint32_t i = 0; i < training->partition.count && training->schedule->slices > 1 && status == BL_OK; i++) {
    const uint32_t stage = training->schedule->stage_of[i];
    uint64_t *bytes = &training->stages[stage].kv_cache_bytes;
    bl_layout_t layout;
    if (bl_layout_init(&layout, &training->model, training->partition.spans[i], training->layout) != BL_OK) {
      return bl_error_set(err, BL_INVALID, "train.micro_batch: an activation block would exceed all memory");
    }
    status = measure_pages(training->schedule, stage, &layout, bytes, err);
    if (status == BL_OK && training->other != NULL) {
      status = measure_pages(training->other, stage, &layout, bytes, err);
    }
  }
  return status;
}

// Returns the slots of one stage as the job gives them, or as many as needed. Clamped to 32 bits: no schedule needs
// more.
static uint32_t slots_of_job(const bl_job_t *job, const bl_training_stage_t *stage) {
  uint64_t slots = stage->slots_needed > stage->other_needed ? stage->slots_needed : stage->other_needed;
  if (job->memory.slots.set) {
    slots = (uint64_t)job->memory.slots.value;
  } else if (job->memory.activation_bytes.set && stage->slot_bytes > 0) {
    const uint64_t bytes = (uint64_t)job->memory.activation_bytes.value;
    slots = bytes > stage->kv_cache_bytes ? (bytes - stage->kv_cache_bytes) / stage->slot_bytes : 0;
  }
  return slots > UINT32_MAX ? UINT32_MAX : (uint32_t)slots;
}

// Creates the stages and counts the blocks that each keeps at once.
static bl_status_t count_slots(bl_training_t *training, bl_error_t *err) {
  const uint32_t count = training->schedule->stages;
  uint32_t *peaks = calloc(2 * (size_t)count, sizeof *peaks);
  training->stages = calloc(count, sizeof *training->stages);
  if (peaks == NULL || training->stages == NULL || bl_schedule_peak_slots(training->schedule, peaks) != BL_OK ||
      (training->other != NULL && bl_schedule_peak_slots(training->other, peaks + count) != BL_OK)) {
    free(peaks);
    return bl_error_set(err, BL_EXHAUSTED, "no memory to plan %" PRIu32 " stages", count);
  }
  training->stage_count = count;
  for (uint32_t i = 0; i < count; i++) {
    training->stages[i].slots_needed = peaks[i];
    training->stages[i].other_needed = peaks[count + i];
  }
  free(peaks);
  return BL_OK;
}

#define ADVICE_BYTES 80
// Finds how many blocks a host would have to hold for the policy. False if no host makes it fit.
static bool count_at_hosts(const bl_training_t *training, const bl_policy_t *policy, uint64_t *most) {
  bl_training_t roomy = *training;
  bl_balance_plan_t plan;
  *most = 0;
  roomy.hosts.slots = UINT32_MAX / 2;
  if (training->hosts.count == 0 || bl_balance_plan_init(&plan, &roomy, policy, NULL) != BL_OK) {
    return false;
  }
  for (uint32_t h = 0; h < training->hosts.count; h++) {
    const uint64_t slots = bl_device_slots_lent(&plan.device_slots, training->stage_count + h);
    *most = slots > *most ? slots : *most;
  }
  bl_balance_plan_cleanup(&plan);
  return true;
}

// Formats how much memory hosts would have to lend for the policy, if that is what is missing.
static void advise_host(const bl_training_t *training, const bl_policy_t *policy, char text[ADVICE_BYTES]) {
  char size[BL_BYTES_TEXT];
  uint64_t most;
  text[0] = '\0';
  if (count_at_hosts(training, policy, &most)) {
    (void)snprintf(text, ADVICE_BYTES, "; balance.host: %s is enough for this cap",
                   bl_hosts_size(&training->hosts, most, size));
  }
}

// Refuses memory of the host that holds no block, with what would do for the policy of the job.
static bl_status_t refuse_host(const bl_training_t *training, const bl_job_t *job, uint64_t block_bytes,
                               bl_error_t *err) {
  const bl_policy_t policy = bl_policy_of_job(job);
  const uint32_t planes = training->hosts.planes;
  char given[BL_BYTES_TEXT], block[BL_BYTES_TEXT], size[BL_BYTES_TEXT], each[64] = "";
  uint64_t most;
  if (!count_at_hosts(training, &policy, &most)) {
    most = 1;
  }
  if (planes > 1) {
    (void)snprintf(each, sizeof each, ", which each of %" PRIu32 " ranks on the machine needs", planes);
  }
  return bl_job_fail(job, err, "balance.host", "%s has no room for a block of %s%s; %s is enough for %" PRIu64 "%s",
                     bl_bytes_format((uint64_t)job->balance.host.value, given), bl_bytes_format(block_bytes, block),
                     each, bl_hosts_size(&training->hosts, most, size), most > 0 ? most : 1,
                     most > 1 ? ", as many as are parked there at once" : "");
}

// Checks that the policy works with the slots of the job: one that evicts or drops needs fewer, if its cap is not too
// small.
static bl_status_t check_balance(const bl_training_t *training, const bl_job_t *job, bl_error_t *err) {
  bl_policy_t policy = bl_policy_of_job(job);
  bl_balance_plan_t plan;
  bl_error_t fault;
  bl_status_t status = bl_balance_plan_init(&plan, training, &policy, &fault);
  if (status == BL_OK) {
    bl_balance_plan_cleanup(&plan);
    return BL_OK;
  }
  const char *key = job->memory.slots.set ? "memory.slots" : "memory.activation_bytes";
  if (status != BL_EXHAUSTED) {
    key = "balance.policy";
  } else if (policy.cap != 0 && policy.cap <= training->budget) {
    key = "balance.cap";
  }
  char advice[ADVICE_BYTES] = "";
  if (status == BL_EXHAUSTED) {
    advise_host(training, &policy, advice);
  }
  return bl_job_fail(job, err, key, "%s%s", fault.text, advice);
}

static bl_status_t check_slots(bl_training_t *training, const bl_job_t *job, bl_error_t *err) {
  bool limited = job->memory.slots.set || job->memory.activation_bytes.set;
  uint64_t block_bytes = 0; // of the largest block that is parked
  training->budget = UINT32_MAX;
  training->storeless = job->services.stages.count > 0 && job->services.stores.count == 0; // a local run starts its own
  for (uint32_t i = 0; i < training->stage_count; i++) {
    bl_training_stage_t *stage = &training->stages[i];
    stage->slots = slots_of_job(job, stage);
    training->budget = limited && stage->slots < training->budget ? stage->slots : training->budget;
    block_bytes = stage->evict_bytes > block_bytes ? stage->evict_bytes : block_bytes;
  }
  bl_status_t status = bl_hosts_init(&training->hosts, job, block_bytes, err);
  if (status != BL_OK) {
    return status;
  }
  if (training->hosts.count > 0 && training->hosts.slots == 0 && block_bytes > 0) {
    return refuse_host(training, job, block_bytes, err);
  }
  if (job->balance.policy != BL_POLICY_NONE) {
    return check_balance(training, job, err);
  }
  for (uint32_t i = 0; i < training->stage_count; i++) {
    if (training->stages[i].slots < training->stages[i].slots_needed) {
      return bl__shortage_fail(training, job, i, err);
    }
  }
  return BL_OK;
}

// Checks what needs no order, before the search for one takes seconds.
static bl_status_t check_policy(const bl_job_t *job, bl_error_t *err) {
  bl_error_t fault;
  return job->balance.policy == BL_POLICY_AUTO ||
                 bl_policy_check_recompute(job->balance.policy, recompute_of(job), &fault) == BL_OK
             ? BL_OK
             : bl_job_fail(job, err, "balance.policy", "%s", fault.text);
}

static bl_status_t find_order(const bl_job_t *job, bool pools, const char *brought, bl_schedule_t **schedule,
                              bl_error_t *err) {
  return brought != NULL ? bl_job_order_take(job, brought, strlen(brought), schedule, err)
                         : bl_job_order_make(job, pools, schedule, err);
}

static bl_status_t find_orders(bl_training_t *training, const bl_job_t *job, const bl_training_orders_t *orders,
                               bl_error_t *err) {
  training->hosted = bl_job_order_hosted(job);
  training->pools = bl_job_order_pooled(job, job->balance.policy);
  const bool chooses = job->balance.policy == BL_POLICY_AUTO || (training->hosted && training->pools);
  const bool makes = orders->own == NULL && (orders->all || chooses);
  if (makes && orders->other == NULL && bl_job_order_pools(job)) {
    return bl_job_orders_make(job, training->pools ? &training->other : &training->schedule,
                              training->pools ? &training->schedule : &training->other, err);
  }
  bl_status_t status = find_order(job, training->pools, orders->own, &training->schedule, err);
  if (status == BL_OK && orders->other != NULL) {
    status = find_order(job, !training->pools, orders->other, &training->other, err);
  }
  return status;
}

static bl_status_t resolve(bl_training_t *training, const bl_job_t *job, const bl_training_orders_t *orders, bool files,
                           bl_error_t *err) {
  training->grid = bl_job_grid(job);
  bl_status_t status = bl__job_check_supported(job, err);
  if (status == BL_OK) {
    status = bl_architecture_read(job, &training->model, err);
  }
  if (status == BL_OK) {
    status = check_slices(training, job, err);
  }
  if (status == BL_OK) {
    status = check_layer_parts(training, job, err);
  }
  if (status == BL_OK) {
    status = bl_partition_init(&training->partition, job, &training->model, err);
  }
  if (status == BL_OK) {
    status = check_policy(job, err);
  }
  if (status == BL_OK && files) {
    status = check_weights(job, &training->model, err);
  }
  if (status == BL_OK && files) {
    status = bl_dataset_open(&training->dataset, job, &training->model, err);
  }
  if (status == BL_OK) {
    status = bl_job_costs_init(&training->costs, job, err);
  }
  if (status == BL_OK) {
    status = find_orders(training, job, orders, err);
  }
  if (status == BL_OK) {
    status = count_slots(training, err);
  }
  if (status == BL_OK) {
    status = choose_layout(training, job, err);
  }
  if (status == BL_OK) {
    status = measure_slots(training, err);
  }
  if (status == BL_OK) {
    status = measure_kv_cache(training, err);
  }
  if (status == BL_OK) {
    status = bl_job_copies_read(job, training->stage_count, &training->copies, err);
  }
  if (status == BL_OK) {
    status = check_slots(training, job, err);
  }
  return status;
}

// Turns the status of a missing, unreadable or truncated file of the job into BL_INVALID, whichever function returned
// it.
static bl_status_t as_bad_job(bl_status_t status, bl_error_t *err) {
  if (status != BL_NOT_FOUND && status != BL_DENIED && status != BL_DATA_LOSS) {
    return status;
  }
  if (err != NULL) {
    err->status = BL_INVALID;
  }
  return BL_INVALID;
}

bl_status_t bl_training_init(bl_training_t *training, const bl_job_t *job, bl_error_t *err) {
  return bl_training_init_with(training, job, &(bl_training_orders_t){0}, err);
}

static bl_status_t init(bl_training_t *training, const bl_job_t *job, const bl_training_orders_t *orders, bool files,
                        bl_error_t *err) {
  bl_training_t resolved = {0};
  bl_status_t status = as_bad_job(resolve(&resolved, job, orders, files, err), err);
  if (status != BL_OK) {
    bl_training_cleanup(&resolved);
    return status;
  }
  *training = resolved;
  return BL_OK;
}

bl_status_t bl_training_init_with(bl_training_t *training, const bl_job_t *job, const bl_training_orders_t *orders,
                                  bl_error_t *err) {
  return init(training, job, orders, true, err);
}

bl_status_t bl_training_init_without_files(bl_training_t *training, const bl_job_t *job, bl_error_t *err) {
  return init(training, job, &(bl_training_orders_t){0}, false, err);
}

void bl_training_cleanup(bl_training_t *training) {
  bl_dataset_close(&training->dataset);
  free(training->stages);
  free(training->copies);
  bl_hosts_cleanup(&training->hosts);
  bl_job_costs_cleanup(&training->costs);
  bl_schedule_destroy(training->schedule);
  bl_schedule_destroy(training->other);
  bl_partition_cleanup(&training->partition);
  *training = (bl_training_t){0};
}

bool bl_training_exchange(const bl_training_t *training, uint32_t a, uint32_t b) {
  const bl_schedule_t *schedule = training->schedule;
  const bl_coords_t first = bl_grid_coords(&training->grid, a), second = bl_grid_coords(&training->grid, b);
  if (first.tensor != second.tensor) {
    return first.stage == second.stage && first.data == second.data;
  }
  a = first.stage;
  b = second.stage;
  if (schedule->pipes > 1 && a + b == schedule->stages - 1) {
    return true; // they have copies of the same chunk; the number of stages is even, so the two differ
  }
  if (first.data != second.data) {
    return a == b;
  }
  uint32_t last = bl_schedule_depth(schedule) - 1;
  bool ends = (schedule->stage_of[0] == a && schedule->stage_of[last] == b) ||
              (schedule->stage_of[0] == b && schedule->stage_of[last] == a);
  bool exchanges = training->model.tied && ends;
  for (uint32_t i = 0; i < last && !exchanges; i++) { // a second pipe has the same boundaries
    uint32_t low = schedule->stage_of[i], high = schedule->stage_of[i + 1];
    exchanges = (low == a && high == b) || (low == b && high == a);
  }
  return exchanges && a != b;
}
