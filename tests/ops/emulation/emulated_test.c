// SPDX-License-Identifier: Apache-2.0
// Verifies the CUDA back end without a GPU: its plans and layouts, and its kernels thread by thread, against the fp64
// reference; the same bits whichever order threads and blocks take, which sums in a fixed order have; refusals.
#include "compute/ops/cuda/compute.h"
#include "instrumented.h"
#include "ops/cases/op_case.h"
#include "ops/emulation/emulation.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static op_host_t open_emulated(void) {
  op_host_t host = {.ops = bl__ops_cuda()};
  bl_error_t err = {0};
  if (host.ops->create(&(bl_compute_options_t){.threads = 1}, &host.compute, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  host.ops->attach(host.compute);
  return host;
}

static void close_emulated(op_host_t *host) {
  host->ops->destroy(host->compute);
}

// The thread sanitizer does not follow fibers.
static void skip_under_tsan(void) {
#if defined(__SANITIZE_THREAD__)
  printf("skipped: the thread sanitizer does not follow fibers\n");
  skip();
#endif
}

// A kind that runs as another does, every second time from the last thread and block to the first.
static const op_kind_t *original;
static unsigned runs;

static void run_turned(const op_host_t *host, const op_case_t *c, float **t) {
  bl_emulated_reverse = runs++ % 2;
  original->host(host, c, t);
  bl_emulated_reverse = false;
}

// Each case runs twice: at two addresses and in two orders, and gives the same bits.
static void compare_some(const op_case_t *cases, size_t count, size_t step) {
  op_host_t host = open_emulated();
  size_t failed = 0, compared = 0;
  for (size_t i = 0; i < count; i += step, compared++) {
    original = cases[i].kind;
    op_kind_t kind = *original;
    kind.host = run_turned;
    op_case_t turned = cases[i];
    turned.kind = &kind;
    runs = 0;
    failed += op_case_compare(&host, 1, &turned);
  }
  printf("%zu of %zu cases agree, %llu launches\n", compared - failed, compared, (unsigned long long)bl_emulated_count);
  close_emulated(&host);
  assert_int_equal(failed, 0);
}

static void compare_all(const op_case_t *cases, size_t count) {
  compare_some(cases, count, FEW_OR_ALL(24, 1)); // a fiber's change of place is costly there
}

static void all_cases_agree(void **state) {
  (void)state;
  skip_under_tsan();
  compare_all(op_cases, op_cases_count);
}

static void wide_cases_agree(void **state) {
  (void)state;
  skip_under_tsan();
  compare_all(op_wide_cases, op_wide_cases_count);
}

// However much shared memory there is for rows: none, less than half of them (gradients in bf16 then land on logits that are
// read again), more.
static void rows_of_logits_need_no_shared_memory(void **state) {
  (void)state;
  skip_under_tsan();
  static const op_case_t cases[] = {{&op_cross_entropy, {2, 33000}, 0},
                                    {&op_cross_entropy, {2, 50257, 50272}, OP_BF16},
                                    {&op_cross_entropy, {2, 50257, 50272}, OP_SOFTCAP | OP_BF16},
                                    {&op_cross_entropy, {2, 33001}, OP_BF16}};
  static const unsigned strips[] = {0, 2, 4, 10, 14};
  const unsigned before = bl_emulated_shared_bytes;
  for (size_t i = 0; i < sizeof strips / sizeof strips[0]; i += FEW_OR_ALL(2, 1)) {
    bl_emulated_shared_bytes = 2 * (strips[i] * 8192 + 256);
    compare_some(cases, sizeof cases / sizeof cases[0], 1);
  }
  bl_emulated_shared_bytes = before;
}

// Rows of scores that are longer than a block's registers hold are read in strips.
static void rows_of_scores_come_in_strips(void **state) {
  (void)state;
  skip_under_tsan();
  static const op_case_t cases[] = {{&op_attention, {1, 600, 1, 1, 4}, 0},
                                    {&op_attention, {1, 600, 1, 1, 8}, OP_FLASH | OP_BF16},
                                    {&op_attention, {1, 513, 1, 1, 4}, OP_SOFTCAP | OP_BF16},
                                    {&op_attention, {1, 600, 1, 1, 4, 70}, OP_BF16},
                                    {&op_attention, {1, 601, 1, 1, 4, 530}, OP_SOFTCAP | OP_FLASH},
                                    {&op_attention, {1, 1100, 1, 1, 4, 513}, 0},
                                    {&op_attention_slices, {1, 1040, 1, 1, 4, 2, 530}, OP_FLASH | OP_BF16}};
  const unsigned before = bl_emulated_threads;
  bl_emulated_threads = 32;
  compare_some(cases, sizeof cases / sizeof cases[0], FEW_OR_ALL(4, 1));
  bl_emulated_threads = before;
}

static unsigned rations[2]; // of shared memory, in turns

static void run_rationed(const op_host_t *host, const op_case_t *c, float **t) {
  bl_emulated_shared_bytes = rations[runs++ % 2];
  original->host(host, c, t);
}

// Nor do bits depend on how much it holds, of a row or of the next ones: an A100 has less of it than an H100.
static void shared_memory_does_not_change_bits(void **state) {
  (void)state;
  skip_under_tsan();
  op_host_t host = open_emulated();
  static const struct {
    op_case_t one;
    unsigned part_bytes; // for each of two blocks on a multiprocessor
    unsigned parts[4];
  } cases[] = {
      {{&op_cross_entropy, {2, 33000}, 0}, 8192, {0, 2, 4, 12}},
      {{&op_cross_entropy, {2, 33001}, OP_BF16}, 8192, {0, 2, 4, 12}},
      {{&op_cross_entropy, {11, 4097}, OP_BF16}, 8192, {0, 1, 2, 4}}, // several rows a block
      {{&op_cross_entropy, {11, 9002, 9004}, OP_BF16}, 8192, {0, 2, 4, 6}},
      {{&op_norm, {1300, 64}, OP_RESIDUAL | OP_IN_PLACE | OP_BF16}, 6144, {1, 2, 3, 5}},
      {{&op_norm, {1300, 64}, OP_RMS | OP_OVER_X | OP_BF16}, 6144, {1, 2, 3, 5}},
  };
  const unsigned before = bl_emulated_shared_bytes;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i += FEW_OR_ALL(2, 1)) {
    original = cases[i].one.kind;
    op_kind_t kind = *original;
    kind.host = run_rationed;
    op_case_t rationed = cases[i].one;
    rationed.kind = &kind;
    for (size_t part = 0; part < 4; part += FEW_OR_ALL(4, 1)) {
      runs = 0;
      rations[0] = before;
      rations[1] = 2 * (cases[i].parts[part] * cases[i].part_bytes + 256);
      assert_true(op_case_same_bits(&host, &host, &rationed));
    }
  }
  bl_emulated_shared_bytes = before;
  close_emulated(&host);
}

