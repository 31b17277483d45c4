// SPDX-License-Identifier: Apache-2.0
// Verifies the transport between two stages of one process, over shm and tcp: tensors of odd sizes in random orders
// arrive whole, attempts separate old from new, aborts and lost peers end waits, maps stay as long as they are pinned,
// paths are chosen with a reason, misuse is refused, transports share a thread, many connect to one at once. The seed of random orders is printed;
// BALLAST_TEST_SEED sets it.
#include "folder.h"
#include "pair.h"
#include "seed.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>

static const bl_path_t paths[] = {BL_PATH_SHM, BL_PATH_TCP};
#define FOR_EACH_PATH(path) for (bl_path_t path = BL_PATH_SHM; path <= BL_PATH_TCP; path++)

static bl_tensor_key_t key_of(uint32_t micro_batch) {
  return (bl_tensor_key_t){.boundary = 3, .direction = BL_FORWARD, .micro_batch = micro_batch};
}

static void shuffle(uint32_t *order, uint32_t count, uint64_t key, uint64_t *index) {
  for (uint32_t i = 0; i < count; i++) {
    order[i] = i;
  }
  for (uint32_t i = count; i > 1; i--) {
    uint32_t j = (uint32_t)bl_random_below(key, (*index)++, i);
    uint32_t swap = order[i - 1];
    order[i - 1] = order[j];
    order[j] = swap;
  }
}

#define TENSORS 24u

// What one side does in one attempt: posts its receives and sends in random order, then waits in another.
typedef struct {
  pair_t *pair;
  int side;
  uint64_t key;
  const uint64_t *sizes[2]; // of what each side sends
  uint8_t *destination;
  char problem[BL_ERROR_TEXT_BYTES + 64];
} side_t;

static uint64_t offset_of(const uint64_t *sizes, uint32_t index) {
  uint64_t offset = 0;
  for (uint32_t i = 0; i < index; i++) {
    offset += sizes[i] + 3;
  }
  return offset;
}

static void *run_side(void *argument) {
  side_t *side = argument;
  bl_transport_t *transport = side->pair->transport[side->side];
  int32_t peer = !side->side;
  const uint64_t *send_sizes = side->sizes[side->side], *receive_sizes = side->sizes[peer];
  uint8_t *source = side->pair->arena[side->side].base;
  uint32_t order[2 * TENSORS];
  uint64_t index = 0;
  bl_error_t err;
  bl_status_t status = BL_OK;
  shuffle(order, 2 * TENSORS, side->key, &index);
  for (uint32_t i = 0; i < 2 * TENSORS && status == BL_OK; i++) {
    uint32_t n = order[i] / 2;
    bl_tensor_key_t key = key_of(n);
    if (order[i] % 2 == 0) {
      status = bl_transport_post_send(transport, peer, key, source + offset_of(send_sizes, n), send_sizes[n], &err);
    } else {
      status = bl_transport_post_receive(transport, peer, key, side->destination + offset_of(receive_sizes, n),
                                         receive_sizes[n], &err);
    }
  }
  shuffle(order, 2 * TENSORS, side->key, &index);
  for (uint32_t i = 0; i < 2 * TENSORS && status == BL_OK; i++) {
    bl_tensor_key_t key = key_of(order[i] / 2);
    status = order[i] % 2 == 0 ? bl_transport_wait_sent(transport, peer, key, soon(), &err)
                               : bl_transport_wait_received(transport, peer, key, soon(), &err);
  }
  if (status != BL_OK) {
    snprintf(side->problem, sizeof side->problem, "stage %d: %s", side->side, err.text);
  }
  return NULL;
}

static void moves_tensors_in_any_order(void **state) {
  (void)state;
  uint64_t seed = test_seed(20);
  FOR_EACH_PATH(path) {
    pair_t pair;
    pair_open(&pair, path);
    uint8_t *destinations[2] = {malloc(PAIR_ARENA_BYTES), malloc(PAIR_ARENA_BYTES)};
    uint64_t sent_bytes = 0;
    for (uint64_t attempt = 1; attempt <= 4; attempt++) {
      uint64_t sizes[2][TENSORS];
      side_t sides[2];
      for (int s = 0; s < 2; s++) {
        uint64_t key = seed + attempt * 2 + (uint64_t)s;
        for (uint32_t i = 0; i < TENSORS; i++) {
          uint64_t limit = 1ull << (bl_random_below(key, 1000 + i, 20) + 1);
          sizes[s][i] = 1 + bl_random_below(key, 2000 + i, limit);
          pattern_fill(pair.arena[s].base + offset_of(sizes[s], i), sizes[s][i], attempt * 100 + i);
          sent_bytes += s == 0 ? sizes[s][i] : 0;
        }
        memset(destinations[s], 0xee, PAIR_ARENA_BYTES);
        sides[s] = (side_t){.pair = &pair, .side = s, .key = key, .destination = destinations[s]};
        sides[s].sizes[0] = sizes[0];
        sides[s].sizes[1] = sizes[1];
      }
      pair_begin(&pair, attempt);
      pthread_t thread;
      assert_int_equal(pthread_create(&thread, NULL, run_side, &sides[1]), 0);
      run_side(&sides[0]);
      pthread_join(thread, NULL);
      assert_string_equal(sides[0].problem, "");
      assert_string_equal(sides[1].problem, "");
      for (int s = 0; s < 2; s++) {
        for (uint32_t i = 0; i < TENSORS; i++) {
          uint8_t *tensor = destinations[s] + offset_of(sizes[!s], i);
          pattern_check(tensor, sizes[!s][i], attempt * 100 + i, bl_path_name(path));
          assert_int_equal(tensor[sizes[!s][i]], 0xee); // nothing beyond its end
        }
      }
    }
    bl_transport_counters_t counters = bl_transport_counters(pair.transport[1]);
    assert_int_equal(counters.tensors_received, 4 * TENSORS);
    assert_int_equal(counters.bytes_received, sent_bytes);
    assert_int_equal(counters.bytes_copied, path == BL_PATH_SHM ? sent_bytes : 0); // shm: exactly one copy
    assert_int_equal(counters.tensors_sent, 4 * TENSORS);
    pair_close(&pair);
    free(destinations[0]);
    free(destinations[1]);
  }
}

