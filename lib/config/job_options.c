// SPDX-License-Identifier: Apache-2.0
// The table of all keys of a job file. Defaults add nothing that the job did not ask for: no warm-up, no decay, no
// clipping, no held-out data, no balancing.
#include "config/job.h"

#include "model/grid.h"

#include <math.h>

static const char *const families[] = {"", "gpt2", "llama", NULL};
static const char *const formats[] = {"text", "bin", "megatron", NULL};
static const char *const orders[] = {"shuffled", "sequential", NULL};
static const char *const losses[] = {"all", "masked", NULL};
static const char *const lr_schedules[] = {"constant", "cosine", NULL};
static const char *const decays[] = {"matrices", "all", NULL};
static const char *const dtypes[] = {"fp32", "bf16", NULL};
static const char *const optimizer_memories[] = {"device", "host", NULL};
#define X(id, name, chunks, slices, pipes) name,
static const char *const schedules[] = {BL_SCHEDULE_NAMES(X) NULL};
#undef X
static const char *const attentions[] = {"naive", "flash", NULL};
static const char *const recomputes[] = {"none", "attention", "full", NULL};
static const char *const devices[] = {"host", "cuda", NULL};
static const char *const policies[] = {"none",    "bpipe", "cap", "drop",
                                       "offload", "auto",  NULL}; // bl_policy_kind_t without mix
_Static_assert(sizeof policies / sizeof policies[0] == BL_POLICY_AUTO + 2, "a name for every policy of jobs");
static const char *const modes[] = {"overlap", "fewest", NULL};
static const char *const on_loss[] = {"recompute", "abort", NULL};
static const char *const data_paths[] = {"auto", "shm", "tcp", "cuda-ipc", "nccl", NULL};
static const char *const requirable_paths[] = {"any", "shm", "tcp", "cuda-ipc", "nccl", NULL}; // in the same order

#define AT(member)    .offset = offsetof(bl_job_t, member)
#define OPTIONAL      .optional = true
#define FROM(low)     .minimum = (low), .maximum = HUGE_VAL
#define ABOVE(low)    .minimum = (low), .maximum = HUGE_VAL, .minimum_open = true
#define IN(low, high) .minimum = (low), .maximum = (high)

// Limits of the model and the pipeline: far beyond what is trained today, and so small that sizes derived from them fit
// 64 bits easily.
#define MOST_LAYERS   16384
#define MOST_WIDTH    4194304
#define MOST_STAGES   4096
#define MOST_SEQUENCE 16777216
#define MOST_BATCH    65536
#define MOST_SLICES   255
#define MOST_STEPS    1e12

