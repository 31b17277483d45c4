// SPDX-License-Identifier: Apache-2.0
// Verifies what pods need: pairs follow each other, memory is what the planner counts and grows by exactly what a job's
// slots, checkpoints and lent slots add, the grace period follows the disk, processors the threads.
#include "job/pods.h"

#include "job/checkpoint_image.h"
#include "job/job_text.h"
#include "lease/granule.h"
#include "model/memory.h"
#include "plan/evaluate/demand.h"

#include <setjmp.h>
#include <stdlib.h>

#include <cmocka.h>

static void pairs_follow_each_other(void **state) {
  (void)state;
  for (uint32_t p = 1; p <= 33; p++) {
    bool taken[33] = {false};
    for (uint32_t s = 0; s < p; s++) {
      uint32_t pod = bl_pod_of_stage(s, p);
      assert_true(pod < p && !taken[pod]);
      taken[pod] = true;
      assert_int_equal(bl_stage_of_pod(pod, p), s);
      assert_int_equal(pod / 2, bl_pod_of_stage(p - 1 - s, p) / 2);
    }
  }
}

// Replica after replica; the tensor ranks of the two stages of a pair are 2 t pods that follow each other.
static void replicas_have_their_pods_after_each_other(void **state) {
  (void)state;
  for (uint32_t p = 1; p <= 8; p++) {
    for (uint32_t t = 1; t <= 4; t *= 2) {
      const bl_grid_t grid = {.stages = p, .tensor = t, .data = 3, .tensor_parts = t, .data_parts = 3};
      for (uint32_t rank = 0; rank < 3 * p * t; rank++) {
        const bl_coords_t coords = bl_grid_coords(&grid, rank);
        const uint32_t pod = bl_pod_of_rank(&grid, rank);
        assert_int_equal(pod / (p * t), coords.data);
        assert_int_equal(pod % (p * t) / t, bl_pod_of_stage(coords.stage, p));
        assert_int_equal(pod % t, coords.tensor);
        assert_int_equal(bl_rank_of_pod(&grid, pod), rank);
        const bl_coords_t partner = {.stage = p - 1 - coords.stage, .tensor = coords.tensor, .data = coords.data};
        assert_int_equal(pod % (p * t) / (2 * t),
                         bl_pod_of_rank(&grid, bl_grid_rank(&grid, partner)) % (p * t) / (2 * t));
      }
    }
  }
}

// What `ballastctl simulate` counts for the fullest stage, on the device and on the host.
static uint64_t simulated(const bl_training_t *training, const bl_balance_plan_t *plan, const bl_job_t *job) {
  const bool cuda = job->pipeline.device == BL_JOB_DEVICE_CUDA;
  const bl_operation_memory_t operations =
      cuda ? bl_operation_memory_of_gpu(&training->model, training->layout.layer_parts, training->layout.dtype)
           : bl_operation_memory_of_cpu(&training->model, training->layout, (uint32_t)job->pipeline.threads);
  const bl_demand_request_t request = {
      .schedule = plan->schedule,
      .spans = training->partition.spans,
      .stage = {.model = &training->model,
                .options = training->layout,
                .operations = &operations,
                .asynchronous = cuda,
                .post_validation = job->train.post_validation,
                .optimizer_on_host = job->train.optimizer_memory == BL_JOB_OPTIMIZER_ON_HOST,
                .copies = bl_grid_copies(&training->grid)},
      .image = job->checkpoint.folder != NULL ? bl_checkpoint_image_bytes : NULL};
  bl_footprint_t stages[8];
  bl_error_t err;
  double most = 0;
  assert_in_range(training->stage_count, 1, 8);
  assert_int_equal(bl_demand_of_schedule(&request, stages, &err), BL_OK);
  for (uint32_t s = 0; s < training->stage_count; s++) {
    const double bytes = bl_footprint_total(&stages[s]) + stages[s].host;
    most = bytes > most ? bytes : most;
  }
  return (uint64_t)most;
}

// Where nothing is lent: a device's lent slots are memory of its store.
static void memory_is_what_is_simulated(void **state) {
  (void)state;
  static const char *const jobs[] = {
      "",
      "pipeline.device=cuda",
      "pipeline.device=cuda\ntrain.optimizer_memory=host\ntrain.post_validation=true",
      "train.post_validation=true\ntrain.dtype=bf16\ncheckpoint.folder=/nowhere",
      "pipeline.schedule=seq1f1b\npipeline.slices=2",
      "pipeline.device=cuda\nmodel.tied=false\npipeline.schedule=zb-h1",
      "parallel.data=2\npipeline.device=cuda\ntrain.micro_batches=8",
      "pipeline.recompute=full\npipeline.device=cuda",
      "pipeline.device=cuda\ntrain.micro_batches=12",
  };
  uint64_t seen[sizeof jobs / sizeof jobs[0]];
  for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
    bl_job_t job;
    bl_training_t training;
    bl_balance_plan_t plan;
    bl_pods_t pods;
    bl_error_t err = {0};
    if (job_text_parse(&job, jobs[i], &err) != BL_OK || bl_training_init(&training, &job, &err) != BL_OK) {
      fail_msg("%s: %s", jobs[i], err.text);
    }
    const bl_policy_t policy = bl_policy_of_job(&job);
    assert_int_equal(bl_balance_plan_init(&plan, &training, &policy, &err), BL_OK);
    assert_int_equal(bl_pods_of(&training, &plan, &job, 1e6, &pods, &err), BL_OK);
    seen[i] = pods.stage_bytes - BL_PODS_STAGE_OVERHEAD_BYTES;
    const uint64_t expected = simulated(&training, &plan, &job);
    if (seen[i] != expected) {
      fail_msg("%s: %llu bytes simulated, %llu of a pod", jobs[i], (unsigned long long)expected,
               (unsigned long long)seen[i]);
    }
    bl_balance_plan_cleanup(&plan);
    bl_training_cleanup(&training);
    bl_job_cleanup(&job);
  }
  assert_true(seen[8] >= seen[1] + 6ull * 2 * (2 * 16 * 4)); // tokens and labels of all micro-batches
}

