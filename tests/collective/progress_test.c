// SPDX-License-Identifier: Apache-2.0
// Verifies the progress of a group: between processes that map each other's sealed arenas read-only every member reads
// what the others published for just this collective; waits sleep on the read-only map and end by a publish, a take, a
// later attempt, a cancel, a deadline or the loss of the peer; a slow wait says so once; threads that share windows do
// not race.
#include "collective/progress.h"

#include "device/device.h"
#include "sys/clock.h"
#include "sys/futex.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define MEMBERS      4
#define ARENA_BYTES  (64u << 10)
#define WINDOWS      2
#define WINDOW_WORDS 1024
#define COLLECTIVES  3000u
#define FAR_NS       (bl_clock_now_ns() + 120ull * BL_NS_PER_S) // beyond what a step of a test takes anywhere

typedef struct {
  bl_group_page_t page;
  uint64_t windows[WINDOWS][WINDOW_WORDS];
} exchange_t; // the head of an arena

typedef struct {
  bl_arena_t arenas[MEMBERS];
  const exchange_t *peers[MEMBERS]; // the same, read-only
  bl_group_progress_t progress;
} world_t;

static exchange_t *own(world_t *world, uint32_t rank) {
  return (exchange_t *)(void *)world->arenas[rank].base;
}

static void world_open(world_t *world) {
  bl_error_t err;
  for (int i = 0; i < MEMBERS; i++) {
    assert_int_equal(bl_arena_create(bl_device_host(), NULL, BL_MEMORY_EDGES, BL_ARENA_SHAREABLE, ARENA_BYTES,
                                     &world->arenas[i], &err),
                     BL_OK);
    void *map = mmap(NULL, ARENA_BYTES, PROT_READ, MAP_SHARED, world->arenas[i].fd, 0);
    assert_ptr_not_equal(map, MAP_FAILED);
    world->peers[i] = map;
  }
}

static void world_close(world_t *world) {
  for (int i = 0; i < MEMBERS; i++) {
    munmap((void *)(uintptr_t)world->peers[i], ARENA_BYTES);
    bl_arena_destroy(&world->arenas[i]);
  }
}

// Joins: its own page writable, those of others as they come over a link.
static void join(world_t *world, uint32_t rank, uint32_t members, uint64_t attempt) {
  bl_group_progress_init(&world->progress, &own(world, rank)->page, rank, members);
  for (uint32_t i = 0; i < members; i++) {
    if (i != rank) {
      bl_group_progress_set_peer(&world->progress, i, &world->peers[i]->page);
    }
  }
  bl_group_progress_begin(&world->progress, attempt);
}

static bl_group_progress_wait_t patiently(void) {
  return (bl_group_progress_wait_t){.deadline_ns = FAR_NS};
}

static uint64_t word_of(uint32_t rank, uint32_t n, uint32_t i) {
  return (uint64_t)rank << 56 | (uint64_t)n << 24 | i;
}

// One gather: contributes words of (rank, n), reads those of all others. False: a wait failed or a word was another.
static bool gather(bl_group_progress_t *progress, uint64_t (*windows)[WINDOW_WORDS],
                   const uint64_t (*const *peers)[WINDOW_WORDS], uint32_t n, bl_error_t *err) {
  const bl_group_progress_wait_t wait = patiently();
  bool ok = true;
  for (uint32_t i = 0; i < progress->members && n > WINDOWS; i++) {
    ok = ok && bl_group_progress_wait_taken(progress, i, n - WINDOWS, &wait, err) == BL_OK;
  }
  for (uint32_t i = 0; i < WINDOW_WORDS && ok; i++) {
    windows[n % WINDOWS][i] = word_of(progress->rank, n, i);
  }
  bl_group_progress_publish(progress, n);
  for (uint32_t peer = 0; peer < progress->members && ok; peer++) {
    ok = bl_group_progress_wait_ready(progress, peer, n, &wait, err) == BL_OK;
    for (uint32_t i = 0; i < WINDOW_WORDS && ok; i++) {
      ok = peers[peer][n % WINDOWS][i] == word_of(peer, n, i);
    }
  }
  bl_group_progress_take(progress, n);
  return ok;
}