static void bad_shapes_are_refused(void **state) {
  (void)state;
  op_host_t host = open_emulated();
  bl_error_t err = {0};
  bl_linear_op_t *linear;
  bl_attention_op_t *attention;
  bl_rope_op_t *rope;
  const bl_linear_shape_t linears[] = {
      {.rows = 8, .in = 0, .out = 32, .uses = BL_LINEAR_FORWARD},
      {.rows = 8, .in = 16, .out = 32, .y_stride = 31, .uses = BL_LINEAR_FORWARD},
      {.rows = 8, .in = 16, .out = 32, .uses = BL_LINEAR_FORWARD, .residual = true, .float_y = true},
  };
  for (size_t i = 0; i < sizeof linears / sizeof linears[0]; i++) {
    assert_int_equal(host.ops->linear_plan(host.compute, &linears[i], &linear, &err), BL_INVALID);
  }
  const bl_attention_shape_t a = {.batch = 1, .seq = 4, .heads = 3, .kv_heads = 2, .head_dim = 8};
  assert_int_equal(host.ops->attention_plan(host.compute, &a, &attention, &err), BL_INVALID);
  const bl_rope_shape_t r = {.batch = 1, .seq = 4, .heads = 2, .kv_heads = 2, .head_dim = 7, .rope.theta = 10000};
  assert_int_equal(host.ops->rope_plan(host.compute, &r, &rope, &err), BL_INVALID);
  assert_int_equal(host.ops->status(host.compute, &err), BL_OK); // plans report their own failures
  const bl_norm_shape_t n = {.rows = 1, .width = BL__NORM_WIDTH_MAX + 1, .rms = true};
  host.ops->norm_forward(host.compute, &n, NULL, NULL, NULL, NULL, NULL);
  assert_int_equal(host.ops->status(host.compute, &err), BL_INTERNAL);
  assert_non_null(strstr(err.text, "norm forward"));
  close_emulated(&host);
  host = open_emulated();
  const bl_head_norm_shape_t h = {.rows = 1, .heads = 1, .kv_heads = 1, .head_dim = BL__HEAD_NORM_MAX + 1};
  host.ops->head_norm_forward(host.compute, &h, NULL, NULL, NULL, NULL);
  assert_int_equal(host.ops->status(host.compute, &err), BL_INTERNAL);
  assert_non_null(strstr(err.text, "head norm forward"));
  close_emulated(&host);
  static const uint32_t counts[] = {0, 1, 3, 65, 128};
  for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
    host = open_emulated();
    host.ops->sum_parts(host.compute, 1, 1, BL_COMPUTE_FP32, counts[i], NULL, NULL, NULL, NULL);
    assert_int_equal(host.ops->status(host.compute, &err), BL_INTERNAL);
    assert_non_null(strstr(err.text, "sum of parts"));
    close_emulated(&host);
  }
}

