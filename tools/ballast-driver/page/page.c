// SPDX-License-Identifier: Apache-2.0
#include "page/page.h"

#include "page/history.h"
#include "page/page_html.h"
#include "page/stores_wire.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// Maximum of a step's events that the page draws, over all stages: more would be finer than a pixel.
#define TIMELINE_EVENTS 20000

struct bl_page {
  bl_driver_t *driver;
  const char *run;
  bl_page_history_t history;
  bl_page_stores_t *stores;
  json_t *timeline; // last result
  uint64_t timeline_step;
  bool tracing;
};

static size_t host_count(const bl_job_t *job) {
  return bl_job_store_count(job) - job->services.stores.count;
}

bl_status_t bl_page_create(bl_rpc_t *rpc, bl_driver_t *driver, const char *run, bl_page_t **result, bl_error_t *err) {
  bl_page_t *page = calloc(1, sizeof *page);
  if (page == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the page");
  }
  *page = (bl_page_t){.driver = driver, .run = run};
  bl_status_t status = bl_page_history_init(&page->history, BL_PAGE_STEPS, bl_driver_stage_count(driver),
                                            host_count(bl_driver_job(driver)));
  if (status != BL_OK) {
    (void)bl_error_set(err, status, "no memory for the page");
  } else {
    status = bl_page_stores_create(rpc, bl_driver_job(driver), &page->stores, err);
  }
  if (status != BL_OK) {
    bl_page_destroy(page);
    return status;
  }
  *result = page;
  return BL_OK;
}

void bl_page_destroy(bl_page_t *page) {
  if (page == NULL) {
    return;
  }
  bl_driver_trace_cancel(page->driver, page);
  bl_page_stores_destroy(page->stores);
  bl_page_history_cleanup(&page->history);
  json_decref(page->timeline);
  free(page);
}

void bl_page_changed(bl_page_t *page) {
  bl_page_history_take(&page->history, page->driver);
}

// ---- /api/run -------------------------------------------------------------------------------------------------------

// Returns the names of devices and stages: "1", "1 of replica 0", "1, tensor rank 0".
static json_t *names_json(const bl_driver_t *driver) {
  const bl_grid_t *grid = &bl_driver_training(driver)->grid;
  json_t *names = json_array();
  for (uint32_t rank = 0; rank < bl_grid_ranks(grid); rank++) {
    const bl_coords_t coords = bl_grid_coords(grid, rank);
    char tensor[32] = "", replica[32] = "";
    if (grid->tensor > 1) {
      snprintf(tensor, sizeof tensor, ", tensor rank %u", coords.tensor);
    }
    if (grid->data > 1) {
      snprintf(replica, sizeof replica, " of replica %u", coords.data);
    }
    json_array_append_new(names, json_sprintf("%u%s%s", coords.stage, tensor, replica));
  }
  return names;
}

static json_t *stages_json(const bl_driver_t *driver) {
  json_t *stages = json_array();
  bl_policies_view_t policies = bl_driver_policies(driver);
  for (size_t i = 0; i < bl_driver_stage_count(driver); i++) {
    bl_stage_view_t view = bl_driver_stage(driver, i);
    const bl_coords_t coords = bl_grid_coords(&bl_driver_training(driver)->grid, (uint32_t)i);
    json_t *stage = json_pack("{s:I, s:s, s:b, s:I}", "stage", (json_int_t)coords.stage, "address", view.address,
                              "reachable", view.reachable, "pid", (json_int_t)view.process);
    if (view.place != NULL) {
      json_object_set_new(stage, "slot_bytes", json_integer((json_int_t)view.place->slot_bytes));
    }
    if (policies.device_slots != NULL && coords.stage < policies.device_slots->devices) {
      json_object_set_new(stage, "own", json_integer(policies.device_slots->own[coords.stage]));
      json_object_set_new(stage, "lent", json_integer(policies.device_slots->lent[coords.stage]));
    }
    json_array_append_new(stages, stage);
  }
  return stages;
}

// Returns the host stores: what the plan in force needs of each, and the size of a slot.
static json_t *hosts_json(const bl_driver_t *driver) {
  const bl_job_t *job = bl_driver_job(driver);
  const bl_policies_view_t policies = bl_driver_policies(driver);
  json_t *hosts = json_array();
  for (size_t h = 0; h < host_count(job); h++) {
    json_t *host = json_pack("{s:I, s:I}", "host", (json_int_t)h, "slot_bytes",
                             (json_int_t)bl_driver_training(driver)->hosts.slot_bytes);
    if (policies.device_slots != NULL) {
      const size_t store = job->services.stores.count + h;
      json_object_set_new(host, "lent", json_integer(bl_driver_lent(driver, policies.device_slots, store)));
    }
    json_array_append_new(hosts, host);
  }
  return hosts;
}

