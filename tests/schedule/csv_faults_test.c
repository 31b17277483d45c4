// SPDX-License-Identifier: Apache-2.0
// Verifies that a file that is no schedule, or whose messages cannot pass, is refused with row, column and cell.
#include "schedule/csv/csv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct fault {
  const char *file, *message;
} fault_t;

static void refuse_bytes(const char *text, size_t bytes, const char *message) {
  bl_schedule_t *schedule = NULL;
  bl_error_t err;
  bl_error_clear(&err);
  bl_status_t status = bl_csv_read(text, bytes, "test.csv", &schedule, &err);
  if (status != BL_INVALID || schedule != NULL || strncmp(err.text, "test.csv: ", 10) != 0 ||
      strstr(err.text, message) == NULL) {
    fail_msg("status %d, \"%s\" does not say \"%s\" of\n%s", (int)status, err.text, message, text);
  }
}

static void refuse(const char *text, const char *message) {
  refuse_bytes(text, strlen(text), message);
}

static void take(const char *text) {
  bl_schedule_t *schedule = NULL;
  bl_error_t err;
  if (bl_csv_read(text, strlen(text), "test.csv", &schedule, &err) != BL_OK) {
    fail_msg("%s of\n%s", err.text, text);
  }
  bl_schedule_destroy(schedule);
}

#define REFUSE_ALL(faults)                                                                                             \
  for (size_t i = 0; i < sizeof(faults) / sizeof *(faults); i++) {                                                     \
    refuse((faults)[i].file, (faults)[i].message);                                                                     \
  }

static void cells_that_cannot_be_read(void **state) {
  (void)state;
  static const fault_t faults[] = {
      {"0F0,0B0\n1F0,1Q0\n", "row 2, column 2, cell \"1Q0\": no operation; expected <virtual stage>"},
      {"0F0x,0B0\n", "row 1, column 1, cell \"0F0x\": no operation"},
      {"0F,0B0\n", "row 1, column 1, cell \"0F\": no operation"},
      {"-1F0,0B0\n", "row 1, column 1, cell \"-1F0\": no operation"},
      {"0F0;0B0\n", "row 1, column 1, cell \"0F0;0B0\": no operation"},
      {"0F0@1,0B0\n", "row 1, column 1, cell \"0F0@1\": no operation"},
      {"\"0F0,0B0\n", "row 1, column 1, cell \"\"0F0\": a quote at one end only"},
      {"0F0,0B0\"\n", "row 1, column 2, cell \"0B0\"\": a quote at one end only"},
      {"\"0F0,0B0\"\n", "row 1, column 1, cell \"\"0F0\": a quote at one end only"},
      {"0F0,\"\n", "row 1, column 2, cell \"\"\": a quote at one end only"},
      {"0F0,\"0B\"0\n", "row 1, column 2, cell \"\"0B\"0\": a quote at one end only"},
      {"0F0,0B\"0\n", "row 1, column 2, cell \"0B\"0\": no operation"},
      {"0F0,\"\"0B0\"\"\n", "row 1, column 2, cell \"\"0B0\"\": no operation"},
      {"0F0,0B0,0SEND_X0\n", "row 1, column 3, cell \"0SEND_X0\": no operation"},
      {"0F0,0B0,0SEND_F\n", "row 1, column 3, cell \"0SEND_F\": no operation"},
      {"0F0,(0B0;)x\n", "row 1, column 2, cell \"(0B0;)x\": starts like an overlapped pair"},
      {"(0F0;0X0)OVERLAP_F_B\n", "row 1, column 1, cell \"(0F0;0X0)OVERLAP_F_B\": a part of the overlapped pair is no"},
      {"0F99999999999\n", "row 1, column 1, cell \"0F99999999999\": a number is too large"},
      {"0F1048576\n", "row 1, column 1, cell \"0F1048576\": a number is too large: virtual stages go to 32767"},
      {"32768F0\n", "row 1, column 1, cell \"32768F0\": a number is too large"},
      {"0F0.255\n", "row 1, column 1, cell \"0F0.255\": a number is too large"},
      {"0F0,0B0,0SEND_F99999999\n", "row 1, column 3, cell \"0SEND_F99999999\": a number is too large"},
      {"(0F0;9999B4000000000)OVERLAP_F_B\n",
       "row 1, column 1, cell \"(0F0;9999B4000000000)OVERLAP_F_B\": a number is too large"},
      {"\n\n", "has no operation"},
      {"", "has no operation"},
  };
  REFUSE_ALL(faults)
}

