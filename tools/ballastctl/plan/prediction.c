// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/plan/prediction.h"

#include "ballastctl/plan/operations.h"
#include "job/checkpoint_image.h"
#include "plan/evaluate/host.h"

#include <stdlib.h>
#include <string.h>

bl_status_t bl_ctl_hardware_find(const char *name, const bl_hardware_t **hardware, bl_error_t *err) {
  size_t count;
  const bl_hardware_t *all = bl_hardware_all(&count);
  char known[256] = "";
  *hardware = bl_hardware_find(name);
  if (*hardware != NULL) {
    return BL_OK;
  }
  // Suggests no nearest name, since a similar name is a different device; lists all instead.
  for (size_t i = 0; i < count; i++) {
    const char *separator = i == 0 ? "" : i + 1 < count ? ", " : " and ";
    const size_t used = strlen(known);
    snprintf(known + used, sizeof known - used, "%s%s", separator, all[i].name);
  }
  return bl_error_set(err, BL_INVALID, "--hardware %s: no such device is built in; %s are", name, known);
}

void bl_ctl_hardware_place(const bl_hardware_t *hardware, bool cluster, bl_job_t *job) {
  if (bl_hardware_is_gpu(hardware)) {
    job->pipeline.device = BL_JOB_DEVICE_CUDA;
    job->train.dtype = cluster ? BL_JOB_DTYPE_BF16 : job->train.dtype;
  }
}

static bl_status_t count_demand(bl_ctl_prediction_t *made, const bl_ctl_prediction_source_t *source, bl_error_t *err) {
  const bl_training_t *training = made->training;
  bl_layout_options_t options = training->layout;
  options.logits = bl_job_logits(source->job);
  const bl_demand_request_t request = {
      .schedule = made->plan.schedule,
      .spans = training->partition.spans,
      .stage = {.model = &training->model,
                .options = options,
                .operations = source->operations,
                .asynchronous = source->job->pipeline.device == BL_JOB_DEVICE_CUDA,
                .post_validation = source->job->train.post_validation,
                .optimizer_on_host = source->job->train.optimizer_memory == BL_JOB_OPTIMIZER_ON_HOST,
                .copies = bl_grid_copies(&training->grid)},
      .image = source->job->checkpoint.folder != NULL ? bl_checkpoint_image_bytes : NULL};
  made->demand = calloc(made->plan.schedule->stages, sizeof *made->demand);
  return made->demand != NULL ? bl_demand_of_schedule(&request, made->demand, err)
                              : bl_error_set(err, BL_EXHAUSTED, "no memory for what stages take");
}

bl_profile_use_t bl_ctl_profile_use(const bl_job_t *job, const bl_model_t *model) {
  return (bl_profile_use_t){.model = model,
                            .options = {.dtype = job->train.dtype == BL_JOB_DTYPE_BF16 ? BL_DTYPE_BF16 : BL_DTYPE_FP32,
                                        .layer_parts.ranks = (uint32_t)job->parallel.tensor},
                            .device = job->pipeline.device == BL_JOB_DEVICE_CUDA ? BL_PROFILE_CUDA : BL_PROFILE_HOST,
                            .threads = (uint32_t)job->pipeline.threads,
                            .masked = job->data.loss == BL_JOB_LOSS_MASKED,
                            .cores = job->pipeline.cores.set ? (uint32_t)job->pipeline.cores.value : 0};
}

bl_status_t bl_ctl_prediction_init(bl_ctl_prediction_t *prediction, const bl_training_t *training,
                                   const bl_ctl_prediction_source_t *source, const char *profile_name,
                                   bl_error_t *err) {
  bl_ctl_prediction_t made = {.training = training};
  bl_status_t status = BL_OK;
  bl_profile_use_t use = bl_ctl_profile_use(source->job, &training->model);
  use.options = training->layout;
  use.cores = source->cores;
  if (source->profile != NULL) {
    status = bl_profile_check(source->profile, &use, profile_name, err);
  }
  if (status == BL_OK) {
    status = bl_balance_plan_init(&made.plan, training, source->policy, err);
  }
  if (status == BL_OK) {
    bl_trial_request_t request = {.schedule = made.plan.schedule,
                                  .model = &training->model,
                                  .spans = training->partition.spans,
                                  .options = training->layout,
                                  .profile = source->profile,
                                  .profile_name = profile_name,
                                  .hardware = source->hardware,
                                  .parallel = {.tensor = training->grid.tensor,
                                               .data = training->grid.data,
                                               .shard = true,
                                               .sequence = training->grid.tensor > 1},
                                  .optimizer_on_host = source->job->train.optimizer_memory == BL_JOB_OPTIMIZER_ON_HOST,
                                  .threads = (uint32_t)source->job->pipeline.threads,
                                  .rate = source->job->balance.rate.set ? (double)source->job->balance.rate.value : 0,
                                  .replay = source->replay};
    bl_nodes_t nodes = {0};
    bl_host_places_t places = {0};
    if (made.plan.schedule->hosts > 0 && source->hardware != NULL) {
      const bl_host_t host = {.devices_per_link = source->hardware->devices_per_link};
      status = bl_host_places_init(&places, &host, &source->cluster, source->order, made.plan.schedule->stages,
                                   request.parallel);
      request.host_rate = source->hardware->host_rate / places.sharers;
      request.host_links = places.links;
    }
    if (status == BL_OK && source->cluster.nodes > 0) {
      request.nodes = &nodes;
      request.update_rate = bl_cluster_shared_rate(&source->cluster);
      status =
          bl_nodes_init(&nodes, &source->cluster, source->order, made.plan.schedule->stages, training->grid.tensor);
    }
    status = status == BL_OK ? bl_trial_run(&request, &made.trial, err)
                             : bl_error_set(err, status, "no memory to place stages on nodes");
    bl_nodes_cleanup(&nodes);
    bl_host_places_cleanup(&places);
  }
  if (status == BL_OK) {
    status = count_demand(&made, source, err);
  }
  if (status == BL_OK && source->profile != NULL) {
    use.schedule = made.plan.schedule;
    bl_ctl_warning_find(source->profile, &use, profile_name, made.warning);
  }
  if (status != BL_OK) {
    bl_ctl_prediction_cleanup(&made);
    return status;
  }
  *prediction = made;
  return BL_OK;
}

void bl_ctl_prediction_cleanup(bl_ctl_prediction_t *prediction) {
  free(prediction->demand);
  bl_trial_cleanup(&prediction->trial);
  bl_balance_plan_cleanup(&prediction->plan);
}
