// SPDX-License-Identifier: Apache-2.0
#include "config/job_check.h"

#include "base/host.h"
#include "base/words.h"

#include <float.h>
#include <string.h>

static bl_status_t check_inline_complete(const bl_job_t *job, bl_error_t *err) {
  if (job->model.family == BL_JOB_FAMILY_NONE) {
    return bl_job_fail(job, err, "model.family", "is missing; give gpt2 or llama, or a model.config");
  }
  const struct {
    const char *key;
    bool set;
  } needed[] = {
      {"model.layers", job->model.layers.set}, {"model.hidden", job->model.hidden.set},
      {"model.heads", job->model.heads.set},   {"model.ffn", job->model.ffn.set},
      {"model.vocab", job->model.vocab.set},   {"model.seq", job->model.seq.set},
  };
  for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
    if (!needed[i].set) {
      return bl_job_fail(job, err, needed[i].key, "is missing; a %s model given inline needs it",
                         bl_job_family_name(job->model.family));
    }
  }
  return BL_OK;
}

static bl_status_t check_model(const bl_job_t *job, bl_error_t *err) {
  bool from_file = job->model.config != NULL || job->model.init != NULL;
  if (!from_file) {
    bl_status_t status = check_inline_complete(job, err);
    if (status != BL_OK) {
      return status;
    }
  }
  const bl_optional_int_t hidden = job->model.hidden, heads = job->model.heads, kv_heads = job->model.kv_heads;
  if (hidden.set && heads.set && hidden.value % heads.value != 0) {
    return bl_job_fail(job, err, "model.heads", "%lld heads do not divide hidden %lld", (long long)heads.value,
                       (long long)hidden.value);
  }
  if (heads.set && kv_heads.set && heads.value % kv_heads.value != 0) {
    return bl_job_fail(job, err, "model.kv_heads", "%lld do not divide %lld heads", (long long)kv_heads.value,
                       (long long)heads.value);
  }
  if (job->model.family == BL_JOB_FAMILY_GPT2 && kv_heads.set && heads.set && kv_heads.value != heads.value) {
    return bl_job_fail(job, err, "model.kv_heads", "gpt2 has as many as heads (%lld); leave it out",
                       (long long)heads.value);
  }
  if (job->model.family == BL_JOB_FAMILY_LLAMA && hidden.set && heads.set && hidden.value / heads.value % 2 != 0) {
    return bl_job_fail(job, err, "model.heads", "hidden / heads is %lld; rotary positions need an even number",
                       (long long)(hidden.value / heads.value));
  }
  return BL_OK;
}

static bl_status_t check_data(const bl_job_t *job, bl_error_t *err) {
  if (job->data.train.count == 0) {
    return bl_job_fail(job, err, "data.train", "names no file");
  }
  return BL_OK;
}

// Compute takes these as fp32, and denormal numbers as 0.
static bl_status_t check_adamw(const bl_job_t *job, bl_error_t *err) {
  const struct {
    const char *key;
    double value;
  } betas[] = {{"train.beta1", job->train.beta1}, {"train.beta2", job->train.beta2}};
  for (size_t i = 0; i < 2; i++) {
    if ((float)betas[i].value >= 1) {
      return bl_job_fail(job, err, betas[i].key, "%.10g rounds to 1 in fp32; at most 0.99999994 does not",
                         betas[i].value);
    }
  }
  if ((float)job->train.eps < FLT_MIN) {
    return bl_job_fail(job, err, "train.eps", "%g rounds to 0 in fp32; at least 1.1754944e-38 does not",
                       job->train.eps);
  }
  return BL_OK;
}

static bl_status_t check_train(const bl_job_t *job, bl_error_t *err) {
  if (bl_job_given(job, "train.min_lr") && job->train.min_lr.value > job->train.lr) {
    return bl_job_fail(job, err, "train.min_lr", "%g is above train.lr %g", job->train.min_lr.value, job->train.lr);
  }
  return check_adamw(job, err);
}