// Of the same traffic over tcp, only what goes to another machine text counts, at the sender.
static void bytes_to_another_machine_are_counted(void **state) {
  (void)state;
  static const char *const machines[] = {"boot/1f", "boot/20"};
  for (size_t far = 0; far < 2; far++) {
    pair_t pair;
    bl_error_t err;
    uint8_t to[64];
    pair_init(&pair);
    pair.options[0].machine = machines[0];
    pair.options[1].machine = machines[far];
    pair_listen(&pair);
    pair_connect(&pair, BL_PATH_TCP);
    pair_begin(&pair, 1);
    CHECK_OK(bl_transport_post_receive(pair.transport[1], 0, key_of(0), to, sizeof to, &err), err);
    CHECK_OK(bl_transport_post_send(pair.transport[0], 1, key_of(0), pair.arena[0].base, sizeof to, &err), err);
    CHECK_OK(bl_transport_wait_received(pair.transport[1], 0, key_of(0), soon(), &err), err);
    CHECK_OK(bl_transport_wait_sent(pair.transport[0], 1, key_of(0), soon(), &err), err);
    assert_int_equal(bl_transport_counters(pair.transport[0]).bytes_sent, sizeof to);
    assert_int_equal(bl_transport_counters(pair.transport[0]).cross_machine_bytes, far ? sizeof to : 0);
    assert_int_equal(bl_transport_counters(pair.transport[1]).cross_machine_bytes, 0);
    assert_int_equal(bl_transport_take_cross_machine_bytes(pair.transport[0]), far ? sizeof to : 0);
    assert_int_equal(bl_transport_take_cross_machine_bytes(pair.transport[0]), 0);
    pair_close(&pair);
  }
}

static void attempts_separate_old_from_new(void **state) {
  (void)state;
  FOR_EACH_PATH(path) {
    pair_t pair;
    bl_error_t err;
    uint8_t to[64] = {0};
    pair_open(&pair, path);
    CHECK_OK(bl_transport_begin(pair.transport[0], 1, &err), err);
    memset(pair.arena[0].base, 1, 64);
    memset(pair.arena[0].base + 64, 2, 64);
    // Attempt 1 is given up by the sender, perhaps after its thread has told the receiver.
    CHECK_OK(bl_transport_post_send(pair.transport[0], 1, key_of(0), pair.arena[0].base, 64, &err), err);
    CHECK_OK(bl_transport_begin(pair.transport[0], 2, &err), err);
    // Of attempt 2 the sender speaks before the receiver is there.
    CHECK_OK(bl_transport_post_send(pair.transport[0], 1, key_of(0), pair.arena[0].base + 64, 64, &err), err);
    CHECK_OK(bl_transport_begin(pair.transport[1], 1, &err), err);
    CHECK_OK(bl_transport_post_receive(pair.transport[1], 0, key_of(0), to, 64, &err), err);
    bl_status_t first =
        bl_transport_wait_received(pair.transport[1], 0, key_of(0), bl_clock_now_ns() + 50ull * BL_NS_PER_MS, &err);
    assert_true(first == BL_DEADLINE || (first == BL_OK && to[0] == 1 && to[63] == 1)); // not what is of attempt 2
    CHECK_OK(bl_transport_begin(pair.transport[1], 2, &err), err);
    CHECK_OK(bl_transport_post_receive(pair.transport[1], 0, key_of(0), to, 64, &err), err);
    CHECK_OK(bl_transport_wait_received(pair.transport[1], 0, key_of(0), soon(), &err), err);
    assert_int_equal(to[0], 2);
    assert_int_equal(to[63], 2);
    CHECK_OK(bl_transport_wait_sent(pair.transport[0], 1, key_of(0), soon(), &err), err);
    // A tensor of an attempt that the receiver has left behind never lands.
    CHECK_OK(bl_transport_begin(pair.transport[1], 4, &err), err);
    CHECK_OK(bl_transport_begin(pair.transport[0], 3, &err), err);
    CHECK_OK(bl_transport_post_receive(pair.transport[1], 0, key_of(0), to, 64, &err), err);
    CHECK_OK(bl_transport_post_send(pair.transport[0], 1, key_of(0), pair.arena[0].base, 64, &err), err);
    assert_int_equal(
        bl_transport_wait_received(pair.transport[1], 0, key_of(0), bl_clock_now_ns() + 50ull * BL_NS_PER_MS, &err),
        BL_DEADLINE);
    assert_int_equal(to[0], 2);
    assert_int_equal(bl_transport_counters(pair.transport[1]).stale_dropped,
                     path == BL_PATH_SHM ? 1 : 0); // tcp: no credit, no data
    assert_int_equal(bl_transport_begin(pair.transport[1], 4, &err), BL_PRECONDITION);
    pair_close(&pair);
  }
}

