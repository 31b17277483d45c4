// SPDX-License-Identifier: Apache-2.0
// ballastctl plan: the best configuration to run a model, what the others would cost or lack, and the job file of the
// best.
#include "ballastctl/commands.h"
#include "ballastctl/output.h"
#include "ballastctl/output_path.h"
#include "ballastctl/plan/footprint_json.h"
#include "ballastctl/plan/order_json.h"
#include "ballastctl/plan/own_stages.h"
#include "ballastctl/plan/plan_job.h"
#include "ballastctl/plan/plan_request.h"

#include "base/bytes.h"
#include "base/words.h"
#include "schedule/generate.h"

#include <stdlib.h>
#include <string.h>

#define SHOWN 8   // maximum number of fitting candidates in the table
#define WIDTH 120 // of a line of text

static const bl_flags_t flags = {
    .program = "ballastctl plan",
    .usage = "JOB.yaml [--profile FILE]... [--nodes NxG --hardware NAME] [--memory BYTES] [--host BYTES] [--write "
             "FILE.yaml] "
             "[options]",
    .about =
        "Evaluates candidates for running the job's model (schedule, micro-batch, slices of sequences, recomputation, "
        "attention, balancing; "
        "on a cluster also tensor and data parallelism and the order of stages on nodes), leaves out those that do not "
        "fit, ranks the others by predicted time, and says what the best of every other kind would cost or lacks.",
    .table = {bl_ctl_plan_rows, BL_CTL_PLAN_ROWS, "command line"},
    .positional_minimum = 1,
    .positional_maximum = 1};

// ---- one way

static json_t *layers_json(const bl_plan_candidate_t *c) {
  json_t *layers = json_array();
  for (uint32_t v = 0; c->layers != NULL && v < c->stages * c->chunks; v++) {
    json_array_append_new(layers, json_integer(c->layers[v]));
  }
  return layers;
}

static json_t *candidate_json(const bl_plan_candidate_t *c) {
  json_t *object =
      json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:s, s:s, s:s, s:b, s:f, s:o}", "schedule", c->schedule,
                "stages", (int)c->stages, "chunks", (int)c->chunks, "tensor", (int)c->parallel.tensor, "data",
                (int)c->parallel.data, "micro_batch", (int)c->micro_batch, "micro_batches", (int)c->micro_batches,
                "slices", (int)c->slices, "recompute", bl_recompute_name(c->recompute), "attention",
                bl_attention_name(c->attention), "policy", bl_policy_kind_name(c->policy), "nodes",
                bl_node_order_name(c->order), "fits", c->fits, "memory_bytes", c->memory, "layers", layers_json(c));
  if (object != NULL && c->fits) {
    json_object_set_new(object, "step_seconds", json_real(c->step));
    json_object_set_new(object, "bubble", json_real(c->bubble));
    json_object_set_new(object, "again", json_real(c->recompute_share));
    json_object_set_new(object, "transfers", json_real(c->transfers));
    json_object_set_new(object, "between_seconds", json_real(c->overhead));
    json_object_set_new(object, "mfu", c->mfu > 0 ? json_real(c->mfu) : json_null());
    json_object_set_new(object, "sequences_per_second", json_real(c->throughput));
    json_object_set_new(object, "evictions", json_integer(c->evictions));
    json_object_set_new(object, "dropped", json_integer(c->dropped));
    if (c->why[0] != '\0') {
      json_object_set_new(object, "why", json_string(c->why));
    }
  } else if (object != NULL) {
    json_object_set_new(object, "why", json_string(c->why));
  }
  if (object != NULL && c->policy != BL_POLICY_NONE) {
    json_object_set_new(object, "cap", json_integer(c->cap));
  }
  if (object != NULL && c->host_bytes > 0) {
    json_object_set_new(object, "host_bytes", json_real(c->host_bytes));
  }
  if (object != NULL && c->slots > 0) {
    json_object_set_new(object, "slots", json_integer(c->slots));
  }
  if (object != NULL && c->group > 0) {
    json_object_set_new(object, "group", json_integer(c->group));
  }
  return object;
}

