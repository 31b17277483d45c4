// SPDX-License-Identifier: Apache-2.0
// Tickets: the operations of callers, their starts and ends.
#include "client/client_core.h"
#include "sys/clock.h"
#include "sys/condition.h"

#include <inttypes.h>

// ---- tickets --------------------------------------------------------------------------------------------------------

bl__operation_t *bl__operation_new(bl_client_t *client, bl__operation_type_t type) {
  bl__operation_t *operation;
  pthread_mutex_lock(&client->mutex);
  while ((operation = bl__requests_claim(&client->requests, type,
                                         bl_clock_now_ns() + client->deadline_ms * BL_NS_PER_MS)) == NULL) {
    pthread_cond_wait(&client->changed, &client->mutex);
  }
  pthread_mutex_unlock(&client->mutex);
  return operation;
}

void bl__operation_submit(bl_client_t *client, bl__operation_t *operation, bl_client_ticket_t *ticket) {
  *ticket =
      (bl_client_ticket_t){.index = (uint32_t)(operation - client->requests.operations), .serial = operation->serial};
  pthread_mutex_lock(&client->mutex);
  bl__requests_submit(&client->requests, operation);
  pthread_mutex_unlock(&client->mutex);
  bl__wake(client);
}

void bl__operation_over(bl_client_t *client, bl__operation_t *operation) {
  bl__requests_over(&client->requests, operation);
  pthread_cond_signal(&client->done[operation - client->requests.operations]);
}

static void free_operation(bl_client_t *client, bl__operation_t *operation) {
  bl__requests_free(&client->requests, operation);
  pthread_cond_signal(&client->changed);
}

// [m] Returns the operation of a ticket. NULL: the ticket has ended, or never existed.
static bl__operation_t *find(bl_client_t *client, bl_client_ticket_t ticket) {
  bl__operation_t *operation = ticket.index < BL_CLIENT_TICKETS ? &client->requests.operations[ticket.index] : NULL;
  const bool used = operation != NULL && operation->state != BL__OPERATION_FREE;
  return used && operation->serial == ticket.serial ? operation : NULL;
}

// [m] False: the deadline passed first.
static bool wait_over(bl_client_t *client, bl__operation_t *operation, uint64_t deadline_ns) {
  pthread_cond_t *done = &client->done[operation - client->requests.operations];
  while (operation->state != BL__OPERATION_OVER && (deadline_ns == UINT64_MAX || bl_clock_now_ns() < deadline_ns)) {
    // UINT64_MAX is safe: the operation has its own deadline.
    (void)bl_condition_wait(done, &client->mutex, deadline_ns);
  }
  return operation->state == BL__OPERATION_OVER;
}

bl_status_t bl_client_wait(bl_client_t *client, bl_client_ticket_t ticket, uint64_t deadline_ns, bl_error_t *err) {
  bl_status_t status;
  if (bl__is_forked(client, err)) {
    return BL_PRECONDITION;
  }
  pthread_mutex_lock(&client->mutex);
  bl__operation_t *operation = find(client, ticket);
  if (operation == NULL) {
    status = bl_error_set(err, BL_INVALID, "the ticket has ended already");
  } else if (!wait_over(client, operation, deadline_ns)) {
    status = bl_error_set(err, BL_DEADLINE, "the transfer of slot %" PRIu64 " is still in flight", operation->slot);
  } else {
    status = operation->err.status;
    if (err != NULL) {
      *err = operation->err;
    }
    free_operation(client, operation);
  }
  pthread_mutex_unlock(&client->mutex);
  return status;
}

bool bl_client_poll(bl_client_t *client, bl_client_ticket_t ticket) {
  if (bl__is_forked(client, NULL)) {
    return true;
  }
  pthread_mutex_lock(&client->mutex);
  const bl__operation_t *operation = find(client, ticket);
  bool over = operation == NULL || operation->state == BL__OPERATION_OVER;
  pthread_mutex_unlock(&client->mutex);
  return over;
}

void bl_client_cancel(bl_client_t *client, bl_client_ticket_t ticket) {
  if (bl__is_forked(client, NULL)) {
    return;
  }
  pthread_mutex_lock(&client->mutex);
  bl__operation_t *operation = find(client, ticket);
  if (operation != NULL) {
    bl__requests_cancel(&client->requests, operation);
  }
  pthread_mutex_unlock(&client->mutex);
  bl__wake(client);
}

void bl_client_abandon(bl_client_t *client, bl_client_ticket_t ticket) {
  if (bl__is_forked(client, NULL)) {
    return;
  }
  bl_client_cancel(client, ticket);
  pthread_mutex_lock(&client->mutex);
  bl__operation_t *operation = find(client, ticket);
  // A cancelled operation ends at the latest after the piece of memory being copied, whatever the store does.
  if (operation != NULL && wait_over(client, operation, UINT64_MAX)) {
    free_operation(client, operation);
  }
  pthread_mutex_unlock(&client->mutex);
}

