// SPDX-License-Identifier: Apache-2.0
#include "compute/trainer.h"

#include "base/bytes.h"
#include "base/random.h"
#include "compute/ops/select.h"
#include "stop.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define ARENAS 1024 // of one trainer

typedef struct {
  bl_chunk_t *chunk;
  bl_chunk_sizes_t sizes;
  bl_chunk_arenas_t arenas;
  void *slots[TRAINER_BLOCKS_MAX];
  void *in[TRAINER_BLOCKS_MAX], *out[TRAINER_BLOCKS_MAX];
  void *pages[TRAINER_BLOCKS_MAX]; // of the KV cache
  float *page_gradients[TRAINER_BLOCKS_MAX];
} part_t;

struct trainer {
  trainer_options_t options;
  const bl_ops_t *ops;
  bl_compute_t *compute;
  bl_device_t *device;
  bl_device_event_t *finished;
  bl_arena_t arenas[ARENAS];
  size_t arena_count;
  void *ops_workspace;
  uint64_t ops_workspace_bytes;
  // In staging.
  int32_t *tokens, *labels; // [blocks, micro_batch seq / slices]
  bl_chunk_loss_t *losses;  // [blocks]
  uint32_t slices, blocks;  // of a micro-batch, of a step
  double *squares;          // [1]
  part_t parts[TRAINER_CHUNKS_MAX];
};

static void check(bl_status_t status, const bl_error_t *err) {
  if (status != BL_OK) {
    STOP("%s: %s", bl_status_name(status), err->text);
  }
}

static void finish(trainer_t *trainer) {
  bl_error_t err = {0};
  check(bl_ops_finish(trainer->ops, trainer->compute, trainer->device, trainer->finished, UINT64_MAX, &err), &err);
}

// NaN in every float and double.
static void poison(trainer_t *trainer, void *bytes, uint64_t size) {
  bl_error_t err = {0};
  bl_device_stream_t *stream = trainer->ops->stream == NULL ? NULL : trainer->ops->stream(trainer->compute);
  check(bl_device_fill(trainer->device, stream, bytes, 0xff, size, &err), &err);
}

static void move(trainer_t *trainer, void *to, const void *from, uint64_t bytes) {
  bl_error_t err = {0};
  bl_device_stream_t *stream = trainer->ops->stream == NULL ? NULL : trainer->ops->stream(trainer->compute);
  check(bl_device_copy(trainer->device, stream, to, from, bytes, &err), &err);
}

void trainer_copy(trainer_t *trainer, void *to, const void *from, uint64_t bytes) {
  move(trainer, to, from, bytes);
  finish(trainer);
}

static void *allocate_kind(trainer_t *trainer, bl_arena_kind_t kind, uint64_t bytes) {
  bl_error_t err = {0};
  MUST(trainer->arena_count < ARENAS);
  bl_arena_t *arena = &trainer->arenas[trainer->arena_count++];
  check(bl_arena_create(trainer->device, NULL, BL_MEMORY_DATA, kind, bytes + BL_CACHE_LINE_BYTES, arena, &err), &err);
  return arena->base;
}

static void *allocate(trainer_t *trainer, uint64_t bytes) {
  void *block = allocate_kind(trainer, BL_ARENA_PRIVATE, bytes);
  poison(trainer, block, bytes);
  return block;
}

// Layers as evenly as possible, the first chunks taking one more.
static bl_chunk_span_t span_of(const trainer_options_t *options, uint32_t chunk) {
  uint32_t each = options->model.layers / options->chunks, more = options->model.layers % options->chunks;
  uint32_t first = chunk * each + (chunk < more ? chunk : more);
  return (bl_chunk_span_t){first, each + (chunk < more), chunk == 0, chunk + 1 == options->chunks};
}

