// SPDX-License-Identifier: Apache-2.0
#include "model/layer_parts.h"

#include "base/bytes.h"
#include "model/grid.h"

#include <inttypes.h>

// Rows of a part of a large table are a multiple of this: products are faster with such column counts.
#define ROWS_MULTIPLE 64

uint64_t bl_layer_parts_table_rows(uint64_t rows, uint32_t parts) {
  const uint64_t exact = (rows + parts - 1) / parts, round = bl_align_up(exact, ROWS_MULTIPLE);
  return parts > 1 && round * (parts - 1) < rows ? round : exact;
}

bl_layer_part_rows_t bl_layer_part_rows(uint64_t rows, uint32_t parts, uint32_t part) {
  const uint64_t each = bl_layer_parts_table_rows(rows, parts), first = each * part;
  const uint64_t left = first < rows ? rows - first : 0;
  return (bl_layer_part_rows_t){.first = first, .count = left < each ? left : each};
}

static bool divides(uint32_t parts, uint64_t count) {
  return count % parts == 0;
}

static bool cuts_table(uint32_t parts, uint64_t rows) {
  return bl_layer_part_rows(rows, parts, parts - 1).count > 0;
}

static bool fits(const bl_model_t *model, uint32_t parts, uint64_t rows) {
  const bool tables = cuts_table(parts, model->vocab) &&
                      (model->family != BL_FAMILY_GPT2 || cuts_table(parts, bl_model_positions(model)));
  return tables && divides(parts, model->heads) && divides(parts, model->kv_heads) && divides(parts, model->ffn) &&
         divides(parts, rows);
}

bl_status_t bl_layer_parts_check(const bl_model_t *model, uint32_t parts, uint64_t rows, bl_error_t *err) {
  const struct {
    const char *name;
    uint64_t count;
    bool table;
  } numbers[] = {{"model.heads", model->heads, false}, {"model.kv_heads", model->kv_heads, false},
                 {"model.ffn", model->ffn, false},     {"train.micro_batch x model.seq / pipeline.slices", rows, false},
                 {"model.vocab", model->vocab, true},  {"model.seq", bl_model_positions(model), true}};
  if (fits(model, parts, rows)) {
    return BL_OK;
  }
  uint32_t most = parts;
  while (!bl_grid_is_power_of_two(most) || (most > 1 && !fits(model, most, rows))) {
    most--;
  }
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
    const bool positions = i + 1 == sizeof numbers / sizeof numbers[0];
    if (numbers[i].table ? (positions && model->family != BL_FAMILY_GPT2) || cuts_table(parts, numbers[i].count)
                         : divides(parts, numbers[i].count)) {
      continue;
    }
    return bl_error_set(err, BL_INVALID,
                        "%" PRIu32 " parts of a layer cannot share %s, which is %" PRIu64 "; %" PRIu32 "%s", parts,
                        numbers[i].name, numbers[i].count, most, most == 1 ? " can" : " parts can");
  }
  return BL_OK;
}

bl_model_t bl_layer_part_model(const bl_model_t *model, uint32_t parts) {
  bl_model_t part = *model;
  part.heads /= parts;
  part.kv_heads /= parts;
  part.ffn /= parts;
  part.shard = (model->shard == 0 ? 1 : model->shard) * parts;
  return part;
}

// How a tensor is cut, in its stored orientation.
typedef enum cut { WHOLE, TABLE_ROWS, ROWS, COLUMNS, QKV_COLUMNS, QKV_ROWS, TWO_ROWS } cut_t;

