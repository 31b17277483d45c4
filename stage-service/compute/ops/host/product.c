// SPDX-License-Identifier: Apache-2.0
#include "compute/ops/host/product.h"

#include "compute/ops/ops.h"

#include "base/bytes.h"

#include <dnnl.h>

#include <stdio.h>
#include <stdlib.h>

// oneDNN 3 made memory descriptors opaque, removed operation descriptors and gave sums a zero point.
#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t desc_t;
typedef const_dnnl_memory_desc_t desc_view_t;
#else
typedef dnnl_memory_desc_t *desc_t;
typedef const dnnl_memory_desc_t *desc_view_t;
#endif

struct bl__engine {
  dnnl_engine_t engine;
  dnnl_stream_t stream;
};

enum { ARGUMENT_A, ARGUMENT_B, ARGUMENT_C, ARGUMENT_SCRATCH, ARGUMENT_BIAS, ARGUMENT_RESIDUAL, ARGUMENTS_MAX };

struct bl__product {
  bl__engine_t *engine;
  dnnl_primitive_t primitive;
  dnnl_primitive_t packing;                 // reorder from plain B to packed B, or NULL
  dnnl_memory_t plain;                      // argument of `packing`
  dnnl_memory_t memories[ARGUMENTS_MAX];    // NULL if the product has no such argument
  dnnl_exec_arg_t arguments[ARGUMENTS_MAX]; // compact
  dnnl_exec_arg_t packing_arguments[3];
  dnnl_memory_t packing_scratch;
  int arguments_count;
  size_t workspace_bytes;
  size_t packed_bytes;
};

static const char *status_text(dnnl_status_t status) {
  switch (status) {
  case dnnl_success:
    return "success";
  case dnnl_out_of_memory:
    return "out of memory";
  case dnnl_invalid_arguments:
    return "invalid arguments";
  case dnnl_unimplemented:
    return "unimplemented";
  case dnnl_not_required:
    return "not required";
  default:
    return "runtime error";
  }
}

static bl_status_t fail(bl_error_t *err, const char *call, dnnl_status_t status) {
  return bl_error_set(err, status == dnnl_out_of_memory ? BL_EXHAUSTED : BL_INTERNAL, "oneDNN: %s: %s", call,
                      status_text(status));
}

// Leaves the function through `label` with `result` set if a oneDNN call fails.
#define CHECK(result, err, label, call)                                                                                \
  do {                                                                                                                 \
    dnnl_status_t check_status = (call);                                                                               \
    if (check_status != dnnl_success) {                                                                                \
      (result) = fail(err, #call, check_status);                                                                       \
      goto label;                                                                                                      \
    }                                                                                                                  \
  } while (0)

// ---- descriptors, for both versions -----------------------------------------------------------------------------

static dnnl_status_t desc_create(desc_t *desc, dnnl_data_type_t type, int64_t rows, int64_t columns, int64_t row_stride,
                                 int64_t column_stride) {
  dnnl_dims_t dims = {rows, columns};
  dnnl_dims_t strides = {row_stride, column_stride};
#if DNNL_VERSION_MAJOR >= 3
  return dnnl_memory_desc_create_with_strides(desc, 2, dims, type, strides);
#else
  dnnl_status_t status = dnnl_out_of_memory;
  dnnl_memory_desc_t *made = malloc(sizeof *made);
  if (made) {
    status = dnnl_memory_desc_init_by_strides(made, 2, dims, type, strides);
  }
  if (status != dnnl_success) {
    free(made);
    return status;
  }
  *desc = made;
  return dnnl_success;
#endif
}

static dnnl_status_t desc_create_any(desc_t *desc, dnnl_data_type_t type, int64_t rows, int64_t columns) {
  dnnl_dims_t dims = {rows, columns};
#if DNNL_VERSION_MAJOR >= 3
  return dnnl_memory_desc_create_with_tag(desc, 2, dims, type, dnnl_format_tag_any);
#else
  dnnl_status_t status = dnnl_out_of_memory;
  dnnl_memory_desc_t *made = malloc(sizeof *made);
  if (made) {
    status = dnnl_memory_desc_init_by_tag(made, 2, dims, type, dnnl_format_tag_any);
  }
  if (status != dnnl_success) {
    free(made);
    return status;
  }
  *desc = made;
  return dnnl_success;
#endif
}

static void desc_destroy(desc_t desc) {
#if DNNL_VERSION_MAJOR >= 3
  if (desc) {
    dnnl_memory_desc_destroy(desc);
  }
#else
  free(desc);
#endif
}

static dnnl_status_t attributes_create(const bl__product_shape_t *shape, desc_view_t c, dnnl_primitive_attr_t *made) {
  dnnl_primitive_attr_t attributes = NULL;
  dnnl_post_ops_t post_ops = NULL;
  dnnl_status_t status = dnnl_primitive_attr_create(&attributes);
  if (status == dnnl_success) {
    status = dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user);
  }
  if (status == dnnl_success && (shape->accumulate || shape->residual)) {
    status = dnnl_post_ops_create(&post_ops);
    if (status == dnnl_success && shape->accumulate) {
#if DNNL_VERSION_MAJOR >= 3
      status = dnnl_post_ops_append_sum(post_ops, 1.0f, 0, dnnl_data_type_undef);
#else
      status = dnnl_post_ops_append_sum(post_ops, 1.0f);
#endif
    }
    if (status == dnnl_success && shape->residual) {
      status = dnnl_post_ops_append_binary(post_ops, dnnl_binary_add, c);
    }
    if (status == dnnl_success) {
      status = dnnl_primitive_attr_set_post_ops(attributes, post_ops);
    }
  }
  if (post_ops) {
    dnnl_post_ops_destroy(post_ops);
  }
  if (status != dnnl_success && attributes) {
    dnnl_primitive_attr_destroy(attributes);
    return status;
  }
  *made = attributes;
  return status;
}

