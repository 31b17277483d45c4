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
#define SAMPLES       40         // elements differentiated per tensor
#define ERROR_FP32    1e-6       // normalised mean square errors that a back end may have
#define ERROR_BF16    1e-3
#define VECTOR_FLOATS 4 // what lies on a device is at least so much aligned

typedef struct buffers {
  op_tensor_t tensors[OP_TENSORS];
  float *block[OP_TENSORS]; // with guards
  float *t[OP_TENSORS];
  double *reference[OP_TENSORS];
} buffers_t;

#define BLOCKS 64 // of one case on a device

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

static float input_value(const op_case_t *c, const op_tensor_t *tensor, size_t tensor_index, size_t i) {
  float value = (float)bl_random_normal(17 + tensor_index, i);
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

// `shift` floats off 64-byte alignment.
static void fill(buffers_t *b, const op_case_t *c, size_t shift) {
  for (size_t n = 0; n < OP_TENSORS; n++) {
    const op_tensor_t *tensor = &b->tensors[n];
    if (tensor->count == 0) {
      continue;
    }
    const size_t total = tensor->count + 2 * GUARD + 16;
    b->block[n] = aligned_alloc(64, (total * sizeof(float) + 63) / 64 * 64);
    b->t[n] = b->block[n] + GUARD + shift;
    b->reference[n] = calloc(tensor->count, sizeof(double));
    for (size_t i = 0; i < total; i++) {
      b->block[n][i] = poison();
    }
    for (size_t i = 0; i < tensor->count; i++) {
      if (tensor->role == OP_INDEX) {
        const int32_t index = (int32_t)bl_random_below(17 + n, i, tensor->bound);
        memcpy(&b->t[n][i], &index, sizeof index);
        b->reference[n][i] = index;
      } else if (tensor->role != OP_OUTPUT) {
        b->t[n][i] = input_value(c, tensor, n, i);
        b->reference[n][i] = b->t[n][i];
      } else {
        b->reference[n][i] = NAN;
      }
    }
  }
}

// Typed tensors of a case of bf16: floats become elements at the start of the same bytes, poison behind them.
static void narrow_all(buffers_t *b, const op_case_t *c) {
  for (size_t n = 0; c->flags & OP_BF16 && n < OP_TENSORS; n++) {
    if (!b->tensors[n].typed || b->tensors[n].count == 0) {
      continue;
    }
    uint16_t *elements = (uint16_t *)(void *)b->t[n];
    for (size_t i = 0; i < b->tensors[n].count; i++) {
      const float value = b->t[n][i];
      elements[i] = isnan(value) ? (uint16_t)(POISON >> 16) : op_to_bf16(value);
    }
    const float filling = poison();
    for (size_t i = (b->tensors[n].count + 1) / 2; i < b->tensors[n].count; i++) {
      b->t[n][i] = filling;
    }
  }
}

// And back; false when something was written behind the elements.
static bool widen_all(buffers_t *b, const op_case_t *c, const char *name) {
  for (size_t n = 0; c->flags & OP_BF16 && n < OP_TENSORS; n++) {
    const size_t count = b->tensors[n].count;
    if (!b->tensors[n].typed || count == 0) {
      continue;
    }
    for (size_t i = (count + 1) / 2; i < count; i++) {
      if (bits_of(b->t[n][i]) != POISON) {
        printf("%s: wrote behind the elements of %s\n", name, b->tensors[n].name);
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
    free(b->reference[n]);
  }
}

static bool guards_intact(const buffers_t *b, size_t n, size_t shift) {
  const size_t total = b->tensors[n].count + 2 * GUARD + 16;
  for (size_t i = 0; i < total; i++) {
    const bool inside = i >= GUARD + shift && i < GUARD + shift + b->tensors[n].count;
    if (!inside && bits_of(b->block[n][i]) != POISON) {
      return false;
    }
  }
  return true;
}

static bool tensor_matches(const op_case_t *c, const buffers_t *b, size_t n, const char *name) {
  const op_tensor_t *tensor = &b->tensors[n];
  double squares = 0;
  size_t written = 0;
  for (size_t i = 0; i < tensor->count; i++) {
    if (!isnan(b->reference[n][i])) {
      squares += b->reference[n][i] * b->reference[n][i];
      written++;
    }
  }
  const double one_rounding = 1.0 / 256;
  const bool rounded = c->flags & OP_BF16 && tensor->typed;
  const double tolerance = !rounded                      ? c->kind->tolerance
                           : c->kind->bf16_tolerance > 0 ? c->kind->bf16_tolerance
                                                         : one_rounding;
  const double size = written ? sqrt(squares / (double)written) : 0;
  for (size_t i = 0; i < tensor->count; i++) {
    const double want = b->reference[n][i], got = b->t[n][i];
    const bool gap = isnan(want) && bits_of(b->t[n][i]) == POISON;
    if (!gap && !(fabs(got - want) <= tolerance * (size + fabs(want)))) {
      printf("%s: %s[%zu] is %.9g, should be %.9g (tensor size %.3g)\n", name, tensor->name, i, got, want, size);
      return false;
    }
  }
  return true;
}

static bool inputs_unchanged(const op_case_t *c, const buffers_t *b, size_t n, const char *name) {
  for (size_t i = 0; i < b->tensors[n].count; i++) {
    if (bits_of(b->t[n][i]) != bits_of(input_value(c, &b->tensors[n], n, i))) {
      printf("%s: input %s[%zu] was changed\n", name, b->tensors[n].name, i);
      return false;
    }
  }
  return true;
}

// Runs the case where the back end's tensors lie: blocks with their guards go there and come back.
static void run(const op_host_t *host, const op_case_t *c, buffers_t *b, size_t shift) {
  if (device_of(host)->host_memory) {
    c->kind->host(host, c, b->t);
    drop_blocks();
    return;
  }
  float *there[OP_TENSORS] = {NULL}, *t[OP_TENSORS] = {NULL};
  for (size_t n = 0; n < OP_TENSORS; n++) {
    if (b->tensors[n].count > 0) {
      const size_t bytes = (b->tensors[n].count + 2 * GUARD + 16) * sizeof(float);
      there[n] = op_block(host, b->tensors[n].role == OP_INDEX ? BL_ARENA_STAGING : BL_ARENA_PRIVATE, bytes);
      t[n] = there[n] + GUARD + shift;
      op_move(host, there[n], b->block[n], bytes);
    }
  }
  c->kind->host(host, c, t);
  for (size_t n = 0; n < OP_TENSORS; n++) {
    if (there[n] != NULL) {
      op_move(host, b->block[n], there[n], (b->tensors[n].count + 2 * GUARD + 16) * sizeof(float));
    }
  }
  drop_blocks();
}

// The error of a whole tensor; what the reference leaves is to be left.
static bool tensor_within(const op_case_t *c, const buffers_t *b, size_t n, const char *name, op_errors_t *worst) {
  const op_tensor_t *tensor = &b->tensors[n];
  const bool rounded = c->flags & OP_BF16 && tensor->typed;
  double squares = 0, differences = 0;
  for (size_t i = 0; i < tensor->count; i++) {
    const double want = b->reference[n][i], got = b->t[n][i];
    if (isnan(want)) {
      if (bits_of(b->t[n][i]) != POISON) {
        printf("%s: wrote %s[%zu], which is a gap\n", name, tensor->name, i);
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
    printf("%s: %s has a normalised mean square error of %.3g\n", name, tensor->name, error);
    return false;
  }
  return true;
}

static bool compare_once(const op_host_t *host, const op_case_t *c, buffers_t *b, size_t shift, op_errors_t *errors) {
  char name[128];
  op_case_name(c, name, sizeof name);
  bool ok = true;
  memset(b, 0, sizeof *b);
  c->kind->tensors(c, b->tensors);
  fill(b, c, shift);
  narrow_all(b, c);
  run(host, c, b, shift);
  ok = widen_all(b, c, name);
  c->kind->reference(c, b->reference);
  bl_error_t err = {0};
  if (host->ops->status(host->compute, &err) != BL_OK) {
    printf("%s: %s\n", name, err.text);
    ok = false;
  }
  for (size_t n = 0; ok && n < OP_TENSORS; n++) {
    if (b->tensors[n].count == 0) {
      continue;
    }
    if (!guards_intact(b, n, shift)) {
      printf("%s: wrote outside of %s\n", name, b->tensors[n].name);
      ok = false;
    } else if (b->tensors[n].role == OP_INPUT) {
      ok = inputs_unchanged(c, b, n, name);
    } else if (b->tensors[n].role != OP_INDEX) {
      ok = errors == NULL ? tensor_matches(c, b, n, name) : tensor_within(c, b, n, name, errors);
    }
  }
  return ok;
}

static bool same_bits(const op_case_t *c, const buffers_t *a, const buffers_t *b, const char *how) {
  for (size_t n = 0; n < OP_TENSORS; n++) {
    if (a->t[n] && memcmp(a->t[n], b->t[n], a->tensors[n].count * sizeof(float)) != 0) {
      char name[128];
      op_case_name(c, name, sizeof name);
      printf("%s: %s differs in bits %s\n", name, a->tensors[n].name, how);
      return false;
    }
  }
  return true;
}

static bool compare_twice(const op_host_t *host, const op_case_t *c, op_errors_t *errors) {
  buffers_t first, second;
  bool ok = compare_once(host, c, &first, 0, errors);
  if (ok) {
    // Again, elsewhere in memory: the same bits.
    ok = compare_once(host, c, &second, device_of(host)->host_memory ? 3 : VECTOR_FLOATS, errors);
    ok = ok && same_bits(c, &first, &second, "when run again at another address");
    clear(&second);
  }
  clear(&first);
  return ok;
}

bool op_case_compare(const op_host_t *host, const op_case_t *c) {
  return compare_twice(host, c, NULL);
}

bool op_case_within(const op_host_t *host, const op_case_t *c, op_errors_t *worst) {
  return compare_twice(host, c, worst);
}

bool op_case_agree(const op_host_t *a, const op_host_t *b, const op_case_t *c, op_errors_t *worst) {
  char name[128];
  op_errors_t unused = {0};
  buffers_t first, second;
  op_case_name(c, name, sizeof name);
  const bool ok_first = compare_once(a, c, &first, 0, &unused), ok_second = compare_once(b, c, &second, 0, &unused);
  bool ok = ok_first && ok_second;
  for (size_t n = 0; ok && n < OP_TENSORS; n++) {
    const op_tensor_t *tensor = &first.tensors[n];
    if (tensor->role != OP_OUTPUT && tensor->role != OP_ADDED) {
      continue;
    }
    for (size_t i = 0; i < tensor->count; i++) {
      first.reference[n][i] = bits_of(second.t[n][i]) == POISON ? NAN : second.t[n][i];
    }
    ok = tensor->count == 0 || tensor_within(c, &first, n, name, worst);
  }
  clear(&first);
  clear(&second);
  return ok;
}

bool op_case_same_bits(const op_host_t *a, const op_host_t *b, const op_case_t *c) {
  buffers_t first, second;
  const bool ok_first = compare_once(a, c, &first, 0, NULL), ok_second = compare_once(b, c, &second, 0, NULL);
  const bool ok = ok_first && ok_second && same_bits(c, &first, &second, "between two contexts");
  clear(&first);
  clear(&second);
  return ok;
}

// sum(dy y) of the reference's forward.
static double objective(const op_case_t *c, buffers_t *b) {
  c->kind->forward(c, b->reference);
  double sum = 0;
  for (size_t i = 0; i < b->tensors[c->kind->y].count; i++) {
    const double y = b->reference[c->kind->y][i];
    sum += isnan(y) ? 0 : y * (c->kind->dy < 0 ? 1 : b->reference[c->kind->dy][i]);
  }
  return sum;
}

bool op_case_gradients(const op_case_t *c) {
  if (!c->kind->forward) {
    return true;
  }
  char name[128];
  op_case_name(c, name, sizeof name);
  buffers_t b = {0};
  bool ok = true;
  c->kind->tensors(c, b.tensors);
  fill(&b, c, 0);
  c->kind->reference(c, b.reference);
  for (int s = 0; ok && s < c->kind->slopes_count; s++) {
    const op_slope_t slope = c->kind->slopes[s];
    const op_tensor_t *input = &b.tensors[slope.input], *gradient = &b.tensors[slope.gradient];
    if (gradient->count == 0 || gradient->role != OP_OUTPUT) {
      continue;
    }
    double largest = 0;
    for (size_t i = 0; i < gradient->count; i++) {
      const double g = fabs(b.reference[slope.gradient][i]);
      largest = g > largest ? g : largest;
    }
    for (size_t sample = 0; ok && sample < SAMPLES; sample++) {
      const size_t i = bl_random_below(99, sample, input->count);
      double *x = &b.reference[slope.input][i];
      const double before = *x;
      *x = before + DIFFERENCE;
      const double up = objective(c, &b);
      *x = before - DIFFERENCE;
      const double down = objective(c, &b);
      *x = before;
      const double numeric = (up - down) / (2 * DIFFERENCE), analytic = b.reference[slope.gradient][i];
      if (!isnan(analytic) && !(fabs(numeric - analytic) <= 1e-6 * (1 + largest))) {
        printf("%s: %s[%zu] is %.9g, finite differences say %.9g\n", name, gradient->name, i, analytic, numeric);
        ok = false;
      }
    }
  }
  clear(&b);
  return ok;
}

double op_case_seconds(const op_host_t *host, const op_case_t *c) {
  buffers_t b = {0};
  c->kind->tensors(c, b.tensors);
  fill(&b, c, 0);
  narrow_all(&b, c);
  run(host, c, &b, 0);
  double best = INFINITY;
  for (int round = 0; round < 5; round++) {
    const uint64_t start = bl_clock_now_ns();
    run(host, c, &b, 0);
    const double seconds = (double)(bl_clock_now_ns() - start) / BL_NS_PER_S;
    best = seconds < best ? seconds : best;
  }
  clear(&b);
  return best;
}
