// SPDX-License-Identifier: Apache-2.0
// Verifies which plan a policy means for a job: the cap that counts, slots of every device within it, and each refusal
// with its key, its cause and what works instead.
#include "job/balance.h"

#include "instrumented.h"
#include "job/job_text.h"
#include "policy/policy.h"
#include "same_order.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static bl_status_t plan_of(const char *sets, bl_training_t *training, bl_balance_plan_t *plan, bl_error_t *err) {
  bl_job_t job;
  bl_status_t status = job_text_parse(&job, sets, err);
  if (status != BL_OK) {
    return status;
  }
  bl_policy_t policy = bl_policy_of_job(&job);
  status = bl_training_init(training, &job, err);
  bl_job_cleanup(&job);
  if (status == BL_OK) {
    status = bl_balance_plan_init(plan, training, &policy, err);
    assert_int_equal(status, BL_OK); // what a job was accepted with works
  }
  return status;
}

static void expect(const char *sets, const uint32_t own[4], const uint32_t lent[4]) {
  bl_training_t training;
  bl_balance_plan_t plan;
  bl_error_t err = {0};
  if (plan_of(sets, &training, &plan, &err) != BL_OK) {
    fail_msg("%s: %s", sets, err.text);
  }
  for (uint32_t d = 0; d < 4; d++) {
    if (plan.device_slots.own[d] != own[d] || plan.device_slots.lent[d] != lent[d]) {
      fail_msg("%s: device %u has %u own and %u lent slots, expected %u and %u", sets, d, plan.device_slots.own[d],
               plan.device_slots.lent[d], own[d], lent[d]);
    }
  }
  bl_balance_plan_cleanup(&plan);
  bl_training_cleanup(&training);
}

static void policies_share_slots(void **state) {
  (void)state;
  expect("", (uint32_t[]){4, 3, 2, 1}, (uint32_t[]){0, 0, 0, 0});
  expect("balance.policy=bpipe", (uint32_t[]){3, 3, 2, 1}, (uint32_t[]){0, 0, 0, 2});
  expect("balance.policy=bpipe\nbalance.mode=fewest", (uint32_t[]){3, 3, 2, 1}, (uint32_t[]){0, 0, 0, 2});
  expect("balance.policy=bpipe\nbalance.cap=4", (uint32_t[]){4, 3, 2, 1}, (uint32_t[]){0, 0, 0, 0});
  expect("balance.policy=bpipe\nbalance.cap=4\nmemory.slots=3", (uint32_t[]){3, 3, 2, 1}, (uint32_t[]){0, 0, 0, 2});
  expect("balance.policy=bpipe\nmemory.slots=8", (uint32_t[]){3, 3, 2, 1}, (uint32_t[]){0, 0, 0, 2});
  expect("balance.policy=auto", (uint32_t[]){4, 3, 2, 1}, (uint32_t[]){0, 0, 0, 0});
  expect("balance.policy=auto\nmemory.slots=3", (uint32_t[]){3, 3, 2, 1}, (uint32_t[]){0, 0, 0, 2});
  expect("balance.policy=auto\nbalance.cap=3", (uint32_t[]){3, 3, 2, 1}, (uint32_t[]){0, 0, 0, 2});
  expect("balance.policy=cap\nbalance.cap=3", (uint32_t[]){3, 3, 2, 1}, (uint32_t[]){0, 0, 0, 2});
}

// Without balance.cap bpipe keeps BPipe's cap of 3 slots a chunk, or more where the order does: every number of slots
// from those 3 on works.
static void more_slots_do_not_refuse_bpipe(void **state) {
  (void)state;
  static const char *const schedules[] = {"1f1b", "zb-h1", "zb-h2", "zb-v"};
  for (size_t i = 0; i < sizeof schedules / sizeof schedules[0]; i++) {
    const uint32_t chunks = i == 3 ? 2 : 1;
    for (uint32_t slots = 3 * chunks; slots <= 7 * chunks; slots++) {
      char sets[160];
      snprintf(sets, sizeof sets, "model.layers=8\npipeline.schedule=%s\nbalance.policy=bpipe\nmemory.slots=%u",
               schedules[i], slots);
      bl_training_t training;
      bl_balance_plan_t plan;
      bl_error_t err = {0};
      if (plan_of(sets, &training, &plan, &err) != BL_OK) {
        fail_msg("%s: %s", sets, err.text);
      }
      const uint32_t cap = bl_policy_cap(&(bl_policy_t){.kind = BL_POLICY_BPIPE}, &training);
      assert_in_range(cap, 3 * chunks, slots);
      assert_true(i > 0 || cap == 3);
      bl_policy_t begun = {.kind = BL_POLICY_BPIPE};
      bl_policy_begin(&begun, &training);
      assert_int_equal(begun.cap, cap);
      bl_balance_plan_cleanup(&plan);
      bl_training_cleanup(&training);
    }
  }
}