// Many attempts given up at random points. A buffer that bl_transport_begin has freed must stay as it is, and the next
// attempt must be whole.
static void giving_up_leaves_memory_alone(void **state) {
  (void)state;
  uint64_t seed = test_seed(20);
  const uint64_t bytes = 3u << 20;
  FOR_EACH_PATH(path) {
    pair_t pair;
    bl_error_t err;
    pair_open(&pair, path);
    uint8_t *to = malloc(bytes);
    for (uint64_t attempt = 1; attempt <= 60; attempt++) {
      bool give_up = attempt % 3 != 0;
      memset(to, 0xcc, bytes); // free since the last begin: a late write would show below
      memset(pair.arena[0].base, (int)(attempt & 0x7f), bytes);
      pair_begin(&pair, attempt);
      CHECK_OK(bl_transport_post_receive(pair.transport[1], 0, key_of(0), to, bytes, &err), err);
      CHECK_OK(bl_transport_post_send(pair.transport[0], 1, key_of(0), pair.arena[0].base, bytes, &err), err);
      if (!give_up) {
        CHECK_OK(bl_transport_wait_received(pair.transport[1], 0, key_of(0), soon(), &err), err);
        CHECK_OK(bl_transport_wait_sent(pair.transport[0], 1, key_of(0), soon(), &err), err);
        for (uint64_t i = 0; i < bytes; i++) {
          if (to[i] != (attempt & 0x7f)) {
            fail_msg("%s attempt %llu: byte %llu is %u", bl_path_name(path), (unsigned long long)attempt,
                     (unsigned long long)i, to[i]);
          }
        }
        continue;
      }
      uint64_t until = bl_clock_now_ns() + bl_random_below(seed, attempt, 1500000);
      while (bl_clock_now_ns() < until) {
      }
      pair_begin(&pair, ++attempt);
      memset(to, 0xdd, bytes);
      memset(pair.arena[0].base, 0xff, bytes); // the sender's buffer is free, too
      until = bl_clock_now_ns() + 300000;
      while (bl_clock_now_ns() < until) {
      }
      for (uint64_t i = 0; i < bytes; i++) {
        if (to[i] != 0xdd) {
          fail_msg("%s: byte %llu was written after the attempt was aborted", bl_path_name(path),
                   (unsigned long long)i);
        }
      }
    }
    assert_int_equal(bl_transport_counters(pair.transport[1]).links_lost, 0);
    free(to);
    pair_close(&pair);
  }
}

typedef struct {
  bl_transport_t *transport;
  bl_status_t status;
  bl_error_t err;
} waiter_t;

static void *wait_in_vain(void *argument) {
  waiter_t *waiter = argument;
  waiter->status = bl_transport_wait_received(waiter->transport, 0, key_of(5), UINT64_MAX, &waiter->err);
  return NULL;
}

// Starts a wait on transport 1 for a tensor that never comes and returns once the transport shows it.
static void start_waiting(pair_t *pair, waiter_t *waiter, pthread_t *thread, uint8_t *to) {
  bl_error_t err;
  pair_begin(pair, 1);
  CHECK_OK(bl_transport_post_receive(pair->transport[1], 0, key_of(5), to, 8, &err), err);
  *waiter = (waiter_t){.transport = pair->transport[1]};
  assert_int_equal(pthread_create(thread, NULL, wait_in_vain, waiter), 0);
  bl_transport_wait_t wait;
  uint64_t end = soon();
  while (bl_transport_waits(pair->transport[1], &wait, 1) == 0) {
    assert_true(bl_clock_now_ns() < end);
  }
  assert_string_equal(wait.what, "activation 5 of boundary 3 from stage 0");
  assert_int_equal(wait.peer, 0);
  assert_int_equal(wait.micro_batch, 5);
  assert_in_range(wait.since_ns, 1, bl_clock_now_ns());
}

