// SPDX-License-Identifier: Apache-2.0
// The job file: what is trained, on which data, and how it is divided into stages. One table (job_options.c) declares
// every key, and docs/configuration.md is generated from it.
//
//   bl_job_source_t source = {.file = {"job.yaml", bytes, size, folder}, .sets = sets, .set_count = n};
//   bl_job_t job;
//   bl_status_t status = bl_job_parse(&job, &source, &err);     // defaults, file, --set, derived defaults, checks
//   ...
//   bl_job_cleanup(&job);
//
// Parsing guarantees, in addition to types and ranges:
// - Defaults that follow from other keys are filled in: kv_heads = heads, ffn and tied by family (only for a model
//   given inline), chunks by schedule, and min_lr = lr / 10.
// - A model is given either inline (family, layers, hidden, heads, vocab, seq all set) or by model.config or
//   model.init. Then family, seq and the other keys are set only if the job gives them: seq overrides, the
//   others must agree with the config.json. The reader of that file checks them.
// - Paths are joined to the folder of the job file. Paths given by --set are joined to `sets_folder`.
// lib/job checks what needs files (config.json, data, safetensors) or schedules.
//
// PURE. Thread: a bl_job_t belongs to its caller; any thread may read a const one.
#ifndef BALLAST_CONFIG_JOB_H
#define BALLAST_CONFIG_JOB_H

#include "config/options.h"
#include "model/grid.h"
#include "policy/policy.h"
#include "schedule/names.h"

typedef enum bl_job_family { BL_JOB_FAMILY_NONE, BL_JOB_FAMILY_GPT2, BL_JOB_FAMILY_LLAMA } bl_job_family_t;
typedef enum bl_job_format { BL_JOB_FORMAT_TEXT, BL_JOB_FORMAT_BIN, BL_JOB_FORMAT_MEGATRON } bl_job_format_t;
typedef enum bl_job_loss { BL_JOB_LOSS_ALL, BL_JOB_LOSS_MASKED } bl_job_loss_t;
typedef enum bl_job_order { BL_JOB_ORDER_SHUFFLED, BL_JOB_ORDER_SEQUENTIAL } bl_job_order_t;
typedef enum bl_job_lr_schedule { BL_JOB_LR_CONSTANT, BL_JOB_LR_COSINE } bl_job_lr_schedule_t;
typedef enum bl_job_decay { BL_JOB_DECAY_MATRICES, BL_JOB_DECAY_ALL } bl_job_decay_t;
typedef enum bl_job_dtype { BL_JOB_DTYPE_FP32, BL_JOB_DTYPE_BF16 } bl_job_dtype_t;
typedef enum bl_job_optimizer_memory { BL_JOB_OPTIMIZER_ON_DEVICE, BL_JOB_OPTIMIZER_ON_HOST } bl_job_optimizer_memory_t;
typedef enum bl_job_attention { BL_JOB_ATTENTION_NAIVE, BL_JOB_ATTENTION_FLASH } bl_job_attention_t;
typedef enum bl_job_recompute {
  BL_JOB_RECOMPUTE_NONE,
  BL_JOB_RECOMPUTE_ATTENTION,
  BL_JOB_RECOMPUTE_FULL
} bl_job_recompute_t;
typedef enum bl_job_device { BL_JOB_DEVICE_HOST, BL_JOB_DEVICE_CUDA } bl_job_device_t;
typedef enum bl_job_on_loss { BL_JOB_ON_LOSS_RECOMPUTE, BL_JOB_ON_LOSS_ABORT } bl_job_on_loss_t;
typedef enum bl_job_data_path {
  BL_JOB_DATA_PATH_AUTO,
  BL_JOB_DATA_PATH_SHM,
  BL_JOB_DATA_PATH_TCP,
  BL_JOB_DATA_PATH_CUDA_IPC,
  BL_JOB_DATA_PATH_NCCL
} bl_job_data_path_t;

#define BL_JOB_KEYS      81   // number of rows of the table; the compiler checks it
#define BL_JOB_MOST_COST 1e12 // maximum of pipeline.costs: sums of them stay far below the limit of a double

