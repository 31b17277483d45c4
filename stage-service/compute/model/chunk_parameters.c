// SPDX-License-Identifier: Apache-2.0
// Weights, gradients and optimizer state of a chunk.
#include "compute/model/chunk_internal.h"

#include "base/bytes.h"
#include "compute/model/drawing.h"
#include "model/resident.h"

#include <stdlib.h>
#include <string.h>

#define CACHE_LINE_ELEMENTS (BL_CACHE_LINE_BYTES / sizeof(float))

// Returns the place of a role's tensor, or of part `part` of it. The chunk has it.
static uint32_t place_of(const bl_chunk_t *chunk, bl_parameter_role_t role, uint32_t model_layer, uint32_t part) {
  const uint32_t index = bl_parameter_index(&chunk->model, role, model_layer);
  const uint32_t wanted = bl__chunk_is_in_parts(chunk) && bl_layer_parts_cut(role) ? part : 0;
  uint32_t i = 0;
  while (chunk->places[i].canonical_index != index || chunk->places[i].part != wanted) {
    i++;
  }
  return i;
}

// The model's number of the part that is the chunk's `index`-th.
static uint32_t part_number(const bl_chunk_t *chunk, uint32_t index) {
  return bl_layer_parts_first(chunk->layout.options.layer_parts) + index;
}

static float *at(float *arena, uint64_t offset_elements) {
  return arena != NULL ? arena + offset_elements : NULL;
}

float *bl__chunk_gradient(const bl_chunk_t *chunk, uint32_t place) {
  return at(chunk->arenas.gradients, chunk->places[place].offset_elements);
}

float *bl__chunk_weight(const bl_chunk_t *chunk, uint32_t place) {
  const uint64_t offset = chunk->resident[place];
  return offset == BL_RESIDENT_NOWHERE ? bl__chunk_gradient(chunk, place) : at(chunk->arenas.weights, offset);
}

// The device on which weights and moments are updated.
static bl_device_t *updating_device(const bl_chunk_t *chunk) {
  return chunk->host != NULL ? bl_device_host() : chunk->device;
}
// Where weights from elsewhere are written, each in its place.
static float *written_weights(const bl_chunk_t *chunk) {
  return chunk->host != NULL ? chunk->arenas.masters : chunk->sharded ? chunk->arenas.gradients : chunk->arenas.weights;
}

bl_shard_range_t bl__chunk_range(const bl_chunk_t *chunk, uint32_t place) {
  return bl_shard_range(&chunk->ownership, &chunk->places[place], chunk->copy);
}

float *bl__chunk_updated(const bl_chunk_t *chunk, uint32_t place) {
  if (chunk->host != NULL) {
    return at(chunk->arenas.masters, chunk->places[place].offset_elements);
  }
  return chunk->resident[place] == BL_RESIDENT_NOWHERE
             ? at(chunk->arenas.masters, chunk->masters[place])
             : at(chunk->arenas.weights, chunk->resident[place] + bl__chunk_range(chunk, place).first);
}

static void bind_norm(const bl_chunk_t *chunk, bl__norm_t *norm, uint32_t model_layer, bl_parameter_role_t gain,
                      bl_parameter_role_t bias) {
  uint32_t place = place_of(chunk, gain, model_layer, 0);
  *norm = (bl__norm_t){.gain = bl__chunk_weight(chunk, place), .gain_gradient = bl__chunk_gradient(chunk, place)};
  if (chunk->model.family == BL_FAMILY_GPT2) {
    place = place_of(chunk, bias, model_layer, 0);
    norm->bias = bl__chunk_weight(chunk, place);
    norm->bias_gradient = bl__chunk_gradient(chunk, place);
  }
}

typedef struct {
  bl_parameter_role_t weight, bias; // BL_PARAMETER_ROLES: none
} linear_roles_t;

