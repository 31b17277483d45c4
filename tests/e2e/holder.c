// SPDX-License-Identifier: Apache-2.0
// A holder of leases that does what its standard input says, one command per line, and answers each with one line:
// "ok", or the name of the status and the message. For tests of stores and of those who operate them.
//
//   ballast-holder STORE JOB STAGE SLOTS BYTES      reserves SLOTS slots of BYTES, says "ok" and waits
//   evict N | load N | release N                     the N-th slot, from 0
//   plan SLOTS                                      reserves that many in another plan
//   close                                           gives everything back and ends; so does the end of the input
#include "base/bytes.h"
#include "client/client.h"
#include "lease/granule.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS_MAX 4096

typedef struct holder {
  bl_client_t *client;
  bl_client_region_t source;
  uint64_t slots[SLOTS_MAX], bytes, plan;
  size_t count;
} holder_t;

static void say(bl_status_t status, const bl_error_t *err) {
  if (status == BL_OK) {
    printf("ok\n");
  } else {
    printf("%s %s\n", bl_status_name(status), err->text);
  }
  fflush(stdout);
}

static bl_status_t reserve(holder_t *self, uint32_t slots, bl_error_t *err) {
  bl_client_demand_t demand = {.bytes = self->bytes, .count = slots};
  bl_status_t status = bl_client_reserve(self->client, ++self->plan, &demand, 1, err);
  self->count = bl_client_slots(self->client, self->slots, SLOTS_MAX);
  return status;
}

static bl_status_t obey(holder_t *self, const char *command, size_t number, bl_error_t *err) {
  if (strcmp(command, "plan") == 0) {
    return reserve(self, (uint32_t)number, err);
  }
  if (number >= self->count) {
    return bl_error_set(err, BL_INVALID, "there is no slot %zu", number);
  }
  uint64_t slot = self->slots[number];
  if (strcmp(command, "evict") == 0) {
    memset(self->source.base, (int)(number + 1), self->bytes);
    bl_client_label_t label = {.step = 7, .chunk = 1, .micro_batch = (uint32_t)number};
    return bl_client_evict(self->client, slot, self->source.base, self->bytes, &label, err);
  }
  if (strcmp(command, "load") == 0) {
    return bl_client_load(self->client, slot, self->source.base, self->bytes, err);
  }
  if (strcmp(command, "release") == 0) {
    return bl_client_release(self->client, slot, err);
  }
  return bl_error_set(err, BL_INVALID, "no such command: %s", command);
}

int main(int argc, char **argv) {
  if (argc != 6) {
    fprintf(stderr, "usage: ballast-holder STORE JOB STAGE SLOTS BYTES\n");
    return 2;
  }
  static holder_t self;
  uint32_t slots = (uint32_t)strtoul(argv[4], NULL, 10);
  self.bytes = strtoull(argv[5], NULL, 10);
  bl_error_t err = {0};
  bl_status_t status = bl_client_region_create(self.bytes, &self.source, &err);
  if (status == BL_OK) {
    bl_client_options_t options = {.size = sizeof options,
                                   .store = argv[1],
                                   .job = argv[2],
                                   .stage = (uint32_t)strtoul(argv[3], NULL, 10),
                                   .arena_bytes = (2 * slots + 2) * bl_align_up(self.bytes, BL_LEASE_GRANULE_BYTES),
                                   .regions = &self.source,
                                   .region_count = 1};
    status = bl_client_open(&options, &self.client, &err);
  }
  if (status == BL_OK) {
    status = reserve(&self, slots, &err);
  }
  say(status, &err);
  char line[256], command[32];
  while (status == BL_OK && fgets(line, sizeof line, stdin) != NULL && strncmp(line, "close", 5) != 0) {
    size_t number = 0;
    bl_error_t fault = {0};
    bl_status_t one =
        sscanf(line, "%31s %zu", command, &number) >= 1 ? obey(&self, command, number, &fault) : BL_INVALID;
    say(one, &fault);
  }
  bl_client_close(self.client);
  bl_client_region_destroy(&self.source);
  return bl_status_exit_code(status);
}
