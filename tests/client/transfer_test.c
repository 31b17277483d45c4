// SPDX-License-Identifier: Apache-2.0
// Verifies what the client does beside moving blocks there and back, on both paths: waits with deadlines, cancelling
// and abandoning while the store answers nothing, calls that end by their deadline, sources that come and go, a session
// begun anew; a stopped holder, which stops nobody else; ten thousand uses in flat memory (BALLAST_SOAK=1: a million);
// on tcp, a connection that is cut again and again.
#include "client/fixture.h"
#include "seed.h"

#include <dirent.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>

#define BYTES (16 * GRANULE)

// ---- tickets --------------------------------------------------------------------------------------------------------

static void wait_for_state(bl_client_t *client, uint64_t slot, bl_client_slot_state_t state) {
  uint64_t start_ns = bl_clock_now_ns();
  while (bl_client_slot_state(client, slot) != state) {
    if (bl_clock_now_ns() - start_ns > TIMEOUT_NS) {
      fail_msg("slot %" PRIu64 " is in state %d, not %d", slot, (int)bl_client_slot_state(client, slot), (int)state);
    }
    usleep(2000);
  }
}

static void test_wait_and_poll(void **state) {
  const fixture_t *fixture = *state;
  bl_client_t *client = must_open(fixture, 0);
  uint64_t slot;
  bl_error_t err = {0};
  bl_client_ticket_t ticket;
  uint8_t *buffer = fixture->buffers.base;
  reserve(client, BYTES, 1, &slot);
  fill(buffer, BYTES, 1);
  kill(fixture->store.pid, SIGSTOP);
  must(bl_client_evict_start(client, slot, buffer, BYTES, NULL, &ticket, &err), &err);
  assert_int_equal(bl_client_wait(client, ticket, bl_clock_now_ns() + BL_NS_PER_MS, &err), BL_DEADLINE);
  assert_false(bl_client_poll(client, ticket));
  assert_int_equal(bl_client_slot_state(client, slot), BL_CLIENT_SLOT_EVICTING);
  kill(fixture->store.pid, SIGCONT);
  WAIT_FOR(bl_client_poll(client, ticket));
  must(bl_client_wait(client, ticket, 0, &err), &err);
  assert_int_equal(bl_client_wait(client, ticket, 0, &err), BL_INVALID); // it has ended
  assert_int_equal(bl_client_load(client, slot, buffer, BYTES - 1, &err), BL_INVALID);
  must(bl_client_load(client, slot, buffer, BYTES, &err), &err);
  bl_client_close(client);
}

static void test_cancelled_evict(void **state) {
  const fixture_t *fixture = *state;
  bl_client_t *client = must_open(fixture, 0);
  uint64_t slot;
  bl_error_t err = {0};
  bl_client_ticket_t ticket;
  uint8_t *buffer = fixture->buffers.base, *there = buffer + BYTES, *expected = there + BYTES;
  reserve(client, BYTES, 1, &slot);
  for (int i = 0; i < 10; i++) {
    fill(buffer, BYTES, 100);
    kill(fixture->store.pid, SIGSTOP);
    must(bl_client_evict_start(client, slot, buffer, BYTES, NULL, &ticket, &err), &err);
    usleep(1000u * (unsigned)i);
    if (i % 2 == 0) {
      bl_client_cancel(client, ticket); // the store answers nothing, and need not
      assert_int_equal(bl_client_wait(client, ticket, UINT64_MAX, &err), BL_CANCELLED);
    } else {
      bl_client_abandon(client, ticket);
    }
    fill(buffer, BYTES, (uint64_t)i); // ours again
    kill(fixture->store.pid, SIGCONT);
    wait_for_state(client, slot, BL_CLIENT_SLOT_EMPTY);
    must(bl_client_evict(client, slot, buffer, BYTES, NULL, &err), &err);
    must(bl_client_load(client, slot, there, BYTES, &err), &err);
    fill(expected, BYTES, (uint64_t)i);
    assert_memory_equal(there, expected, BYTES);
  }
  bl_client_close(client);
}

