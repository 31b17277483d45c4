// SPDX-License-Identifier: Apache-2.0
// Verifies client and store together, as processes: blocks come back bit by bit; one flipped bit anywhere in the
// store's memory is found and never handed over; a store or holder that dies, or is paused, is seen and cleaned up
// after in the time promised; garbage on both sockets and on the tcp port changes nothing; SIGTERM drains.
// BALLAST_SOAK=1 repeats deaths more often.
#include "client/client.h"

#include "client/client_core.h"
#include "client/fixture.h"
#include "datapath/block.h"
#include "datapath/socket.h"
#include "seed.h"
#include "sys/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

// ---- blocks ---------------------------------------------------------------------------------------------------------

static void test_blocks_come_back(void **state) {
  fixture_t *fixture = *state;
  bl_client_t *client = must_open(fixture, 0);
  uint64_t slots[STORE_SLOTS], sizes[STORE_SLOTS];
  uint64_t key = bl_random_key(1, "sizes"), draws = 0, sum = 0;
  static uint8_t expected[16 * GRANULE];
  bl_error_t err = {0};
  reserve(client, 16 * GRANULE, STORE_SLOTS, slots);
  for (uint64_t round = 0; round < 10; round++) {
    bl_client_ticket_t tickets[STORE_SLOTS];
    for (uint64_t i = 0; i < STORE_SLOTS; i++) {
      uint8_t *buffer = fixture->buffers.base + i * 16 * GRANULE;
      sizes[i] = 1 + bl_random_below(key, draws++, 16 * GRANULE);
      sum += sizes[i];
      fill(buffer, sizes[i], round * STORE_SLOTS + i);
      must(bl_client_evict_start(client, slots[i], buffer, sizes[i], NULL, &tickets[i], &err), &err);
    }
    for (uint64_t i = 0; i < STORE_SLOTS; i++) {
      must(bl_client_wait(client, tickets[i], UINT64_MAX, &err), &err);
    }
    memset(fixture->buffers.base, 0xee, fixture->buffers.bytes);
    for (uint64_t i = STORE_SLOTS; i-- > 0;) {
      uint8_t *buffer = fixture->buffers.base + ((i + 1) % STORE_SLOTS) * 16 * GRANULE; // not where it was
      must(bl_client_load(client, slots[i], buffer, sizes[i], &err), &err);
      fill(expected, sizes[i], round * STORE_SLOTS + i);
      assert_memory_equal(buffer, expected, sizes[i]);
    }
  }
  bl_client_counters_t counters = bl_client_counters(client);
  assert_int_equal(counters.evicted_bytes, sum);
  assert_int_equal(counters.bytes_copied, data_path == BL_CLIENT_PATH_TCP ? 0 : sum);     // one copy, or none
  assert_int_equal(bl_client_load(client, slots[0], expected, 1, &err), BL_PRECONDITION); // empty
  if (data_path != BL_CLIENT_PATH_TCP) {
    assert_int_equal(bl_client_evict(client, slots[0], expected, 1, NULL, &err), BL_INVALID); // not in a source
  }
  assert_int_equal(bl_client_evict(client, 99999, fixture->buffers.base, 1, NULL, &err), BL_NOT_FOUND);
  assert_int_equal(bl_client_evict(client, slots[0], fixture->buffers.base, 17 * GRANULE, NULL, &err), BL_INVALID);
  bl_client_demand_t much = {.bytes = 16 * GRANULE, .count = 17};
  assert_int_equal(bl_client_reserve(client, 2, &much, 1, &err), BL_INVALID); // more than the arena will ever have
  bl_client_close(client);
}

// Flips one bit of the store's memory, from outside.
static void flip(const fixture_t *fixture, unsigned long address, unsigned bit) {
  char path[64];
  uint8_t byte;
  snprintf(path, sizeof path, "/proc/%ld/mem", (long)fixture->store.pid);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) {
    print_message("skipped: the memory of another process cannot be written here: %s\n", strerror(errno));
    skip();
  }
  assert_int_equal(pread(fd, &byte, 1, (off_t)address), 1);
  byte = (uint8_t)(byte ^ (1u << bit));
  assert_int_equal(pwrite(fd, &byte, 1, (off_t)address), 1);
  close(fd);
}