// Returns the candidate with the order that its job runs. Under the policy auto a run decides how to balance that
// order.
static json_t *best_json(const bl_plan_candidate_t *c) {
  json_t *object = candidate_json(c);
  if (object != NULL && c->operations != NULL) {
    json_object_set_new(object, "order", bl_ctl_order_json(c->operations));
  }
  json_t *devices = json_array();
  for (uint32_t s = 0; s < c->stages; s++) {
    json_array_append_new(devices, json_real(c->memory_of_stage[s]));
  }
  json_object_set_new(object, "stage_memory_bytes", devices);
  json_object_set_new(object, "memory_stage", json_integer(c->memory_stage));
  json_object_set_new(object, "memory", bl_ctl_footprint_json(&c->fullest));
  if (c->fullest.host > 0) {
    json_object_set_new(object, "host_memory_bytes", json_real(c->fullest.host));
    json_object_set_new(object, "offload",
                        json_pack("{s:f, s:f, s:f}", "landing_seconds", c->offload.landing, "update_seconds",
                                  c->offload.update, "link_bytes", c->offload.link_bytes));
  }
  return object;
}

// Writes the slots of the candidate's order and, if different, the slots that it is balanced to.
static void policy_text(const bl_plan_candidate_t *c, char text[64]) {
  const char *name = bl_policy_kind_name(c->policy);
  if (c->slots > 0 && c->policy != BL_POLICY_NONE && c->cap != c->slots) {
    snprintf(text, 64, "%s, %u of %u slot%s", name, c->cap, c->slots, bl_plural(c->slots));
  } else if (c->slots > 0) {
    snprintf(text, 64, "%s, %u slot%s", name, c->slots, bl_plural(c->slots));
  } else {
    snprintf(text, 64, "%s", name);
  }
}

static void schedule_text(const bl_plan_candidate_t *c, char text[64]) {
  char slices[24] = "", groups[24] = "";
  if (c->slices > 1) {
    snprintf(slices, sizeof slices, ", %u slices", c->slices);
  }
  if (c->group > 0) {
    snprintf(groups, sizeof groups, ", groups of %u", c->group);
  }
  snprintf(text, 64, "%s%s%s", c->schedule, slices, groups);
}

static json_t *candidate_row(const bl_plan_candidate_t *c, uint32_t rank, double best) {
  char text[64], memory[BL_BYTES_TEXT];
  json_t *row = candidate_json(c);
  json_object_set_new(row, "rank", json_integer(rank));
  policy_text(c, text);
  json_object_set_new(row, "policy", json_string(text));
  schedule_text(c, text);
  json_object_set_new(row, "schedule", json_string(text));
  snprintf(text, sizeof text, "%.4g", c->step);
  json_object_set_new(row, "seconds", json_string(text));
  snprintf(text, sizeof text, rank == 1 ? "best" : "+%.1f %%", 100 * (c->step / best - 1));
  json_object_set_new(row, "cost", json_string(text));
  snprintf(text, sizeof text, "%.1f %%", 100 * c->bubble);
  json_object_set_new(row, "bubble", json_string(text));
  snprintf(text, sizeof text, c->mfu > 0 ? "%.1f %%" : "-", 100 * c->mfu);
  json_object_set_new(row, "mfu", json_string(text));
  json_object_set_new(row, "memory", json_string(bl_bytes_format((uint64_t)c->memory, memory)));
  json_object_set_new(row, "host",
                      json_string(c->host_bytes > 0 ? bl_bytes_format((uint64_t)c->host_bytes, memory) : "-"));
  snprintf(text, sizeof text, "%u/%u/%u", c->parallel.tensor, c->stages, c->parallel.data);
  json_object_set_new(row, "shape", json_string(text));
  return row;
}

