// SPDX-License-Identifier: Apache-2.0
// Collectives of ranks on one machine: processes gather blocks, and each publishes its progress
// (collective/progress.h), as the ranks of a shared layer do. With 64 bytes this measures an `agree`.
#include "bench.h"

#include "base/bytes.h"
#include "base/minmax.h"
#include "base/sort.h"
#include "collective/progress.h"
#include "measure.h"
#include "program.h"
#include "sys/clock.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct {
  int64_t ranks, calls, bytes;
} settings_t;

static const bl_option_t rows[] = {
    BL_BENCH_INT(settings_t, ranks, "ranks", "2", 2, BL_GROUP_PROGRESS_MEMBERS, "Processes."),
    BL_BENCH_INT(settings_t, calls, "calls", "100000", 100, (1 << 24) - 1, "Gathers, one after the other."),
    BL_BENCH_BYTES(settings_t, bytes, "bytes", "64", 1, 1 << 30, "What each contributes."),
};

static const bl_flags_t flags = {.program = "ballast-bench collective",
                                 .usage = "[options]",
                                 .about = "Time of a gather of processes on this machine.",
                                 .table = {rows, sizeof rows / sizeof rows[0], "command line"}};

// Memory that the processes share: a progress page and a window of each.
typedef struct {
  uint8_t *memory;
  uint64_t member_bytes, bytes;
  uint32_t ranks;
} world_t;

static uint8_t *page_of(const world_t *world, uint32_t rank) {
  return world->memory + rank * world->member_bytes;
}

static uint8_t *window_of(const world_t *world, uint32_t rank) {
  return page_of(world, rank) + sizeof(bl_group_page_t);
}

static bool gather(const world_t *world, bl_group_progress_t *registry, uint32_t n) {
  const bl_group_progress_wait_t wait = {.deadline_ns = UINT64_MAX};
  uint8_t *window = window_of(world, registry->rank);
  bool ok = true;
  for (uint32_t i = 0; i < world->ranks && ok; i++) {
    ok = i == registry->rank || bl_group_progress_wait_taken(registry, i, n - 1, &wait, NULL) == BL_OK;
  }
  window[registry->rank * world->bytes] = (uint8_t)n;
  bl_group_progress_publish(registry, n);
  for (uint32_t i = 0; i < world->ranks && ok; i++) {
    const uint64_t at = i * world->bytes;
    if (i != registry->rank) {
      ok = bl_group_progress_wait_ready(registry, i, n, &wait, NULL) == BL_OK;
      memcpy(window + at, window_of(world, i) + at, world->bytes);
      ok = ok && window[at] == (uint8_t)n;
    }
  }
  bl_group_progress_take(registry, n);
  return ok;
}

// Makes all calls of one process; `times` may be NULL.
static bool call_all(const world_t *world, uint32_t rank, uint32_t calls, uint64_t *times) {
  bl_group_progress_t registry;
  bl_group_progress_init(&registry, (bl_group_page_t *)(void *)page_of(world, rank), rank, world->ranks);
  for (uint32_t i = 0; i < world->ranks; i++) {
    if (i != rank) {
      bl_group_progress_set_peer(&registry, i, (const bl_group_page_t *)(const void *)page_of(world, i));
    }
  }
  bl_group_progress_begin(&registry, 1);
  (void)bl_measure_pin((int)(rank % (uint32_t)bl_max_u64((uint64_t)sysconf(_SC_NPROCESSORS_ONLN), 1)));
  for (uint32_t n = 1; n <= calls; n++) {
    const uint64_t start_ns = bl_clock_now_ns();
    if (!gather(world, &registry, n)) {
      return false;
    }
    if (times != NULL) {
      times[n - 1] = bl_clock_now_ns() - start_ns;
    }
  }
  return true;
}

static bool start_others(const world_t *world, uint32_t calls) {
  for (uint32_t rank = 1; rank < world->ranks; rank++) {
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      _exit(call_all(world, rank, calls, NULL) ? 0 : 1);
    }
    if (pid < 0) {
      return false; // children that run already end with this process
    }
  }
  return true;
}

static bool others_ended_well(const world_t *world) {
  bool ok = true;
  for (uint32_t rank = 1; rank < world->ranks; rank++) {
    int status = -1;
    ok = wait(&status) > 0 && status == 0 && ok;
  }
  return ok;
}

static bl_status_t run(const void *values, bl_error_t *err) {
  const settings_t *settings = values;
  const uint32_t calls = (uint32_t)settings->calls;
  world_t world = {.bytes = (uint64_t)settings->bytes, .ranks = (uint32_t)settings->ranks};
  world.member_bytes = bl_align_up(sizeof(bl_group_page_t) + world.ranks * world.bytes, BL_CACHE_LINE_BYTES);
  const uint64_t bytes = world.ranks * world.member_bytes;
  uint64_t *times = calloc(calls, sizeof *times);
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  bl_status_t status = BL_OK;
  if (times == NULL || memory == MAP_FAILED) {
    status = bl_error_set(err, BL_EXHAUSTED, "no memory for %" PRIu64 " bytes of windows", bytes);
    goto cleanup;
  }
  world.memory = memory;
  fflush(stdout);
  if (!start_others(&world, calls) || !call_all(&world, 0, calls, times) || !others_ended_well(&world)) {
    status = bl_error_set(err, BL_INTERNAL, "a process could not be started, failed, or read something else");
    goto cleanup;
  }
  bl_sort_u64(times, calls);
  const uint64_t half = calls / 2, most = (uint64_t)calls * 99 / 100;
  printf("collective ranks=%u bytes=%" PRIu64 " calls=%u p50_us=%.2f p99_us=%.2f\n", world.ranks, world.bytes, calls,
         (double)times[half] / 1e3, (double)times[most] / 1e3);
cleanup:
  if (memory != MAP_FAILED) {
    munmap(memory, bytes);
  }
  free(times);
  return status;
}

int bl_bench_collective(int argc, char **argv) {
  settings_t settings;
  return bl_bench_program(&flags, &settings, run, argc, argv);
}
