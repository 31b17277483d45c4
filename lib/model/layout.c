// SPDX-License-Identifier: Apache-2.0
#include "model/layout.h"

#include "base/bytes.h"

// Far above the memory of any machine, and far below overflow of the sums computed here.
#define BLOCK_BYTES_MAX ((uint64_t)1 << 62)

const char *bl_attention_name(bl_attention_t attention) {
  return attention == BL_ATTENTION_FLASH ? "flash" : "naive";
}

const char *bl_recompute_name(bl_recompute_t recompute) {
  static const char *const names[] = {
      [BL_RECOMPUTE_NONE] = "none", [BL_RECOMPUTE_ATTENTION] = "attention", [BL_RECOMPUTE_FULL] = "full"};
  return names[recompute];
}

// Writes the scalars of one segment of each kind; of one part if the kind is in parts.
static void count_elements(const bl_layout_t *layout, uint64_t elements[BL_SEGMENT_KINDS]) {
  const bl_layer_parts_t layer_parts = layout->options.layer_parts;
  const bl_model_t part = bl_layer_part_model(&layout->model, bl_layer_parts_count(layer_parts)), *model = &part;
  const uint64_t rows = bl_layout_rows(model, layout->options), own = rows / bl_layer_parts_ranks(layer_parts);
  const uint64_t norm_gradient = (uint64_t)bl_model_norm_vectors(model) * model->hidden;
  elements[BL_SEGMENT_X1] = own * model->hidden;
  elements[BL_SEGMENT_NORM1_STATS] = own * bl_model_norm_vectors(model);
  elements[BL_SEGMENT_NORM1] = own * model->hidden;
  elements[BL_SEGMENT_QKV] = rows * bl_model_qkv_width(model);
  elements[BL_SEGMENT_HEADS] = model->head_norm ? elements[BL_SEGMENT_QKV] : 0;
  elements[BL_SEGMENT_SCORES] =
      rows * model->heads * (layout->options.attention == BL_ATTENTION_NAIVE ? model->seq : 1);
  elements[BL_SEGMENT_ATTENTION] = rows * bl_model_query_width(model);
  elements[BL_SEGMENT_POST1] = elements[BL_SEGMENT_POST2] = model->post_norm ? own * model->hidden : 0;
  elements[BL_SEGMENT_POST1_STATS] = elements[BL_SEGMENT_POST2_STATS] = model->post_norm ? own : 0;
  elements[BL_SEGMENT_X2] = own * model->hidden;
  elements[BL_SEGMENT_NORM2_STATS] = own * bl_model_norm_vectors(model);
  elements[BL_SEGMENT_NORM2] = own * model->hidden;
  elements[BL_SEGMENT_PRE] = rows * bl_model_pre_width(model);
  elements[BL_SEGMENT_ACT] = rows * model->ffn;
  elements[BL_SEGMENT_NORM1_GRADIENT] = norm_gradient;
  elements[BL_SEGMENT_NORM2_GRADIENT] = norm_gradient;
  elements[BL_SEGMENT_HEADS_GRADIENT] = model->head_norm ? 2 * (uint64_t)model->head_dim : 0;
  elements[BL_SEGMENT_POST1_GRADIENT] = elements[BL_SEGMENT_POST2_GRADIENT] = model->post_norm ? norm_gradient : 0;
  elements[BL_SEGMENT_FINAL_GRADIENT] = layout->span.head ? norm_gradient : 0;
}

// True if a rank has a piece of the kind for each of its parts. Norms have a gradient for the rows of each part.
static bool is_in_parts(bl_segment_kind_t kind) {
  switch (kind) {
  case BL_SEGMENT_QKV:
  case BL_SEGMENT_SCORES:
  case BL_SEGMENT_ATTENTION:
  case BL_SEGMENT_PRE:
  case BL_SEGMENT_ACT:
  case BL_SEGMENT_NORM1_GRADIENT:
  case BL_SEGMENT_NORM2_GRADIENT:
  case BL_SEGMENT_HEADS_GRADIENT:
  case BL_SEGMENT_POST1_GRADIENT:
  case BL_SEGMENT_POST2_GRADIENT:
  case BL_SEGMENT_FINAL_GRADIENT:
    return true;
  default:
    return false;
  }
}

// Returns the bytes of one scalar. Statistics, log-sum-exp and gradients of parameters are always float.
static uint64_t scalar_bytes(bl_segment_kind_t kind, bl_layout_options_t options) {
  switch (kind) {
  case BL_SEGMENT_NORM1_STATS:
  case BL_SEGMENT_NORM2_STATS:
  case BL_SEGMENT_POST1_STATS:
  case BL_SEGMENT_POST2_STATS:
  case BL_SEGMENT_NORM1_GRADIENT:
  case BL_SEGMENT_NORM2_GRADIENT:
  case BL_SEGMENT_HEADS_GRADIENT:
  case BL_SEGMENT_POST1_GRADIENT:
  case BL_SEGMENT_POST2_GRADIENT:
  case BL_SEGMENT_FINAL_GRADIENT:
    return sizeof(float);
  case BL_SEGMENT_SCORES:
    return options.attention == BL_ATTENTION_FLASH ? sizeof(float) : bl_dtype_bytes(options.dtype);
  default:
    return bl_dtype_bytes(options.dtype);
  }
}

