// SPDX-License-Identifier: Apache-2.0
#include "ops/cases/op_case.h"

#include "base/random.h"
#include "stop.h"
#include "sys/clock.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD         64         // floats before and after each tensor
#define POISON        0x7fc0dead // a NaN of our own
#define DIFFERENCE    1e-5       // step of finite differences
#define SAMPLES       12         // elements differentiated per tensor
#define ERROR_FP32    1e-6       // normalised mean square errors that a back end may have
#define ERROR_BF16    1e-3
#define VECTOR_FLOATS 4 // what lies on a device is at least so much aligned

// What a case starts from, and what the reference makes of it.
typedef struct expected {
  const op_case_t *c;
  char name[128];
  op_tensor_t tensors[OP_TENSORS];
  float *given[OP_TENSORS]; // indices in the place of floats; outputs poisoned
  double *reference[OP_TENSORS];
} expected_t;

// The tensors of one run.
typedef struct buffers {
  float *block[OP_TENSORS]; // with guards
  float *t[OP_TENSORS];
} buffers_t;

#define BLOCKS 96 // of one case on a device: its tensors, and one for each part of a layer

static bl_arena_t workspace;      // the last back end's
static bl_arena_t blocks[BLOCKS]; // of the case under way
static size_t block_count;

static bl_device_t *device_of(const op_host_t *host) {
  return host->device == NULL ? bl_device_host() : host->device;
}

static void check(bl_status_t status, const bl_error_t *err) {
  if (status != BL_OK) {
    STOP("device: %s", err->text);
  }
}

static void finish(const op_host_t *host) {
  bl_error_t err = {0};
  bl_device_event_t *event = NULL;
  check(bl_device_event_create(device_of(host), false, &event, &err), &err);
  if (bl_ops_finish(host->ops, host->compute, device_of(host), event, UINT64_MAX, &err) != BL_OK) {
    printf("%s\n", err.text); // the outputs, or the status that is asked for next, fail the comparison
  }
  bl_device_event_destroy(device_of(host), event);
}

void *op_block(const op_host_t *host, bl_arena_kind_t kind, size_t bytes) {
  bl_error_t err = {0};
  MUST(block_count < BLOCKS);
  check(bl_arena_create(device_of(host), NULL, BL_MEMORY_DATA, kind, bytes, &blocks[block_count], &err), &err);
  return blocks[block_count++].base;
}

static bool has_label(size_t row) {
  return row % 3 != 2;
}

const int32_t *op_labels(const op_host_t *host, const float *indices, size_t rows) {
  int32_t *labels = op_block(host, BL_ARENA_STAGING, rows * sizeof *labels);
  for (size_t row = 0; row < rows; row++) {
    labels[row] = has_label(row) ? ((const int32_t *)(const void *)indices)[row] : -1;
  }
  return labels;
}

int64_t op_label(const double *indices, size_t row) {
  return has_label(row) ? (int64_t)indices[row] : -1;
}

static void drop_blocks(void) {
  while (block_count > 0) {
    bl_arena_destroy(&blocks[--block_count]);
  }
}

void op_move(const op_host_t *host, void *to, const void *from, size_t bytes) {
  bl_error_t err = {0};
  finish(host);
  check(bl_device_copy(device_of(host), NULL, to, from, bytes, &err), &err);
}

void op_release(const op_host_t *host) {
  (void)host;
  drop_blocks();
  if (workspace.bytes > 0) {
    bl_arena_destroy(&workspace);
  }
}

void op_host_workspace(const op_host_t *host) {
  const size_t wanted = host->ops->workspace_bytes(host->compute);
  bl_error_t err = {0};
  if (wanted > workspace.bytes || workspace.device != device_of(host)) {
    if (workspace.bytes > 0) {
      bl_arena_destroy(&workspace);
    }
    check(bl_arena_create(device_of(host), NULL, BL_MEMORY_WORKSPACE, BL_ARENA_PRIVATE, wanted, &workspace, &err),
          &err);
  }
  // Poisoned each time: an operation that reads workspace it has not written shows.
  finish(host);
  check(bl_device_fill(device_of(host), NULL, workspace.base, 0xff, wanted, &err), &err);
  host->ops->use_workspace(host->compute, workspace.base, wanted);
}