// ---- what other kinds would cost or lack

typedef const char *(*kind_of_t)(const bl_plan_candidate_t *c, char text[32]);

static const char *schedule_of(const bl_plan_candidate_t *c, char text[32]) {
  snprintf(text, 32, c->chunks > 2 ? "%s, %u chunks" : "%s", c->schedule, c->chunks);
  return text;
}
static const char *policy_of(const bl_plan_candidate_t *c, char text[32]) {
  snprintf(text, 32, "%s", bl_policy_kind_name(c->policy));
  return text;
}
static const char *recompute_of(const bl_plan_candidate_t *c, char text[32]) {
  snprintf(text, 32, "%s", bl_recompute_name(c->recompute));
  return text;
}
static const char *attention_of(const bl_plan_candidate_t *c, char text[32]) {
  snprintf(text, 32, "%s", bl_attention_name(c->attention));
  return text;
}
static const char *chunks_of(const bl_plan_candidate_t *c, char text[32]) {
  snprintf(text, 32, "%u", c->chunks);
  return text;
}
static const char *micro_batch_of(const bl_plan_candidate_t *c, char text[32]) {
  snprintf(text, 32, "%u", c->micro_batch);
  return text;
}
static const char *slices_of(const bl_plan_candidate_t *c, char text[32]) {
  snprintf(text, 32, "%u", c->slices);
  return text;
}
static const char *shape_of(const bl_plan_candidate_t *c, char text[32]) {
  snprintf(text, 32, "t %u, p %u, d %u", c->parallel.tensor, c->stages, c->parallel.data);
  return text;
}
// Returns the node order; only evictions make it matter.
static const char *order_of(const bl_plan_candidate_t *c, char text[32]) {
  snprintf(text, 32, "%s", bl_node_order_name(c->order));
  return c->evictions == 0 || c->policy == BL_POLICY_OFFLOAD ? NULL : text;
}

static const struct {
  const char *name;
  kind_of_t of;
} kinds[] = {{"schedule", schedule_of},
             {"chunks", chunks_of},
             {"micro-batch", micro_batch_of},
             {"slices", slices_of},
             {"recompute", recompute_of},
             {"attention", attention_of},
             {"policy", policy_of},
             {"evictions between", order_of},
             {"shape", shape_of},
             {"stages", NULL},
             {"tensor", NULL}};

static json_t *family_row(const char *kind, const char *value, const bl_plan_candidate_t *c,
                          const bl_plan_candidate_t *best) {
  char text[BL_PLAN_WHY + 16];
  if (c == best) {
    snprintf(text, sizeof text, "chosen");
  } else if (c->fits) {
    snprintf(text, sizeof text, "+%.1f %% (%.4g s)", 100 * (c->step / best->step - 1), c->step);
  } else {
    snprintf(text, sizeof text, "does not fit: %s", c->why);
  }
  json_t *row = json_pack("{s:s, s:s, s:s, s:b}", "kind", kind, "value", value, "result", text, "fits", c->fits);
  if (c->fits) {
    json_object_set_new(row, "step_seconds", json_real(c->step));
  }
  return row;
}

static bool seen(const json_t *rows, const char *kind, const char *value) {
  size_t i;
  json_t *row;
  json_array_foreach(rows, i, row) {
    if (strcmp(json_string_value(json_object_get(row, "kind")), kind) == 0 &&
        strcmp(json_string_value(json_object_get(row, "value")), value) == 0) {
      return true;
    }
  }
  return false;
}

// Adds the rejections of candidates that were not evaluated, after the other rows of their kind.
static void add_rejections(json_t *rows, const bl_plan_t *plan, const char *kind) {
  for (uint32_t i = 0; i < plan->rejection_count; i++) {
    const bl_plan_rejection_t *r = &plan->rejections[i];
    if (strcmp(r->kind, kind) == 0) {
      char text[BL_PLAN_WHY + 16];
      snprintf(text, sizeof text, "not tried: %s", r->why);
      json_array_append_new(
          rows, json_pack("{s:s, s:s, s:s, s:b}", "kind", kind, "value", r->value, "result", text, "fits", false));
    }
  }
}

