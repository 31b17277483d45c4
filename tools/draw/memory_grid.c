// SPDX-License-Identifier: Apache-2.0
#include "draw/memory_grid.h"

#include "base/bytes.h"
#include "draw/canvas.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>

#define LEFT        150.0
#define RIGHT       24.0
#define TOP         92.0
#define BOTTOM      40.0
#define CELL_WIDTH  96.0
#define CELL_HEIGHT 130.0
#define LOW_HEIGHT  70.0 // with many rows
#define MANY_ROWS   8
#define BAR_WIDTH   46.0
#define HEADROOM    20.0 // above the highest bar, for its number
#define WIDEST      16000.0
#define LEAST_WIDTH 640.0

#define INK   BL_COLOR(0x22272e)
#define SOFT  BL_COLOR(0x6b7480)
#define LINE  BL_COLOR(0xe3e7ec)
#define EMPTY BL_COLOR(0xf6f7f9)
#define HATCH BL_COLOR(0xc9d0d8)

static const unsigned colors[] = {0x4c7fb8, 0xe9885a, 0x79bf8b, 0x8f7ac4, 0x3f8f9b,
                                  0xb5496b, 0xd9b44a, 0x7d8794, 0xb9a5e0, 0xf3d3a2};

typedef struct page {
  const bl_memory_grid_t *grid;
  bl_canvas_t *canvas;
  double width, cell_height, pixels_per_byte;
} page_t;

static bl_color_t color_of(size_t part) {
  return BL_COLOR(colors[part % (sizeof colors / sizeof colors[0])]);
}

static const double *bytes_of(const bl_memory_grid_t *grid, uint32_t rank) {
  return grid->bytes + (size_t)rank * grid->use_count;
}

static double total_of(const bl_memory_grid_t *grid, uint32_t rank) {
  double sum = 0;
  for (size_t i = 0; i < grid->use_count; i++) {
    sum += fmax(bytes_of(grid, rank)[i], 0);
  }
  return sum;
}

static bool is_known(const bl_memory_grid_t *grid, uint32_t rank) {
  return grid->use_count > 0 && bytes_of(grid, rank)[0] >= 0;
}

// Draws only the uses that some rank has, in at most two lines.
static void draw_legend(const page_t *page) {
  const bl_memory_grid_t *grid = page->grid;
  double x = LEFT, y = 52;
  for (size_t i = 0; i < grid->use_count; i++) {
    bool any = false;
    for (uint32_t rank = 0; rank < grid->stages * grid->tensor * grid->data; rank++) {
      any = any || bytes_of(grid, rank)[i] > 0;
    }
    if (any) {
      const double width = 34 + bl_canvas_text_width(page->canvas, grid->uses[i], 12, false);
      if (x + width > page->width) {
        x = LEFT;
        y += 19;
      }
      bl_canvas_fill_rect(page->canvas, x, y, 12, 12, color_of(i));
      bl_canvas_text(page->canvas, x + 17, y + 10.5, grid->uses[i], 12, false, BL_ALIGN_LEFT, INK);
      x += width;
    }
  }
}

static void draw_rank(const page_t *page, uint32_t rank, double x, double base) {
  const bl_memory_grid_t *grid = page->grid;
  const double left = x + (CELL_WIDTH - BAR_WIDTH) / 2;
  if (!is_known(grid, rank)) {
    const double height = page->cell_height - HEADROOM;
    bl_canvas_fill_rect(page->canvas, left, base - height, BAR_WIDTH, height, EMPTY);
    bl_canvas_hatch_rect(page->canvas, left, base - height, BAR_WIDTH, height, HATCH);
    return;
  }
  double y = base;
  for (size_t i = 0; i < grid->use_count; i++) {
    const double height = bytes_of(grid, rank)[i] * page->pixels_per_byte;
    y -= height;
    bl_canvas_fill_rect(page->canvas, left, y, BAR_WIDTH, height, color_of(i));
  }
  char text[BL_BYTES_TEXT];
  bl_canvas_text(page->canvas, x + CELL_WIDTH / 2, y - 4, bl_bytes_format((uint64_t)total_of(grid, rank), text), 10.5,
                 false, BL_ALIGN_CENTER, INK);
}