static void blocks_are_given_up_where_nothing_can_move(void **state) {
  (void)state;
  const uint32_t none[] = {0, 0, 0, 0};
  expect("balance.policy=drop\nbalance.cap=3", (uint32_t[]){3, 3, 2, 1}, none);
  expect("balance.policy=drop\nmemory.slots=2", (uint32_t[]){2, 2, 2, 1}, none);
  expect("balance.policy=drop\nbalance.cap=2\nmemory.slots=3", (uint32_t[]){2, 2, 2, 1}, none);
  expect("balance.policy=drop\nmemory.slots=1", (uint32_t[]){1, 1, 1, 1}, none);
  expect("balance.policy=drop", (uint32_t[]){4, 3, 2, 1}, none); // memory for all
  expect("balance.policy=auto\nmemory.slots=3\nservices.stages=['a:1','b:1','c:1','d:1']", (uint32_t[]){3, 3, 2, 1},
         none);
}

#define HOST "\nbalance.host=1GiB"

static void hosts_hold_what_leaves(void **state) {
  (void)state;
  const uint32_t none[] = {0, 0, 0, 0}, two[] = {2, 2, 2, 1};
  static const struct {
    const char *sets;
    uint32_t own[4], lent[4], host;
  } cases[] = {
      {"balance.policy=offload\nmemory.slots=2\nbalance.mode=fewest", {2, 2, 2, 1}, {0, 0, 0, 0}, 5},
      {"balance.policy=offload\nmemory.slots=3", {3, 3, 2, 1}, {0, 0, 0, 0}, 2},
      {"balance.policy=offload\nbalance.cap=1\nbalance.mode=fewest", {1, 1, 1, 1}, {0, 0, 0, 0}, 9},
      {"balance.policy=offload", {4, 3, 2, 1}, {0, 0, 0, 0}, 0},
      {"balance.policy=bpipe\nmemory.slots=2\nbalance.mode=fewest", {2, 2, 2, 1}, {0, 0, 0, 1}, 4},
      {"balance.policy=cap\nbalance.cap=2\nbalance.mode=fewest", {2, 2, 2, 1}, {0, 0, 0, 1}, 4},
      {"balance.policy=bpipe\nmemory.slots=3", {3, 3, 2, 1}, {0, 0, 0, 2}, 0},
      // The stages are named and stores of devices are not.
      {"balance.policy=cap\nbalance.cap=2\nbalance.mode=fewest\nservices.stages=['a:1','b:1','c:1','d:1']"
       "\nservices.host_stores=['e:1']",
       {2, 2, 2, 1},
       {0, 0, 0, 0},
       5},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char sets[512];
    bl_training_t training;
    bl_balance_plan_t plan;
    bl_error_t err = {0};
    snprintf(sets, sizeof sets, "%s" HOST, cases[i].sets);
    if (plan_of(sets, &training, &plan, &err) != BL_OK) {
      fail_msg("%s: %s", sets, err.text);
    }
    assert_memory_equal(plan.device_slots.own, cases[i].own, sizeof cases[i].own);
    assert_memory_equal(plan.device_slots.lent, cases[i].lent, sizeof cases[i].lent);
    assert_int_equal(bl_device_slots_lent(&plan.device_slots, 4), cases[i].host);
    bl_balance_plan_cleanup(&plan);
    bl_training_cleanup(&training);
  }
  expect("balance.policy=drop\nmemory.slots=2" HOST, two, none);
  expect("memory.slots=4" HOST, (uint32_t[]){4, 3, 2, 1}, none);
}