// Given up just as the store finds that the block is not what its checksum says: whichever of the two it hears of
// first, the slot is empty again.
static void test_given_up_while_it_fails(void **state) {
  const fixture_t *fixture = *state;
  bl_client_t *client = must_open(fixture, 0);
  uint64_t slot;
  bl_error_t err = {0};
  bl_client_ticket_t ticket;
  uint8_t *buffer = fixture->buffers.base, *there = buffer + BYTES;
  reserve(client, BYTES, 1, &slot);
  fill(buffer, BYTES, 8);
  for (uint64_t i = 0; i < 1500; i++) {
    must(bl_client_evict_start_known(client, slot, buffer, BYTES, 1, NULL, &ticket, &err), &err);
    const uint64_t until_ns = bl_clock_now_ns() + bl_random_below(9, i, 1500000);
    while (bl_clock_now_ns() < until_ns) {
    }
    bl_client_abandon(client, ticket);
    wait_for_state(client, slot, BL_CLIENT_SLOT_EMPTY);
  }
  must(bl_client_evict(client, slot, buffer, BYTES, NULL, &err), &err);
  must(bl_client_load(client, slot, there, BYTES, &err), &err);
  assert_memory_equal(there, buffer, BYTES);
  bl_client_close(client);
}

static void test_cancelled_load(void **state) {
  const fixture_t *fixture = *state;
  bl_client_t *client = must_open(fixture, 0);
  uint64_t slot;
  bl_error_t err = {0};
  bl_client_ticket_t ticket;
  uint8_t *buffer = fixture->buffers.base, *there = buffer + BYTES;
  reserve(client, BYTES, 1, &slot);
  fill(buffer, BYTES, 5);
  for (int i = 0; i < 10; i++) {
    must(bl_client_evict(client, slot, buffer, BYTES, NULL, &err), &err);
    kill(fixture->store.pid, SIGSTOP);
    must(bl_client_load_start(client, slot, there, BYTES, &ticket, &err), &err);
    usleep(1000u * (unsigned)i);
    bl_client_abandon(client, ticket);
    memset(there, 9, BYTES);
    kill(fixture->store.pid, SIGCONT);
    wait_for_state(client, slot, BL_CLIENT_SLOT_FULL);
    for (uint64_t j = 0; j < BYTES; j++) {
      assert_int_equal(there[j], 9); // nothing was written any more
    }
    must(bl_client_load(client, slot, there, BYTES, &err), &err);
    assert_memory_equal(there, buffer, BYTES);
  }
  bl_client_close(client);
}

// ---- deadlines ------------------------------------------------------------------------------------------------------

#define DEADLINE_MS 300

// A call that began then has ended by its deadline, which a busy machine sees fifty times too late at most. Returns
// now.
static uint64_t must_have_been_short(uint64_t since_ns) {
  const uint64_t now_ns = bl_clock_now_ns();
  assert_in_range((now_ns - since_ns) / BL_NS_PER_MS, 0, 50 * DEADLINE_MS);
  return now_ns;
}