typedef struct bl_job {
  char *name;
  struct {
    bl_job_family_t family;
    char *config; // path of a config.json; NULL: none
    char *init;   // folder with config.json and safetensors; NULL: none
    bl_optional_int_t layers, hidden, heads, kv_heads, ffn, vocab;
    bl_optional_int_t seq; // tokens of one window
    bl_optional_bool_t tied;
  } model;
  struct {
    bl_text_list_t train;   // concatenated in this order, or mixed by weights
    bl_real_list_t weights; // of the files of `train`; none: they are concatenated
    bl_files_or_fraction_t validation;
    bl_job_format_t format;
    bl_job_order_t order;
    bl_job_loss_t loss; // which labels count
  } data;
  struct {
    int64_t steps;
    int64_t micro_batch;   // sequences per micro-batch (b)
    int64_t micro_batches; // micro-batches per step (m)
    double lr;
    bl_job_lr_schedule_t lr_schedule;
    int64_t warmup;            // steps; 0: none
    bl_optional_real_t min_lr; // always set after parsing
    double weight_decay, beta1, beta2, eps;
    bl_job_decay_t decay; // which tensors weight_decay applies to
    double clip;          // 0: off
    int64_t seed;
    bl_job_dtype_t dtype;
    int64_t validate_every; // steps; 0: after the last step only
    bool post_validation;   // stages begin the next step before the commit
    bl_job_optimizer_memory_t optimizer_memory;
  } train;
  struct {
    int64_t stages;
    bl_schedule_kind_t schedule;
    bl_optional_int_t chunks; // per stage; always set after parsing
    bl_optional_int_t group;
    bl_optional_int_t slices;
    bl_int_list_t layers_per_stage; // one entry per virtual stage, in model order; empty: as even as possible
    struct {
      bl_real_list_t forward, input, weight; // one entry for all virtual stages or one for each; all three or none
      bl_real_list_t recompute;              // likewise; empty: as forward
      bl_optional_real_t boundary;           // not set: 0
      bl_optional_real_t host_copy;          // of a block to memory of the host or back; not set: half a forward
    } costs;
    bl_job_attention_t attention;
    bl_job_recompute_t recompute;
    int64_t threads;         // per stage
    bl_optional_int_t cores; // shared by the stages of one machine; not set: as many as it has
    bl_job_device_t device;
  } pipeline;
  struct {
    int64_t tensor;                 // ranks that share every layer
    bl_optional_int_t tensor_parts; // of a layer; always set after parsing
    int64_t data;                   // replicas
    bl_optional_int_t data_parts;   // of a step's gradient; always set after parsing
  } parallel;
  struct {
    bl_optional_int_t slots;            // per device
    bl_optional_int_t activation_bytes; // per device; never together with slots
  } memory;
  struct {
    bl_policy_kind_t policy;
    bl_optional_int_t cap;  // slots per device; not set for bpipe: the policy has one
    bl_optional_int_t host; // bytes that the host of a machine lends to all its stages together; not set: none
    bl_balance_mode_t mode;
    bl_job_data_path_t data_path;
    bl_job_data_path_t require; // of blocks; AUTO: any path
    bl_job_on_loss_t on_loss;
    bl_optional_int_t max_recomputes_per_hour;
    double trials;             // share of the run's time in which auto parks blocks to measure whether paths have
                               // become faster
    bl_optional_int_t rate;    // bytes per second and pair of devices; not set: unlimited
    bl_text_list_t slow_paths; // entries S-D=X (schedule/ir/costs.h); empty: all paths are alike
  } balance;
  struct {
    char *folder;  // NULL: no checkpoints
    int64_t every; // steps; 0: only at the end
    int64_t keep;  // number of newest checkpoints kept; 0: all
  } checkpoint;
  struct {
    char *driver; // address; NULL: none
    bl_text_list_t stages;
    bl_text_list_t stores;
    bl_text_list_t host_stores; // one on every machine
    struct {
      char *ca, *certificate, *key; // PEM files, all three or none; NULL: plaintext
    } tls;
    bool plaintext; // plaintext is allowed off the loopback interface
  } services;
  // Origins of the values, for messages.
  char *file; // name of the job file
  bl_option_mark_t marks[BL_JOB_KEYS];
} bl_job_t;

typedef struct bl_job_source {
  bl_option_source_t file;
  const char *const *sets; // "dotted.key=value", applied in order after the file
  size_t set_count;
  const char *sets_folder; // relative paths in sets are joined to it; NULL: they stay as they are
} bl_job_source_t;

// Reads a job. On success the caller owns *job (bl_job_cleanup). On failure *job holds nothing, and `err` has one or
// more lines. BL_INVALID, BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_job_parse(bl_job_t *job, const bl_job_source_t *source, bl_error_t *err);
void bl_job_cleanup(bl_job_t *job); // a zeroed job is fine

// Writes the canonical YAML text of the job, with derived defaults. Parsing it gives the same job. *text is malloc'd
// and terminated; the caller frees it. The driver sends this text to stages.
BL_MUST_USE bl_status_t bl_job_dump(const bl_job_t *job, char **text, size_t *text_bytes);

// Reports a fault of one key with the place of its value: "job.yaml:12:7: model.heads: <message>" for a value of the
// file, "--set model.heads: <message>", or "job.yaml: model.heads: <message>" for a default. `key` must be a known key.
// Returns BL_INVALID.
bl_status_t bl_job_fail(const bl_job_t *job, bl_error_t *err, const char *key, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
// Returns whether the file or --set gave this key.
bool bl_job_given(const bl_job_t *job, const char *key);

// Returns the table of all keys, for help, documentation and completion.
const bl_option_table_t *bl_job_options(void);

const char *bl_job_schedule_name(bl_schedule_kind_t schedule);   // "eager-1f1b"
const char *bl_job_attention_name(bl_job_attention_t attention); // "flash"
const char *bl_job_data_path_name(bl_job_data_path_t path);      // "cuda-ipc"
// Returns the data path of blocks: balance.require if it is given, else balance.data_path.
bl_job_data_path_t bl_job_block_path(const bl_job_t *job);
// Returns the data path of tensors between stages: nccl if that is required, else balance.data_path.
bl_job_data_path_t bl_job_boundary_path(const bl_job_t *job);
const char *bl_job_family_name(bl_job_family_t family); // "gpt2"
// Returns the grid of stages and replicas. The micro-batches of a replica are consecutive: [first, first + count) of a
// step.
bl_grid_t bl_job_grid(const bl_job_t *job);
uint32_t bl_job_replica_micro_batches(const bl_job_t *job); // count
// Returns the number of stores of a run. Stores of devices come before those of hosts.
size_t bl_job_store_count(const bl_job_t *job);
const char *bl_job_store(const bl_job_t *job, size_t index); // its address
// Returns 2 for V-shaped and interleaved schedules and those of two pipes, else 1.
int64_t bl_job_default_chunks(bl_schedule_kind_t schedule);
// Returns 2 if half of the micro-batches run in the other direction, through a copy of the model (chimera and
// dualpipe), else 1.
int64_t bl_job_pipes(bl_schedule_kind_t schedule);

#endif