static cut_t cut_of(bl_parameter_role_t role, bool input_major) {
  switch (role) {
  case BL_PARAMETER_TOKEN_EMBEDDING:
  case BL_PARAMETER_POSITION_EMBEDDING:
  case BL_PARAMETER_HEAD_WEIGHT:
    return TABLE_ROWS;
  case BL_PARAMETER_QKV_WEIGHT:
    return input_major ? QKV_COLUMNS : QKV_ROWS;
  case BL_PARAMETER_QKV_BIAS:
    return QKV_COLUMNS;
  case BL_PARAMETER_GATE_UP_WEIGHT:
    return TWO_ROWS;
  case BL_PARAMETER_Q_WEIGHT:
  case BL_PARAMETER_K_WEIGHT:
  case BL_PARAMETER_V_WEIGHT:
  case BL_PARAMETER_Q_BIAS:
  case BL_PARAMETER_K_BIAS:
  case BL_PARAMETER_V_BIAS:
  case BL_PARAMETER_GATE_WEIGHT:
  case BL_PARAMETER_UP_WEIGHT:
  case BL_PARAMETER_FFN_IN_BIAS:
    return ROWS;
  case BL_PARAMETER_FFN_IN_WEIGHT:
    return COLUMNS;
  case BL_PARAMETER_ATTENTION_OUT_WEIGHT:
  case BL_PARAMETER_FFN_OUT_WEIGHT:
    return input_major ? ROWS : COLUMNS;
  default:
    return WHOLE;
  }
}

bool bl_layer_parts_cut(bl_parameter_role_t role) {
  return cut_of(role, false) != WHOLE;
}

bl_slice_t bl_layer_part_slice(const bl_model_t *model, const bl_parameter_t *parameter, uint32_t parts,
                               uint32_t part) {
  const uint64_t rows = parameter->shape[0], columns = parameter->shape[1], run = columns / parts;
  const uint64_t width = bl_model_query_width(model); // of queries, of keys and of values in gpt2
  const uint64_t keys = (uint64_t)model->kv_heads * model->head_dim, group = model->heads / model->kv_heads;
  const bl_layer_part_rows_t table = bl_layer_part_rows(rows, parts, part);
  switch (parts == 1 ? WHOLE : cut_of(parameter->role, parameter->input_major)) {
  case TABLE_ROWS:
    return (bl_slice_t){.first = table.first * columns, .rows = 1, .groups = 1, .run = table.count * columns};
  case ROWS:
    return (bl_slice_t){.first = rows / parts * part * columns, .rows = 1, .groups = 1, .run = rows / parts * columns};
  case COLUMNS:
    return (bl_slice_t){.first = run * part, .rows = rows, .row_stride = columns, .groups = 1, .run = run};
  case QKV_COLUMNS:
    return (bl_slice_t){.first = width / parts * part,
                        .rows = parameter->rank == 1 ? 1 : rows,
                        .row_stride = columns,
                        .groups = 3,
                        .group_stride = width,
                        .run = width / parts};
  case QKV_ROWS: // a part's queries are as long as its keys times the query heads per key head
    return (bl_slice_t){.first = width / parts * part * columns,
                        .rows = 1,
                        .groups = group + 2,
                        .group_stride = keys * columns,
                        .run = keys / parts * columns,
                        .lead = group,
                        .after = (width - width / parts * part + keys / parts * part) * columns};
  case TWO_ROWS:
    return (bl_slice_t){.first = rows / 2 / parts * part * columns,
                        .rows = 1,
                        .groups = 2,
                        .group_stride = rows / 2 * columns,
                        .run = rows / 2 / parts * columns};
  default:
    return (bl_slice_t){.rows = 1, .groups = 1, .run = parameter->elements};
  }
}

bl_slice_t bl_slice_range(const bl_slice_t *slice, uint64_t first, uint64_t count, uint64_t *taken) {
  bl_slice_t range = *slice;
  if (slice->rows > 1) { // whole rows
    const uint64_t row = slice->groups * slice->run;
    range.first += first / row * slice->row_stride;
    range.rows = count / row;
    *taken = count;
    return range;
  }
  const uint64_t inside = first % slice->run, left = slice->run - inside;
  *taken = count < left ? count : left;
  return (bl_slice_t){.first = bl_slice_run(slice, first / slice->run) + inside, .rows = 1, .groups = 1, .run = *taken};
}

void bl_slice_initial(const bl_model_t *model, const bl_parameter_t *parameter, const bl_slice_t *slice, uint64_t seed,
                      uint64_t first, uint64_t count, float *values) {
  for (uint64_t done = 0; done < count;) {
    const uint64_t run = (first + done) / slice->run, inside = (first + done) % slice->run;
    const uint64_t here = slice->run - inside, left = count - done, length = here < left ? here : left;
    bl_parameter_initial(model, parameter, seed, bl_slice_run(slice, run) + inside, length, values + done);
    done += length;
  }
}