// Neither is taken for the blanks around a cell, nor sent to a terminal as it is; the mark that some programs begin UTF-8
// with is no part of a cell.
static void bytes_that_are_no_text(void **state) {
  (void)state;
  static const char end[] = "0F0,\0000B0\n", after[] = "0F0,0B0\0\n";
  refuse_bytes(end, sizeof end - 1, "row 1, column 2, cell \"?0B0\": no operation");
  refuse_bytes(after, sizeof after - 1, "row 1, column 2, cell \"0B0?\": no operation");
  refuse("0F0,\x1b[2J\n", "row 1, column 2, cell \"?[2J\": no operation");
  take("\xef\xbb\xbf"
       "0F0,0B0\n");
  refuse("0F0,0B0\n\xef\xbb\xbf"
         "1F0,1B0\n",
         "row 2, column 1, cell \"\xef\xbb\xbf"
         "1F0\": no operation");
}

static void stages_that_are_not_there(void **state) {
  (void)state;
  static const fault_t faults[] = {
      {"0F0,0B0\n1F0,0B0\n", "row 2, column 2, cell \"0B0\": virtual stage 0 is already on row 1"},
      {"0F0,0B0\n2F0,2B0\n", "row 2, column 1, cell \"2F0\": virtual stage 1 is on no row (the last one is 2)"},
      {"0F0,0B0\n\n1F0,1B0\n",
       "row 2: no operation, which would be a stage without work; a row is a stage, so take an"},
      {"\n0F0,0B0\n", "row 1: no operation"},
      {"0F0,0B0\n , ,\n1F0,1B0\n", "row 2: no operation"},
      {"0F0,0B0\n0UNSHARD\n1F0,1B0\n", "row 2: no operation"},
      {"0F0,0B0\n,,,\n", "row 2: no operation"},
      {"0F0,0B0\n\n,\n\n", "row 2: no operation"},
      {"0F0,0B0\n0UNSHARD\n", "row 2: no operation"},
  };
  REFUSE_ALL(faults)
  take("# a comment\n0F0,0B0\n# is no row\n1F0,,1B0\n\n\n");
  take("\"# a comment, in quotes\"\n\"0F0\", \" 0B0\" \r\n\"\",\"1F0\",1B0\n");
}

static void operations_that_are_missing_or_double(void **state) {
  (void)state;
  static const fault_t faults[] = {
      {"0F0,0B0\n1F0,,1F0,1B0\n", "row 2, column 3: 1F0: a second forward"},
      {"0F0,0B0\n1F0\n", "row 2, column 1: 1F0: virtual stage 1, micro-batch 0: its backward is missing"},
      {"0F0,0F1,0B0,0B1\n1F1,,1B1\n", "row 2: virtual stage 1, micro-batch 0: its forward (1F0) is missing"},
      {"0F0,,0I0\n1F0,1B0\n", "row 1, column 3: 0I0: virtual stage 0, micro-batch 0: its backward for the weights is"},
      {"0F0,0B0\n1B0,1F0\n", "row 2, column 1: 1B0: a backward before its forward"},
      {"0F0,0B0,0B0\n1F0,1B0\n", "row 1, column 3: 0B0: a second backward"},
      {"0F1000000\n", "row 1, column 1, cell \"0F1000000\": the file has 1 operation, too few for 1 virtual stage and "
                      "1000001 micro-batches"},
      {"0F0,0F0.5\n", "row 1, column 2, cell \"0F0.5\": the file has 2 operations, too few for 1 virtual stage and 1 "
                      "micro-batch of 6 slices"},
      // A V: the second micro-batch does not make it a schedule of two pipes.
      {"0F0,3F0,3B0,0B0,3F1,3B1,0B1\n1F0,2F0,2B0,1B0,1F1,2F1,2B1,1B1\n",
       "row 1, column 7: 0B1: a backward before its forward"},
      {"0F0,3F0,3B0,0B0,3F1,3B1\n1F0,2F0,2B0,1B0,1F1,2F1,2B1,1B1\n",
       "row 1: virtual stage 0, micro-batch 1: its forward (0F1) is missing"},
      {"0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", "the lists cannot run, a cycle: 0B0 (row 1, column 2) waits for 1B0 (row "
                                             "2, column 3), behind 1F1 (row 2, column "
                                             "2), which waits for 0F1 (row 1, column 3), behind 0B0 (row 1, column 2)"},
  };
  REFUSE_ALL(faults)
}