static dnnl_status_t matmul_desc_create(dnnl_engine_t engine, desc_view_t a, desc_view_t b, desc_view_t bias,
                                        desc_view_t c, dnnl_primitive_attr_t attributes, dnnl_primitive_desc_t *made) {
#if DNNL_VERSION_MAJOR >= 3
  return dnnl_matmul_primitive_desc_create(made, engine, a, b, bias, c, attributes);
#else
  dnnl_matmul_desc_t operation;
  dnnl_status_t status = dnnl_matmul_desc_init(&operation, a, b, bias, c);
  return status == dnnl_success ? dnnl_primitive_desc_create(made, &operation, attributes, engine, NULL) : status;
#endif
}

// ---- engine ----------------------------------------------------------------------------------------------------

bl_status_t bl__engine_create(bl__engine_t **engine, bl_error_t *err) {
  bl_status_t result = BL_OK;
  bl__engine_t *made = calloc(1, sizeof *made);
  if (!made) {
    return bl_error_set(err, BL_EXHAUSTED, "compute engine: out of memory");
  }
  CHECK(result, err, failed, dnnl_engine_create(&made->engine, dnnl_cpu, 0));
  CHECK(result, err, failed, dnnl_stream_create(&made->stream, made->engine, dnnl_stream_default_flags));
  *engine = made;
  return BL_OK;
failed:
  bl__engine_destroy(made);
  return result;
}

void bl__engine_destroy(bl__engine_t *engine) {
  if (!engine) {
    return;
  }
  if (engine->stream) {
    dnnl_stream_destroy(engine->stream);
  }
  if (engine->engine) {
    dnnl_engine_destroy(engine->engine);
  }
  free(engine);
}

#if defined(__x86_64__)
// Instruction sets are bit sets: a newer one contains those that it extends.
static bool isa_has(dnnl_cpu_isa_t isa) {
  return ((int)dnnl_get_effective_cpu_isa() & (int)isa) == (int)isa;
}
#endif

static const char *isa_name(void) {
#if defined(__x86_64__)
  static const struct {
    dnnl_cpu_isa_t isa;
    const char *name;
  } names[] = {{dnnl_cpu_isa_avx512_core_amx, "avx512_core_amx"},
               {dnnl_cpu_isa_avx512_core_bf16, "avx512_core_bf16"},
               {dnnl_cpu_isa_avx512_core, "avx512_core"},
               {dnnl_cpu_isa_avx2, "avx2"},
               {dnnl_cpu_isa_avx, "avx"}};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    if (isa_has(names[i].isa)) {
      return names[i].name;
    }
  }
  return "sse41";
#else
  return "native";
#endif
}

bool bl__engine_has_bf16(void) {
#if defined(__x86_64__)
  return isa_has(dnnl_cpu_isa_avx512_core_bf16);
#else
  return false;
#endif
}

static const char *version(void) {
  static _Thread_local char text[32];
  const dnnl_version_t *loaded = dnnl_version();
  snprintf(text, sizeof text, "%d.%d.%d", loaded->major, loaded->minor, loaded->patch);
  return text;
}

