// SPDX-License-Identifier: Apache-2.0
#include "link.h"

#include "loop/timer.h"
#include "sys/clock.h"

#include <stdlib.h>
#include <sys/queue.h>

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
  bool busy;                 // without one: with `current`
  bl_link_turn_t current;
};

static bool is_about(const bl_link_turn_t *turn, uint64_t session, uint64_t id) {
  return turn->session == session && turn->frame.id == id;
}

static uint64_t due_ns(const bl_link_t *link, const bl_link_turn_t *turn) {
  const uint64_t now_ns = bl_clock_now_ns(), from_ns = link->free_ns > now_ns ? link->free_ns : now_ns;
  return from_ns + (uint64_t)((double)turn->bytes / (double)link->bytes_per_second * 1e9);
}

static void wait_until(bl_link_t *link, uint64_t ns) {
  const uint64_t now_ns = bl_clock_now_ns();
  bl_timer_start(link->timer, ns > now_ns ? (ns - now_ns + BL_NS_PER_MS / 2) / BL_NS_PER_MS : 0, 0);
}

static waiting_t *take_first(bl_link_t *link) {
  waiting_t *first = TAILQ_FIRST(&link->queue);
  if (first != NULL) {
    TAILQ_REMOVE(&link->queue, first, queued);
  }
  return first;
}

// The turn of the first that waits, if the link is free.
static void go_on(bl_link_t *link) {
  waiting_t *first;
  while (link->bytes_per_second == 0 && !link->busy && (first = take_first(link)) != NULL) {
    link->busy = true;
    const bl_link_turn_t turn = link->current = first->turn;
    free(first);
    bl_timer_start(link->timer, BL_LINK_PATIENCE_MS, 0);
    link->begin(link->context, &turn); // may end it
  }
  if (link->bytes_per_second != 0 && (first = TAILQ_FIRST(&link->queue)) != NULL && !link->busy) {
    link->busy = true;
    link->free_ns = due_ns(link, &first->turn);
    wait_until(link, link->free_ns);
  }
}

static void on_timer(bl_timer_t *timer, void *context) {
  (void)timer;
  bl_link_t *link = context;
  link->busy = false;
  waiting_t *first = link->bytes_per_second != 0 ? take_first(link) : NULL;
  if (first != NULL) { // its bytes would be through by now
    const bl_link_turn_t turn = first->turn;
    free(first);
    go_on(link);
    link->begin(link->context, &turn);
    return;
  }
  go_on(link); // somebody stands still
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
  for (waiting_t *waiting; (waiting = take_first(link)) != NULL;) {
    free(waiting);
  }
  bl_timer_destroy(link->timer);
  free(link);
}

bool bl_link_ask(bl_link_t *link, const bl_link_turn_t *turn) {
  waiting_t *waiting;
  TAILQ_FOREACH(waiting, &link->queue, queued) {
    if (is_about(&waiting->turn, turn->session, turn->frame.id) &&
        waiting->turn.frame.sequence == turn->frame.sequence) {
      return false; // sent again over another connection
    }
  }
  const bool free_now = link->bytes_per_second == 0 && !link->busy;
  if (free_now) {
    link->busy = true;
    link->current = *turn;
    bl_timer_start(link->timer, BL_LINK_PATIENCE_MS, 0);
  }
  const bool again = link->bytes_per_second == 0 && is_about(&link->current, turn->session, turn->frame.id);
  if (free_now || again || (waiting = malloc(sizeof *waiting)) == NULL) {
    return true;
  }
  waiting->turn = *turn;
  TAILQ_INSERT_TAIL(&link->queue, waiting, queued);
  go_on(link);
  return false;
}

void bl_link_hurry(bl_link_t *link, uint64_t session, uint64_t id) {
  waiting_t *waiting, *next;
  for (waiting = TAILQ_FIRST(&link->queue); waiting != NULL; waiting = next) {
    next = TAILQ_NEXT(waiting, queued);
    if (is_about(&waiting->turn, session, id)) {
      const bl_link_turn_t turn = waiting->turn;
      TAILQ_REMOVE(&link->queue, waiting, queued);
      free(waiting);
      link->begin(link->context, &turn);
      return; // a room has one request at a time
    }
  }
}

void bl_link_end(bl_link_t *link, uint64_t id, uint64_t generation) {
  if (link->bytes_per_second == 0 && link->busy && link->current.frame.id == id &&
      link->current.frame.generation == generation) {
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
  if (link->busy && link->current.session == session) {
    bl_link_end(link, link->current.frame.id, link->current.frame.generation);
  }
}