static void test_nothing_outlives_its_deadline(void **state) {
  const fixture_t *fixture = *state;
  bl_client_t *client = NULL;
  uint64_t slots[2];
  bl_error_t err = {0};
  uint8_t *buffer = fixture->buffers.base;
  bl_client_options_t options = options_of(fixture, 0);
  options.deadline_ms = DEADLINE_MS;
  options.open_ms = 30000;
  must(bl_client_open(&options, &client, &err), &err);
  bl_client_demand_t demand = {.bytes = BYTES, .count = 2};
  while (bl_client_reserve(client, 1, &demand, 1, &err) != BL_OK) { // a busy machine may need more than the deadline
    assert_int_equal(err.status, BL_UNAVAILABLE);
  }
  assert_int_equal(bl_client_slots(client, slots, 2), 2);
  fill(buffer, BYTES, 3);
  while (bl_client_evict(client, slots[0], buffer, BYTES, NULL, &err) != BL_OK) {
    assert_int_equal(err.status, BL_UNAVAILABLE);
    wait_for_state(client, slots[0], BL_CLIENT_SLOT_EMPTY);
  }
  kill(fixture->store.pid, SIGSTOP);
  uint64_t since_ns = bl_clock_now_ns();
  assert_int_equal(bl_client_evict(client, slots[1], buffer, BYTES, NULL, &err), BL_UNAVAILABLE);
  since_ns = must_have_been_short(since_ns);
  assert_int_equal(bl_client_slot_state(client, slots[1]), BL_CLIENT_SLOT_UNKNOWN);
  assert_int_equal(bl_client_load(client, slots[0], buffer, BYTES, &err), BL_UNAVAILABLE);
  since_ns = must_have_been_short(since_ns);
  assert_int_equal(bl_client_reserve(client, 2, &demand, 1, &err), BL_UNAVAILABLE);
  since_ns = must_have_been_short(since_ns);
  uint32_t number;
  bl_client_region_t source = {.base = fixture->buffers.base, .bytes = BYTES, .fd = fixture->buffers.fd};
  assert_int_equal(bl_client_register(client, &source, &number, &err),
                   data_path == BL_CLIENT_PATH_TCP ? BL_OK : BL_UNAVAILABLE);
  must_have_been_short(since_ns);
  kill(fixture->store.pid, SIGCONT);
  wait_for_state(client, slots[1], BL_CLIENT_SLOT_EMPTY);
  wait_for_state(client, slots[0], BL_CLIENT_SLOT_FULL);
  bl_client_close(client);
}

// ---- sources --------------------------------------------------------------------------------------------------------

// Read-only maps of holders' memory in the store.
static unsigned count_maps(pid_t pid) {
  char path[64], line[512];
  unsigned count = 0;
  snprintf(path, sizeof path, "/proc/%ld/maps", (long)pid);
  FILE *maps = fopen(path, "re");
  assert_non_null(maps);
  while (fgets(line, sizeof line, maps) != NULL) {
    count += strstr(line, "ballast-arena") != NULL && strstr(line, " r--s ") != NULL ? 1 : 0;
  }
  fclose(maps);
  return count;
}

static void test_sources_come_and_go(void **state) {
  const fixture_t *fixture = *state;
  bl_client_t *client = must_open(fixture, 0);
  bool tcp = data_path == BL_CLIENT_PATH_TCP;
  uint64_t slot;
  bl_error_t err = {0};
  bl_arena_t more[3];
  uint32_t numbers[3];
  reserve(client, GRANULE, 1, &slot);
  unsigned maps = count_maps(fixture->store.pid);
  assert_int_equal(maps, tcp ? 0 : 1);
  for (int round = 0; round < 3; round++) {
    for (unsigned i = 0; i < 3; i++) {
      must(bl_arena_create(bl_device_host(), NULL, BL_MEMORY_SLOTS, BL_ARENA_SHAREABLE, GRANULE, &more[i], &err), &err);
      bl_client_region_t source = {.base = more[i].base, .bytes = GRANULE, .fd = more[i].fd};
      must(bl_client_register(client, &source, &numbers[i], &err), &err);
      fill(more[i].base, GRANULE, i);
    }
    assert_int_equal(count_maps(fixture->store.pid), tcp ? 0 : 4);
    for (unsigned i = 3; i-- > 0;) {
      must(bl_client_evict(client, slot, more[i].base, GRANULE, NULL, &err), &err);
      must(bl_client_load(client, slot, fixture->buffers.base, GRANULE, &err), &err);
      assert_memory_equal(fixture->buffers.base, more[i].base, GRANULE);
      must(bl_client_unregister(client, numbers[i], &err), &err);
      assert_int_equal(bl_client_unregister(client, numbers[i], &err), BL_NOT_FOUND);
      assert_int_equal(count_maps(fixture->store.pid), tcp ? 0 : maps + i);
      if (!tcp) {
        assert_int_equal(bl_client_evict(client, slot, more[i].base, GRANULE, NULL, &err), BL_INVALID);
      }
      bl_arena_destroy(&more[i]);
    }
  }
  uint32_t number;
  bl_client_region_t open_memory = {.base = fixture->buffers.base, .bytes = GRANULE, .fd = STDIN_FILENO};
  if (!tcp) { // what is not sealed is not read
    assert_int_equal(bl_client_register(client, &open_memory, &number, &err), BL_DENIED);
  }
  bl_client_close(client);
}

