// SPDX-License-Identifier: Apache-2.0
// Keys and values of a sequence in slices: copies from pages of the KV cache into the block that products read, and
// gradients from such a block into pages of sums and the slice's own rows. A thread takes one pack of ROWS consecutive
// rows; blockIdx.y counts pages, blockIdx.z sequences. A copy moves 2 elements per element. A gradient is read once and
// written as a float, or added to it.
#include "compute/ops/cuda/kernels.h"
#include "compute/ops/cuda/kernels/device.h"

#define THREADS 128
#define ROWS    4

// What a thread takes: columns [at, at + WIDTH) of the keys or of the values of rows [row, row + ROWS) of a page.
struct place {
  bl_count row, at;
  bool values;
};

template <typename E> static BL_DEVICE place place_of_thread(const bl__pages_t &shape) {
  // 32 bits, because a 64-bit division takes longer than moving a pack.
  const uint32_t packs = ((uint32_t)shape.width + bl_pack<E>::WIDTH - 1) / bl_pack<E>::WIDTH;
  const uint32_t index = blockIdx.x * THREADS + threadIdx.x, pack = index % (2 * packs);
  return {(bl_count)(index / (2 * packs)) * ROWS, (bl_count)(pack % packs) * bl_pack<E>::WIDTH, pack >= packs};
}

// Returns where the keys or values of a row begin in this sequence's rows.
static BL_DEVICE bl_count line_of(const bl__key_rows_t &rows, const place &p, bl_count row) {
  return blockIdx.z * rows.sequence + row * rows.row + (p.values ? rows.values : 0);
}

template <typename E, bool Wide>
__global__ void __launch_bounds__(THREADS)
    copy_pages(const bl__pages_t shape, const __grid_constant__ bl__page_table_t table, E *__restrict__ block) {
  const place p = place_of_thread<E>(shape);
  const E *page = (const E *)table.pages[blockIdx.y];
  const bl_count first = blockIdx.y * shape.rows; // row of the block
  bl_pack<E> kept[ROWS];
#pragma unroll
  for (bl_count r = 0; r < ROWS; r++) {
    if (p.row + r < shape.rows) {
      kept[r] = bl_load<E, Wide>(page + line_of(shape.page, p, p.row + r), p.at, shape.width);
    }
  }
#pragma unroll
  for (bl_count r = 0; r < ROWS; r++) {
    if (p.row + r < shape.rows) {
      bl_store<E, Wide>(block + line_of(shape.block, p, first + p.row + r), p.at, shape.width, kept[r]);
    }
  }
}

// The last page is the slice's own: its rows get the gradients of `block`, and with `adds` the sums of its page. The
// other pages get the gradients of `block`, or with `adds` are added to.
template <typename From, typename E, bool Wide>
__global__ void __launch_bounds__(THREADS)
    put_gradients(const bl__pages_t shape, const __grid_constant__ bl__page_table_t table,
                  const From *__restrict__ block, bool adds, const bl__key_rows_t own_rows, E *__restrict__ own) {
  const place p = place_of_thread<E>(shape);
  float *page = (float *)table.pages[blockIdx.y];
  const bl_count first = blockIdx.y * shape.rows;
  const bool is_own = blockIdx.y + 1 == table.count;
#pragma unroll
  for (bl_count r = 0; r < ROWS; r++) {
    if (p.row + r < shape.rows) {
      const From *line = block + line_of(shape.block, p, first + p.row + r);
      const bl_count at_page = line_of(shape.page, p, p.row + r);
      float values[bl_pack<E>::WIDTH], sums[bl_pack<E>::WIDTH] = {};
      if constexpr (sizeof(From) == sizeof(float)) {
        bl_load_floats<E, Wide>(line, p.at, shape.width, values);
      } else {
        bl_unpack<E>(bl_load<E, Wide>(line, p.at, shape.width), values);
      }
      if (adds) {
        bl_load_floats<E, Wide>(page + at_page, p.at, shape.width, sums);
      }
#pragma unroll
      for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
        values[i] += sums[i];
      }
      if (is_own) {
        bl_store<E, Wide>(own + line_of(own_rows, p, p.row + r), p.at, shape.width, bl_repack<E>(values));
      } else {
        bl_store_floats<E, Wide>(page + at_page, p.at, shape.width, values);
      }
    }
  }
}

static bool is_wide(const bl__key_rows_t *rows, bl_count width) {
  return rows->sequence % width == 0 && rows->row % width == 0 && rows->values % width == 0;
}

// Fills the table. Returns whether all accesses can be whole packs.
static bool fill_table(bool bf16, const bl__pages_t *shape, unsigned count, const void *const *pages,
                       bl__page_table_t *table) {
  const bl_count width = bf16 ? bl_pack<bl_bf16>::WIDTH : bl_pack<float>::WIDTH;
  bool wide = shape->width % width == 0 && is_wide(&shape->page, width) && is_wide(&shape->block, width);
  for (table->count = 0; table->count < count; table->count++) {
    table->pages[table->count] = (void *)(uintptr_t)pages[table->count];
    wide = wide && bl_is_wide(pages[table->count]);
  }
  return wide;
}

// Returns an empty grid for pages that are more than a launch takes.
static dim3 grid_of(bool bf16, const bl__pages_t *shape, unsigned count) {
  const bl_count packs = bl_over(shape->width, bf16 ? bl_pack<bl_bf16>::WIDTH : bl_pack<float>::WIDTH);
  const bl_count threads = 2 * packs * bl_over(shape->rows, ROWS);
  const bool fits = count <= BL__PAGES_MAX && shape->sequences <= 65535 && threads + THREADS <= UINT32_MAX;
  return dim3(fits ? (unsigned)bl_over(threads, THREADS) : 0, count, (unsigned)shape->sequences);
}

int bl__launch_copy_pages(bl__stream_t stream, bool bf16, const bl__pages_t *shape, unsigned count,
                          const void *const *pages, void *block) {
  const dim3 grid = grid_of(bf16, shape, count);
  if (grid.x == 0) {
    return BL_TOO_LARGE;
  }
  bl__page_table_t table;
  const bool wide = fill_table(bf16, shape, count, pages, &table) && bl_is_wide(block);
  return BL_TYPED(bf16, wide, BL_LAUNCH((copy_pages<E, W>), grid, THREADS, stream, *shape, table, (E *)block));
}

int bl__launch_put_gradients(bl__stream_t stream, bool bf16, bool floats, const bl__pages_t *shape, unsigned count,
                             float *const *pages, const void *block, bool adds, const bl__key_rows_t *own_rows,
                             void *own) {
  const dim3 grid = grid_of(bf16, shape, count);
  if (grid.x == 0) {
    return BL_TOO_LARGE;
  }
  bl__page_table_t table;
  const bool wide = fill_table(bf16, shape, count, (const void *const *)pages, &table) && bl_is_wide(block) &&
                    bl_is_wide(own) && is_wide(own_rows, bf16 ? bl_pack<bl_bf16>::WIDTH : bl_pack<float>::WIDTH);
  if (floats) {
    return BL_TYPED(bf16, wide,
                    BL_LAUNCH((put_gradients<float, E, W>), grid, THREADS, stream, *shape, table, (const float *)block,
                              adds, *own_rows, (E *)own));
  }
  return BL_TYPED(bf16, wide,
                  BL_LAUNCH((put_gradients<E, E, W>), grid, THREADS, stream, *shape, table, (const E *)block, adds,
                            *own_rows, (E *)own));
}