// q, k and v lie without a gap and are one weight [qkv_width, hidden], and one bias if they have biases, whether they
// are separate tensors or one. So are gate and up [2 ffn, hidden].
static linear_roles_t roles_of(const bl_model_t *model, bl__product_t product) {
  const bool gpt2 = model->family == BL_FAMILY_GPT2;
  switch (product) {
  case BL__QKV:
    return (linear_roles_t){gpt2 || model->fused ? BL_PARAMETER_QKV_WEIGHT : BL_PARAMETER_Q_WEIGHT,
                            gpt2              ? BL_PARAMETER_QKV_BIAS
                            : model->qkv_bias ? BL_PARAMETER_Q_BIAS
                                              : BL_PARAMETER_ROLES};
  case BL__ATTENTION_OUT:
    return (linear_roles_t){BL_PARAMETER_ATTENTION_OUT_WEIGHT,
                            gpt2 ? BL_PARAMETER_ATTENTION_OUT_BIAS : BL_PARAMETER_ROLES};
  case BL__FFN_IN:
    return (linear_roles_t){gpt2           ? BL_PARAMETER_FFN_IN_WEIGHT
                            : model->fused ? BL_PARAMETER_GATE_UP_WEIGHT
                                           : BL_PARAMETER_GATE_WEIGHT,
                            gpt2 ? BL_PARAMETER_FFN_IN_BIAS : BL_PARAMETER_ROLES};
  default:
    return (linear_roles_t){BL_PARAMETER_FFN_OUT_WEIGHT, gpt2 ? BL_PARAMETER_FFN_OUT_BIAS : BL_PARAMETER_ROLES};
  }
}

static void bind_linear(const bl_chunk_t *chunk, uint32_t layer, bl__product_t product, uint32_t index) {
  const linear_roles_t role = roles_of(&chunk->model, product);
  const uint32_t model_layer = chunk->span.first_layer + layer, part = part_number(chunk, index);
  uint32_t place = place_of(chunk, role.weight, model_layer, part);
  bl__linear_t linear = {.weight = bl__chunk_weight(chunk, place),
                         .weight_gradient = bl__chunk_gradient(chunk, place),
                         .elements = chunk->in[product] * chunk->out[product],
                         .outputs = chunk->out[product]};
  const uint64_t packed = bl_align_up(chunk->ops->linear_packed_bytes(chunk->linear[product]), BL_CACHE_LINE_BYTES);
  if (packed > 0) {
    linear.packed = (char *)chunk->arenas.packed + layer * chunk->packed_layer_bytes +
                    chunk->packed_offset_bytes[product] + index * packed;
  }
  // The first part of this chunk holds the gradient of a bias that is added once for all parts.
  if (role.bias != BL_PARAMETER_ROLES &&
      (index == 0 || !bl__chunk_is_in_parts(chunk) || bl_layer_parts_cut(role.bias))) {
    place = place_of(chunk, role.bias, model_layer, part);
    linear.bias = bl__chunk_weight(chunk, place);
    linear.bias_gradient = bl__chunk_gradient(chunk, place);
  }
  chunk->layers[layer].linear[product][index] = linear;
}

static void bind_embedding(bl_chunk_t *chunk, uint32_t index) {
  const uint32_t part = part_number(chunk, index);
  bl__embedding_t *embedding = &chunk->embedding[index];
  uint32_t place = place_of(chunk, BL_PARAMETER_TOKEN_EMBEDDING, 0, part);
  embedding->tokens = bl__chunk_weight(chunk, place);
  embedding->token_gradient = bl__chunk_gradient(chunk, place);
  if (chunk->model.family == BL_FAMILY_GPT2) {
    place = place_of(chunk, BL_PARAMETER_POSITION_EMBEDDING, 0, part);
    embedding->positions = bl__chunk_weight(chunk, place);
    embedding->position_gradient = bl__chunk_gradient(chunk, place);
  }
}