static void test_a_flipped_bit_is_found(void **state) {
  fixture_t *fixture = *state;
  enum { BYTES = 2 * GRANULE - 5 };
  const uint64_t places = test_soak() && data_path != BL_CLIENT_PATH_TCP ? 4096 : 512;
  bl_client_t *client = must_open(fixture, 0);
  uint64_t slot, key = bl_random_key(2, "flips");
  bl_error_t err = {0};
  reserve(client, BYTES, 1, &slot);
  unsigned long arena_bytes = 0, arena = find_arena(fixture->store.pid, &arena_bytes);
  assert_true(arena != 0);
  uint8_t *source = fixture->buffers.base, *destination = source + 16 * GRANULE;
  for (uint64_t i = 0; i < places; i++) {
    uint64_t offset = i < 8 ? BYTES - 1 - i : bl_random_below(key, 2 * i, BYTES); // the last partial word too
    fill(source, BYTES, i);
    must(bl_client_evict(client, slot, source, BYTES, NULL, &err), &err);
    flip(fixture, arena + offset, (unsigned)bl_random_below(key, 2 * i + 1, 8)); // the first slot: offset 0
    memset(destination, 1, 64);
    if (bl_client_load(client, slot, destination, BYTES, &err) != BL_DATA_LOSS) {
      fail_msg("a flipped bit at offset %" PRIu64 " was not found", offset);
    }
    for (int j = 0; j < 64; j++) {
      assert_int_equal(destination[j], 0); // nothing is handed over
    }
  }
  must(bl_client_evict(client, slot, source, BYTES, NULL, &err), &err); // and the slot goes on
  must(bl_client_load(client, slot, destination, BYTES, &err), &err);
  bl_client_close(client);
}

typedef struct worker {
  bl_client_t *client;
  uint64_t slot;
  uint8_t *buffer;
  bl_error_t err;
} worker_t;

static void *use_slot(void *argument) {
  worker_t *worker = argument;
  static _Thread_local uint8_t expected[4 * GRANULE];
  for (uint64_t i = 0; i < 100 && worker->err.status == BL_OK; i++) {
    fill(expected, sizeof expected, worker->slot * 1000 + i);
    memcpy(worker->buffer, expected, sizeof expected);
    if (bl_client_evict(worker->client, worker->slot, worker->buffer, sizeof expected, NULL, &worker->err) == BL_OK) {
      memset(worker->buffer, 0, sizeof expected);
      bl_status_t status = bl_client_load(worker->client, worker->slot, worker->buffer, sizeof expected, &worker->err);
      if (status == BL_OK && memcmp(worker->buffer, expected, sizeof expected) != 0) {
        (void)bl_error_set(&worker->err, BL_DATA_LOSS, "other bytes came back");
      }
    }
  }
  return NULL;
}

static void test_many_threads(void **state) {
  fixture_t *fixture = *state;
  bl_client_t *client = must_open(fixture, 0);
  uint64_t slots[STORE_SLOTS];
  pthread_t threads[STORE_SLOTS];
  worker_t workers[STORE_SLOTS];
  reserve(client, 4 * GRANULE, STORE_SLOTS, slots);
  for (int i = 0; i < STORE_SLOTS; i++) {
    workers[i] =
        (worker_t){.client = client, .slot = slots[i], .buffer = fixture->buffers.base + (uint64_t)i * 16 * GRANULE};
    assert_int_equal(pthread_create(&threads[i], NULL, use_slot, &workers[i]), 0);
  }
  for (int i = 0; i < STORE_SLOTS; i++) {
    pthread_join(threads[i], NULL);
    must(workers[i].err.status, &workers[i].err);
  }
  bl_client_close(client);
}

// ---- deaths ---------------------------------------------------------------------------------------------------------