// Returns whether the candidate does not tell what its slices, or seq1f1b, need: those that fit may have been left out.
static bool is_leftover(const bl_plan_t *plan, size_t kind, const bl_plan_candidate_t *c) {
  const bool sliced = kinds[kind].of == slices_of ||
                      (kinds[kind].of == schedule_of && bl_schedule_info_find(c->schedule)->default_slices > 1);
  return sliced && plan->slices_left_out && c->slices > 1 && !c->fits;
}

// In ranking order, the first candidate of every kind is its best.
static json_t *families_json(const bl_plan_t *plan) {
  json_t *rows = json_array();
  for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
    for (uint32_t i = 0; i < plan->count && kinds[k].of != NULL; i++) {
      char text[32];
      const char *value = kinds[k].of(&plan->candidates[i], text);
      if (value != NULL && !is_leftover(plan, k, &plan->candidates[i]) && !seen(rows, kinds[k].name, value)) {
        json_array_append_new(rows, family_row(kinds[k].name, value, &plan->candidates[i], &plan->candidates[0]));
      }
    }
    add_rejections(rows, plan, kinds[k].name);
  }
  return rows;
}

// ---- printing

static const bl_ctl_column_t columns[] = {
    {.key = "rank", .title = "#", .right = true},
    {.key = "seconds", .title = "STEP s", .right = true},
    {.key = "cost", .title = "COST", .right = true},
    {.key = "schedule", .title = "SCHEDULE"},
    {.key = "shape", .title = "t/p/d"},
    {.key = "chunks", .title = "v", .right = true},
    {.key = "micro_batch", .title = "b", .right = true},
    {.key = "micro_batches", .title = "m", .right = true},
    {.key = "recompute", .title = "RECOMPUTE"},
    {.key = "attention", .title = "ATTENTION"},
    {.key = "policy", .title = "POLICY"},
    {.key = "nodes", .title = "NODES", .wide = true},
    {.key = "evictions", .title = "EVICTIONS", .right = true},
    {.key = "dropped", .title = "DROPPED", .right = true},
    {.key = "bubble", .title = "BUBBLE", .right = true},
    {.key = "mfu", .title = "MFU", .right = true},
    {.key = "memory", .title = "FULLEST", .right = true},
    {.key = "host", .title = "HOST", .right = true, .wide = true},
};
static const bl_ctl_column_t family_columns[] = {
    {.key = "kind", .title = "KIND"}, {.key = "value", .title = "VALUE"}, {.key = "result", .title = "BEST OF IT"}};

// Prints lines of at most WIDTH columns; all lines but the first are indented.
static void print_wrapped(const char *text, int indent) {
  int column = indent;
  while (*text != '\0') {
    const int length = (int)strcspn(text, " ");
    if (column > indent && column + 1 + length > WIDTH) {
      printf("\n%*s", indent, "");
      column = indent;
    } else if (column > indent) {
      putchar(' ');
      column++;
    }
    printf("%.*s", length, text);
    column += length;
    text += length + (int)strspn(text + length, " ");
  }
  putchar('\n');
}

// Prints the memory and the time of an optimizer on the host. A profile includes that time in the overhead between
// steps.
static void print_offload(const bl_plan_request_t *r, const bl_plan_candidate_t *best) {
  char host[BL_BYTES_TEXT], link[BL_BYTES_TEXT];
  if (!r->optimizer_on_host) {
    return;
  }
  printf("\n      the optimizer is on the host: %s of its memory for that stage",
         bl_bytes_format((uint64_t)best->fullest.host, host));
  if (r->hardware != NULL) {
    printf("; %s cross the link, %.3g s of gradients that nothing hides, %.3g s of update",
           bl_bytes_format((uint64_t)best->offload.link_bytes, link), best->offload.landing, best->offload.update);
    printf("\n      (MODEL: %s; AdamW moves %.0f GB/s a thread, %u of them)", r->hardware->host_source,
           BL_HARDWARE_THREAD_RATE / 1e9, r->threads > 0 ? r->threads : 1);
  }
}

