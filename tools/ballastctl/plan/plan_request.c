// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/plan/plan_request.h"

#include "ballastctl/output.h"
#include "ballastctl/plan/prediction.h"
#include "ballastctl/plan/profile_file.h"
#include "ballastctl/plan/schedule_name.h"

#include "job/architecture.h"
#include "job/checkpoint_image.h"
#include "job/costs.h"

#include <stdlib.h>
#include <string.h>

#define OFFSET(member) offsetof(bl_ctl_plan_flags_t, member)

static const char *const attention_names[] = {"any", "naive", "flash", NULL};
enum { OPTIMIZER_OF_JOB, OPTIMIZER_ON_DEVICE, OPTIMIZER_ON_HOST };
static const char *const optimizer_memories[] = {"job", "device", "host", NULL};

const bl_option_t bl_ctl_plan_rows[BL_CTL_PLAN_ROWS] = {
    {.name = "profile",
     .type = BL_OPTION_PATH_LIST,
     .offset = OFFSET(profiles),
     .argument = "FILE",
     .help = "Measured costs; may be repeated, for several micro-batches."},
    {.name = "hardware",
     .type = BL_OPTION_TEXT,
     .offset = OFFSET(hardware),
     .argument = "NAME",
     .preset_help = "host, or with --nodes a100-80g",
     .help = "Without a profile: the model of a device. host, a100-80g, h100 or h200."},
    BL_CTL_CLUSTER_FLAGS(bl_ctl_plan_flags_t, cluster),
    {.name = "memory",
     .type = BL_OPTION_BYTES,
     .offset = OFFSET(memory),
     .optional = true,
     .argument = "BYTES",
     .minimum = 1,
     .maximum = 1e18,
     .preset_help = "92 % of the device's with --nodes or a GPU as --hardware, else no limit",
     .help = "Limit of every device: all memory that a stage reports, and the slots that it lends."},
    {.name = "host",
     .type = BL_OPTION_BYTES,
     .offset = OFFSET(host),
     .optional = true,
     .argument = "BYTES",
     .minimum = 1,
     .maximum = 1e18,
     .preset_help = "the job's balance.host",
     .help = "Memory of a machine's host in which all its devices together may park blocks."},
    {.name = "host-gbps",
     .type = BL_OPTION_REAL,
     .offset = OFFSET(host_gbps),
     .optional = true,
     .argument = "X",
     .minimum = 0,
     .minimum_open = true,
     .maximum = 1e9,
     .unit = "gigabits per second",
     .preset_help = "as the device has, or as the profile saw",
     .help = "Of a link between devices and memory of their host, in one direction."},
    {.name = "host-share",
     .type = BL_OPTION_INT,
     .offset = OFFSET(host_share),
     .optional = true,
     .argument = "N",
     .minimum = 1,
     .maximum = 1024,
     .preset_help = "1, and for host all",
     .help = "Neighbouring devices that share one link to the host: their copies take turns."},
    {.name = "batch",
     .type = BL_OPTION_INT,
     .offset = OFFSET(batch),
     .optional = true,
     .argument = "B",
     .minimum = 1,
     .maximum = 1e9,
     .unit = "sequences",
     .preset_help = "micro_batch x micro_batches of the job",
     .help = "Sequences of a step."},
    {.name = "stages",
     .type = BL_OPTION_INT_LIST,
     .offset = OFFSET(stages),
     .argument = "P",
     .minimum = 1,
     .maximum = BL_STAGES_MAX,
     .preset_help = "the job's, or what fills the cluster",
     .help = "Pipeline stages to try; may be repeated."},
    {.name = "tensor",
     .type = BL_OPTION_INT_LIST,
     .offset = OFFSET(tensors),
     .argument = "T",
     .minimum = 1,
     .maximum = 4096,
     .preset_help = "1, 2, 4, 8",
     .help = "Tensor parallelism to try on a cluster; may be repeated."},
    {.name = "micro-batch",
     .type = BL_OPTION_INT_LIST,
     .offset = OFFSET(micro_batches),
     .argument = "b",
     .minimum = 1,
     .maximum = 65536,
     .preset_help = "up to 8, and larger while the largest is the best",
     .help = "Micro-batches to try, of those that divide the batch; may be repeated."},
    {.name = "slices",
     .type = BL_OPTION_INT_LIST,
     .offset = OFFSET(slices),
     .argument = "K",
     .minimum = 1,
     .maximum = BL_SLICES_MAX,
     .preset_help = "1, and 2, 4, 8 ... of at least 1024 tokens that may be the fastest",
     .help = "Slices of sequences to try, of those that divide model.seq; may be repeated."},
    {.name = "chunks",
     .type = BL_OPTION_INT_LIST,
     .offset = OFFSET(chunks),
     .argument = "V",
     .minimum = 1,
     .maximum = 4096,
     .preset_help = "each schedule's; where it takes any, up to 4, and up to 8 that divide the layers",
     .help = "Chunks a stage to try; may be repeated."},
    {.name = "schedule",
     .type = BL_OPTION_TEXT_LIST,
     .offset = OFFSET(schedules),
     .argument = "NAME",
     .preset_help = "all that runs",
     .help = "Schedules to try; may be repeated."},
    {.name = "attention",
     .type = BL_OPTION_ENUM,
     .offset = OFFSET(attention),
     .choices = attention_names,
     .preset = "any",
     .help = "Attention to try; with a profile any is the profile's."},
    {.name = "shard", .type = BL_OPTION_BOOL, .offset = OFFSET(shard), .help = "Replicas share the optimizer's state."},
    {.name = "sequence",
     .type = BL_OPTION_BOOL,
     .offset = OFFSET(sequence),
     .help = "Sequence parallelism with tensor parallelism."},
    {.name = "optimizer-memory",
     .type = BL_OPTION_ENUM,
     .offset = OFFSET(optimizer_memory),
     .choices = optimizer_memories,
     .preset = "job",
     .help = "Where the optimizer's state lies (train.optimizer_memory), and with a device's model what host costs."},
    {.name = "write",
     .type = BL_OPTION_TEXT,
     .offset = OFFSET(write),
     .argument = "FILE.yaml",
     .help = "Write the job of the best candidate."},
    BL_CTL_SET_FLAG(bl_ctl_plan_flags_t, sets),
    BL_CTL_OUTPUT_FLAG(bl_ctl_plan_flags_t, output),
};