static void test_a_store_dies(void **state) {
  fixture_t *fixture = *state;
  bl_error_t err = {0};
  uint64_t slots[2];
  int deaths = test_soak() ? 100 : 5;
  for (int i = 0; i < deaths; i++) {
    bl_client_t *client = must_open(fixture, 0);
    reserve(client, GRANULE, 2, slots);
    must(bl_client_evict(client, slots[0], fixture->buffers.base, GRANULE, NULL, &err), &err);
    store_kill(&fixture->store, SIGKILL);
    uint64_t start_ns = bl_clock_now_ns();
    bl_status_t status = bl_client_evict(client, slots[1], fixture->buffers.base, GRANULE, NULL, &err);
    assert_int_equal(status, BL_UNAVAILABLE);
    assert_int_equal(bl_client_load(client, slots[0], fixture->buffers.base, GRANULE, &err), BL_UNAVAILABLE);
    assert_true(bl_clock_now_ns() - start_ns < CALL_MS * BL_NS_PER_MS / 2); // seen, not waited for
    store_start(&fixture->store, "64 MiB", store_ttl, store_grace);
    assert_int_not_equal(bl_client_state(client, &err), BL_OK); // a returned store is another one
    bl_client_close(client);
  }
  bl_client_close(must_open(fixture, 0));
}

// Killed at a random moment with evictions and loads under way: each ends soon, well or with BL_UNAVAILABLE; what was
// loaded is right, and what did not get away is still at its source.
static void test_a_store_dies_in_the_middle(void **state) {
  fixture_t *fixture = *state;
  const char *only = getenv("BALLAST_SEED");
  uint64_t kills = test_soak() ? 200 : 10;
  static uint8_t expected[16 * GRANULE];
  for (uint64_t seed = 1; seed <= kills; seed++) {
    if (only != NULL && strtoull(only, NULL, 10) != seed) {
      continue;
    }
    bl_client_t *client = must_open(fixture, 0);
    uint64_t slots[STORE_SLOTS], key = bl_random_key(seed, "kill");
    bl_client_ticket_t tickets[STORE_SLOTS];
    bl_error_t err = {0};
    reserve(client, 16 * GRANULE, STORE_SLOTS, slots);
    for (uint64_t i = 0; i < STORE_SLOTS; i++) {
      fill(fixture->buffers.base + i * 16 * GRANULE, 16 * GRANULE, seed * STORE_SLOTS + i);
    }
    pid_t killer = fork();
    assert_true(killer >= 0);
    if (killer == 0) {
      usleep((useconds_t)bl_random_below(key, 0, 20000));
      kill(fixture->store.pid, SIGKILL);
      _exit(0);
    }
    uint64_t started = 0;
    for (bl_status_t status = BL_OK; started < STORE_SLOTS && status == BL_OK; started += status == BL_OK ? 1 : 0) {
      status = bl_client_evict_start(client, slots[started], fixture->buffers.base + started * 16 * GRANULE,
                                     16 * GRANULE, NULL, &tickets[started], &err);
    }
    for (uint64_t i = 0; i < started; i++) {
      uint8_t *buffer = fixture->buffers.base + i * 16 * GRANULE;
      bl_status_t status = bl_client_wait(client, tickets[i], UINT64_MAX, &err);
      bool loaded = status == BL_OK && bl_client_load(client, slots[i], buffer, 16 * GRANULE, &err) == BL_OK;
      if (!loaded && err.status != BL_UNAVAILABLE) {
        fail_msg("seed %" PRIu64 ": %s: %s", seed, bl_status_name(err.status), err.text);
      }
      fill(expected, 16 * GRANULE, seed * STORE_SLOTS + i);
      assert_memory_equal(buffer, expected, 16 * GRANULE);
    }
    waitpid(killer, NULL, 0);
    (void)store_wait(&fixture->store);
    store_start(&fixture->store, "64 MiB", store_ttl, store_grace);
    bl_client_close(client);
  }
}