static void make_part(trainer_t *trainer, uint32_t index) {
  const trainer_options_t *options = &trainer->options;
  part_t *part = &trainer->parts[index];
  bl_error_t err = {0};
  bl_chunk_options_t chunk_options = {.ops = trainer->ops,
                                      .compute = trainer->compute,
                                      .device = trainer->device,
                                      .model = &options->model,
                                      .span = span_of(options, index),
                                      .layout = options->layout,
                                      .group = options->group,
                                      .micro_batches = options->micro_batches,
                                      .prepack = options->prepack};
  check(bl_chunk_create(&chunk_options, &part->chunk, &err), &err);
  part->sizes = bl_chunk_sizes(part->chunk);
  part->arenas = (bl_chunk_arenas_t){.weights = allocate(trainer, part->sizes.weight_bytes),
                                     .gradients = allocate(trainer, part->sizes.gradient_bytes),
                                     .first_moments = allocate(trainer, part->sizes.moment_bytes),
                                     .second_moments = allocate(trainer, part->sizes.moment_bytes),
                                     .packed = allocate(trainer, part->sizes.packed_bytes),
                                     .workspace = allocate(trainer, part->sizes.workspace_bytes)};
  for (uint32_t i = 0; i < trainer->blocks; i++) {
    part->slots[i] = allocate(trainer, part->sizes.slot_bytes);
    part->in[i] = allocate(trainer, part->sizes.edge_bytes);
    part->out[i] = allocate(trainer, part->sizes.edge_bytes);
    if (trainer->slices > 1) {
      part->pages[i] = allocate(trainer, part->sizes.page_bytes);
      part->page_gradients[i] =
          (i + 1) % trainer->slices == 0 ? NULL : allocate(trainer, part->sizes.page_gradient_bytes);
    }
  }
}

static void open_compute(trainer_t *trainer) {
  const trainer_options_t *options = &trainer->options;
  bl_error_t err = {0};
  trainer->device = options->device == NULL ? bl_device_host() : options->device;
  trainer->ops = options->ops;
  if (trainer->ops == NULL) {
    check(bl_ops_select(BL_DEVICE_HOST, &trainer->ops, &err), &err);
  }
  bl_compute_options_t compute = {.threads = options->threads > 0 ? options->threads : 1,
                                  .instruction_set = options->instruction_set,
                                  .device = trainer->device};
  check(trainer->ops->create(&compute, &trainer->compute, &err), &err);
  trainer->ops->attach(trainer->compute);
  check(bl_device_event_create(trainer->device, false, &trainer->finished, &err), &err);
}

trainer_t *trainer_create(const trainer_options_t *options) {
  trainer_t *trainer = calloc(1, sizeof *trainer);
  MUST(trainer != NULL);
  MUST(options->chunks <= TRAINER_CHUNKS_MAX && options->micro_batches <= TRAINER_MICRO_BATCHES_MAX);
  trainer->options = *options;
  trainer->slices = bl_layout_slices(options->layout);
  trainer->blocks = options->micro_batches * trainer->slices;
  MUST(trainer->blocks <= TRAINER_BLOCKS_MAX);
  open_compute(trainer);
  const uint64_t count =
      (uint64_t)options->micro_batches * options->layout.micro_batch * options->model.seq * sizeof(int32_t);
  trainer->tokens = allocate_kind(trainer, BL_ARENA_STAGING, count);
  trainer->labels = allocate_kind(trainer, BL_ARENA_STAGING, count);
  trainer->losses = allocate_kind(trainer, BL_ARENA_STAGING, trainer->blocks * sizeof *trainer->losses);
  trainer->squares = allocate_kind(trainer, BL_ARENA_STAGING, sizeof *trainer->squares);
  for (uint32_t i = 0; i < options->chunks; i++) {
    make_part(trainer, i);
  }
  trainer->ops_workspace_bytes = trainer->ops->workspace_bytes(trainer->compute);
  trainer->ops_workspace = allocate(trainer, trainer->ops_workspace_bytes);
  trainer->ops->use_workspace(trainer->compute, trainer->ops_workspace, trainer->ops_workspace_bytes);
  for (uint32_t i = 0; i < options->chunks; i++) {
    bl_error_t err = {0};
    bl_chunk_use_arenas(trainer->parts[i].chunk, &trainer->parts[i].arenas);
    finish(trainer);
    check(bl_chunk_initialize(trainer->parts[i].chunk, options->seed, 1, &err), &err);
  }
  return trainer;
}

void trainer_destroy(trainer_t *trainer) {
  finish(trainer);
  for (uint32_t i = 0; i < trainer->options.chunks; i++) {
    bl_chunk_destroy(trainer->parts[i].chunk);
  }
  trainer->ops->destroy(trainer->compute);
  bl_device_event_destroy(trainer->device, trainer->finished);
  while (trainer->arena_count > 0) {
    bl_arena_destroy(&trainer->arenas[--trainer->arena_count]);
  }
  free(trainer);
}

