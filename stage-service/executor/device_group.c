// SPDX-License-Identifier: Apache-2.0
#include "executor/device_group.h"

#include "sys/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// A peer that is alive but silent for this long is broken. The driver notices dead and stopped peers much earlier.
#define PEER_DEADLINE_NS (3600ull * BL_NS_PER_S)
#define LOOK_NS          (20ull * BL_NS_PER_MS) // at the cancellation of the run, while a communicator is created

static const bl_group_t *ranks_of(const bl_device_group_t *group) {
  return &group->owner->group;
}

static int32_t rank_of(const bl_device_group_t *group, uint32_t member) {
  return (int32_t)bl_tensor_group_rank(group->owner, member);
}

// ---- notes

typedef uint8_t note_t[BL_NOTE_BYTES];

static bool is_cancelled(const bl_device_group_t *group) {
  return atomic_load(group->owner->cancelled);
}

typedef struct awaited {
  int32_t rank;
  uint32_t number;
  uint8_t *note;
} awaited_t;

static bl_status_t wait_for_note(bl_engine_t *engine, const void *what, uint64_t deadline_ns, bl_error_t *err) {
  const awaited_t *awaited = what;
  return bl_transport_wait_note(engine->transport, awaited->rank, awaited->number, deadline_ns, awaited->note, err);
}

static bl_status_t wait_note(bl_device_group_t *group, uint32_t member, uint32_t number, note_t note, bl_error_t *err) {
  const awaited_t awaited = {.rank = rank_of(group, member), .number = number, .note = note};
  return bl_engine_wait_for(group->owner->engine, wait_for_note, &awaited, bl_clock_now_ns() + PEER_DEADLINE_NS, err);
}

// Sends a note to every other rank, and reads theirs. `notes` has one for each rank; the own one is set.
static bl_status_t exchange_notes(bl_device_group_t *group, note_t *notes, bl_error_t *err) {
  const bl_group_t *ranks = ranks_of(group);
  bl_transport_t *transport = group->owner->engine->transport;
  const uint32_t number = group->notes++;
  const uint64_t start_ns = bl_stall_begin(group->owner->stall);
  bl_status_t status = BL_OK;
  for (uint32_t member = 0; member < ranks->ranks && status == BL_OK; member++) {
    if (member != ranks->rank) {
      status = bl_transport_post_note(transport, rank_of(group, member), number, notes[ranks->rank], err);
    }
  }
  for (uint32_t member = 0; member < ranks->ranks && status == BL_OK; member++) {
    if (member != ranks->rank) {
      status = wait_note(group, member, number, notes[member], err);
    }
  }
  bl_stall_count(group->owner->stall, start_ns);
  return status;
}

// ---- the communicator

static void close_channel(bl_device_group_t *group) {
  pthread_mutex_lock(&group->mutex);
  bl_nccl_channel_t *channel = group->channel;
  group->channel = NULL;
  group->owner->engine->has_group = false;
  group->generation = 0;
  pthread_mutex_unlock(&group->mutex);
  bl_nccl_channel_close(channel);
}

// The first rank draws the id, the others receive it.
static bl_status_t share_id(bl_device_group_t *group, uint8_t id[BL_NCCL_ID_BYTES], bl_error_t *err) {
  _Static_assert(BL_NCCL_ID_BYTES <= BL_NOTE_BYTES, "an id fits into a note");
  const bl_group_t *ranks = ranks_of(group);
  bl_transport_t *transport = group->owner->engine->transport;
  const uint32_t number = group->notes++;
  note_t note = {0};
  if (ranks->rank > 0) {
    bl_status_t status =
        bl_transport_wait_note(transport, rank_of(group, 0), number, bl_clock_now_ns() + PEER_DEADLINE_NS, note, err);
    memcpy(id, note, BL_NCCL_ID_BYTES);
    return status;
  }
  bl_status_t status = bl_nccl_engine_new_id(group->owner->engine->nccl, id, err);
  memcpy(note, id, BL_NCCL_ID_BYTES);
  for (uint32_t member = 1; member < ranks->ranks && status == BL_OK; member++) {
    status = bl_transport_post_note(transport, rank_of(group, member), number, note, err);
  }
  return status;
}

static bl_status_t wait_ready(const bl_device_group_t *group, bl_nccl_channel_t *channel, bl_error_t *err) {
  bl_status_t status;
  do {
    bl_error_clear(err);
    status = is_cancelled(group) ? bl_error_set(err, BL_CANCELLED, "the attempt was aborted")
                                 : bl_nccl_channel_wait(channel, bl_clock_now_ns() + LOOK_NS, err);
  } while (status == BL_DEADLINE && !bl_nccl_state_has_ended(bl_nccl_channel_state(channel, NULL)));
  return status;
}