// What the program does as "holder ADDRESS STAGE PATH": opens, fills its slots, says so, and does no more until it is
// asked what a load says then. It is a program of its own, because gRPC does not live through a fork.
static int hold(const char *address, const char *stage, const char *path_number) {
  data_path = (bl_client_path_t)strtoul(path_number, NULL, 10);
  fixture_t fixture = {.store = {0}};
  bl_error_t err = {0};
  bl_client_t *client = NULL;
  uint64_t slot[16];
  bl_client_demand_t all = {.bytes = 16 * GRANULE, .count = 16};
  snprintf(fixture.store.address, sizeof fixture.store.address, "%s", address);
  const uint64_t start_ns = bl_clock_now_ns();
  bool well = false, buffers = bl_client_region_create(16 * GRANULE, &fixture.source, &err) == BL_OK;
  while (buffers && !well &&
         bl_clock_now_ns() - start_ns < TIMEOUT_NS) { // again where the machine stood still for long
    bl_client_close(client);
    client = NULL;
    well = open_as(&fixture, (uint32_t)strtoul(stage, NULL, 10), &client, &err) == BL_OK &&
           bl_client_reserve(client, 1, &all, 1, &err) == BL_OK && bl_client_slots(client, slot, 16) == 16 &&
           bl_client_evict(client, slot[0], fixture.source.base, 1000, NULL, &err) == BL_OK;
  }
  char byte = well ? 'y' : 'n';
  if (!well) {
    fprintf(stderr, "holder: %s\n", err.text);
  }
  if (write(STDOUT_FILENO, &byte, 1) != 1 || read(STDIN_FILENO, &byte, 1) != 1 || !well) {
    return 1;
  }
  byte = (char)bl_client_load(client, slot[0], fixture.source.base, 1000, &err);
  return write(STDOUT_FILENO, &byte, 1) == 1 ? 0 : 1;
}

static pid_t start_holder(const fixture_t *fixture, uint32_t stage, int *to, int *from) {
  return start_self(fixture, "holder", stage, to, from);
}

// Opens, on a machine that may stand still for as long as a call has.
static bl_client_t *open_patiently(const fixture_t *fixture, uint32_t stage) {
  const uint64_t start_ns = bl_clock_now_ns();
  bl_client_t *client = NULL;
  bl_error_t err = {0};
  while (open_as(fixture, stage, &client, &err) != BL_OK) {
    bool passes = err.status == BL_UNAVAILABLE || err.status == BL_FENCED;
    if (!passes || bl_clock_now_ns() - start_ns > TIMEOUT_NS) {
      fail_msg("%s", err.text);
    }
  }
  return client;
}

// Reserves all of the arena, as soon as that is possible. The machine may stand still meanwhile: calls that got no
// answer are made again, and a session that went with that is begun anew.
static void take_all(bl_client_t *client) {
  const uint64_t start_ns = bl_clock_now_ns();
  bl_error_t err = {0};
  bl_client_demand_t all = {.bytes = 16 * GRANULE, .count = 16};
  while (bl_client_reserve(client, 1, &all, 1, &err) != BL_OK) {
    bool passes = err.status == BL_EXHAUSTED || err.status == BL_PRECONDITION || err.status == BL_UNAVAILABLE;
    if (bl_client_state(client, NULL) != BL_OK) {
      passes = bl_client_reopen(client, &err) == BL_OK || err.status == BL_UNAVAILABLE || err.status == BL_FENCED;
    }
    if (!passes || bl_clock_now_ns() - start_ns > TIMEOUT_NS) {
      fail_msg("slots are held for too long: %s", err.text);
    }
    usleep(20000);
  }
}

// Waits until the store has no more descriptors than so many, and those of control connections that gRPC keeps a while.
static void wait_for_descriptors(const fixture_t *fixture, unsigned count) {
  const uint64_t start_ns = bl_clock_now_ns();
  while (count_descriptors(fixture->store.pid) > count + 2) {
    if (bl_clock_now_ns() - start_ns > TIMEOUT_NS) {
      fail_msg("the store has %u descriptors, it had %u", count_descriptors(fixture->store.pid), count);
    }
    usleep(20000);
  }
}