// With two slots only device 3 has room for one more: auto begins by parking there, and makes the rest again.
static void auto_parks_what_there_is_room_for(void **state) {
  (void)state;
  const uint32_t own[] = {2, 2, 2, 1};
  expect("balance.policy=auto\nmemory.slots=2", own, (uint32_t[]){0, 0, 0, 1});
  expect("balance.policy=auto\nmemory.slots=2\nbalance.mode=fewest", own, (uint32_t[]){0, 0, 0, 1});
  expect("balance.policy=auto\nmemory.slots=1", (uint32_t[]){1, 1, 1, 1}, (uint32_t[]){0, 0, 0, 0}); // no room anywhere
}

// The first step of a run under auto: where blocks could be parked each stage that lacks slots parks one of them.
static void auto_begins_with_one_block(void **state) {
  (void)state;
  static const struct {
    const char *sets;
    bool probes;
    bl_policy_kind_t chosen;
    uint32_t evicted; // of all stages, in a step
  } cases[] = {
      {"balance.policy=auto\nmemory.slots=3", true, BL_POLICY_MIX, 1},
      {"balance.policy=auto\nmemory.slots=3\nbalance.mode=fewest", true, BL_POLICY_MIX, 1},
      {"balance.policy=auto\nmemory.slots=2", true, BL_POLICY_MIX, 1},
      {"balance.policy=auto\nmemory.slots=1", false, BL_POLICY_DROP, 0},
      {"balance.policy=auto\nmemory.slots=4", false, BL_POLICY_NONE, 0},
      {"balance.policy=auto\nmemory.slots=3\nservices.stages=['a:1','b:1','c:1','d:1']", false, BL_POLICY_DROP, 0},
      {"balance.policy=bpipe", false, BL_POLICY_NONE, 3},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    bl_job_t job;
    bl_training_t training;
    bl_balance_plan_t plan;
    bl_error_t err = {0};
    assert_int_equal(job_text_parse(&job, cases[i].sets, &err), BL_OK);
    assert_int_equal(bl_training_init(&training, &job, &err), BL_OK);
    bl_policy_t policy = bl_policy_of_job(&job);
    bl_policy_begin(&policy, &training);
    const bl_policy_t once = policy;
    bl_policy_begin(&policy, &training); // what is chosen stays
    assert_true(bl_policy_equal(&policy, &once));
    assert_int_equal(bl_policy_probes(&policy), cases[i].probes);
    assert_int_equal(policy.chosen, cases[i].chosen);
    assert_int_equal(bl_balance_plan_init(&plan, &training, &policy, &err), BL_OK);
    uint32_t evicted = 0;
    for (uint32_t s = 0; s < 4; s++) {
      evicted += plan.device_slots.evicted[s];
      assert_true(plan.device_slots.own[s] + plan.device_slots.lent[s] <= training.budget);
    }
    assert_int_equal(evicted, cases[i].evicted);
    bl_balance_plan_cleanup(&plan);
    bl_training_cleanup(&training);
    bl_job_cleanup(&job);
  }
}

static void a_budget_in_bytes_counts_slots(void **state) {
  (void)state;
  bl_training_t training;
  bl_balance_plan_t plan;
  bl_error_t err = {0};
  assert_int_equal(plan_of("", &training, &plan, &err), BL_OK);
  uint64_t bytes = training.stages[0].slot_bytes;
  bl_balance_plan_cleanup(&plan);
  bl_training_cleanup(&training);
  char sets[128];
  snprintf(sets, sizeof sets, "balance.policy=bpipe\nbalance.cap=9\nmemory.activation_bytes=%llu",
           (unsigned long long)(4 * bytes - 1));
  assert_int_equal(plan_of(sets, &training, &plan, &err), BL_OK);
  assert_int_equal(training.budget, 3);
  assert_int_equal(plan.device_slots.own[0], 3);
  bl_balance_plan_cleanup(&plan);
  bl_training_cleanup(&training);
}

