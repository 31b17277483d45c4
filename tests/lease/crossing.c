// SPDX-License-Identifier: Apache-2.0
#include "lease/crossing.h"

#include "base/random.h"
#include "lease/holder.h"
#include "schedule/balance/device_slots.h"
#include "schedule/ir/dependency.h"
#include "schedule/ir/stage_plan.h"
#include "schedule/ir/validate.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define TRANSFERS 512 // of a world at most
#define SLOTS     64  // of a pair
#define DEPTH_MAX 6   // requests of a pair under way

typedef enum { NOT_ASKED, ASKED, GRANTED, MOVING, OVER } progress_t; // GRANTED: it waits for a slot of the store

typedef struct transfer {
  uint32_t stage, store;
  bl_op_t op; // E or L
  size_t block;
  bl_lease_token_t token;
  uint64_t sequence;
  uint32_t number; // per pair, from 0, once the store has launched it
  bool told;       // the number is at the stage
  bool launched;   // by the stage
  progress_t progress;
} transfer_t;

typedef struct queue {
  uint32_t items[TRANSFERS], first, count; // transfers
} queue_t;

typedef struct pair { // stage and store
  holder_t holder;
  uint64_t bytes; // of a block
  queue_t wanted; // by the stage, in the order of its plan
  queue_t asked;  // on the way to the store, in order, as over one connection
  bl_lease_token_t slots[SLOTS];
  uint32_t slot_count;
  uint64_t unanswered[DEPTH_MAX];
  uint32_t unanswered_count;
  bool full;                                           // no credit until something ends
  uint32_t store_end[TRANSFERS], stage_end[TRANSFERS]; // in the order of launches
  uint32_t store_launched, stage_launched, ended;
  uint32_t told; // numbers given
} pair_t;

typedef struct stage {
  bl_stage_plan_t plan;
  size_t at;
  int *leaving;   // [slots] the transfer, or -1
  size_t *inside; // [slots] the block + 1
} stage_t;

typedef struct world {
  uint64_t seed, key, draws;
  crossing_rule_t rule;
  bl_schedule_t *schedule;
  uint32_t devices, depth;
  stage_t stages[CROSSING_DEVICES];
  bl_lease_table_t *tables[CROSSING_DEVICES];
  pair_t *pairs[CROSSING_DEVICES][CROSSING_DEVICES];                     // NULL: nothing goes that way
  queue_t granted[CROSSING_DEVICES];                                     // at the store, for a slot
  uint32_t stage_slots[CROSSING_DEVICES], store_slots[CROSSING_DEVICES]; // free ones
  transfer_t transfers[TRANSFERS];
  uint32_t transfer_count;
  queue_t messages; // to stages: the numbers, in any order
  int *last;        // [blocks] its last transfer, or -1
  bool *ran;        // [blocks * types]
  crossing_outcome_t outcome;
} world_t;

static uint64_t draw(void *context, uint64_t bound) {
  world_t *world = context;
  return bl_random_below(world->key, world->draws++, bound);
}

static void require(const world_t *world, bool holds, const char *what) {
  if (!holds) {
    fail_msg("seed %" PRIu64 ": %s", world->seed, what);
  }
}

static void push(queue_t *queue, uint32_t item) {
  queue->items[(queue->first + queue->count++) % TRANSFERS] = item;
}

static void push_front(queue_t *queue, uint32_t item) {
  queue->first = (queue->first + TRANSFERS - 1) % TRANSFERS;
  queue->items[queue->first] = item;
  queue->count++;
}

static uint32_t head(const queue_t *queue) {
  return queue->items[queue->first];
}

static uint32_t pop(queue_t *queue) {
  const uint32_t item = head(queue);
  queue->first = (queue->first + 1) % TRANSFERS;
  queue->count--;
  return item;
}

static pair_t *pair_of(const world_t *world, const transfer_t *transfer) {
  return world->pairs[transfer->stage][transfer->store];
}

// ---- requests -------------------------------------------------------------------------------------------------------

static bl_lease_request_t next_request(pair_t *pair) {
  const uint64_t sequence = ++pair->holder.sequence;
  uint64_t acknowledged = sequence - 1;
  for (uint32_t i = 0; i < pair->unanswered_count; i++) {
    acknowledged = pair->unanswered[i] <= acknowledged ? pair->unanswered[i] - 1 : acknowledged;
  }
  return (bl_lease_request_t){
      .session = pair->holder.session, .key = pair->holder.key, .sequence = sequence, .acknowledged = acknowledged};
}