static bl_status_t check_layers(const bl_job_t *job, bl_error_t *err) {
  const int64_t pipes = bl_job_pipes(job->pipeline.schedule), chunks = job->pipeline.chunks.value / pipes,
                virtual_stages = job->pipeline.stages * chunks; // of one pipe
  const bl_int_list_t *list = &job->pipeline.layers_per_stage;
  if (list->count > 0 && (int64_t)list->count != virtual_stages) {
    return bl_job_fail(job, err, "pipeline.layers_per_stage", "has %zu %s for %lld chunk%s (%lld stage%s of %lld)",
                       list->count, bl_one_or_many(list->count, "entry", "entries"), (long long)virtual_stages,
                       bl_plural(virtual_stages), (long long)job->pipeline.stages, bl_plural(job->pipeline.stages),
                       (long long)chunks);
  }
  if (!job->model.layers.set) {
    return BL_OK; // config.json has the number; lib/job compares
  }
  int64_t layers = job->model.layers.value, sum = 0;
  for (size_t i = 0; i < list->count; i++) {
    sum += list->items[i];
  }
  if (list->count > 0 && sum != layers) {
    return bl_job_fail(job, err, "pipeline.layers_per_stage", "covers %lld layer%s; the model has %lld", (long long)sum,
                       bl_plural(sum), (long long)layers);
  }
  if (virtual_stages > layers) {
    return bl_job_fail(
        job, err, "pipeline.stages",
        "%lld chunks (%lld stage%s of %lld) are more than the model's %lld layer%s; every chunk needs a layer",
        (long long)virtual_stages, (long long)job->pipeline.stages, bl_plural(job->pipeline.stages), (long long)chunks,
        (long long)layers, bl_plural(layers));
  }
  return BL_OK;
}

// A list must have one entry for all virtual stages, or one for each.
static bl_status_t check_cost(const bl_job_t *job, const char *key, const bl_real_list_t *list, bl_error_t *err) {
  const long long stages = job->pipeline.stages, chunks = job->pipeline.chunks.value;
  if (list->count > 1 && (long long)list->count != stages * chunks) {
    return bl_job_fail(
        job, err, key,
        "has %zu entries; give one for all, or one for each of the %lld virtual stages (%lld stage%s with "
        "%lld chunk%s each)",
        list->count, stages * chunks, stages, bl_plural(stages), chunks, bl_plural(chunks));
  }
  for (size_t i = 0; i < list->count; i++) {
    if (!(list->items[i] >= 0 && list->items[i] <= BL_JOB_MOST_COST)) {
      return bl_job_fail(job, err, key, "virtual stage %zu: must be a number from 0 to %g, is %g", i, BL_JOB_MOST_COST,
                         list->items[i]);
    }
  }
  return BL_OK;
}

static bl_status_t check_costs(const bl_job_t *job, bl_error_t *err) {
  const struct {
    const char *key;
    const bl_real_list_t *list;
    bool needed;
  } lists[] = {{"pipeline.costs.forward", &job->pipeline.costs.forward, true},
               {"pipeline.costs.input", &job->pipeline.costs.input, true},
               {"pipeline.costs.weight", &job->pipeline.costs.weight, true},
               {"pipeline.costs.recompute", &job->pipeline.costs.recompute, false}};
  const size_t count = sizeof lists / sizeof lists[0];
  bool any = job->pipeline.costs.boundary.set || job->pipeline.costs.host_copy.set, some_forward = false;
  for (size_t i = 0; i < count; i++) {
    any = any || lists[i].list->count > 0;
  }
  for (size_t i = 0; i < count && any; i++) {
    if (lists[i].needed && lists[i].list->count == 0) {
      return bl_job_fail(job, err, lists[i].key, "is missing; forward, input and weight go together");
    }
    bl_status_t status = check_cost(job, lists[i].key, lists[i].list, err);
    if (status != BL_OK) {
      return status;
    }
  }
  for (size_t i = 0; i < job->pipeline.costs.forward.count; i++) {
    some_forward = some_forward || job->pipeline.costs.forward.items[i] > 0;
  }
  return some_forward || !any
             ? BL_OK
             : bl_job_fail(job, err, "pipeline.costs.forward", "must be above 0 on some virtual stage");
}

static bl_status_t check_pipeline(const bl_job_t *job, bl_error_t *err) {
  if (job->pipeline.group.set && job->pipeline.schedule != BL_SCHEDULE_GROUPED_INTERLEAVED) {
    return bl_job_fail(job, err, "pipeline.group", "belongs to the schedule grouped-interleaved, not to %s",
                       bl_job_schedule_name(job->pipeline.schedule));
  }
  const bool one = bl_job_default_chunks(job->pipeline.schedule) == 1 && job->pipeline.schedule != BL_SCHEDULE_GPIPE;
  if (one && job->pipeline.chunks.value != 1) {
    return bl_job_fail(job, err, "pipeline.chunks", "is %lld; the schedule %s has one chunk per stage",
                       (long long)job->pipeline.chunks.value, bl_job_schedule_name(job->pipeline.schedule));
  }
  const int64_t pipes = bl_job_pipes(job->pipeline.schedule);
  if (pipes > 1 && job->pipeline.chunks.value != pipes) {
    return bl_job_fail(
        job, err, "pipeline.chunks", "is %lld; the schedule %s has %lld per stage, one of each direction",
        (long long)job->pipeline.chunks.value, bl_job_schedule_name(job->pipeline.schedule), (long long)pipes);
  }
  bl_status_t status = check_layers(job, err);
  return status == BL_OK ? check_costs(job, err) : status;
}

