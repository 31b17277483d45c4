// SPDX-License-Identifier: Apache-2.0
// Column sums (gradients of biases and norms) in two steps without atomics. First, each group of rows writes one line
// of sums to scratch. Then the lines are added in order. x is read once; scratch adds 8 bytes x GROUPS_MAX per column.
// Each step is one launch for all sums that are requested together. A sum over one row of floats is a line already and
// needs only the second step.
#include "compute/ops/cuda/kernels.h"
#include "compute/ops/cuda/kernels/device.h"
#include "compute/ops/cuda/kernels/lines.h"

#define LANES      32 // packs, or columns of lines, per block
#define SLICES     8  // rows or lines per block at a time
#define GROUPS_MAX 64

// Adds up the rows of this block for the block's packs of one sum.
template <typename E, bool Wide>
static BL_DEVICE void sum_rows(const bl__column_groups_t &sum, bl_count block, float (&sums)[bl_pack<E>::WIDTH]) {
  const int lane = (int)threadIdx.x % LANES, slice = (int)threadIdx.x / LANES;
  const bl_count at = (block * LANES + lane) * bl_pack<E>::WIDTH;
  const E *x = (const E *)sum.x;
  if (at < sum.columns) {
    for (bl_count row = (bl_count)blockIdx.y * SLICES + slice; row < sum.rows; row += (bl_count)sum.groups * SLICES) {
      float values[bl_pack<E>::WIDTH];
      bl_unpack<E>(bl_load<E, Wide>(x + row * sum.columns, at, sum.columns), values);
#pragma unroll
      for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
        sums[i] += values[i];
      }
    }
  }
}

template <typename E>
__global__ void __launch_bounds__(LANES *SLICES) column_groups(const __grid_constant__ bl__column_table_t table) {
  __shared__ float parts[SLICES][LANES][bl_pack<E>::WIDTH + 1];
  const bl__column_groups_t &sum = table.entries[bl_entry_of(table)];
  if (blockIdx.y >= sum.groups) {
    return; // the whole block returns
  }
  const int lane = (int)threadIdx.x % LANES, slice = (int)threadIdx.x / LANES;
  const bl_count block = blockIdx.x - sum.first_block, at = (block * LANES + lane) * bl_pack<E>::WIDTH;
  float sums[bl_pack<E>::WIDTH] = {};
  if (sum.wide) {
    sum_rows<E, true>(sum, block, sums);
  } else {
    sum_rows<E, false>(sum, block, sums);
  }
#pragma unroll
  for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
    parts[slice][lane][i] = sums[i];
  }
  __syncthreads();
  if (slice == 0) {
#pragma unroll
    for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
      float total = parts[0][lane][i];
      for (int s = 1; s < SLICES; s++) {
        total += parts[s][lane][i];
      }
      if (at + i < sum.columns) {
        sum.lines[(bl_count)blockIdx.y * sum.columns + at + i] = total;
      }
    }
  }
}

// Each slice adds its lines in order, then the slices are added in order.
__global__ void __launch_bounds__(LANES *SLICES) add_lines(const __grid_constant__ bl__lines_table_t table) {
  __shared__ float parts[SLICES][LANES];
  const bl__lines_t &sum = table.entries[bl_entry_of(table)];
  const int lane = (int)threadIdx.x % LANES, slice = (int)threadIdx.x / LANES;
  const bl_count column = (bl_count)(blockIdx.x - sum.first_block) * LANES + lane;
  float total = 0.0f;
  if (column < sum.columns) {
#pragma unroll 8
    for (bl_count line = slice; line < sum.lines; line += SLICES) {
      total += sum.from[line * sum.columns + column];
    }
  }
  parts[slice][lane] = total;
  __syncthreads();
  if (slice == 0 && column < sum.columns) {
    const unsigned slices = sum.lines < SLICES ? (unsigned)sum.lines : SLICES;
    for (unsigned s = 1; s < slices; s++) {
      total += parts[s][lane];
    }
    sum.sums[column] = sum.accumulate ? sum.sums[column] + total : total;
  }
}

int bl_add_lines(bl__stream_t stream, unsigned count, const bl__lines_t *sums) {
  bl__lines_table_t table = {};
  unsigned blocks = 0;
  for (unsigned i = 0; i < count; i++) {
    if (sums[i].columns == 0) {
      continue;
    }
    bl__lines_t &sum = table.entries[table.count++];
    sum = sums[i];
    sum.first_block = blocks;
    blocks += (unsigned)bl_over(sum.columns, LANES);
  }
  return table.count == 0 ? 0 : BL_LAUNCH((add_lines), blocks, LANES * SLICES, stream, table);
}

static bool is_line(const bl__column_sum_t &sum) {
  return sum.rows == 1 && !sum.bf16;
}

// Computes the lines of those `sums` that have element type E and are not a line already.
template <typename E>
static int make_lines(bl__stream_t stream, unsigned count, const bl__column_sum_t *sums, const bl__lines_t *lines) {
  bl__column_table_t table = {};
  unsigned blocks = 0, most = 0;
  for (unsigned i = 0; i < count; i++) {
    if (sums[i].bf16 != (sizeof(E) != sizeof(float)) || is_line(sums[i]) || lines[i].columns == 0) {
      continue;
    }
    bl__column_groups_t &groups = table.entries[table.count++];
    groups = {sums[i].x,
              (float *)lines[i].from,
              sums[i].rows,
              sums[i].columns,
              blocks,
              (unsigned)lines[i].lines,
              sums[i].columns % bl_pack<E>::WIDTH == 0 && bl_is_wide(sums[i].x)};
    blocks += (unsigned)bl_over(sums[i].columns, LANES * bl_pack<E>::WIDTH);
    most = groups.groups > most ? groups.groups : most;
  }
  return table.count == 0 ? 0 : BL_LAUNCH((column_groups<E>), dim3(blocks, most), LANES * SLICES, stream, table);
}

int bl__launch_add_columns(bl__stream_t stream, unsigned count, const bl__column_sum_t *sums, float *scratch) {
  bl_count columns = 0;
  for (unsigned i = 0; i < count; i++) {
    columns += is_line(sums[i]) ? 0 : sums[i].columns;
  }
  if (columns > BL__SCRATCH_BYTES / sizeof(float)) {
    return BL_TOO_LARGE;
  }
  // Each sum gets as many lines as scratch has space for. The number depends on the shapes alone.
  const bl_count space = columns > 0 ? bl_least(BL__SCRATCH_BYTES / (columns * sizeof(float)), GROUPS_MAX) : 0;
  bl__lines_t lines[BL__SUMS_MAX] = {};
  for (unsigned i = 0; i < count; i++) {
    const bl__column_sum_t &sum = sums[i];
    lines[i] = {(const float *)sum.x, sum.sums, 1, sum.rows > 0 ? sum.columns : 0, 0, true};
    if (!is_line(sum)) {
      lines[i].from = scratch;
      lines[i].lines = bl_least(bl_over(sum.rows, SLICES), space);
      scratch += lines[i].lines * sum.columns;
    }
  }
  int result = make_lines<bl_bf16>(stream, count, sums, lines);
  result = result == 0 ? make_lines<float>(stream, count, sums, lines) : result;
  return result == 0 ? bl_add_lines(stream, count, lines) : result;
}
