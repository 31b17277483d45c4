// SPDX-License-Identifier: Apache-2.0
#include "collective/progress.h"

#include "sys/clock.h"
#include "sys/futex.h"
#include "sys/thread.h"

#include <assert.h>
#include <inttypes.h>
#include <stddef.h>

#define NUMBER_BITS 32
_Static_assert(sizeof(bl_group_page_t) == 128, "two cache lines");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the lower half of a flag is its first word");

typedef enum { READY, TAKEN } flag_kind_t;

static uint64_t flag_of(uint64_t attempt, uint32_t n) {
  return attempt << NUMBER_BITS | n;
}

// ---- the own page ---------------------------------------------------------------------------------------------------

static void raise_flag(_Atomic uint64_t *flag, uint64_t value) {
  atomic_store_explicit(flag, value, memory_order_release);
  bl_futex_wake(flag);
}

void bl_group_progress_init(bl_group_progress_t *progress, bl_group_page_t *page, uint32_t rank, uint32_t members) {
  assert(members <= BL_GROUP_PROGRESS_MEMBERS && rank < members);
  *progress = (bl_group_progress_t){.page = page, .rank = rank, .members = members};
  progress->pages[rank] = page;
  bl_group_progress_begin(progress, 0);
}

void bl_group_progress_set_peer(bl_group_progress_t *progress, uint32_t member, const bl_group_page_t *page) {
  assert(member < progress->members && member != progress->rank);
  progress->pages[member] = page;
}

void bl_group_progress_begin(bl_group_progress_t *progress, uint64_t attempt) {
  progress->attempt = attempt;
  raise_flag(&progress->page->ready, flag_of(attempt, 0));
  raise_flag(&progress->page->taken, flag_of(attempt, 0));
}

void bl_group_progress_publish(bl_group_progress_t *progress, uint32_t n) {
  raise_flag(&progress->page->ready, flag_of(progress->attempt, n));
}

void bl_group_progress_take(bl_group_progress_t *progress, uint32_t n) {
  raise_flag(&progress->page->taken, flag_of(progress->attempt, n));
}

// ---- waiting for peers ----------------------------------------------------------------------------------------------

typedef struct {
  const bl_group_progress_t *progress;
  const bl_group_progress_wait_t *how;
  const _Atomic uint64_t *flag;
  flag_kind_t kind;
  uint32_t member, n;
  uint64_t seen; // the last value read from the flag
} waiter_t;

// Sets the error of a wait that cannot succeed any more.
static bl_status_t fail(const waiter_t *waiter, bl_status_t status, const char *why, bl_error_t *err) {
  return bl_error_set(err, status, "waiting until member %u %s collective %u of attempt %" PRIu64 ": %s",
                      waiter->member, waiter->kind == READY ? "is ready for" : "has taken", waiter->n,
                      waiter->progress->attempt, why);
}

// Reads the flag. True: the wait is over with *status.
static bool is_over(waiter_t *waiter, bl_status_t *status, bl_error_t *err) {
  const uint64_t attempt = waiter->progress->attempt;
  if (waiter->how->cancelled != NULL && atomic_load_explicit(waiter->how->cancelled, memory_order_relaxed)) {
    *status = fail(waiter, BL_CANCELLED, "the attempt was aborted", err);
    return true;
  }
  waiter->seen = atomic_load_explicit(waiter->flag, memory_order_acquire);
  if (waiter->kind == READY && waiter->seen >> NUMBER_BITS > attempt) {
    *status = fail(waiter, BL_UNAVAILABLE, "it has begun a later attempt", err);
    return true;
  }
  *status = BL_OK;
  return waiter->seen >= flag_of(attempt, waiter->n);
}

static bool spin(waiter_t *waiter, uint64_t end_ns, bl_status_t *status, bl_error_t *err) {
  do {
    for (int i = 0; i < 32; i++) {
      if (is_over(waiter, status, err)) {
        return true;
      }
      bl_thread_relax();
    }
  } while (bl_clock_now_ns() < end_ns);
  return false;
}

static bl_status_t sleep_until_over(waiter_t *waiter, uint64_t start_ns, bl_error_t *err) {
  const bl_group_progress_wait_t *how = waiter->how;
  const uint64_t slow_ns = how->at_once ? 0 : BL_GROUP_PROGRESS_SLOW_NS;
  bl_status_t status;
  bool slow = false, lost = false;
  // Checked before `lost`: what the member published before its loss counts.
  while (!is_over(waiter, &status, err)) {
    const uint64_t now_ns = bl_clock_now_ns();
    if (lost) {
      return fail(waiter, BL_UNAVAILABLE, "it is lost", err);
    }
    if (now_ns >= how->deadline_ns) {
      return fail(waiter, BL_DEADLINE, "it was not in time", err);
    }
    if (!slow && now_ns - start_ns >= slow_ns) {
      slow = true;
      if (how->slow != NULL) {
        how->slow(how->user);
      }
      continue;
    }
    uint64_t sleep_ns = slow ? BL_GROUP_PROGRESS_LOOK_NS : slow_ns - (now_ns - start_ns);
    sleep_ns = sleep_ns < how->deadline_ns - now_ns ? sleep_ns : how->deadline_ns - now_ns;
    const bool woken = bl_futex_wait(waiter->flag, (uint32_t)waiter->seen, sleep_ns);
    lost = !woken && slow && how->lost != NULL && how->lost(how->user, waiter->member);
  }
  return status;
}

static bl_status_t wait_for(waiter_t *waiter, bl_error_t *err) {
  bl_status_t status;
  if (is_over(waiter, &status, err)) {
    return status;
  }
  const uint64_t start_ns = bl_clock_now_ns();
  if (start_ns < waiter->how->deadline_ns && !waiter->how->at_once &&
      spin(waiter, start_ns + BL_GROUP_PROGRESS_SPIN_NS, &status, err)) {
    return status;
  }
  return sleep_until_over(waiter, start_ns, err);
}

bl_status_t bl_group_progress_wait_ready(const bl_group_progress_t *progress, uint32_t member, uint32_t n,
                                         const bl_group_progress_wait_t *wait, bl_error_t *err) {
  assert(progress->pages[member] != NULL);
  return wait_for(&(waiter_t){.progress = progress,
                              .how = wait,
                              .flag = &progress->pages[member]->ready,
                              .kind = READY,
                              .member = member,
                              .n = n},
                  err);
}

bl_status_t bl_group_progress_wait_taken(const bl_group_progress_t *progress, uint32_t member, uint32_t n,
                                         const bl_group_progress_wait_t *wait, bl_error_t *err) {
  assert(progress->pages[member] != NULL);
  if (n == 0) {
    return BL_OK;
  }
  return wait_for(&(waiter_t){.progress = progress,
                              .how = wait,
                              .flag = &progress->pages[member]->taken,
                              .kind = TAKEN,
                              .member = member,
                              .n = n},
                  err);
}