// Returns the lifetime of a segment that F does not keep and W reads.
static bl_lifetime_t remade(bl_layout_options_t options) {
  return options.backward == BL_BACKWARD_FUSED ? BL_LIFETIME_BACKWARD : BL_LIFETIME_I_TO_W;
}

static bl_lifetime_t lifetime_of(bl_segment_kind_t kind, bl_layout_options_t options) {
  switch (kind) {
  case BL_SEGMENT_NORM1_STATS:
  case BL_SEGMENT_NORM2_STATS:
  case BL_SEGMENT_POST1_STATS:
  case BL_SEGMENT_POST2_STATS:
    return BL_LIFETIME_F_TO_I;
  case BL_SEGMENT_HEADS:
    return BL_LIFETIME_LAYER;
  case BL_SEGMENT_SCORES:
    return options.recompute == BL_RECOMPUTE_ATTENTION ? BL_LIFETIME_LAYER : BL_LIFETIME_F_TO_I;
  case BL_SEGMENT_ATTENTION:
    return options.recompute == BL_RECOMPUTE_ATTENTION ? remade(options) : BL_LIFETIME_F_TO_W;
  case BL_SEGMENT_NORM1:
  case BL_SEGMENT_NORM2:
  case BL_SEGMENT_ACT:
    return options.lean ? remade(options) : BL_LIFETIME_F_TO_W;
  case BL_SEGMENT_NORM1_GRADIENT:
  case BL_SEGMENT_NORM2_GRADIENT:
  case BL_SEGMENT_HEADS_GRADIENT:
  case BL_SEGMENT_POST1_GRADIENT:
  case BL_SEGMENT_POST2_GRADIENT:
  case BL_SEGMENT_FINAL_GRADIENT:
    return BL_LIFETIME_I_TO_W;
  default:
    return BL_LIFETIME_F_TO_W;
  }
}

static bool lives_from_forward(bl_lifetime_t lifetime) {
  return lifetime == BL_LIFETIME_F_TO_I || lifetime == BL_LIFETIME_F_TO_W;
}

// Returns the end, so far, of the rows of a lifetime.
static uint64_t *end_of(bl_layout_t *layout, bl_lifetime_t lifetime) {
  switch (lifetime) {
  case BL_LIFETIME_BACKWARD:
    return &layout->backward_stride_bytes;
  case BL_LIFETIME_LAYER:
    return &layout->shared_bytes;
  case BL_LIFETIME_I_TO_W:
    return &layout->gradient_stride_bytes;
  default:
    return &layout->kept_stride_bytes;
  }
}

static uint64_t x1_bytes(const bl_layout_t *layout) {
  return bl_align_up(layout->rows[BL_SEGMENT_X1].bytes, BL_CACHE_LINE_BYTES);
}

// Every length below is a product of at most four bounded numbers. This check rejects sizes that would overflow before
// any length is computed.
static bl_status_t check_size(const bl_model_t *model, bl_chunk_span_t span, bl_layout_options_t options) {
  uint64_t widest = bl_model_pre_width(model);
  uint64_t scores = (uint64_t)model->heads * model->seq;
  widest = widest > scores ? widest : scores;
  widest = widest > bl_model_qkv_width(model) ? widest : bl_model_qkv_width(model);
  widest = widest > model->hidden ? widest : model->hidden;
  uint64_t bytes = (uint64_t)BL_SEGMENT_KINDS * sizeof(float) * (span.layer_count + 1);
  bool fits = bl_mul_u64(bytes, options.micro_batch, &bytes) && bl_mul_u64(bytes, model->seq, &bytes) &&
              bl_mul_u64(bytes, widest, &bytes);
  return fits && bytes < BLOCK_BYTES_MAX ? BL_OK : BL_INVALID;
}

static void lay_out_page(bl_layout_t *layout) {
  const bl_layout_options_t options = layout->options;
  const bl_model_t part = bl_layer_part_model(&layout->model, bl_layer_parts_count(options.layer_parts));
  const uint64_t elements = bl_layout_rows(&layout->model, options) * 2 * bl_model_kv_width(&part);
  const uint64_t pieces = (uint64_t)layout->span.layer_count * bl_layer_parts_here(options.layer_parts);
  layout->page_part_bytes = bl_align_up(elements * bl_dtype_bytes(options.dtype), BL_CACHE_LINE_BYTES);
  layout->page_bytes = pieces * layout->page_part_bytes;
  layout->page_gradient_part_bytes = bl_align_up(elements * sizeof(float), BL_CACHE_LINE_BYTES);
  layout->page_gradient_bytes = pieces * layout->page_gradient_part_bytes;
}

