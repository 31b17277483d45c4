// SPDX-License-Identifier: Apache-2.0
#include "page/stores_wire.h"

#include "rpc/channel.h"

#include "ballast/v1/store.pb-c.h"

#include <stdlib.h>
#include <string.h>

#define DEADLINE_MS 5000

typedef struct remote {
  bl_rpc_channel_t *channel;
  bool asking;
  json_t *answer; // NULL: none yet
} remote_t;

struct bl_page_stores {
  remote_t *remotes;
  size_t count, devices; // device stores first, then host stores
};

bl_status_t bl_page_stores_create(bl_rpc_t *rpc, const bl_job_t *job, bl_page_stores_t **result, bl_error_t *err) {
  bl_page_stores_t *stores = calloc(1, sizeof *stores);
  const size_t count = bl_job_store_count(job);
  remote_t *remotes = calloc(count + 1, sizeof *remotes);
  if (stores == NULL || remotes == NULL) {
    free(stores);
    free(remotes);
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the page");
  }
  *stores = (bl_page_stores_t){.remotes = remotes, .count = count, .devices = job->services.stores.count};
  for (size_t i = 0; i < count; i++) {
    bl_status_t status = bl_rpc_channel_create(rpc, bl_job_store(job, i), NULL, &remotes[i].channel, err);
    if (status != BL_OK) {
      bl_page_stores_destroy(stores);
      return status;
    }
  }
  *result = stores;
  return BL_OK;
}

void bl_page_stores_destroy(bl_page_stores_t *stores) {
  if (stores == NULL) {
    return;
  }
  for (size_t i = 0; i < stores->count; i++) {
    bl_rpc_channel_destroy(stores->remotes[i].channel);
    json_decref(stores->remotes[i].answer);
  }
  free(stores->remotes);
  free(stores);
}

static json_t *leases_json(const Ballast__V1__StoreStatusResponse *response) {
  json_t *leases = json_object();
  for (size_t i = 0; i < response->n_leases; i++) {
    json_object_set_new(leases, response->leases[i]->name, json_integer((json_int_t)response->leases[i]->count));
  }
  return leases;
}

static void answered(const ProtobufCMessage *output, const bl_error_t *err, void *context) {
  remote_t *remote = context;
  remote->asking = false;
  if (err->status == BL_CANCELLED) {
    return; // the page is being destroyed
  }
  json_decref(remote->answer);
  if (output == NULL) {
    remote->answer = json_pack("{s:b, s:s}", "reachable", 0, "error", err->text);
    return;
  }
  const Ballast__V1__StoreStatusResponse *response = (const Ballast__V1__StoreStatusResponse *)output;
  remote->answer = json_pack("{s:b, s:b, s:I, s:I, s:I, s:I, s:I, s:o}", "reachable", 1, "draining", response->draining,
                             "capacity_bytes", (json_int_t)response->capacity_bytes, "held_bytes",
                             (json_int_t)response->held_bytes, "free_bytes", (json_int_t)response->free_bytes,
                             "in_flight_bytes", (json_int_t)response->in_flight_bytes, "sessions",
                             (json_int_t)response->n_sessions, "leases", leases_json(response));
}

void bl_page_stores_refresh(bl_page_stores_t *stores) {
  for (size_t i = 0; i < stores->count; i++) {
    remote_t *remote = &stores->remotes[i];
    bl_error_t err;
    Ballast__V1__StoreStatusRequest request = BALLAST__V1__STORE_STATUS_REQUEST__INIT;
    if (!remote->asking) {
      remote->asking = bl_rpc_channel_call(remote->channel, &ballast__v1__store__descriptor, "Status", &request.base,
                                           DEADLINE_MS, answered, remote, &err) == BL_OK;
    }
  }
}

json_t *bl_page_stores_json(const bl_page_stores_t *stores) {
  json_t *rows = json_array();
  for (size_t i = 0; i < stores->count; i++) {
    const remote_t *remote = &stores->remotes[i];
    json_t *row = json_pack("{s:I, s:s}", "store", (json_int_t)i, "address", bl_rpc_channel_address(remote->channel));
    if (i >= stores->devices) {
      json_object_set_new(row, "host", json_integer((json_int_t)(i - stores->devices)));
    }
    if (remote->answer != NULL) {
      json_object_update(row, remote->answer);
    }
    json_array_append_new(rows, row);
  }
  return rows;
}