static void workspace_is_asked_for(void **state) {
  (void)state;
  op_host_t host = open_emulated();
  bl_error_t err = {0};
  bl_attention_op_t *op, *again;
  const bl_attention_shape_t shape = {.batch = 1, .seq = 4, .heads = 2, .kv_heads = 2, .head_dim = 8, .flash = true};
  assert_int_equal(host.ops->attention_plan(host.compute, &shape, &op, &err), BL_OK);
  assert_int_equal(host.ops->attention_plan(host.compute, &shape, &again, &err), BL_OK);
  assert_ptr_equal(op, again);
  assert_true(host.ops->workspace_bytes(host.compute) > 0);
  assert_true(host.ops->held_bytes(host.compute) >= BL__SCRATCH_BYTES);
  assert_non_null(strstr(host.ops->describe(host.compute), "by products")); // what flash became is not kept quiet
  float qkv[4 * 48] = {0}, att[4 * 16], saved[8];
  host.ops->attention_forward(op, qkv, att, saved); // none was given
  assert_int_equal(host.ops->status(host.compute, &err), BL_INTERNAL);
  assert_non_null(strstr(err.text, "attention forward"));
  close_emulated(&host);
}

// The caller's block is 64-byte aligned; what the libraries get is aligned as they ask, and no longer than the block.
static void workspace_may_begin_anywhere(void **state) {
  (void)state;
  skip_under_tsan();
  op_host_t host = open_emulated();
  bl_error_t err = {0};
  bl_linear_op_t *op;
  const bl_linear_shape_t shape = {
      .rows = 2, .in = 2, .out = 2, .uses = BL_LINEAR_FORWARD, .bias = true, .dtype = BL_COMPUTE_BF16};
  assert_int_equal(host.ops->linear_plan(host.compute, &shape, &op, &err), BL_OK);
  const size_t wanted = host.ops->workspace_bytes(host.compute);
  char *block = aligned_alloc(256, (wanted + 256 + 255) / 256 * 256);
  for (size_t at = 0; at <= 256; at += 64) {
    const uint16_t x[4] = {0x3f80, 0, 0, 0x3f80}; // 1, 0, 0, 1
    const float weights[4] = {2, 1, 1, 2}, bias[2] = {1.0f, 0.0f};
    _Alignas(64) uint8_t packed[128];
    uint16_t y[4] = {0};
    memset(block, 0x55, wanted + 256);
    host.ops->use_workspace(host.compute, block + at, wanted);
    assert_true(host.ops->linear_packed_bytes(op) <= sizeof packed);
    host.ops->linear_pack(op, weights, bias, packed);
    host.ops->linear_forward(op, x, NULL, packed, bias, NULL, y);
    assert_int_equal(host.ops->status(host.compute, &err), BL_OK);
    assert_int_equal(y[0], 0x4040); // 3
    assert_int_equal(y[3], 0x4000);
    for (size_t i = 0; i < wanted + 256; i++) {
      assert_true((i >= at && i < at + wanted) || block[i] == 0x55);
    }
  }
  free(block);
  close_emulated(&host);
}

// Wherever it would lie behind the row: the loss is that of no label, in either order of threads.
static void labels_that_are_none_have_one_loss(void **state) {
  (void)state;
  skip_under_tsan();
  op_host_t host = open_emulated();
  const int32_t labels[] = {70, 71, 100, 4095, 4096, 50000};
  for (int reverse = 0; reverse < 2; reverse++) {
    bl_emulated_reverse = reverse == 1;
    for (size_t i = 0; i < sizeof labels / sizeof labels[0]; i++) {
      float logits[70] = {0};
      double loss;
      host.ops->cross_entropy(host.compute, 1, 70, 70, BL_COMPUTE_FP32, &labels[i], 1.0f, 0.0f, logits, &loss);
      assert_true(fabs(loss - log(70)) < 1e-6);
    }
  }
  bl_emulated_reverse = false;
  close_emulated(&host);
}