static void stores_that_cannot_have_the_block(void **state) {
  (void)state;
  static const fault_t faults[] = {
      {"0F0,0E0@99,0L0@99,0B0\n1F0,1B0\n", "row 1, column 2: 0E0@99: there is no store 99"},
      {"0F0,0E0@0,0L0@0,0B0\n1F0,1B0\n", "row 1, column 2: 0E0@0: that is the store of the stage's own device"},
      {"0F0,0E0@1,0L0@0,0B0\n1F0,1B0\n", "row 1, column 3: 0L0@0: that is the store of the stage's own device"},
      {"0F0,0E0@1,0L0@2,0B0\n1F0,1B0\n2F0,2B0\n",
       "row 1, column 3: 0L0@2: loads from store 2 what was evicted to store 1"},
      {"0F0,0E0,0L0@2,0B0\n1F0,1B0\n2F0,2B0\n",
       "row 1, column 3: 0L0@2: loads from a store that its evict does not name"},
      {"0F0,0E0@1,0L0@1,0B0\n", "row 1, column 2: 0E0@1: there is no store 1: a single device has nowhere to evict to"},
      {"0F0,0L0@1,0B0\n1F0,1B0\n", "row 1, column 2: 0L0@1: a load of a block that is not evicted"},
      {"0F0,0E0@1,0B0\n1F0,1B0\n", "row 1, column 3: 0B0: the block is evicted and not loaded again"},
  };
  REFUSE_ALL(faults)
  static const fault_t of_hosts[] = {
      {"# host stores: 2\n0F0,0E0@4,0L0@4,0B0\n1F0,1B0\n", "row 1, column 2: 0E0@4: there is no store 4: stores are "
                                                           "numbered as the devices, 0 to 1, then those of 2 hosts, "
                                                           "to 3"},
      {"# host stores: 1 \n0F0,0E0@2,0L0@2,0B0\n", "there is no store 2: stores are numbered as the devices, 0 to 0, "},
      {"# host stores: 4097\n0F0,0E0@2,0L0@2,0B0\n1F0,1B0\n", "there is no store 2"},
      {"# host stores: 99999999999999999999\n0F0,0E0@2,0L0@2,0B0\n1F0,1B0\n", "there is no store 2"},
      {"# host stores: -1\n0F0,0E0@2,0L0@2,0B0\n1F0,1B0\n", "there is no store 2"},
      {"# host stores:\n0F0,0E0@2,0L0@2,0B0\n1F0,1B0\n", "there is no store 2"},
  };
  REFUSE_ALL(of_hosts)
  take("# host stores: 1\n0F0,0E0@1,0L0@1,0B0\n");
  take("# host stores: 2\n0F0,0E0@3,0L0@3,0B0\n1F0,1E0@2,1L0@2,1B0\n");
  take("0F0,0E0@1,0L0@1,0B0\n1F0,1B0\n");
  take("0F0,0E0@1,0L0,0B0\n1F0,1B0\n");
  take("0F0,0E0,0L0,0B0\n1F0,1B0\n");
  take("0F0,0E0@1,0L0@1,0E0@2,0L0@2,0B0\n1F0,1B0\n2F0,2B0\n");
}