static void answered(pair_t *pair, uint64_t sequence) {
  for (uint32_t i = 0; i < pair->unanswered_count; i++) {
    if (pair->unanswered[i] == sequence) {
      pair->unanswered[i] = pair->unanswered[--pair->unanswered_count];
      return;
    }
  }
}

// The stage sends what is first in its plan: a load, or an eviction for which a slot is there.
static bool can_ask(const world_t *world, const pair_t *pair) {
  return pair->wanted.count > 0 && !pair->full && pair->asked.count + pair->unanswered_count < world->depth &&
         (world->transfers[head(&pair->wanted)].op.type == BL_OP_L || pair->slot_count > 0);
}

static void ask(world_t *world, pair_t *pair) {
  const uint32_t index = pop(&pair->wanted);
  transfer_t *transfer = &world->transfers[index];
  if (transfer->op.type == BL_OP_E) {
    transfer->token = pair->slots[--pair->slot_count];
  }
  transfer->progress = ASKED;
  push(&pair->asked, index);
}

static uint64_t checksum_of(const transfer_t *transfer) {
  return 1000 + transfer->block;
}

// A request arrives at the store.
static void decide(world_t *world, pair_t *pair) {
  const uint32_t index = pop(&pair->asked);
  transfer_t *transfer = &world->transfers[index];
  bl_lease_table_t *table = world->tables[transfer->store];
  const bl_lease_request_t request = next_request(pair);
  bl_lease_answer_t answer;
  bl_lease_decision_t decision;
  if (transfer->op.type == BL_OP_E) {
    const bl_lease_evict_t evict = {.token = transfer->token, .bytes = pair->bytes, .checksum = checksum_of(transfer)};
    decision = bl_lease_table_evict(table, &request, &evict, &answer);
  } else {
    decision = bl_lease_table_load(table, &request, &transfer->token, true, &answer);
  }
  if (decision == BL_LEASE_DONE) {
    require(world, answer.reason == BL_LEASE_CREDIT, bl_lease_reason_text(answer.reason));
    require(world, pair->unanswered_count > 0, "no credit, and nothing in flight");
    if (transfer->op.type == BL_OP_E) {
      pair->slots[pair->slot_count++] = transfer->token;
    }
    transfer->progress = NOT_ASKED;
    pair->full = true;
    push_front(&pair->wanted, index);
    world->outcome.refused++;
    return;
  }
  require(world, decision == BL_LEASE_BEGIN, "a request that waits for another one");
  pair->unanswered[pair->unanswered_count++] = request.sequence;
  transfer->sequence = request.sequence;
  transfer->progress = GRANTED;
  push(&world->granted[transfer->store], index);
  if (world->rule == CROSSING_EARLY) {
    transfer->number = pair->told++;
    push(&world->messages, index);
  }
}

// ---- the two ends ---------------------------------------------------------------------------------------------------

static void launch_store_end(world_t *world, uint32_t store) {
  const uint32_t index = pop(&world->granted[store]);
  transfer_t *transfer = &world->transfers[index];
  pair_t *pair = pair_of(world, transfer);
  world->store_slots[store]--;
  transfer->progress = MOVING;
  if (world->rule != CROSSING_EARLY) {
    transfer->number = pair->told++;
    push(&world->messages, index);
  }
  pair->store_end[pair->store_launched++] = index;
}

// A message comes, whichever.
static void tell(world_t *world) {
  const uint64_t which = draw(world, world->messages.count);
  for (uint64_t i = 0; i < which; i++) {
    push(&world->messages, pop(&world->messages));
  }
  world->transfers[pop(&world->messages)].told = true;
}

// What the stage may launch next of a pair; -1: nothing.
static int next_of_stage(const world_t *world, const pair_t *pair, uint32_t stage, uint32_t store) {
  for (uint32_t i = 0; i < world->transfer_count && pair->stage_launched < pair->told; i++) {
    const transfer_t *transfer = &world->transfers[i];
    if (transfer->stage == stage && transfer->store == store && transfer->told && !transfer->launched &&
        (world->rule == CROSSING_UNNUMBERED || transfer->number == pair->stage_launched)) {
      return (int)i;
    }
  }
  return -1;
}

static void launch_stage_end(world_t *world, pair_t *pair, uint32_t index) {
  world->transfers[index].launched = true;
  world->stage_slots[world->transfers[index].stage]--;
  pair->stage_end[pair->stage_launched++] = index;
}

// Both ends have launched the same.
static bool meets(const pair_t *pair) {
  return pair->ended < pair->store_launched && pair->ended < pair->stage_launched &&
         pair->store_end[pair->ended] == pair->stage_end[pair->ended];
}

