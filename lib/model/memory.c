// SPDX-License-Identifier: Apache-2.0
#include "model/memory.h"

#include "base/bytes.h"
#include "base/minmax.h"
#include "model/exchange_buffers.h"
#include "model/fold.h"
#include "model/resident.h"
#include "model/shard.h"
#include "model/workspace.h"

#include <stddef.h>
#include <stdlib.h>

#define CACHE_LINE_ELEMENTS (BL_CACHE_LINE_BYTES / sizeof(float))

bl_status_t bl_chunk_memory(const bl_model_t *model, bl_chunk_span_t span, bl_layout_options_t options,
                            bl_chunk_memory_t *memory) {
  bl_layout_t layout;
  bl_status_t status = bl_layout_init(&layout, model, span, options);
  if (status != BL_OK) {
    return status;
  }
  uint64_t weight_bytes = bl_chunk_span_places(model, span, options.layer_parts, NULL) * sizeof(float);
  uint64_t gradient_bytes = weight_bytes;
  if (bl_chunk_span_two_gradients(model, span)) {
    gradient_bytes +=
        bl_align_up(bl_chunk_span_table_elements(model, options.layer_parts), CACHE_LINE_ELEMENTS) * sizeof(float);
  }
  *memory = (bl_chunk_memory_t){.weight_bytes = weight_bytes,
                                .gradient_bytes = gradient_bytes,
                                .slot_bytes = layout.slot_bytes,
                                .evict_bytes = layout.evict_bytes,
                                .edge_bytes = layout.edge_bytes,
                                .workspace_bytes = bl_workspace_plan(&layout).bytes,
                                .page_bytes = layout.page_bytes,
                                .page_gradient_bytes = layout.page_gradient_bytes};
  return BL_OK;
}

// Every piece of memory begins on a cache line.
static uint64_t lines(uint64_t bytes) {
  return bl_align_up(bytes, BL_CACHE_LINE_BYTES);
}

// Returns the bytes of a rounded weight of a product, and of its bias.
static uint64_t rounded_bytes(uint64_t in, uint64_t out, bool bias, bl_dtype_t dtype) {
  const uint64_t value = bl_dtype_bytes(dtype), weight = in * out * value;
  return lines(bias ? lines(weight) + out * value : weight);
}

bl_operation_memory_t bl_operation_memory_of_gpu(const bl_model_t *model, bl_layer_parts_t layer_parts,
                                                 bl_dtype_t dtype) {
  bl_operation_memory_t memory = {.logits = BL_LOGITS_GPU};
  const uint32_t parts = bl_layer_parts_count(layer_parts), here = bl_layer_parts_here(layer_parts);
  const bl_model_t part = bl_layer_part_model(model, parts), *const m = &part;
  const bool biases = m->family == BL_FAMILY_GPT2, residual_biases = biases && parts == 1; // else added after the sum
  if (dtype != BL_DTYPE_BF16) {
    return memory;
  }
  memory.packed_layer_bytes = here * (rounded_bytes(m->hidden, bl_model_qkv_width(m), biases || m->qkv_bias, dtype) +
                                      rounded_bytes(bl_model_query_width(m), m->hidden, residual_biases, dtype) +
                                      rounded_bytes(m->hidden, bl_model_pre_width(m), biases, dtype) +
                                      rounded_bytes(m->ffn, m->hidden, residual_biases, dtype));
  for (uint32_t i = 0; i < here; i++) {
    const uint32_t at = bl_layer_parts_first(layer_parts) + i;
    memory.packed_head_bytes += rounded_bytes(m->hidden, bl_layer_part_rows(m->vocab, parts, at).count, false, dtype);
  }
  return memory;
}

// ---- a bound for CPUs. tests/compute/operations_test.c compares it with what the back end plans.

// Layouts of packed weights have blocks of 16 to 64 rows or columns.
static uint64_t block_side(uint64_t elements) {
  return bl_max_u64((elements + 47) / 48 * 48, bl_align_up(elements, 64));
}

// Bytes of the copies of one weight, one for the forward and one for the backward.
static uint64_t packed_copies(uint64_t in, uint64_t out, uint64_t value_bytes) {
  return value_bytes * block_side(in) * block_side(out) + 2ull * BL_CACHE_LINE_BYTES;
}