static void bind_head(bl_chunk_t *chunk, uint32_t index) {
  bl__head_t *head = &chunk->head[index];
  const uint32_t first = place_of(chunk, BL_PARAMETER_HEAD_WEIGHT, 0, part_number(chunk, 0));
  const uint32_t place = place_of(chunk, BL_PARAMETER_HEAD_WEIGHT, 0, part_number(chunk, index));
  head->linear = (bl__linear_t){.weight = bl__chunk_weight(chunk, place),
                                .weight_gradient = bl__chunk_gradient(chunk, place),
                                .elements = chunk->places[place].elements};
  if (chunk->ops->linear_packed_bytes(head->whole) > 0) {
    head->linear.packed = (char *)chunk->arenas.packed + head->packed_offset_bytes;
  }
  if (chunk->ops->linear_packed_bytes(head->row) > 0) { // pieces with other row counts read the same copy
    head->linear.plain = (char *)chunk->arenas.packed + head->plain_offset_bytes;
  }
  if (bl_chunk_span_two_gradients(&chunk->model, chunk->span)) { // the second buffer follows all parameters
    const uint64_t before = chunk->places[place].offset_elements - chunk->places[first].offset_elements;
    head->linear.weight_gradient = at(chunk->arenas.gradients, chunk->sizes.weight_bytes / sizeof(float) + before);
  }
}

// Makes the update write the packed copy of a weight together with its parameters, if the back end can.
static void bind_copy(bl_chunk_t *chunk, const float *first, uint64_t elements, void *copy) {
  const uint64_t from = (uint64_t)(first - (const float *)chunk->arenas.weights);
  for (uint32_t i = 0; i < chunk->parameter_count; i++) {
    const uint64_t offset = chunk->places[i].offset_elements;
    if (offset >= from && offset < from + elements) {
      chunk->copies[i] = (uint16_t *)copy + (offset - from);
    }
  }
}

static void bind_copies(bl_chunk_t *chunk, bl_linear_op_t *op, const bl__linear_t *linear) {
  if (linear->packed == NULL) {
    return;
  }
  bind_copy(chunk, linear->weight, linear->elements, linear->packed);
  const size_t bias = chunk->ops->linear_packed_bias == NULL ? 0 : chunk->ops->linear_packed_bias(op);
  if (bias > 0) {
    bind_copy(chunk, linear->bias, linear->outputs, (char *)linear->packed + bias);
  }
}

// The first place of a layer, or of what follows it, between the ends of the model.
static uint32_t first_place_of(const bl_chunk_t *chunk, uint32_t model_layer) {
  uint32_t i = 0;
  while (i < chunk->parameter_count &&
         bl_parameter_get(&chunk->model, chunk->places[i].canonical_index).layer < (int32_t)model_layer) {
    i++;
  }
  return i;
}

static void bind_layer(bl_chunk_t *chunk, uint32_t index) {
  const uint32_t model_layer = chunk->span.first_layer + index;
  bl__layer_t *layer = &chunk->layers[index];
  layer->first_place = first_place_of(chunk, model_layer);
  layer->end_place = first_place_of(chunk, model_layer + 1);
  bind_norm(chunk, &layer->norm1, model_layer, BL_PARAMETER_NORM1_WEIGHT, BL_PARAMETER_NORM1_BIAS);
  bind_norm(chunk, &layer->norm2, model_layer, BL_PARAMETER_NORM2_WEIGHT, BL_PARAMETER_NORM2_BIAS);
  if (chunk->model.post_norm) {
    bind_norm(chunk, &layer->post1, model_layer, BL_PARAMETER_POST_NORM1_WEIGHT, BL_PARAMETER_ROLES);
    bind_norm(chunk, &layer->post2, model_layer, BL_PARAMETER_POST_NORM2_WEIGHT, BL_PARAMETER_ROLES);
  }
  if (chunk->model.head_norm) {
    bind_norm(chunk, &layer->query_norm, model_layer, BL_PARAMETER_Q_NORM_WEIGHT, BL_PARAMETER_ROLES);
    bind_norm(chunk, &layer->key_norm, model_layer, BL_PARAMETER_K_NORM_WEIGHT, BL_PARAMETER_ROLES);
  }
  layer->window = bl_model_has_window(&chunk->model, model_layer);
  for (uint32_t product = 0; product < BL__PRODUCTS; product++) {
    layer->linear[product] = chunk->linears + ((size_t)index * BL__PRODUCTS + product) * chunk->here;
    for (uint32_t i = 0; i < chunk->here; i++) {
      bind_linear(chunk, index, (bl__product_t)product, i);
    }
  }
}