static bl_status_t create_channel(bl_device_group_t *group, uint32_t generation, bl_error_t *err) {
  const bl_group_t *ranks = ranks_of(group);
  bl_engine_t *engine = group->owner->engine;
  char name[BL_NCCL_NAME_BYTES];
  snprintf(name, sizeof name, "the %u tensor ranks of stage %" PRIu32 " of replica %" PRIu32, ranks->ranks,
           engine->coords.stage, engine->coords.data);
  bl_nccl_channel_options_t options = {.name = name, .rank = (int)ranks->rank, .group_ranks = ranks->ranks};
  bl_nccl_channel_t *channel = NULL;
  close_channel(group);
  bl_status_t status = share_id(group, options.id, err);
  status = status == BL_OK ? bl_nccl_channel_open(engine->nccl, &options, &channel, err) : status;
  if (status != BL_OK) {
    return status;
  }
  const uint64_t start_ns = bl_stall_begin(group->owner->stall);
  status = wait_ready(group, channel, err);
  bl_stall_count(group->owner->stall, start_ns);
  pthread_mutex_lock(&group->mutex);
  group->channel = channel;
  group->owner->engine->has_group = true;
  group->generation = generation;
  pthread_mutex_unlock(&group->mutex);
  if (is_cancelled(group)) { // an interrupt may not have seen it
    bl_device_group_interrupt(group);
  }
  return status;
}

static uint32_t usable_generation(const bl_device_group_t *group) {
  const bl_nccl_state_t state = group->channel == NULL ? BL_NCCL_NONE : bl_nccl_channel_state(group->channel, NULL);
  return state == BL_NCCL_READY || state == BL_NCCL_IN_USE ? group->generation : 0;
}

// What a rank says when an attempt begins.
typedef struct {
  uint32_t usable;     // generation of its communicator; 0: it needs a new one
  uint32_t generation; // of its last one
  int32_t nccl;        // version
  uint32_t shared_gpu;
  char gpu[BL_GPU_BYTES];
} hello_t;
_Static_assert(sizeof(hello_t) <= BL_NOTE_BYTES, "it fits into a note");

static hello_t hello_of(const note_t note) {
  hello_t hello;
  memcpy(&hello, note, sizeof hello);
  hello.gpu[sizeof hello.gpu - 1] = '\0';
  return hello;
}

static hello_t own_hello(const bl_device_group_t *group) {
  const bl_block_memory_t *block_memory = &group->owner->engine->block_memory;
  hello_t hello = {.usable = usable_generation(group),
                   .generation = group->generation,
                   .nccl = block_memory->nccl,
                   .shared_gpu = block_memory->shared_gpu};
  memcpy(hello.gpu, block_memory->gpu, sizeof hello.gpu);
  return hello;
}

static bl_path_end_t end_of(const bl_device_group_t *group, uint32_t member, const hello_t *hello,
                            char name[BL_GRID_NAME_BYTES]) {
  const bl_grid_t *grid = &group->owner->engine->training.grid;
  return (bl_path_end_t){.name = bl_grid_name(grid, (uint32_t)rank_of(group, member), name),
                         .gpu = hello->gpu,
                         .nccl = hello->nccl,
                         .shared_gpu = hello->shared_gpu != 0,
                         .tcp_address = true};
}

// Refuses what NCCL refuses, in words that say what to do. All ranks come to the same result.
static bl_status_t check_pair(const bl_device_group_t *group, const note_t *notes, uint32_t a, uint32_t b,
                              bl_error_t *err) {
  const hello_t first = hello_of(notes[a]), second = hello_of(notes[b]);
  char names[2][BL_GRID_NAME_BYTES], why[BL_PATH_REASON_BYTES];
  const bl_path_end_t one = end_of(group, a, &first, names[0]), two = end_of(group, b, &second, names[1]);
  return bl_path_obstacle(&one, &two, BL_PATH_NCCL, why)
             ? bl_error_set(err, BL_PRECONDITION, "%s exchanges rows with other tensor ranks by NCCL: %s", names[0],
                            why)
             : BL_OK;
}

static bl_status_t check_pairs(const bl_device_group_t *group, const note_t *notes, bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (uint32_t b = 1; b < ranks_of(group)->ranks && status == BL_OK; b++) {
    for (uint32_t a = 0; a < b && status == BL_OK; a++) {
      status = check_pair(group, notes, a, b, err);
    }
  }
  return status;
}

// Communicators with other ranks that were lost are created anew when an attempt begins. NCCL waits for the device
// then, which must not have collectives yet, because these wait for other ranks.
static bl_status_t wait_for_links(const bl_device_group_t *group, bl_error_t *err) {
  const struct timespec pause = {.tv_nsec = BL_ENGINE_POLL_NS};
  while (!is_cancelled(group) && !bl_transport_is_whole(group->owner->engine->transport)) {
    nanosleep(&pause, NULL);
  }
  return is_cancelled(group) ? bl_error_set(err, BL_CANCELLED, "the attempt was aborted") : BL_OK;
}

