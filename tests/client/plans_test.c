// SPDX-License-Identifier: Apache-2.0
// Verifies that the next plan of a job is prepared in a store that has the slot of one: it opens beside the present
// plan, takes no memory while that has its own, takes blocks all the same, and has all of it once the plan before is
// gone.
#include "client/fixture.h"

#include <dirent.h>
#include <sys/stat.h>
#include <time.h>

#define ARENA_BYTES (UINT64_C(768) * GRANULE) // of the store's 64 MiB
#define BYTES       (UINT64_C(16) * GRANULE)
#define PAGES_BYTES (UINT64_C(8) << 20) // what large pages may take beyond
#define WAIT_MS     60000

static bl_client_t *open_plan(const fixture_t *fixture, uint64_t plan) {
  bl_client_options_t options = options_of(fixture, 0);
  options.plan = plan;
  options.arena_bytes = ARENA_BYTES;
  bl_client_t *client = NULL;
  bl_error_t err = {0};
  must(bl_client_open(&options, &client, &err), &err);
  return client;
}

static void reserve_plan(bl_client_t *client, uint64_t plan, uint64_t *slots) {
  bl_error_t err = {0};
  bl_client_demand_t demand = {.bytes = BYTES, .count = (uint32_t)(ARENA_BYTES / BYTES)};
  must(bl_client_reserve(client, plan, &demand, 1, &err), &err);
  assert_int_equal(bl_client_slots(client, slots, demand.count), demand.count);
}

// Memory that the store's arenas of that size really have, and how many there are.
static uint64_t resident_bytes(pid_t pid, unsigned *arenas) {
  char path[64];
  uint64_t blocks = 0;
  *arenas = 0;
  snprintf(path, sizeof path, "/proc/%ld/fd", (long)pid);
  DIR *folder = opendir(path);
  assert_non_null(folder);
  for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
    struct stat info;
    char target[64] = "";
    if (readlinkat(dirfd(folder), entry->d_name, target, sizeof target - 1) > 0 &&
        strncmp(target, "/memfd:ballast-arena", 20) == 0 && fstatat(dirfd(folder), entry->d_name, &info, 0) == 0 &&
        (uint64_t)info.st_size == ARENA_BYTES) {
      blocks += (uint64_t)info.st_blocks;
      (*arenas)++;
    }
  }
  closedir(folder);
  return blocks * 512;
}

static void expect_resident(const fixture_t *fixture, unsigned arenas, uint64_t bytes) {
  unsigned found = 0;
  uint64_t has = 0;
  for (int waited = 0; waited < WAIT_MS; waited++) {
    has = resident_bytes(fixture->store.pid, &found);
    if (found == arenas && has >= bytes && has <= bytes + (bytes % ARENA_BYTES != 0 ? PAGES_BYTES : 0)) {
      return;
    }
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  }
  fail_msg("%u arenas with %lu bytes, not %u with %lu", found, (unsigned long)has, arenas, (unsigned long)bytes);
}

static void test_the_next_plan_is_prepared_in_the_room_of_this_one(void **state) {
  const fixture_t *fixture = *state;
  uint64_t slots[ARENA_BYTES / BYTES], next_slots[ARENA_BYTES / BYTES];
  uint8_t *buffer = fixture->buffers.base, *there = buffer + BYTES, *copy = malloc(BYTES);
  assert_non_null(copy);
  bl_error_t err = {0};
  bl_client_t *client = open_plan(fixture, 1);
  reserve_plan(client, 1, slots);
  for (uint64_t plan = 2; plan < 6; plan++) {
    expect_resident(fixture, 1, ARENA_BYTES);
    fill(buffer, BYTES, plan);
    memcpy(copy, buffer, BYTES);
    must(bl_client_evict(client, slots[0], buffer, BYTES, NULL, &err), &err);
    bl_client_t *next = open_plan(fixture, plan); // 48 MiB more than there are
    reserve_plan(next, plan, next_slots);
    expect_resident(fixture, 2, ARENA_BYTES);
    must(bl_client_load(client, slots[0], there, BYTES, &err), &err); // the present plan goes on
    assert_memory_equal(there, copy, BYTES);
    // A block of the next one that comes early has memory of its own.
    fill(buffer, BYTES, 100 + plan);
    memcpy(copy, buffer, BYTES);
    must(bl_client_evict(next, next_slots[3], buffer, BYTES, NULL, &err), &err);
    expect_resident(fixture, 2, ARENA_BYTES + BYTES);
    bl_client_close(client);
    expect_resident(fixture, 1, ARENA_BYTES);
    must(bl_client_load(next, next_slots[3], there, BYTES, &err), &err);
    assert_memory_equal(there, copy, BYTES);
    client = next;
    memcpy(slots, next_slots, sizeof slots);
  }
  bl_client_close(client);
  expect_resident(fixture, 0, 0);
  free(copy);
}

static void test_another_job_finds_no_room(void **state) {
  const fixture_t *fixture = *state;
  bl_client_t *client = open_plan(fixture, 1), *other = NULL;
  bl_client_options_t options = options_of(fixture, 0);
  options.job = "other";
  options.plan = 2;
  options.arena_bytes = ARENA_BYTES;
  bl_error_t err = {0};
  assert_int_equal(bl_client_open(&options, &other, &err), BL_EXHAUSTED);
  bl_client_close(client);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_the_next_plan_is_prepared_in_the_room_of_this_one),
      TEST(test_another_job_finds_no_room),
  };
  store_ttl = store_grace = "60"; // of a slow machine, too
  int failed = cmocka_run_group_tests_name("shm", tests, NULL, NULL);
  data_path = BL_CLIENT_PATH_TCP;
  return failed + cmocka_run_group_tests_name("tcp", tests, NULL, NULL);
}
