// SPDX-License-Identifier: Apache-2.0
// Operations that happen later, from one row each:
//
//   X(norm_forward, bl_compute_t, of_compute, (STRUCT, bl_norm_shape_t, shape), (DEVICE, const void *, x), ...)
//
// names a member of bl_ops_t, what it is called on, how the two contexts behind that are found, and its other arguments:
// DEVICE is an address of the device (NULL stays NULL), STRUCT a struct that is read during the call, PLAIN anything else.
// QUEUED_CALL of a row defines the arguments that are kept, what does them and what queues them; QUEUED_MEMBER is the
// initializer of the table.
#ifndef BALLAST_TESTS_LATE_QUEUED_H
#define BALLAST_TESTS_LATE_QUEUED_H

#include "late/late.h"

// What an operation is called on: the context of this back end, and the host's context or planned operation.
typedef struct {
  bl_compute_t *compute;
  void *inner;
  uint32_t pages; // of attention: the slice's and those before it; 0: a whole sequence
} target_t;

// EACH(m, (a, b), (c, d)) is m(a, b) m(c, d); up to twelve of them.
#define EACH_1(m, a)                                                            m a
#define EACH_2(m, a, ...)                                                       m a EACH_1(m, __VA_ARGS__)
#define EACH_3(m, a, ...)                                                       m a EACH_2(m, __VA_ARGS__)
#define EACH_4(m, a, ...)                                                       m a EACH_3(m, __VA_ARGS__)
#define EACH_5(m, a, ...)                                                       m a EACH_4(m, __VA_ARGS__)
#define EACH_6(m, a, ...)                                                       m a EACH_5(m, __VA_ARGS__)
#define EACH_7(m, a, ...)                                                       m a EACH_6(m, __VA_ARGS__)
#define EACH_8(m, a, ...)                                                       m a EACH_7(m, __VA_ARGS__)
#define EACH_9(m, a, ...)                                                       m a EACH_8(m, __VA_ARGS__)
#define EACH_10(m, a, ...)                                                      m a EACH_9(m, __VA_ARGS__)
#define EACH_11(m, a, ...)                                                      m a EACH_10(m, __VA_ARGS__)
#define EACH_12(m, a, ...)                                                      m a EACH_11(m, __VA_ARGS__)
#define EACH_OF(_1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, chosen, ...) chosen
#define EACH(m, ...)                                                                                                   \
  EACH_OF(__VA_ARGS__, EACH_12, EACH_11, EACH_10, EACH_9, EACH_8, EACH_7, EACH_6, EACH_5, EACH_4, EACH_3, EACH_2,      \
          EACH_1, )                                                                                                    \
  (m, __VA_ARGS__)

#define FIELD(kind, type, name)      type name;
#define PARAMETER(kind, type, name)  , PARAMETER_##kind(type, name)
#define PARAMETER_PLAIN(type, name)  type name
#define PARAMETER_DEVICE(type, name) type name
#define PARAMETER_STRUCT(type, name) const type *name
#define KEEP(kind, type, name)       .name = KEEP_##kind(name),
#define KEEP_PLAIN(name)             name
#define KEEP_DEVICE(name)            late_real(name)
#define KEEP_STRUCT(name)            *name
#define PASS(kind, type, name)       , PASS_##kind(name)
#define PASS_PLAIN(name)             call->name
#define PASS_DEVICE(name)            call->name
#define PASS_STRUCT(name)            &call->name

#define QUEUED_CALL(operation, on_type, target_of, ...)                                                                \
  typedef struct {                                                                                                     \
    target_t target;                                                                                                   \
    EACH(FIELD, __VA_ARGS__)                                                                                           \
  } operation##_call_t;                                                                                                \
  _Static_assert(sizeof(operation##_call_t) <= LATE_TASK_BYTES, "late.h");                                             \
  static void do_##operation(void *arguments) {                                                                        \
    const operation##_call_t *call = arguments;                                                                        \
    bl_ops_host()->operation(call->target.inner EACH(PASS, __VA_ARGS__));                                              \
    note_failure(call->target.compute);                                                                                \
  }                                                                                                                    \
  static void late_##operation(on_type *on EACH(PARAMETER, __VA_ARGS__)) {                                             \
    const operation##_call_t call = {.target = target_of(on), EACH(KEEP, __VA_ARGS__)};                                \
    late_note(on, #operation);                                                                                         \
    late_put(call.target.compute->stream, #operation, do_##operation, &call, sizeof call);                             \
  }

#define QUEUED_MEMBER(operation, ...) .operation = late_##operation,

#endif