static const char *hardware_of(const bl_ctl_plan_flags_t *flags) {
  return flags->hardware != NULL ? flags->hardware : flags->cluster.nodes != NULL ? "a100-80g" : "host";
}

bl_status_t bl_ctl_plan_place(const bl_ctl_plan_flags_t *flags, bl_job_t *job, bl_error_t *err) {
  const bl_hardware_t *hardware;
  if (flags->profiles.count > 0) {
    return BL_OK;
  }
  bl_status_t status = bl_ctl_hardware_find(hardware_of(flags), &hardware, err);
  if (status == BL_OK) {
    bl_ctl_hardware_place(hardware, flags->cluster.nodes != NULL, job);
  }
  return status;
}

static bl_status_t read_costs(bl_ctl_plan_request_t *made, const bl_ctl_plan_flags_t *flags, bl_error_t *err) {
  bl_plan_request_t *r = &made->request;
  if (flags->profiles.count == 0) {
    bl_status_t status = bl_ctl_hardware_find(hardware_of(flags), &r->hardware, err);
    if (status == BL_OK) {
      made->hardware = bl_hardware_in(r->hardware, r->dtype);
      r->hardware = &made->hardware;
    }
    return status;
  }
  if (flags->hardware != NULL || flags->cluster.nodes != NULL) {
    return bl_error_set(err, BL_INVALID, "--profile is of one machine: it goes with neither --hardware nor --nodes");
  }
  made->profiles = calloc(flags->profiles.count, sizeof *made->profiles);
  made->borrowed = calloc(flags->profiles.count, sizeof(const bl_profile_t *));
  if (made->profiles == NULL || made->borrowed == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for profiles");
  }
  for (size_t i = 0; i < flags->profiles.count; i++) {
    bl_status_t status = bl_ctl_profile_read("--profile", flags->profiles.items[i], &made->profiles[i], err);
    if (status != BL_OK) {
      return status;
    }
    made->borrowed[r->profile_count++] = &made->profiles[i];
    status = bl_profile_check(&made->profiles[i], &made->use, flags->profiles.items[i], err);
    if (status != BL_OK) {
      return status;
    }
  }
  r->profiles = made->borrowed;
  return BL_OK;
}

static bl_status_t check_schedules(const bl_text_list_t *names, bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (size_t i = 0; i < names->count && status == BL_OK; i++) {
    const bl_schedule_info_t *found;
    status = bl_ctl_schedule_find(names->items[i], &found, err);
    if (status == BL_OK && found->not_planned != NULL) {
      status = bl_error_set(err, BL_INVALID, "--schedule %s: %s; ballastctl simulate says what a job with it takes",
                            names->items[i], found->not_planned);
    }
  }
  return status;
}

static const uint32_t *copy_list(uint32_t **next, const bl_int_list_t *list) {
  const uint32_t *start = *next;
  for (size_t i = 0; i < list->count; i++) {
    *(*next)++ = (uint32_t)list->items[i];
  }
  return start;
}