void op_case_name(const op_case_t *c, char *text, size_t bytes) {
  int used = snprintf(text, bytes, "%s", c->kind->name);
  for (int i = 0; i < OP_DIMS && c->dims[i]; i++) {
    used += snprintf(text + used, bytes - (size_t)used, "%c%zu", i ? 'x' : ' ', c->dims[i]);
  }
  snprintf(text + used, bytes - (size_t)used, " flags %x", c->flags);
}

// Element i of what inputs in that place are made of. All cases share these: each is drawn once.
static float drawn(size_t tensor_index, size_t i) {
  static struct {
    float *values;
    size_t count;
  } places[OP_TENSORS];
  if (i >= places[tensor_index].count) {
    const size_t before = places[tensor_index].count, count = 2 * i + 1024;
    float *values = realloc(places[tensor_index].values, count * sizeof *values);
    MUST(values != NULL);
    for (size_t k = before; k < count; k++) {
      values[k] = (float)bl_random_normal(17 + tensor_index, k);
    }
    places[tensor_index].values = values;
    places[tensor_index].count = count;
  }
  return places[tensor_index].values[i];
}

static float input_value(const op_case_t *c, const op_tensor_t *tensor, size_t tensor_index, size_t i) {
  float value = drawn(tensor_index, i);
  value = c->flags & OP_LARGE ? 30 * value : value;
  value = tensor->positive ? fabsf(value) : value;
  return c->flags & OP_BF16 && tensor->typed ? op_from_bf16(op_to_bf16(value)) : value;
}