bl_status_t bl_device_group_begin(bl_device_group_t *group, bl_error_t *err) {
  const bl_group_t *ranks = ranks_of(group);
  note_t notes[BL_GROUP_PROGRESS_MEMBERS] = {{0}};
  const hello_t own = own_hello(group);
  memcpy(notes[ranks->rank], &own, sizeof own);
  group->notes = 0;
  // An interrupt may have come before the transport began the attempt, which then does not know of it.
  bl_status_t status = wait_for_links(group, err);
  if (status == BL_OK) {
    status = exchange_notes(group, notes, err);
  }
  if (status == BL_OK) {
    status = check_pairs(group, notes, err);
  }
  uint32_t highest = 0;
  bool same = own.usable != 0;
  for (uint32_t member = 0; member < ranks->ranks && status == BL_OK; member++) {
    const hello_t theirs = hello_of(notes[member]);
    same = same && theirs.usable == own.usable;
    highest = theirs.generation > highest ? theirs.generation : highest;
  }
  return status != BL_OK || same ? status : create_channel(group, highest + 1, err);
}

bl_status_t bl_device_group_check(bl_device_group_t *group, bl_error_t *err) {
  return bl_nccl_channel_check(group->channel, err);
}

void bl_device_group_interrupt(bl_device_group_t *group) {
  pthread_mutex_lock(&group->mutex);
  if (group->channel != NULL) {
    bl_nccl_channel_abort(group->channel, BL_CANCELLED, "the attempt was aborted");
  }
  pthread_mutex_unlock(&group->mutex);
}

// ---- collectives

static bl_device_group_t *self_of(bl_group_t *group) {
  return ((bl_tensor_group_t *)(void *)group)->device;
}

// The stream keeps the order: what is sent from a window has left it before what is queued next.
static bl_status_t acquire(bl_group_t *group, uint32_t window, bl_error_t *err) {
  (void)group;
  (void)window;
  (void)err;
  return BL_OK;
}

static bl_status_t gather(bl_group_t *group, uint32_t window, uint64_t block_bytes, bl_error_t *err) {
  const bl_device_group_t *self = self_of(group);
  return bl_nccl_channel_gather(self->channel, self->owner->engine->stream, group->windows[window], block_bytes, err);
}

static bl_status_t exchange(bl_group_t *group, uint32_t window, uint64_t block_bytes, const void **blocks,
                            bl_error_t *err) {
  const bl_device_group_t *self = self_of(group);
  const uint32_t here = group->parts / group->ranks;
  uint32_t count = 0;
  for (uint32_t part = 0; part < group->parts; part++) {
    const uint32_t member = part / here, piece = part % here;
    if (member == group->rank) {
      continue;
    }
    uint8_t *to = bl_tensor_group_staged(self->owner, part, block_bytes);
    uint8_t *from = group->windows[window] + ((uint64_t)piece * group->ranks + member) * block_bytes;
    self->pieces[count++] = (bl_nccl_piece_t){.buffer = to, .bytes = block_bytes, .rank = member};
    self->pieces[count++] = (bl_nccl_piece_t){.buffer = from, .bytes = block_bytes, .rank = member, .sends = true};
    blocks[part] = to;
  }
  return bl_nccl_channel_exchange(self->channel, self->owner->engine->stream, self->pieces, count, err);
}

static bl_status_t agree(bl_group_t *group, bool here, bool *any, bl_error_t *err) {
  note_t notes[BL_GROUP_PROGRESS_MEMBERS] = {{0}};
  notes[group->rank][0] = here;
  bl_status_t status = exchange_notes(self_of(group), notes, err);
  *any = false;
  for (uint32_t member = 0; member < group->ranks; member++) {
    *any = *any || notes[member][0] != 0;
  }
  return status;
}

const bl_group_transport_t bl_device_group_transport = {
    .acquire = acquire, .gather = gather, .exchange = exchange, .agree = agree};

// ---- creation

bl_status_t bl_device_group_create(bl_tensor_group_t *owner, bl_device_group_t **group, bl_error_t *err) {
  bl_device_group_t *made = calloc(1, sizeof *made);
  bl_nccl_piece_t *pieces = calloc(2 * (size_t)owner->group.parts, sizeof *pieces);
  if (made == NULL || pieces == NULL) {
    free(made);
    free(pieces);
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the stage's tables");
  }
  made->owner = owner;
  made->pieces = pieces;
  pthread_mutex_init(&made->mutex, NULL);
  *group = made;
  return BL_OK;
}

void bl_device_group_destroy(bl_device_group_t *group) {
  if (group == NULL) {
    return;
  }
  close_channel(group);
  pthread_mutex_destroy(&group->mutex);
  free(group->pieces);
  free(group);
}
