// SPDX-License-Identifier: Apache-2.0
#include "service_core_wire.h"

#include "sys/clock.h"

#include <stdio.h>
#include <stdlib.h>

// Adds as many stages as memory allows; forget_stages frees them.
static void add_stages(const bl_driver_t *driver, Ballast__V1__DriverStatusResponse *output) {
  const size_t count = bl_driver_stage_count(driver);
  const bl_policies_view_t policies = bl_driver_policies(driver);
  Ballast__V1__StageHealth *stages = calloc(count, sizeof *stages);
  output->stages = calloc(count, sizeof(Ballast__V1__StageHealth *));
  if (stages == NULL || output->stages == NULL) {
    free(stages);
    return;
  }
  for (size_t i = 0; i < count; i++) {
    const bl_stage_view_t stage = bl_driver_stage(driver, i);
    stages[i] = (Ballast__V1__StageHealth)BALLAST__V1__STAGE_HEALTH__INIT;
    const bl_coords_t coords = bl_grid_coords(&bl_driver_training(driver)->grid, (uint32_t)i);
    stages[i].stage = (int32_t)coords.stage;
    stages[i].data = coords.data;
    stages[i].tensor = coords.tensor;
    stages[i].address = (char *)stage.address;
    stages[i].reachable = stage.reachable;
    stages[i].age_ns = stage.status_age_ms * 1000000;
    stages[i].own_slots = coords.stage < policies.device_slots->devices ? policies.device_slots->own[coords.stage] : 0;
    stages[i].status = stage.status == NULL
                           ? NULL
                           : ballast__v1__stage_status_response__unpack(NULL, stage.status_bytes, stage.status);
    output->stages[output->n_stages++] = &stages[i];
  }
}

static void forget_stages(Ballast__V1__DriverStatusResponse *output) {
  for (size_t i = 0; i < output->n_stages; i++) {
    if (output->stages[i]->status != NULL) {
      ballast__v1__stage_status_response__free_unpacked(output->stages[i]->status, NULL);
    }
  }
  if (output->n_stages > 0) {
    free(output->stages[0]); // frees all of them
  }
  free(output->stages);
}

// The same for stores.
static void add_stores(const bl_stores_t *known, size_t of_devices, Ballast__V1__DriverStatusResponse *output) {
  const size_t count = bl_stores_count(known);
  Ballast__V1__StoreHealth *stores = calloc(count + 1, sizeof *stores);
  output->stores = calloc(count + 1, sizeof(Ballast__V1__StoreHealth *));
  if (stores == NULL || output->stores == NULL || count == 0) {
    free(stores);
    return;
  }
  for (size_t d = 0; d < count; d++) {
    const bl_store_view_t store = bl_stores_get(known, d);
    stores[d] = (Ballast__V1__StoreHealth)BALLAST__V1__STORE_HEALTH__INIT;
    stores[d].store = (uint32_t)d;
    stores[d].address = (char *)store.address;
    stores[d].reachable = store.reachable;
    stores[d].draining = store.draining;
    stores[d].process = store.process;
    stores[d].of_host = d >= of_devices;
    output->stores[output->n_stores++] = &stores[d];
  }
}

static void forget_stores(Ballast__V1__DriverStatusResponse *output) {
  if (output->n_stores > 0) {
    free(output->stores[0]); // frees all of them
  }
  free(output->stores);
}

// Returns the view before there is a driver.
static bl_driver_view_t look_at_start(const bl_driver_service_t *service) {
  const bool failed = service->failure.status != BL_OK;
  bl_driver_view_t view = {
      .phase = failed ? "failed" : BL_DRIVER_STARTING, .steps = service->start.steps, .error = service->failure.text};
  if (!failed) {
    snprintf(view.waiting_for, sizeof view.waiting_for, "%s", service->start.waiting_for);
    view.waiting_ns = bl_clock_now_ns() - service->began_ns;
  }
  return view;
}

void bl__handle_status(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  (void)input;
  bl_driver_service_t *service = context;
  const bl_driver_t *driver = service->driver;
  bl_driver_view_t view = driver != NULL ? bl_driver_look(driver) : look_at_start(service);
  Ballast__V1__DriverStatusResponse output = BALLAST__V1__DRIVER_STATUS_RESPONSE__INIT;
  Ballast__V1__DriverIdentity identity = BALLAST__V1__DRIVER_IDENTITY__INIT;
  identity.epoch = view.id.epoch;
  identity.id = view.id.id;
  char page[BL_RPC_ADDRESS_BYTES + 32] = "";
  if (service->page != NULL && service->page[0] != '\0') {
    snprintf(page, sizeof page, "http://%s/", service->page);
  }
  output.page = page;
  output.run = (char *)service->start.run;
  output.phase = (char *)view.phase;
  output.driver = &identity;
  output.step = view.step;
  output.steps = view.steps;
  output.waiting_for = view.waiting_for;
  output.waiting_ns = view.waiting_ns;
  output.error = (char *)view.error;
  if (driver != NULL) {
    output.revision = bl_driver_journal(driver)->revision;
    add_stages(driver, &output);
    add_stores(bl_driver_stores(driver), bl_driver_job(driver)->services.stores.count, &output);
  }
  bl_rpc_call_reply(call, &output.base);
  forget_stores(&output);
  forget_stages(&output);
}