static void release(world_t *world, pair_t *pair, transfer_t *transfer) {
  const bl_lease_request_t request = next_request(pair);
  const uint64_t checksum = checksum_of(transfer);
  bl_lease_answer_t answer;
  bl_lease_decision_t decision =
      bl_lease_table_release(pair->holder.table, &request, &transfer->token, &checksum, &answer);
  require(world, decision == BL_LEASE_DONE && answer.reason == BL_LEASE_GRANTED, "a release is refused");
  pair->slots[pair->slot_count++] =
      (bl_lease_token_t){transfer->token.incarnation, transfer->token.id, answer.generation};
}

static void move(world_t *world, pair_t *pair) {
  transfer_t *transfer = &world->transfers[pair->store_end[pair->ended++]];
  bl_lease_action_t action;
  bl_lease_table_transfer_ended(pair->holder.table, transfer->token.id, transfer->token.generation, true,
                                checksum_of(transfer), 0);
  bool well = bl_lease_table_next_action(pair->holder.table, &action) && action.kind == BL_LEASE_ANSWER &&
              action.sequence == transfer->sequence && action.answer.reason == BL_LEASE_GRANTED;
  require(world, well, "a transfer that ended is not answered");
  world->stage_slots[transfer->stage]++;
  world->store_slots[transfer->store]++;
  answered(pair, transfer->sequence);
  pair->full = false;
  transfer->progress = OVER;
  if (transfer->op.type == BL_OP_L) {
    release(world, pair, transfer);
  }
}

// ---- stages ---------------------------------------------------------------------------------------------------------

static bool *ran(const world_t *world, bl_op_t op, bl_op_type_t type) {
  return &world->ran[bl_schedule_block(world->schedule, op) * BL_OP_TYPES + type];
}

static bool is_over(const world_t *world, int transfer) {
  return transfer < 0 || world->transfers[transfer].progress == OVER;
}

// As the executor: executor/parked.h.
static bool can_step(const world_t *world, uint32_t s) {
  const stage_t *stage = &world->stages[s];
  if (stage->at == stage->plan.op_count) {
    return false;
  }
  const bl_planned_op_t *op = &stage->plan.ops[stage->at];
  bl_op_t needed;
  if (bl__op_dependency(world->schedule, op->op, &needed) && !*ran(world, needed, (bl_op_type_t)needed.type)) {
    return false;
  }
  bool writes = op->op.type == BL_OP_F || op->op.type == BL_OP_L;
  return is_over(world, world->last[bl_schedule_block(world->schedule, op->op)]) &&
         (!writes || is_over(world, stage->leaving[op->slot]));
}

static void want(world_t *world, uint32_t s, const bl_planned_op_t *op) {
  const size_t block = bl_schedule_block(world->schedule, op->op);
  const uint32_t index = world->transfer_count++;
  require(world, index < TRANSFERS, "more transfers than the test has room for");
  transfer_t *transfer = &world->transfers[index];
  *transfer = (transfer_t){.stage = s, .store = op->op.store, .op = op->op, .block = block};
  if (op->op.type == BL_OP_L) {
    transfer->token = world->transfers[world->last[block]].token;
  }
  world->last[block] = (int)index;
  push(&pair_of(world, transfer)->wanted, index);
}

static void step(world_t *world, uint32_t s) {
  stage_t *stage = &world->stages[s];
  const bl_planned_op_t *op = &stage->plan.ops[stage->at++];
  const size_t block = bl_schedule_block(world->schedule, op->op) + 1;
  switch (op->op.type) {
  case BL_OP_F:
    stage->inside[op->slot] = block;
    break;
  case BL_OP_E:
    require(world, stage->inside[op->slot] == block, "a block leaves from a slot that it is not in");
    want(world, s, op);
    stage->leaving[op->slot] = world->last[block - 1];
    break;
  case BL_OP_L:
    want(world, s, op);
    stage->inside[op->slot] = block;
    break;
  default:
    require(world, stage->inside[op->slot] == block, "a backward of a block that is not there");
    break;
  }
  *ran(world, op->op, (bl_op_type_t)op->op.type) = true;
  if (op->op.type == BL_OP_B) {
    *ran(world, op->op, BL_OP_I) = true;
  }
}

// ---- one thing after the other --------------------------------------------------------------------------------------

enum { OF_STAGE, OF_STORE, OF_PAIR_ASK, OF_PAIR_DECIDE, OF_PAIR_LAUNCH, OF_PAIR_MOVE, TELL, KINDS };