// ---- starts ---------------------------------------------------------------------------------------------------------

// Begins a use of a slot by a new operation. `part`: only of `bytes` of its block, after the first `skip`.
static bl_status_t begin_use(bl_client_t *client, bl__operation_type_t type, uint64_t slot, uint64_t skip,
                             uint64_t bytes, bool part, bl__operation_t **operation, bl_error_t *err) {
  bl__operation_t *claimed = bl__operation_new(client, type);
  claimed->skip = skip;
  claimed->take = part ? bytes : 0;
  pthread_mutex_lock(&client->mutex);
  bl_status_t status = client->lost.status;
  if (status != BL_OK) {
    bl__requests_free(&client->requests, claimed);
    if (err != NULL) {
      *err = client->lost;
    }
  } else {
    status = bl__requests_use(&client->requests, claimed, slot, bytes, err);
  }
  if (status != BL_OK) {
    pthread_cond_signal(&client->changed);
  }
  pthread_mutex_unlock(&client->mutex);
  *operation = claimed;
  return status;
}

// Finds the region that contains the bytes; on tcp they may lie anywhere.
static bool find_region(bl_client_t *client, const uint8_t *at, uint64_t bytes, uint32_t *number, uint64_t *offset) {
  bool found = client->by == BL_PATH_TCP;
  pthread_mutex_lock(&client->mutex);
  for (uint32_t i = 0; i < client->region_capacity && !found; i++) {
    const bl__client_region_t *region = &client->regions[i];
    if (region->used && region->registered && at >= region->base && at < region->base + region->bytes &&
        bytes <= (uint64_t)(region->base + region->bytes - at)) {
      *number = i;
      *offset = (uint64_t)(at - region->base);
      found = true;
    }
  }
  pthread_mutex_unlock(&client->mutex);
  return found;
}

static bl_status_t start_evict(bl_client_t *client, uint64_t id, const void *from, uint64_t bytes,
                               const uint64_t *checksum, const bl_client_label_t *label, bl_client_ticket_t *ticket,
                               bl_error_t *err) {
  uint32_t region = 0;
  uint64_t offset = 0;
  if (bl__is_forked(client, err)) {
    return BL_PRECONDITION;
  }
  if (bytes == 0 || from == NULL || !find_region(client, from, bytes, &region, &offset)) {
    return bl_error_set(err, BL_INVALID, "cannot evict %" PRIu64 " %s: %s", bytes, bytes == 1 ? "byte" : "bytes",
                        bytes == 0     ? "a block has at least one"
                        : from == NULL ? "the source is NULL"
                                       : "they lie in no region of the client");
  }
  bl__operation_t *operation;
  bl_status_t status = begin_use(client, BL__EVICT, id, 0, bytes, false, &operation, err);
  if (status == BL_OK) {
    operation->from = from;
    operation->region = region;
    operation->region_offset = offset;
    operation->known = checksum != NULL;
    operation->checksum = checksum != NULL ? *checksum : 0;
    operation->label = label != NULL ? *label : (bl_client_label_t){0};
    bl__operation_submit(client, operation, ticket);
  }
  return status;
}

bl_status_t bl_client_evict_start(bl_client_t *client, uint64_t id, const void *from, uint64_t bytes,
                                  const bl_client_label_t *label, bl_client_ticket_t *ticket, bl_error_t *err) {
  return start_evict(client, id, from, bytes, NULL, label, ticket, err);
}

bl_status_t bl_client_evict_start_known(bl_client_t *client, uint64_t id, const void *from, uint64_t bytes,
                                        uint64_t checksum, const bl_client_label_t *label, bl_client_ticket_t *ticket,
                                        bl_error_t *err) {
  return start_evict(client, id, from, bytes, &checksum, label, ticket, err);
}

static bl_status_t no_destination(uint64_t id, bl_error_t *err) {
  return bl_error_set(err, BL_INVALID, "cannot load from slot %" PRIu64 ": the destination is NULL", id);
}

static bl_status_t start_load(bl_client_t *client, uint64_t id, void *to, uint64_t bytes, bool keeps,
                              bl_client_ticket_t *ticket, bl_error_t *err) {
  bl__operation_t *operation;
  if (bl__is_forked(client, err)) {
    return BL_PRECONDITION;
  }
  if (to == NULL) {
    return no_destination(id, err);
  }
  bl_status_t status = begin_use(client, BL__LOAD, id, 0, bytes, false, &operation, err);
  if (status == BL_OK) {
    operation->to = to;
    operation->keeps = keeps;
    bl__operation_submit(client, operation, ticket);
  }
  return status;
}