// Of a schedule that is made for balancing a run has two orders: every policy has the one that a job has which begins
// with it, whatever the run began with, and what is searched within memory.slots as well.
static void check_orders(const char *schedule, const char *cap, size_t count) {
  static const struct {
    const char *policy, *order;
    bl_policy_kind_t kind, chosen;
  } cases[] = {{"none", "for none", BL_POLICY_NONE, BL_POLICY_NONE},
               {"bpipe", "for balancing", BL_POLICY_BPIPE, BL_POLICY_NONE},
               {"auto", NULL, BL_POLICY_AUTO, BL_POLICY_AUTO}, // of what it chooses
               {"cap", "for balancing", BL_POLICY_CAP, BL_POLICY_NONE},
               {"drop", "for none", BL_POLICY_DROP, BL_POLICY_NONE}};
  bl_training_t whole[2]; // of a run that begins with none, and with bpipe
  bl_error_t err = {0};
  char sets[512];
  for (size_t begins = 0; begins < 2; begins++) {
    bl_job_t job;
    snprintf(sets, sizeof sets, "%s\nbalance.policy=%s%s%s", schedule, cases[begins].policy,
             begins == 0 ? "" : "\nbalance.cap=", begins == 0 ? "" : cap);
    assert_int_equal(job_text_parse(&job, sets, &err), BL_OK);
    assert_int_equal(bl_training_init_with(&whole[begins], &job, &(bl_training_orders_t){.all = true}, &err), BL_OK);
    bl_job_cleanup(&job);
  }
  for (size_t i = 0; i < count; i++) {
    const bool caps = cases[i].kind != BL_POLICY_NONE;
    const bl_policy_t policy = {
        .kind = cases[i].kind, .chosen = cases[i].chosen, .cap = caps ? (uint32_t)atoi(cap) : 0};
    bl_training_t own;
    bl_balance_plan_t beginning;
    snprintf(sets, sizeof sets, "%s\nbalance.policy=%s%s%s", schedule, cases[i].policy, caps ? "\nbalance.cap=" : "",
             caps ? cap : "");
    if (plan_of(sets, &own, &beginning, &err) != BL_OK) {
      fail_msg("%s: %s", sets, err.text);
    }
    for (size_t begins = 0; begins < 2; begins++) {
      bl_balance_plan_t plan;
      if (bl_balance_plan_init(&plan, &whole[begins], &policy, &err) != BL_OK) {
        fail_msg("%s: %s", sets, err.text);
      }
      if (cases[i].order != NULL && strcmp(plan.order, cases[i].order) != 0) {
        fail_msg("%s: '%s', expected '%s'", sets, plan.order, cases[i].order);
      }
      assert_true(same_order(plan.schedule, beginning.schedule));
      assert_memory_equal(plan.device_slots.own, beginning.device_slots.own, 4 * sizeof *plan.device_slots.own);
      assert_memory_equal(plan.device_slots.lent, beginning.device_slots.lent, 4 * sizeof *plan.device_slots.lent);
      for (uint32_t d = 0; d < 4; d++) {
        assert_true(plan.device_slots.own[d] + plan.device_slots.lent[d] <= whole[begins].budget);
      }
      bl_balance_plan_cleanup(&plan);
    }
    bl_balance_plan_cleanup(&beginning);
    bl_training_cleanup(&own);
  }
  assert_false(same_order(whole[0].schedule, whole[1].schedule)); // else nothing was compared
  bl_training_cleanup(&whole[0]);
  bl_training_cleanup(&whole[1]);
}

static void policies_have_the_order_of_a_job_that_begins_with_them(void **state) {
  (void)state;
  check_orders("model.layers=8\npipeline.schedule=grouped-interleaved\ntrain.micro_batches=4", "7", 5);
  if (!INSTRUMENTED) { // each search takes a while
    check_orders("pipeline.schedule=zb-h1\ntrain.micro_batches=8\nmemory.slots=3", "3", 3);
  }
}

static uint32_t evictions_of(const bl_schedule_t *schedule) {
  uint32_t count = 0;
  for (uint32_t s = 0; s < schedule->stages; s++) {
    for (size_t i = 0; i < schedule->lists[s].count; i++) {
      count += schedule->lists[s].ops[i].type == BL_OP_E;
    }
  }
  return count;
}