bl_chunk_t *trainer_chunk(trainer_t *trainer, uint32_t chunk) {
  return trainer->parts[chunk].chunk;
}

static void forward(trainer_t *trainer, uint32_t chunk, uint32_t i, const int32_t *tokens) {
  part_t *part = &trainer->parts[chunk];
  poison(trainer, part->slots[i], part->sizes.slot_bytes);
  poison(trainer, part->out[i], part->sizes.edge_bytes);
  if (chunk == 0) {
    poison(trainer, part->in[i], part->sizes.edge_bytes);
  } else {
    move(trainer, part->in[i], trainer->parts[chunk - 1].out[i], part->sizes.edge_bytes);
    poison(trainer, trainer->parts[chunk - 1].out[i], part->sizes.edge_bytes);
  }
  bool keeps = trainer->options.layout.recompute != BL_RECOMPUTE_FULL;
  bl_chunk_forward(part->chunk, tokens, part->in[i], keeps ? part->slots[i] : NULL, part->out[i]);
  // What an eviction would not move must not be needed.
  poison(trainer, (char *)part->slots[i] + part->sizes.evict_bytes, part->sizes.slot_bytes - part->sizes.evict_bytes);
}

static void receive_gradient(trainer_t *trainer, uint32_t chunk, uint32_t i) {
  if (chunk + 1 < trainer->options.chunks) {
    part_t *part = &trainer->parts[chunk];
    move(trainer, part->out[i], trainer->parts[chunk + 1].in[i], part->sizes.edge_bytes);
  }
}

static void release(trainer_t *trainer, uint32_t chunk, uint32_t i) {
  part_t *part = &trainer->parts[chunk];
  poison(trainer, part->slots[i], part->sizes.slot_bytes);
  poison(trainer, part->out[i], part->sizes.edge_bytes);
}

static bool starts_backward(trainer_op_type_t type) {
  return type == TRAINER_I || type == TRAINER_B || type == TRAINER_D;
}

// Pages hold what they are told from here on: own ones from F, sums from the I of the last slice.
static void use_slice(trainer_t *trainer, trainer_op_t op) {
  part_t *part = &trainer->parts[op.chunk];
  const uint32_t slice = op.block % trainer->slices, first = op.block - slice;
  if (trainer->slices == 1) {
    return;
  }
  if (op.type == TRAINER_F) {
    poison(trainer, part->pages[op.block], part->sizes.page_bytes);
  }
  for (uint32_t i = first; starts_backward(op.type) && slice + 1 == trainer->slices && i < op.block; i++) {
    poison(trainer, part->page_gradients[i], part->sizes.page_gradient_bytes);
  }
  bl_chunk_use_slice(
      part->chunk,
      &(bl_chunk_slice_t){.index = slice, .pages = part->pages + first, .gradients = part->page_gradients + first});
}

static void run_one(trainer_t *trainer, trainer_op_t op, const int32_t *tokens, const int32_t *labels,
                    bl_chunk_loss_t *loss) {
  part_t *part = &trainer->parts[op.chunk];
  const uint32_t i = op.block;
  use_slice(trainer, op);
  switch (op.type) {
  case TRAINER_F:
    forward(trainer, op.chunk, i, tokens);
    break;
  case TRAINER_R:
    poison(trainer, part->slots[i], part->sizes.slot_bytes);
    bl_chunk_recompute(part->chunk, part->in[i], part->slots[i]);
    break;
  case TRAINER_I:
    receive_gradient(trainer, op.chunk, i);
    bl_chunk_backward_input(part->chunk, labels, part->in[i], part->slots[i], part->out[i], true, loss);
    break;
  case TRAINER_W:
    bl_chunk_backward_weight(part->chunk, tokens, part->in[i], part->slots[i], part->out[i]);
    release(trainer, op.chunk, i);
    break;
  case TRAINER_D:
    receive_gradient(trainer, op.chunk, i);
    bl_chunk_backward_input(part->chunk, labels, part->in[i], part->slots[i], part->out[i], true, loss);
    bl_chunk_backward_weight(part->chunk, tokens, part->in[i], part->slots[i], part->out[i]);
    release(trainer, op.chunk, i);
    break;
  case TRAINER_B:
    receive_gradient(trainer, op.chunk, i);
    bl_chunk_backward(part->chunk, tokens, labels, part->in[i], part->slots[i], part->out[i], true, loss);
    release(trainer, op.chunk, i);
    break;
  }
}