bl_status_t bl_client_load_start(bl_client_t *client, uint64_t id, void *to, uint64_t bytes, bl_client_ticket_t *ticket,
                                 bl_error_t *err) {
  return start_load(client, id, to, bytes, false, ticket, err);
}

bl_status_t bl_client_load_start_kept(bl_client_t *client, uint64_t id, void *to, uint64_t bytes,
                                      bl_client_ticket_t *ticket, bl_error_t *err) {
  return start_load(client, id, to, bytes, true, ticket, err);
}

bl_status_t bl_client_load_part_start(bl_client_t *client, uint64_t id, uint64_t offset, void *to, uint64_t bytes,
                                      bl_client_ticket_t *ticket, bl_error_t *err) {
  bl__operation_t *operation;
  if (bl__is_forked(client, err)) {
    return BL_PRECONDITION;
  }
  if (bytes == 0) {
    return bl_error_set(err, BL_INVALID, "cannot load no bytes of the block in slot %" PRIu64, id);
  }
  if (to == NULL) {
    return no_destination(id, err);
  }
  if (client->device != NULL) {
    return bl_error_set(err, BL_UNIMPLEMENTED, "parts of blocks are loaded into memory of the host only");
  }
  bl_status_t status = begin_use(client, BL__LOAD, id, offset, bytes, true, &operation, err);
  if (status == BL_OK) {
    operation->to = to;
    operation->keeps = true;
    bl__operation_submit(client, operation, ticket);
  }
  return status;
}

bl_status_t bl_client_release_start(bl_client_t *client, uint64_t id, bl_client_ticket_t *ticket, bl_error_t *err) {
  bl__operation_t *operation;
  if (bl__is_forked(client, err)) {
    return BL_PRECONDITION;
  }
  bl_status_t status = begin_use(client, BL__RELEASE, id, 0, 0, false, &operation, err);
  if (status == BL_OK) {
    bl__operation_submit(client, operation, ticket);
  }
  return status;
}

// ---- start and wait in one ------------------------------------------------------------------------------------------

bl_status_t bl_client_evict(bl_client_t *client, uint64_t slot, const void *region, uint64_t bytes,
                            const bl_client_label_t *label, bl_error_t *err) {
  bl_client_ticket_t ticket = {0};
  bl_status_t status = bl_client_evict_start(client, slot, region, bytes, label, &ticket, err);
  return status == BL_OK ? bl_client_wait(client, ticket, UINT64_MAX, err) : status;
}

bl_status_t bl_client_evict_known(bl_client_t *client, uint64_t slot, const void *region, uint64_t bytes,
                                  uint64_t checksum, const bl_client_label_t *label, bl_error_t *err) {
  bl_client_ticket_t ticket = {0};
  bl_status_t status = start_evict(client, slot, region, bytes, &checksum, label, &ticket, err);
  return status == BL_OK ? bl_client_wait(client, ticket, UINT64_MAX, err) : status;
}

bl_status_t bl_client_load(bl_client_t *client, uint64_t slot, void *destination, uint64_t bytes, bl_error_t *err) {
  bl_client_ticket_t ticket = {0};
  bl_status_t status = bl_client_load_start(client, slot, destination, bytes, &ticket, err);
  return status == BL_OK ? bl_client_wait(client, ticket, UINT64_MAX, err) : status;
}

bl_status_t bl_client_load_kept(bl_client_t *client, uint64_t slot, void *destination, uint64_t bytes,
                                bl_error_t *err) {
  bl_client_ticket_t ticket = {0};
  bl_status_t status = bl_client_load_start_kept(client, slot, destination, bytes, &ticket, err);
  return status == BL_OK ? bl_client_wait(client, ticket, UINT64_MAX, err) : status;
}

bl_status_t bl_client_load_part(bl_client_t *client, uint64_t slot, uint64_t offset, void *destination, uint64_t bytes,
                                bl_error_t *err) {
  bl_client_ticket_t ticket = {0};
  bl_status_t status = bl_client_load_part_start(client, slot, offset, destination, bytes, &ticket, err);
  return status == BL_OK ? bl_client_wait(client, ticket, UINT64_MAX, err) : status;
}

bl_status_t bl_client_release(bl_client_t *client, uint64_t slot, bl_error_t *err) {
  bl_client_ticket_t ticket = {0};
  bl_status_t status = bl_client_release_start(client, slot, &ticket, err);
  return status == BL_OK ? bl_client_wait(client, ticket, UINT64_MAX, err) : status;
}
