// SPDX-License-Identifier: Apache-2.0
#include "policy/choice_world.h"

#include "policy/choice.h"

#include <stdio.h>
#include <string.h>

#define NOW      10000 // steps are counted from here, in every state
#define VERSION  100
#define OLDEST   300 // steps ago: all the same, as refused trials wait for less
#define EXPECTED 1.0
#define LATE     3 // steps that run before a change is answered, at most: or a whole rest

const char *choice_rule_text(choice_rule_t rule) {
  static const char *const texts[] = {
#define X(identifier, text) text,
      CHOICE_RULES(X)
#undef X
  };
  return texts[rule];
}

typedef struct world {
  const choice_options_t *options;
  bl_choice_t choice;
  bl_measurements_t measurements;
  bl_policy_record_t in_force;
  bl_policy_t wanted; // that was asked for
  bool outstanding;
  uint8_t late;        // steps since
  bool first;          // the step to come is the first of this driver, who does not know how long it took
  uint64_t changed;    // the step after which a change was asked for last
  bool follows_noise;  // that was what the check of another one found
  bool checked;        // the policy in force was asked for as a change, and is to be checked
  uint64_t refused_at; // of the last trial that was refused; 0: none since paths were measured
  uint32_t refusals;   // so many in a row
  uint64_t about;      // version that the last decision is about; 0: none
  uint32_t probed;     // samples with one block parked, of this policy
  bool looked;         // in the last step
  const char *broken;
} world_t;

static bool breaks(const world_t *world, choice_rule_t rule) {
  return world->options->broken_rule == rule;
}

static void check(world_t *world, bool holds, const char *invariant) {
  world->broken = world->broken == NULL && !holds ? invariant : world->broken;
}

// ---- policies -------------------------------------------------------------------------------------------------------

typedef enum { POLICY_FIXED, POLICY_PROBE, POLICY_PARKS, POLICY_GIVES_UP, POLICIES } policy_t;

static bl_policy_t policy_of(policy_t policy) {
  static const bl_policy_t policies[POLICIES] = {
      {.kind = BL_POLICY_BPIPE, .cap = 3},
      {.kind = BL_POLICY_AUTO, .chosen = BL_POLICY_MIX, .copy = BL_POLICY_COPY_PROBE},
      {.kind = BL_POLICY_AUTO, .chosen = BL_POLICY_CAP},
      {.kind = BL_POLICY_AUTO, .chosen = BL_POLICY_DROP}};
  return policies[policy];
}

static policy_t index_of(const bl_policy_t *policy) {
  policy_t i = POLICY_FIXED;
  while (i + 1 < POLICIES && (policy_of(i).kind != policy->kind || policy_of(i).chosen != policy->chosen)) {
    i++;
  }
  return i;
}

static void put_in_force(world_t *world, const bl_policy_t *policy) {
  world->in_force =
      (bl_policy_record_t){.version = world->in_force.version + 1, .policy = *policy, .from_step = NOW + 1};
  world->checked = false;
  world->probed = 0;
}

static bl_choice_now_t now_of(world_t *world, double seconds) {
  return (bl_choice_now_t){.in_force = &world->in_force,
                           .drives = true,
                           .moves = true,
                           .applied = NOW,
                           .seconds = seconds,
                           .measurements = &world->measurements};
}

// ---- steps ----------------------------------------------------------------------------------------------------------

// Everything is one step longer ago.
static void age(world_t *world) {
  bl_choice_t *choice = &world->choice;
  uint64_t *steps[] = {&choice->sampled,   &choice->watched,           &choice->measured, &world->changed,
                       &world->refused_at, &world->in_force.from_step, &choice->next,     &choice->trial_at};
  for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
    *steps[i] -= *steps[i] > NOW - OLDEST ? 1 : 0;
  }
}

typedef enum { STAYS, UNKNOWN, PARKS, GIVES_UP, OUTCOMES } outcome_t; // of samples

static void ask(world_t *world, const bl_choice_now_t *now, bl_choice_reason_t reason, const bl_policy_t *wanted,
                bool granted) {
  bl_choice_t *choice = &world->choice;
  if (breaks(world, CHOICE_RULE_NOISE) && reason == BL_CHOICE_CHANGE) {
    choice->checks = false;
  }
  bl_choice_asked(choice, now, reason, granted);
  if (!granted) {
    return;
  }
  check(world, !world->outstanding, "two changes are asked for at a time");
  if (reason == BL_CHOICE_CHANGE) {
    check(world, !world->follows_noise || NOW - world->changed >= BL_CHOICE_REST, "noise is followed around");
  }
  world->follows_noise = reason == BL_CHOICE_CHANGE && world->checked;
  world->changed = NOW;
  if (breaks(world, CHOICE_RULE_CHECK)) {
    choice->checks = false;
  }
  world->outstanding = true;
  world->late = 0;
  world->wanted = *wanted;
  if (breaks(world, CHOICE_RULE_ONE_AT_A_TIME)) {
    choice->phase = BL_CHOICE_RESTING;
    choice->next = 0;
  }
}