static bool run(world_t *world, uint32_t rank, uint32_t members, bl_error_t *err) {
  const uint64_t(*peers[MEMBERS])[WINDOW_WORDS];
  for (uint32_t i = 0; i < members; i++) {
    peers[i] = world->peers[i]->windows;
  }
  join(world, rank, members, 1);
  for (uint32_t n = 1; n <= COLLECTIVES; n++) {
    if (!gather(&world->progress, own(world, rank)->windows, peers, n, err)) {
      return false;
    }
  }
  return true;
}

// A process that does `act` and ends with its result.
static pid_t start(bool (*act)(world_t *world, uint32_t rank, uint32_t members, bl_error_t *err), world_t *world,
                   uint32_t rank, uint32_t members) {
  const pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) {
    bl_error_t err = {0};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const bool ok = act(world, rank, members, &err);
    if (!ok) {
      fprintf(stderr, "member %u: %s\n", rank, err.status == BL_OK ? "another word" : err.text);
    }
    _exit(ok ? 0 : 1);
  }
  return pid;
}

static int end_of(pid_t pid) {
  int status = -1;
  assert_int_equal(waitpid(pid, &status, 0), pid);
  return status;
}

static void processes_gather(void **state) {
  (void)state;
  for (uint32_t members = 2; members <= MEMBERS; members += 2) {
    world_t world;
    bl_error_t err = {0};
    pid_t pids[MEMBERS];
    world_open(&world);
    for (uint32_t i = 1; i < members; i++) {
      pids[i] = start(run, &world, i, members);
    }
    const bool ok = run(&world, 0, members, &err);
    for (uint32_t i = 1; i < members; i++) {
      assert_int_equal(end_of(pids[i]), 0);
    }
    assert_true(ok);
    world_close(&world);
  }
}

// Without it every wait above would spin, or take its full time-out.
static void readers_sleep_on_sealed_maps(void **state) {
  (void)state;
  world_t world;
  world_open(&world);
  exchange_t *exchange = own(&world, 0);
  assert_int_equal(mprotect((void *)(uintptr_t)world.peers[0], ARENA_BYTES, PROT_READ | PROT_WRITE), -1);
  const uint64_t start_ns = bl_clock_now_ns();
  assert_false(bl_futex_wait(&world.peers[0]->page.ready, 0, 30 * BL_NS_PER_MS)); // slept, and not refused
  assert_true(bl_clock_now_ns() - start_ns >= 30 * BL_NS_PER_MS);
  const pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) { // wakes until the other one says that it was woken
    while (atomic_load(&world.peers[1]->page.ready) == 0) {
      bl_futex_wake(&exchange->page.ready);
    }
    _exit(0);
  }
  const bool woken = bl_futex_wait(&world.peers[0]->page.ready, 0, 120 * BL_NS_PER_S);
  atomic_store(&own(&world, 1)->page.ready, 1);
  assert_int_equal(end_of(pid), 0);
  assert_true(woken);
  world_close(&world);
}

// ---- how waits end --------------------------------------------------------------------------------------------------

static void count_slow(void *user) {
  ++*(atomic_int *)user;
}