typedef void (*visit_fn)(bl_chunk_t *chunk, bl_linear_op_t *op, const bl__linear_t *linear);

// Calls `visit` for every weight that products read, with the operation that reads it.
static void visit_linears(bl_chunk_t *chunk, visit_fn visit) {
  for (uint32_t layer = 0; layer < chunk->span.layer_count; layer++) {
    for (int product = 0; product < BL__PRODUCTS; product++) {
      for (uint32_t i = 0; i < chunk->here; i++) {
        visit(chunk, chunk->linear[product], &chunk->layers[layer].linear[product][i]);
      }
    }
  }
  for (uint32_t i = 0; i < chunk->here && chunk->span.head; i++) {
    visit(chunk, chunk->head[i].whole, &chunk->head[i].linear);
  }
}

void bl__chunk_bind(bl_chunk_t *chunk) {
  for (uint32_t layer = 0; layer < chunk->span.layer_count; layer++) {
    bind_layer(chunk, layer);
  }
  for (uint32_t i = 0; i < chunk->here && chunk->span.embedding; i++) {
    bind_embedding(chunk, i);
  }
  if (chunk->span.head) {
    bind_norm(chunk, &chunk->final_norm, 0, BL_PARAMETER_FINAL_NORM_WEIGHT, BL_PARAMETER_FINAL_NORM_BIAS);
  }
  for (uint32_t i = 0; i < chunk->here && chunk->span.head; i++) {
    bind_head(chunk, i);
  }
  uint8_t *windows = (uint8_t *)chunk->arenas.workspace + chunk->workspace.exchange_buffers_offset_bytes;
  for (int i = 0; i < BL_EXCHANGE_BUFFERS; i++) {
    chunk->alone.windows[i] = windows + chunk->workspace.exchange_buffers.offset_bytes[i];
  }
  if (chunk->ops->adamw_packs && chunk->host == NULL && !chunk->sharded) {
    memset(chunk->copies, 0, chunk->parameter_count * sizeof *chunk->copies);
    visit_linears(chunk, bind_copies);
  }
}

uint32_t bl_chunk_parameter_count(const bl_chunk_t *chunk) {
  return chunk->parameter_count;
}

bl_chunk_parameter_t bl_chunk_parameter(const bl_chunk_t *chunk, uint32_t i) {
  const bl_parameter_place_t *place = &chunk->places[i];
  const bl_shard_range_t range = bl__chunk_range(chunk, i);
  const bl_parameter_t parameter = bl_parameter_get(&chunk->model, place->canonical_index);
  return (bl_chunk_parameter_t){
      .parameter = parameter,
      .part = place->part,
      .cut = bl__chunk_is_in_parts(chunk) && bl_layer_parts_cut(parameter.role),
      .slice = bl_layer_part_slice(&chunk->model, &parameter, chunk->parts, place->part),
      .elements = place->elements,
      .weight = at(written_weights(chunk), place->offset_elements),
      .gradient = at(chunk->arenas.gradients, place->offset_elements),
      .range = range,
      .updated = range.count > 0 ? bl__chunk_updated(chunk, i) : NULL,
      .first_moment = range.count > 0 ? at(chunk->arenas.first_moments, chunk->moments[i]) : NULL,
      .second_moment = range.count > 0 ? at(chunk->arenas.second_moments, chunk->moments[i]) : NULL,
      .owned = bl_chunk_span_owns(&chunk->model, chunk->span, place->canonical_index),
  };
}