// Workspace of one thread's products: packed pieces of both operands.
#define THREAD_PRODUCT_BYTES (UINT64_C(1) << 20)

// Workspace of a product's threads. bf16 operands are widened where the CPU does not multiply them; where it does, each
// thread may sum in floats.
static uint64_t product_workspace(uint64_t rows, uint64_t in, uint64_t out, uint64_t hidden, bl_dtype_t dtype,
                                  uint32_t threads) {
  const uint64_t floats = dtype == BL_DTYPE_BF16 ? rows * (in + out + threads * hidden) : 0;
  return floats * sizeof(float) + threads * THREAD_PRODUCT_BYTES;
}

// Workspace of one thread's attention: nine packed tensors of a head, row sums, and tiles of scores.
static uint64_t attention_workspace(const bl_model_t *m, bl_attention_t attention) {
  const uint64_t tile = 64, keys = bl_align_up(m->seq, tile) + tile, width = bl_align_up(m->head_dim, 16);
  const uint64_t scores = bl_max_u64(tile * (width + (attention == BL_ATTENTION_FLASH ? tile : keys)), 3 * tile * tile);
  return (9 * keys * width + keys + scores) * sizeof(float);
}

bl_operation_memory_t bl_operation_memory_of_cpu(const bl_model_t *model, bl_layout_options_t options,
                                                 uint32_t threads) {
  const uint32_t parts = bl_layer_parts_count(options.layer_parts), here = bl_layer_parts_here(options.layer_parts);
  const bl_model_t part = bl_layer_part_model(model, parts), *const m = &part;
  const struct {
    uint64_t in, out;
  } products[] = {{m->hidden, bl_model_qkv_width(m)},
                  {bl_model_query_width(m), m->hidden},
                  {m->hidden, bl_model_pre_width(m)},
                  {m->ffn, m->hidden}};
  const uint64_t rows = bl_layout_rows(model, options), piece = bl_workspace_head_rows(model, options);
  const uint64_t tokens = bl_layer_parts_table_rows(m->vocab, parts);
  bl_operation_memory_t memory = {.layer_workspace_bytes = threads * attention_workspace(m, options.attention)};
  for (size_t i = 0; i < sizeof products / sizeof products[0]; i++) {
    const uint64_t in = products[i].in, out = products[i].out;
    memory.packed_layer_bytes += here * packed_copies(in, out, options.dtype == BL_DTYPE_BF16 ? 4 : 8);
    memory.layer_workspace_bytes =
        bl_max_u64(memory.layer_workspace_bytes, product_workspace(rows, in, out, m->hidden, options.dtype, threads));
  }
  // 8 bytes in bf16, too: three copies of 2, or two widened ones.
  memory.packed_head_bytes = here * packed_copies(m->hidden, tokens, 8);
  memory.head_workspace_bytes = bl_max_u64(
      memory.layer_workspace_bytes, product_workspace(piece, m->hidden, tokens, m->hidden, options.dtype, threads));
  return memory;
}

static bool shares_masters(const bl_stage_memory_request_t *request) {
  return bl_resident_shares_masters(request->options.dtype, request->copies, request->optimizer_on_host);
}

// What one copy of a chunk holds, and what it updates.
typedef struct share {
  uint64_t resident_bytes; // fp32 weights on the device
  uint64_t master_bytes;   // of other weights, if copies share them out
  uint64_t moment_bytes;   // each
  uint64_t received_bytes;
  uint64_t squares;
} share_t;