static void flags_are_of_attempts(void **state) {
  (void)state;
  world_t world, other;
  bl_error_t err;
  const bl_group_progress_wait_t look = {0}; // does not wait
  world_open(&world);
  other = world;
  join(&world, 0, 2, 5);
  join(&other, 1, 2, 4);
  const bl_group_progress_t *progress = &world.progress;
  bl_group_progress_publish(&other.progress, 3);
  bl_group_progress_take(&other.progress, 3);
  assert_int_equal(bl_group_progress_wait_ready(progress, 1, 1, &look, &err), BL_DEADLINE); // of an earlier attempt
  assert_string_equal(err.text, "waiting until member 1 is ready for collective 1 of attempt 5: it was not in time");
  assert_int_equal(bl_group_progress_wait_taken(progress, 1, 1, &look, &err), BL_DEADLINE);
  assert_string_equal(err.text, "waiting until member 1 has taken collective 1 of attempt 5: it was not in time");
  bl_group_progress_begin(&other.progress, 5);
  assert_int_equal(bl_group_progress_wait_ready(progress, 1, 1, &look, &err), BL_DEADLINE);
  bl_group_progress_publish(&other.progress, 1);
  assert_int_equal(bl_group_progress_wait_ready(progress, 1, 1, &look, &err), BL_OK);
  assert_int_equal(bl_group_progress_wait_ready(progress, 1, 2, &look, &err), BL_DEADLINE);
  assert_int_equal(bl_group_progress_wait_taken(progress, 1, 1, &look, &err), BL_DEADLINE);
  bl_group_progress_take(&other.progress, 1);
  assert_int_equal(bl_group_progress_wait_taken(progress, 1, 1, &look, &err), BL_OK);
  assert_int_equal(bl_group_progress_wait_taken(progress, 1, 0, &look, &err), BL_OK);
  bl_group_progress_begin(&other.progress, 6); // it will not be ready, and reads nothing of attempt 5
  assert_int_equal(bl_group_progress_wait_ready(progress, 1, 1, &look, &err), BL_UNAVAILABLE);
  assert_non_null(strstr(err.text, "it has begun a later attempt"));
  assert_int_equal(bl_group_progress_wait_taken(progress, 1, 9, &look, &err), BL_OK);
  const atomic_bool cancelled = true;
  const bl_group_progress_wait_t none = {.cancelled = &cancelled};
  assert_int_equal(bl_group_progress_wait_taken(progress, 1, 9, &none, &err), BL_CANCELLED);
  bl_group_progress_init(&other.progress, &own(&world, 1)->page, 1, 2); // as a new process with the same arena
  assert_int_equal(bl_group_progress_wait_taken(progress, 1, 1, &look, &err), BL_DEADLINE);
  world_close(&world);
}

// A step of many micro-batches, slices and layers has more than 2^24 collectives.
static void numbers_do_not_run_into_attempts(void **state) {
  (void)state;
  world_t world, other;
  bl_error_t err;
  const bl_group_progress_wait_t look = {0};
  world_open(&world);
  other = world;
  join(&world, 0, 2, 5);
  join(&other, 1, 2, 5);
  const uint32_t numbers[] = {1u << 24, 1u << 25, UINT32_MAX};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    bl_group_progress_publish(&other.progress, numbers[i] - 1);
    bl_group_progress_take(&other.progress, numbers[i] - 1);
    assert_int_equal(bl_group_progress_wait_ready(&world.progress, 1, numbers[i], &look, &err), BL_DEADLINE);
    assert_int_equal(bl_group_progress_wait_taken(&world.progress, 1, numbers[i], &look, &err), BL_DEADLINE);
    bl_group_progress_publish(&other.progress, numbers[i]);
    bl_group_progress_take(&other.progress, numbers[i]);
    assert_int_equal(bl_group_progress_wait_ready(&world.progress, 1, numbers[i], &look, &err), BL_OK);
    assert_int_equal(bl_group_progress_wait_taken(&world.progress, 1, numbers[i], &look, &err), BL_OK);
  }
  world_close(&world);
}

static bool begin_later(world_t *world, uint32_t rank, uint32_t members, bl_error_t *err) {
  (void)err;
  join(world, rank, members, 1);
  const struct timespec past_the_spin = {.tv_nsec = 5000000};
  nanosleep(&past_the_spin, NULL);
  bl_group_progress_begin(&world->progress, 2);
  return true;
}

static void a_later_attempt_ends_a_wait(void **state) {
  (void)state;
  world_t world;
  bl_error_t err;
  world_open(&world);
  join(&world, 0, 2, 1);
  const pid_t pid = start(begin_later, &world, 1, 2);
  const bl_group_progress_wait_t wait = patiently();
  assert_int_equal(bl_group_progress_wait_ready(&world.progress, 1, 1, &wait, &err), BL_UNAVAILABLE);
  assert_int_equal(bl_group_progress_wait_taken(&world.progress, 1, 1, &wait, &err), BL_OK);
  assert_int_equal(end_of(pid), 0);
  world_close(&world);
}