// Slices of every micro-batch one after the other, from [micro_batches, micro_batch, seq].
static void cut(const trainer_t *trainer, const int32_t *whole, int32_t *blocks) {
  const uint64_t sequences = trainer->options.layout.micro_batch, seq = trainer->options.model.seq;
  const uint64_t rows = seq / trainer->slices;
  for (uint64_t block = 0; block < trainer->blocks; block++) {
    for (uint64_t i = 0; i < sequences; i++) {
      const uint64_t sequence = block / trainer->slices * sequences + i;
      memcpy(blocks + (block * sequences + i) * rows, whole + sequence * seq + block % trainer->slices * rows,
             rows * sizeof *whole);
    }
  }
}

void trainer_run(trainer_t *trainer, const int32_t *tokens, const int32_t *labels, const trainer_op_t *ops,
                 size_t op_count, double *losses) {
  const uint64_t rows = bl_layout_rows(&trainer->options.model, trainer->options.layout);
  cut(trainer, tokens, trainer->tokens);
  cut(trainer, labels, trainer->labels);
  for (uint32_t i = 0; i < trainer->blocks; i++) {
    trainer->losses[i] = (bl_chunk_loss_t){.sum = NAN};
  }
  for (uint32_t i = 0; i < trainer->options.chunks; i++) {
    poison(trainer, trainer->parts[i].arenas.gradients, trainer->parts[i].sizes.gradient_bytes);
    bl_chunk_begin_step(trainer->parts[i].chunk);
  }
  for (size_t i = 0; i < op_count; i++) {
    const trainer_op_t op = ops[i];
    poison(trainer, trainer->ops_workspace, trainer->ops_workspace_bytes);
    poison(trainer, trainer->parts[op.chunk].arenas.workspace, trainer->parts[op.chunk].sizes.workspace_bytes);
    run_one(trainer, op, trainer->tokens + op.block * rows, trainer->labels + op.block * rows,
            &trainer->losses[op.block]);
  }
  finish(trainer);
  for (uint32_t i = 0; i < trainer->options.micro_batches; i++) {
    const bl_chunk_loss_t *of = &trainer->losses[i * trainer->slices];
    for (uint32_t slice = 0; slice < trainer->slices; slice++) {
      MUST(of[slice].first_bad_row == -1);
    }
    losses[i] = bl_chunk_loss_mean(trainer->parts[trainer->options.chunks - 1].chunk, of);
    MUST(isfinite(losses[i]));
  }
}

static void join_tied(trainer_t *trainer) {
  bl_chunk_t *first = trainer->parts[0].chunk, *last = trainer->parts[trainer->options.chunks - 1].chunk;
  if (!bl_chunk_has_tied_gradient(first)) {
    return;
  }
  if (!bl_chunk_tied_needs_peer(first)) {
    bl_chunk_join_tied_gradient(first, NULL);
    return;
  }
  uint64_t bytes = bl_chunk_tied_elements(first) * sizeof(float);
  const size_t before = trainer->arena_count;
  float *first_part = allocate(trainer, bytes), *last_part = allocate(trainer, bytes);
  move(trainer, first_part, bl_chunk_tied_gradient(first), bytes);
  move(trainer, last_part, bl_chunk_tied_gradient(last), bytes);
  bl_chunk_join_tied_gradient(first, last_part);
  bl_chunk_join_tied_gradient(last, first_part);
  finish(trainer);
  while (trainer->arena_count > before) {
    bl_arena_destroy(&trainer->arenas[--trainer->arena_count]);
  }
}

static uint32_t parts_of(const trainer_t *trainer) {
  return bl_layer_parts_count(trainer->options.layout.layer_parts);
}