static void test_a_holder_dies(void **state) {
  fixture_t *fixture = *state;
  int deaths = test_soak() ? 200 : 3;
  unsigned descriptors = 0;
  for (int i = 0; i < deaths; i++) {
    int to, from;
    pid_t pid = start_holder(fixture, 1, &to, &from);
    bl_client_t *other = open_patiently(fixture, 0);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    close(to);
    close(from);
    take_all(other);
    bl_client_close(other);
    if (i == 0) {
      descriptors = count_descriptors(fixture->store.pid);
    }
    wait_for_descriptors(fixture, descriptors);
  }
}

static void test_a_paused_holder(void **state) {
  fixture_t *fixture = *state;
  int to, from;
  char byte = 0;
  pid_t pid = start_holder(fixture, 1, &to, &from);
  bl_client_t *other = must_open(fixture, 0);
  bl_error_t err = {0};
  uint64_t slots[16];
  static uint8_t expected[16 * GRANULE];
  kill(pid, SIGSTOP);
  take_all(other);
  bl_client_slots(other, slots, 16);
  fill(fixture->buffers.base, sizeof expected, 77);
  memcpy(expected, fixture->buffers.base, sizeof expected);
  for (int i = 0; i < 16; i++) {
    must(bl_client_evict(other, slots[i], fixture->buffers.base, sizeof expected, NULL, &err), &err);
  }
  kill(pid, SIGCONT);
  assert_int_equal(write(to, "w", 1), 1);
  assert_int_equal(read(from, &byte, 1), 1);
  bl_status_t status = (bl_status_t)byte;
  assert_true(status == BL_FENCED || status == BL_UNAVAILABLE); // refused, or the store had already hung up on it
  waitpid(pid, NULL, 0);
  for (int i = 0; i < 16; i++) {
    memset(fixture->buffers.base, 0, sizeof expected);
    must(bl_client_load(other, slots[i], fixture->buffers.base, sizeof expected, &err), &err);
    assert_memory_equal(fixture->buffers.base, expected, sizeof expected);
  }
  bl_client_close(other);
  close(to);
  close(from);
}

static void test_a_newer_incarnation(void **state) {
  fixture_t *fixture = *state;
  bl_error_t err = {0};
  uint64_t slot;
  bl_client_t *old = must_open(fixture, 3);
  reserve(old, GRANULE, 1, &slot);
  must(bl_client_evict(old, slot, fixture->buffers.base, 100, NULL, &err), &err);
  bl_client_t *new = must_open(fixture, 3);
  bl_status_t status = bl_client_load(old, slot, fixture->buffers.base, 100, &err);
  assert_true(status == BL_FENCED || status == BL_UNAVAILABLE);
  reserve(new, GRANULE, 1, &slot);
  must(bl_client_evict(new, slot, fixture->buffers.base, 100, NULL, &err), &err);
  bl_client_close(old);
  must(bl_client_load(new, slot, fixture->buffers.base, 100, &err), &err);
  bl_client_close(new);
}

// A session lives as long as its holder does, whatever that does meanwhile and however little it asks for: renewed by
// one call per third of its TTL, also with two hundred leases.
static void test_an_idle_session_lives_on(void **state) {
  fixture_t *fixture = *state;
  const uint64_t ttl_ns = 2 * BL_NS_PER_S, ttls = test_soak() ? 12 : 2;
  bl_client_t *client = must_open(fixture, 0);
  static uint64_t slots[200];
  bl_error_t err = {0};
  uint8_t *buffer = fixture->buffers.base;
  reserve(client, GRANULE, 200, slots);
  for (int i = 0; i < 100; i++) {
    fill(buffer, GRANULE, (uint64_t)i);
    must(bl_client_evict(client, slots[i], buffer, GRANULE, NULL, &err), &err);
  }
  const uint64_t start_ns = bl_clock_now_ns(), before = bl_client_counters(client).renewals;
  uint64_t now_ns, renewals, sum = 0;
  do { // computes, then idles
    for (uint64_t i = 0; i < 20000000; i++) {
      sum += bl_random_bits(sum, i);
    }
    usleep(500000);
    now_ns = bl_clock_now_ns();
    renewals = bl_client_counters(client).renewals - before;
  } while ((now_ns - start_ns < ttls * ttl_ns || renewals < ttls) && now_ns - start_ns < 60 * ttl_ns);
  assert_int_not_equal(sum, 0);
  assert_true(renewals >= ttls && renewals <= (now_ns - start_ns) / (ttl_ns / 3) + 2);
  must(bl_client_state(client, &err), &err);
  for (int i = 0; i < 100; i++) {
    must(bl_client_load(client, slots[i], buffer, GRANULE, &err), &err);
    fill(buffer + GRANULE, GRANULE, (uint64_t)i);
    assert_memory_equal(buffer, buffer + GRANULE, GRANULE);
  }
  while (bl_client_reserve(client, 2, &(bl_client_demand_t){.bytes = GRANULE, .count = 1}, 1, &err) != BL_OK) {
    assert_int_equal(err.status, BL_PRECONDITION); // on a machine that stood still just now
    usleep(10000);
  }
  bl_client_close(client);
}