// ---- sessions -------------------------------------------------------------------------------------------------------

static void test_a_session_anew(void **state) {
  fixture_t *fixture = *state;
  bl_client_t *client = NULL;
  uint64_t slot;
  bl_error_t err = {0};
  uint8_t *buffer = fixture->buffers.base;
  bl_client_options_t options = options_of(fixture, 0);
  must(bl_client_open(&options, &client, &err), &err);
  for (int i = 0; i < 3; i++) {
    reserve(client, BYTES, 1, &slot);
    fill(buffer, BYTES, (uint64_t)i);
    must(bl_client_evict(client, slot, buffer, BYTES, NULL, &err), &err);
    must(bl_client_load(client, slot, buffer + BYTES, BYTES, &err), &err);
    assert_memory_equal(buffer, buffer + BYTES, BYTES);
    store_kill(&fixture->store, SIGKILL);
    while (bl_client_state(client, &err) == BL_OK) {
      usleep(1000);
    }
    store_start(&fixture->store, "64 MiB", store_ttl, store_grace);
    must(bl_client_reopen(client, &err), &err);
    assert_int_equal(bl_client_slots(client, &slot, 1), 0); // what was there is gone
  }
  must(bl_client_reopen(client, &err), &err); // without a cause
  reserve(client, BYTES, 1, &slot);
  must(bl_client_evict(client, slot, buffer, BYTES, NULL, &err), &err);
  bl_client_close(client);
}

// ---- a connection that is cut ---------------------------------------------------------------------------------------

// Breaks every TCP connection of this process. The store is reached over a unix socket, so it is the data path's alone.
static void cut_connections(void) {
  DIR *folder = opendir("/proc/self/fd");
  assert_non_null(folder);
  for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
    int fd = atoi(entry->d_name);
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    if (fd > 2 && getpeername(fd, (struct sockaddr *)&address, &length) == 0 && address.ss_family == AF_INET) {
      shutdown(fd, SHUT_RDWR);
    }
  }
  closedir(folder);
}

typedef struct cutter {
  atomic_bool stop;
  uint64_t key;
} cutter_t;

static void *cut_now_and_then(void *argument) {
  cutter_t *cutter = argument;
  for (uint64_t i = 0; !atomic_load(&cutter->stop); i++) {
    usleep((useconds_t)(2000 + bl_random_below(cutter->key, i, 30000)));
    cut_connections();
  }
  return NULL;
}

static void test_a_connection_is_cut(void **state) {
  const fixture_t *fixture = *state;
  if (data_path != BL_CLIENT_PATH_TCP) {
    skip(); // on shm its end is the end of the store
  }
  bl_client_options_t options = options_of(fixture, 0);
  options.deadline_ms = 120000;
  bl_client_t *client = NULL;
  bl_error_t err = {0};
  must(bl_client_open(&options, &client, &err), &err);
  uint64_t slots[4];
  reserve(client, BYTES, 4, slots);
  const char *seed = getenv("BALLAST_SEED");
  cutter_t cutter = {.key = bl_random_key(seed != NULL ? strtoull(seed, NULL, 10) : 1, "cuts")};
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, cut_now_and_then, &cutter), 0);
  static uint8_t expected[BYTES];
  for (uint64_t round = 0; round < 30; round++) {
    bl_client_ticket_t tickets[4];
    for (uint64_t i = 0; i < 4; i++) {
      fill(fixture->buffers.base + i * BYTES, BYTES, 4 * round + i);
      must(bl_client_evict_start(client, slots[i], fixture->buffers.base + i * BYTES, BYTES, NULL, &tickets[i], &err),
           &err);
    }
    for (uint64_t i = 0; i < 4; i++) {
      must(bl_client_wait(client, tickets[i], UINT64_MAX, &err), &err);
    }
    memset(fixture->buffers.base, 0, 4 * BYTES);
    for (uint64_t i = 0; i < 4; i++) {
      must(bl_client_load_start(client, slots[i], fixture->buffers.base + i * BYTES, BYTES, &tickets[i], &err), &err);
    }
    for (uint64_t i = 0; i < 4; i++) {
      must(bl_client_wait(client, tickets[i], UINT64_MAX, &err), &err);
      fill(expected, BYTES, 4 * round + i);
      assert_memory_equal(fixture->buffers.base + i * BYTES, expected, BYTES);
    }
  }
  atomic_store(&cutter.stop, true);
  pthread_join(thread, NULL);
  bl_client_counters_t counters = bl_client_counters(client);
  assert_true(counters.reconnects > 0);
  assert_int_equal(counters.evicted, 120);
  assert_int_equal(counters.loaded, 120);
  bl_client_close(client);
}