// Of a job whose slots outweigh its head, so that the first stage is the fullest.
static bl_pods_t pods_of(const char *more, double disk_rate, uint64_t *slot_bytes, uint64_t *evict_bytes) {
  bl_job_t job;
  bl_training_t training;
  bl_balance_plan_t plan;
  bl_pods_t pods = {0};
  bl_error_t err = {0};
  char sets[256];
  snprintf(sets, sizeof sets, "train.micro_batch=256\n%s", more);
  assert_int_equal(job_text_parse(&job, sets, &err), BL_OK);
  assert_int_equal(bl_training_init(&training, &job, &err), BL_OK);
  const bl_policy_t policy = bl_policy_of_job(&job);
  assert_int_equal(bl_balance_plan_init(&plan, &training, &policy, &err), BL_OK);
  if (bl_pods_of(&training, &plan, &job, disk_rate, &pods, &err) != BL_OK) {
    fail_msg("%s: %s", sets, err.text);
  }
  bl_chunk_memory_t chunk;
  assert_int_equal(bl_chunk_memory(&training.model, training.partition.spans[0], training.layout, &chunk), BL_OK);
  *slot_bytes = training.stages[0].slot_bytes;
  *evict_bytes = chunk.evict_bytes;
  bl_balance_plan_cleanup(&plan);
  bl_training_cleanup(&training);
  bl_job_cleanup(&job);
  return pods;
}

static void memory_is_what_the_plan_says(void **state) {
  (void)state;
  uint64_t slot, evict;
  bl_pods_t plain = pods_of("", 1e6, &slot, &evict);
  bl_pods_t level = pods_of("balance.policy=bpipe", 1e6, &slot, &evict);
  assert_int_equal(plain.stage_bytes - level.stage_bytes, slot); // 4 own slots on stage 0, then 3
  assert_int_equal(plain.capacity_bytes, BL_LEASE_GRANULE_BYTES);
  assert_int_equal(level.capacity_bytes % BL_LEASE_GRANULE_BYTES, 0);
  assert_in_range(level.capacity_bytes, 2 * evict, 2 * (evict + BL_LEASE_GRANULE_BYTES));
  assert_int_equal(level.store_bytes, level.capacity_bytes + BL_PODS_STORE_OVERHEAD_BYTES);
  assert_true(level.stage_bytes > BL_PODS_STAGE_OVERHEAD_BYTES + level.shard_bytes);
  assert_int_equal(pods_of("checkpoint.folder=/nowhere", 1e6, &slot, &evict).stage_bytes - plain.stage_bytes,
                   plain.shard_bytes); // the copy that it is written from
  bl_pods_t slow = pods_of("", (double)plain.shard_bytes / 100, &slot, &evict);
  assert_int_equal(slow.grace_seconds, 160);
  assert_int_equal(slow.stage_bytes, plain.stage_bytes);
  assert_int_equal(plain.host_bytes + plain.host_capacity_bytes, 0);
  bl_pods_t host = pods_of("balance.policy=offload\nbalance.mode=fewest\nmemory.slots=2\nbalance.host=100000000", 1e6,
                           &slot, &evict);
  assert_int_equal(plain.stage_bytes - host.stage_bytes, 2 * slot); // at the host, not on the stage or at its store
  assert_int_equal(host.capacity_bytes, BL_LEASE_GRANULE_BYTES);
  assert_int_equal(host.host_capacity_bytes, 1526 * BL_LEASE_GRANULE_BYTES);
  assert_int_equal(host.host_bytes, host.host_capacity_bytes + BL_PODS_STORE_OVERHEAD_BYTES);
}

static void processors_are_those_of_the_threads(void **state) {
  (void)state;
  uint64_t slot, evict;
  const bl_pods_t plain = pods_of("", 1e6, &slot, &evict), more = pods_of("pipeline.threads=3", 1e6, &slot, &evict);
  assert_int_equal(plain.stage_millicpus, 1000);
  assert_int_equal(plain.store_millicpus, BL_PODS_IDLE_STORE_MILLICPUS);
  assert_int_equal(more.stage_millicpus, 3000);
  assert_int_equal(pods_of("balance.policy=bpipe", 1e6, &slot, &evict).store_millicpus, BL_PODS_STORE_MILLICPUS);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(pairs_follow_each_other),
      cmocka_unit_test(replicas_have_their_pods_after_each_other),
      cmocka_unit_test(memory_is_what_the_plan_says),
      cmocka_unit_test(memory_is_what_is_simulated),
      cmocka_unit_test(processors_are_those_of_the_threads),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
