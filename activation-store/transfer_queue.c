// SPDX-License-Identifier: Apache-2.0
#include "transfer_queue.h"

#include "base/minmax.h"
#include "loop/timer.h"
#include "sys/clock.h"

#include <stdlib.h>
#include <sys/queue.h>

#define STILL_MAX 64 // with more of them at a time, some block others

typedef struct waiting {
  TAILQ_ENTRY(waiting) queued;
  bl_transfer_queue_entry_t turn;
  uint64_t asked_ns;
} waiting_t;

struct bl_transfer_queue {
  void (*begin)(void *context, const bl_transfer_queue_entry_t *turn);
  void *context;
  bl_timer_t *timer;
  TAILQ_HEAD(, waiting) waiting;
  uint64_t bytes_per_second; // 0: unlimited
  uint64_t free_ns;          // with a rate: when the bytes of all turns so far have passed
  bool busy;                 // with `current`
  bl_transfer_queue_entry_t current;
  uint64_t still[STILL_MAX]; // sessions that did not finish a transfer in time, until they end a turn; 0: unused
  uint32_t still_next;
};

static bool stands_still(const bl_transfer_queue_t *queue, uint64_t session) {
  bool found = false;
  for (uint32_t i = 0; i < STILL_MAX; i++) {
    found = found || queue->still[i] == session;
  }
  return found && session != 0;
}

static void goes_on(bl_transfer_queue_t *queue, uint64_t session) {
  for (uint32_t i = 0; i < STILL_MAX; i++) {
    queue->still[i] = queue->still[i] == session ? 0 : queue->still[i];
  }
}

static bool is_about(const bl_transfer_queue_entry_t *turn, uint64_t session, uint64_t id) {
  return turn->session == session && turn->frame.id == id;
}

static bool is_slowed(const bl_transfer_queue_t *queue) {
  return queue->bytes_per_second != 0;
}

// Starts the turn of `turn`: it lasts until it ends, or with a rate until its bytes would have passed, which begin when it
// has asked and the bytes before them have passed. The timer is late, but the link is as fast as its rate says.
static void occupy(bl_transfer_queue_t *queue, const bl_transfer_queue_entry_t *turn, uint64_t asked_ns) {
  uint64_t wait_ms = BL_TRANSFER_QUEUE_TIMEOUT_MS;
  queue->busy = true;
  queue->current = *turn;
  if (is_slowed(queue)) {
    const uint64_t now_ns = bl_clock_now_ns();
    queue->free_ns =
        bl_max_u64(queue->free_ns, asked_ns) + (uint64_t)((double)turn->bytes / (double)queue->bytes_per_second * 1e9);
    wait_ms = queue->free_ns > now_ns ? (queue->free_ns - now_ns + BL_NS_PER_MS / 2) / BL_NS_PER_MS : 0;
  }
  bl_timer_start(queue->timer, wait_ms, 0);
}

// Starts the turns of waiting entries, as long as the link is free.
static void go_on(bl_transfer_queue_t *queue) {
  waiting_t *first;
  while (!queue->busy && (first = TAILQ_FIRST(&queue->waiting)) != NULL) {
    const bl_transfer_queue_entry_t turn = first->turn;
    const uint64_t asked_ns = first->asked_ns;
    TAILQ_REMOVE(&queue->waiting, first, queued);
    free(first);
    if (is_slowed(queue) || !stands_still(queue, turn.session)) {
      occupy(queue, &turn, asked_ns);
    }
    if (!is_slowed(queue)) {
      queue->begin(queue->context, &turn); // may end the turn
    }
  }
}

static void on_timer(bl_timer_t *timer, void *context) {
  (void)timer;
  bl_transfer_queue_t *queue = context;
  const bl_transfer_queue_entry_t turn = queue->current;
  const bool due = is_slowed(queue) && queue->busy;
  if (!is_slowed(queue) && queue->busy) {
    queue->still[queue->still_next++ % STILL_MAX] = turn.session;
  }
  queue->busy = false;
  queue->current = (bl_transfer_queue_entry_t){0};
  go_on(queue);
  if (due) { // its bytes would have passed by now
    queue->begin(queue->context, &turn);
  }
}

