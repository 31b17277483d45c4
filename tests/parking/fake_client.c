// SPDX-License-Identifier: Apache-2.0
#include "parking/fake_client.h"

#include "base/random.h"
#include "datapath/block.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define CLIENTS 16

typedef enum { EVICT, LOAD, SHOW } operation_type_t;
typedef enum { EMPTY, EVICTING, FULL, LOADING, UNKNOWN } slot_state_t;

typedef struct operation {
  bool used, over, cancelled;
  uint32_t serial;
  operation_type_t type;
  uint64_t store_slot, bytes, checksum;
  uint8_t *memory;
  bl_error_t err;
} operation_t;

typedef struct store_slot {
  slot_state_t state;
  uint8_t *block;
  uint64_t bytes;
} store_slot_t;

struct bl_client {
  bl_client_opened_fn opened;
  void (*closed)(void *context);
  void (*on_end)(void *context, bl_client_t *client, bl_client_ticket_t ticket);
  void *context;
  bool open, closing;
  bl_error_t lost;
  store_slot_t store_slots[FAKE_SLOTS]; // slot i + 1
  uint32_t store_slot_count;
  operation_t operations[BL_CLIENT_TICKETS];
  bl_client_region_t regions[64];
  size_t region_count;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static bl_client_t *clients[CLIENTS]; // in the order in which they were opened
static unsigned client_count;
static const void *starts[FAKE_STARTS];
static unsigned start_count;
static uint64_t chance_key, chance_count;

static uint64_t chance(uint64_t bound) {
  return bl_random_below(chance_key, chance_count++, bound);
}

static bool crosses;

void fake_cross(bool far) {
  crosses = far;
}

void fake_reset(uint64_t seed) {
  assert_int_equal(client_count, 0);
  chance_key = seed;
  chance_count = start_count = 0;
  crosses = false;
}

// ---- looks ----------------------------------------------------------------------------------------------------------

bl_client_t *fake_client(void) {
  pthread_mutex_lock(&mutex);
  bl_client_t *client = client_count > 0 ? clients[client_count - 1] : NULL;
  pthread_mutex_unlock(&mutex);
  return client;
}

unsigned fake_client_count(void) {
  pthread_mutex_lock(&mutex);
  const unsigned count = client_count;
  pthread_mutex_unlock(&mutex);
  return count;
}

// [mutex]
static operation_t *under_way(bl_client_t *client, const void *memory) {
  for (size_t i = 0; i < BL_CLIENT_TICKETS; i++) {
    operation_t *operation = &client->operations[i];
    if (operation->used && !operation->over && operation->memory == memory) {
      return operation;
    }
  }
  return NULL;
}

bool fake_touches(const void *memory) {
  bool found = false;
  pthread_mutex_lock(&mutex);
  for (unsigned i = 0; i < client_count; i++) {
    found = found || under_way(clients[i], memory) != NULL;
  }
  pthread_mutex_unlock(&mutex);
  return found;
}

unsigned fake_under_way(const bl_client_t *client) {
  unsigned count = 0;
  pthread_mutex_lock(&mutex);
  for (size_t i = 0; i < BL_CLIENT_TICKETS; i++) {
    const operation_t *operation = &client->operations[i];
    count += operation->used && !operation->over && operation->type != SHOW;
  }
  pthread_mutex_unlock(&mutex);
  return count;
}

bool fake_is_cancelled(bl_client_t *client, const void *memory) {
  pthread_mutex_lock(&mutex);
  const operation_t *operation = under_way(client, memory);
  const bool cancelled = operation != NULL && operation->cancelled;
  pthread_mutex_unlock(&mutex);
  return cancelled;
}

bool fake_is_closing(const bl_client_t *client) {
  pthread_mutex_lock(&mutex);
  const bool closing = client->closing;
  pthread_mutex_unlock(&mutex);
  return closing;
}

unsigned fake_slots_used(const bl_client_t *client) {
  unsigned count = 0;
  pthread_mutex_lock(&mutex);
  for (uint32_t i = 0; i < client->store_slot_count; i++) {
    count += client->store_slots[i].state != EMPTY;
  }
  pthread_mutex_unlock(&mutex);
  return count;
}

unsigned fake_starts(const void *memory[FAKE_STARTS]) {
  pthread_mutex_lock(&mutex);
  memcpy(memory, starts, sizeof starts);
  const unsigned count = start_count;
  pthread_mutex_unlock(&mutex);
  return count;
}

// ---- what the test makes happen -------------------------------------------------------------------------------------

static bl_error_t error_of(bl_status_t status, const char *text) {
  bl_error_t err = {0};
  if (status != BL_OK) {
    (void)bl_error_set(&err, status, "%s", text);
  }
  return err;
}

// [mutex] on entry; without it on exit
static void end_opening(bl_client_t *client, bl_status_t status, const char *text) {
  const bl_error_t err = error_of(status, text);
  assert_false(client->open);
  client->open = true;
  client->lost = err;
  pthread_mutex_unlock(&mutex);
  client->opened(client->context, client, &err);
}

void fake_open(bl_client_t *client, bl_status_t status, const char *text) {
  pthread_mutex_lock(&mutex);
  end_opening(client, status, text);
}

// [mutex] The last byte moves, and the slot is in the state in which the client leaves it.
static void finish(bl_client_t *client, operation_t *operation, bl_status_t status) {
  if (operation->type == SHOW) {
    return;
  }
  store_slot_t *store_slot = &client->store_slots[operation->store_slot - 1];
  if (operation->type == EVICT && status == BL_OK) {
    assert_int_equal(bl_block_checksum(operation->memory, operation->bytes), operation->checksum);
    memcpy(store_slot->block, operation->memory, operation->bytes);
  } else if (operation->type == LOAD && status == BL_OK) {
    memcpy(operation->memory, store_slot->block, operation->bytes);
  } else if (operation->type == LOAD && status == BL_DATA_LOSS) {
    memset(operation->memory, 0, operation->bytes);
  }
  const bool kept = operation->type == EVICT ? status == BL_OK : status != BL_OK && status != BL_DATA_LOSS;
  const bool doubtful = operation->type == EVICT && status == BL_CANCELLED;
  store_slot->state = doubtful ? UNKNOWN : kept ? FULL : EMPTY;
  if (store_slot->state == EMPTY) {
    free(store_slot->block);
    store_slot->block = NULL;
  }
}

// [mutex] on entry; without it on exit
static void end_operation(bl_client_t *client, operation_t *operation, bl_status_t status, const char *text) {
  const bl_client_ticket_t ticket = {.index = (uint32_t)(operation - client->operations), .serial = operation->serial};
  finish(client, operation, status);
  operation->err = error_of(status, text);
  operation->over = true;
  pthread_mutex_unlock(&mutex);
  client->on_end(client->context, client, ticket);
  pthread_mutex_lock(&mutex);
  assert_true(!operation->used || operation->serial != ticket.serial); // it was waited for
  pthread_mutex_unlock(&mutex);
}

void fake_end(bl_client_t *client, const void *memory, bl_status_t status, const char *text) {
  pthread_mutex_lock(&mutex);
  operation_t *operation = under_way(client, memory);
  assert_non_null(operation);
  end_operation(client, operation, status, text);
}

// [mutex] The one after a random place; NULL: nothing is under way.
static operation_t *any_operation(bl_client_t *client) {
  const size_t from = chance(BL_CLIENT_TICKETS);
  for (size_t i = 0; i < BL_CLIENT_TICKETS; i++) {
    operation_t *operation = &client->operations[(from + i) % BL_CLIENT_TICKETS];
    if (operation->used && !operation->over) {
      return operation;
    }
  }
  return NULL;
}

static bool end_one_cancelled(bl_client_t *client) {
  pthread_mutex_lock(&mutex);
  operation_t *operation = any_operation(client);
  if (operation == NULL) {
    pthread_mutex_unlock(&mutex);
    return false;
  }
  end_operation(client, operation, BL_CANCELLED, "the client is being closed");
  return true;
}

void fake_close(bl_client_t *client) {
  while (end_one_cancelled(client)) {
  }
  pthread_mutex_lock(&mutex);
  assert_true(client->closing);
  unsigned i = 0;
  while (clients[i] != client) {
    i++;
  }
  memmove(&clients[i], &clients[i + 1], (client_count - i - 1) * sizeof clients[0]);
  client_count--;
  pthread_mutex_unlock(&mutex);
  client->closed(client->context);
  for (uint32_t r = 0; r < FAKE_SLOTS; r++) {
    free(client->store_slots[r].block);
  }
  free(client);
}

void fake_close_all(void) {
  for (unsigned i = 0; i < fake_client_count();) {
    if (fake_is_closing(clients[i])) {
      fake_close(clients[i]);
    } else {
      i++;
    }
  }
}

// ---- what chance makes happen ---------------------------------------------------------------------------------------

static bl_status_t outcome_of(unsigned trouble, operation_type_t type) {
  static const bl_status_t troubles[] = {BL_DATA_LOSS, BL_IO, BL_DATA_LOSS, BL_IO, BL_UNAVAILABLE, BL_FENCED};
  if (chance(1000) >= trouble) {
    return BL_OK;
  }
  const bl_status_t status = troubles[chance(sizeof troubles / sizeof troubles[0])];
  return type == SHOW && status == BL_DATA_LOSS ? BL_EXHAUSTED : status;
}

// [mutex] Something reads the source, or writes the destination.
static void touch(const operation_t *operation) {
  if (operation->type == EVICT) {
    (void)bl_block_checksum(operation->memory, operation->bytes);
  } else if (operation->type == LOAD) {
    memset(operation->memory, (int)chance(256), operation->bytes);
  }
}

// [mutex] on entry; without it on exit. False: nothing can happen with it.
static bool step_of(bl_client_t *client, unsigned trouble) {
  const bool closing = client->closing, opening = !client->open && (!closing || chance(2) == 0);
  operation_t *operation = any_operation(client);
  if (operation != NULL && chance(3) == 0) {
    touch(operation);
    pthread_mutex_unlock(&mutex);
  } else if (operation != NULL && (closing || operation->cancelled)) {
    end_operation(client, operation, chance(8) == 0 ? BL_OK : BL_CANCELLED, "cancelled");
  } else if (operation != NULL) {
    end_operation(client, operation, outcome_of(trouble, operation->type), "trouble");
  } else if (opening) {
    end_opening(client, chance(1000) < trouble ? BL_UNAVAILABLE : BL_OK, "trouble");
  } else {
    pthread_mutex_unlock(&mutex);
    if (closing) {
      fake_close(client);
    }
    return closing;
  }
  return true;
}

bool fake_step(unsigned trouble) {
  for (unsigned i = 0, from = (unsigned)chance(CLIENTS); i < CLIENTS; i++) {
    pthread_mutex_lock(&mutex);
    bl_client_t *client = client_count > 0 ? clients[(from + i) % client_count] : NULL;
    if (client != NULL && client->open && !client->closing && chance(2000) < trouble) {
      client->lost = error_of(BL_UNAVAILABLE, "trouble");
    }
    if (client == NULL) {
      pthread_mutex_unlock(&mutex);
      return false;
    }
    if (step_of(client, trouble)) {
      return true;
    }
  }
  return false;
}

// ---- client.h -------------------------------------------------------------------------------------------------------

bl_status_t bl_client_open_start(const bl_client_options_t *options, const bl_client_demand_t *demands,
                                 size_t demand_count, bl_client_opened_fn opened, bl_client_t **client,
                                 bl_error_t *err) {
  assert_int_equal(demand_count, 1);
  assert_true(demands->count <= FAKE_SLOTS);
  bl_client_t *made = calloc(1, sizeof *made);
  if (made == NULL || options->store[0] == '\0') {
    free(made);
    return bl_error_set(err, BL_INVALID, "no address");
  }
  made->opened = opened;
  made->on_end = options->on_end;
  made->context = options->context;
  made->store_slot_count = demands->count;
  for (size_t i = 0; i < options->region_count; i++) {
    made->regions[made->region_count++] = options->regions[i];
  }
  pthread_mutex_lock(&mutex);
  assert_true(client_count < CLIENTS);
  clients[client_count++] = made;
  pthread_mutex_unlock(&mutex);
  *client = made;
  return BL_OK;
}

void bl_client_close_start(bl_client_t *client, void (*closed)(void *context)) {
  pthread_mutex_lock(&mutex);
  assert_false(client->closing);
  client->closing = true;
  client->closed = closed;
  pthread_mutex_unlock(&mutex);
}

// [mutex]
static operation_t *begin(bl_client_t *client, operation_type_t type, void *memory, bl_client_ticket_t *ticket) {
  uint32_t slot = 0;
  while (client->operations[slot].used) {
    assert_true(++slot < BL_CLIENT_TICKETS); // it would wait
  }
  operation_t *operation = &client->operations[slot];
  *operation = (operation_t){.used = true, .serial = operation->serial + 1, .type = type, .memory = memory};
  *ticket = (bl_client_ticket_t){.index = slot, .serial = operation->serial};
  if (type != SHOW) {
    starts[start_count++ % FAKE_STARTS] = memory;
  }
  return operation;
}

// [mutex]
static bl_status_t usable(const bl_client_t *client, bl_error_t *err) {
  assert_true(client->open && !client->closing);
  *err = client->lost;
  return client->lost.status;
}

bl_status_t bl_client_register_start(bl_client_t *client, const bl_client_region_t *source, uint32_t *number,
                                     bl_client_ticket_t *ticket, bl_error_t *err) {
  pthread_mutex_lock(&mutex);
  bl_status_t status = usable(client, err);
  if (status == BL_OK) {
    *number = (uint32_t)client->region_count;
    client->regions[client->region_count++] = *source;
    (void)begin(client, SHOW, NULL, ticket);
  }
  pthread_mutex_unlock(&mutex);
  return status;
}

size_t bl_client_slots(bl_client_t *client, uint64_t *store_slots, size_t capacity) {
  for (size_t i = 0; i < client->store_slot_count && i < capacity; i++) {
    store_slots[i] = i + 1;
  }
  return client->store_slot_count;
}

bl_status_t bl_client_evict_start_known(bl_client_t *client, uint64_t store_slot, const void *source, uint64_t bytes,
                                        uint64_t checksum, const bl_client_label_t *label, bl_client_ticket_t *ticket,
                                        bl_error_t *err) {
  (void)label;
  pthread_mutex_lock(&mutex);
  bl_status_t status = usable(client, err);
  if (status == BL_OK) {
    bool lies_there = false;
    for (size_t i = 0; i < client->region_count; i++) {
      const uint8_t *base = client->regions[i].base, *at = source;
      lies_there = lies_there || (at >= base && at + bytes <= base + client->regions[i].bytes);
    }
    assert_true(lies_there);
    assert_null(under_way(client, NULL)); // every source has been shown
    assert_in_range(store_slot, 1, client->store_slot_count);
    assert_int_equal(client->store_slots[store_slot - 1].state, EMPTY);
    operation_t *operation = begin(client, EVICT, (void *)(uintptr_t)source, ticket);
    operation->store_slot = store_slot;
    operation->bytes = bytes;
    operation->checksum = checksum;
    client->store_slots[store_slot - 1] = (store_slot_t){.state = EVICTING, .block = malloc(bytes), .bytes = bytes};
  }
  pthread_mutex_unlock(&mutex);
  return status;
}

bl_status_t bl_client_load_start(bl_client_t *client, uint64_t store_slot, void *destination, uint64_t bytes,
                                 bl_client_ticket_t *ticket, bl_error_t *err) {
  pthread_mutex_lock(&mutex);
  bl_status_t status = usable(client, err);
  if (status == BL_OK) {
    assert_in_range(store_slot, 1, client->store_slot_count);
    assert_int_equal(client->store_slots[store_slot - 1].state, FULL);
    assert_int_equal(client->store_slots[store_slot - 1].bytes, bytes);
    client->store_slots[store_slot - 1].state = LOADING;
    operation_t *operation = begin(client, LOAD, destination, ticket);
    operation->store_slot = store_slot;
    operation->bytes = bytes;
  }
  pthread_mutex_unlock(&mutex);
  return status;
}

bl_status_t bl_client_wait(bl_client_t *client, bl_client_ticket_t ticket, uint64_t deadline_ns, bl_error_t *err) {
  (void)deadline_ns;
  pthread_mutex_lock(&mutex);
  operation_t *operation = &client->operations[ticket.index];
  assert_true(operation->used && operation->serial == ticket.serial && operation->over);
  operation->used = false;
  *err = operation->err;
  pthread_mutex_unlock(&mutex);
  return err->status;
}

void bl_client_cancel(bl_client_t *client, bl_client_ticket_t ticket) {
  pthread_mutex_lock(&mutex);
  assert_false(client->closing);
  operation_t *operation = &client->operations[ticket.index];
  assert_true(operation->used && operation->serial == ticket.serial);
  operation->cancelled = true;
  pthread_mutex_unlock(&mutex);
}

bl_status_t bl_client_state(bl_client_t *client, bl_error_t *err) {
  pthread_mutex_lock(&mutex);
  assert_false(client->closing);
  *err = client->lost;
  pthread_mutex_unlock(&mutex);
  return err->status;
}

bl_client_path_t bl_client_path(bl_client_t *client, char text[BL_CLIENT_PATH_BYTES]) {
  (void)client;
  strcpy(text, "shm: same machine");
  return BL_CLIENT_PATH_SHM;
}

bool bl_client_crosses(const bl_client_t *client) {
  (void)client;
  return crosses;
}
