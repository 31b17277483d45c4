// SPDX-License-Identifier: Apache-2.0
#include "link.h"

#include "loop/timer.h"
#include "sys/clock.h"

#include <stdlib.h>
#include <sys/queue.h>

#define STILL_MAX 64 // more of them at a time hold others up

typedef struct waiting {
  TAILQ_ENTRY(waiting) queued;
  bl_link_turn_t turn;
} waiting_t;

struct bl_link {
  void (*begin)(void *context, const bl_link_turn_t *turn);
  void *context;
  bl_timer_t *timer;
  TAILQ_HEAD(, waiting) queue;
  uint64_t bytes_per_second; // 0: as fast as it goes
  uint64_t free_ns;          // with a rate: when what has asked so far is through
  bool busy;                 // with `current`
  bl_link_turn_t current;
  uint64_t still[STILL_MAX]; // sessions that stood still with a block, until they end a turn; 0: unused
  uint32_t still_next;
};

static bool stands_still(const bl_link_t *link, uint64_t session) {
  bool found = false;
  for (uint32_t i = 0; i < STILL_MAX; i++) {
    found = found || link->still[i] == session;
  }
  return found && session != 0;
}

static void goes_on(bl_link_t *link, uint64_t session) {
  for (uint32_t i = 0; i < STILL_MAX; i++) {
    link->still[i] = link->still[i] == session ? 0 : link->still[i];
  }
}

static bool is_about(const bl_link_turn_t *turn, uint64_t session, uint64_t id) {
  return turn->session == session && turn->frame.id == id;
}

static bool is_slowed(const bl_link_t *link) {
  return link->bytes_per_second != 0;
}

// The turn of `turn`: until it ends, or with a rate until its bytes would be through.
static void take_link(bl_link_t *link, const bl_link_turn_t *turn) {
  uint64_t wait_ms = BL_LINK_PATIENCE_MS;
  link->busy = true;
  link->current = *turn;
  if (is_slowed(link)) {
    const uint64_t now_ns = bl_clock_now_ns();
    link->free_ns = (link->free_ns > now_ns ? link->free_ns : now_ns) +
                    (uint64_t)((double)turn->bytes / (double)link->bytes_per_second * 1e9);
    wait_ms = (link->free_ns - now_ns + BL_NS_PER_MS / 2) / BL_NS_PER_MS;
  }
  bl_timer_start(link->timer, wait_ms, 0);
}

// The turn of the first that waits, if the link is free.
static void go_on(bl_link_t *link) {
  waiting_t *first;
  while (!link->busy && (first = TAILQ_FIRST(&link->queue)) != NULL) {
    const bl_link_turn_t turn = first->turn;
    TAILQ_REMOVE(&link->queue, first, queued);
    free(first);
    if (is_slowed(link) || !stands_still(link, turn.session)) {
      take_link(link, &turn);
    }
    if (!is_slowed(link)) {
      link->begin(link->context, &turn); // may end it
    }
  }
}

static void on_timer(bl_timer_t *timer, void *context) {
  (void)timer;
  bl_link_t *link = context;
  const bl_link_turn_t turn = link->current;
  const bool due = is_slowed(link) && link->busy;
  if (!is_slowed(link) && link->busy) {
    link->still[link->still_next++ % STILL_MAX] = turn.session;
  }
  link->busy = false;
  link->current = (bl_link_turn_t){0};
  go_on(link);
  if (due) { // its bytes would be through by now
    link->begin(link->context, &turn);
  }
}

bl_status_t bl_link_create(bl_loop_t *loop, uint64_t bytes_per_second,
                           void (*begin)(void *context, const bl_link_turn_t *turn), void *context, bl_link_t **link,
                           bl_error_t *err) {
  bl_link_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the link of a store");
  }
  *made = (bl_link_t){.begin = begin, .context = context, .bytes_per_second = bytes_per_second};
  TAILQ_INIT(&made->queue);
  bl_status_t status = bl_timer_create(loop, on_timer, made, &made->timer, err);
  if (status != BL_OK) {
    free(made);
    return status;
  }
  *link = made;
  return BL_OK;
}

void bl_link_destroy(bl_link_t *link) {
  if (link == NULL) {
    return;
  }
  for (waiting_t *waiting; (waiting = TAILQ_FIRST(&link->queue)) != NULL;) {
    TAILQ_REMOVE(&link->queue, waiting, queued);
    free(waiting);
  }
  bl_timer_destroy(link->timer);
  free(link);
}

// Whether it was sent again, over another connection, while it waits or has its turn.
static bool is_known(const bl_link_t *link, const bl_link_turn_t *turn) {
  const waiting_t *waiting;
  TAILQ_FOREACH(waiting, &link->queue, queued) {
    if (is_about(&waiting->turn, turn->session, turn->frame.id) &&
        waiting->turn.frame.sequence == turn->frame.sequence) {
      return true;
    }
  }
  return is_slowed(link) && link->busy && is_about(&link->current, turn->session, turn->frame.id) &&
         link->current.frame.sequence == turn->frame.sequence;
}

bool bl_link_ask(bl_link_t *link, const bl_link_turn_t *turn) {
  waiting_t *waiting;
  if (is_known(link, turn)) {
    return false;
  }
  const bool again = !is_slowed(link) && link->busy && is_about(&link->current, turn->session, turn->frame.id);
  if (again || (!is_slowed(link) && stands_still(link, turn->session))) {
    return true;
  }
  if (!link->busy && !is_slowed(link)) {
    take_link(link, turn);
    return true;
  }
  waiting = malloc(sizeof *waiting);
  if (waiting == NULL) {
    return true;
  }
  waiting->turn = *turn;
  TAILQ_INSERT_TAIL(&link->queue, waiting, queued);
  go_on(link);
  return false;
}

void bl_link_hurry(bl_link_t *link, uint64_t session, uint64_t id) {
  waiting_t *waiting, *next;
  if (is_slowed(link) && link->busy && is_about(&link->current, session, id)) {
    const bl_link_turn_t turn = link->current;
    link->busy = false; // its bytes have taken the link all the same
    go_on(link);
    link->begin(link->context, &turn);
    return;
  }
  for (waiting = TAILQ_FIRST(&link->queue); waiting != NULL; waiting = next) {
    next = TAILQ_NEXT(waiting, queued);
    if (is_about(&waiting->turn, session, id)) {
      const bl_link_turn_t turn = waiting->turn;
      TAILQ_REMOVE(&link->queue, waiting, queued);
      free(waiting);
      link->begin(link->context, &turn);
      return; // a slot has one request at a time
    }
  }
}

void bl_link_end(bl_link_t *link, uint64_t session, uint64_t id, uint64_t generation) {
  goes_on(link, session);
  if (!is_slowed(link) && link->busy && link->current.frame.id == id && link->current.frame.generation == generation) {
    link->busy = false;
    link->current = (bl_link_turn_t){0};
    bl_timer_stop(link->timer);
    go_on(link);
  }
}

void bl_link_forget(bl_link_t *link, uint64_t session) {
  waiting_t *waiting, *next;
  for (waiting = TAILQ_FIRST(&link->queue); waiting != NULL; waiting = next) {
    next = TAILQ_NEXT(waiting, queued);
    if (waiting->turn.session == session) {
      TAILQ_REMOVE(&link->queue, waiting, queued);
      free(waiting);
    }
  }
  goes_on(link, session);
  if (link->busy && link->current.session == session) {
    link->busy = false;
    link->current = (bl_link_turn_t){0};
    bl_timer_stop(link->timer);
    go_on(link);
  }
}
