// SPDX-License-Identifier: Apache-2.0
// Verifies which host store every rank uses: by host names of addresses, by order, one for all in a local run; how planes
// share its room; and that machines which cannot be told apart, or planes that lie otherwise, are refused by key.
#include "job/hosts.h"

#include "job/job_text.h"

#include <setjmp.h>

#include <cmocka.h>

static bl_status_t hosts_of(const char *sets, bl_hosts_t *hosts, bl_error_t *err) {
  bl_job_t job;
  bl_status_t status = job_text_parse(&job, sets, err);
  if (status == BL_OK) {
    status = bl_hosts_init(hosts, &job, 100000000, err);
    bl_job_cleanup(&job);
  }
  return status;
}

typedef struct hosts_case {
  const char *sets;
  uint32_t count, planes, slots;
  uint16_t of[4];
  uint32_t ranks, of_rank[16];
} hosts_case_t;

static void check(const hosts_case_t *c) {
  bl_hosts_t hosts;
  bl_error_t err = {0};
  if (hosts_of(c->sets, &hosts, &err) != BL_OK) {
    fail_msg("%s: %s", c->sets, err.text);
  }
  assert_int_equal(hosts.count, c->count);
  assert_int_equal(hosts.planes, c->planes);
  assert_int_equal(hosts.slots, c->slots);
  if (c->count > 0) {
    assert_memory_equal(hosts.of, c->of, sizeof c->of);
    assert_memory_equal(hosts.of_rank, c->of_rank, c->ranks * sizeof c->of_rank[0]);
  }
  bl_hosts_cleanup(&hosts);
}

#define STAGES4 "services.stages=['a:1','b:1','a:2','b:2']\n"