static void begin(world_t *world, const bl_choice_now_t *now, bool slow, bool granted) {
  world->probed++;
  if (breaks(world, CHOICE_RULE_PROBES)) {
    world->choice.samples = BL_CHOICE_PROBES;
  }
  const bl_policy_t wanted = policy_of(slow ? POLICY_GIVES_UP : POLICY_PARKS);
  if (bl_choice_begun(&world->choice, slow)) {
    check(world, !slow || world->probed >= BL_CHOICE_PROBES, "one sample is believed that paths are far too slow");
    ask(world, now, BL_CHOICE_START, &wanted, granted);
  }
}

static void decide(world_t *world, const bl_choice_now_t *now, outcome_t outcome, bool granted) {
  const policy_t before = index_of(&world->in_force.policy);
  const policy_t best = outcome == PARKS ? POLICY_PARKS : outcome == GIVES_UP ? POLICY_GIVES_UP : before;
  const bl_policy_t wanted = policy_of(best);
  bl_choice_found_t found = {.known = outcome != UNKNOWN, .other = best != before};
  found.gives_up = best == POLICY_GIVES_UP;
  found.may_try = found.gives_up;
  found.trial = policy_of(POLICY_PARKS);
  world->measurements.expected = found.known ? EXPECTED : world->measurements.expected;
  if (before == POLICY_PARKS && found.known) {
    bl_choice_measured(&world->choice, NOW);
    world->refused_at = world->refusals = 0;
  }
  if (breaks(world, CHOICE_RULE_PATIENCE)) {
    world->choice.refused = 0;
  }
  if (breaks(world, CHOICE_RULE_TRIALS)) {
    found.gives_up = found.may_try = true;
  }
  world->about = found.known ? world->in_force.version : world->about;
  if (bl_choice_decided(&world->choice, now, &found)) {
    ask(world, now, BL_CHOICE_CHANGE, &wanted, granted);
    world->about = granted ? world->in_force.version + 1 : 0;
  }
  world->checked = false;
}

static void sample(world_t *world, const bl_choice_now_t *now, outcome_t outcome, bool granted) {
  const bl_policy_t *policy = &world->in_force.policy;
  check(world, policy->kind == BL_POLICY_AUTO, "a step is sampled under another policy than auto");
  check(world, !world->outstanding, "a step is sampled while a change is asked for");
  check(world, !world->first, "a step is sampled that was not timed");
  check(world, bl_policy_probes(policy) || NOW > world->in_force.from_step, "a step that warms up is sampled");
  check(world, !world->looked, "a step is sampled twice");
  world->looked = true;
  switch (bl_choice_sampled(&world->choice, now, world->choice.samples + 1)) {
  case BL_CHOICE_BEGIN:
    begin(world, now, outcome == GIVES_UP, granted);
    break;
  case BL_CHOICE_DECIDE:
    decide(world, now, outcome, granted);
    break;
  case BL_CHOICE_MORE:
    break;
  }
}

static void try_again(world_t *world, const bl_choice_now_t *now, bool granted) {
  check(world, world->in_force.policy.chosen == BL_POLICY_DROP, "a trial where nothing is given up");
  check(world, !world->outstanding, "a trial while a change is asked for");
  check(world,
        world->refused_at == 0 || NOW - world->refused_at >= (uint64_t)BL_CHOICE_REST << (world->refusals - 1) ||
            world->refused_at <= NOW - OLDEST,
        "a refused trial is asked for again too soon");
  const bl_policy_t wanted = world->choice.trial;
  ask(world, now, BL_CHOICE_TRIAL, &wanted, granted);
  world->about = granted ? world->in_force.version + 1 : world->about;
}