// Returns the multiple or divisor of `of` that is nearest to `value`, the smaller of two equally near.
static long long nearest(int64_t value, bool (*fits)(int64_t candidate, int64_t of), int64_t of) {
  for (int64_t away = 0;; away++) {
    if (value > away && fits(value - away, of)) {
      return value - away;
    }
    if (fits(value + away, of)) {
      return value + away;
    }
  }
}

static bool divides(int64_t candidate, int64_t of) {
  return of % candidate == 0;
}

static bool is_multiple(int64_t candidate, int64_t of) {
  return candidate % of == 0;
}

// Returns whether `copies` of the model can share `candidate` parts: as many, or a power of two that they divide.
static bool are_parts(int64_t candidate, int64_t copies) {
  return candidate == copies || (bl_grid_is_power_of_two((uint32_t)candidate) && candidate % copies == 0);
}

// Half of the micro-batches run in each direction.
static bl_status_t check_pipes(const bl_job_t *job, bl_error_t *err) {
  const int64_t pipes = bl_job_pipes(job->pipeline.schedule), m = job->train.micro_batches;
  if (m % pipes == 0) {
    return BL_OK;
  }
  return bl_job_fail(job, err, "train.micro_batches", "%lld cannot go half each way, as %s sends them; %lld can",
                     (long long)m, bl_job_schedule_name(job->pipeline.schedule),
                     nearest(m > pipes ? m : pipes, is_multiple, pipes));
}

// Every copy of the model, over replicas and pipes, adds up as many parts of the gradient.
static bl_status_t check_data_parts(const bl_job_t *job, bl_error_t *err) {
  const int64_t pipes = bl_job_pipes(job->pipeline.schedule), data = job->parallel.data, copies = data * pipes,
                parts = job->parallel.data_parts.value;
  if (are_parts(parts, copies)) {
    return BL_OK;
  }
  const bool can = bl_grid_is_power_of_two((uint32_t)copies);
  char each[64] = "";
  if (pipes > 1) {
    snprintf(each, sizeof each, ", each with a copy for either direction of %s",
             bl_job_schedule_name(job->pipeline.schedule));
  }
  return bl_job_fail(job, err, "parallel.data_parts",
                     "%lld part%s cannot be shared by %lld replica%s (parallel.data)%s; %lld can: as many as %s%s",
                     (long long)parts, bl_plural(parts), (long long)data, bl_plural(data), each,
                     can ? nearest(parts, are_parts, copies) : (long long)copies, pipes > 1 ? "copies" : "replicas",
                     can ? ", or a power of two that they divide" : "");
}

static bool is_power_of_two(int64_t candidate, int64_t unused) {
  (void)unused;
  return bl_grid_is_power_of_two((uint32_t)candidate);
}

static bl_status_t check_tensor(const bl_job_t *job, bl_error_t *err) {
  const int64_t tensor = job->parallel.tensor, parts = job->parallel.tensor_parts.value;
  const char *key = bl_job_given(job, "parallel.tensor_parts") ? "parallel.tensor_parts" : "parallel.tensor";
  if (!is_power_of_two(parts, 0)) {
    return bl_job_fail(job, err, key, "%lld parts of a layer cannot be added as a tree; %lld can: a power of two",
                       (long long)parts, nearest(parts, is_power_of_two, 0));
  }
  if (parts % tensor != 0) {
    return bl_job_fail(job, err, "parallel.tensor",
                       "%lld ranks cannot share %lld parts (parallel.tensor_parts); %lld can", (long long)tensor,
                       (long long)parts, nearest(tensor, divides, parts));
  }
  return BL_OK;
}