static const bl_option_t rows[] = {
    {.name = "name",
     .type = BL_OPTION_TEXT,
     AT(name),
     .preset = "ballast",
     .help = "Name of the run, in logs and listings."},

    {.name = "model.family",
     .type = BL_OPTION_ENUM,
     AT(model.family),
     .choices = families,
     .preset_help = "model_type of model.config",
     .help = "Architecture. gpt2: LayerNorm, GELU (tanh), learned positions, biases. llama: RMSNorm, SwiGLU, rotary "
             "positions, grouped-query attention, no biases."},
    {.name = "model.config",
     .type = BL_OPTION_PATH,
     AT(model.config),
     .help = "A Hugging Face config.json to take the architecture from. Other keys of this section must agree with it; "
             "seq overrides it."},
    {.name = "model.init",
     .type = BL_OPTION_PATH,
     AT(model.init),
     .help = "Folder with config.json and safetensors to start from; without it weights are drawn from train.seed."},
    {.name = "model.layers",
     .type = BL_OPTION_INT,
     AT(model.layers),
     OPTIONAL,
     IN(1, MOST_LAYERS),
     .help = "Transformer layers."},
    {.name = "model.hidden",
     .type = BL_OPTION_INT,
     AT(model.hidden),
     OPTIONAL,
     IN(1, MOST_WIDTH),
     .help = "Width of the residual stream; a multiple of heads."},
    {.name = "model.heads",
     .type = BL_OPTION_INT,
     AT(model.heads),
     OPTIONAL,
     IN(1, MOST_WIDTH),
     .help = "Attention heads."},
    {.name = "model.kv_heads",
     .type = BL_OPTION_INT,
     AT(model.kv_heads),
     OPTIONAL,
     IN(1, MOST_WIDTH),
     .preset_help = "heads",
     .help = "Heads of keys and values (llama); divides heads."},
    {.name = "model.ffn",
     .type = BL_OPTION_INT,
     AT(model.ffn),
     OPTIONAL,
     IN(1, 4 * MOST_WIDTH),
     .preset_help = "4 hidden for gpt2; llama needs it",
     .help = "Inner width of the feed-forward network."},
    {.name = "model.vocab",
     .type = BL_OPTION_INT,
     AT(model.vocab),
     OPTIONAL,
     IN(2, 2147483647),
     .help = "Tokens in the vocabulary; 256 for text read as bytes."},
    {.name = "model.seq",
     .type = BL_OPTION_INT,
     AT(model.seq),
     OPTIONAL,
     IN(1, MOST_SEQUENCE),
     .unit = "tokens",
     .preset_help = "the largest model.config allows",
     .help = "Length of a training window."},
    {.name = "model.tied",
     .type = BL_OPTION_BOOL,
     AT(model.tied),
     OPTIONAL,
     .preset_help = "true for gpt2, false for llama",
     .help = "Whether the head is the embedding transposed."},

    {.name = "data.train",
     .type = BL_OPTION_PATH_LIST,
     AT(data.train),
     .required = true,
     .help = "Training data: one file, or several that are joined in this order."},
    {.name = "data.weights",
     .type = BL_OPTION_REAL_LIST,
     AT(data.weights),
     IN(0, 1e9),
     .minimum_open = true,
     .preset_help = "files are joined",
     .help = "How often sequences come from each file of data.train, in proportion; every file begins anew when it has "
             "been read."},
    {.name = "data.validation",
     .type = BL_OPTION_FILES_OR_FRACTION,
     AT(data.validation),
     .minimum = 0,
     .maximum = 1,
     .minimum_open = true,
     .maximum_open = true,
     .help = "Held-out data: files, or a fraction taken from the end of the training data (with data.weights, of each "
             "file). Without it nothing is held out."},
    {.name = "data.format",
     .type = BL_OPTION_ENUM,
     AT(data.format),
     .choices = formats,
     .preset = "text",
     .help = "text: every byte is a token. bin: llm.c's header if the file has its magic, else raw uint16 tokens. "
             "megatron: NAME, NAME.bin or NAME.idx of Megatron-LM; both files are read."},
    {.name = "data.order",
     .type = BL_OPTION_ENUM,
     AT(data.order),
     .choices = orders,
     .preset = "shuffled",
     .help = "Order of the windows; both are pure functions of train.seed and the step."},
    {.name = "data.loss",
     .type = BL_OPTION_ENUM,
     AT(data.loss),
     .choices = losses,
     .preset = "all",
     .help =
         "Which tokens have a loss. masked: those with a 1 in the mask beside their file, FILE.mask (of Megatron-LM "
         "NAME.bin.mask): one byte, 0 or 1, for every token."},

    {.name = "train.steps",
     .type = BL_OPTION_INT,
     AT(train.steps),
     .required = true,
     IN(1, MOST_STEPS),
     .unit = "steps",
     .help = "Steps in total, also after --resume."},
    {.name = "train.micro_batch",
     .type = BL_OPTION_INT,
     AT(train.micro_batch),
     .preset = "1",
     IN(1, MOST_BATCH),
     .unit = "sequences",
     .help = "Sequences that go through the pipeline together."},
    {.name = "train.micro_batches",
     .type = BL_OPTION_INT,
     AT(train.micro_batches),
     .preset = "8",
     IN(1, MOST_BATCH),
     .help = "Micro-batches of one step."},
    {.name = "train.lr",
     .type = BL_OPTION_REAL,
     AT(train.lr),
     .preset = "3e-4",
     FROM(0),
     .help = "Learning rate after warm-up."},
    {.name = "train.lr_schedule",
     .type = BL_OPTION_ENUM,
     AT(train.lr_schedule),
     .choices = lr_schedules,
     .preset = "constant",
     .help = "How the learning rate changes after warm-up."},
    {.name = "train.warmup",
     .type = BL_OPTION_INT,
     AT(train.warmup),
     .preset = "0",
     IN(0, MOST_STEPS),
     .unit = "steps",
     .help = "Step N multiplies the rate by min(1, N / warmup); 0 is off."},
    {.name = "train.min_lr",
     .type = BL_OPTION_REAL,
     AT(train.min_lr),
     OPTIONAL,
     FROM(0),
     .preset_help = "lr / 10",
     .help = "What the cosine falls to."},
    {.name = "train.weight_decay",
     .type = BL_OPTION_REAL,
     AT(train.weight_decay),
     .preset = "0",
     FROM(0),
     .help = "AdamW's decoupled decay, of the tensors that train.decay names."},
    {.name = "train.decay",
     .type = BL_OPTION_ENUM,
     AT(train.decay),
     .choices = decays,
     .preset = "matrices",
     .help = "What decays. matrices: embeddings and the weights of layers and head, no norms and no biases. all: every "
             "tensor, as torch.optim.AdamW(model.parameters()) does."},
    {.name = "train.beta1",
     .type = BL_OPTION_REAL,
     AT(train.beta1),
     .preset = "0.9",
     IN(0, 1),
     .maximum_open = true,
     .help = "AdamW's decay of the first moment."},
    {.name = "train.beta2",
     .type = BL_OPTION_REAL,
     AT(train.beta2),
     .preset = "0.999",
     IN(0, 1),
     .maximum_open = true,
     .help = "AdamW's decay of the second moment."},
    {.name = "train.eps",
     .type = BL_OPTION_REAL,
     AT(train.eps),
     .preset = "1e-8",
     ABOVE(0),
     .help = "AdamW's epsilon, added to the root of the second moment."},
    {.name = "train.clip",
     .type = BL_OPTION_REAL,
     AT(train.clip),
     .preset = "0",
     FROM(0),
     .help = "Gradients are multiplied by min(1, clip / (norm + 1e-6)); 0 is off."},
    {.name = "train.seed",
     .type = BL_OPTION_INT,
     AT(train.seed),
     .preset = "0",
     FROM(0),
     .help = "Seed of initial weights, data order and samples."},
    {.name = "train.dtype",
     .type = BL_OPTION_ENUM,
     AT(train.dtype),
     .choices = dtypes,
     .preset = "fp32",
     .help = "Type of weights and activations in compute; master weights and gradients are fp32."},
    {.name = "train.validate_every",
     .type = BL_OPTION_INT,
     AT(train.validate_every),
     .preset = "0",
     IN(0, MOST_STEPS),
     .unit = "steps",
     .help = "How often the held-out loss is computed; 0: after the last step only."},
    {.name = "train.post_validation",
     .type = BL_OPTION_BOOL,
     AT(train.post_validation),
     .preset = "false",
     .help =
         "Stages apply a step and begin the next one before it is committed, and take it back should its gradients be "
         "clipped after all; needs memory for a second copy of weights and optimizer."},
    {.name = "train.optimizer_memory",
     .type = BL_OPTION_ENUM,
     AT(train.optimizer_memory),
     .choices = optimizer_memories,
     .preset = "device",
     .help =
         "Where the optimizer's moments lie, in bf16 the master weights too: on the device, or in memory of its host, "
         "where the CPU updates them (pipeline.device cuda)."},

    {.name = "pipeline.stages",
     .type = BL_OPTION_INT,
     AT(pipeline.stages),
     .preset = "1",
     IN(1, MOST_STAGES),
     .help = "Pipeline stages; each is a process with a device of its own."},
    {.name = "pipeline.schedule",
     .type = BL_OPTION_ENUM,
     AT(pipeline.schedule),
     .choices = schedules,
     .preset = "1f1b",
     .help = "Order of operations on each stage."},
    {.name = "pipeline.chunks",
     .type = BL_OPTION_INT,
     AT(pipeline.chunks),
     OPTIONAL,
     IN(1, MOST_LAYERS),
     .preset_help = "2 for V-shaped and interleaved schedules, else 1",
     .help = "Runs of layers that a stage holds."},
    {.name = "pipeline.group",
     .type = BL_OPTION_INT,
     AT(pipeline.group),
     OPTIONAL,
     IN(1, MOST_BATCH),
     .preset_help = "stages",
     .help = "Group size of grouped-interleaved."},
    {.name = "pipeline.slices",
     .type = BL_OPTION_INT,
     AT(pipeline.slices),
     OPTIONAL,
     IN(1, MOST_SLICES),
     .preset_help = "2 for seq1f1b, else 1",
     .help = "Slices that sequences are cut into. A block is that of one slice; attention reads keys and values of the "
             "slices before."},
    {.name = "pipeline.layers_per_stage",
     .type = BL_OPTION_INT_LIST,
     AT(pipeline.layers_per_stage),
     IN(1, MOST_LAYERS),
     .preset_help = "as even as possible",
     .help = "Layers of each stage in model order (of each chunk, stages x chunks entries); they add up to "
             "model.layers."},
    {.name = "pipeline.costs.forward",
     .type = BL_OPTION_REAL_LIST,
     AT(pipeline.costs.forward),
     .preset_help = "all the same",
     .help =
         "What operations cost, for schedules whose order is searched (docs/schedules.md): here a forward. One number "
         "for all virtual stages, or one for each in model order, in any unit that is the same for all costs. "
         "forward, input and weight go together. ballastctl plan --write writes what it planned with."},
    {.name = "pipeline.costs.input",
     .type = BL_OPTION_REAL_LIST,
     AT(pipeline.costs.input),
     .preset_help = "all the same",
     .help = "A backward for the input."},
    {.name = "pipeline.costs.weight",
     .type = BL_OPTION_REAL_LIST,
     AT(pipeline.costs.weight),
     .preset_help = "all the same",
     .help = "A backward for the weights."},
    {.name = "pipeline.costs.recompute",
     .type = BL_OPTION_REAL_LIST,
     AT(pipeline.costs.recompute),
     .preset_help = "as forward",
     .help = "Recomputing a block, with recompute: full."},
    {.name = "pipeline.costs.boundary",
     .type = BL_OPTION_REAL,
     AT(pipeline.costs.boundary),
     OPTIONAL,
     IN(0, BL_JOB_MOST_COST),
     .preset_help = "0",
     .help = "Time of a tensor from one stage to the next."},
    {.name = "pipeline.costs.host_copy",
     .type = BL_OPTION_REAL,
     AT(pipeline.costs.host_copy),
     OPTIONAL,
     IN(0, BL_JOB_MOST_COST),
     .preset_help = "half a forward",
     .help = "Time of a block to memory of the host, or back: decides between the orders of a job with balance.host."},
    {.name = "pipeline.attention",
     .type = BL_OPTION_ENUM,
     AT(pipeline.attention),
     .choices = attentions,
     .preset = "naive",
     .help = "naive stores the scores, flash does not."},
    {.name = "pipeline.recompute",
     .type = BL_OPTION_ENUM,
     AT(pipeline.recompute),
     .choices = recomputes,
     .preset = "none",
     .help =
         "What the backward computes again instead of keeping it: the core of attention, or whole blocks from their "
         "inputs (docs/recomputation.md)."},
    {.name = "pipeline.threads",
     .type = BL_OPTION_INT,
     AT(pipeline.threads),
     .preset = "1",
     IN(1, 4096),
     .help = "Compute threads of each stage. More than four per processor give a warning."},
    {.name = "pipeline.cores",
     .type = BL_OPTION_INT,
     AT(pipeline.cores),
     OPTIONAL,
     IN(1, 65536),
     .preset_help = "the processors of the machine / threads",
     .help = "How many stages of one machine, as in a local run, compute at a time, first come first served. Not "
             "needed if there are no more stages than cores."},
    {.name = "pipeline.device",
     .type = BL_OPTION_ENUM,
     AT(pipeline.device),
     .choices = devices,
     .preset = "host",
     .help = "Where the stages compute."},

    {.name = "parallel.tensor",
     .type = BL_OPTION_INT,
     AT(parallel.tensor),
     .preset = "1",
     IN(1, BL_GRID_TENSOR_RANKS_MAX),
     .help =
         "Ranks that share every layer: heads, feed-forward width and vocabulary, and rows of norms and residuals."},
    {.name = "parallel.tensor_parts",
     .type = BL_OPTION_INT,
     AT(parallel.tensor_parts),
     OPTIONAL,
     IN(1, BL_GRID_TENSOR_RANKS_MAX),
     .preset_help = "parallel.tensor",
     .help = "Parts that a layer is added from, a power of two: runs with the same number of parts have the same bits, "
             "however many ranks share a layer."},
    {.name = "parallel.data",
     .type = BL_OPTION_INT,
     AT(parallel.data),
     .preset = "1",
     IN(1, BL_GRID_REPLICAS_MAX),
     .help = "Replicas of the pipeline, which share out the micro-batches of a step and the optimizer."},
    {.name = "parallel.data_parts",
     .type = BL_OPTION_INT,
     AT(parallel.data_parts),
     OPTIONAL,
     IN(1, BL_GRID_REPLICAS_MAX),
     .preset_help = "parallel.data, twice that with chimera and dualpipe",
     .help =
         "Parts that a step's gradient is added from: runs with the same number of parts have the same bits, however "
         "many replicas they have."},

    {.name = "memory.slots",
     .type = BL_OPTION_INT,
     AT(memory.slots),
     OPTIONAL,
     IN(1, 1e9),
     .preset_help = "as many as the schedule needs",
     .help = "Activation blocks that fit a device, its own and those it lends together."},
    {.name = "memory.activation_bytes",
     .type = BL_OPTION_BYTES,
     AT(memory.activation_bytes),
     OPTIONAL,
     FROM(1),
     .unit = "bytes",
     .help = "The same limit in bytes, such as 64 MiB; never together with slots."},

    {.name = "balance.policy",
     .type = BL_OPTION_ENUM,
     AT(balance.policy),
     .choices = policies,
     .preset = "none",
     .help = "Which activation blocks move to other devices. bpipe: pairs (s, p-1-s) level at balance.cap. cap: any "
             "device with free slots, above balance.cap. drop: none; blocks above balance.cap are recomputed. offload: "
             "to memory of the own host, above balance.cap. auto: the fastest of these, or some blocks parked and some "
             "recomputed, by what the run measures."},
    {.name = "balance.cap",
     .type = BL_OPTION_INT,
     AT(balance.cap),
     OPTIONAL,
     IN(1, 1e9),
     .preset_help = "for bpipe ceil((stages + 2) / 2) + slices - 1 per chunk, or the least above that works; the "
                    "policy cap needs it",
     .help = "Blocks a device keeps; memory.slots is a limit to it."},
    {.name = "balance.host",
     .type = BL_OPTION_BYTES,
     AT(balance.host),
     OPTIONAL,
     IN(65536, 1e18),
     .preset_help = "hosts lend nothing",
     .help =
         "Memory that the host of a machine lends to its stages together, by a store of its own. The policy offload "
         "parks blocks there; bpipe and cap those that devices have no slots for."},
    {.name = "balance.mode",
     .type = BL_OPTION_ENUM,
     AT(balance.mode),
     .choices = modes,
     .preset = "overlap",
     .help = "overlap copies blocks during operations, fewest evicts only when all slots are full."},
    {.name = "balance.data_path",
     .type = BL_OPTION_ENUM,
     AT(balance.data_path),
     .choices = data_paths,
     .preset = "auto",
     .help =
         "How bytes move between processes, tensors between stages and blocks to stores; auto takes the fastest that "
         "works: of GPUs cuda-ipc inside of a machine, nccl across, else shm or tcp. Others are refused where they "
         "cannot be."},
    {.name = "balance.require",
     .type = BL_OPTION_ENUM,
     AT(balance.require),
     .choices = requirable_paths,
     .preset = "any",
     .help = "The path that blocks must take to the stores they are parked at. If a stage can only use another path it "
             "is not ready, and the run waits for it instead of running slower than planned."},
    {.name = "balance.max_recomputes_per_hour",
     .type = BL_OPTION_INT,
     AT(balance.max_recomputes_per_hour),
     OPTIONAL,
     IN(0, 1e12),
     .preset_help = "no limit",
     .help = "Blocks that may be computed again because a store lost them before the run stops with an error."},
    {.name = "balance.on_loss",
     .type = BL_OPTION_ENUM,
     AT(balance.on_loss),
     .choices = on_loss,
     .preset = "recompute",
     .help =
         "When a store loses blocks: compute them again from their kept inputs, or abort the step and run it again."},
    {.name = "balance.trials",
     .type = BL_OPTION_REAL,
     AT(balance.trials),
     .preset = "0.01",
     IN(0, 0.5),
     .help = "Under the policy auto, when blocks are recomputed because copies take too long: the share of the run's "
             "time that it may spend on parking some, to see whether paths have become faster. 0: none."},
    {.name = "balance.rate",
     .type = BL_OPTION_BYTES,
     AT(balance.rate),
     OPTIONAL,
     FROM(1),
     .unit = "bytes per second",
     .preset_help = "as fast as it goes",
     .help =
         "Slows the path of every pair of devices down to this rate, to see the effect of a slower one; likewise the "
         "link to memory of the host, which all stages share. Stores of services.host_stores have their own --rate."},
    {.name = "balance.slow_paths",
     .type = BL_OPTION_TEXT_LIST,
     AT(balance.slow_paths),
     .argument = "[S-D=X, ...]",
     .help = "Copies between the devices of stages S and D take X times as long as others, as across nodes. The policy "
             "cap parks blocks where copies are shortest."},

    {.name = "checkpoint.folder",
     .type = BL_OPTION_PATH,
     AT(checkpoint.folder),
     .help = "Where checkpoints go; without it there are none."},
    {.name = "checkpoint.every",
     .type = BL_OPTION_INT,
     AT(checkpoint.every),
     .preset = "0",
     IN(0, MOST_STEPS),
     .unit = "steps",
     .help = "How often one is written; 0: at the end only."},
    {.name = "checkpoint.keep",
     .type = BL_OPTION_INT,
     AT(checkpoint.keep),
     .preset = "0",
     IN(0, 1e9),
     .help = "How many of the newest are kept; 0: all."},

    {.name = "services.driver",
     .type = BL_OPTION_TEXT,
     AT(services.driver),
     .argument = "ADDRESS",
     .help = "A step driver that already runs: host:port or unix:/path."},
    {.name = "services.stages",
     .type = BL_OPTION_TEXT_LIST,
     AT(services.stages),
     .argument = "[ADDRESS, ...]",
     .help = "Stage services that already run, in stage order; with replicas one per rank, replica by replica."},
    {.name = "services.stores",
     .type = BL_OPTION_TEXT_LIST,
     AT(services.stores),
     .argument = "[ADDRESS, ...]",
     .help = "Activation stores that already run; store d lends memory of device d."},
    {.name = "services.host_stores",
     .type = BL_OPTION_TEXT_LIST,
     AT(services.host_stores),
     .argument = "[ADDRESS, ...]",
     .help =
         "Activation stores that already run and lend balance.host, one on every machine. A rank uses the one whose "
         "address has its own host name; where names do not tell, each serves as many ranks as any other, in order."},
    {.name = "services.tls.ca",
     .type = BL_OPTION_PATH,
     AT(services.tls.ca),
     .help = "PEM file of the authorities that are trusted. With it the services are called over mutual TLS, see "
             "docs/security.md."},
    {.name = "services.tls.certificate",
     .type = BL_OPTION_PATH,
     AT(services.tls.certificate),
     .help = "PEM file of the driver's certificate."},
    {.name = "services.tls.key", .type = BL_OPTION_PATH, AT(services.tls.key), .help = "PEM file of its key."},
    {.name = "services.plaintext",
     .type = BL_OPTION_BOOL,
     AT(services.plaintext),
     .help = "Allow plaintext to services that are neither on loopback nor on unix sockets."},
};