static bl_status_t clear_moments(bl_chunk_t *chunk, bl_error_t *err) {
  const bl_chunk_arenas_t *arenas = &chunk->arenas;
  if (arenas->first_moments == NULL) {
    return BL_OK;
  }
  bl_device_t *device = updating_device(chunk);
  bl_status_t status = bl_device_fill(device, NULL, arenas->first_moments, 0, chunk->sizes.moment_bytes, err);
  return status == BL_OK ? bl_device_fill(device, NULL, arenas->second_moments, 0, chunk->sizes.moment_bytes, err)
                         : status;
}

bl_status_t bl_chunk_initialize(bl_chunk_t *chunk, uint64_t seed, uint32_t threads, bl_error_t *err) {
  bl_drawing_t drawing = {.model = &chunk->model, .seed = seed, .threads = threads, .device = updating_device(chunk)};
  bl_status_t status = bl_drawing_begin(&drawing, err);
  if (status == BL_OK) { // so that padding is defined
    status = bl_device_fill(drawing.device, NULL, written_weights(chunk), 0, chunk->sizes.weight_bytes, err);
  }
  for (uint32_t i = 0; i < chunk->parameter_count && status == BL_OK; i++) {
    const bl_chunk_parameter_t p = bl_chunk_parameter(chunk, i);
    status = bl_drawing_put(&drawing, &p.parameter, &p.slice, p.weight, err);
  }
  bl_drawing_end(&drawing);
  if (status == BL_OK) {
    status = clear_moments(chunk, err);
  }
  if (status == BL_OK) {
    bl_chunk_weights_changed(chunk);
  }
  return status;
}

static void pack(bl_chunk_t *chunk, bl_linear_op_t *op, const bl__linear_t *linear) {
  if (linear->packed != NULL) {
    chunk->ops->linear_pack(op, linear->weight, linear->bias, linear->packed);
  }
}

void bl_chunk_weights_changed(bl_chunk_t *chunk) {
  bl__chunk_take_weights(chunk);
  bl__chunk_send_weights(chunk);
  bl__chunk_pack(chunk);
}

void bl__chunk_pack(bl_chunk_t *chunk) {
  visit_linears(chunk, pack);
  for (uint32_t i = 0; i < chunk->here && chunk->span.head; i++) {
    const bl__head_t *head = &chunk->head[i];
    if (head->linear.plain != NULL && head->linear.plain != head->linear.packed) {
      chunk->ops->linear_pack(head->row, head->linear.weight, NULL, head->linear.plain);
    }
  }
}

void bl_chunk_begin_step(bl_chunk_t *chunk) {
  bl__chunk_wait_copies(chunk);
  chunk->last = false;
  chunk->ops->fill(chunk->compute, chunk->sizes.gradient_bytes / sizeof(float), 0, chunk->arenas.gradients);
}

bool bl_chunk_has_tied_gradient(const bl_chunk_t *chunk) {
  return chunk->model.tied && (chunk->span.embedding || chunk->span.head);
}

bool bl_chunk_tied_needs_peer(const bl_chunk_t *chunk) {
  return chunk->model.tied && chunk->span.embedding != chunk->span.head;
}

float *bl_chunk_tied_gradient(bl_chunk_t *chunk) {
  return chunk->span.embedding ? chunk->embedding->token_gradient : chunk->head->linear.weight_gradient;
}

uint64_t bl_chunk_tied_elements(const bl_chunk_t *chunk) {
  return bl_chunk_span_table_elements(&chunk->model, chunk->layout.options.layer_parts);
}