// Whether this could happen, and then it has.
static bool happens(world_t *world, uint64_t kind, uint32_t a, uint32_t b) {
  pair_t *pair = world->pairs[a][b];
  bool may = false;
  int index = -1;
  switch (kind) {
  case OF_STAGE:
    if ((may = b == 0 && can_step(world, a))) {
      step(world, a);
    }
    break;
  case OF_STORE:
    if ((may = b == 0 && world->granted[a].count > 0 && world->store_slots[a] > 0)) {
      launch_store_end(world, a);
    }
    break;
  case OF_PAIR_ASK:
    if ((may = pair != NULL && can_ask(world, pair))) {
      ask(world, pair);
    }
    break;
  case OF_PAIR_DECIDE:
    if ((may = pair != NULL && pair->asked.count > 0)) {
      decide(world, pair);
    }
    break;
  case OF_PAIR_LAUNCH:
    if ((may = pair != NULL && world->stage_slots[a] > 0 && (index = next_of_stage(world, pair, a, b)) >= 0)) {
      launch_stage_end(world, pair, (uint32_t)index);
    }
    break;
  case OF_PAIR_MOVE:
    if ((may = pair != NULL && meets(pair))) {
      move(world, pair);
    }
    break;
  default:
    if ((may = a == 0 && b == 0 && world->messages.count > 0)) {
      tell(world);
    }
    break;
  }
  return may;
}

static bool something_happens(world_t *world) {
  const uint64_t all = (uint64_t)KINDS * world->devices * world->devices, from = draw(world, all);
  for (uint64_t i = 0; i < all; i++) {
    const uint64_t which = (from + i) % all, place = which / KINDS;
    if (happens(world, which % KINDS, (uint32_t)(place / world->devices), (uint32_t)(place % world->devices))) {
      return true;
    }
  }
  return false;
}

// ---- worlds ---------------------------------------------------------------------------------------------------------

static void open_pairs(world_t *world, const bl_device_slots_t *device_slots) {
  for (uint32_t d = 0; d < world->devices; d++) {
    uint64_t arena = 0, bytes[CROSSING_DEVICES];
    for (uint32_t s = 0; s < world->devices; s++) {
      bytes[s] = GRANULE * (1 + draw(world, 3));
      arena += bl_device_slots_reserved(device_slots, s, d) * bytes[s];
    }
    if (arena == 0) {
      continue;
    }
    const bl_lease_config_t config = {.incarnation = id128_of(world->seed + d),
                                      .capacity_bytes = arena,
                                      .max_jobs = 1,
                                      .max_sessions = CROSSING_DEVICES,
                                      .max_leases = SLOTS * CROSSING_DEVICES,
                                      .window = 16,
                                      .history = 16,
                                      .session_flow_bytes = draw(world, 4) * 2 * GRANULE};
    require(world, bl_lease_table_create(&config, 0, &world->tables[d], NULL) == BL_OK, "no table");
    for (uint32_t s = 0; s < world->devices; s++) {
      const uint32_t slots = bl_device_slots_reserved(device_slots, s, d);
      if (slots == 0) {
        continue;
      }
      pair_t *pair = calloc(1, sizeof *pair);
      require(world, pair != NULL && slots <= SLOTS, "no room for a pair");
      world->pairs[s][d] = pair;
      pair->bytes = bytes[s];
      bool well = holder_open(&pair->holder, world->tables[d], "job", s, 1 + s, arena) == BL_LEASE_GRANTED &&
                  holder_reserve(&pair->holder, 1, pair->bytes, slots) == BL_LEASE_GRANTED &&
                  holder_slots(&pair->holder, pair->slots, SLOTS) == slots;
      require(world, well, "the plan's slots are refused");
      pair->slot_count = slots;
      drain_actions(world->tables[d]);
    }
  }
}

