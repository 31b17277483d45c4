// SPDX-License-Identifier: Apache-2.0
#include "executor/arena_parking.h"

#include "base/hash.h"
#include "base/random.h"
#include "datapath/block.h"
#include "sys/clock.h"
#include "sys/condition.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define NO_STORE_SLOT UINT32_MAX

typedef enum { ABSENT, QUEUED, MOVING, OVER, KEPT } state_t;

typedef struct {
  bl_parked_block_t block;
  uint64_t checksum; // of its eviction
  state_t state;
  bool load;           // direction of the transfer
  bool given_up;       // its waiter left
  uint8_t *slot;       // source or destination
  uint32_t store_slot; // or NO_STORE_SLOT
  uint64_t turn;       // place in the order
  bl_parking_outcome_t outcome;
} entry_t;

struct arena_parking {
  bl_parking_t parking;
  arena_parking_options_t options;
  pthread_t thread;
  pthread_mutex_t mutex;
  pthread_cond_t work, over; // CLOCK_MONOTONIC
  entry_t *entries;          // [virtual stages * micro-batches]
  uint32_t entry_count;
  bool *taken; // [store_slots]
  uint8_t *arena;
  uint64_t attempt, turns;
  bool interrupted, stopping;
  arena_parking_counters_t counters;
};

enum { DRAW_REFUSE, DRAW_FAIL, DRAW_LOSE, DRAW_FLIP, DRAW_BIT, DRAW_DELAY_OUT, DRAW_DELAY_IN };

static arena_parking_t *arena_of(bl_parking_t *parking) {
  return (arena_parking_t *)(void *)parking;
}

static entry_t *entry_of(const arena_parking_t *arena, bl_parking_key_t key) {
  return &arena->entries[(size_t)key.virtual_stage * arena->options.micro_batches + key.micro_batch];
}

static uint64_t stream_of(const arena_parking_t *arena, bl_parking_key_t key) {
  uint64_t words[4] = {arena->options.seed, key.attempt, key.virtual_stage, key.micro_batch};
  return bl_hash64(words, sizeof words, 0);
}

static bool happens(const arena_parking_t *arena, bl_parking_key_t key, int draw, double probability) {
  return bl_random_uniform(stream_of(arena, key), (uint64_t)draw) < probability;
}

// ---- the thread that moves bytes

static void leave_store_slot(arena_parking_t *arena, entry_t *entry) {
  if (entry->store_slot != NO_STORE_SLOT) {
    arena->taken[entry->store_slot] = false;
    entry->store_slot = NO_STORE_SLOT;
  }
}

static uint8_t *store_slot_of(const arena_parking_t *arena, const entry_t *entry) {
  return arena->arena + entry->store_slot * arena->options.store_slot_bytes;
}

// Waits for the device where it is told ahead, and copies; the store slot is where the checksum of a block is looked
// at. The checksum of a block that leaves from a twin of its slot is known now.
static void move_bytes(const arena_parking_t *arena, entry_t *entry, void *to, const void *from) {
  bl_device_t *device = arena->options.device;
  if (device != NULL && bl_device_event_wait(device, entry->block.ready, UINT64_MAX, NULL) != BL_OK) {
    abort();
  }
  if (device != NULL && !arena->options.twins) {
    if (bl_device_copy(device, NULL, to, from, entry->block.bytes, NULL) != BL_OK) {
      abort();
    }
    return;
  }
  if (device != NULL && !entry->load) {
    entry->checksum = bl_block_checksum(from, entry->block.bytes);
  }
  memcpy(to, from, entry->block.bytes);
}

// Of slots on a device the executor looks at what comes back, by the device's own checksum.
static bool is_whole(const arena_parking_t *arena, const entry_t *entry) {
  const bool on_device = arena->options.device != NULL && !arena->options.twins;
  return on_device || bl_block_checksum(entry->load ? entry->slot : store_slot_of(arena, entry), entry->block.bytes) ==
                          entry->checksum;
}

static void flip_bit(arena_parking_t *arena, entry_t *entry) {
  uint64_t bit = bl_random_below(stream_of(arena, entry->block.key), DRAW_BIT, entry->block.bytes * 8);
  store_slot_of(arena, entry)[bit / 8] ^= (uint8_t)(1u << (bit % 8));
  arena->counters.flipped++;
}