// As they are before a run that diverges ends: still numbers.
static void logits_may_be_huge(void **state) {
  (void)state;
  skip_under_tsan();
  op_host_t host = open_emulated();
  const int32_t label = 3;
  for (float huge = 1e9f; huge < 2e38f; huge *= 7) {
    for (int sign = -1; sign <= 1; sign += 2) {
      float logits[70];
      double loss;
      for (size_t i = 0; i < 70; i++) {
        logits[i] = (float)sign * huge;
      }
      host.ops->cross_entropy(host.compute, 1, 70, 70, BL_COMPUTE_FP32, &label, 1.0f, 0.0f, logits, &loss);
      assert_true(fabs(loss - log(70)) <= 1e-7 * (double)huge); // beside a sum that large
      assert_true(fabsf(logits[0] - 1.0f / 70) < 1e-6f && fabsf(logits[label] - 1.0f / 70 + 1) < 1e-6f);
    }
  }
  close_emulated(&host);
}

static void losses_that_are_not_finite_are_found(void **state) {
  (void)state;
  skip_under_tsan();
  op_host_t host = open_emulated();
  const float bad[] = {NAN, INFINITY};
  for (size_t kind = 0; kind < 2; kind++) {
    for (size_t column = 0; column < 70; column += 23) {
      float logits[3 * 70];
      double losses[3], loss;
      const int32_t labels[3] = {5, 6, 7};
      int64_t row;
      for (size_t i = 0; i < 3 * 70; i++) {
        logits[i] = (float)(i % 7);
      }
      logits[2] = -INFINITY; // of probability 0: nothing bad
      logits[70 + column] = bad[kind];
      host.ops->cross_entropy(host.compute, 3, 70, 70, BL_COMPUTE_FP32, labels, 1.0f, 0.0f, logits, losses);
      host.ops->loss_sum(host.compute, 3, losses, &loss, &row);
      assert_int_equal(row, 1);
      assert_false(isfinite(loss));
      assert_true(isfinite(losses[0]) && isfinite(losses[2]));
    }
  }
  close_emulated(&host);
}

// The parts of a vocabulary find the same of huge logits, of those that are not finite and of labels that are none as the
// whole does, in whichever part they are.
static void parts_of_a_vocabulary_find_what_is_wrong(void **state) {
  (void)state;
  skip_under_tsan();
  op_host_t host = open_emulated();
  enum { VOCAB = 70, PARTS = 2, COLUMNS = VOCAB / PARTS };
  static const struct {
    float logit, of_one; // of all columns, and of one
    int32_t label;
    double loss;
  } rows[] = {{0, 0, 3, 4.2484952420493594},
              {0, 0, 69, 4.2484952420493594},
              {0, 0, 70, 4.2484952420493594},
              {0, 0, -1, 0},
              {1e38f, 1e38f, 3, 0},
              {-1e38f, -1e38f, 3, 0},
              {0, -INFINITY, 3, log(VOCAB - 1)},
              {0, NAN, 3, NAN},
              {0, INFINITY, 3, NAN}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    for (uint64_t column = 0; column < VOCAB; column += 23) {
      float logits[PARTS][COLUMNS], statistics[PARTS * BL_SOFTMAX_STATISTICS];
      double loss = 0;
      for (uint64_t k = 0; k < VOCAB; k++) {
        logits[k / COLUMNS][k % COLUMNS] = k == column ? rows[i].of_one : rows[i].logit;
      }
      for (uint64_t part = 0; part < PARTS; part++) {
        host.ops->softmax_statistics(host.compute, 1, COLUMNS, COLUMNS, part * COLUMNS, &rows[i].label, logits[part],
                                     statistics + part * BL_SOFTMAX_STATISTICS);
      }
      for (uint64_t part = 0; part < PARTS; part++) {
        host.ops->cross_entropy_part(host.compute, 1, COLUMNS, COLUMNS, part * COLUMNS, BL_COMPUTE_FP32, &rows[i].label,
                                     1.0f, 0.0f, PARTS, statistics, logits[part], part == 0 ? &loss : NULL);
      }
      const bool is_finite = isfinite(rows[i].loss);
      assert_int_equal(isfinite(loss) != 0, is_finite);
      assert_true(!is_finite || fabs(loss - rows[i].loss) <= 1e-6 + 1e-7 * fabs((double)rows[i].logit));
    }
  }
  close_emulated(&host);
}