static void open_world(world_t *world) {
  const uint64_t blocks = bl_schedule_block_count(world->schedule);
  bl_device_slots_t device_slots;
  bl_error_t err = {0};
  if (bl_schedule_validate(world->schedule, NULL, &err) != BL_OK ||
      bl_device_slots_init(&device_slots, world->schedule, &err) != BL_OK) {
    fail_msg("seed %" PRIu64 ": %s", world->seed, err.text);
  }
  world->devices = world->schedule->stages;
  world->depth = 1 + (uint32_t)draw(world, DEPTH_MAX);
  world->last = calloc(blocks, sizeof *world->last);
  world->ran = calloc(blocks * BL_OP_TYPES, sizeof *world->ran);
  require(world, world->last != NULL && world->ran != NULL, "no memory");
  memset(world->last, 0xff, blocks * sizeof *world->last);
  for (uint32_t s = 0; s < world->devices; s++) {
    stage_t *stage = &world->stages[s];
    if (bl_stage_plan_init(world->schedule, s, (bl_plan_limits_t){0}, &stage->plan, &err) != BL_OK) {
      fail_msg("seed %" PRIu64 ": %s", world->seed, err.text);
    }
    stage->leaving = calloc(stage->plan.slots + 1, sizeof *stage->leaving);
    stage->inside = calloc(stage->plan.slots + 1, sizeof *stage->inside);
    require(world, stage->leaving != NULL && stage->inside != NULL, "no memory");
    memset(stage->leaving, 0xff, (stage->plan.slots + 1) * sizeof *stage->leaving);
    const uint32_t most = world->rule == CROSSING_EARLY ? 1 : 3; // where slots are plenty, few worlds need that rule
    world->stage_slots[s] = 1 + (uint32_t)draw(world, most);
    world->store_slots[s] = 1 + (uint32_t)draw(world, most);
  }
  open_pairs(world, &device_slots);
  bl_device_slots_cleanup(&device_slots);
}

static bool is_finished(const world_t *world) {
  bool finished = true;
  for (uint32_t s = 0; s < world->devices; s++) {
    finished = finished && world->stages[s].at == world->stages[s].plan.op_count;
  }
  return finished;
}

// Everything has come back, and the stores hold nothing.
static void check_end(world_t *world) {
  for (uint32_t i = 0; i < world->transfer_count; i++) {
    require(world, world->transfers[i].progress == OVER, "a transfer that nobody waited for");
  }
  for (uint32_t d = 0; d < world->devices; d++) {
    bl_lease_stats_t stats;
    bl_error_t err;
    if (world->tables[d] == NULL) {
      continue;
    }
    bl_lease_table_stats(world->tables[d], &stats);
    require(world, bl_lease_table_audit(world->tables[d], &err) == BL_OK, err.text);
    require(world, stats.leases[BL_LEASE_SEALED] + stats.leases[BL_LEASE_WRITING] + stats.leases[BL_LEASE_LOADING] == 0,
            "a store still holds a block");
    require(world, stats.evicted == stats.loaded && stats.checksum_failures == 0, "not every block came back");
  }
}

static void explain(world_t *world) {
  size_t length = 0;
  for (uint32_t s = 0; s < world->devices; s++) {
    const stage_t *stage = &world->stages[s];
    char cell[BL_OP_TEXT] = "the end";
    if (stage->at < stage->plan.op_count) {
      bl_op_format(stage->plan.ops[stage->at].op, cell);
    }
    const size_t left = sizeof world->outcome.waits - length;
    const int wrote = snprintf(world->outcome.waits + length, left, "stage %u before %s, %u slots free, its store %u; ",
                               s, cell, world->stage_slots[s], world->store_slots[s]);
    length += wrote > 0 && (size_t)wrote < left ? (size_t)wrote : 0;
  }
}

static void close_world(world_t *world) {
  for (uint32_t s = 0; s < world->devices; s++) {
    bl_stage_plan_cleanup(&world->stages[s].plan);
    free(world->stages[s].leaving);
    free(world->stages[s].inside);
    bl_lease_table_destroy(world->tables[s]);
    for (uint32_t d = 0; d < world->devices; d++) {
      world->outcome.both_ways = world->outcome.both_ways || (world->pairs[s][d] != NULL && world->pairs[d][s] != NULL);
    }
  }
  for (uint32_t s = 0; s < world->devices; s++) {
    for (uint32_t d = 0; d < world->devices; d++) {
      free(world->pairs[s][d]);
    }
  }
  free(world->last);
  free(world->ran);
  bl_schedule_destroy(world->schedule);
}

crossing_outcome_t crossing_run(uint64_t seed, crossing_rule_t rule) {
  world_t *world = calloc(1, sizeof *world);
  if (world == NULL) {
    fail_msg("no memory");
    return (crossing_outcome_t){0};
  }
  world->seed = seed;
  world->key = bl_random_key(seed, "crossing");
  world->rule = rule;
  world->schedule = crossing_schedule(draw, world);
  open_world(world);
  while (something_happens(world)) {
    world->outcome.events++;
  }
  world->outcome.finished = is_finished(world);
  world->outcome.transfers = world->transfer_count;
  if (world->outcome.finished) {
    check_end(world);
  } else {
    explain(world);
  }
  close_world(world);
  const crossing_outcome_t outcome = world->outcome;
  free(world);
  return outcome;
}