void trainer_squares(trainer_t *trainer, double *squares) {
  uint32_t expected = 0;
  join_tied(trainer);
  for (uint32_t c = 0; c < trainer->options.chunks; c++) {
    bl_chunk_t *chunk = trainer->parts[c].chunk;
    bl_chunk_sum_norms(chunk);
    for (uint32_t i = 0; i < bl_chunk_parameter_count(chunk); i++) {
      const bl_chunk_parameter_t p = bl_chunk_parameter(chunk, i);
      if (p.owned) {
        MUST(parts_of(trainer) > 1 || p.parameter.index == expected);
        expected++;
        bl_chunk_ask_squares(chunk, i, trainer->squares);
        bl_chunk_make_squares(chunk);
        finish(trainer);
        if (p.cut || trainer->options.layout.layer_parts.rank == 0) { // of what is not cut all ranks have the same
          squares[(size_t)p.parameter.index * parts_of(trainer) + p.part] = *trainer->squares;
        }
      }
    }
  }
  MUST(parts_of(trainer) > 1 || expected == bl_parameter_count(&trainer->options.model));
}

double trainer_norm_of(const trainer_t *trainer, const double *squares) {
  double sum = 0;
  for (uint32_t i = 0; i < bl_parameter_count(&trainer->options.model); i++) {
    double of_parts = 0;
    for (uint32_t part = 0; part < parts_of(trainer); part++) {
      of_parts += squares[(size_t)i * parts_of(trainer) + part];
    }
    sum += of_parts;
  }
  return sqrt(sum);
}

double trainer_gradient_norm(trainer_t *trainer) {
  double *squares = calloc((size_t)bl_parameter_count(&trainer->options.model) * parts_of(trainer), sizeof *squares);
  MUST(squares != NULL);
  trainer_squares(trainer, squares);
  const double norm = trainer_norm_of(trainer, squares);
  free(squares);
  return norm;
}

void trainer_read_parameter(trainer_t *trainer, const bl_chunk_parameter_t *p, float *whole) {
  for (uint64_t i = 0; i < p->slice.rows * p->slice.groups; i++) {
    trainer_copy(trainer, whole + bl_slice_run(&p->slice, i), p->weight + i * p->slice.run,
                 p->slice.run * sizeof(float));
  }
}

void trainer_write_parameter(trainer_t *trainer, const bl_chunk_parameter_t *p, const float *whole) {
  for (uint64_t i = 0; i < p->slice.rows * p->slice.groups; i++) {
    trainer_copy(trainer, p->weight + i * p->slice.run, whole + bl_slice_run(&p->slice, i),
                 p->slice.run * sizeof(float));
  }
}

void trainer_update(trainer_t *trainer, const bl_adamw_settings_t *settings, uint64_t step, double rate, double clip,
                    double norm) {
  double scale = clip > 0 ? fmin(1, clip / (norm + 1e-6)) : 1;
  for (uint32_t i = 0; i < trainer->options.chunks; i++) {
    bl_chunk_update(trainer->parts[i].chunk, settings,
                    &(bl_adamw_step_t){.step = step, .rate = rate, .gradient_scale = scale});
  }
}

static uint32_t slices_of(trainer_order_t order) {
  return order.slices > 1 ? order.slices : 1;
}

// The block that the n-th backward is of.
static uint32_t backward_of(trainer_order_t order, uint32_t n) {
  const uint32_t slice = n % slices_of(order);
  return n - slice + slices_of(order) - 1 - slice;
}

// Backward number `backward` of a chunk and the W that has waited long enough.
static size_t add_backward(trainer_order_t order, uint32_t chunk, uint32_t backward, uint32_t blocks,
                           trainer_op_t *ops) {
  const uint32_t block = backward_of(order, backward);
  size_t n = 0;
  if (order.recompute) {
    ops[n++] = (trainer_op_t){TRAINER_R, chunk, block};
  }
  if (!order.split) {
    ops[n++] = (trainer_op_t){order.gradient_first ? TRAINER_D : TRAINER_B, chunk, block};
    return n;
  }
  ops[n++] = (trainer_op_t){TRAINER_I, chunk, block};
  uint32_t first = backward >= order.delay ? backward - order.delay : blocks;
  uint32_t end = backward + 1 == blocks ? blocks : first + 1;
  if (backward + 1 == blocks && first == blocks) {
    first = 0; // the delay is longer than the step: all of them now
  }
  for (uint32_t i = first; i < end && i < blocks; i++) {
    ops[n++] = (trainer_op_t){TRAINER_W, chunk, backward_of(order, i)};
  }
  return n;
}