static void messages_that_have_no_place(void **state) {
  (void)state;
  static const fault_t faults[] = {
      {"0F0,0SEND_F0,0B0,1RECV_F0\n1F0,1B0\n", "row 1, column 4, cell \"1RECV_F0\": virtual stage 1 is on row 2"},
      {"0F0,0B0,7SEND_F0\n", "row 1, column 3, cell \"7SEND_F0\": no operation of virtual stage 7"},
      {"0F0,0B0,1RESHARD\n1F0,1B0\n", "row 1, column 3, cell \"1RESHARD\": virtual stage 1 is on row 2"},
      {"0F0,0SEND_F0,0RECV_B0,0B0,0SEND_F7\n1RECV_F0,1F0,1B0,1SEND_B0\n",
       "row 1, column 5, cell \"0SEND_F7\": there is only 1 micro-batch"},
      {"0F0,0SEND_F0.1,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n",
       "row 1, column 2, cell \"0SEND_F0.1\": there is only 1 slice"},
      {"0F0,0SEND_F0,1RECV_F0,1F0,1B0,0B0\n",
       "row 1, column 2, cell \"0SEND_F0\": virtual stages 0 and 1 are on the same row, where nothing is sent"},
      {"0F0,1RECV_F0,1F0,1B0,0B0\n", "row 1, column 2, cell \"1RECV_F0\": virtual stages 1 and 0 are on the same row"},
      {"0F0,1F0,1B0,0RECV_B0,0B0\n", "row 1, column 4, cell \"0RECV_B0\": virtual stages 0 and 1 are on the same row"},
      {"0RECV_F0,0F0,0B0\n",
       "row 1, column 1, cell \"0RECV_F0\": nobody sends what it receives: virtual stage 0 is the first"},
      {"0F0,0SEND_F0,0B0\n",
       "row 1, column 2, cell \"0SEND_F0\": nobody receives what it sends: virtual stage 0 is the last"},
      {"0F0,0SEND_F0,0SEND_B0\n1RECV_F0,1F0\n",
       "row 1, column 3, cell \"0SEND_B0\": nobody receives what it sends: virtual stage 0 is the first"},
      {"0F0,0SEND_F0\n1RECV_F0,1F0,1SEND_B0\n", "row 2, column 3, cell \"1SEND_B0\": there is no 1B0"},
  };
  REFUSE_ALL(faults)
}

static void messages_that_are_missing_or_double(void **state) {
  (void)state;
  static const fault_t faults[] = {
      {"0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0\n",
       "row 1, column 3, cell \"0RECV_B0\": nobody sends what it receives: row 2 has no 1SEND_B0"},
      {"0F0,0SEND_F0,0B0\n1F0,1B0\n",
       "row 1, column 2, cell \"0SEND_F0\": nobody receives what it sends: row 2 has no 1RECV_F0"},
      {"0F0,0SEND_F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0\n", "row 1, column 3, cell \"0SEND_F0\": a second time"},
      {"0F0,0SEND_F0,0RECV_B0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n",
       "row 1, column 4, cell \"0RECV_B0\": a second time"},
      // All backward ones, all forward ones, those of one micro-batch
      {"0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0\n",
       "row 1, column 3, cell \"0B0\": its 0RECV_B0 is missing: a file has all messages or none"},
      {"0F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0\n", "row 1, column 1, cell \"0F0\": its 0SEND_F0 is missing"},
      {"0F0,0SEND_F0,0F1,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n",
       "row 1, column 3, cell \"0F1\": its 0SEND_F1 is missing"},
      // Waits
      {"0F0,0WAIT_SEND_F0,0B0\n1F0,1B0\n", "row 1, column 2, cell \"0WAIT_SEND_F0\": waits for what is not sent"},
      {"0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0WAIT_SEND_F0,0RECV_B1,0B1\n"
       "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n",
       "row 1, column 4, cell \"0SEND_F1\": 0WAIT_SEND_F1 is missing: a file waits for all it sends that way, or for "
       "none"},
  };
  REFUSE_ALL(faults)
}