static bl_status_t check_parallel(const bl_job_t *job, bl_error_t *err) {
  bl_status_t status = check_tensor(job, err);
  if (status != BL_OK) {
    return status;
  }
  if (bl_job_pipes(job->pipeline.schedule) > 1) {
    status = check_pipes(job, err);
  }
  if (status != BL_OK) {
    return status;
  }
  const int64_t pipes = bl_job_pipes(job->pipeline.schedule);
  if (job->parallel.data * pipes > BL_GRID_REPLICAS_MAX) {
    return bl_job_fail(job, err, "parallel.data",
                       "%lld replicas with %lld copies of the model each (%s); %lld can: a run has at most %d copies",
                       (long long)job->parallel.data, (long long)pipes, bl_job_schedule_name(job->pipeline.schedule),
                       (long long)(BL_GRID_REPLICAS_MAX / pipes), BL_GRID_REPLICAS_MAX);
  }
  status = check_data_parts(job, err);
  if (status != BL_OK) {
    return status;
  }
  const int64_t data = job->parallel.data, parts = job->parallel.data_parts.value, m = job->train.micro_batches;
  if (m % parts != 0) {
    const char *key = bl_job_given(job, "parallel.data_parts") ? "parallel.data_parts" : "parallel.data";
    return bl_job_fail(
        job, err, key,
        "%lld does not divide train.micro_batches %lld, which all replicas share; %lld does, and so does "
        "%lld with %lld micro-batches",
        (long long)parts, (long long)m, nearest(parts, divides, m), (long long)parts, nearest(m, is_multiple, parts));
  }
  const long long tensor = job->parallel.tensor, stages = job->pipeline.stages,
                  ranks = stages * tensor * (long long)data;
  if (ranks > BL_GRID_RANKS_MAX) {
    return bl_job_fail(job, err, tensor > data ? "parallel.tensor" : "parallel.data",
                       "%lld replicas of %lld stage%s of %lld tensor rank%s are %lld ranks; a run has at most %d",
                       (long long)data, stages, bl_plural(stages), tensor, bl_plural(tensor), ranks, BL_GRID_RANKS_MAX);
  }
  return BL_OK;
}

static bl_status_t check_memory(const bl_job_t *job, bl_error_t *err) {
  if (job->memory.slots.set && job->memory.activation_bytes.set) {
    return bl_job_fail(job, err, "memory.activation_bytes", "memory.slots says the same; give one of the two");
  }
  if (job->balance.policy == BL_POLICY_CAP && !job->balance.cap.set) {
    return bl_job_fail(job, err, "balance.cap", "is missing; the policy cap needs it");
  }
  if (job->balance.policy == BL_POLICY_OFFLOAD && !job->balance.host.set) {
    return bl_job_fail(job, err, "balance.host", "is missing; the policy offload parks blocks in memory of the host");
  }
  return BL_OK;
}

static bl_status_t check_paths(const bl_job_t *job, bl_error_t *err) {
  const bl_job_data_path_t wanted = job->balance.data_path, needed = job->balance.require;
  if (wanted != BL_JOB_DATA_PATH_AUTO && needed != BL_JOB_DATA_PATH_AUTO && wanted != needed) {
    return bl_job_fail(job, err, "balance.require", "is %s, balance.data_path asks for %s; leave one of them out",
                       bl_job_data_path_name(needed), bl_job_data_path_name(wanted));
  }
  return BL_OK;
}

static bl_status_t check_checkpoint(const bl_job_t *job, bl_error_t *err) {
  if (job->checkpoint.folder == NULL && (job->checkpoint.every > 0 || job->checkpoint.keep > 0)) {
    return bl_job_fail(job, err, "checkpoint.folder", "is missing; checkpoints need a place");
  }
  return BL_OK;
}

// Accepts "host:port", "[v6]:port" or "unix:/path".
static bool is_address(const char *text) {
  if (strncmp(text, "unix:", 5) == 0) {
    return text[5] == '/';
  }
  char host[256];
  uint16_t port;
  return bl_host_split(text, host, sizeof host, &port, NULL) == BL_OK;
}

static bl_status_t check_are_addresses(const bl_job_t *job, const char *key, const bl_text_list_t *list,
                                       bl_error_t *err) {
  for (size_t i = 0; i < list->count; i++) {
    if (!is_address(list->items[i])) {
      return bl_job_fail(job, err, key, "'%.80s' is no address; write host:port or unix:/path", list->items[i]);
    }
  }
  return BL_OK;
}

static bl_status_t check_once(const bl_job_t *job, const char *key, const bl_text_list_t *list, const char *why,
                              bl_error_t *err) {
  for (size_t i = 0; i < list->count; i++) {
    for (size_t other = 0; other < i; other++) {
      if (strcmp(list->items[i], list->items[other]) == 0) {
        return bl_job_fail(job, err, key, "names %.80s twice; %s", list->items[i], why);
      }
    }
  }
  return BL_OK;
}

// A service is a stage, a store of a device or a store of a host.
static bl_status_t check_apart(const bl_job_t *job, const char *key, const bl_text_list_t *list, const char *other_key,
                               const bl_text_list_t *other, bl_error_t *err) {
  for (size_t i = 0; i < list->count; i++) {
    for (size_t k = 0; k < other->count; k++) {
      if (strcmp(list->items[i], other->items[k]) == 0) {
        return bl_job_fail(job, err, key, "names %.80s, which %s names, too; each is a service of its own",
                           list->items[i], other_key);
      }
    }
  }
  return BL_OK;
}