uint32_t bl_chunk_tied_ranges(const bl_chunk_t *chunk, bl_shard_range_t *ranges) {
  const uint32_t first = place_of(chunk, BL_PARAMETER_TOKEN_EMBEDDING, 0, part_number(chunk, 0));
  for (uint32_t i = 0; i < chunk->here; i++) {
    const uint32_t place = place_of(chunk, BL_PARAMETER_TOKEN_EMBEDDING, 0, part_number(chunk, i));
    ranges[i] = bl__chunk_range(chunk, place);
    ranges[i].first += chunk->places[place].offset_elements - chunk->places[first].offset_elements;
  }
  return chunk->here;
}

void bl_chunk_join_tied_gradient(bl_chunk_t *chunk, const float *peer) {
  const float *other = bl_chunk_tied_needs_peer(chunk) ? peer : chunk->head->linear.weight_gradient;
  float *own = bl_chunk_tied_gradient(chunk);
  bl_shard_range_t ranges[BL_LAYER_PARTS_MAX];
  const uint32_t count = bl_chunk_tied_ranges(chunk, ranges);
  for (uint32_t i = 0; i < count; i++) {
    if (ranges[i].count > 0) {
      chunk->ops->accumulate(chunk->compute, ranges[i].count, other + ranges[i].first, own + ranges[i].first);
    }
  }
}

// Replaces the gradient of a norm with the sum over the rows of all parts.
static void sum_norm(bl_chunk_t *chunk, const bl_parameter_place_t *place) {
  float *own = chunk->arenas.gradients + place->offset_elements;
  const uint64_t padded = bl_align_up(place->elements, CACHE_LINE_ELEMENTS), floats = chunk->here * padded;
  const float *all = own; // [parts][padded]
  if (chunk->ranks > 1) {
    const uint64_t bytes = ((chunk->here - 1) * padded + place->elements) * sizeof *own;
    float *window = bl_group_window(chunk->group, BL_EXCHANGE_BUFFER_ROWS);
    bl_error_t err;
    bl_group_fail(
        chunk->group,
        bl_device_copy(chunk->device, bl__chunk_stream(chunk), window + chunk->rank * floats, own, bytes, &err), &err);
    bl_group_gather(chunk->group, BL_EXCHANGE_BUFFER_ROWS, floats * sizeof *own);
    all = window;
  }
  const void *sums[BL_LAYER_PARTS_MAX];
  for (uint32_t part = 0; part < chunk->parts; part++) {
    sums[part] = all + part * padded;
  }
  chunk->ops->sum_parts(chunk->compute, 1, place->elements, BL_COMPUTE_FP32, chunk->parts, sums, NULL, NULL, own);
}

void bl_chunk_sum_norms(bl_chunk_t *chunk) {
  for (uint32_t i = 0; i < chunk->parameter_count && bl__chunk_is_in_parts(chunk); i++) {
    const bl_parameter_t parameter = bl_parameter_get(&chunk->model, chunk->places[i].canonical_index);
    if (bl_chunk_span_is_norm(parameter.role) && bl__chunk_range(chunk, i).count > 0) {
      sum_norm(chunk, &chunk->places[i]);
    }
  }
}

bl_chunk_message_t bl_chunk_message(const bl_chunk_t *chunk, uint32_t i, uint32_t copy) {
  const bl_parameter_place_t *place = &chunk->places[i];
  const bl_shard_range_t range = bl_shard_message(&chunk->ownership, chunk->places, i, copy);
  bl_chunk_message_t message = {.weight = at(written_weights(chunk), range.first),
                                .gradient = at(chunk->arenas.gradients, range.first),
                                .elements = range.count};
  if (place->tied && bl_chunk_span_two_gradients(&chunk->model, chunk->span)) {
    const uint32_t index = place->part - part_number(chunk, 0);
    message.second = chunk->head[index].linear.weight_gradient + (range.first - place->offset_elements);
  }
  return message;
}

bl_shard_shares_t bl_chunk_shares(const bl_chunk_t *chunk, uint32_t i) {
  return bl_shard_shares(&chunk->ownership, &chunk->places[i], chunk->copy);
}