uint16_t op_to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float op_from_bf16(uint16_t element) {
  const uint32_t bits = (uint32_t)element << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static float poison(void) {
  const uint32_t bits = POISON;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static void expect(expected_t *e, const op_case_t *c) {
  *e = (expected_t){.c = c};
  op_case_name(c, e->name, sizeof e->name);
  c->kind->tensors(c, e->tensors);
  for (size_t n = 0; n < OP_TENSORS; n++) {
    const op_tensor_t *tensor = &e->tensors[n];
    if (tensor->count == 0) {
      continue;
    }
    e->given[n] = calloc(tensor->count, sizeof(float));
    e->reference[n] = calloc(tensor->count, sizeof(double));
    for (size_t i = 0; i < tensor->count; i++) {
      if (tensor->role == OP_INDEX) {
        const int32_t index = (int32_t)bl_random_below(17 + n, i, tensor->bound);
        memcpy(&e->given[n][i], &index, sizeof index);
        e->reference[n][i] = index;
      } else {
        e->given[n][i] = tensor->role == OP_OUTPUT ? poison() : input_value(c, tensor, n, i);
        e->reference[n][i] = tensor->role == OP_OUTPUT ? NAN : e->given[n][i];
      }
    }
  }
}

static void clear_expected(expected_t *e) {
  for (size_t n = 0; n < OP_TENSORS; n++) {
    free(e->given[n]);
    free(e->reference[n]);
  }
}

// `shift` floats off 64-byte alignment.
static void fill(buffers_t *b, const expected_t *e, size_t shift) {
  *b = (buffers_t){0};
  for (size_t n = 0; n < OP_TENSORS; n++) {
    const size_t count = e->tensors[n].count, total = count + 2 * GUARD + 16;
    if (count == 0) {
      continue;
    }
    b->block[n] = aligned_alloc(64, (total * sizeof(float) + 63) / 64 * 64);
    b->t[n] = b->block[n] + GUARD + shift;
    for (size_t i = 0; i < total; i++) {
      b->block[n][i] = poison();
    }
    memcpy(b->t[n], e->given[n], count * sizeof(float));
  }
}

// Typed tensors of a case of bf16: floats become elements at the start of the same bytes, poison behind them.
static void narrow_all(buffers_t *b, const expected_t *e) {
  for (size_t n = 0; e->c->flags & OP_BF16 && n < OP_TENSORS; n++) {
    const size_t count = e->tensors[n].count;
    if (!e->tensors[n].typed || count == 0) {
      continue;
    }
    uint16_t *elements = (uint16_t *)(void *)b->t[n];
    for (size_t i = 0; i < count; i++) {
      const float value = b->t[n][i];
      elements[i] = isnan(value) ? (uint16_t)(POISON >> 16) : op_to_bf16(value);
    }
    const float filling = poison();
    for (size_t i = (count + 1) / 2; i < count; i++) {
      b->t[n][i] = filling;
    }
  }
}

// And back; false when something was written behind the elements.
static bool widen_all(buffers_t *b, const expected_t *e) {
  for (size_t n = 0; e->c->flags & OP_BF16 && n < OP_TENSORS; n++) {
    const size_t count = e->tensors[n].count;
    if (!e->tensors[n].typed || count == 0) {
      continue;
    }
    for (size_t i = (count + 1) / 2; i < count; i++) {
      if (bits_of(b->t[n][i]) != POISON) {
        printf("%s: wrote behind the elements of %s\n", e->name, e->tensors[n].name);
        return false;
      }
    }
    const uint16_t *elements = (const uint16_t *)(const void *)b->t[n];
    for (size_t i = count; i-- > 0;) {
      const uint16_t element = elements[i];
      b->t[n][i] = element == (uint16_t)(POISON >> 16) ? poison() : op_from_bf16(element);
    }
  }
  return true;
}

static void clear(buffers_t *b) {
  for (size_t n = 0; n < OP_TENSORS; n++) {
    free(b->block[n]);
  }
}

static bool guards_intact(const buffers_t *b, const expected_t *e, size_t n, size_t shift) {
  const size_t count = e->tensors[n].count, total = count + 2 * GUARD + 16;
  for (size_t i = 0; i < total; i++) {
    const bool inside = i >= GUARD + shift && i < GUARD + shift + count;
    if (!inside && bits_of(b->block[n][i]) != POISON) {
      return false;
    }
  }
  return true;
}

static bool tensor_matches(const expected_t *e, const buffers_t *b, size_t n) {
  const op_tensor_t *tensor = &e->tensors[n];
  const op_kind_t *kind = e->c->kind;
  double squares = 0;
  size_t written = 0;
  for (size_t i = 0; i < tensor->count; i++) {
    if (!isnan(e->reference[n][i])) {
      squares += e->reference[n][i] * e->reference[n][i];
      written++;
    }
  }
  const double one_rounding = 1.0 / 256;
  const bool rounded = e->c->flags & OP_BF16 && tensor->typed;
  const double tolerance = !rounded ? kind->tolerance : kind->bf16_tolerance > 0 ? kind->bf16_tolerance : one_rounding;
  const double size = written ? sqrt(squares / (double)written) : 0;
  for (size_t i = 0; i < tensor->count; i++) {
    const double want = e->reference[n][i], got = b->t[n][i];
    const bool gap = isnan(want) && bits_of(b->t[n][i]) == POISON;
    if (!gap && !(fabs(got - want) <= tolerance * (size + fabs(want)))) {
      printf("%s: %s[%zu] is %.9g, should be %.9g (tensor size %.3g)\n", e->name, tensor->name, i, got, want, size);
      return false;
    }
  }
  return true;
}

static bool inputs_unchanged(const expected_t *e, const buffers_t *b, size_t n) {
  for (size_t i = 0; i < e->tensors[n].count; i++) {
    if (bits_of(b->t[n][i]) != bits_of(e->given[n][i])) {
      printf("%s: input %s[%zu] was changed\n", e->name, e->tensors[n].name, i);
      return false;
    }
  }
  return true;
}

// Runs the case where the back end's tensors lie: blocks with their guards go there and come back.
static void run(const op_host_t *host, const expected_t *e, buffers_t *b, size_t shift) {
  if (device_of(host)->host_memory) {
    e->c->kind->host(host, e->c, b->t);
    drop_blocks();
    return;
  }
  float *there[OP_TENSORS] = {NULL}, *t[OP_TENSORS] = {NULL};
  for (size_t n = 0; n < OP_TENSORS; n++) {
    if (e->tensors[n].count > 0) {
      const size_t bytes = (e->tensors[n].count + 2 * GUARD + 16) * sizeof(float);
      there[n] = op_block(host, e->tensors[n].role == OP_INDEX ? BL_ARENA_STAGING : BL_ARENA_PRIVATE, bytes);
      t[n] = there[n] + GUARD + shift;
      op_move(host, there[n], b->block[n], bytes);
    }
  }
  e->c->kind->host(host, e->c, t);
  for (size_t n = 0; n < OP_TENSORS; n++) {
    if (there[n] != NULL) {
      op_move(host, b->block[n], there[n], (e->tensors[n].count + 2 * GUARD + 16) * sizeof(float));
    }
  }
  drop_blocks();
}

// The error of a whole tensor; what the reference leaves is to be left.
static bool tensor_within(const expected_t *e, const buffers_t *b, size_t n, op_errors_t *worst) {
  const op_tensor_t *tensor = &e->tensors[n];
  const bool rounded = e->c->flags & OP_BF16 && tensor->typed;
  double squares = 0, differences = 0;
  for (size_t i = 0; i < tensor->count; i++) {
    const double want = e->reference[n][i], got = b->t[n][i];
    if (isnan(want)) {
      if (bits_of(b->t[n][i]) != POISON) {
        printf("%s: wrote %s[%zu], which is a gap\n", e->name, tensor->name, i);
        return false;
      }
      continue;
    }
    squares += want * want;
    differences += (got - want) * (got - want);
  }
  const double error = squares > 0 ? differences / squares : differences;
  double *largest = rounded ? &worst->bf16 : &worst->fp32;
  *largest = error > *largest ? error : *largest;
  if (!(error <= (rounded ? ERROR_BF16 : ERROR_FP32))) {
    printf("%s: %s has a normalised mean square error of %.3g\n", e->name, tensor->name, error);
    return false;
  }
  return true;
}

// Runs the case: nothing is written but outputs.
static bool run_guarded(const op_host_t *host, const expected_t *e, buffers_t *b, size_t shift) {
  bl_error_t err = {0};
  fill(b, e, shift);
  narrow_all(b, e);
  run(host, e, b, shift);
  bool ok = widen_all(b, e);
  if (host->ops->status(host->compute, &err) != BL_OK) {
    printf("%s: %s\n", e->name, err.text);
    ok = false;
  }
  for (size_t n = 0; ok && n < OP_TENSORS; n++) {
    if (e->tensors[n].count > 0 && !guards_intact(b, e, n, shift)) {
      printf("%s: wrote outside of %s\n", e->name, e->tensors[n].name);
      ok = false;
    } else if (e->tensors[n].role == OP_INPUT) {
      ok = inputs_unchanged(e, b, n);
    }
  }
  return ok;
}

static bool is_written(const op_tensor_t *tensor) {
  return tensor->count > 0 && (tensor->role == OP_OUTPUT || tensor->role == OP_ADDED);
}

static bool outputs_match(const expected_t *e, const buffers_t *b, op_errors_t *errors) {
  bool ok = true;
  for (size_t n = 0; ok && n < OP_TENSORS; n++) {
    if (is_written(&e->tensors[n])) {
      ok = errors == NULL ? tensor_matches(e, b, n) : tensor_within(e, b, n, errors);
    }
  }
  return ok;
}

static bool same_bits(const expected_t *e, const buffers_t *a, const buffers_t *b, const char *how) {
  for (size_t n = 0; n < OP_TENSORS; n++) {
    if (a->t[n] && memcmp(a->t[n], b->t[n], e->tensors[n].count * sizeof(float)) != 0) {
      printf("%s: %s differs in bits %s\n", e->name, e->tensors[n].name, how);
      return false;
    }
  }
  return true;
}

static bool compare(const op_host_t *host, const expected_t *e, op_errors_t *errors) {
  buffers_t first, second;
  bool ok = run_guarded(host, e, &first, 0) && outputs_match(e, &first, errors);
  if (ok) {
    // Again, elsewhere in memory: the same bits.
    ok = run_guarded(host, e, &second, device_of(host)->host_memory ? 3 : VECTOR_FLOATS) &&
         same_bits(e, &first, &second, "when run again at another address");
    clear(&second);
  }
  clear(&first);
  return ok;
}

static void expect_reference(expected_t *e, const op_case_t *c) {
  expect(e, c);
  c->kind->reference(c, e->reference);
}

size_t op_case_compare(const op_host_t *hosts, size_t count, const op_case_t *c) {
  expected_t e;
  size_t wrong = 0;
  expect_reference(&e, c);
  for (size_t k = 0; k < count; k++) {
    if (!compare(&hosts[k], &e, NULL)) {
      printf("  that was %s\n", hosts[k].ops->describe(hosts[k].compute));
      wrong++;
    }
  }
  clear_expected(&e);
  return wrong;
}

bool op_case_within(const op_host_t *host, const op_case_t *c, op_errors_t *worst) {
  expected_t e;
  expect_reference(&e, c);
  const bool ok = compare(host, &e, worst);
  clear_expected(&e);
  return ok;
}

// Runs the case on both; `ok` of each is for the caller to judge.
static bool run_both(const op_host_t *a, const op_host_t *b, const expected_t *e, buffers_t *first, buffers_t *second,
                     op_errors_t *errors) {
  const bool ok_first = run_guarded(a, e, first, 0) && outputs_match(e, first, errors),
             ok_second = run_guarded(b, e, second, 0) && outputs_match(e, second, errors);
  return ok_first && ok_second;
}

bool op_case_agree(const op_host_t *a, const op_host_t *b, const op_case_t *c, op_errors_t *worst) {
  op_errors_t unused = {0};
  buffers_t first, second;
  expected_t e;
  expect_reference(&e, c);
  bool ok = run_both(a, b, &e, &first, &second, &unused);
  for (size_t n = 0; ok && n < OP_TENSORS; n++) {
    if (!is_written(&e.tensors[n])) {
      continue;
    }
    for (size_t i = 0; i < e.tensors[n].count; i++) {
      e.reference[n][i] = bits_of(second.t[n][i]) == POISON ? NAN : second.t[n][i];
    }
    ok = tensor_within(&e, &first, n, worst);
  }
  clear(&first);
  clear(&second);
  clear_expected(&e);
  return ok;
}

bool op_case_same_bits(const op_host_t *a, const op_host_t *b, const op_case_t *c) {
  buffers_t first, second;
  expected_t e;
  expect_reference(&e, c);
  const bool ok = run_both(a, b, &e, &first, &second, NULL) && same_bits(&e, &first, &second, "between two contexts");
  clear(&first);
  clear(&second);
  clear_expected(&e);
  return ok;
}

// sum(dy y) of the reference's forward.
static double objective(expected_t *e) {
  const op_kind_t *kind = e->c->kind;
  kind->forward(e->c, e->reference);
  double sum = 0;
  for (size_t i = 0; i < e->tensors[kind->y].count; i++) {
    const double y = e->reference[kind->y][i];
    sum += isnan(y) ? 0 : y * (kind->dy < 0 ? 1 : e->reference[kind->dy][i]);
  }
  return sum;
}

bool op_case_gradients(const op_case_t *c) {
  if (!c->kind->forward) {
    return true;
  }
  expected_t e;
  bool ok = true;
  expect_reference(&e, c);
  for (int s = 0; ok && s < c->kind->slopes_count; s++) {
    const op_slope_t slope = c->kind->slopes[s];
    const op_tensor_t *input = &e.tensors[slope.input], *gradient = &e.tensors[slope.gradient];
    if (gradient->count == 0 || gradient->role != OP_OUTPUT) {
      continue;
    }
    double largest = 0;
    for (size_t i = 0; i < gradient->count; i++) {
      const double g = fabs(e.reference[slope.gradient][i]);
      largest = g > largest ? g : largest;
    }
    for (size_t sample = 0; ok && sample < SAMPLES; sample++) {
      const size_t i = bl_random_below(99, sample, input->count);
      double *x = &e.reference[slope.input][i];
      const double before = *x;
      *x = before + DIFFERENCE;
      const double up = objective(&e);
      *x = before - DIFFERENCE;
      const double down = objective(&e);
      *x = before;
      const double numeric = (up - down) / (2 * DIFFERENCE), analytic = e.reference[slope.gradient][i];
      if (!isnan(analytic) && !(fabs(numeric - analytic) <= 1e-6 * (1 + largest))) {
        printf("%s: %s[%zu] is %.9g, finite differences say %.9g\n", e.name, gradient->name, i, analytic, numeric);
        ok = false;
      }
    }
  }
  clear_expected(&e);
  return ok;
}

double op_case_seconds(const op_host_t *host, const op_case_t *c) {
  expected_t e;
  buffers_t b;
  expect(&e, c);
  fill(&b, &e, 0);
  narrow_all(&b, &e);
  run(host, &e, &b, 0);
  double best = INFINITY;
  for (int round = 0; round < 5; round++) {
    const uint64_t start = bl_clock_now_ns();
    run(host, &e, &b, 0);
    const double seconds = (double)(bl_clock_now_ns() - start) / BL_NS_PER_S;
    best = seconds < best ? seconds : best;
  }
  clear(&b);
  clear_expected(&e);
  return best;
}