static void abort_wakes_waiters(void **state) {
  (void)state;
  FOR_EACH_PATH(path) {
    pair_t pair;
    waiter_t waiter;
    pthread_t thread;
    uint8_t to[8];
    bl_error_t err;
    pair_open(&pair, path);
    start_waiting(&pair, &waiter, &thread, to);
    bl_transport_abort(pair.transport[1]);
    pthread_join(thread, NULL);
    assert_int_equal(waiter.status, BL_CANCELLED);
    assert_int_equal(bl_transport_waits(pair.transport[1], NULL, 0), 0);
    assert_int_equal(bl_transport_post_receive(pair.transport[1], 0, key_of(6), to, 8, &err), BL_CANCELLED);
    // The next attempt works as if nothing had been.
    pair_begin(&pair, 2);
    CHECK_OK(bl_transport_post_receive(pair.transport[1], 0, key_of(5), to, 8, &err), err);
    CHECK_OK(bl_transport_post_send(pair.transport[0], 1, key_of(5), pair.arena[0].base, 8, &err), err);
    CHECK_OK(bl_transport_wait_received(pair.transport[1], 0, key_of(5), soon(), &err), err);
    pair_close(&pair);
  }
}

static void lost_peers_end_waits_and_come_back(void **state) {
  (void)state;
  FOR_EACH_PATH(path) {
    pair_t pair;
    waiter_t waiter;
    pthread_t thread;
    uint8_t to[8];
    bl_error_t err;
    pair_open(&pair, path);
    start_waiting(&pair, &waiter, &thread, to);
    // What is complete before the loss still counts.
    CHECK_OK(bl_transport_post_receive(pair.transport[1], 0, key_of(1), to, 8, &err), err);
    CHECK_OK(bl_transport_post_send(pair.transport[0], 1, key_of(1), pair.arena[0].base, 8, &err), err);
    while (!bl_transport_received(pair.transport[1], 0, key_of(1))) {
    }
    bl_transport_destroy(pair.transport[0]);
    pthread_join(thread, NULL);
    assert_int_equal(waiter.status, BL_UNAVAILABLE);
    assert_non_null(strstr(waiter.err.text, "from stage 0: stage 0 closed the connection"));
    CHECK_OK(bl_transport_wait_received(pair.transport[1], 0, key_of(1), soon(), &err), err);
    assert_int_equal(bl_transport_post_receive(pair.transport[1], 0, key_of(2), to, 8, &err), BL_UNAVAILABLE);
    bl_transport_path_t shown;
    assert_int_equal(bl_transport_paths(pair.transport[1], &shown, 1), 1);
    assert_false(shown.connected);
    assert_non_null(strstr(shown.reason, "closed the connection"));

    CHECK_OK(bl_transport_create(&pair.options[0], &pair.transport[0], &err),
             err); // a new incarnation with a new token
    pair_connect(&pair, path);
    CHECK_OK(bl_transport_begin(pair.transport[0], 2, &err), err);
    CHECK_OK(bl_transport_begin(pair.transport[1], 2, &err), err);
    CHECK_OK(bl_transport_post_receive(pair.transport[1], 0, key_of(1), to, 8, &err), err);
    CHECK_OK(bl_transport_post_send(pair.transport[0], 1, key_of(1), pair.arena[0].base, 8, &err), err);
    CHECK_OK(bl_transport_wait_received(pair.transport[1], 0, key_of(1), soon(), &err), err);
    pair_connect(&pair, path); // idempotent
    assert_int_equal(bl_transport_counters(pair.transport[1]).links_lost, 1);
    pair_close(&pair);
  }
}

// Whether a byte of this process's memory can be read, asked of the kernel so that the answer may be no.
static bool is_mapped(const uint8_t *at) {
  int ends[2];
  assert_int_equal(pipe(ends), 0);
  const bool readable = write(ends[1], at, 1) == 1;
  assert_true(readable || errno == EFAULT);
  close(ends[0]);
  close(ends[1]);
  return readable;
}

static void wait_until_unmapped(const uint8_t *at) {
  const uint64_t end = soon();
  while (is_mapped(at)) {
    assert_true(bl_clock_now_ns() < end);
  }
}