static void draw_row_name(const page_t *page, uint32_t tensor, uint32_t data, double middle) {
  const bl_memory_grid_t *grid = page->grid;
  char text[32];
  if (grid->rows != NULL) {
    bl_canvas_text(page->canvas, LEFT - 16, middle, grid->rows[data], 12, true, BL_ALIGN_RIGHT, INK);
    return;
  }
  if (grid->data > 1) {
    snprintf(text, sizeof text, "replica %u", data);
    bl_canvas_text(page->canvas, LEFT - 16, middle, text, 12, true, BL_ALIGN_RIGHT, INK);
  }
  if (grid->tensor > 1) {
    snprintf(text, sizeof text, "tensor rank %u", tensor);
    bl_canvas_text(page->canvas, LEFT - 16, middle + (grid->data > 1 ? 16 : 0), text, 12, grid->data == 1,
                   BL_ALIGN_RIGHT, grid->data > 1 ? SOFT : INK);
  }
}

static void draw(const page_t *page) {
  const bl_memory_grid_t *grid = page->grid;
  const uint32_t rows = grid->tensor * grid->data;
  bl_canvas_text(page->canvas, LEFT, 32, grid->title, 17, true, BL_ALIGN_LEFT, INK);
  if (grid->subtitle != NULL) {
    bl_canvas_text(page->canvas, LEFT + 16 + bl_canvas_text_width(page->canvas, grid->title, 17, true), 32,
                   grid->subtitle, 12.5, false, BL_ALIGN_LEFT, SOFT);
  }
  draw_legend(page);
  for (uint32_t row = 0; row < rows; row++) {
    const uint32_t tensor = row % grid->tensor, data = row / grid->tensor;
    const double base = TOP + (row + 1) * page->cell_height;
    bl_canvas_line(page->canvas, LEFT, base, LEFT + grid->stages * CELL_WIDTH, base, 1, false, LINE);
    draw_row_name(page, tensor, data, base - page->cell_height / 2);
    for (uint32_t stage = 0; stage < grid->stages; stage++) {
      draw_rank(page, (data * grid->stages + stage) * grid->tensor + tensor, LEFT + stage * CELL_WIDTH, base);
    }
  }
  for (uint32_t stage = 0; stage < grid->stages; stage++) {
    char text[24];
    snprintf(text, sizeof text, "%s %u", grid->rows != NULL ? "device" : "stage", stage);
    bl_canvas_text(page->canvas, LEFT + (stage + 0.5) * CELL_WIDTH, TOP + rows * page->cell_height + 20, text, 12, true,
                   BL_ALIGN_CENTER, INK);
  }
}

bl_status_t bl_memory_grid_draw(const bl_memory_grid_t *grid, const char *path, bl_error_t *err) {
  const uint32_t rows = grid->tensor * grid->data;
  page_t page = {.grid = grid, .cell_height = rows > MANY_ROWS ? LOW_HEIGHT : CELL_HEIGHT};
  page.width = fmax(LEFT + grid->stages * CELL_WIDTH + RIGHT, LEAST_WIDTH);
  const double height = TOP + rows * page.cell_height + BOTTOM;
  double most = 0;
  if (page.width > WIDEST || height > WIDEST) {
    return bl_error_set(err, BL_EXHAUSTED, "%u stages of %u x %u ranks are more than a picture holds", grid->stages,
                        grid->tensor, grid->data);
  }
  for (uint32_t rank = 0; rank < rows * grid->stages; rank++) {
    most = fmax(most, total_of(grid, rank));
  }
  page.pixels_per_byte = most > 0 ? (page.cell_height - HEADROOM) / most : 0;
  bl_status_t status = bl_canvas_open(path, page.width, height, &page.canvas, err);
  if (status != BL_OK) {
    return status;
  }
  draw(&page);
  return bl_canvas_close(page.canvas, err);
}
