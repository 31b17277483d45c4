// SPDX-License-Identifier: Apache-2.0
#include "plan/evaluate/hardware.h"

#include "model/flops.h"
#include "plan/evaluate/footprint.h"

#include <string.h>

// Mixed precision: bf16 weights and fp32 gradients (2 + 4), fp32 master weights and two moments (12).
// All of it in fp32: weights and gradients (4 + 4), two moments (8).
#define FLOATS .value_bytes = 4, .state_bytes = 8, .moment_bytes = 8
#define MIXED  .value_bytes = 2, .state_bytes = 6, .moment_bytes = 12
// Shares of the peaks that large kernels reach on all devices.
#define SHARES .matmul = 0.72, .attention = 0.5, .stream = 0.8, .link = 0.75, .launch = 60e-6

static const bl_hardware_t table[] = {
    {.name = "a100-80g",
     .source =
         "NVIDIA A100 80GB SXM data sheet: 312 TFLOP/s bf16, 2039 GB/s, NVLink 600 GB/s; HDR InfiniBand 200 Gb/s; "
         "PCIe 4.0 x16, of which 25 of 32 GB/s",
     .peak_flops = 312e12,
     .other_flops = 19.5e12,
     .memory_bytes = 80e9,
     .memory_rate = 2039e9,
     .intra_rate = 300e9,
     .inter_rate = 25e9,
     .host_rate = 25e9,
     .devices_per_link = 1,
     .latency = 10e-6,
     .host_memory_rate = 41e9,
     .host_source = "PCIe 4.0 x16 at 25 of 31.5 GB/s; DGX A100: 16 channels of DDR4-3200 for 8 GPUs, 80 % of 51 GB/s",
     MIXED,
     SHARES},
    {.name = "h100",
     .source = "NVIDIA H100 SXM data sheet: 989 TFLOP/s bf16, 3350 GB/s, NVLink 900 GB/s; NDR InfiniBand 400 Gb/s; "
               "PCIe 5.0 x16, of which 55 of 64 GB/s",
     .peak_flops = 989e12,
     .other_flops = 67e12,
     .memory_bytes = 80e9,
     .memory_rate = 3350e9,
     .intra_rate = 450e9,
     .inter_rate = 50e9,
     .host_rate = 55e9,
     .devices_per_link = 1,
     .latency = 10e-6,
     .host_memory_rate = 61e9,
     .host_source = "PCIe 5.0 x16 at 55 of 63 GB/s; DGX H100: 16 channels of DDR5-4800 for 8 GPUs, 80 % of 77 GB/s",
     MIXED,
     SHARES},
    {.name = "h200",
     .source = "NVIDIA H200 SXM data sheet: 989 TFLOP/s bf16, 4800 GB/s, NVLink 900 GB/s; NDR InfiniBand 400 Gb/s; "
               "PCIe 5.0 x16, of which 55 of 64 GB/s",
     .peak_flops = 989e12,
     .other_flops = 67e12,
     .memory_bytes = 141e9,
     .memory_rate = 4800e9,
     .intra_rate = 450e9,
     .inter_rate = 50e9,
     .host_rate = 55e9,
     .devices_per_link = 1,
     .latency = 10e-6,
     .host_memory_rate = 61e9,
     .host_source = "PCIe 5.0 x16 at 55 of 63 GB/s; DGX H100: 16 channels of DDR5-4800 for 8 GPUs, 80 % of 77 GB/s",
     MIXED,
     SHARES},
    {.name = "host",
     .source = "one core of a current x86-64 server with AVX2, fp32 (bf16: with AVX512-BF16); its speed differs by a "
               "factor between machines",
     .peak_flops = 150e9,
     .other_flops = 300e9,
     .memory_bytes = 16e9,
     .memory_rate = 12e9,
     .intra_rate = 4e9,
     .inter_rate = 1e9,
     .host_rate = 3.2e9, // a copy in memory, as between stages
     .latency = 50e-6,
     FLOATS,
     .matmul = 0.8,
     .attention = 0.3,
     .stream = 0.8,
     .link = 0.8,
     .launch = 10e-6},
};

const bl_hardware_t *bl_hardware_all(size_t *count) {
  *count = sizeof table / sizeof table[0];
  return table;
}

const bl_hardware_t *bl_hardware_find(const char *name) {
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
    if (strcmp(table[i].name, name) == 0) {
      return &table[i];
    }
  }
  return NULL;
}

bl_hardware_t bl_hardware_in(const bl_hardware_t *hardware, bl_dtype_t dtype) {
  bl_hardware_t in = *hardware;
  if (hardware->value_bytes == bl_dtype_bytes(dtype)) {
    return in;
  }
  const bl_hardware_t bytes = dtype == BL_DTYPE_BF16 ? (bl_hardware_t){MIXED} : (bl_hardware_t){FLOATS};
  in.peak_flops = hardware->other_flops;
  in.other_flops = hardware->peak_flops;
  in.value_bytes = bytes.value_bytes;
  in.state_bytes = bytes.state_bytes;
  in.moment_bytes = bytes.moment_bytes;
  return in;
}