static void pinned_maps_outlive_their_peer(void **state) {
  (void)state;
  const uint8_t *base = NULL, *again = NULL;
  uint64_t bytes = 0;
  pair_t pair;
  bl_error_t err;
  pair_init(&pair);
  pair_listen(&pair);
  const unsigned unconnected = count_descriptors(0);
  pair_connect(&pair, BL_PATH_SHM);
  assert_int_equal(bl_transport_peer_arena(pair.transport[1], 0, 0, &base, &bytes, &err), BL_PRECONDITION);
  assert_string_equal(err.text, "arena 0 of stage 0: no attempt has begun");
  pair_begin(&pair, 1);
  assert_false(bl_transport_peer_arenas_live(pair.transport[1], 0)); // not asked for yet
  CHECK_OK(bl_transport_peer_arena(pair.transport[1], 0, 0, &base, &bytes, &err), err);
  assert_int_equal(bytes, PAIR_ARENA_BYTES);
  assert_true(bl_transport_peer_arenas_live(pair.transport[1], 0));
  pattern_fill(pair.arena[0].base, bytes, 7);
  pattern_check(base, bytes, 7, "a peer's arena"); // what it writes is there
  assert_int_equal(bl_transport_peer_arena(pair.transport[1], 0, 1, &again, &bytes, &err), BL_INVALID);
  assert_string_equal(err.text, "arena 1 of stage 0: it shares 1");
  assert_int_equal(bl_transport_peer_arena(pair.transport[1], 5, 0, &again, &bytes, &err), BL_INVALID);

  pair_begin(&pair, 2);
  assert_false(bl_transport_peer_arenas_live(pair.transport[1], 0)); // asked for in another attempt
  CHECK_OK(bl_transport_peer_arena(pair.transport[1], 0, 0, &base, &bytes, &err), err);
  bl_transport_destroy(pair.transport[0]);
  const uint64_t end = soon();
  while (bl_transport_peer_arenas_live(pair.transport[1], 0)) {
    assert_true(bl_clock_now_ns() < end);
  }
  assert_int_equal(bl_transport_peer_arena(pair.transport[1], 0, 0, &again, &bytes, &err), BL_UNAVAILABLE);
  assert_non_null(strstr(err.text, "arena 0 of stage 0: stage 0 closed the connection"));
  CHECK_OK(bl_transport_create(&pair.options[0], &pair.transport[0], &err),
           err);                               // it comes back, in the same attempt of ours
  while (count_descriptors(0) > unconnected) { // of the connection nothing stays
    assert_true(bl_clock_now_ns() < end);
  }
  pair_connect(&pair, BL_PATH_SHM);
  assert_false(bl_transport_peer_arenas_live(pair.transport[1], 0)); // another one
  pattern_check(base, PAIR_ARENA_BYTES, 7, "the arena of a lost peer");
  CHECK_OK(bl_transport_peer_arena(pair.transport[1], 0, 0, &again, &bytes, &err), err);
  assert_ptr_not_equal(again, base);
  bl_transport_abort(pair.transport[1]);
  assert_int_equal(bl_transport_peer_arena(pair.transport[1], 0, 0, &again, &bytes, &err), BL_CANCELLED);
  assert_true(is_mapped(base));
  CHECK_OK(bl_transport_begin(pair.transport[1], 3, &err), err);
  wait_until_unmapped(base);
  assert_true(is_mapped(again)); // its link is up

  bl_transport_destroy(pair.transport[0]); // nothing is pinned: the loss ends the map
  wait_until_unmapped(again);
  CHECK_OK(bl_transport_create(&pair.options[0], &pair.transport[0], &err), err);
  pair_connect(&pair, BL_PATH_TCP);
  CHECK_OK(bl_transport_begin(pair.transport[1], 4, &err), err);
  assert_int_equal(bl_transport_peer_arena(pair.transport[1], 0, 0, &again, &bytes, &err), BL_PRECONDITION);
  assert_string_equal(err.text, "arena 0 of stage 0: the path to it is not shm");
  assert_false(bl_transport_peer_arenas_live(pair.transport[1], 0));
  pair_close(&pair);
}

// Also those of a peer that was lost before.
static void pinned_maps_end_with_their_hub(void **state) {
  (void)state;
  for (int first = 0; first < 2; first++) {
    const uint8_t *base = NULL;
    uint64_t bytes = 0;
    pair_t pair;
    bl_error_t err;
    pair_open(&pair, BL_PATH_SHM);
    pair_begin(&pair, 1);
    CHECK_OK(bl_transport_peer_arena(pair.transport[1], 0, 0, &base, &bytes, &err), err);
    bl_transport_destroy(pair.transport[first]);
    pair.transport[first] = NULL;
    assert_int_equal(is_mapped(base), first == 0); // transport 1 has the map
    pair_close(&pair);
    assert_false(is_mapped(base));
  }
}

static void expect_path(const pair_t *pair, bl_path_t path, const char *reason) {
  for (int i = 0; i < 2; i++) {
    bl_transport_path_t shown;
    assert_int_equal(bl_transport_paths(pair->transport[i], &shown, 1), 1);
    assert_true(shown.connected);
    assert_int_equal(shown.peer, !i);
    assert_string_equal(bl_path_name(shown.path), bl_path_name(path));
    if (strncmp(shown.reason, reason, strlen(reason)) != 0) {
      fail_msg("the reason is \"%s\", expected \"%s...\"", shown.reason, reason);
    }
    assert_int_equal(shown.mapped_bytes, path == BL_PATH_SHM ? PAIR_ARENA_BYTES : 0);
  }
}