// The copies run without the lock: the entry is MOVING, so nobody else touches its memory.
static void move_out(arena_parking_t *arena, entry_t *entry) {
  for (uint32_t i = 0; i < arena->options.store_slots && entry->store_slot == NO_STORE_SLOT; i++) {
    entry->store_slot = arena->taken[i] ? NO_STORE_SLOT : i;
  }
  if (entry->store_slot == NO_STORE_SLOT) {
    arena->counters.overflow++;
    entry->outcome = BL_PARKING_LOST;
    return;
  }
  arena->taken[entry->store_slot] = true;
  pthread_mutex_unlock(&arena->mutex);
  move_bytes(arena, entry, store_slot_of(arena, entry), entry->slot);
  bool whole = is_whole(arena, entry);
  pthread_mutex_lock(&arena->mutex);
  arena->counters.torn += !whole;
  bool fails = happens(arena, entry->block.key, DRAW_FAIL, arena->options.fail);
  arena->counters.failed += fails;
  entry->outcome = !whole || fails || entry->given_up ? BL_PARKING_LOST : BL_PARKING_DONE;
  if (entry->outcome == BL_PARKING_LOST) {
    leave_store_slot(arena, entry);
  } else if ((arena->options.flip_attempt == 0 || arena->options.flip_attempt == arena->attempt) &&
             happens(arena, entry->block.key, DRAW_FLIP, arena->options.flip)) {
    flip_bit(arena, entry);
  }
}

static void move_in(arena_parking_t *arena, entry_t *entry) {
  bool lost = happens(arena, entry->block.key, DRAW_LOSE, arena->options.lose);
  bool wanted = !lost && !entry->given_up, whole = false;
  arena->counters.lost += lost;
  if (wanted) {
    pthread_mutex_unlock(&arena->mutex);
    move_bytes(arena, entry, entry->slot, store_slot_of(arena, entry));
    whole = is_whole(arena, entry);
    pthread_mutex_lock(&arena->mutex);
    arena->counters.found += !whole;
  }
  entry->outcome = whole ? BL_PARKING_DONE : BL_PARKING_LOST;
  leave_store_slot(arena, entry);
}

static entry_t *next_of(arena_parking_t *arena) {
  entry_t *next = NULL;
  for (uint32_t i = 0; i < arena->entry_count; i++) {
    entry_t *entry = &arena->entries[i];
    if (entry->state == QUEUED && (next == NULL || entry->turn < next->turn)) {
      next = entry;
    }
  }
  return next;
}

static void *work(void *argument) {
  arena_parking_t *arena = argument;
  pthread_mutex_lock(&arena->mutex);
  while (!arena->stopping) {
    entry_t *entry = next_of(arena);
    if (entry == NULL) {
      pthread_cond_wait(&arena->work, &arena->mutex);
      continue;
    }
    entry->state = MOVING;
    int draw = entry->load ? DRAW_DELAY_IN : DRAW_DELAY_OUT;
    uint64_t delay_ns =
        bl_random_below(stream_of(arena, entry->block.key), (uint64_t)draw, arena->options.delay_ns + 1);
    const uint64_t until_ns = bl_clock_now_ns() + delay_ns;
    while (delay_ns > 0 && !entry->given_up && !arena->stopping &&
           bl_condition_wait(&arena->work, &arena->mutex, until_ns)) {
    }
    if (entry->load) {
      move_in(arena, entry);
    } else {
      move_out(arena, entry);
    }
    entry->state = OVER;
    pthread_cond_broadcast(&arena->over);
  }
  pthread_mutex_unlock(&arena->mutex);
  return NULL;
}

// ---- the seam

static bl_status_t cancelled(bl_error_t *err) {
  return bl_error_set(err, BL_CANCELLED, "the attempt was aborted");
}