static void messages_in_the_wrong_order(void **state) {
  (void)state;
  static const fault_t faults[] = {
      {"0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1RECV_F0,1B0,1SEND_B0\n",
       "row 2, column 2, cell \"1RECV_F0\": is received after 1F0 in column 1, which needs it"},
      {"0F0,0SEND_F0,0B0,0RECV_B0\n1RECV_F0,1F0,1B0,1SEND_B0\n",
       "row 1, column 4, cell \"0RECV_B0\": is received after 0B0 in column 3"},
      {"0F0,0SEND_F0,0I0,0RECV_B0,0W0\n1RECV_F0,1F0,1B0,1SEND_B0\n",
       "row 1, column 4, cell \"0RECV_B0\": is received after 0B0 in column 3"},
      {"0SEND_F0,0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n",
       "row 1, column 1, cell \"0SEND_F0\": is sent before 0F0 in column 2, which makes it"},
      {"0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1SEND_B0,1B0\n",
       "row 2, column 3, cell \"1SEND_B0\": is sent before 1B0 in column 4, which makes it"},
      {"0F0,0WAIT_SEND_F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0\n",
       "row 1, column 2, cell \"0WAIT_SEND_F0\": waits for what is sent after it"},
      // Sends in another order than receives
      {"0F0,0F1,0SEND_F1,0SEND_F0,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n",
       "row 1, column 3, cell \"0SEND_F1\": a deadlock, messages in crossed order: 0SEND_F1 (row 1, column 3) waits "
       "for "
       "1RECV_F1 (row 2, column 3), behind 1RECV_F0 (row 2, column 1), which waits for 0SEND_F0 (row 1, column 4), "
       "behind 0SEND_F1 (row 1, column 3)"},
      // Both rows send first
      {"0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n",
       "row 1, column 4, cell \"0SEND_F1\": a deadlock, messages in crossed order"},
      // Three rows in a ring, each of which sends before it receives
      {"0F0,0SEND_F0,0F1,0SEND_F1,3RECV_F0,3F0,3SEND_F0,3RECV_F1,3F1,3SEND_F1\n"
       "1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1,4RECV_F0,4F0,4SEND_F0,4RECV_F1,4F1,4SEND_F1\n"
       "2RECV_F0,2F0,2RECV_F1,2F1,2SEND_F1,2SEND_F0,5RECV_F0,5F0,5RECV_F1,5F1\n",
       "a deadlock, messages in crossed order"},
  };
  REFUSE_ALL(faults)
}

// The same orders with messages as PyTorch's lowering places them, one with receives as late as they can be.
static void messages_that_can_pass(void **state) {
  (void)state;
  take("0F0,0F1,0SEND_F0,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n");
  take("0F0,0SEND_F0,0F1,0RECV_B0,0SEND_F1,0B0,0RECV_B1,0B1\n1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n");
  take("0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F0,1F0,1RECV_F1,1F1\n"); // forwards alone
  take("0UNSHARD,0F0,0SEND_F0,0RECV_B0,0I0,0W0,0REDUCE_GRAD,0RESHARD\n1RECV_F0,1F0,1B0,1SEND_B0\n");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(cells_that_cannot_be_read),
      cmocka_unit_test(bytes_that_are_no_text),
      cmocka_unit_test(stages_that_are_not_there),
      cmocka_unit_test(operations_that_are_missing_or_double),
      cmocka_unit_test(stores_that_cannot_have_the_block),
      cmocka_unit_test(messages_that_have_no_place),
      cmocka_unit_test(messages_that_are_missing_or_double),
      cmocka_unit_test(messages_in_the_wrong_order),
      cmocka_unit_test(messages_that_can_pass),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