static void auto_chooses_and_says_why(void **state) {
  (void)state;
  pair_t pair;
  pair_open(&pair, BL_PATH_AUTO);
  expect_path(&pair, BL_PATH_SHM, "shm: same machine");
  pair_close(&pair);

  pair_init(&pair);
  pair.options[1].machine = "another/1";
  pair_listen(&pair);
  pair_connect(&pair, BL_PATH_AUTO);
  expect_path(&pair, BL_PATH_TCP, "tcp: peer is on another machine");
  pair_close(&pair);

  pair_init(&pair);
  pair.options[1].unix_path = NULL;
  pair_listen(&pair);
  pair_connect(&pair, BL_PATH_AUTO);
  expect_path(&pair, BL_PATH_TCP, "tcp: there is no unix socket at both ends");
  pair_close(&pair);

  pair_init(&pair); // the texts agree but the socket cannot be reached, as behind another mount namespace
  pair_listen(&pair);
  assert_int_equal(unlink(pair.unix_path[1]), 0);
  pair_connect(&pair, BL_PATH_AUTO);
  expect_path(&pair, BL_PATH_TCP, "tcp: shm failed: connect to unix:");
  pair_close(&pair);

  pair_open(&pair, BL_PATH_TCP);
  expect_path(&pair, BL_PATH_TCP, "tcp: asked for");
  pair_close(&pair);
}

static void connecting_fails_with_a_cause(void **state) {
  (void)state;
  pair_t pair;
  bl_error_t err;
  bl_transport_peer_t peer;
  pair_init(&pair);
  pair_listen(&pair);
  for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
    pair_peer(&pair, 1, &peer);
    peer.token[15] ^= 1;
    assert_int_equal(bl_transport_connect_wait(pair.transport[0], &peer, 1, paths[i], soon(), &err),
                     BL_UNAUTHENTICATED);
    assert_non_null(strstr(err.text, "stage 1: refused: stage 1: wrong token"));
    pair_peer(&pair, 1, &peer);
    peer.stage = 2;
    assert_int_equal(bl_transport_connect_wait(pair.transport[0], &peer, 1, paths[i], soon(), &err), BL_INVALID);
    assert_non_null(strstr(err.text, "this is stage 1, not stage 2"));
  }
  pair_peer(&pair, 0, &peer); // stage 1 waits for stage 0, who does not come
  uint64_t deadline = bl_clock_now_ns() + 100ull * BL_NS_PER_MS;
  assert_int_equal(bl_transport_connect_wait(pair.transport[1], &peer, 1, BL_PATH_AUTO, deadline, &err), BL_DEADLINE);
  assert_non_null(strstr(err.text, "stage 0"));
  pair_peer(&pair, 1, &peer);
  peer.tcp_address = "192.0.2.1:9";
  assert_int_equal(bl_transport_connect_wait(pair.transport[0], &peer, 1, BL_PATH_TCP, soon(), &err), BL_DENIED);
  assert_non_null(strstr(err.text, "not encrypted"));
  peer.tcp_address = "somewhere:9";
  assert_int_equal(bl_transport_connect_wait(pair.transport[0], &peer, 1, BL_PATH_TCP, soon(), &err), BL_INVALID);
  peer.tcp_address = "";
  assert_int_equal(bl_transport_connect_wait(pair.transport[0], &peer, 1, BL_PATH_TCP, soon(), &err), BL_UNAVAILABLE);
  peer.stage = 0;
  assert_int_equal(bl_transport_connect_wait(pair.transport[0], &peer, 1, BL_PATH_TCP, soon(), &err), BL_INVALID);
  assert_true(bl_transport_counters(pair.transport[1]).links_refused >= 4);
  pair_close(&pair);
}

static void bad_options_are_refused(void **state) {
  (void)state;
  pair_t pair;
  bl_error_t err;
  bl_transport_t *transport = NULL;
  pair_init(&pair);
  pair_listen(&pair);
  bl_transport_options_t options = pair.options[0];
  assert_int_equal(bl_transport_create(&options, &transport, &err), BL_PRECONDITION); // its socket is served already
  assert_non_null(strstr(err.text, "another process listens"));
  options.unix_path = NULL;
  options.tcp_host = "0.0.0.0";
  assert_int_equal(bl_transport_create(&options, &transport, &err), BL_DENIED);
  options.plaintext_ok = true;
  assert_int_equal(bl_transport_create(&options, &transport, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "advertise"));
  options.tcp_host = NULL;
  assert_int_equal(bl_transport_create(&options, &transport, &err), BL_INVALID);
  bl_arena_t private = {.fd = -1, .bytes = 4096};
  options = (bl_transport_options_t){.stage = 0, .tcp_host = "127.0.0.1", .arenas = &private, .arena_count = 1};
  assert_int_equal(bl_transport_create(&options, &transport, &err), BL_INVALID);
  assert_null(transport);
  pair_close(&pair);
}