const bl_library_t bl_ops_library = {"onednn", version};

void bl__engine_describe(char *text, size_t bytes) {
  snprintf(text, bytes, "oneDNN %s %s", version(), isa_name());
}

// ---- product ---------------------------------------------------------------------------------------------------

static void destroy_memory(dnnl_memory_t memory) {
  if (memory) {
    dnnl_memory_destroy(memory);
  }
}

void bl__product_destroy(bl__product_t *product) {
  if (!product) {
    return;
  }
  for (int i = 0; i < ARGUMENTS_MAX; i++) {
    destroy_memory(product->memories[i]);
  }
  destroy_memory(product->plain);
  destroy_memory(product->packing_scratch);
  if (product->packing) {
    dnnl_primitive_destroy(product->packing);
  }
  if (product->primitive) {
    dnnl_primitive_destroy(product->primitive);
  }
  free(product);
}

static size_t desc_bytes(dnnl_primitive_desc_t desc, dnnl_query_t what) {
  desc_view_t memory = dnnl_primitive_desc_query_md(desc, what, 0);
  return memory ? dnnl_memory_desc_get_size(memory) : 0;
}

static void raise(size_t *bytes, size_t wanted) {
  *bytes = wanted > *bytes ? wanted : *bytes;
}

// Plans the reorder from B with its strides to the layout that the product chose.
static bl_status_t plan_packing(bl__product_t *product, desc_view_t plain, desc_view_t packed, bl_error_t *err) {
  bl_status_t result = BL_OK;
  dnnl_engine_t engine = product->engine->engine;
  dnnl_primitive_attr_t attributes = NULL;
  dnnl_primitive_desc_t desc = NULL;
  CHECK(result, err, done, dnnl_primitive_attr_create(&attributes));
  CHECK(result, err, done, dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user));
  CHECK(result, err, done, dnnl_reorder_primitive_desc_create(&desc, plain, engine, packed, engine, attributes));
  CHECK(result, err, done, dnnl_primitive_create(&product->packing, desc));
  CHECK(result, err, done, dnnl_memory_create(&product->plain, plain, engine, DNNL_MEMORY_NONE));
  CHECK(result, err, done,
        dnnl_memory_create(&product->packing_scratch, dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0),
                           engine, DNNL_MEMORY_NONE));
  product->packing_arguments[0] = (dnnl_exec_arg_t){DNNL_ARG_FROM, product->plain};
  product->packing_arguments[1] = (dnnl_exec_arg_t){DNNL_ARG_TO, product->memories[ARGUMENT_B]};
  product->packing_arguments[2] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, product->packing_scratch};
  product->packed_bytes = dnnl_memory_desc_get_size(packed);
  raise(&product->workspace_bytes, desc_bytes(desc, dnnl_query_scratchpad_md));
done:
  if (desc) {
    dnnl_primitive_desc_destroy(desc);
  }
  if (attributes) {
    dnnl_primitive_attr_destroy(attributes);
  }
  return result;
}

static dnnl_status_t add_argument(bl__product_t *product, int argument, int kind, desc_view_t desc) {
  dnnl_status_t status =
      dnnl_memory_create(&product->memories[argument], desc, product->engine->engine, DNNL_MEMORY_NONE);
  if (status == dnnl_success) {
    product->arguments[product->arguments_count++] = (dnnl_exec_arg_t){kind, product->memories[argument]};
  }
  return status;
}