static void add_chunk(const bl_stage_memory_request_t *request, bl_chunk_span_t span, const bl_chunk_memory_t *chunk,
                      share_t share, bl_stage_memory_t *sum) {
  const bool away = request->optimizer_on_host;
  const bl_copies_t copies = request->copies;
  const uint64_t shared_out = shares_masters(request) ? chunk->weight_bytes - share.resident_bytes : 0;
  const uint64_t masters = away ? lines(chunk->weight_bytes) : lines(share.master_bytes),
                 updated = (away ? 0 : lines(share.resident_bytes)) + masters + 2 * share.moment_bytes;
  const uint64_t packed = span.layer_count * request->operations->packed_layer_bytes +
                          (span.head ? request->operations->packed_head_bytes : 0);
  sum->weight_bytes += lines(share.resident_bytes) + lines(packed);
  sum->gradient_bytes += lines(chunk->gradient_bytes);
  sum->optimizer_bytes += away ? 0 : masters + 2 * share.moment_bytes;
  sum->even_bytes += away ? 0 : (2 * chunk->weight_bytes + shared_out) / bl_copies_count(copies);
  sum->host_bytes += away ? lines(chunk->weight_bytes) + masters + 2 * share.moment_bytes : 0;
  sum->shadow_bytes += request->post_validation ? updated : 0;
  sum->fold_bytes += bl_fold_levels(bl_copies_parts(copies) / bl_copies_count(copies)) * lines(chunk->gradient_bytes);
  sum->chunk_bytes = bl_max_u64(sum->chunk_bytes, lines(chunk->workspace_bytes));
  sum->slot_bytes = bl_max_u64(sum->slot_bytes, lines(chunk->slot_bytes));
  sum->evict_bytes = bl_max_u64(sum->evict_bytes, chunk->evict_bytes);
  sum->edge_bytes = bl_max_u64(sum->edge_bytes, lines(chunk->edge_bytes));
  sum->page_bytes = bl_max_u64(sum->page_bytes, chunk->page_bytes);
  sum->page_gradient_bytes = bl_max_u64(sum->page_gradient_bytes, chunk->page_gradient_bytes);
}

// Lays out the losses, the squares, two checksums per block, the tokens and the labels.
static void lay_out_data(const bl_stage_memory_request_t *request, uint64_t squares, bl_stage_memory_t *memory) {
  memory->batches = request->asynchronous ? request->micro_batches : 1;
  const uint64_t batch =
      (uint64_t)request->options.micro_batch * request->model->seq * sizeof(int32_t) * memory->batches;
  const uint64_t losses = (uint64_t)request->micro_batches * bl_layout_slices(request->options);
  memory->squares_at = lines(losses * BL_STAGE_LOSS_BYTES);
  memory->hash_at = lines(memory->squares_at + squares * sizeof(double));
  memory->tokens_at = lines(memory->hash_at + 2ull * request->span_count * losses * sizeof(uint64_t));
  memory->labels_at = lines(memory->tokens_at + batch);
  memory->data_bytes = memory->labels_at + batch;
}

// Returns the places of a chunk's parameters, which the caller frees. NULL: no memory.
static bl_parameter_place_t *places_of(const bl_stage_memory_request_t *request, bl_chunk_span_t span,
                                       uint32_t *count) {
  const bl_layer_parts_t layer_parts = request->options.layer_parts;
  *count = bl_chunk_span_place_count(request->model, span, layer_parts);
  bl_parameter_place_t *places = calloc(*count + 1u, sizeof *places);
  if (places != NULL) {
    (void)bl_chunk_span_places(request->model, span, layer_parts, places);
  }
  return places;
}

// Computes the bytes of the fp32 weights that the device keeps, and of the masters that it keeps of others.
static bl_status_t measure_weights(const bl_stage_memory_request_t *request, bl_chunk_span_t span, uint32_t copy,
                                   const bl_ownership_t *ownership, const bl_parameter_place_t *places, uint32_t count,
                                   share_t *share) {
  const bool shared_out = shares_masters(request), all = !shared_out && !request->optimizer_on_host;
  uint64_t *resident = calloc(count + 1u, sizeof *resident);
  if (resident == NULL) {
    return BL_EXHAUSTED;
  }
  const bl_dtype_t dtype = all ? BL_DTYPE_FP32 : request->options.dtype;
  share->resident_bytes = bl_resident_weights(request->model, span, dtype, places, count, resident) * sizeof(float);
  share->master_bytes =
      shared_out ? bl_shard_masters(ownership, places, count, copy, resident, NULL) * sizeof(float) : 0;
  free(resident);
  return BL_OK;
}