// Megatron's fused scale-mask-softmax kernel runs only if (micro-batch * heads of a rank) is a multiple of 4 and
// sequences are a multiple of 4 up to 4096. Otherwise single kernels process the scores in fp32.
static bool fused_softmax(const bl_model_t *model, uint32_t micro_batch, uint32_t tensor) {
  uint64_t heads = (model->heads + tensor - 1) / tensor;
  return model->seq <= 4096 && model->seq % 4 == 0 && micro_batch * heads % 4 == 0;
}

// Returns bytes per score that its kernels move in one forward with mixed precision: softmax reads and writes (4),
// dropout and its mask (5). Unfused, there are separate conversions, scaling, masking and softmax in fp32.
static double score_bytes(const bl_hardware_t *hardware, const bl_model_t *model, bl_layout_options_t options,
                          uint32_t tensor) {
  if (options.attention == BL_ATTENTION_FLASH) {
    return 0;
  }
  if (hardware->value_bytes == 4) {
    return 8; // one pass over fp32
  }
  return fused_softmax(model, options.micro_batch, tensor) ? 9 : 38;
}

typedef struct work {
  double matmul, attention; // FLOPs
  double bytes;             // moved by element-wise kernels
  double link_bytes;        // moved between tensor-parallel devices
} work_t;

static double seconds(const bl_hardware_t *hardware, work_t work) {
  return work.matmul / (hardware->matmul * hardware->peak_flops) +
         work.attention / (hardware->attention * hardware->peak_flops) +
         work.bytes / (hardware->stream * hardware->memory_rate) +
         work.link_bytes / (hardware->link * hardware->intra_rate);
}

// Returns the values that element-wise kernels read and write in one forward of a layer, per token. Two norms (read,
// write) and two residual additions with dropout (two reads, a write and a mask), which tensor parallelism alone does
// not divided. The activation function (reads the output of the first product, writes the input of the second), which
// it divides.
static double element_values(const bl_model_t *model, bl_parallel_t parallel) {
  double whole = 11.0 * model->hidden, divided = (double)bl_model_pre_width(model) + model->ffn;
  return (parallel.sequence ? whole / parallel.tensor : whole) + divided / parallel.tensor;
}

// Ring all-reduce over t devices: each sends and receives 2 (t - 1) / t of the tensor.
static double all_reduce_bytes(double bytes, uint32_t devices) {
  return 2.0 * bytes * (devices - 1) / devices;
}

// Ranks that share rows as well gather what W multiplies, in each layer twice the inputs of products and twice the
// gradients of their outputs: a rank gets (t - 1) / t of each.
static double gathered_bytes(double bytes, bl_parallel_t parallel) {
  return parallel.sequence ? 4.0 * bytes * (parallel.tensor - 1) / parallel.tensor : 0;
}

// Returns the share of the square of scores that slices compute on average: each those of the keys so far. Whole
// sequences compute all, and flash attention is counted without what the mask hides.
static double square_share(bl_layout_options_t options) {
  const double slices = bl_layout_slices(options);
  return options.attention == BL_ATTENTION_FLASH ? 1 : (slices + 1) / (2 * slices);
}

// Returns the values of keys and values that a slice reads from the pages of the slices before it, on average.
static double page_values(const bl_model_t *model, bl_chunk_span_t span, bl_layout_options_t options,
                          bl_parallel_t parallel) {
  const double slices = bl_layout_slices(options), tokens = (double)options.micro_batch * model->seq;
  return tokens * (slices - 1) / (2 * slices) * 2 * bl_model_kv_width(model) * span.layer_count / parallel.tensor;
}

static work_t forward_work(const bl_hardware_t *hardware, const bl_model_t *model, bl_chunk_span_t span,
                           bl_layout_options_t options, bl_parallel_t parallel) {
  const double rows = (double)options.micro_batch * model->seq, layers = span.layer_count, t = parallel.tensor;
  bl_chunk_span_t body = span;
  body.head = false;
  bl_flops_t products = bl_flops_matmul(model, body, options.micro_batch);
  bl_flops_t attention =
      bl_flops_attention(model, body, options.micro_batch, options.attention, options.attention == BL_ATTENTION_FLASH);
  double scores = rows * model->seq * model->heads * layers * square_share(options);
  double values = rows * element_values(model, parallel) * layers + (span.embedding ? 2 * rows * model->hidden : 0);
  const double slices = bl_layout_slices(options); // of one on average
  // Pages are gathered in workspace: read and written.
  const double gathered = 2 * page_values(model, span, options, parallel) * hardware->value_bytes;
  return (work_t){
      .matmul = products.forward / t / slices,
      .attention = attention.forward * square_share(options) / t / slices,
      .bytes = (values * hardware->value_bytes + scores * score_bytes(hardware, model, options, parallel.tensor) / t) /
                   slices +
               gathered,
      .link_bytes =
          2 * layers * all_reduce_bytes(rows * model->hidden * hardware->value_bytes, parallel.tensor) / slices};
}

