// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/plan/own_stages.h"

#include "ballastctl/plan/prediction.h"

#include "base/bytes.h"

#include <stdio.h>
#include <string.h>

static void keep_fullest(const bl_ctl_prediction_t *prediction, bl_ctl_own_stages_t *own) {
  for (uint32_t s = 0; s < prediction->plan.schedule->stages; s++) {
    if (s == 0 || bl_footprint_total(&prediction->demand[s]) > bl_footprint_total(&own->fullest)) {
      own->fullest = prediction->demand[s];
      own->stage = s;
    }
  }
  own->known = true;
}

// Says which limit of a plan leaves room for what its job takes more.
static void check_limit(const bl_plan_request_t *r, const bl_plan_candidate_t *best, bl_ctl_own_stages_t *own) {
  char taken[BL_BYTES_TEXT], limit[BL_BYTES_TEXT], counted[BL_BYTES_TEXT];
  const double bytes = bl_footprint_total(&own->fullest), lower = r->memory - (bytes - best->memory);
  if (r->memory <= 0 || bytes <= r->memory) {
    return;
  }
  bl_bytes_format((uint64_t)bytes, taken);
  bl_bytes_format((uint64_t)r->memory, limit);
  bl_bytes_format((uint64_t)best->memory, counted);
  const int used = snprintf(own->warning, sizeof own->warning,
                            "the job of the best candidate takes %s on stage %u of Ballast, and a device has %s: plans "
                            "of a cluster count %s, without what Ballast's stages keep in addition",
                            taken, own->stage, limit, counted);
  if (lower > 0) {
    snprintf(own->warning + used, sizeof own->warning - (size_t)used, "; --memory %.0f plans a job that takes about %s",
             lower, limit);
  }
}

void bl_ctl_own_stages_refuse(bl_ctl_own_stages_t *own, const bl_error_t *fault) {
  static const char flag[] = "--set "; // a planned setting is read like one, but the user did not give it
  const size_t length = strncmp(fault->text, flag, sizeof flag - 1) == 0 ? sizeof flag - 1 : 0;
  snprintf(own->warning, sizeof own->warning, "the best candidate has no job that runs on Ballast: %s",
           fault->text + length);
}

void bl_ctl_own_stages_find(const bl_job_t *job, const bl_plan_request_t *r, const bl_plan_candidate_t *best,
                            bl_ctl_own_stages_t *own) {
  bl_training_t training = {0};
  bl_ctl_prediction_t prediction = {0};
  bl_error_t fault;
  const bl_policy_t policy = bl_policy_of_job(job);
  bl_ctl_prediction_source_t source = {
      .hardware = r->hardware, .policy = &policy, .job = job, .cluster = r->cluster, .order = best->order};
  *own = (bl_ctl_own_stages_t){0};
  bl_ctl_operations_init(&own->operations, job);
  bl_status_t status = bl_training_init_without_files(&training, job, &fault);
  if (status == BL_OK) {
    source.operations =
        bl_ctl_operations_find(&own->operations, best->micro_batch, training.layout.slices, training.layout.attention);
    status = bl_ctl_prediction_init(&prediction, &training, &source, NULL, &fault);
  }
  if (status == BL_OK) {
    keep_fullest(&prediction, own);
    check_limit(r, best, own);
  } else {
    bl_ctl_own_stages_refuse(own, &fault);
  }
  bl_ctl_prediction_cleanup(&prediction);
  bl_training_cleanup(&training);
}

void bl_ctl_own_stages_cleanup(bl_ctl_own_stages_t *own) {
  bl_ctl_operations_cleanup(&own->operations);
}
