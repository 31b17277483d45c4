// SPDX-License-Identifier: Apache-2.0
#include "plan/report/report.h"

#include "base/bytes.h"
#include "base/words.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

// Share of the best step below which a part is not reported.
#define WORTH_TELLING 0.002

typedef struct text {
  char *at;
  size_t left;
} text_t;

static void tell(text_t *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void tell(text_t *text, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int written = vsnprintf(text->at, text->left, format, arguments);
  va_end(arguments);
  size_t used = written < 0 ? 0 : (size_t)written < text->left ? (size_t)written : text->left - 1;
  text->at += used;
  text->left -= used;
}

static void tell_name(text_t *text, const bl_plan_candidate_t *c) {
  tell(text, c->chunks > 2 ? "%s with %u chunks" : "%s", c->schedule, c->chunks);
  if (c->slices > 1) {
    tell(text, " in %u slices", c->slices);
  }
}

static void tell_way(text_t *text, const bl_plan_candidate_t *c) {
  tell_name(text, c);
  tell(text, " (t %u, p %u, micro-batch %u, recompute %s, policy %s)", c->parallel.tensor, c->stages, c->micro_batch,
       bl_recompute_name(c->recompute), bl_policy_kind_name(c->policy));
}

// ---- where the step goes

// Seconds of the busiest stage, by use.
typedef struct parts {
  double work, recompute_share, transfers, bubble, overhead;
} parts_t;

static parts_t parts_of(const bl_plan_candidate_t *c) {
  const double operations = c->step - c->overhead;
  const double transfers = fmin(c->transfers, c->bubble);
  return (parts_t){.work = operations * (1 - c->bubble - c->recompute_share),
                   .recompute_share = operations * c->recompute_share,
                   .transfers = operations * transfers,
                   .bubble = operations * (c->bubble - transfers),
                   .overhead = c->overhead};
}

static void tell_parts(text_t *text, const bl_plan_candidate_t *c) {
  const parts_t parts = parts_of(c);
  tell_name(text, c);
  tell(text, " takes %.4g s a step: on the busiest stage %.1f %% of it is forward and backward", c->step,
       100 * parts.work / c->step);
  if (parts.recompute_share > 0) {
    tell(text, ", %.1f %% recomputing blocks", 100 * parts.recompute_share / c->step);
  }
  tell(text, ", %.1f %% bubble", 100 * parts.bubble / c->step);
  if (parts.transfers > WORTH_TELLING * c->step) {
    tell(text, ", %.1f %% waiting for parked blocks and network cards", 100 * parts.transfers / c->step);
  }
  if (parts.overhead > 0) {
    tell(text, ", %.1f %% optimizer and commit", 100 * parts.overhead / c->step);
  }
  tell(text, ". ");
}

// ---- against others

static bool same_schedule(const bl_plan_candidate_t *a, const bl_plan_candidate_t *b) {
  return a->chunks == b->chunks && a->slices == b->slices && strcmp(a->schedule, b->schedule) == 0;
}

static void tell_difference(text_t *text, const bl_plan_candidate_t *best, const bl_plan_candidate_t *other) {
  const parts_t a = parts_of(best), b = parts_of(other);
  const struct {
    const char *name;
    double best, other;
  } rows[] = {{"forward and backward", a.work, b.work},
              {"recomputing blocks", a.recompute_share, b.recompute_share},
              {"bubble", a.bubble, b.bubble},
              {"waiting for parked blocks and network cards", a.transfers, b.transfers},
              {"optimizer and commit", a.overhead, b.overhead}};
  uint32_t told = 0;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    const double more = rows[i].other - rows[i].best;
    if (fabs(more) > WORTH_TELLING * best->step) {
      tell(text, "%s%.3g s %s of %s", told++ > 0 ? ", " : "", fabs(more), more > 0 ? "more" : "less", rows[i].name);
    }
  }
  if (told == 0) {
    tell(text, "no part of its step differs by more than %g %%", 100 * WORTH_TELLING);
  }
}