static bl_status_t check_addresses(const bl_job_t *job, const char *key, const bl_text_list_t *list, bl_error_t *err) {
  const long long stages = job->pipeline.stages, data = job->parallel.data, tensor = job->parallel.tensor;
  const bool fits = list->count == 0 || (long long)list->count == stages * data * tensor;
  if (!fits && tensor > 1) {
    return bl_job_fail(
        job, err, key,
        "names %zu; %lld tensor ranks in each of %lld stage%s in %lld replica%s are %lld ranks, one each, "
        "replica by replica and stage by stage",
        list->count, tensor, stages, bl_plural(stages), data, bl_plural(data), stages * data * tensor);
  }
  if (!fits && data == 1) {
    return bl_job_fail(job, err, key, "names %zu; the pipeline has %lld stage%s, one each", list->count, stages,
                       bl_plural(stages));
  }
  if (!fits) {
    return bl_job_fail(job, err, key,
                       "names %zu; %lld replicas of %lld stage%s are %lld ranks, one each, replica by replica",
                       list->count, data, stages, bl_plural(stages), stages * data);
  }
  return check_are_addresses(job, key, list, err);
}

static bl_status_t check_stages(const bl_job_t *job, bl_error_t *err) {
  const bl_text_list_t *list = &job->services.stages;
  bl_status_t status = check_addresses(job, "services.stages", list, err);
  return status != BL_OK
             ? status
             : check_once(job, "services.stages", list, "every stage needs a stage-service of its own", err);
}

static bl_status_t check_stores(const bl_job_t *job, bl_error_t *err) {
  const bl_text_list_t *list = &job->services.stores;
  bl_status_t status = check_addresses(job, "services.stores", list, err);
  status = status != BL_OK
               ? status
               : check_once(job, "services.stores", list, "every device needs an activation-store of its own", err);
  return status != BL_OK ? status
                         : check_apart(job, "services.stores", list, "services.stages", &job->services.stages, err);
}

// job/hosts.h checks their number against the grid.
static bl_status_t check_host_stores(const bl_job_t *job, bl_error_t *err) {
  const bl_text_list_t *list = &job->services.host_stores;
  if (list->count > 0 && !job->balance.host.set) {
    return bl_job_fail(job, err, "balance.host", "is missing; it says how much each of services.host_stores lends");
  }
  if (job->balance.host.set && job->services.stages.count > 0 && list->count == 0) {
    return bl_job_fail(job, err, "services.host_stores",
                       "is missing; balance.host asks for a store on every machine of services.stages");
  }
  bl_status_t status = check_once(job, "services.host_stores", list, "one store lends a machine's memory", err);
  status = status != BL_OK
               ? status
               : check_apart(job, "services.host_stores", list, "services.stages", &job->services.stages, err);
  status = status != BL_OK
               ? status
               : check_apart(job, "services.host_stores", list, "services.stores", &job->services.stores, err);
  return status != BL_OK ? status : check_are_addresses(job, "services.host_stores", list, err);
}

static bl_status_t check_services(const bl_job_t *job, bl_error_t *err) {
  if (job->services.driver != NULL && !is_address(job->services.driver)) {
    return bl_job_fail(job, err, "services.driver", "'%.80s' is no address; write host:port or unix:/path",
                       job->services.driver);
  }
  const struct {
    const char *key, *value;
  } files[] = {{"services.tls.ca", job->services.tls.ca},
               {"services.tls.certificate", job->services.tls.certificate},
               {"services.tls.key", job->services.tls.key}};
  for (size_t i = 0; i < 3; i++) {
    if (files[i].value == NULL && (files[0].value != NULL || files[1].value != NULL || files[2].value != NULL)) {
      return bl_job_fail(job, err, files[i].key, "is missing; ca, certificate and key go together");
    }
  }
  bl_status_t status = check_stages(job, err);
  status = status != BL_OK ? status : check_stores(job, err);
  return status != BL_OK ? status : check_host_stores(job, err);
}

bl_status_t bl__job_check(const bl_job_t *job, bl_error_t *err) {
  static bl_status_t (*const checks[])(const bl_job_t *, bl_error_t *) = {
      check_model,  check_data,  check_train,      check_pipeline, check_parallel,
      check_memory, check_paths, check_checkpoint, check_services,
  };
  for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++) {
    bl_status_t status = checks[i](job, err);
    if (status != BL_OK) {
      return status;
    }
  }
  return BL_OK;
}