static json_t *policy_json(const bl_driver_t *driver) {
  bl_policies_view_t policies = bl_driver_policies(driver);
  const bl_policy_record_t *current = bl_policy_history_current(policies.history);
  char text[BL_POLICY_TEXT];
  if (current == NULL) {
    return json_null();
  }
  uint32_t budget = bl_driver_training(driver)->budget;
  uint32_t cap = bl_policy_cap(&current->policy, bl_driver_training(driver));
  json_t *policy = json_pack("{s:s, s:I, s:I}", "name", bl_policy_format(&current->policy, text), "version",
                             (json_int_t)current->version, "from_step", (json_int_t)current->from_step);
  json_object_set_new(policy, "budget", budget == UINT32_MAX ? json_null() : json_integer(budget));
  json_object_set_new(policy, "cap", cap == UINT32_MAX ? json_null() : json_integer(cap));
  return policy;
}

static json_t *run_json(const bl_page_t *page) {
  bl_driver_view_t view = bl_driver_look(page->driver);
  const bl_job_t *job = bl_driver_job(page->driver);
  const json_int_t seq = bl_driver_training(page->driver)->model.seq;
  const json_int_t step_tokens = seq * job->train.micro_batch * job->train.micro_batches;
  return json_pack("{s:s, s:s, s:I, s:I, s:s, s:f, s:s, s:I, s:o, s:o, s:o, s:o, s:o}", "run", page->run, "phase",
                   view.phase, "step", (json_int_t)view.step, "steps", (json_int_t)view.steps, "waiting_for",
                   view.waiting_for, "waiting_seconds", (double)view.waiting_ns * 1e-9, "error", view.error,
                   "step_tokens", step_tokens, "policy", policy_json(page->driver), "names", names_json(page->driver),
                   "stages", stages_json(page->driver), "hosts", hosts_json(page->driver), "history",
                   bl_page_history_json(&page->history));
}

// ---- /api/timeline --------------------------------------------------------------------------------------------------

// Transfers are left out: the page shows when they were begun.
static json_t *trace_json(const bl_stage_trace_t *trace, uint64_t begin_ns, size_t *left) {
  json_t *events = json_array();
  for (size_t i = 0; i<trace->count && * left> 0; i++) {
    const bl_trace_event_t *event = &trace->events[i];
    if (event->moved_bytes > 0) {
      continue;
    }
    --*left;
    json_array_append_new(events, json_pack("[s, b, f, f, i]", event->name, event->wait,
                                            (double)(event->start_ns - begin_ns) * 1e-9,
                                            (double)(event->end_ns - begin_ns) * 1e-9, (int)event->slots_in_use));
  }
  return events;
}

static void traced(const bl_stage_trace_t *traces, size_t stages, const bl_error_t *err, void *context) {
  bl_page_t *page = context;
  page->tracing = false;
  if (err->status != BL_OK) {
    return;
  }
  uint64_t begin_ns = UINT64_MAX;
  for (size_t i = 0; i < stages; i++) {
    if (traces[i].count > 0 && traces[i].events[0].start_ns < begin_ns) {
      begin_ns = traces[i].events[0].start_ns;
    }
  }
  size_t left = TIMELINE_EVENTS;
  json_t *rows = json_array();
  for (size_t i = 0; i < stages; i++) {
    json_array_append_new(rows, trace_json(&traces[i], begin_ns, &left));
  }
  json_decref(page->timeline);
  page->timeline_step = bl_driver_look(page->driver).step;
  page->timeline =
      json_pack("{s:I, s:i, s:o, s:o}", "step", (json_int_t)page->timeline_step, "pipeline",
                (int)bl_driver_training(page->driver)->grid.stages, "names", names_json(page->driver), "stages", rows);
}

// Returns the last timeline, and requests the next one.
static json_t *timeline_json(bl_page_t *page) {
  uint64_t step = bl_driver_look(page->driver).step;
  if (!page->tracing && step > 0 && (page->timeline == NULL || page->timeline_step != step)) {
    page->tracing = true;
    bl_driver_trace(page->driver, traced, page);
  }
  return page->timeline != NULL ? json_incref(page->timeline) : json_pack("{s:i, s:[]}", "step", 0, "stages");
}

// ---- answers --------------------------------------------------------------------------------------------------------

static void answer_json(json_t *value, bl_http_answer_t *answer) {
  char *text = value != NULL ? json_dumps(value, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
  json_decref(value);
  if (text == NULL) {
    answer->code = 503;
    return;
  }
  *answer = (bl_http_answer_t){.type = BL_HTTP_TYPE_JSON, .body = text, .body_bytes = strlen(text)};
}

static void answer_html(bl_http_answer_t *answer) {
  char *body = malloc(bl_page_html_bytes);
  if (body == NULL) {
    answer->code = 503;
    return;
  }
  memcpy(body, bl_page_html, bl_page_html_bytes);
  *answer = (bl_http_answer_t){.type = BL_HTTP_TYPE_HTML, .body = body, .body_bytes = bl_page_html_bytes};
}

void bl_page_answer(const char *path, bl_http_answer_t *answer, void *context) {
  bl_page_t *page = context;
  if (strcmp(path, "/") == 0) {
    answer_html(answer);
  } else if (page == NULL) {
    answer->code = 503;
  } else if (strcmp(path, "/api/run") == 0) {
    answer_json(run_json(page), answer);
  } else if (strcmp(path, "/api/timeline") == 0) {
    answer_json(timeline_json(page), answer);
  } else if (strcmp(path, "/api/stores") == 0) {
    answer_json(bl_page_stores_json(page->stores), answer);
    bl_page_stores_refresh(page->stores);
  }
}