static void print_host(const bl_plan_request_t *r) {
  char room[BL_BYTES_TEXT];
  printf("\nmemory of a host: %s", bl_bytes_format((uint64_t)r->host.bytes, room));
  if (r->host.rate > 0) {
    printf(", %.3g GB/s a link", 1e-9 * r->host.rate);
  }
  if (r->host.devices_per_link > 0) {
    printf(", %u device%s at a link", r->host.devices_per_link, bl_plural(r->host.devices_per_link));
  } else {
    printf(", one link for all devices");
  }
}

// Prints the memory of the job's stages, where a plan counts those of a cluster.
static void print_own_stages(const bl_ctl_own_stages_t *own) {
  char memory[BL_BYTES_TEXT], text[256];
  if (!own->known) {
    return;
  }
  printf("\n      its job on Ballast: stage %u is the fullest with %s: %s", own->stage,
         bl_bytes_format((uint64_t)bl_footprint_total(&own->fullest), memory),
         bl_ctl_footprint_text(&own->fullest, text, sizeof text));
  if (own->operations.unknown.text[0] != '\0') {
    printf("\n      (without %s, which only a machine with such a device knows)", own->operations.without);
  }
}

static void print_best(const bl_plan_request_t *r, const bl_plan_t *plan, const bl_ctl_own_stages_t *own,
                       const bl_ctl_operations_t *operations) {
  const bl_plan_candidate_t *best = &plan->candidates[0];
  char limit[BL_BYTES_TEXT], memory[BL_BYTES_TEXT], text[256];
  printf("\n%s; %u sequence%s a step", bl_profile_model_text(r->model, text), r->batch, bl_plural(r->batch));
  if (r->cluster.nodes > 0) {
    printf("; %u x %u devices", r->cluster.nodes, r->cluster.devices_per_node);
    if (r->cluster.nics_per_node < r->cluster.devices_per_node) {
      printf(", %u network card%s a node", r->cluster.nics_per_node, bl_plural(r->cluster.nics_per_node));
    }
  }
  printf("\n%u candidate%s evaluated, %u fit%s", plan->tried, bl_plural(plan->tried), plan->fitting,
         bl_one_or_many(plan->fitting, "s", ""));
  if (r->memory > 0) {
    printf(" into %s a device", bl_bytes_format((uint64_t)r->memory, limit));
  }
  if (plan->ruled_out > 0) {
    printf("; %u more %s skipped: %s work alone takes longer than the best of %s kind", plan->ruled_out,
           bl_one_or_many(plan->ruled_out, "was", "were"), bl_one_or_many(plan->ruled_out, "its", "their"),
           bl_one_or_many(plan->ruled_out, "its", "their"));
  }
  if (r->host.bytes > 0) {
    print_host(r);
  }
  if (r->hardware != NULL) {
    printf("\ncosts: estimated from data sheets for %s, not measured\n", r->hardware->name);
  } else {
    printf("\ncosts: measured\n");
  }
  printf("best: stage %u is the fullest with %s: %s\n", best->memory_stage,
         bl_bytes_format((uint64_t)best->memory, memory), bl_ctl_footprint_text(&best->fullest, text, sizeof text));
  printf("      layers by virtual stage:");
  for (uint32_t v = 0; v < best->stages * best->chunks; v++) {
    printf(" %u", best->layers[v]);
  }
  if (best->policy != BL_POLICY_NONE) {
    printf("\n      %s keeps every device at %u block%s; stages on nodes: %s", bl_policy_kind_name(best->policy),
           best->cap, bl_plural(best->cap), bl_node_order_name(best->order));
  }
  if (best->host_bytes > 0) {
    char parked[BL_BYTES_TEXT], room[BL_BYTES_TEXT];
    printf("\n      the host of a machine holds at most %s of %s", bl_bytes_format((uint64_t)best->host_bytes, parked),
           bl_bytes_format((uint64_t)r->host.bytes, room));
  }
  if (best->slots > 0) {
    printf("\n      the order is searched within %u block%s a device (memory.slots)", best->slots,
           bl_plural(best->slots));
  }
  print_offload(r, best);
  print_own_stages(own);
  if (operations->unknown.text[0] != '\0') {
    printf("\n      left out of this memory: %s: %s", operations->without, operations->unknown.text);
  }
  printf("\nwhy:  ");
  print_wrapped(plan->why, 6);
  printf("\n");
}