// Goes on to the next chunk of the stage. Computes the bytes of what one copy of it keeps, and of the gradients that it
// receives from every other copy, and counts the squares that it reports.
static bl_status_t measure_share(const bl_stage_memory_request_t *request, bl_chunk_span_t span, uint32_t copy,
                                 bl_ownership_t *ownership, share_t *share) {
  uint32_t count;
  bl_parameter_place_t *places = places_of(request, span, &count);
  if (places == NULL) {
    return BL_EXHAUSTED;
  }
  bl_shard_cut(ownership, places, count);
  *share = (share_t){.moment_bytes = bl_shard_moments(ownership, places, count, copy, NULL) * sizeof(float),
                     .squares = bl_shard_squares(ownership, places, count, copy)};
  bl_status_t status = measure_weights(request, span, copy, ownership, places, count, share);
  const bool two = bl_chunk_span_two_gradients(request->model, span);
  for (uint32_t i = 0; i < count; i++) { // of a tied embedding both gradients
    const uint64_t bytes = lines(bl_shard_message(ownership, places, i, copy).count * sizeof(float));
    share->received_bytes += bytes * (two && places[i].tied ? 2 : 1);
  }
  free(places);
  return status;
}

static bl_status_t add_chunks(const bl_stage_memory_request_t *request, uint64_t *squares, bl_stage_memory_t *sum) {
  const bl_model_t *model = request->model;
  const bl_copies_t copies = request->copies;
  bl_ownership_t ownership = {.copies = copies};
  bl_status_t status = BL_OK;
  for (uint32_t i = 0; i < request->span_count && status == BL_OK; i++) {
    const bl_chunk_span_t span = request->spans[i];
    bl_chunk_memory_t chunk = {0};
    status = bl_chunk_memory(model, span, request->options, &chunk);
    const uint32_t pipe = bl_copies_pipes(copies) > 1 ? i : 0, copy = bl_copies_number(copies, request->replica, pipe);
    share_t share = {0};
    if (status == BL_OK) {
      status = measure_share(request, span, copy, &ownership, &share);
    }
    sum->reduce_bytes += (bl_copies_count(copies) - 1) * share.received_bytes;
    *squares += share.squares;
    if (status == BL_OK) {
      add_chunk(request, span, &chunk, share, sum);
    }
  }
  return status;
}

bl_status_t bl_stage_memory(const bl_stage_memory_request_t *asked, bl_stage_memory_t *memory) {
  static const bl_operation_memory_t unknown = {0};
  bl_stage_memory_request_t full = *asked, *const request = &full;
  const bl_model_t *model = request->model;
  if (asked->operations != NULL) {
    full.options.logits = asked->operations->logits;
  } else {
    full.operations = &unknown;
  }
  bl_stage_memory_t sum = {0};
  uint64_t squares = 0;
  bool head = false, exchanges = false; // exchanges the gradient of a tied embedding with another chunk
  bl_status_t status = add_chunks(request, &squares, &sum);
  if (status != BL_OK) {
    return status;
  }
  for (uint32_t i = 0; i < request->span_count; i++) {
    const bl_chunk_span_t span = request->spans[i];
    head = head || span.head;
    exchanges = exchanges || (model->tied && span.embedding != span.head);
  }
  sum.tied_bytes = exchanges ? bl_chunk_span_table_elements(model, request->options.layer_parts) * sizeof(float) : 0;
  sum.window_bytes = bl_layer_parts_ranks(request->options.layer_parts) > 1
                         ? bl_exchange_buffers_plan(model, request->options, head).bytes
                         : 0;
  sum.operation_bytes = head ? request->operations->head_workspace_bytes : request->operations->layer_workspace_bytes;
  lay_out_data(request, squares, &sum);
  *memory = sum;
  return BL_OK;
}

uint64_t bl_stage_memory_total(const bl_stage_memory_t *memory, bl_stage_pieces_t pieces) {
  const uint64_t gradients = memory->gradient_bytes + memory->tied_bytes + memory->fold_bytes + memory->reduce_bytes;
  const uint64_t workspace = memory->window_bytes + memory->chunk_bytes + memory->operation_bytes;
  return memory->weight_bytes + gradients + memory->optimizer_bytes + memory->host_bytes + memory->shadow_bytes +
         workspace + memory->data_bytes + pieces.slots * memory->slot_bytes + pieces.edges * memory->edge_bytes +
         pieces.kv_cache_bytes;
}