_Static_assert(sizeof rows / sizeof rows[0] == BL_JOB_KEYS, "BL_JOB_KEYS counts the rows of the table");

const bl_option_table_t *bl_job_options(void) {
  static const bl_option_table_t table = {rows, BL_JOB_KEYS, "job file"};
  return &table;
}

const char *bl_job_schedule_name(bl_schedule_kind_t schedule) {
  return schedules[schedule];
}

const char *bl_job_attention_name(bl_job_attention_t attention) {
  return attentions[attention];
}

const char *bl_job_data_path_name(bl_job_data_path_t path) {
  return data_paths[path];
}

size_t bl_job_store_count(const bl_job_t *job) {
  return job->services.stores.count + job->services.host_stores.count;
}

const char *bl_job_store(const bl_job_t *job, size_t index) {
  const bl_text_list_t *of_devices = &job->services.stores, *of_hosts = &job->services.host_stores;
  return index < of_devices->count ? of_devices->items[index] : of_hosts->items[index - of_devices->count];
}

bl_job_data_path_t bl_job_block_path(const bl_job_t *job) {
  return job->balance.require != BL_JOB_DATA_PATH_AUTO ? job->balance.require : job->balance.data_path;
}

bl_job_data_path_t bl_job_boundary_path(const bl_job_t *job) {
  return job->balance.require == BL_JOB_DATA_PATH_NCCL ? BL_JOB_DATA_PATH_NCCL : job->balance.data_path;
}

const char *bl_job_family_name(bl_job_family_t family) {
  return families[family];
}