static void deadlines_hold(void **state) {
  (void)state;
  world_t world;
  bl_error_t err;
  atomic_int slow = 0;
  world_open(&world);
  join(&world, 0, 2, 1);
  const uint64_t start_ns = bl_clock_now_ns();
  bl_group_progress_wait_t wait = {.deadline_ns = start_ns + 50 * BL_NS_PER_MS, .slow = count_slow, .user = &slow};
  assert_int_equal(bl_group_progress_wait_ready(&world.progress, 1, 1, &wait, &err), BL_DEADLINE);
  assert_true(bl_clock_now_ns() >= wait.deadline_ns);
  assert_int_equal(slow, 1); // once
  wait.deadline_ns = bl_clock_now_ns() + BL_GROUP_PROGRESS_SPIN_NS;
  assert_int_equal(bl_group_progress_wait_taken(&world.progress, 1, 1, &wait, &err), BL_DEADLINE);
  world_close(&world);
}

typedef struct {
  world_t *world;
  atomic_bool cancelled;
  atomic_int slow;
  bl_status_t status;
  bl_error_t err;
} waiting_t;

static void note_slow(void *user) {
  ((waiting_t *)user)->slow++;
}

static void *wait_in_vain(void *argument) {
  waiting_t *waiting = argument;
  const bl_group_progress_wait_t wait = {
      .deadline_ns = UINT64_MAX, .cancelled = &waiting->cancelled, .slow = note_slow, .user = waiting};
  waiting->status = bl_group_progress_wait_ready(&waiting->world->progress, 1, 1, &wait, &waiting->err);
  return NULL;
}

static void another_thread_cancels(void **state) {
  (void)state;
  world_t world;
  pthread_t thread;
  world_open(&world);
  join(&world, 0, 2, 1);
  waiting_t waiting = {.world = &world};
  assert_int_equal(pthread_create(&thread, NULL, wait_in_vain, &waiting), 0);
  while (waiting.slow == 0) {
  }
  atomic_store(&waiting.cancelled, true);
  pthread_join(thread, NULL);
  assert_int_equal(waiting.status, BL_CANCELLED);
  assert_string_equal(waiting.err.text,
                      "waiting until member 1 is ready for collective 1 of attempt 1: the attempt was aborted");
  assert_int_equal(waiting.slow, 1);
  world_close(&world);
}

static void cancel(void *user) {
  atomic_store((atomic_bool *)user, true);
}

// Returns the shortest of many waits that `slow` ends.
static uint64_t shortest_wait(world_t *world, bool at_once) {
  uint64_t shortest_ns = UINT64_MAX;
  for (int i = 0; i < 200; i++) {
    atomic_bool cancelled = false;
    bl_error_t err;
    const bl_group_progress_wait_t wait = {
        .deadline_ns = FAR_NS, .cancelled = &cancelled, .slow = cancel, .user = &cancelled, .at_once = at_once};
    const uint64_t start_ns = bl_clock_now_ns();
    assert_int_equal(bl_group_progress_wait_ready(&world->progress, 1, 1, &wait, &err), BL_CANCELLED);
    const uint64_t wait_ns = bl_clock_now_ns() - start_ns;
    shortest_ns = wait_ns < shortest_ns ? wait_ns : shortest_ns;
  }
  return shortest_ns;
}

static void members_without_a_core_are_not_spun_for(void **state) {
  (void)state;
  world_t world;
  world_open(&world);
  join(&world, 0, 2, 1);
  assert_true(shortest_wait(&world, false) >= BL_GROUP_PROGRESS_SLOW_NS);
  assert_true(shortest_wait(&world, true) < BL_GROUP_PROGRESS_SPIN_NS);
  world_close(&world);
}

typedef struct {
  pid_t pid;
  int slow, asked;
  bool dead;
} peer_t;

static void kill_peer(void *user) {
  peer_t *peer = user;
  peer->slow++;
  kill(peer->pid, SIGKILL);
}

static bool is_dead(void *user, uint32_t member) {
  peer_t *peer = user;
  assert_int_equal(member, 1);
  peer->asked++;
  peer->dead = peer->dead || waitpid(peer->pid, NULL, WNOHANG) == peer->pid;
  return peer->dead;
}