static void misuse_is_refused(void **state) {
  (void)state;
  FOR_EACH_PATH(path) {
    pair_t pair;
    bl_error_t err;
    uint8_t to[64];
    pair_init(&pair);
    pair.options[0].max_in_flight = pair.options[1].max_in_flight = 4;
    pair_listen(&pair);
    pair_connect(&pair, path);
    bl_transport_t *transport = pair.transport[1];
    assert_int_equal(bl_transport_post_receive(transport, 0, key_of(0), to, 8, &err),
                     BL_PRECONDITION); // no attempt yet
    pair_begin(&pair, 1);
    assert_int_equal(bl_transport_post_receive(transport, 0, key_of(0), to, 0, &err), BL_INVALID);
    assert_int_equal(bl_transport_post_receive(transport, 7, key_of(0), to, 8, &err), BL_INVALID);
    assert_int_equal(bl_transport_wait_received(transport, 0, key_of(0), soon(), &err), BL_PRECONDITION);
    assert_int_equal(bl_transport_wait_sent(transport, 0, key_of(0), soon(), &err), BL_OK);
    CHECK_OK(bl_transport_post_receive(transport, 0, key_of(0), to, 8, &err), err);
    assert_int_equal(bl_transport_post_receive(transport, 0, key_of(0), to, 8, &err), BL_PRECONDITION);
    for (uint32_t i = 1; i < 4; i++) {
      CHECK_OK(bl_transport_post_receive(transport, 0, key_of(i), to, 8, &err), err);
    }
    assert_int_equal(bl_transport_post_receive(transport, 0, key_of(4), to, 8, &err), BL_EXHAUSTED);
    bl_status_t outside = bl_transport_post_send(transport, 0, key_of(0), to, 8, &err);
    assert_int_equal(outside, path == BL_PATH_SHM ? BL_INVALID : BL_OK);
    uint8_t *end = pair.arena[1].base + PAIR_ARENA_BYTES;
    outside = bl_transport_post_send(transport, 0, key_of(1), end - 4, 8, &err);
    if (path == BL_PATH_SHM) {
      assert_int_equal(outside, BL_INVALID);
      assert_non_null(strstr(err.text, "no arena"));
    }
    pair_close(&pair);
  }
}

// The two ends disagree about a tensor's size: whoever notices first says so, and both stop waiting.
static void sizes_must_agree(void **state) {
  (void)state;
  FOR_EACH_PATH(path) {
    pair_t pair;
    bl_error_t err;
    uint8_t to[64];
    pair_open(&pair, path);
    pair_begin(&pair, 1);
    CHECK_OK(bl_transport_post_receive(pair.transport[1], 0, key_of(0), to, 64, &err), err);
    bl_status_t posted = bl_transport_post_send(pair.transport[0], 1, key_of(0), pair.arena[0].base, 32, &err);
    bl_status_t waited = bl_transport_wait_received(pair.transport[1], 0, key_of(0), soon(), &err);
    if (posted == BL_OK) {
      assert_true(waited == BL_INTERNAL || waited == BL_UNAVAILABLE);
    } else {
      assert_int_equal(posted, BL_INVALID);
    }
    pair_close(&pair);
  }
}

static void nothing_is_left_behind(void **state) {
  (void)state;
  unsigned before = count_descriptors(0);
  for (int i = 0; i < 6; i++) {
    pair_t pair;
    bl_error_t err;
    pair_open(&pair, paths[i % 2]);
    pair_begin(&pair, 1);
    CHECK_OK(bl_transport_post_send(pair.transport[0], 1, key_of(0), pair.arena[0].base, 1u << 20, &err),
             err); // never received
    pair_close(&pair);
  }
  assert_int_equal(count_descriptors(0), before);
}

// ---- a shared transfer thread ---------------------------------------------------------------------------------------

static void exchange_tensors(pair_t *pair, uint64_t attempt, uint64_t bytes, uint8_t *to) {
  bl_error_t err;
  pair_begin(pair, attempt);
  CHECK_OK(bl_transport_post_receive(pair->transport[1], 0, key_of(1), to, bytes, &err), err);
  CHECK_OK(bl_transport_post_send(pair->transport[0], 1, key_of(1), pair->arena[0].base, bytes, &err), err);
}

static void wait_for_tensors(pair_t *pair, uint64_t seed, uint64_t bytes, const uint8_t *to) {
  bl_error_t err;
  CHECK_OK(bl_transport_wait_received(pair->transport[1], 0, key_of(1), soon(), &err), err);
  CHECK_OK(bl_transport_wait_sent(pair->transport[0], 1, key_of(1), soon(), &err), err);
  pattern_check(to, bytes, seed, "a shared thread");
}