// Ends whatever is under way and forgets all. Holds the lock.
static void clear(arena_parking_t *arena) {
  for (uint32_t i = 0; i < arena->entry_count; i++) {
    entry_t *entry = &arena->entries[i];
    if (entry->state == MOVING) {
      entry->given_up = true;
      pthread_cond_broadcast(&arena->work);
    } else if (entry->state == QUEUED) {
      entry->state = OVER;
    }
  }
  for (uint32_t i = 0; i < arena->entry_count; i++) {
    while (arena->entries[i].state == MOVING) {
      pthread_cond_wait(&arena->over, &arena->mutex);
    }
    leave_store_slot(arena, &arena->entries[i]);
    arena->entries[i].state = ABSENT;
  }
}

static bl_status_t begin(bl_parking_t *parking, uint64_t attempt, bl_error_t *err) {
  arena_parking_t *arena = arena_of(parking);
  pthread_mutex_lock(&arena->mutex);
  bl_status_t status = attempt > arena->attempt
                           ? BL_OK
                           : bl_error_set(err, BL_PRECONDITION, "attempt %lu comes after %lu", attempt, arena->attempt);
  if (status == BL_OK) {
    clear(arena);
    arena->attempt = attempt;
    arena->interrupted = false;
  }
  pthread_mutex_unlock(&arena->mutex);
  return status;
}

// Queues a transfer of a block that is in state `from`. Holds the lock.
static bl_status_t queue(arena_parking_t *arena, const bl_parked_block_t *block, uint8_t *slot, bool load,
                         bl_error_t *err) {
  entry_t *entry = entry_of(arena, block->key);
  state_t from = load ? KEPT : ABSENT;
  if (arena->interrupted) {
    return cancelled(err);
  }
  if (block->key.attempt != arena->attempt || entry->state != from || block->bytes > arena->options.store_slot_bytes ||
      (load && memcmp(&entry->block.key, &block->key, sizeof block->key) != 0)) {
    return bl_error_set(err, BL_INTERNAL, "block %u of attempt %lu is in state %d, expected %d", block->key.micro_batch,
                        block->key.attempt, (int)entry->state, (int)from);
  }
  entry->block = *block;
  entry->checksum = load ? entry->checksum : block->checksum;
  entry->state = QUEUED;
  entry->load = load;
  entry->given_up = false;
  entry->slot = slot;
  entry->store_slot = load ? entry->store_slot : NO_STORE_SLOT;
  entry->turn = arena->turns++;
  pthread_cond_broadcast(&arena->work);
  return BL_OK;
}

static bl_status_t begin_evict(bl_parking_t *parking, const bl_parked_block_t *block, const void *source,
                               bl_error_t *err) {
  arena_parking_t *arena = arena_of(parking);
  pthread_mutex_lock(&arena->mutex);
  bool refuses = happens(arena, block->key, DRAW_REFUSE, arena->options.refuse);
  bl_status_t status = refuses ? bl_error_set(err, BL_UNAVAILABLE, "no store takes it")
                               : queue(arena, block, (uint8_t *)(uintptr_t)source, false, err);
  arena->counters.refused += refuses;
  pthread_mutex_unlock(&arena->mutex);
  return status;
}

static bl_status_t begin_load(bl_parking_t *parking, const bl_parked_block_t *block, void *slot, bl_error_t *err) {
  arena_parking_t *arena = arena_of(parking);
  pthread_mutex_lock(&arena->mutex);
  bl_status_t status = queue(arena, block, slot, true, err);
  pthread_mutex_unlock(&arena->mutex);
  if (arena->options.on_load != NULL) {
    arena->options.on_load(arena->options.user, block);
  }
  return status;
}

static bl_status_t wait_over(bl_parking_t *parking, bl_parking_key_t key, uint64_t deadline_ns,
                             bl_parking_outcome_t *outcome, bl_error_t *err) {
  arena_parking_t *arena = arena_of(parking);
  pthread_mutex_lock(&arena->mutex);
  entry_t *entry = entry_of(arena, key);
  while (entry->state != OVER && !arena->interrupted) {
    if (entry->given_up) {
      pthread_cond_wait(&arena->over, &arena->mutex); // the thread is on its way out of it
    } else if (!bl_condition_wait(&arena->over, &arena->mutex, deadline_ns) && entry->state != OVER) {
      arena->counters.given_up++;
      entry->given_up = true; // a queued one is passed over in its turn, a moving one at once
      pthread_cond_broadcast(&arena->work);
    }
  }
  bl_status_t status = arena->interrupted ? cancelled(err) : BL_OK;
  if (status == BL_OK) {
    *outcome = entry->outcome;
    entry->state = !entry->load && entry->outcome == BL_PARKING_DONE ? KEPT : ABSENT;
  }
  pthread_mutex_unlock(&arena->mutex);
  return status;
}

