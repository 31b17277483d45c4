// SPDX-License-Identifier: Apache-2.0
// The planner's request for `ballastctl plan`, from its flags and a job.
#ifndef BALLAST_BALLASTCTL_PLAN_REQUEST_H
#define BALLAST_BALLASTCTL_PLAN_REQUEST_H

#include "ballastctl/job_file.h"
#include "ballastctl/plan/cluster_flags.h"
#include "ballastctl/plan/operations.h"
#include "ballastctl/plan/warning.h"

#include "config/flags.h"
#include "plan/search/planner.h"

typedef struct bl_ctl_plan_flags {
  char *hardware, *write;
  bl_ctl_cluster_flags_t cluster;
  bl_text_list_t profiles, schedules, sets;
  bl_optional_int_t batch, memory, host, host_share;
  bl_optional_real_t host_gbps;
  bl_int_list_t stages, tensors, micro_batches, slices, chunks;
  bool shard, sequence;
  int attention, optimizer_memory, output;
} bl_ctl_plan_flags_t;

#define BL_CTL_PLAN_ROWS (20 + BL_CTL_CLUSTER_ROWS)
extern const bl_option_t bl_ctl_plan_rows[BL_CTL_PLAN_ROWS]; // of bl_ctl_plan_flags_t

// A request with everything that it borrows.
typedef struct bl_ctl_plan_request {
  bl_plan_request_t request;
  bl_model_t model;
  bl_profile_t *profiles;        // [request.profile_count]
  const bl_profile_t **borrowed; // pointers to `profiles`
  uint32_t *lists;               // stages, tensors, micro-batches, slices, chunks
  bl_attention_t attention;
  bl_profile_use_t use;   // what the job asks of profiles
  bl_hardware_t hardware; // in the job's dtype, with the links of the cluster
  bl_ctl_operations_t operations;
} bl_ctl_plan_request_t;

// Moves the job to the device of the flags, as bl_ctl_hardware_place; with profiles it stays. BL_INVALID: no such device.
BL_MUST_USE bl_status_t bl_ctl_plan_place(const bl_ctl_plan_flags_t *flags, bl_job_t *job, bl_error_t *err);
// BL_INVALID names the flag. The job, which is moved already, must outlive the request. Call bl_ctl_plan_request_cleanup after errors too.
BL_MUST_USE bl_status_t bl_ctl_plan_request_init(bl_ctl_plan_request_t *made, const bl_ctl_plan_flags_t *flags,
                                                 const bl_job_t *job, bl_error_t *err);
// If the candidate's time is an approximation from its profile, writes one line with the file's name; else "".
void bl_ctl_plan_warning(const bl_ctl_plan_request_t *made, const bl_ctl_plan_flags_t *flags,
                         const bl_plan_candidate_t *way, char warning[BL_CTL_WARNING]);
// Returns one line about the keys of the job that plans ignore; else "".
const char *bl_ctl_plan_unused(const bl_job_t *job);
void bl_ctl_plan_request_cleanup(bl_ctl_plan_request_t *made);

#endif