// The tree is the host's: sums have its bits, in fp32 and in bf16.
static void sums_of_parts_are_those_of_the_host(void **state) {
  (void)state;
  skip_under_tsan();
  op_host_t emulated = open_emulated(), host = {.ops = bl_ops_host()};
  bl_error_t err = {0};
  assert_int_equal(host.ops->create(&(bl_compute_options_t){.threads = 1}, &host.compute, &err), BL_OK);
  for (size_t parts = 2; parts <= 64; parts *= 2) {
    const unsigned flags[] = {OP_BIAS | OP_RESIDUAL, OP_BIAS | OP_RESIDUAL | OP_BF16, OP_BF16};
    for (size_t i = 0; i < 3; i++) {
      const op_case_t even = {&op_sum_parts, {3, 264, parts}, flags[i]},
                      odd = {&op_sum_parts, {3, 35, parts}, flags[i]};
      assert_true(op_case_same_bits(&emulated, &host, &even));
      assert_true(op_case_same_bits(&emulated, &host, &odd));
    }
  }
  host.ops->destroy(host.compute);
  close_emulated(&emulated);
}

// Sums of more rows than a tile, in row order: the bits of a loop.
static void losses_are_summed_in_row_order(void **state) {
  (void)state;
  skip_under_tsan();
  op_host_t host = open_emulated();
  enum { ROWS = 2500 };
  double *losses = calloc(ROWS, sizeof *losses), want = 0, loss;
  int64_t row;
  for (size_t i = 0; i < ROWS; i++) {
    losses[i] = 1.0 / (double)(i + 3);
    want += losses[i];
  }
  host.ops->loss_sum(host.compute, ROWS, losses, &loss, &row);
  assert_true(loss == want);
  assert_int_equal(row, -1);
  losses[2100] = NAN;
  host.ops->loss_sum(host.compute, ROWS, losses, &loss, &row);
  assert_int_equal(row, 2100);
  free(losses);
  close_emulated(&host);
}

// Rows of one token are added one after the other, as the host does: the same bits.
static void embedding_gradients_come_in_token_order(void **state) {
  (void)state;
  skip_under_tsan();
  op_host_t host = open_emulated();
  enum { ROWS = 400, WIDTH = 8, VOCAB = 3 };
  static float dx[ROWS * WIDTH], dwte[VOCAB * WIDTH], want[VOCAB * WIDTH];
  int32_t tokens[ROWS];
  for (size_t i = 0; i < ROWS * WIDTH; i++) {
    dx[i] = (float)((i * 2654435761u) % 1000u) * 1e-3f - 0.5f;
  }
  for (size_t row = 0; row < ROWS; row++) {
    tokens[row] = row % 3 ? 1 : 2;
    for (size_t i = 0; i < WIDTH; i++) {
      want[(size_t)tokens[row] * WIDTH + i] += dx[row * WIDTH + i];
    }
  }
  host.ops->embedding_backward(host.compute, 1, ROWS, WIDTH, 1.0f, BL_COMPUTE_FP32, tokens, dx, dwte, NULL);
  assert_memory_equal(dwte, want, sizeof dwte);
  close_emulated(&host);
}

static void checksums_show_any_change(void **state) {
  (void)state;
  skip_under_tsan();
  op_host_t host = open_emulated();
  enum { BYTES = 64 * 333 };
  uint8_t *block = aligned_alloc(64, BYTES);
  uint64_t first, again;
  for (size_t i = 0; i < BYTES; i++) {
    block[i] = (uint8_t)(i * 31 + i / 256);
  }
  host.ops->checksum(host.compute, BYTES, block, &first);
  bl_emulated_reverse = true;
  host.ops->checksum(host.compute, BYTES, block, &again);
  bl_emulated_reverse = false;
  assert_true(first == again);
  for (size_t i = 0; i < BYTES; i += 997) {
    block[i] ^= 1;
    host.ops->checksum(host.compute, BYTES, block, &again);
    assert_true(first != again);
    block[i] ^= 1;
  }
  uint8_t swapped[16]; // the same words at other places
  memcpy(swapped, block, 16);
  memmove(block, block + 16, 16);
  memcpy(block + 16, swapped, 16);
  host.ops->checksum(host.compute, BYTES, block, &again);
  assert_true(first != again);
  free(block);
  close_emulated(&host);
}