bl_status_t bl_transfer_queue_create(bl_loop_t *loop, uint64_t bytes_per_second,
                                     void (*begin)(void *context, const bl_transfer_queue_entry_t *turn), void *context,
                                     bl_transfer_queue_t **queue, bl_error_t *err) {
  bl_transfer_queue_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the link of a store");
  }
  *made = (bl_transfer_queue_t){.begin = begin, .context = context, .bytes_per_second = bytes_per_second};
  TAILQ_INIT(&made->waiting);
  bl_status_t status = bl_timer_create(loop, on_timer, made, &made->timer, err);
  if (status != BL_OK) {
    free(made);
    return status;
  }
  *queue = made;
  return BL_OK;
}

void bl_transfer_queue_destroy(bl_transfer_queue_t *queue) {
  if (queue == NULL) {
    return;
  }
  for (waiting_t *waiting; (waiting = TAILQ_FIRST(&queue->waiting)) != NULL;) {
    TAILQ_REMOVE(&queue->waiting, waiting, queued);
    free(waiting);
  }
  bl_timer_destroy(queue->timer);
  free(queue);
}

// Returns whether the entry, resent over another connection, already waits or has its turn.
static bool is_known(const bl_transfer_queue_t *queue, const bl_transfer_queue_entry_t *turn) {
  const waiting_t *waiting;
  TAILQ_FOREACH(waiting, &queue->waiting, queued) {
    if (is_about(&waiting->turn, turn->session, turn->frame.id) &&
        waiting->turn.frame.sequence == turn->frame.sequence) {
      return true;
    }
  }
  return is_slowed(queue) && queue->busy && is_about(&queue->current, turn->session, turn->frame.id) &&
         queue->current.frame.sequence == turn->frame.sequence;
}

bool bl_transfer_queue_ask(bl_transfer_queue_t *queue, const bl_transfer_queue_entry_t *turn) {
  waiting_t *waiting;
  if (is_known(queue, turn)) {
    return false;
  }
  const bool again = !is_slowed(queue) && queue->busy && is_about(&queue->current, turn->session, turn->frame.id);
  if (again || (!is_slowed(queue) && stands_still(queue, turn->session))) {
    return true;
  }
  if (!queue->busy && !is_slowed(queue)) {
    occupy(queue, turn, bl_clock_now_ns());
    return true;
  }
  waiting = malloc(sizeof *waiting);
  if (waiting == NULL) {
    return true;
  }
  waiting->turn = *turn;
  waiting->asked_ns = bl_clock_now_ns();
  TAILQ_INSERT_TAIL(&queue->waiting, waiting, queued);
  go_on(queue);
  return false;
}

void bl_transfer_queue_hurry(bl_transfer_queue_t *queue, uint64_t session, uint64_t id) {
  waiting_t *waiting, *next;
  if (is_slowed(queue) && queue->busy && is_about(&queue->current, session, id)) {
    const bl_transfer_queue_entry_t turn = queue->current;
    queue->busy = false; // its bytes still occupy the link
    go_on(queue);
    queue->begin(queue->context, &turn);
    return;
  }
  for (waiting = TAILQ_FIRST(&queue->waiting); waiting != NULL; waiting = next) {
    next = TAILQ_NEXT(waiting, queued);
    if (is_about(&waiting->turn, session, id)) {
      const bl_transfer_queue_entry_t turn = waiting->turn;
      TAILQ_REMOVE(&queue->waiting, waiting, queued);
      free(waiting);
      queue->begin(queue->context, &turn);
      return; // a slot has one request at a time
    }
  }
}

void bl_transfer_queue_end(bl_transfer_queue_t *queue, uint64_t session, uint64_t id, uint64_t generation) {
  goes_on(queue, session);
  if (!is_slowed(queue) && queue->busy && queue->current.frame.id == id &&
      queue->current.frame.generation == generation) {
    queue->busy = false;
    queue->current = (bl_transfer_queue_entry_t){0};
    bl_timer_stop(queue->timer);
    go_on(queue);
  }
}

void bl_transfer_queue_forget(bl_transfer_queue_t *queue, uint64_t session) {
  waiting_t *waiting, *next;
  for (waiting = TAILQ_FIRST(&queue->waiting); waiting != NULL; waiting = next) {
    next = TAILQ_NEXT(waiting, queued);
    if (waiting->turn.session == session) {
      TAILQ_REMOVE(&queue->waiting, waiting, queued);
      free(waiting);
    }
  }
  goes_on(queue, session);
  if (queue->busy && queue->current.session == session) {
    queue->busy = false;
    queue->current = (bl_transfer_queue_entry_t){0};
    bl_timer_stop(queue->timer);
    go_on(queue);
  }
}