static bl_status_t print_tables(const bl_ctl_plan_flags_t *a, const bl_ctl_plan_request_t *made, const bl_plan_t *plan,
                                const bl_ctl_own_stages_t *own) {
  const bl_plan_request_t *r = &made->request;
  json_t *rows = json_array(), *families = families_json(plan);
  for (uint32_t i = 0; i < plan->fitting && i < SHOWN; i++) {
    json_array_append_new(rows, candidate_row(&plan->candidates[i], i + 1, plan->candidates[0].step));
  }
  bl_status_t status =
      bl_ctl_print_rows((bl_ctl_output_t)a->output, columns, sizeof columns / sizeof columns[0], rows, stdout);
  if (status == BL_OK) {
    print_best(r, plan, own, &made->operations);
    status = bl_ctl_print_rows((bl_ctl_output_t)a->output, family_columns,
                               sizeof family_columns / sizeof family_columns[0], families, stdout);
  }
  json_decref(families);
  json_decref(rows);
  return status;
}

static json_t *own_stages_json(const bl_plan_request_t *r, const bl_ctl_own_stages_t *own) {
  const double bytes = bl_footprint_total(&own->fullest);
  json_t *object = json_pack("{s:f, s:i, s:b, s:o}", "memory_bytes", bytes, "memory_stage", (int)own->stage, "fits",
                             r->memory <= 0 || bytes <= r->memory, "memory", bl_ctl_footprint_json(&own->fullest));
  bl_ctl_footprint_left_out(object, &own->operations);
  return object;
}

static bl_status_t print_object(const bl_ctl_plan_flags_t *a, const bl_ctl_plan_request_t *made, const bl_plan_t *plan,
                                const bl_ctl_own_stages_t *own, json_t *warnings) {
  const bl_plan_request_t *r = &made->request;
  json_t *candidates = json_array();
  for (uint32_t i = 0; i < plan->fitting && i < SHOWN; i++) {
    json_array_append_new(candidates, candidate_json(&plan->candidates[i]));
  }
  json_t *object = json_pack("{s:s, s:b, s:i, s:i, s:i, s:f, s:o, s:s, s:o, s:o}", "costs",
                             r->hardware != NULL ? r->hardware->name : "profile", "measured", r->hardware == NULL,
                             "tried", (int)plan->tried, "ruled_out", (int)plan->ruled_out, "fitting",
                             (int)plan->fitting, "memory_bytes", r->memory, "best", best_json(&plan->candidates[0]),
                             "why", plan->why, "candidates", candidates, "families", families_json(plan));
  if (r->host.bytes > 0) {
    json_object_set_new(object, "host_bytes", json_real(r->host.bytes));
  }
  json_object_set_new(object, "warnings", warnings);
  if (own->known) {
    json_object_set_new(json_object_get(object, "best"), "own_stages", own_stages_json(r, own));
  }
  bl_ctl_footprint_left_out(object, &made->operations);
  static const bl_ctl_column_t name = {.key = "costs", .title = "COSTS"};
  bl_status_t status = bl_ctl_print_object((bl_ctl_output_t)a->output, &name, 1, object, stdout);
  json_decref(object);
  return status;
}

