// SPDX-License-Identifier: Apache-2.0
// Verifies the lookups that reflection answers with: files, symbols of every kind, imports, and sets that are cut short.
#include "rpc/descriptors.h"

#include "descriptor_set.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static bl__span_t all(void) {
  return (bl__span_t){bl_proto_descriptor_set, bl_proto_descriptor_set_bytes};
}

static bool holds_text(bl__span_t span, const char *text) {
  return memmem(span.bytes, span.size_bytes, text, strlen(text)) != NULL;
}

static void files_are_found_by_name(void **state) {
  (void)state;
  bl__span_t file;
  assert_true(bl__descriptors_file(all(), "ballast/v1/driver.proto", &file));
  assert_true(holds_text(file, "DriverStatusResponse"));
  assert_false(holds_text(file, "ExtensionRequest"));
  assert_false(bl__descriptors_file(all(), "ballast/v1/driver.prot", &file));
  assert_false(bl__descriptors_file(all(), "", &file));
}

static void symbols_of_every_kind_are_found(void **state) {
  (void)state;
  static const char *const known[] = {
      "ballast.v1.Stage",                                              // service
      "ballast.v1.Stage.Status",                                       // method
      "ballast.v1.StageStatusRequest",                                 // message
      "ballast.v1.StageStatusResponse.phase",                          // field
      "ballast.v1.RunKind",                                            // enum
      "ballast.v1.RUN_TRAIN",                                          // its value, named beside it
      "ballast.v1.WatchResponse.event",                                // oneof
      "grpc.health.v1.HealthCheckResponse.ServingStatus",              // nested enum
      "grpc.health.v1.HealthCheckResponse.SERVING",                    // its value
      "grpc.reflection.v1alpha.ServerReflection.ServerReflectionInfo", // another package
  };
  static const char *const unknown[] = {
      "",
      ".",
      "ballast",
      "ballast.v1",
      "ballast.v1.",
      "ballast.v1.Stag",
      "ballast.v1.Stage.Status.x",
      "ballast.v1.RunKind.RUN_TRAIN",
      "Stage",
      ".ballast.v1.Stage",
      "ballast.v1.Stage..Status",
  };
  bl__span_t file;
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    if (!bl__descriptors_symbol(all(), known[i], &file)) {
      fail_msg("%s was not found", known[i]);
    }
  }
  for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
    if (bl__descriptors_symbol(all(), unknown[i], &file)) {
      fail_msg("%s was found", unknown[i]);
    }
  }
  assert_true(bl__descriptors_message(all(), "ballast.v1.Vote"));
  assert_false(bl__descriptors_message(all(), "ballast.v1.Stage"));
}

static void imports_come_with_a_file(void **state) {
  (void)state;
  bl__span_t file, files[8];
  assert_true(bl__descriptors_symbol(all(), "ballast.v1.Driver", &file));
  assert_int_equal(bl__descriptors_closure(all(), file, files, 8), 2); // and stage.proto
  assert_ptr_equal(files[0].bytes, file.bytes);
  assert_true(holds_text(files[1], "ballast/v1/stage.proto"));
  assert_int_equal(bl__descriptors_closure(all(), file, files, 1), 1);
}

// Every prefix of the set, in memory of exactly its size: an address sanitizer sees any read past its end.
static void a_set_cut_short_is_read_to_where_it_breaks(void **state) {
  (void)state;
  for (size_t size = 0; size < bl_proto_descriptor_set_bytes; size += 37) {
    uint8_t *bytes = malloc(size > 0 ? size : 1);
    memcpy(bytes, bl_proto_descriptor_set, size);
    bl__span_t file;
    assert_false(bl__descriptors_symbol((bl__span_t){bytes, size}, "no.Such", &file));
    (void)bl__descriptors_symbol((bl__span_t){bytes, size}, "ballast.v1.WatchResponse.event", &file);
    free(bytes);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(files_are_found_by_name),
      cmocka_unit_test(symbols_of_every_kind_are_found),
      cmocka_unit_test(imports_come_with_a_file),
      cmocka_unit_test(a_set_cut_short_is_read_to_where_it_breaks),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