static bl_status_t copy_lists(bl_ctl_plan_request_t *made, const bl_ctl_plan_flags_t *flags, const bl_job_t *job,
                              bl_error_t *err) {
  bl_plan_request_t *r = &made->request;
  made->lists = calloc(flags->stages.count + flags->tensors.count + flags->micro_batches.count + flags->slices.count +
                           flags->chunks.count + 1,
                       sizeof(uint32_t));
  if (made->lists == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for lists");
  }
  uint32_t *next = made->lists;
  r->stages = copy_list(&next, &flags->stages);
  r->stage_count = (uint32_t)flags->stages.count;
  if (r->stage_count == 0 && r->cluster.nodes == 0) {
    *next++ = (uint32_t)job->pipeline.stages;
    r->stage_count = 1;
  }
  r->tensors = copy_list(&next, &flags->tensors);
  r->tensor_count = (uint32_t)flags->tensors.count;
  r->micro_batches = copy_list(&next, &flags->micro_batches);
  r->micro_batch_count = (uint32_t)flags->micro_batches.count;
  r->slices = copy_list(&next, &flags->slices);
  r->slice_count = (uint32_t)flags->slices.count;
  r->chunks = copy_list(&next, &flags->chunks);
  r->chunk_count = (uint32_t)flags->chunks.count;
  r->schedules = (const char *const *)flags->schedules.items;
  r->schedule_count = (uint32_t)flags->schedules.count;
  return check_schedules(&flags->schedules, err);
}

// Sets where the optimizer is: by the flag, else by the job.
static bl_status_t read_optimizer(bl_ctl_plan_request_t *made, const bl_ctl_plan_flags_t *flags, const bl_job_t *job,
                                  bl_error_t *err) {
  const bool jobs = job->train.optimizer_memory == BL_JOB_OPTIMIZER_ON_HOST;
  const bool asked = flags->optimizer_memory == OPTIMIZER_OF_JOB ? jobs : flags->optimizer_memory == OPTIMIZER_ON_HOST;
  made->request.optimizer_on_host = asked;
  made->request.asynchronous = asked || job->pipeline.device == BL_JOB_DEVICE_CUDA; // as the written job has it
  made->request.threads = (uint32_t)job->pipeline.threads;
  if (made->request.profile_count > 0 && asked != jobs) {
    return bl_error_set(
        err, BL_INVALID,
        "--optimizer-memory %s: a profile has the time between steps of its run, which is not known for "
        "another place of the optimizer: leave one of the two out, or record a profile with "
        "train.optimizer_memory: %s",
        optimizer_memories[flags->optimizer_memory], optimizer_memories[flags->optimizer_memory]);
  }
  if (asked && made->request.hardware != NULL && made->request.hardware->host_source == NULL) {
    return bl_error_set(err, BL_INVALID,
                        "%s: it saves nothing where the device is the host itself: give the model of a GPU "
                        "(--hardware a100-80g), or leave it out",
                        flags->optimizer_memory == OPTIMIZER_ON_HOST ? "--optimizer-memory host"
                                                                     : "train.optimizer_memory: host");
  }
  return BL_OK;
}

// Reads the batch, which must fit 32 bits.
static bl_status_t read_batch(const bl_ctl_plan_flags_t *flags, const bl_job_t *job, uint32_t *batch, bl_error_t *err) {
  const int64_t wanted = flags->batch.set ? flags->batch.value : job->train.micro_batch * job->train.micro_batches;
  if (wanted > UINT32_MAX) {
    return bl_error_set(err, BL_INVALID,
                        "train.micro_batch x train.micro_batches: %lld sequences a step are more than %u; make one of "
                        "them smaller, or give --batch",
                        (long long)wanted, UINT32_MAX);
  }
  *batch = (uint32_t)wanted;
  return BL_OK;
}

// BL_INVALID names the flag.
static bl_status_t read_host(const bl_ctl_plan_flags_t *flags, const bl_job_t *job, bl_plan_request_t *r,
                             bl_error_t *err) {
  const int64_t bytes = flags->host.set ? flags->host.value : job->balance.host.set ? job->balance.host.value : 0;
  const int64_t share = flags->host_share.set ? flags->host_share.value : 0;
  if (bytes == 0 && (flags->host_gbps.set || flags->host_share.set)) {
    return bl_error_set(err, BL_INVALID, "%s: is about memory of hosts, which --host BYTES gives",
                        flags->host_gbps.set ? "--host-gbps" : "--host-share");
  }
  if (share > 0 && r->cluster.nodes > 0 && r->cluster.devices_per_node % share != 0) {
    return bl_error_set(err, BL_INVALID, "--host-share %lld: does not divide the %u devices of a node",
                        (long long)share, r->cluster.devices_per_node);
  }
  r->host.bytes = (double)bytes;
  r->host.rate = flags->host_gbps.set  ? flags->host_gbps.value * 1e9 / 8
                 : r->hardware != NULL ? r->hardware->host_rate
                                       : 0;
  r->host.devices_per_link = share > 0 ? (uint32_t)share : r->hardware != NULL ? r->hardware->devices_per_link : 0;
  return BL_OK;
}