static void tell_runner_up(text_t *text, const bl_plan_t *plan) {
  const bl_plan_candidate_t *best = &plan->candidates[0], *other = NULL;
  for (uint32_t i = 1; i < plan->count && other == NULL; i++) {
    other = strcmp(best->schedule, plan->candidates[i].schedule) == 0 ? NULL : &plan->candidates[i];
  }
  if (other == NULL) {
    tell(text, "No other schedule was tried. ");
    return;
  }
  tell(text, other->fits ? "The best of another schedule, " : "No other schedule fits; the nearest, ");
  tell_way(text, other);
  tell(text, ", ");
  if (!other->fits) {
    tell(text, "lacks memory: %s. ", other->why);
    return;
  }
  const double longer = 100 * (other->step / best->step - 1);
  if (longer >= 0.05) {
    tell(text, "takes %.1f %% longer: ", longer);
  } else if (other->step > best->step) {
    tell(text, "takes hardly longer: ");
  } else if (other->memory > best->memory || other->policy != best->policy) {
    tell(text, "takes as long and is behind by its %s: ", other->memory > best->memory ? "memory" : "policy");
  } else {
    tell(text, "takes as long in as much memory: ");
  }
  tell_difference(text, best, other);
  tell(text, ". ");
}

// ---- what limits it

// Returns the same candidate without balancing and recomputation.
static const bl_plan_candidate_t *plain_of(const bl_plan_t *plan) {
  const bl_plan_candidate_t *best = &plan->candidates[0];
  for (uint32_t i = plan->fitting; i < plan->count; i++) {
    const bl_plan_candidate_t *c = &plan->candidates[i];
    if (same_schedule(best, c) && c->stages == best->stages && c->micro_batch == best->micro_batch &&
        c->attention == best->attention && c->parallel.tensor == best->parallel.tensor && c->policy == BL_POLICY_NONE &&
        c->recompute == BL_RECOMPUTE_NONE && c->slots == 0 && c->memory > 0) {
      return c;
    }
  }
  return NULL;
}

static void tell_limit(text_t *text, const bl_plan_request_t *request, const bl_plan_t *plan) {
  const bl_plan_candidate_t *best = &plan->candidates[0], *plain = plain_of(plan);
  const parts_t parts = parts_of(best);
  char needed[BL_BYTES_TEXT], limit[BL_BYTES_TEXT];
  bl_bytes_format((uint64_t)request->memory, limit);
  const double lost[] = {parts.bubble, parts.recompute_share, parts.transfers};
  static const char *const names[] = {"the bubble", "recomputing blocks",
                                      "waiting for parked blocks and network cards"};
  size_t most = 0;
  for (size_t i = 1; i < 3; i++) {
    most = lost[i] > lost[most] ? i : most;
  }
  if (lost[most] > 0) {
    tell(text, "What it loses most by is %s, %.3g s (%.1f %%)", names[most], lost[most], 100 * lost[most] / best->step);
  } else {
    tell(text, "It loses no time");
  }
  if (request->memory <= 0) {
    tell(text, "; memory is not limited, and stage %u is the fullest with %s.", best->memory_stage,
         bl_bytes_format((uint64_t)best->memory, needed));
  } else if (plain != NULL) {
    tell(text, "; memory limits it: keeping every block, stage %u would need %s of %s.", plain->memory_stage,
         bl_bytes_format((uint64_t)plain->memory, needed), limit);
  } else {
    tell(text, "; memory %s: stage %u, the fullest, has %s of %s.",
         best->recompute != BL_RECOMPUTE_NONE || best->policy != BL_POLICY_NONE || best->slots > 0
             ? "limits it"
             : "does not limit it",
         best->memory_stage, bl_bytes_format((uint64_t)best->memory, needed), limit);
  }
}

// ---- slices

// Tells what whole sequences would cost or lack, if the best has slices and whole ones were evaluated.
static void tell_whole(text_t *text, const bl_plan_t *plan) {
  const bl_plan_candidate_t *best = &plan->candidates[0], *whole = NULL;
  for (uint32_t i = 0; i < plan->count && whole == NULL; i++) {
    whole = plan->candidates[i].slices == 1 ? &plan->candidates[i] : NULL;
  }
  if (best->slices == 1 || whole == NULL) {
    return;
  }
  tell(text, whole->fits ? " In whole sequences the best, " : " Whole sequences do not fit; the nearest, ");
  tell_way(text, whole);
  if (!whole->fits) {
    tell(text, ", lacks memory: %s.", whole->why);
    return;
  }
  tell(text, ", takes %.1f %% longer: ", 100 * (whole->step / best->step - 1));
  tell_difference(text, best, whole);
  tell(text, ".");
}

// ---- memory of the host