bl_status_t bl_layout_init(bl_layout_t *layout, const bl_model_t *model, bl_chunk_span_t span,
                           bl_layout_options_t options) {
  if (options.micro_batch < 1 || check_size(model, span, options) != BL_OK) {
    return BL_INVALID;
  }
  bl_layout_t made = {.model = *model, .span = span, .options = options};
  uint64_t elements[BL_SEGMENT_KINDS];
  count_elements(&made, elements);
  for (int kind = 0; kind < BL_SEGMENT_KINDS; kind++) {
    bl_layout_row_t *row = &made.rows[kind];
    row->lifetime = lifetime_of((bl_segment_kind_t)kind, options);
    row->bytes = elements[kind] * scalar_bytes((bl_segment_kind_t)kind, options);
    row->part_bytes = bl_align_up(row->bytes, BL_CACHE_LINE_BYTES);
    if (row->bytes > 0 && is_in_parts((bl_segment_kind_t)kind)) {
      row->bytes += (bl_layer_parts_here(options.layer_parts) - 1) * row->part_bytes;
    }
    if (kind == BL_SEGMENT_FINAL_GRADIENT) {
      continue; // once per chunk: placed after the layers
    }
    uint64_t *end = end_of(&made, row->lifetime);
    row->offset_bytes = *end;
    *end += bl_align_up(row->bytes, BL_CACHE_LINE_BYTES);
  }
  // x1 is the first row, and the first layer has none. So every layer begins that many bytes before layer * stride.
  if (span.layer_count > 0) {
    made.evict_bytes = span.layer_count * made.kept_stride_bytes - x1_bytes(&made);
  }
  made.slot_bytes = made.evict_bytes + span.layer_count * made.gradient_stride_bytes;
  made.rows[BL_SEGMENT_FINAL_GRADIENT].offset_bytes = made.slot_bytes;
  made.slot_bytes += bl_align_up(made.rows[BL_SEGMENT_FINAL_GRADIENT].bytes, BL_CACHE_LINE_BYTES);
  made.edge_bytes = bl_layout_rows(model, options) / bl_layer_parts_ranks(options.layer_parts) * model->hidden *
                    bl_dtype_bytes(options.dtype);
  if (bl_layout_slices(options) > 1) {
    lay_out_page(&made);
  }
  *layout = made;
  return BL_OK;
}

bool bl_layout_segment(const bl_layout_t *layout, uint32_t layer, bl_segment_kind_t kind, bl_segment_t *segment) {
  const bl_layout_row_t *row = &layout->rows[kind];
  uint64_t offset = row->offset_bytes;
  if (kind == BL_SEGMENT_FINAL_GRADIENT) {
    if (row->bytes == 0) {
      return false;
    }
  } else if (layer >= layout->span.layer_count || (kind == BL_SEGMENT_X1 && layer == 0) || row->bytes == 0) {
    return false;
  } else if (lives_from_forward(row->lifetime)) {
    offset += layer * layout->kept_stride_bytes - x1_bytes(layout);
  } else if (row->lifetime == BL_LIFETIME_I_TO_W) {
    offset += layout->evict_bytes + layer * layout->gradient_stride_bytes;
  } else if (row->lifetime == BL_LIFETIME_BACKWARD) {
    offset += layer * layout->backward_stride_bytes;
  }
  *segment = (bl_segment_t){kind, layer, row->lifetime, offset, row->bytes, row->part_bytes};
  return true;
}

uint64_t bl_layout_unused(const bl_layout_t *layout, const bl_segment_t *segment, uint32_t slice) {
  const bool scores = segment->kind == BL_SEGMENT_SCORES && layout->options.attention == BL_ATTENTION_NAIVE;
  const uint32_t slices = bl_layout_slices(layout->options);
  const uint64_t bytes = bl_segment_end(segment, 0) - segment->offset_bytes; // of one part
  return scores ? bytes / slices * (slices - 1 - slice) : 0;
}

uint64_t bl_layout_layer_bytes(const bl_layout_t *layout) {
  return layout->kept_stride_bytes - x1_bytes(layout) + layout->gradient_stride_bytes;
}

bool bl_layout_layer_segment(const bl_layout_t *layout, uint32_t layer, bl_segment_kind_t kind, bl_segment_t *segment) {
  if (kind == BL_SEGMENT_X1 || kind == BL_SEGMENT_FINAL_GRADIENT || !bl_layout_segment(layout, layer, kind, segment)) {
    return false;
  }
  const bl_layout_row_t *row = &layout->rows[kind];
  if (lives_from_forward(row->lifetime)) {
    segment->offset_bytes = row->offset_bytes - x1_bytes(layout);
  } else if (row->lifetime == BL_LIFETIME_I_TO_W) {
    segment->offset_bytes = layout->kept_stride_bytes - x1_bytes(layout) + row->offset_bytes;
  }
  return true;
}