// Plans do not use these keys, but a job with wrong ones cannot run.
static bl_status_t check_copies(const bl_job_t *job, bl_error_t *err) {
  double *copies = NULL;
  bl_status_t status = bl_job_copies_read(job, (uint32_t)job->pipeline.stages, &copies, err);
  free(copies);
  return status;
}

bl_status_t bl_ctl_plan_request_init(bl_ctl_plan_request_t *made, const bl_ctl_plan_flags_t *flags, const bl_job_t *job,
                                     bl_error_t *err) {
  *made = (bl_ctl_plan_request_t){0};
  bl_plan_request_t *r = &made->request;
  r->model = &made->model;
  r->shard = flags->shard;
  r->sequence = flags->sequence;
  r->mode = job->balance.mode;
  r->post_validation = job->train.post_validation;
  r->dtype = job->train.dtype == BL_JOB_DTYPE_BF16 ? BL_DTYPE_BF16 : BL_DTYPE_FP32;
  r->image = job->checkpoint.folder != NULL ? bl_checkpoint_image_bytes : NULL;
  bl_status_t status = read_batch(flags, job, &r->batch, err);
  status = status == BL_OK ? check_copies(job, err) : status;
  if (status != BL_OK) {
    return status;
  }
  if (flags->cluster.nodes == NULL && (flags->tensors.count > 0 || flags->shard || flags->sequence)) {
    const char *lone = flags->tensors.count > 0 ? "--tensor" : flags->shard ? "--shard" : "--sequence";
    return bl_error_set(err, BL_INVALID, "%s: is about a cluster, which --nodes NxG gives", lone);
  }
  status = bl_architecture_read(job, &made->model, err);
  made->use = bl_ctl_profile_use(job, &made->model);
  if (status == BL_OK) {
    status = read_costs(made, flags, err);
  }
  if (status == BL_OK) {
    status = read_optimizer(made, flags, job, err);
  }
  if (status == BL_OK) {
    status = bl_ctl_cluster_read(&flags->cluster, &made->hardware, &r->cluster, err);
  }
  if (status == BL_OK) {
    status = read_host(flags, job, r, err);
  }
  if (status == BL_OK) {
    status = copy_lists(made, flags, job, err);
  }
  if (status != BL_OK) {
    return status;
  }
  if (flags->attention > 0) {
    made->attention = flags->attention == 1 ? BL_ATTENTION_NAIVE : BL_ATTENTION_FLASH;
    r->attentions = &made->attention;
    r->attention_count = 1;
  }
  const bool named = flags->hardware != NULL && bl_hardware_is_gpu(r->hardware);
  if (r->cluster.nodes > 0 || named) {
    r->memory = BL_HARDWARE_USABLE * r->hardware->memory_bytes;
  }
  if (r->cluster.nodes == 0) {
    bl_ctl_operations_init(&made->operations, job);
    r->logits = bl_job_logits(job);
    r->operations = bl_ctl_operations_find;
    r->operations_context = &made->operations;
  }
  r->memory = flags->memory.set ? (double)flags->memory.value : r->memory;
  return BL_OK;
}

const char *bl_ctl_plan_unused(const bl_job_t *job) {
  return job->balance.slow_paths.count == 0
             ? ""
             : "balance.slow_paths: the job's are not planned with: paths come from --nodes with --intra-gbps and "
               "--inter-gbps, and the job that --write writes has those";
}

void bl_ctl_plan_warning(const bl_ctl_plan_request_t *made, const bl_ctl_plan_flags_t *flags,
                         const bl_plan_candidate_t *way, char warning[BL_CTL_WARNING]) {
  const bl_profile_t *profile = bl_plan_nearest_profile(&made->request, way->micro_batch, way->slices);
  bl_profile_use_t use = made->use;
  use.options.micro_batch = way->micro_batch;
  use.options.slices = way->slices;
  use.options.attention = way->attention;
  use.options.recompute = way->recompute;
  use.schedule = way->operations;
  warning[0] = '\0';
  if (profile != NULL) {
    bl_ctl_warning_find(profile, &use, flags->profiles.items[profile - made->profiles], warning);
  }
}

void bl_ctl_plan_request_cleanup(bl_ctl_plan_request_t *made) {
  for (uint32_t i = 0; i < made->request.profile_count; i++) {
    bl_profile_cleanup(&made->profiles[i]);
  }
  free(made->profiles);
  bl_ctl_operations_cleanup(&made->operations);
  free(made->borrowed);
  free(made->lists);
}