bl_status_t bl__product_create(bl__engine_t *engine, const bl__product_shape_t *shape, bl__product_t **product,
                               bl_error_t *err) {
  bl_status_t result = BL_OK;
  desc_t a = NULL, b = NULL, b_plain = NULL, b_floats = NULL, c = NULL, bias = NULL;
  dnnl_primitive_attr_t attributes = NULL;
  dnnl_primitive_desc_t desc = NULL;
  bl__product_t *made = calloc(1, sizeof *made);
  if (!made) {
    return bl_error_set(err, BL_EXHAUSTED, "matrix product: out of memory");
  }
  made->engine = engine;
  const dnnl_data_type_t type = shape->bf16 ? dnnl_bf16 : dnnl_f32, c_type = shape->float_c ? dnnl_f32 : type;
  CHECK(result, err, done, desc_create(&a, type, shape->m, shape->k, shape->a_row, shape->a_column));
  CHECK(result, err, done, desc_create(&b_plain, type, shape->k, shape->n, shape->b_row, shape->b_column));
  CHECK(result, err, done, desc_create(&c, c_type, shape->m, shape->n, shape->c_row, 1));
  if (shape->pack_b) {
    CHECK(result, err, done, desc_create_any(&b, type, shape->k, shape->n));
  }
  if (shape->bias) {
    CHECK(result, err, done, desc_create(&bias, dnnl_f32, 1, shape->n, shape->n, 1));
  }
  CHECK(result, err, done, attributes_create(shape, c, &attributes));
  CHECK(result, err, done, matmul_desc_create(engine->engine, a, b ? b : b_plain, bias, c, attributes, &desc));
  CHECK(result, err, done, dnnl_primitive_create(&made->primitive, desc));

  desc_view_t packed = dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 0);
  desc_view_t scratch = dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
  CHECK(result, err, done, add_argument(made, ARGUMENT_A, DNNL_ARG_SRC, a));
  CHECK(result, err, done, add_argument(made, ARGUMENT_B, DNNL_ARG_WEIGHTS, b ? packed : b_plain));
  CHECK(result, err, done, add_argument(made, ARGUMENT_C, DNNL_ARG_DST, c));
  CHECK(result, err, done, add_argument(made, ARGUMENT_SCRATCH, DNNL_ARG_SCRATCHPAD, scratch));
  if (shape->bias) {
    CHECK(result, err, done, add_argument(made, ARGUMENT_BIAS, DNNL_ARG_BIAS, bias));
  }
  if (shape->residual) {
    int kind = DNNL_ARG_ATTR_MULTIPLE_POST_OP(shape->accumulate ? 1 : 0) | DNNL_ARG_SRC_1;
    CHECK(result, err, done, add_argument(made, ARGUMENT_RESIDUAL, kind, c));
  }
  made->workspace_bytes = desc_bytes(desc, dnnl_query_scratchpad_md);
  if (shape->pack_b) {
    CHECK(result, err, done, desc_create(&b_floats, dnnl_f32, shape->k, shape->n, shape->b_row, shape->b_column));
    result = plan_packing(made, b_floats, packed, err);
  }
done:
  if (desc) {
    dnnl_primitive_desc_destroy(desc);
  }
  if (attributes) {
    dnnl_primitive_attr_destroy(attributes);
  }
  desc_destroy(a);
  desc_destroy(b);
  desc_destroy(b_plain);
  desc_destroy(b_floats);
  desc_destroy(c);
  desc_destroy(bias);
  if (result != BL_OK) {
    bl__product_destroy(made);
    return bl_error_prefix(err, "matrix product of %lld x %lld x %lld", (long long)shape->m, (long long)shape->n,
                           (long long)shape->k);
  }
  *product = made;
  return BL_OK;
}

size_t bl__product_workspace_bytes(const bl__product_t *product) {
  return product->workspace_bytes;
}

size_t bl__product_packed_bytes(const bl__product_t *product) {
  return product->packed_bytes;
}

static bool point(dnnl_memory_t memory, const void *data) {
  // oneDNN takes inputs by non-const pointer.
  return !memory || dnnl_memory_set_data_handle(memory, (void *)(uintptr_t)data) == dnnl_success;
}

bl_status_t bl__product_pack(bl__product_t *product, const float *b, void *packed, void *workspace) {
  bool ok = point(product->plain, b) && point(product->memories[ARGUMENT_B], packed) &&
            point(product->packing_scratch, workspace) &&
            dnnl_primitive_execute(product->packing, product->engine->stream, 3, product->packing_arguments) ==
                dnnl_success &&
            dnnl_stream_wait(product->engine->stream) == dnnl_success;
  return ok ? BL_OK : BL_INTERNAL;
}

bl_status_t bl__product_execute(bl__product_t *product, const void *a, const void *b, const float *bias,
                                const void *residual, void *c, void *workspace) {
  dnnl_memory_t *memories = product->memories;
  bool ok = point(memories[ARGUMENT_A], a) && point(memories[ARGUMENT_B], b) && point(memories[ARGUMENT_C], c) &&
            point(memories[ARGUMENT_SCRATCH], workspace) && point(memories[ARGUMENT_BIAS], bias) &&
            point(memories[ARGUMENT_RESIDUAL], residual) &&
            dnnl_primitive_execute(product->primitive, product->engine->stream, product->arguments_count,
                                   product->arguments) == dnnl_success &&
            dnnl_stream_wait(product->engine->stream) == dnnl_success;
  return ok ? BL_OK : BL_INTERNAL;
}