// With balance.host a schedule that is searched within memory.slots has an order made for the host, which offload takes
// where it ends earlier, whatever the run began with; none and a host with too little memory keep the order for none.
static void offload_takes_the_order_made_for_the_host(void **state) {
  (void)state;
  static const char shape[] = "pipeline.schedule=zb-h1\ntrain.micro_batches=8\nmemory.slots=3\nbalance.host=64MiB";
  static const struct {
    const char *sets;
    bl_policy_kind_t kind;
    const char *order;
    uint32_t evictions;
  } cases[] = {{"", BL_POLICY_NONE, "for none", 0},
               {"", BL_POLICY_OFFLOAD, "for balancing", 4},
               {"pipeline.costs.forward=[1]\npipeline.costs.input=[1]\npipeline.costs.weight=[1]\n"
                "pipeline.costs.host_copy=9",
                BL_POLICY_OFFLOAD, "for none", 0},
               {"balance.host=128KiB", BL_POLICY_OFFLOAD, "for none", 0}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const char *const begins[] = {bl_policy_kind_name(cases[i].kind),
                                  cases[i].kind == BL_POLICY_NONE ? "offload" : "none"};
    const bl_policy_t policy = {.kind = cases[i].kind};
    bl_training_t own, changed;
    bl_balance_plan_t plan, after;
    bl_error_t err;
    bl_job_t job;
    char sets[512];
    snprintf(sets, sizeof sets, "%s\n%s\nbalance.policy=%s", shape, cases[i].sets, begins[0]);
    if (plan_of(sets, &own, &plan, &err) != BL_OK) {
      fail_msg("%s: %s", sets, err.text);
    }
    if (evictions_of(plan.schedule) != cases[i].evictions) {
      fail_msg("%s: %u evictions, expected %u", sets, evictions_of(plan.schedule), cases[i].evictions);
    }
    for (uint32_t s = 0; s < 4; s++) {
      assert_true(plan.device_slots.own[s] <= 3 && plan.device_slots.lent[s] == 0);
    }
    snprintf(sets, sizeof sets, "%s\n%s\nbalance.policy=%s", shape, cases[i].sets, begins[1]);
    assert_int_equal(job_text_parse(&job, sets, &err), BL_OK);
    assert_int_equal(bl_training_init_with(&changed, &job, &(bl_training_orders_t){.all = true}, &err), BL_OK);
    bl_job_cleanup(&job);
    assert_int_equal(bl_balance_plan_init(&after, &changed, &policy, &err), BL_OK);
    assert_string_equal(after.order, cases[i].order);
    assert_true(same_order(plan.schedule, after.schedule));
    bl_balance_plan_cleanup(&plan);
    bl_balance_plan_cleanup(&after);
    bl_training_cleanup(&own);
    bl_training_cleanup(&changed);
  }
}

static void refuses(const char *sets, bl_status_t expected, const char *message) {
  bl_training_t training;
  bl_balance_plan_t plan;
  bl_error_t err = {0};
  bl_status_t status = plan_of(sets, &training, &plan, &err);
  if (status != expected || strstr(err.text, message) == NULL) {
    fail_msg("%s:\n expected %s '%s'\n got %s '%s'", sets, bl_status_name(expected), message, bl_status_name(status),
             err.text);
  }
}