// ---- a stopped holder -----------------------------------------------------------------------------------------------

#define OTHERS 7

// What the program does as "busy ADDRESS STAGE PATH": moves a block there and back until it is killed.
static int be_busy(const char *address, const char *stage, const char *path_number) {
  fixture_t fixture = {.store = {0}};
  bl_client_t *client = NULL;
  bl_error_t err = {0};
  uint64_t slot;
  data_path = (bl_client_path_t)strtoul(path_number, NULL, 10);
  snprintf(fixture.store.address, sizeof fixture.store.address, "%s", address);
  if (bl_client_region_create(BYTES, &fixture.source, &err) != BL_OK ||
      open_as(&fixture, (uint32_t)strtoul(stage, NULL, 10), &client, &err) != BL_OK ||
      bl_client_reserve(client, 1, &(bl_client_demand_t){.bytes = BYTES, .count = 1}, 1, &err) != BL_OK ||
      bl_client_slots(client, &slot, 1) != 1 || write(STDOUT_FILENO, "y", 1) != 1) {
    fprintf(stderr, "busy: %s\n", err.text);
    return 1;
  }
  while (bl_client_evict(client, slot, fixture.source.base, BYTES, NULL, &err) == BL_OK &&
         bl_client_load(client, slot, fixture.source.base, BYTES, &err) == BL_OK) {
  }
  return 1;
}

static void test_one_of_eight_is_stopped(void **state) {
  const fixture_t *fixture = *state;
  int to, from;
  bl_error_t err = {0};
  pid_t busy = start_self(fixture, "busy", 50, &to, &from);
  bl_client_t *clients[OTHERS];
  uint64_t slots[OTHERS];
  for (uint32_t i = 0; i < OTHERS; i++) {
    clients[i] = must_open(fixture, i);
    reserve(clients[i], BYTES, 1, &slots[i]);
  }
  static uint8_t expected[BYTES];
  for (uint64_t round = 0; round < 10; round++) {
    usleep((useconds_t)(1000 * round)); // at another place of its transfer each time
    kill(busy, SIGSTOP);
    for (uint64_t i = 0; i < OTHERS; i++) {
      uint8_t *buffer = fixture->buffers.base + i * BYTES;
      fill(buffer, BYTES, round * OTHERS + i);
      must(bl_client_evict(clients[i], slots[i], buffer, BYTES, NULL, &err), &err);
      memset(buffer, 0, BYTES);
      must(bl_client_load(clients[i], slots[i], buffer, BYTES, &err), &err);
      fill(expected, BYTES, round * OTHERS + i);
      assert_memory_equal(buffer, expected, BYTES);
    }
    kill(busy, SIGCONT);
  }
  kill(busy, SIGKILL);
  waitpid(busy, NULL, 0);
  close(to);
  close(from);
  for (unsigned i = 0; i < OTHERS; i++) {
    bl_client_close(clients[i]);
  }
}

// ---- many uses ------------------------------------------------------------------------------------------------------

#define CYCLE_SLOTS 32u