// Returns the recomputation of scores and their values, which recomputed attention adds to the backward.
static work_t attention_again(work_t forward, const bl_hardware_t *hardware, const bl_model_t *model,
                              bl_chunk_span_t span, bl_layout_options_t options, bl_parallel_t parallel) {
  double scores =
      (double)options.micro_batch * model->seq * model->seq * model->heads * span.layer_count * square_share(options);
  return (work_t){.attention = forward.attention,
                  .bytes = scores * score_bytes(hardware, model, options, parallel.tensor) / parallel.tensor /
                           bl_layout_slices(options)};
}

static double head_seconds(const bl_hardware_t *hardware, const bl_model_t *model, bl_chunk_span_t span,
                           uint32_t micro_batch, bl_parallel_t parallel) {
  if (!span.head) {
    return 0;
  }
  double rows = (double)micro_batch * model->seq;
  work_t work = {.matmul = bl_flops_matmul(model, span, micro_batch).head / parallel.tensor,
                 .bytes = rows * model->vocab * 4 * sizeof(float) / parallel.tensor};
  return seconds(hardware, work);
}

bl_chunk_costs_t bl_hardware_costs(const bl_hardware_t *hardware, const bl_model_t *model, bl_chunk_span_t span,
                                   bl_layout_options_t options, bl_parallel_t parallel) {
  work_t forward = forward_work(hardware, model, span, options, parallel);
  const double launch = hardware->launch * span.layer_count;
  bl_flops_t attention =
      bl_flops_attention(model, span, options.micro_batch, options.attention, options.attention == BL_ATTENTION_FLASH);
  work_t input = {.matmul = forward.matmul,
                  .attention =
                      attention.backward_input * square_share(options) / parallel.tensor / bl_layout_slices(options),
                  // Gradients of the keys and values in pages are added to, in fp32.
                  .bytes = 1.5 * forward.bytes + 3 * sizeof(float) * page_values(model, span, options, parallel),
                  .link_bytes = forward.link_bytes};
  // Every micro-batch reads, adds to and writes weight gradients in fp32.
  double parameters = bl_footprint_parameters(model, span) / parallel.tensor;
  const double rows = (double)options.micro_batch * model->seq / bl_layout_slices(options);
  work_t weight = {.matmul = forward.matmul,
                   .bytes = parameters * 2 * sizeof(float),
                   .link_bytes =
                       span.layer_count * gathered_bytes(rows * model->hidden * hardware->value_bytes, parallel)};
  bl_chunk_costs_t costs = {.forward = seconds(hardware, forward) + launch,
                            .input = seconds(hardware, input) + launch +
                                     head_seconds(hardware, model, span, options.micro_batch, parallel) /
                                         bl_layout_slices(options),
                            .weight = seconds(hardware, weight) + launch / 2};
  costs.recompute = costs.forward * bl_flops_recompute_share(model, span, options.attention);
  if (options.recompute == BL_RECOMPUTE_ATTENTION) {
    costs.input += seconds(hardware, attention_again(forward, hardware, model, span, options, parallel));
  }
  return costs;
}

double bl_hardware_boundary(const bl_hardware_t *hardware, const bl_model_t *model, bl_layout_options_t options,
                            bl_parallel_t parallel, double rate) {
  double bytes = (double)bl_layout_rows(model, options) * model->hidden * hardware->value_bytes / parallel.tensor;
  return hardware->latency + bytes / (hardware->link * rate);
}

double bl_hardware_update(const bl_hardware_t *hardware, double parameters, bl_parallel_t parallel) {
  double of_device = parameters / parallel.tensor, updated = parallel.shard ? of_device / parallel.data : of_device;
  // Moments and master are read and written, weight and gradient once each.
  return updated * (2.0 * hardware->moment_bytes + hardware->state_bytes) / (hardware->stream * hardware->memory_rate);
}

double bl_hardware_mfu(const bl_hardware_t *hardware, const bl_model_t *model, double sequences, double devices,
                       double seconds_of_step) {
  bl_chunk_span_t whole = bl_chunk_span_whole(model);
  double flops =
      bl_flops_total(bl_flops_matmul(model, whole, 1)) + bl_flops_total(bl_flops_attention_published(model, whole, 1));
  return flops * sequences / (seconds_of_step * devices * hardware->peak_flops);
}