// The boundary after a step; asked as often as the driver comes by.
static void boundary(world_t *world, double seconds, outcome_t outcome, bool granted) {
  world->looked = false;
  for (unsigned times = 0; times < 2; times++) {
    bl_choice_now_t now = now_of(world, world->first ? 0 : seconds);
    bl_policy_record_t pretended = world->in_force;
    const uint64_t version = world->choice.version;
    const bool found = world->choice.found;
    const uint64_t trial_at = world->choice.trial_at;
    bool slower;
    if (breaks(world, CHOICE_RULE_WARM_UP)) {
      pretended.from_step = 0;
    }
    if (breaks(world, CHOICE_RULE_TRIALS) && pretended.policy.kind == BL_POLICY_AUTO && trial_at != 0) {
      pretended.policy.chosen = BL_POLICY_DROP;
    }
    if (breaks(world, CHOICE_RULE_ONCE)) {
      world->choice.sampled = 0;
    }
    if (breaks(world, CHOICE_RULE_SLOWER)) {
      world->measurements.slow = 0;
    }
    now.in_force = &pretended;
    const bl_choice_action_t action = bl_choice_boundary(&world->choice, &now, &slower);
    if (breaks(world, CHOICE_RULE_TOLD) && world->choice.version != version) {
      world->choice.found = found;
    }
    now.in_force = &world->in_force;
    if (action == BL_CHOICE_SAMPLE) {
      sample(world, &now, outcome, granted);
    } else if (action == BL_CHOICE_TRY) {
      try_again(world, &now, granted);
    }
    const bool told = bl_choice_told(&world->choice, &world->in_force) == BL_CHOICE_FOUND;
    check(world, !told || world->in_force.policy.kind != BL_POLICY_AUTO || world->about == world->in_force.version,
          "what is told is about another policy");
  }
  check(world, !world->checked || world->outstanding || world->in_force.from_step + 1 != NOW || world->looked,
        "what was changed to is not checked at once");
  world->first = false;
}

static void run_step(world_t *world, double seconds, outcome_t outcome, bool granted) {
  age(world);
  boundary(world, seconds, outcome, granted);
}

// ---- the search -----------------------------------------------------------------------------------------------------

enum {
  FIRST_STEP = 0, // outcome and whether a change is granted
  SLOW_STEPS = FIRST_STEP + 2 * OUTCOMES,
  REST,
  IN_FORCE,
  REFUSED,
  OTHERS_FIX,
  OTHERS_AUTO,
  NEXT_DRIVER,
  ACTIONS
};

