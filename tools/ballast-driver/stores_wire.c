// SPDX-License-Identifier: Apache-2.0
#include "stores_wire.h"

#include "ballast/v1/store.pb-c.h"

#include <stdlib.h>

#define LOOK_MS   500  // between two calls to a store
#define ANSWER_MS 2000 // deadline of a call

typedef struct store {
  bl_rpc_channel_t *channel;
  uint64_t look_at_ms, began_ms;
  bool looking, looked;
  bl_store_view_t view;
} store_t;

struct bl_stores {
  store_t *stores; // [count]
  size_t count;
};

bl_status_t bl_stores_create(bl_rpc_t *rpc, const bl_job_t *job, bl_stores_t **stores, bl_error_t *err) {
  const size_t count = bl_job_store_count(job);
  bl_stores_t *made = calloc(1, sizeof *made);
  store_t *list = calloc(count + 1, sizeof *list);
  if (made == NULL || list == NULL) {
    free(made);
    free(list);
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the stores of the run");
  }
  made->stores = list;
  for (; made->count < count; made->count++) {
    store_t *store = &list[made->count];
    bl_status_t status = bl_rpc_channel_create(rpc, bl_job_store(job, made->count), NULL, &store->channel, err);
    if (status != BL_OK) {
      bl_stores_destroy(made);
      return bl_error_prefix(err,
                             made->count < job->services.stores.count ? "services.stores" : "services.host_stores");
    }
    store->view.address = bl_rpc_channel_address(store->channel);
  }
  *stores = made;
  return BL_OK;
}

void bl_stores_destroy(bl_stores_t *stores) {
  if (stores == NULL) {
    return;
  }
  for (size_t i = 0; i < stores->count; i++) {
    bl_rpc_channel_destroy(stores->stores[i].channel);
  }
  free(stores->stores);
  free(stores);
}

static void answered(const ProtobufCMessage *output, const bl_error_t *err, void *context) {
  store_t *store = context;
  store->looking = false;
  store->looked = true;
  store->view.reachable = err->status == BL_OK;
  if (err->status == BL_OK) {
    const Ballast__V1__StoreStatusResponse *status = (const Ballast__V1__StoreStatusResponse *)output;
    store->view.seen_ms = store->began_ms;
    store->view.process = status->process;
    store->view.draining = status->draining;
  }
}

static void look(store_t *store, uint64_t now_ms) {
  Ballast__V1__StoreStatusRequest input = BALLAST__V1__STORE_STATUS_REQUEST__INIT;
  bl_error_t err;
  store->look_at_ms = now_ms + LOOK_MS;
  store->began_ms = now_ms;
  store->looking = bl_rpc_channel_call(store->channel, &ballast__v1__store__descriptor, "Status", &input.base,
                                       ANSWER_MS, answered, store, &err) == BL_OK;
}

void bl_stores_tick(bl_stores_t *stores, uint64_t now_ms) {
  for (size_t i = 0; stores != NULL && i < stores->count; i++) {
    if (!stores->stores[i].looking && now_ms >= stores->stores[i].look_at_ms) {
      look(&stores->stores[i], now_ms);
    }
  }
}

void bl_stores_look(bl_stores_t *stores, uint64_t now_ms) {
  for (size_t i = 0; stores != NULL && i < stores->count; i++) {
    stores->stores[i].look_at_ms = now_ms;
  }
  bl_stores_tick(stores, now_ms);
}

size_t bl_stores_count(const bl_stores_t *stores) {
  return stores != NULL ? stores->count : 0;
}

bl_store_view_t bl_stores_get(const bl_stores_t *stores, size_t device) {
  return stores->stores[device].view;
}

bool bl_stores_known(const bl_stores_t *stores) {
  bool known = true;
  for (size_t i = 0; stores != NULL && i < stores->count; i++) {
    known = known && stores->stores[i].looked;
  }
  return known;
}
