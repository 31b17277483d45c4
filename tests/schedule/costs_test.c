// SPDX-License-Identifier: Apache-2.0
// Verifies that costs are read as people write them, and that negative, missing and impossible ones are named.
#include "schedule/ir/costs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void expect_chunk(bl_chunk_costs_t chunk, double forward, double input, double weight, double recompute) {
  assert_true(chunk.forward == forward && chunk.input == input && chunk.weight == weight &&
              chunk.recompute == recompute);
}

static void costs_are_read(void **state) {
  (void)state;
  bl_costs_t costs;
  bl_error_t err;
  assert_int_equal(bl_costs_parse("10,14,6,2", &costs, &err), BL_OK);
  expect_chunk(costs.every, 10, 14, 6, 10); // R is F
  assert_true(costs.boundary == 2);
  assert_int_equal(bl_costs_parse("10,14,6,2,8.5", &costs, &err), BL_OK);
  expect_chunk(costs.every, 10, 14, 6, 8.5);
  bl_chunk_costs_t chunks[3] = {{0}};
  assert_int_equal(bl_costs_parse_chunk("2=1,2,3", 3, chunks, &err), BL_OK);
  expect_chunk(chunks[2], 1, 2, 3, 1);
  assert_int_equal(bl_costs_parse_chunk("0=1,2,3,0", 3, chunks, &err), BL_OK);
  expect_chunk(chunks[0], 1, 2, 3, 0);
  expect_chunk(chunks[1], 0, 0, 0, 0);
}

static void refuse(const char *text, const char *message) {
  bl_costs_t costs;
  bl_error_t err;
  assert_int_equal(bl_costs_parse(text, &costs, &err), BL_INVALID);
  if (strstr(err.text, message) == NULL || strstr(err.text, "expected F,B,W,COMM") == NULL) {
    fail_msg("\"%s\" does not say \"%s\"", err.text, message);
  }
}

static void refuse_chunk(const char *text, const char *message) {
  bl_chunk_costs_t chunks[3];
  bl_error_t err;
  assert_int_equal(bl_costs_parse_chunk(text, 3, chunks, &err), BL_INVALID);
  if (strstr(err.text, message) == NULL) {
    fail_msg("\"%s\" does not say \"%s\"", err.text, message);
  }
}

static void paths_are_read(void **state) {
  (void)state;
  double *copies;
  bl_error_t err;
  char *texts[] = {(char *)"0-2=8.5", (char *)"2-1=3", (char *)"2-0=8.5"};
  assert_int_equal(bl_costs_parse_paths(texts, 2, 3, &copies, &err), BL_OK);
  assert_true(copies[0 * 3 + 2] == 8.5 && copies[2 * 3 + 0] == 8.5 && copies[1 * 3 + 2] == 3 && copies[0 * 3 + 1] == 1);
  free(copies);
  assert_int_equal(bl_costs_parse_paths(texts, 3, 3, &copies, &err), BL_INVALID);
  assert_string_equal(err.text, "\"2-0=8.5\": the path between stages 2 and 0 is given twice");
  static const struct {
    const char *text, *message;
  } bad[] = {{"0-3=1", "there is no stage 3, they go from 0 to 2"},
             {"0=1", "must name two stages"},
             {"-1-2=1", "must name two stages"},
             {"1-1=2", "must be between two stages"},
             {"0-1=-2", "must be a number from 0 upwards"},
             {"0-1=nan", "must be a number from 0 upwards"},
             {"0-1=", "must be a number from 0 upwards"}};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    assert_int_equal(bl_costs_parse_paths((char *[]){(char *)bad[i].text}, 1, 3, &copies, &err), BL_INVALID);
    if (strstr(err.text, bad[i].message) == NULL) {
      fail_msg("\"%s\" does not say \"%s\"", err.text, bad[i].message);
    }
  }
}

static void bad_costs_are_named(void **state) {
  (void)state;
  refuse("", "F must be a number");
  refuse("1,2,x,0", "W must be a number");
  refuse("1,-2,3,0", "B must be a number from 0");
  refuse("1,2,3", "COMM is missing");
  refuse("1,2,3,nan", "COMM must be a number");
  refuse("1,2,3,0,-4", "R must be a number from 0");
  refuse("1,2,3,0,4,5", "has more numbers");
  refuse("0x10,2,3,0", "F must be a number");
  refuse("1,2,3 ,0", "W must be a number");
  refuse("1,2,inf,0", "W must be a number");
  refuse("1e308,1e308,1e308,0", "F must be a number from 0 upwards, at most 1e+12");
  refuse("1,2,3,1.1e12", "COMM must be a number from 0 upwards, at most 1e+12");
  bl_costs_t costs;
  bl_error_t err;
  assert_int_equal(bl_costs_parse("0,1,1,0", &costs, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "cost of F: must be above 0"));
  refuse_chunk("3=1,2,3", "\"3=1,2,3\": there is no such virtual stage, they go from 0 to 2");
  refuse_chunk("1,2,3", "must begin with a virtual stage");
  refuse_chunk("-1=1,2,3", "must begin with a virtual stage");
  refuse_chunk("1=1,2", "W is missing");
  refuse_chunk("1=-1,2,3", "\"1=-1,2,3\": F must be");
  refuse_chunk("1=1,2,3,-4", "R must be a number from 0");
}

static void costs_of_chunks_are_checked_by_name(void **state) {
  (void)state;
  const bl_chunk_costs_t chunks[] = {{1, 1, 1, 1}, {1, 1, 1, -1}, {NAN, 1, 1, 1}};
  bl_error_t err;
  assert_int_equal(bl_costs_check(&(bl_costs_t){.chunks = chunks}, 1, &err), BL_OK);
  assert_int_equal(bl_costs_check(&(bl_costs_t){.chunks = chunks}, 2, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "cost of R on virtual stage 1"));
  assert_int_equal(bl_costs_check(&(bl_costs_t){.chunks = chunks + 2}, 1, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "cost of F on virtual stage 0"));
  assert_int_equal(bl_costs_check(&(bl_costs_t){.chunks = chunks, .boundary = -1}, 1, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "cost of a boundary"));
  assert_int_equal(bl_costs_check(&(bl_costs_t){.chunks = chunks, .path = INFINITY}, 1, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "cost of an evict or load"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(costs_are_read),
      cmocka_unit_test(paths_are_read),
      cmocka_unit_test(bad_costs_are_named),
      cmocka_unit_test(costs_of_chunks_are_checked_by_name),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