static bool poll_over(bl_parking_t *parking, bl_parking_key_t key) {
  arena_parking_t *arena = arena_of(parking);
  pthread_mutex_lock(&arena->mutex);
  bool over = arena->interrupted || entry_of(arena, key)->state == OVER;
  pthread_mutex_unlock(&arena->mutex);
  return over;
}

static void abort_attempt(bl_parking_t *parking, uint64_t attempt) {
  arena_parking_t *arena = arena_of(parking);
  pthread_mutex_lock(&arena->mutex);
  if (attempt == arena->attempt) {
    clear(arena);
  }
  pthread_mutex_unlock(&arena->mutex);
}

static void interrupt(bl_parking_t *parking) {
  arena_parking_t *arena = arena_of(parking);
  pthread_mutex_lock(&arena->mutex);
  arena->interrupted = true;
  pthread_cond_broadcast(&arena->over);
  pthread_mutex_unlock(&arena->mutex);
}

// ---- the test's side

static const bl_parking_ops_t ops = {.begin = begin,
                                     .begin_evict = begin_evict,
                                     .begin_load = begin_load,
                                     .wait = wait_over,
                                     .poll = poll_over,
                                     .abort = abort_attempt,
                                     .interrupt = interrupt};

arena_parking_t *arena_parking_create(const arena_parking_options_t *options) {
  arena_parking_t *arena = calloc(1, sizeof *arena);
  if (arena == NULL) {
    abort();
  }
  arena->parking = (bl_parking_t){
      .ops = &ops, .timeout_ns = options->timeout_ns, .device_memory = options->device != NULL && !options->twins};
  arena->options = *options;
  arena->entry_count = options->virtual_stages * options->micro_batches;
  arena->entries = calloc(arena->entry_count, sizeof *arena->entries);
  arena->taken = calloc(options->store_slots + 1, sizeof *arena->taken);
  arena->arena = malloc(options->store_slots * options->store_slot_bytes + 1);
  if (arena->entries == NULL || arena->taken == NULL || arena->arena == NULL) {
    abort();
  }
  for (uint32_t i = 0; i < arena->entry_count; i++) {
    arena->entries[i].store_slot = NO_STORE_SLOT;
  }
  pthread_mutex_init(&arena->mutex, NULL);
  bl_condition_init(&arena->work);
  bl_condition_init(&arena->over);
  if (pthread_create(&arena->thread, NULL, work, arena) != 0) {
    abort();
  }
  return arena;
}

void arena_parking_destroy(arena_parking_t *arena) {
  if (arena == NULL) {
    return;
  }
  pthread_mutex_lock(&arena->mutex);
  arena->stopping = true;
  pthread_cond_broadcast(&arena->work);
  pthread_mutex_unlock(&arena->mutex);
  pthread_join(arena->thread, NULL);
  pthread_cond_destroy(&arena->over);
  pthread_cond_destroy(&arena->work);
  pthread_mutex_destroy(&arena->mutex);
  free(arena->arena);
  free(arena->taken);
  free(arena->entries);
  free(arena);
}

bl_parking_t *arena_parking_seam(arena_parking_t *arena) {
  return &arena->parking;
}

arena_parking_counters_t arena_parking_count(arena_parking_t *arena) {
  pthread_mutex_lock(&arena->mutex);
  arena_parking_counters_t counters = arena->counters;
  pthread_mutex_unlock(&arena->mutex);
  return counters;
}

uint32_t arena_parking_kept(arena_parking_t *arena) {
  uint32_t kept = 0;
  pthread_mutex_lock(&arena->mutex);
  for (uint32_t i = 0; i < arena->options.store_slots; i++) {
    kept += arena->taken[i];
  }
  pthread_mutex_unlock(&arena->mutex);
  return kept;
}