static uint64_t resident_kib(pid_t pid) {
  char path[64], line[256];
  unsigned long kib = 0;
  snprintf(path, sizeof path, "/proc/%ld/status", (long)pid);
  FILE *status = fopen(path, "re");
  assert_non_null(status);
  while (fgets(line, sizeof line, status) != NULL && sscanf(line, "VmRSS: %lu", &kib) != 1) {
  }
  fclose(status);
  return kib;
}

static void use_slot(bl_client_t *client, const uint64_t *slots, const uint8_t *source) {
  bl_client_ticket_t evicts[CYCLE_SLOTS], releases[CYCLE_SLOTS];
  bl_error_t err = {0};
  for (unsigned i = 0; i < CYCLE_SLOTS; i++) {
    must(bl_client_evict_start(client, slots[i], source + 64 * i, 64, NULL, &evicts[i], &err), &err);
  }
  for (unsigned i = 0; i < CYCLE_SLOTS; i++) {
    must(bl_client_wait(client, evicts[i], UINT64_MAX, &err), &err);
    must(bl_client_release_start(client, slots[i], &releases[i], &err), &err);
  }
  for (unsigned i = 0; i < CYCLE_SLOTS; i++) {
    must(bl_client_wait(client, releases[i], UINT64_MAX, &err), &err);
  }
}

// Memory and descriptors of both sides do not grow with the uses of slots.
static void test_cycles_are_flat(void **state) {
  const fixture_t *fixture = *state;
  bl_client_t *client = must_open(fixture, 0);
  uint64_t slots[CYCLE_SLOTS], cycles = test_soak() ? 1000000 : 10000;
  reserve(client, 64, CYCLE_SLOTS, slots);
  for (uint64_t i = 0; i < cycles / 10; i += CYCLE_SLOTS) { // warm
    use_slot(client, slots, fixture->buffers.base);
  }
  const pid_t pids[2] = {getpid(), fixture->store.pid};
  uint64_t kib[2];
  unsigned descriptors[2];
  for (int i = 0; i < 2; i++) {
    kib[i] = resident_kib(pids[i]);
    descriptors[i] = count_descriptors(pids[i]);
  }
  for (uint64_t i = 0; i < cycles; i += CYCLE_SLOTS) {
    use_slot(client, slots, fixture->buffers.base);
  }
  for (int i = 0; i < 2; i++) {
    uint64_t now = resident_kib(pids[i]);
    if (now > kib[i] + 2048) { // 2 MiB: what a library may still touch for the first time
      fail_msg("%s grew from %" PRIu64 " to %" PRIu64 " KiB", i == 0 ? "the client" : "the store", kib[i], now);
    }
    unsigned descriptors_now = count_descriptors(pids[i]);
    print_message("%s: %" PRIu64 " uses, %" PRIu64 " -> %" PRIu64 " KiB, %u -> %u descriptors\n",
                  i == 0 ? "client" : "store", cycles, kib[i], now, descriptors[i], descriptors_now);
    assert_true(descriptors_now <= descriptors[i] + 2);
  }
  bl_client_close(client);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(int count, char **arguments) {
  if (count == 5 && strcmp(arguments[1], "busy") == 0) {
    return be_busy(arguments[2], arguments[3], arguments[4]);
  }
  const struct CMUnitTest tests[] = {
      TEST(test_wait_and_poll),
      TEST(test_cancelled_evict),
      TEST(test_given_up_while_it_fails),
      TEST(test_cancelled_load),
      TEST(test_nothing_outlives_its_deadline),
      TEST(test_sources_come_and_go),
      TEST(test_a_session_anew),
      TEST(test_a_connection_is_cut),
      TEST(test_one_of_eight_is_stopped),
      TEST(test_cycles_are_flat),
  };
  store_ttl = store_grace = "60"; // stores are stopped here for a while
  int failed = cmocka_run_group_tests_name("shm", tests, NULL, NULL);
  data_path = BL_CLIENT_PATH_TCP;
  return failed + cmocka_run_group_tests_name("tcp", tests, NULL, NULL);
}