static bl_status_t print(const bl_ctl_plan_flags_t *a, const bl_job_t *job, const bl_ctl_plan_request_t *made,
                         const bl_plan_t *plan, const bl_ctl_own_stages_t *own, bl_error_t *err) {
  const bool table = a->output == BL_CTL_TABLE || a->output == BL_CTL_WIDE;
  char approximation[BL_CTL_WARNING];
  bl_ctl_plan_warning(made, a, &plan->candidates[0], approximation);
  const char *const all[] = {approximation, bl_ctl_plan_unused(job), own->warning};
  json_t *warnings = json_array();
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    bl_ctl_warning_tell(all[i]);
    bl_ctl_warning_append(warnings, all[i]);
  }
  bl_status_t status =
      table ? print_tables(a, made, plan, own) : print_object(a, made, plan, own, json_incref(warnings));
  json_decref(warnings);
  return bl_ctl_printed(status, err);
}

// Prints the plan and writes the job of its best candidate.
static bl_status_t tell_plan(const bl_ctl_plan_flags_t *a, const char *path, const bl_job_t *job,
                             const bl_ctl_plan_request_t *made, const bl_plan_t *plan, bl_error_t *err) {
  const bl_plan_candidate_t *best = &plan->candidates[0];
  const bool counts_cluster = made->request.cluster.nodes > 0;
  bl_ctl_own_stages_t own = {0};
  bl_job_t planned = {0};
  bl_error_t fault;
  bl_status_t possible = a->write != NULL || counts_cluster
                             ? bl_ctl_plan_job_make(a, path, &made->request, best, &planned, &fault)
                             : BL_OK;
  if (possible == BL_OK && counts_cluster) {
    bl_ctl_own_stages_find(&planned, &made->request, best, &own);
  } else if (counts_cluster) {
    bl_ctl_own_stages_refuse(&own, &fault);
  }
  bl_status_t status = print(a, job, made, plan, &own, err);
  if (status == BL_OK && a->write != NULL) {
    fflush(stdout);
    status = possible == BL_OK ? bl_ctl_plan_job_write(a, &planned, err)
                               : bl_error_set(err, possible, "--write %s: %s", a->write, fault.text);
  }
  bl_ctl_own_stages_cleanup(&own);
  bl_job_cleanup(&planned);
  return status;
}

static bl_status_t make_plan(const bl_ctl_plan_flags_t *a, const char *path, bl_error_t *err) {
  bl_job_t job = {0};
  bl_ctl_plan_request_t made = {0};
  bl_plan_t plan = {0};
  bl_status_t status = bl_ctl_job_read(path, &a->sets, NULL, &job, err);
  if (status == BL_OK) {
    status = bl_ctl_plan_place(a, &job, err);
  }
  if (status == BL_OK) {
    status = bl_ctl_plan_request_init(&made, a, &job, err);
  }
  if (status == BL_OK) {
    status = bl_plan_search(&made.request, &plan, err);
  }
  if (status == BL_OK) {
    status = tell_plan(a, path, &job, &made, &plan, err);
  }
  bl_plan_cleanup(&plan);
  bl_ctl_plan_request_cleanup(&made);
  bl_job_cleanup(&job);
  return status;
}

static bl_status_t body(void *arguments, const bl_flags_result_t *words, bl_error_t *err) {
  const bl_ctl_plan_flags_t *a = arguments;
  bl_status_t status = bl_ctl_output_path_check("write", a->write, err);
  return status == BL_OK ? make_plan(a, words->positional[0], err) : status;
}

static int run(int argc, char *const *argv) {
  bl_ctl_plan_flags_t arguments = {0};
  return bl_ctl_run(&flags, &arguments, body, argc, argv);
}

const bl_ctl_command_t bl_ctl_plan_command = {"plan", "how to run a model, and what the alternatives would cost", run};