// Four transports on one thread, both ends of every link among them; some go while others move tensors.
static void hubs_share_a_thread(void **state) {
  (void)state;
  const uint64_t bytes = PAIR_ARENA_BYTES - 5;
  bl_loop_thread_t *thread;
  bl_error_t err;
  const unsigned before = count_descriptors(0);
  CHECK_OK(bl_loop_thread_create("shared", &thread, &err), err);
  pair_t pairs[2];
  uint8_t *to[2];
  FOR_EACH_PATH(path) {
    for (int i = 0; i < 2; i++) {
      pair_init(&pairs[i]);
      pairs[i].options[0].thread = pairs[i].options[1].thread = thread;
      pair_listen(&pairs[i]);
      pair_connect(&pairs[i], path);
      pattern_fill(pairs[i].arena[0].base, bytes, (uint64_t)i);
      to[i] = malloc(bytes);
      assert_non_null(to[i]);
    }
    for (uint64_t attempt = 1; attempt <= 3; attempt++) {
      exchange_tensors(&pairs[0], attempt, bytes, to[0]);
      exchange_tensors(&pairs[1], attempt, bytes, to[1]);
      wait_for_tensors(&pairs[0], 0, bytes, to[0]);
      wait_for_tensors(&pairs[1], 1, bytes, to[1]);
    }
    exchange_tensors(&pairs[0], 4, bytes, to[0]);
    exchange_tensors(&pairs[1], 4, bytes, to[1]);
    pair_close(&pairs[0]); // on its way: given up
    wait_for_tensors(&pairs[1], 1, bytes, to[1]);
    pair_close(&pairs[1]);
    free(to[0]);
    free(to[1]);
  }
  bl_loop_thread_destroy(thread);
  assert_int_equal(count_descriptors(0), before);
}

#define CROWD 48

typedef struct {
  bl_message_t message;
  atomic_bool released;
} held_t;

static void hold(bl_message_t *message) {
  held_t *held = BL_MESSAGE_OWNER(message, held_t, message);
  while (!atomic_load(&held->released)) {
    sched_yield();
  }
}

typedef struct {
  atomic_uint over, well;
  bl_error_t err; // of one that failed
} crowd_t;

static void crowd_connected(void *user, bl_status_t status, const bl_error_t *err) {
  crowd_t *crowd = user;
  if (status != BL_OK) {
    crowd->err = *err;
  }
  atomic_fetch_add(&crowd->well, status == BL_OK);
  atomic_fetch_add(&crowd->over, 1);
}

static void nothing(void *context) {
  (void)context;
}

// Every lower stage connects before the highest one, which is late, has heard any of them.
static void many_peers_connect_at_once(void **state) {
  (void)state;
  bl_loop_thread_t *late, *others;
  bl_error_t err;
  CHECK_OK(bl_loop_thread_create("late", &late, &err), err);
  CHECK_OK(bl_loop_thread_create("others", &others, &err), err);
  char folder[] = "/tmp/ballast-test-XXXXXX", path[sizeof folder + 16];
  assert_non_null(mkdtemp(folder));
  bl_transport_t *transports[CROWD + 1];
  for (int i = 0; i <= CROWD; i++) {
    snprintf(path, sizeof path, "%s/%d.sock", folder, i);
    const bl_transport_options_t options = {.stage = i, .unix_path = path, .thread = i == CROWD ? late : others};
    CHECK_OK(bl_transport_create(&options, &transports[i], &err), err);
  }
  held_t held = {.message.handle = hold};
  bl_loop_post(bl_loop_thread_loop(late), &held.message);
  bl_transport_peer_t peer = {.stage = CROWD,
                              .unix_address = bl_transport_unix_address(transports[CROWD]),
                              .machine = bl_transport_machine(transports[CROWD])};
  memcpy(peer.token, bl_transport_token(transports[CROWD]), sizeof peer.token);
  crowd_t crowd = {0};
  for (int i = 0; i < CROWD; i++) {
    CHECK_OK(bl_transport_connect(transports[i], &peer, 1, BL_PATH_SHM, soon(), crowd_connected, &crowd, &err), err);
  }
  bl_loop_thread_call(others, nothing, NULL); // all have connected
  atomic_store(&held.released, true);
  while (atomic_load(&crowd.over) < CROWD) {
    sched_yield();
  }
  if (atomic_load(&crowd.well) < CROWD) {
    fail_msg("%u of %d: %s", atomic_load(&crowd.well), CROWD, crowd.err.text);
  }
  for (int i = 0; i <= CROWD; i++) {
    bl_transport_destroy(transports[i]);
  }
  bl_loop_thread_destroy(late);
  bl_loop_thread_destroy(others);
  assert_int_equal(rmdir(folder), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(moves_tensors_in_any_order),
      cmocka_unit_test(bytes_to_another_machine_are_counted),
      cmocka_unit_test(attempts_separate_old_from_new),
      cmocka_unit_test(giving_up_leaves_memory_alone),
      cmocka_unit_test(abort_wakes_waiters),
      cmocka_unit_test(lost_peers_end_waits_and_come_back),
      cmocka_unit_test(pinned_maps_outlive_their_peer),
      cmocka_unit_test(pinned_maps_end_with_their_hub),
      cmocka_unit_test(auto_chooses_and_says_why),
      cmocka_unit_test(connecting_fails_with_a_cause),
      cmocka_unit_test(bad_options_are_refused),
      cmocka_unit_test(misuse_is_refused),
      cmocka_unit_test(sizes_must_agree),
      cmocka_unit_test(nothing_is_left_behind),
      cmocka_unit_test(hubs_share_a_thread),
      cmocka_unit_test(many_peers_connect_at_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