static bool publish_one(world_t *world, uint32_t rank, uint32_t members, bl_error_t *err) {
  (void)err;
  join(world, rank, members, 1);
  bl_group_progress_publish(&world->progress, 1);
  pause();
  return false; // it is killed
}

static void lost_peers_end_waits(void **state) {
  (void)state;
  world_t world;
  bl_error_t err;
  world_open(&world);
  join(&world, 0, 2, 1);
  peer_t peer = {.pid = start(publish_one, &world, 1, 2)};
  const bl_group_progress_wait_t wait = {.deadline_ns = FAR_NS, .slow = kill_peer, .lost = is_dead, .user = &peer};
  const bl_group_progress_wait_t first = patiently();
  assert_int_equal(bl_group_progress_wait_ready(&world.progress, 1, 1, &first, &err), BL_OK);
  assert_int_equal(bl_group_progress_wait_ready(&world.progress, 1, 2, &wait, &err), BL_UNAVAILABLE);
  assert_non_null(strstr(err.text, "it is lost"));
  assert_int_equal(peer.slow, 1);
  assert_true(peer.asked >= 1);
  assert_int_equal(bl_group_progress_wait_ready(&world.progress, 1, 1, &wait, &err),
                   BL_OK); // what it published before counts
  world_close(&world);
}

// ---- threads, whose windows are the very same memory: for the thread sanitizer --------------------------------------

#define THREADS 3

typedef struct {
  bl_group_page_t pages[THREADS];
  uint64_t windows[THREADS][WINDOWS][WINDOW_WORDS];
} shared_t;

typedef struct {
  shared_t *shared;
  uint32_t rank;
  bool ok;
} member_t;

static void *be_member(void *argument) {
  member_t *member = argument;
  bl_group_progress_t progress;
  bl_error_t err;
  const uint64_t(*peers[THREADS])[WINDOW_WORDS];
  bl_group_progress_init(&progress, &member->shared->pages[member->rank], member->rank, THREADS);
  for (uint32_t i = 0; i < THREADS; i++) {
    peers[i] = (const uint64_t(*)[WINDOW_WORDS])member->shared->windows[i];
    if (i != member->rank) {
      bl_group_progress_set_peer(&progress, i, &member->shared->pages[i]);
    }
  }
  const bl_group_progress_wait_t wait = patiently();
  member->ok = true;
  for (uint64_t attempt = 1; attempt <= 3 && member->ok; attempt++) {
    bl_group_progress_begin(&progress, attempt);
    for (uint32_t n = 1; n <= 200 && member->ok; n++) {
      member->ok = gather(&progress, member->shared->windows[member->rank], peers, n, &err);
    }
    for (uint32_t i = 0; i < THREADS && member->ok; i++) {
      member->ok = bl_group_progress_wait_taken(&progress, i, 200, &wait, &err) == BL_OK;
    }
  }
  return NULL;
}

static void threads_do_not_race(void **state) {
  (void)state;
  shared_t *shared = aligned_alloc(64, sizeof *shared);
  assert_non_null(shared);
  memset(shared, 0, sizeof *shared);
  member_t members[THREADS];
  pthread_t threads[THREADS];
  for (uint32_t i = 0; i < THREADS; i++) {
    members[i] = (member_t){.shared = shared, .rank = i};
    assert_int_equal(pthread_create(&threads[i], NULL, be_member, &members[i]), 0);
  }
  for (uint32_t i = 0; i < THREADS; i++) {
    pthread_join(threads[i], NULL);
    assert_true(members[i].ok);
  }
  free(shared);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(readers_sleep_on_sealed_maps), cmocka_unit_test(processes_gather),
      cmocka_unit_test(flags_are_of_attempts),        cmocka_unit_test(numbers_do_not_run_into_attempts),
      cmocka_unit_test(a_later_attempt_ends_a_wait),  cmocka_unit_test(deadlines_hold),
      cmocka_unit_test(another_thread_cancels),       cmocka_unit_test(members_without_a_core_are_not_spun_for),
      cmocka_unit_test(lost_peers_end_waits),         cmocka_unit_test(threads_do_not_race),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
