// SPDX-License-Identifier: Apache-2.0
#include "plan_notes_wire.h"

#include <stdlib.h>

uint64_t bl_plan_policy(const Ballast__V1__PreparePlanRequest *request) {
  return request->n_policies > 0 ? request->policies[request->n_policies - 1]->version : 0;
}

static bool is_kept(const bl_stage_step_t *step, uint64_t version) {
  for (size_t i = 0; i < BL_STAGE_PLANS; i++) {
    if (step->plans[BL_RUN_TRAIN][i].version == version) {
      return true;
    }
  }
  return false;
}

static void forget(Ballast__V1__PreparedPlan **note) {
  if (*note != NULL) {
    ballast__v1__prepared_plan__free_unpacked(*note, NULL);
    *note = NULL;
  }
}

void bl_plan_notes_cleanup(bl_plan_notes_t *notes) {
  for (size_t i = 0; i < BL_STAGE_PLANS; i++) {
    forget(&notes->kept[i]);
  }
  forget(&notes->offered);
}

// Returns a copy of the request's version, digest and policies, made by packing and unpacking them.
static Ballast__V1__PreparedPlan *copy(const Ballast__V1__PreparePlanRequest *request) {
  Ballast__V1__PreparedPlan plan = BALLAST__V1__PREPARED_PLAN__INIT;
  plan.version = request->version;
  plan.digest = request->digest;
  plan.policies = request->policies;
  plan.n_policies = request->n_policies;
  size_t size = ballast__v1__prepared_plan__get_packed_size(&plan);
  uint8_t *bytes = malloc(size + 1);
  if (bytes == NULL) {
    return NULL;
  }
  ballast__v1__prepared_plan__pack(&plan, bytes);
  Ballast__V1__PreparedPlan *made = ballast__v1__prepared_plan__unpack(NULL, size, bytes);
  free(bytes);
  return made;
}

void bl_plan_notes_offer(bl_plan_notes_t *notes, const Ballast__V1__PreparePlanRequest *request) {
  forget(&notes->offered);
  notes->offered = copy(request);
}

void bl_plan_notes_keep(bl_plan_notes_t *notes, const bl_stage_step_t *step) {
  if (notes->offered == NULL || !is_kept(step, notes->offered->version)) {
    return; // of a plan of another kind
  }
  Ballast__V1__PreparedPlan **place = NULL;
  for (size_t i = 0; i < BL_STAGE_PLANS; i++) {
    // The same version: a repeated request, or a plan of another job, whose versions began anew.
    if (notes->kept[i] != NULL &&
        (!is_kept(step, notes->kept[i]->version) || notes->kept[i]->version == notes->offered->version)) {
      forget(&notes->kept[i]);
    }
    place = notes->kept[i] == NULL ? &notes->kept[i] : place;
  }
  if (place != NULL) {
    *place = notes->offered;
    notes->offered = NULL;
  }
}

Ballast__V1__PreparedPlan **bl_plan_notes_list(bl_plan_notes_t *notes, const bl_stage_step_t *step, size_t *count) {
  *count = 0;
  for (size_t i = 0; i < BL_STAGE_PLANS; i++) {
    if (notes->kept[i] != NULL && is_kept(step, notes->kept[i]->version)) {
      notes->listed[(*count)++] = notes->kept[i];
    }
  }
  return notes->listed;
}