void bl_chunk_ask_squares(bl_chunk_t *chunk, uint32_t i, double *sums) {
  const bl_shard_shares_t shares = bl_chunk_shares(chunk, i);
  for (uint32_t k = 0; k < shares.count; k++) {
    const bl_shard_range_t share = bl_shard_share(&chunk->places[i], shares.first + k, shares.of);
    if (share.count == 0) {
      sums[k] = 0;
      continue;
    }
    chunk->squares[chunk->squares_count++] = (bl_squares_t){
        .count = share.count,
        .x = at(chunk->arenas.gradients, chunk->places[i].offset_elements + share.first),
        .sum = &sums[k],
    };
  }
}

void bl_chunk_make_squares(bl_chunk_t *chunk) {
  chunk->ops->sum_squares(chunk->compute, chunk->squares_count, chunk->squares);
  chunk->squares_count = 0;
}

void bl_chunk_update(bl_chunk_t *chunk, const bl_adamw_settings_t *settings, const bl_adamw_step_t *step) {
  const bl_chunk_arenas_t *arenas = &chunk->arenas;
  if (chunk->host != NULL) {
    bl__chunk_update_on_host(chunk, settings, step);
    return;
  }
  uint32_t count = 0;
  for (uint32_t i = 0; i < chunk->parameter_count; i++) {
    const bl_parameter_place_t *place = &chunk->places[i];
    const bl_shard_range_t range = bl__chunk_range(chunk, i);
    const uint64_t first = place->offset_elements + range.first;
    if (range.count > 0) {
      chunk->updates[count++] = (bl_adamw_tensor_t){.options = bl_adamw_for_step(settings, step, place->decays),
                                                    .count = range.count,
                                                    .dw = at(arenas->gradients, first),
                                                    .w = bl__chunk_updated(chunk, i),
                                                    .m = at(arenas->first_moments, chunk->moments[i]),
                                                    .v = at(arenas->second_moments, chunk->moments[i]),
                                                    .packed = bl__chunk_is_alone(chunk) ? chunk->copies[i] : NULL};
    }
  }
  chunk->ops->adamw(chunk->compute, count, chunk->updates);
  if (!chunk->ops->adamw_packs && bl__chunk_is_alone(chunk)) {
    bl_chunk_weights_changed(chunk);
  }
}

// Finds elements [first, end) of the gradients: that of the head's weight, which lies at one end, or all others.
static void find_region(const bl_chunk_t *chunk, bool head, uint64_t *first, uint64_t *end) {
  const uint64_t all = chunk->sizes.gradient_bytes / sizeof(float);
  *first = 0;
  *end = all;
  if (!chunk->span.head) {
    *end = head ? 0 : all;
    return;
  }
  const uint64_t at = (uint64_t)(chunk->head->linear.weight_gradient - (const float *)chunk->arenas.gradients);
  const uint64_t elements = bl_chunk_tied_elements(chunk);
  if (at == 0) { // the head's copy of a tied embedding
    *end = head ? elements : all;
    *first = head ? 0 : elements;
  } else {
    *first = head ? at : 0;
    *end = head ? all : at;
  }
}

bl_status_t bl_chunk_fold(bl_chunk_t *chunk, bool head, uint32_t merges, bool last, bl_error_t *err) {
  const uint64_t all = chunk->sizes.gradient_bytes / sizeof(float);
  uint64_t first, end;
  find_region(chunk, head, &first, &end);
  if (first == end) {
    return BL_OK;
  }
  float *gradients = chunk->arenas.gradients + first, *sums = chunk->arenas.sums + first;
  for (uint32_t level = 0; level < merges; level++) {
    chunk->ops->accumulate(chunk->compute, end - first, sums + level * all, gradients);
  }
  if (last) {
    return BL_OK;
  }
  bl_status_t status = bl_device_copy(chunk->device, bl__chunk_stream(chunk), sums + merges * all, gradients,
                                      (end - first) * sizeof(float), err);
  chunk->ops->fill(chunk->compute, end - first, 0, gradients);
  return status;
}