static int set_up_with(void **state, const char *ttl, const char *grace) {
  const char *const before[2] = {store_ttl, store_grace};
  store_ttl = ttl;
  store_grace = grace;
  int failed = set_up(state);
  store_ttl = before[0];
  store_grace = before[1];
  return failed;
}

// What a holder that is not heard of has goes to who needs it.
static int set_up_short_ttl(void **state) {
  return set_up_with(state, "2", "60");
}

// And soon after also where nobody does.
static int set_up_short(void **state) {
  return set_up_with(state, "2", "0.5");
}

// That a store drains is told with the next renewal, a third of the TTL later: long before the drain is over.
static int set_up_drained(void **state) {
  return set_up_with(state, "6", "60");
}

// ---- the rest -------------------------------------------------------------------------------------------------------

static void send_garbage(const char *address, uint64_t seed) {
  static uint8_t garbage[32768];
  fill(garbage, sizeof garbage, seed);
  bl_address_t where;
  bl_error_t err = {0};
  int fd = -1;
  must(bl_address_parse(address, &where, &err), &err);
  must(bl_socket_connect(&where, &fd, &err), &err);
  struct pollfd connected = {.fd = fd, .events = POLLOUT};
  assert_int_equal(poll(&connected, 1, 60000), 1);
  assert_int_equal(bl_socket_error(fd), 0);
  bl_socket_set_blocking(fd);
  (void)send(fd, garbage, bl_random_below(seed, 0, sizeof garbage), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (seed % 2 == 0) {
    char byte;
    struct timeval limit = {.tv_usec = 20000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    (void)recv(fd, &byte, 1, 0);
  }
  close(fd);
}

static void test_garbage(void **state) {
  fixture_t *fixture = *state;
  bl_client_t *client = must_open(fixture, 0);
  uint64_t slot;
  bl_error_t err = {0};
  reserve(client, GRANULE, 1, &slot);
  must(bl_client_evict(client, slot, fixture->buffers.base, 100, NULL, &err), &err);
  for (uint64_t seed = 1; seed <= 40; seed++) {
    send_garbage(fixture->store.address, seed);
    send_garbage(fixture->store.data_address, seed);
    send_garbage(client->data_tcp_address, seed); // which the store tells when a session is opened
  }
  must(bl_client_load(client, slot, fixture->buffers.base, 100, &err), &err);
  bl_client_close(client);
}

static void test_sessions_leave_nothing(void **state) {
  fixture_t *fixture = *state;
  unsigned before = 0, after = 0;
  for (int i = 0; i < 30; i++) {
    bl_client_t *client = must_open(fixture, 0);
    uint64_t slot;
    bl_error_t err = {0};
    reserve(client, GRANULE, 1, &slot);
    must(bl_client_evict(client, slot, fixture->buffers.base, 100, NULL, &err), &err);
    bl_client_close(client);
    after = count_descriptors(fixture->store.pid);
    before = i == 4 ? after : before;
  }
  for (uint64_t end_ns = bl_clock_now_ns() + TIMEOUT_NS; after > before + 2 && bl_clock_now_ns() < end_ns;) {
    usleep(10000); // a busy store closes its end of a connection a little later
    after = count_descriptors(fixture->store.pid);
  }
  assert_true(after <= before + 2);
}

static void test_sigterm_drains(void **state) {
  fixture_t *fixture = *state;
  bl_client_t *client = must_open(fixture, 0);
  uint64_t slot;
  bl_error_t err = {0};
  reserve(client, GRANULE, 1, &slot);
  must(bl_client_evict(client, slot, fixture->buffers.base, 100, NULL, &err), &err);
  WAIT_FOR(bl_client_counters(client).renewals > 0); // it was told that the store does not drain
  kill(fixture->store.pid, SIGTERM);
  WAIT_FOR(bl_client_is_draining(client));
  bl_client_demand_t more = {.bytes = GRANULE, .count = 2};
  assert_int_equal(bl_client_reserve(client, 2, &more, 1, &err), BL_PRECONDITION);
  must(bl_client_load(client, slot, fixture->buffers.base, 100, &err), &err); // what it holds is still there
  must(bl_client_unreserve(client, 1, &err), &err);
  assert_int_equal(store_wait(&fixture->store), 0);
  assert_int_not_equal(access(fixture->store.address + strlen("unix:"), F_OK), 0); // sockets removed
  assert_int_not_equal(access(fixture->store.data_address + strlen("unix:"), F_OK), 0);
  bl_client_close(client);
}

// A load that was given up writes nothing, then or later; the block stays and can be loaded again.
static void test_a_load_given_up(void **state) {
  const fixture_t *fixture = *state;
  bl_error_t err = {0};
  uint64_t slot;
  bl_client_t *client = must_open(fixture, 0);
  reserve(client, GRANULE, 1, &slot);
  uint8_t *buffer = fixture->buffers.base;
  fill(buffer, GRANULE, 7);
  must(bl_client_evict_known(client, slot, buffer, GRANULE, bl_block_checksum(buffer, GRANULE), NULL, &err), &err);
  memset(buffer, 1, GRANULE);
  uint8_t *expected = buffer + GRANULE;
  fill(expected, GRANULE, 7);
  bl_client_ticket_t ticket;
  must(bl_client_load_start(client, slot, buffer, GRANULE, &ticket, &err), &err);
  bl_client_cancel(client, ticket);
  const bl_status_t status = bl_client_wait(client, ticket, UINT64_MAX, &err);
  if (status == BL_CANCELLED) { // then the block is still there
    const uint64_t deadline_ns = bl_clock_now_ns() + 60 * BL_NS_PER_S;
    while (bl_client_slot_state(client, slot) != BL_CLIENT_SLOT_FULL) {
      assert_true(bl_clock_now_ns() < deadline_ns);
      usleep(1000);
    }
    must(bl_client_load(client, slot, buffer, GRANULE, &err), &err);
  } else {
    assert_int_equal(status, BL_OK); // the end came first
  }
  assert_memory_equal(buffer, expected, GRANULE);
  bl_client_cancel(client, ticket); // too late: nothing happens
  bl_client_close(client);
}

// Every slot of a stage is an arena of its own; blocks leave from each.
static void test_many_sources(void **state) {
  const fixture_t *fixture = *state;
  bl_error_t err = {0};
  static bl_client_region_t regions[BL_CLIENT_REGIONS];
  for (int i = 0; i < BL_CLIENT_REGIONS; i++) {
    must(bl_client_region_create(GRANULE, &regions[i], &err), &err);
    fill(regions[i].base, GRANULE, (uint64_t)i);
  }
  bl_client_t *client = NULL;
  must(bl_client_open(&(bl_client_options_t){.size = sizeof(bl_client_options_t),
                                             .store = fixture->store.address,
                                             .job = "job",
                                             .arena_bytes = GRANULE,
                                             .path = data_path,
                                             .regions = regions,
                                             .region_count = BL_CLIENT_REGIONS},
                      &client, &err),
       &err);
  uint64_t slot;
  reserve(client, GRANULE, 1, &slot);
  for (int i = BL_CLIENT_REGIONS; i-- > 0;) {
    must(bl_client_evict(client, slot, regions[i].base, GRANULE, NULL, &err), &err);
    must(bl_client_load(client, slot, fixture->buffers.base, GRANULE, &err), &err);
    assert_memory_equal(fixture->buffers.base, regions[i].base, GRANULE);
  }
  bl_client_close(client);
  for (int i = 0; i < BL_CLIENT_REGIONS; i++) {
    bl_client_region_destroy(&regions[i]);
  }
}

typedef struct reopening {
  bl_client_t *client;
  bl__phase_t phase;
  bl_status_t status;
  bl_error_t err;
} reopening_t;

static void ignore_end(bl__control_call_t *call) {
  (void)call;
}

// As an opening with demands that is lost before they are answered.
static void reserve_and_lose(void *context) {
  bl_client_t *client = context;
  static const bl_client_demand_t demand = {.bytes = GRANULE, .count = 1};
  const bl_error_t gone = {.status = BL_UNAVAILABLE, .text = "for the test"};
  client->phase = BL__PHASE_RESERVING;
  client->step = (bl__control_call_t){.client = client,
                                      .kind = BL__CALL_RESERVE,
                                      .plan = 1,
                                      .demands = &demand,
                                      .demand_count = 1,
                                      .done = ignore_end,
                                      .deadline_ns = bl_clock_now_ns() + CALL_MS * BL_NS_PER_MS};
  bl__control_call_start(&client->step);
  bl__lose(client, &gone);
}

static void read_phase(void *context) {
  reopening_t *self = context;
  self->phase = self->client->phase;
}

static void wait_for_phase(reopening_t *self, bl__phase_t phase) {
  do {
    bl_loop_thread_call(self->client->runtime->thread, read_phase, self);
  } while (self->phase != phase);
}

static void *reopen(void *context) {
  reopening_t *self = context;
  self->status = bl_client_reopen(self->client, &self->err);
  return NULL;
}

// The store answers it when it is asked for the next session.
static void test_an_answer_to_the_session_before(void **state) {
  const fixture_t *fixture = *state;
  bl_client_t *client = must_open(fixture, 0);
  reopening_t self = {.client = client};
  pthread_t thread;
  uint64_t slot;
  bl_error_t err = {0};
  kill(fixture->store.pid, SIGSTOP);
  bl_loop_thread_call(client->runtime->thread, reserve_and_lose, client);
  wait_for_phase(&self, BL__PHASE_FAILED);
  assert_int_equal(pthread_create(&thread, NULL, reopen, &self), 0);
  wait_for_phase(&self, BL__PHASE_OPENING);
  kill(fixture->store.pid, SIGCONT);
  pthread_join(thread, NULL);
  must(self.status, &self.err);
  reserve(client, GRANULE, 1, &slot);
  fill(fixture->buffers.base, GRANULE, 1);
  must(bl_client_evict(client, slot, fixture->buffers.base, GRANULE, NULL, &err), &err);
  must(bl_client_load(client, slot, fixture->buffers.base, GRANULE, &err), &err);
  bl_client_close(client);
}

int main(int count, char **arguments) {
  if (count == 5 && strcmp(arguments[1], "holder") == 0) {
    return hold(arguments[2], arguments[3], arguments[4]);
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_blocks_come_back, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_a_flipped_bit_is_found, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_many_threads, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_a_load_given_up, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_many_sources, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_a_store_dies, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_a_store_dies_in_the_middle, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_an_answer_to_the_session_before, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_a_holder_dies, set_up_short, tear_down),
      cmocka_unit_test_setup_teardown(test_a_paused_holder, set_up_short_ttl, tear_down),
      cmocka_unit_test_setup_teardown(test_a_newer_incarnation, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_an_idle_session_lives_on, set_up_short_ttl, tear_down),
      cmocka_unit_test_setup_teardown(test_garbage, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_sessions_leave_nothing, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_sigterm_drains, set_up_drained, tear_down),
  };
  int failed = cmocka_run_group_tests_name("shm", tests, NULL, NULL);
  data_path = BL_CLIENT_PATH_TCP;
  return failed + cmocka_run_group_tests_name("tcp", tests, NULL, NULL);
}