static size_t chunk_list(trainer_order_t order, uint32_t chunk, uint32_t chunks, uint32_t blocks, trainer_op_t *ops) {
  size_t n = 0;
  uint32_t ahead = order.one_forward_one_backward ? chunks - chunk + slices_of(order) - 1 : blocks;
  ahead = ahead < blocks ? ahead : blocks;
  uint32_t forward = 0;
  for (; forward < ahead; forward++) {
    ops[n++] = (trainer_op_t){TRAINER_F, chunk, forward};
  }
  for (uint32_t backward = 0; backward < blocks; backward++) {
    n += add_backward(order, chunk, backward, blocks, ops + n);
    if (forward < blocks) {
      ops[n++] = (trainer_op_t){TRAINER_F, chunk, forward++};
    }
  }
  return n;
}

size_t trainer_make_order(trainer_order_t order, uint32_t chunks, uint32_t micro_batches, trainer_op_t *ops) {
  trainer_op_t lists[TRAINER_CHUNKS_MAX][4 * TRAINER_BLOCKS_MAX];
  size_t counts[TRAINER_CHUNKS_MAX], next[TRAINER_CHUNKS_MAX] = {0};
  bool forward_done[TRAINER_CHUNKS_MAX + 1][TRAINER_BLOCKS_MAX] = {{false}};
  bool backward_done[TRAINER_CHUNKS_MAX + 1][TRAINER_BLOCKS_MAX] = {{false}};
  size_t total = 0, n = 0;
  MUST(micro_batches * slices_of(order) <= TRAINER_BLOCKS_MAX);
  for (uint32_t c = 0; c < chunks; c++) {
    counts[c] = chunk_list(order, c, chunks, micro_batches * slices_of(order), lists[c]);
    total += counts[c];
  }
  while (n < total) {
    size_t before = n;
    for (uint32_t c = 0; c < chunks; c++) {
      if (next[c] == counts[c]) {
        continue;
      }
      trainer_op_t op = lists[c][next[c]];
      bool backward = starts_backward(op.type);
      if ((op.type == TRAINER_F && c > 0 && !forward_done[c - 1][op.block]) ||
          (backward && c + 1 < chunks && !backward_done[c + 1][op.block])) {
        continue;
      }
      forward_done[c][op.block] |= op.type == TRAINER_F;
      backward_done[c][op.block] |= backward;
      ops[n++] = op;
      next[c]++;
    }
    MUST(n > before);
  }
  return n;
}

void trainer_random_tokens(const bl_model_t *model, uint64_t seed, uint64_t count, int32_t *tokens, int32_t *labels) {
  for (uint64_t i = 0; i < count; i++) {
    tokens[i] = (int32_t)bl_random_below(seed, i, model->vocab);
    labels[i] = (int32_t)bl_random_below(seed, i + 1, model->vocab);
  }
}

static void *poisoned(uint64_t bytes) {
  void *block = aligned_alloc(BL_CACHE_LINE_BYTES, bl_align_up(bytes, BL_CACHE_LINE_BYTES) + BL_CACHE_LINE_BYTES);
  MUST(block != NULL);
  memset(block, 0xff, bytes);
  return block;
}

trainer_buffers_t trainer_make_buffers(trainer_t *trainer, uint32_t chunk) {
  bl_chunk_sizes_t sizes = trainer->parts[chunk].sizes;
  const uint64_t rows = (uint64_t)trainer->options.layout.micro_batch * trainer->options.model.seq;
  trainer_buffers_t buffers = {.in = poisoned(sizes.edge_bytes),
                               .out = poisoned(sizes.edge_bytes),
                               .slot = poisoned(sizes.slot_bytes),
                               .tokens = poisoned(rows * sizeof(int32_t)),
                               .labels = poisoned(rows * sizeof(int32_t)),
                               .rows = rows};
  trainer_random_tokens(&trainer->options.model, 9, rows, buffers.tokens, buffers.labels);
  return buffers;
}

void trainer_free_buffers(trainer_buffers_t *buffers) {
  free(buffers->in);
  free(buffers->out);
  free(buffers->slot);
  free(buffers->tokens);
  free(buffers->labels);
}