static float spread(size_t i) {
  return (float)((i * 2654435761u) % 20011u) * 1e-3f - 10.0f;
}

// The update that also writes the copy of the weights for products leaves the bits of the update and the packing after
// it, in lines that are whole packs and in others, and touches nothing beside them.
static void update_and_packing_are_one(void **state) {
  (void)state;
  skip_under_tsan();
  op_host_t host = open_emulated();
  enum { MOST = 4099 };
  const bl_adamw_t options = {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.271f, 0.142625f, 0.7f};
  const size_t counts[] = {1, 3, 4, 1037, 4096, 4099}, shifts[] = {0, 1, 4}; // of the copy, in elements
  static _Alignas(64) float dw[MOST], w[2][MOST], m[2][MOST], v[2][MOST];
  static _Alignas(64) uint16_t packed[2][MOST + 8];
  for (size_t n = 0; n < 18; n++) {
    const size_t count = counts[n / 3], shift = shifts[n % 3];
    memset(packed, 0x55, sizeof packed);
    for (size_t way = 0; way < 2; way++) {
      for (size_t i = 0; i < MOST; i++) {
        dw[i] = spread(i), w[way][i] = spread(i + 77), m[way][i] = spread(i + 5), v[way][i] = fabsf(spread(i + 9));
      }
    }
    bl_linear_op_t *op;
    bl_error_t err = {0};
    const bl_linear_shape_t shape = {
        .rows = 1, .in = 1, .out = count, .uses = BL_LINEAR_FORWARD, .dtype = BL_COMPUTE_BF16};
    assert_int_equal(host.ops->linear_plan(host.compute, &shape, &op, &err), BL_OK);
    assert_int_equal(host.ops->linear_packed_bytes(op), 2 * count);
    const bl_adamw_tensor_t plain = {options, count, dw, w[0], m[0], v[0], NULL};
    const bl_adamw_tensor_t packs = {options, count, dw, w[1], m[1], v[1], packed[1] + shift};
    host.ops->adamw(host.compute, 1, &plain);
    host.ops->linear_pack(op, w[0], NULL, packed[0] + shift);
    host.ops->adamw(host.compute, 1, &packs);
    assert_memory_equal(w[0], w[1], sizeof w[0]);
    assert_memory_equal(m[0], m[1], sizeof m[0]);
    assert_memory_equal(v[0], v[1], sizeof v[0]);
    assert_memory_equal(packed[0], packed[1], sizeof packed[0]);
  }
  close_emulated(&host);
}

static void drawing_reads_the_row(void **state) {
  (void)state;
  op_host_t host = open_emulated();
  float logits[4] = {0.0f, logf(4.0f), 0.0f, logf(2.0f)}; // 1/8, 1/2, 1/8, 1/4
  assert_int_equal(host.ops->draw(host.compute, 4, logits, 1.0f, 0.126), 1);
  assert_int_equal(host.ops->draw(host.compute, 4, logits, 1.0f, 0.751), 3);
  logits[2] = NAN;
  assert_int_equal(host.ops->draw(host.compute, 4, logits, 1.0f, 0.5), -1);
  close_emulated(&host);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(all_cases_agree),
      cmocka_unit_test(wide_cases_agree),
      cmocka_unit_test(rows_of_logits_need_no_shared_memory),
      cmocka_unit_test(rows_of_scores_come_in_strips),
      cmocka_unit_test(shared_memory_does_not_change_bits),
      cmocka_unit_test(bad_shapes_are_refused),
      cmocka_unit_test(workspace_is_asked_for),
      cmocka_unit_test(workspace_may_begin_anywhere),
      cmocka_unit_test(labels_that_are_none_have_one_loss),
      cmocka_unit_test(logits_may_be_huge),
      cmocka_unit_test(losses_that_are_not_finite_are_found),
      cmocka_unit_test(parts_of_a_vocabulary_find_what_is_wrong),
      cmocka_unit_test(sums_of_parts_are_those_of_the_host),
      cmocka_unit_test(losses_are_summed_in_row_order),
      cmocka_unit_test(embedding_gradients_come_in_token_order),
      cmocka_unit_test(checksums_show_any_change),
      cmocka_unit_test(update_and_packing_are_one),
      cmocka_unit_test(drawing_reads_the_row),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