static uint64_t least(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

// Steps until something may be due; 0: it is.
static uint64_t quiet_steps(const world_t *world) {
  const bl_choice_t *choice = &world->choice;
  const bool trial = choice->trial_at != 0 && choice->trial_at > NOW;
  const uint64_t due = least(choice->next, trial ? choice->trial_at : UINT64_MAX);
  const bool rests = choice->phase == BL_CHOICE_RESTING && !world->outstanding && !world->checked;
  return rests && due > NOW + 1 && world->in_force.from_step < NOW ? due - NOW - 1 : 0;
}

static bool slow_steps(world_t *world) {
  const bool expects = world->measurements.expected > 0 && world->measurements.slow == 0 && quiet_steps(world) > 4 &&
                       world->in_force.policy.kind == BL_POLICY_AUTO;
  bool looked = false;
  world->follows_noise = world->follows_noise && !expects;
  for (unsigned i = 0; expects && i <= BL_MEASUREMENTS_SLOW; i++) {
    run_step(world, 2 * BL_MEASUREMENTS_SLOWER * EXPECTED, STAYS, true);
    looked = looked || world->looked;
  }
  check(world, !expects || looked || world->outstanding, "steps have become slow, and it rests");
  return expects;
}

static void end_change(world_t *world, bool in_force) {
  bl_choice_t *choice = &world->choice;
  const bool trial = choice->reason == BL_CHOICE_TRIAL;
  const bool checks = choice->reason == BL_CHOICE_CHANGE && !world->follows_noise;
  choice->phase = BL_CHOICE_ASKED; // where rule 2 is broken
  world->outstanding = false;
  if (in_force) {
    put_in_force(world, &world->wanted);
    world->checked = checks && choice->version + 1 == world->in_force.version;
  } else {
    world->refusals += trial;
    world->refused_at = trial ? NOW : world->refused_at;
    world->about = 0;
  }
  bl_choice_answered(choice, NOW, in_force ? &world->in_force : NULL);
}

static bool act(world_t *world, unsigned action) {
  const uint64_t quiet = quiet_steps(world);
  if (action < SLOW_STEPS) {
    if (quiet > 1) {
      return false; // REST
    }
    for (unsigned i = 0; i < (world->outstanding && world->late == LATE - 1 ? BL_CHOICE_REST : 1); i++) {
      run_step(world, EXPECTED, action % OUTCOMES, action < OUTCOMES);
    }
    world->late += world->outstanding;
    return !world->outstanding || world->late <= LATE;
  }
  switch (action) {
  case SLOW_STEPS:
    return slow_steps(world);
  case REST:
    for (uint64_t i = 0; i < quiet; i++) {
      run_step(world, EXPECTED, STAYS, true);
      check(world, !world->looked || i + 1 == quiet, "it looks while it rests");
    }
    return quiet > 1;
  case IN_FORCE:
  case REFUSED:
    if (!world->outstanding ||
        (action == REFUSED && world->choice.reason == BL_CHOICE_TRIAL && world->refusals >= world->options->refusals)) {
      return false;
    }
    end_change(world, action == IN_FORCE);
    return true;
  case OTHERS_FIX:
  case OTHERS_AUTO: {
    if (world->outstanding || world->in_force.from_step > NOW) {
      return false; // changes are carried out one after the other, and a step runs between two
    }
    const bl_policy_t policy = policy_of(action == OTHERS_FIX ? POLICY_FIXED : POLICY_PROBE);
    put_in_force(world, &policy);
    world->follows_noise = false;
    return true;
  }
  case NEXT_DRIVER:
    world->choice = (bl_choice_t){0};
    world->measurements = (bl_measurements_t){0};
    world->outstanding = world->checked = world->follows_noise = false;
    world->changed = world->refused_at = world->refusals = world->about = world->probed = 0;
    world->first = true;
    return true;
  default:
    return false;
  }
}

// ---- packing: steps as they lie behind and before NOW ---------------------------------------------------------------

typedef struct packed {
  int16_t next, sampled, trial_at, measured, changed, refused_at, from_step;
  uint8_t phase, reason, checks, samples, version, watched, refused, found, begins, trial;
  uint8_t expected, slow, policy, wanted, outstanding, late, first, follows_noise, checked, refusals, about, probed,
      sets;
} packed_t;

static int16_t offset_of(uint64_t step) {
  const uint64_t from = step < NOW - OLDEST ? NOW - OLDEST : step;
  return (int16_t)((int64_t)from - NOW);
}

static void pack(const world_t *world, explore_state_t *state) {
  const bl_choice_t *choice = &world->choice;
  packed_t packed;
  memset(&packed, 0, sizeof packed);
  const uint64_t horizon = NOW + OLDEST;
  packed.next = offset_of(choice->next < NOW ? NOW - 1 : least(choice->next, horizon));
  packed.sampled = choice->sampled == NOW;
  packed.watched = choice->watched == NOW;
  packed.trial_at = choice->trial_at != 0 ? offset_of(choice->trial_at < NOW ? NOW : choice->trial_at) : 0;
  packed.measured = choice->measured != 0 ? offset_of(choice->measured) : 0;
  packed.refused_at = world->refused_at != 0 ? offset_of(world->refused_at) : 0;
  packed.from_step = (int16_t)(world->in_force.from_step + 3 < NOW ? -3 : (int64_t)world->in_force.from_step - NOW);
  packed.sets = (uint8_t)((choice->trial_at != 0) | (choice->measured != 0) << 1 | (world->refused_at != 0) << 2);
  packed.changed = world->follows_noise
                       ? offset_of(world->changed < NOW - BL_CHOICE_REST ? NOW - BL_CHOICE_REST : world->changed)
                       : 0;
  packed.phase = (uint8_t)choice->phase;
  packed.reason = (uint8_t)choice->reason;
  packed.checks = choice->checks;
  packed.samples = (uint8_t)choice->samples;
  packed.version = choice->version == world->in_force.version;
  packed.refused = (uint8_t)choice->refused;
  packed.found = choice->found;
  packed.begins = choice->begins;
  packed.trial = (uint8_t)index_of(&choice->trial);
  packed.expected = world->measurements.expected > 0;
  packed.slow = (uint8_t)world->measurements.slow;
  packed.policy = (uint8_t)index_of(&world->in_force.policy);
  packed.wanted = world->outstanding ? (uint8_t)index_of(&world->wanted) : 0;
  packed.outstanding = world->outstanding;
  packed.late = world->outstanding ? world->late : 0;
  packed.first = world->first;
  packed.follows_noise = world->follows_noise;
  packed.checked = world->checked;
  packed.refusals = (uint8_t)world->refusals;
  packed.about = world->about == world->in_force.version ? 1 : world->about == world->in_force.version + 1 ? 2 : 0;
  packed.probed = (uint8_t)least(world->probed, BL_CHOICE_PROBES);
  state->size = sizeof packed;
  memcpy(state->bytes, &packed, sizeof packed);
}

static uint64_t step_at(int16_t offset) {
  return (uint64_t)(NOW + offset);
}

static void unpack(world_t *world, const void *context, const explore_state_t *state) {
  packed_t packed;
  memcpy(&packed, state->bytes, sizeof packed);
  *world = (world_t){.options = context};
  bl_choice_t *choice = &world->choice;
  world->in_force = (bl_policy_record_t){
      .version = VERSION, .policy = policy_of(packed.policy), .from_step = step_at(packed.from_step)};
  choice->next = step_at(packed.next);
  choice->sampled = packed.sampled ? NOW : NOW - 1;
  choice->watched = packed.watched ? NOW : NOW - 1;
  choice->trial_at = (packed.sets & 1) != 0 ? step_at(packed.trial_at) : 0;
  choice->measured = (packed.sets & 2) != 0 ? step_at(packed.measured) : 0;
  world->refused_at = (packed.sets & 4) != 0 ? step_at(packed.refused_at) : 0;
  world->changed = step_at(packed.changed);
  choice->phase = packed.phase;
  choice->reason = packed.reason;
  choice->checks = packed.checks;
  choice->samples = packed.samples;
  choice->version = packed.version ? VERSION : VERSION - 1;
  choice->refused = packed.refused;
  choice->found = packed.found;
  choice->begins = packed.begins;
  choice->trial = policy_of(packed.trial);
  world->measurements.expected = packed.expected ? EXPECTED : 0;
  world->measurements.slow = packed.slow;
  world->wanted = policy_of(packed.wanted);
  world->outstanding = packed.outstanding;
  world->late = packed.late;
  world->first = packed.first;
  world->follows_noise = packed.follows_noise;
  world->checked = packed.checked;
  world->refusals = packed.refusals;
  world->about = packed.about == 1 ? VERSION : packed.about == 2 ? VERSION + 1 : 0;
  world->probed = packed.probed;
}

// ---- the model ------------------------------------------------------------------------------------------------------

static void initial(const void *context, explore_state_t *state) {
  world_t world = {.options = context, .first = true};
  world.in_force = (bl_policy_record_t){.version = VERSION, .policy = policy_of(POLICY_PROBE), .from_step = NOW + 1};
  pack(&world, state);
}

static world_t before;

static void enter(const void *context, const explore_state_t *state) {
  unpack(&before, context, state);
}

static bool successor(const void *context, unsigned action, explore_step_t *step) {
  (void)context;
  world_t world = before;
  if (!act(&world, action)) {
    return false;
  }
  pack(&world, &step->state);
  step->broken = world.broken;
  return true;
}

// From here on all goes well: within a rest, auto has looked at a step.
static const char *inspect(const void *context, const explore_state_t *state) {
  world_t world;
  unpack(&world, context, state);
  bool looked = world.in_force.policy.kind != BL_POLICY_AUTO;
  for (unsigned i = 0; i < BL_CHOICE_REST + 4 && !looked; i++) {
    if (world.outstanding) {
      end_change(&world, true);
    }
    run_step(&world, EXPECTED, STAYS, true);
    looked = world.looked;
  }
  check(&world, looked, "it rests for ever");
  return world.broken;
}

static void describe(const void *context, const explore_state_t *state, unsigned action, char *text,
                     size_t text_bytes) {
  static const char *const outcomes[] = {"the policy stays", "nothing is known", "parking is best",
                                         "giving up is best"};
  static const char *const others[] = {
      "steps become slow", "steps of a rest",           "what was asked for is in force",
      "it is refused",     "others set a fixed policy", "others set auto once more",
      "the next driver"};
  (void)context;
  (void)state;
  if (action < SLOW_STEPS) {
    snprintf(text, text_bytes, "a step; if a decision is due, %s%s", outcomes[action % OUTCOMES],
             action < OUTCOMES ? "" : ", and others change the policy");
  } else {
    snprintf(text, text_bytes, "%s", others[action - SLOW_STEPS]);
  }
}

explore_model_t choice_model(const choice_options_t *options) {
  return (explore_model_t){.context = options,
                           .initial = initial,
                           .enter = enter,
                           .successor = successor,
                           .inspect = inspect,
                           .actions = ACTIONS,
                           .describe = describe};
}