static void ranks_use_the_store_of_their_machine(void **state) {
  (void)state;
  static const hosts_case_t cases[] = {
      {.sets = "parallel.data=2"},
      {"balance.host=1GiB", 1, 1, 10, {0, 0, 0, 0}, 4, {0, 0, 0, 0}},
      {"balance.host=1GiB\nparallel.data=2", 1, 2, 5, {0, 0, 0, 0}, 8, {0, 0, 0, 0, 0, 0, 0, 0}},
      {"balance.host=1GiB\nparallel.data=2\nparallel.tensor=2", 1, 4, 2, {0, 0, 0, 0}, 16, {0}},
      {"balance.host=150MiB\nparallel.data=2", 1, 2, 0, {0, 0, 0, 0}, 8, {0}}, // too little for a block of both
      {STAGES4 "balance.host=1GiB\nservices.host_stores=['b:9','a:9']", 2, 1, 10, {0, 1, 0, 1}, 4, {1, 0, 1, 0}},
      // The third machine has no stage.
      {STAGES4 "balance.host=1GiB\nservices.host_stores=['b:9','c:9','a:9']", 2, 1, 10, {0, 1, 0, 1}, 4, {2, 0, 2, 0}},
      // Names do not tell: b has none.
      {STAGES4 "balance.host=1GiB\nservices.host_stores=['d:9','a:9']", 2, 1, 10, {0, 0, 1, 1}, 4, {0, 0, 1, 1}},
      // All on one machine, stores too.
      {"services.stages=['a:1','a:2','a:3','a:4']\nbalance.host=1GiB\nservices.host_stores=['a:8','a:9']",
       2,
       1,
       10,
       {0, 0, 1, 1},
       4,
       {0, 0, 1, 1}},
      {"services.stages=['unix:/a','unix:/b','unix:/c','unix:/d']\nbalance.host=1GiB\nservices.host_stores=['unix:/e']",
       1,
       1,
       10,
       {0, 0, 0, 0},
       4,
       {0, 0, 0, 0}},
      // Replicas on machines of their own, and two machines for each of them.
      {"parallel.data=2\nbalance.host=1GiB\nservices.host_stores=['e:1','f:1']",
       1,
       1,
       10,
       {0, 0, 0, 0},
       8,
       {0, 0, 0, 0, 1, 1, 1, 1}},
      {"parallel.data=2\nbalance.host=1GiB\nservices.host_stores=['e:1','f:1','g:1','h:1']",
       2,
       1,
       10,
       {0, 0, 1, 1},
       8,
       {0, 0, 1, 1, 2, 2, 3, 3}},
      // Tensor ranks of a stage are neighbours.
      {"parallel.tensor=2\nbalance.host=1GiB\nservices.host_stores=['e:1','f:1']",
       2,
       2,
       5,
       {0, 0, 1, 1},
       8,
       {0, 0, 0, 0, 1, 1, 1, 1}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    check(&cases[i]);
  }
}

static void what_cannot_be_told_is_refused(void **state) {
  (void)state;
  static const struct {
    const char *sets, *message;
  } cases[] = {
      {"balance.host=1GiB\nservices.host_stores=['e:1','f:1','g:1']",
       "--set services.host_stores: names 3 for 4 ranks, and host names of addresses do not tell"},
      {"balance.host=1GiB\nparallel.data=2\nservices.host_stores=['a:9','b:9']\n"
       "services.stages=['a:1','a:2','b:1','b:2','a:3','b:3','b:4','b:5']",
       "--set services.host_stores: stage 1 of replica 1 does not share a store with stage 0 of its pipeline"},
      {"services.host_stores=['e:1']", "balance.host: is missing; it says how much each of services.host_stores lends"},
      {"balance.host=1GiB\nservices.host_stores=['e:1','e:1']", "--set services.host_stores: names e:1 twice"},
      {"balance.host=1GiB\nservices.host_stores=['e']", "--set services.host_stores: 'e' is no address"},
      {"balance.host=1KiB", "--set balance.host: must be at least 65536"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    bl_hosts_t hosts;
    bl_error_t err = {0};
    bl_status_t status = hosts_of(cases[i].sets, &hosts, &err);
    if (status != BL_INVALID || strstr(err.text, cases[i].message) == NULL) {
      fail_msg("%s:\n expected '%s'\n got %s '%s'", cases[i].sets, cases[i].message, bl_status_name(status), err.text);
    }
  }
}

// What is named is a size that people write, and enough.
static void sizes_are_those_that_people_write(void **state) {
  (void)state;
  static const struct {
    uint64_t blocks, slot_bytes;
    uint32_t planes;
    const char *text;
  } cases[] = {{9, 65536, 1, "576 KiB"},  {0, 65536, 2, "128 KiB"},     {100, 131072, 1, "13 MiB"},
               {80, 131072, 1, "10 MiB"}, {5, 100007936, 2, "954 MiB"}, {200, 100007936, 1, "19 GiB"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const bl_hosts_t hosts = {.planes = cases[i].planes, .slot_bytes = cases[i].slot_bytes};
    char text[BL_BYTES_TEXT];
    uint64_t bytes;
    assert_string_equal(bl_hosts_size(&hosts, cases[i].blocks, text), cases[i].text);
    assert_true(bl_bytes_parse(text, &bytes));
    assert_true(bytes >= (cases[i].blocks > 0 ? cases[i].blocks : 1) * cases[i].planes * cases[i].slot_bytes);
  }
}

static void offload_without_a_limit_is_warned_of(void **state) {
  (void)state;
  static const struct {
    const char *sets;
    bool warns;
  } cases[] = {{"balance.policy=offload\nbalance.host=1GiB", true},
               {"balance.policy=offload\nbalance.host=1GiB\nmemory.slots=2", false},
               {"balance.policy=offload\nbalance.host=1GiB\nmemory.activation_bytes=1MiB", false},
               {"balance.policy=offload\nbalance.host=1GiB\nbalance.cap=2", false},
               {"balance.policy=cap\nbalance.host=1GiB\nbalance.cap=2", false},
               {"balance.host=1GiB", false}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    bl_job_t job;
    bl_error_t err;
    char text[BL_HOSTS_WARNING] = "";
    assert_int_equal(job_text_parse(&job, cases[i].sets, &err), BL_OK);
    assert_int_equal(bl_hosts_warning(&job, text), cases[i].warns);
    assert_int_equal(strstr(text, "parks nothing") != NULL, cases[i].warns);
    bl_job_cleanup(&job);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(ranks_use_the_store_of_their_machine),
      cmocka_unit_test(what_cannot_be_told_is_refused),
      cmocka_unit_test(sizes_are_those_that_people_write),
      cmocka_unit_test(offload_without_a_limit_is_warned_of),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
