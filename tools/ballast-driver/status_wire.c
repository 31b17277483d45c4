// SPDX-License-Identifier: Apache-2.0
#include "service_core_wire.h"

#include <stdio.h>
#include <stdlib.h>

void bl__handle_status(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  (void)input;
  bl_driver_service_t *service = context;
  if (service->driver == NULL) {
    (void)bl__refuse_early(service, call);
    return;
  }
  bl_driver_view_t view = bl_driver_look(service->driver);
  size_t count = bl_driver_stage_count(service->driver);
  bl_policies_view_t policies = bl_driver_policies(service->driver);
  Ballast__V1__DriverStatusResponse output = BALLAST__V1__DRIVER_STATUS_RESPONSE__INIT;
  Ballast__V1__DriverIdentity identity = BALLAST__V1__DRIVER_IDENTITY__INIT;
  identity.epoch = view.id.epoch;
  identity.id = view.id.id;
  char page[BL_RPC_ADDRESS_BYTES + 32] = "";
  if (service->page != NULL && service->page[0] != '\0') {
    snprintf(page, sizeof page, "http://%s/", service->page);
  }
  output.page = page;
  output.run = (char *)service->run;
  output.phase = (char *)view.phase;
  output.driver = &identity;
  output.step = view.step;
  output.steps = view.steps;
  output.revision = bl_driver_journal(service->driver)->revision;
  output.waiting_for = view.waiting_for;
  output.waiting_ns = view.waiting_ns;
  output.error = (char *)view.error;
  Ballast__V1__StageHealth *stages = calloc(count, sizeof *stages);
  Ballast__V1__StageHealth **pointers = calloc(count, sizeof(Ballast__V1__StageHealth *));
  for (size_t i = 0; stages != NULL && pointers != NULL && i < count; i++) {
    bl_stage_view_t stage = bl_driver_stage(service->driver, i);
    stages[i] = (Ballast__V1__StageHealth)BALLAST__V1__STAGE_HEALTH__INIT;
    stages[i].stage = (int32_t)i;
    stages[i].address = (char *)stage.address;
    stages[i].reachable = stage.reachable;
    stages[i].own_slots = i < policies.holdings->devices ? policies.holdings->own[i] : 0;
    stages[i].status = stage.status == NULL
                           ? NULL
                           : ballast__v1__stage_status_response__unpack(NULL, stage.status_bytes, stage.status);
    pointers[i] = &stages[i];
    output.n_stages = i + 1;
  }
  output.stages = pointers;
  const bl_stores_t *known = bl_driver_stores(service->driver);
  Ballast__V1__StoreHealth *stores = calloc(bl_stores_count(known) + 1, sizeof *stores);
  Ballast__V1__StoreHealth **store_pointers = calloc(bl_stores_count(known) + 1, sizeof(void *));
  for (size_t d = 0; stores != NULL && store_pointers != NULL && d < bl_stores_count(known); d++) {
    bl_store_view_t store = bl_stores_get(known, d);
    stores[d] = (Ballast__V1__StoreHealth)BALLAST__V1__STORE_HEALTH__INIT;
    stores[d].store = (uint32_t)d;
    stores[d].address = (char *)store.address;
    stores[d].reachable = store.reachable;
    stores[d].draining = store.draining;
    stores[d].process = store.process;
    store_pointers[d] = &stores[d];
    output.n_stores = d + 1;
  }
  output.stores = store_pointers;
  bl_rpc_call_reply(call, &output.base);
  free(stores);
  free(store_pointers);
  for (size_t i = 0; i < output.n_stages; i++) {
    if (stages[i].status != NULL) {
      ballast__v1__stage_status_response__free_unpacked(stages[i].status, NULL);
    }
  }
  free(stages);
  free(pointers);
}