static bool same_way(const bl_plan_candidate_t *a, const bl_plan_candidate_t *b) {
  return same_schedule(a, b) && a->stages == b->stages && a->micro_batch == b->micro_batch &&
         a->parallel.tensor == b->parallel.tensor && a->parallel.data == b->parallel.data &&
         a->attention == b->attention && a->recompute == b->recompute;
}

// Counts candidates, without regard to policy and limits, that fit only with blocks parked at the host.
static uint32_t count_opened(const bl_plan_t *plan) {
  uint32_t opened = 0;
  for (uint32_t i = 0; i < plan->fitting; i++) {
    bool first = plan->candidates[i].host_bytes > 0;
    for (uint32_t k = 0; k < plan->fitting && first; k++) {
      const bl_plan_candidate_t *other = &plan->candidates[k];
      first = !same_way(&plan->candidates[i], other) || (other->host_bytes > 0 && k >= i);
    }
    opened += first;
  }
  return opened;
}

// Returns the best candidate that parks at the host, or of all others.
static const bl_plan_candidate_t *best_of(const bl_plan_t *plan, bool at_host) {
  for (uint32_t i = 0; i < plan->fitting; i++) {
    if ((plan->candidates[i].host_bytes > 0) == at_host) {
      return &plan->candidates[i];
    }
  }
  return NULL;
}

static const bl_plan_candidate_t *nearest_at_host(const bl_plan_t *plan) {
  for (uint32_t i = 0; i < plan->count; i++) {
    if (plan->candidates[i].policy == BL_POLICY_OFFLOAD) {
      return &plan->candidates[i];
    }
  }
  return NULL;
}

// Compares a copy out and back with the forward and backward that hide it.
static void tell_copies(text_t *text, const bl_plan_candidate_t *c) {
  char block[BL_BYTES_TEXT];
  double work = 0;
  const uint32_t chunks = c->stages * c->chunks;
  for (uint32_t v = 0; v < chunks; v++) {
    work += (c->costs[v].forward + c->costs[v].input + c->costs[v].weight) / chunks;
  }
  tell(text, "a block of %s takes %.3g ms to the host and back, its forward and backward %.3g ms: copies %s",
       bl_bytes_format((uint64_t)c->block_bytes, block), 2e3 * c->host_copy, 1e3 * work,
       2 * c->host_copy <= work ? "hide where a step has as many of them as forwards" : "do not all hide");
}

static void tell_host(text_t *text, const bl_plan_request_t *request, const bl_plan_t *plan) {
  const bl_plan_candidate_t *best = &plan->candidates[0], *with = best_of(plan, true), *without = best_of(plan, false),
                            *nearest = nearest_at_host(plan);
  const uint32_t opened = request->host.bytes > 0 && with != NULL ? count_opened(plan) : 0;
  if (request->host.bytes <= 0) {
    return;
  }
  if (nearest == NULL) {
    tell(text,
         " Memory of the host is not needed: every candidate that matters keeps all its blocks or recomputes all.");
    return;
  }
  if (with == NULL) {
    tell(text, " Memory of the host does not help: the nearest that parks there, ");
    tell_way(text, nearest);
    tell(text, ", lacks memory: %s.", nearest->why);
    return;
  }
  if (with == best && without == NULL) {
    tell(text, " Without memory of the host nothing fits; ");
  } else if (with == best) {
    tell(text, " Without memory of the host the best, ");
    tell_way(text, without);
    tell(text, ", takes %.1f %% longer: ", 100 * (without->step / best->step - 1));
    tell_difference(text, best, without);
    tell(text, "; ");
  } else {
    tell(text, " Memory of the host does not pay: the best that parks there, ");
    tell_way(text, with);
    tell(text, ", takes %.1f %% longer: ", 100 * (with->step / best->step - 1));
    tell_difference(text, best, with);
    tell(text, "; ");
  }
  tell_copies(text, with);
  if (opened > 0) {
    tell(text, ". Of schedule, shape, micro-batch, attention and recomputation %u combination%s fit%s with it alone",
         opened, bl_plural(opened), bl_one_or_many(opened, "s", ""));
  }
  tell(text, ".");
}

void bl__plan_tell_why(const bl_plan_request_t *request, bl_plan_t *plan) {
  text_t text = {.at = plan->why, .left = sizeof plan->why};
  tell_parts(&text, &plan->candidates[0]);
  tell_runner_up(&text, plan);
  tell_limit(&text, request, plan);
  tell_whole(&text, plan);
  tell_host(&text, request, plan);
}