static void what_cannot_work_is_refused(void **state) {
  (void)state;
  refuses("balance.policy=cap\nbalance.cap=2", BL_INVALID,
          "--set balance.cap: a cap of 2 slots a device is too small for schedule 1f1b (the smallest that works is 3): "
          "stage ");
  refuses("model.layers=8\npipeline.schedule=zb-v\nbalance.policy=bpipe\nbalance.cap=6", BL_INVALID,
          "--set balance.cap: a cap of 6 slots");
  refuses("balance.policy=bpipe\nmemory.slots=2", BL_INVALID, "--set memory.slots: a cap of 2 slots");
  refuses("balance.policy=bpipe\nmemory.slots=1", BL_INVALID, "the smallest that works is 3");
  refuses("balance.policy=bpipe\npipeline.recompute=full", BL_INVALID,
          "--set balance.policy: with pipeline.recompute: full only the input of a block is kept");
  refuses("balance.policy=drop\npipeline.recompute=full", BL_INVALID, "nothing to evict or to give up");
  refuses("balance.policy=offload\nmemory.slots=2", BL_INVALID, "balance.host: is missing; the policy offload parks");
  refuses(
      "balance.policy=offload\nmemory.slots=1\nbalance.mode=fewest\nbalance.host=128KiB", BL_INVALID,
      "the smallest that works is 3): stage 0: evicts up to 4 blocks at once, the stores it reaches have room for ");
  refuses("balance.policy=offload\nmemory.slots=1\nbalance.mode=fewest\nbalance.host=128KiB", BL_INVALID,
          "; balance.host: 576 KiB is enough for this cap");
  refuses("balance.policy=offload\nmemory.slots=2\nparallel.data=2\nbalance.host=64KiB", BL_INVALID,
          "--set balance.host: 64.0 KiB has no room for a block of ");
  refuses("balance.policy=offload\nmemory.slots=2\nparallel.data=2\nbalance.host=64KiB", BL_INVALID,
          ", which each of 2 ranks on the machine needs; 512 KiB is enough for 4, as many as are parked there at once");
  refuses("parallel.data=2\nbalance.host=64KiB", BL_INVALID, "on the machine needs; 128 KiB is enough for 1");
  bl_training_t training;
  bl_balance_plan_t plan;
  bl_error_t err;
  assert_int_equal(
      plan_of("balance.policy=offload\nmemory.slots=2\nparallel.data=2\nbalance.host=512KiB", &training, &plan, &err),
      BL_OK); // what was named is enough
  bl_balance_plan_cleanup(&plan);
  bl_training_cleanup(&training);
  refuses("balance.policy=offload\nbalance.host=1GiB\npipeline.recompute=full", BL_INVALID, "nothing to evict");
  refuses("balance.host=1GiB\nservices.stages=['a:1','b:1','c:1','d:1']", BL_INVALID,
          "services.host_stores: is missing; balance.host asks for a store on every machine");
  refuses("memory.slots=3", BL_INVALID, "--set memory.slots: stage 0, operation 3 (0F3): needs one slot more than");
}

#define STAGES4 "\nservices.stages=['a:1','b:1','c:1','d:1']"

// Checks the stores that a job names; NULL: they are enough.
static void names_stores(const char *sets, const char *message) {
  bl_job_t job;
  bl_training_t training;
  bl_error_t err = {0};
  assert_int_equal(job_text_parse(&job, sets, &err), BL_OK);
  assert_int_equal(bl_training_init(&training, &job, &err), BL_OK);
  const bl_status_t status = bl_balance_check_stores(&training, &job, &err);
  if (status != (message == NULL ? BL_OK : BL_INVALID) || (message != NULL && strstr(err.text, message) == NULL)) {
    fail_msg("%s:\n expected '%s'\n got %s '%s'", sets, message, bl_status_name(status), err.text);
  }
  bl_training_cleanup(&training);
  bl_job_cleanup(&job);
}

static void blocks_need_stores_to_go_to(void **state) {
  (void)state;
  names_stores("balance.policy=bpipe" STAGES4,
               "services.stores: is missing; balance.policy bpipe parks blocks at devices: name an activation-store");
  names_stores("balance.policy=cap\nbalance.cap=3" STAGES4, "services.stores: is missing; balance.policy cap parks");
  names_stores("balance.policy=bpipe" STAGES4 "\nservices.stores=['a:2','b:2','c:2','d:2']", NULL);
  names_stores("balance.policy=bpipe\nbalance.cap=4" STAGES4, NULL); // nothing is parked
  names_stores("balance.policy=auto\nmemory.slots=3" STAGES4, NULL);
  names_stores("balance.policy=drop\nmemory.slots=3" STAGES4, NULL);
  names_stores("balance.policy=offload\nmemory.slots=3" HOST STAGES4 "\nservices.host_stores=['e:1']", NULL);
  names_stores("balance.policy=cap\nbalance.cap=2" HOST STAGES4 "\nservices.host_stores=['e:1']", NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(policies_share_slots),
      cmocka_unit_test(more_slots_do_not_refuse_bpipe),
      cmocka_unit_test(hosts_hold_what_leaves),
      cmocka_unit_test(blocks_are_given_up_where_nothing_can_move),
      cmocka_unit_test(auto_parks_what_there_is_room_for),
      cmocka_unit_test(auto_begins_with_one_block),
      cmocka_unit_test(a_budget_in_bytes_counts_slots),
      cmocka_unit_test(policies_have_the_order_of_a_job_that_begins_with_them),
      cmocka_unit_test(offload_takes_the_order_made_for_the_host),
      cmocka_unit_test(what_cannot_work_is_refused),
      cmocka_unit_test(blocks_need_stores_to_go_to),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
