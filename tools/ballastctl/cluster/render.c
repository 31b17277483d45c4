// SPDX-License-Identifier: Apache-2.0
// ballastctl render: makes a kustomize overlay that runs a job.
#include "ballastctl/cluster/overlay.h"
#include "ballastctl/cluster/pod_files.h"
#include "ballastctl/commands.h"
#include "ballastctl/job_file.h"

#include "base/bytes.h"
#include "base/words.h"
#include "config/flags.h"
#include "sys/file.h"
#include "sys/version.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef enum pairing { PAIRING_NONE, PAIRING_NODE, PAIRING_POD } pairing_t;
static const char *const pairings[] = {"none", "node", "pod", NULL};

typedef struct arguments {
  bl_text_list_t sets;
  char *output, *base, *name, *images, *tag, *data, *checkpoints;
  int pairing;
  int64_t disk_rate;
  bool tls, monitored, jobset;
} arguments_t;

#define AT(member) .offset = offsetof(arguments_t, member)

static const bl_option_t rows[] = {
    {.name = "output",
     .letter = 'o',
     .type = BL_OPTION_TEXT,
     AT(output),
     .argument = "FOLDER",
     .help = "Where to write kustomization.yaml and job.yaml."},
    {.name = "base",
     .type = BL_OPTION_TEXT,
     AT(base),
     .argument = "PATH",
     .preset = "../..",
     .help =
         "Where deploy/k8s is, seen from there: a path, or what kustomize takes in its place. An absolute path, which "
         "kustomize does not take, is written as seen from there."},
    {.name = "name",
     .type = BL_OPTION_TEXT,
     AT(name),
     .argument = "NAME",
     .preset_help = "the job's name",
     .help = "What the names of all objects begin with; two runs in one namespace need two."},
    {.name = "images",
     .type = BL_OPTION_TEXT,
     AT(images),
     .argument = "PREFIX",
     .help = "What stands before the images' names, such as registry.example/team/."},
    {.name = "tag",
     .type = BL_OPTION_TEXT,
     AT(tag),
     .argument = "TAG",
     .preset_help = "this version",
     .help = "Tag of the images."},
    {.name = "data",
     .type = BL_OPTION_TEXT,
     AT(data),
     .argument = "FOLDER",
     .preset = "/data",
     .help = "Where the pods find the job's data and model files, by their names alone. Paths below /usr stay as they "
             "are."},
    {.name = "checkpoints",
     .type = BL_OPTION_TEXT,
     AT(checkpoints),
     .argument = "FOLDER",
     .preset = "/checkpoints",
     .help = "Where they write checkpoints, if the job does."},
    {.name = "pairing",
     .type = BL_OPTION_ENUM,
     AT(pairing),
     .choices = pairings,
     .preset = "none",
     .help = "Whether stages s and p-1-s belong together: in one pod, on one node (with Kueue), or nowhere special."},
    {.name = "disk-rate",
     .type = BL_OPTION_BYTES,
     AT(disk_rate),
     .preset = "200 MB",
     .minimum = 1,
     .maximum = 1e15,
     .unit = "bytes per second",
     .help = "What a stage can write to the checkpoint's folder; grace periods follow from it."},
    {.name = "tls", .type = BL_OPTION_BOOL, AT(tls), .help = "Mutual TLS with certificates of cert-manager."},
    {.name = "jobset",
     .type = BL_OPTION_BOOL,
     AT(jobset),
     .help = "Stages and driver as one JobSet, for clusters that have it. Not with --pairing pod."},
    {.name = "monitor",
     .type = BL_OPTION_BOOL,
     AT(monitored),
     .help = "Scraping and alerts by the Prometheus operator."},
    BL_CTL_SET_FLAG(arguments_t, sets),
};

static const bl_flags_t flags = {
    .program = "ballastctl render",
    .usage = "JOB.yaml --output FOLDER [--name NAME] [--pairing none|node|pod] [--tls] [--jobset] [--set KEY=VALUE]...",
    .about =
        "Writes a kustomize overlay over deploy/k8s/base that runs the job: pods, their memory from the plan and their "
        "processors from its threads, memory of the stores, addresses, grace periods. It prints the numbers; apply the "
        "folder with kubectl apply -k FOLDER.",
    .table = {rows, sizeof rows / sizeof rows[0], "command line"},
    .positional_minimum = 1,
    .positional_maximum = 1};

// The overrides that adapt the job to the cluster; `items` are owned.
typedef struct rewriting {
  bl_text_list_t sets;
  size_t capacity;
  bool failed;
} rewriting_t;

static void add(rewriting_t *r, char *assignment) {
  if (assignment == NULL || r->sets.count == r->capacity) {
    free(assignment);
    r->failed = true;
    return;
  }
  r->sets.items[r->sets.count++] = assignment;
}

// Writes the text as a YAML scalar.
static void put_quoted(FILE *stream, const char *text) {
  fputc('"', stream);
  for (; *text != '\0'; text++) {
    if ((unsigned char)*text < 0x20) {
      fprintf(stream, "\\x%02X", (unsigned char)*text);
    } else {
      fprintf(stream, "%s%c", *text == '"' || *text == '\\' ? "\\" : "", *text);
    }
  }
  fputc('"', stream);
}

static void add_text(rewriting_t *r, const char *key, const char *value) {
  char *text = NULL;
  size_t size;
  FILE *stream = open_memstream(&text, &size);
  if (stream == NULL) {
    r->failed = true;
    return;
  }
  fprintf(stream, "%s=", key);
  put_quoted(stream, value);
  add(r, fclose(stream) == 0 ? text : (free(text), (char *)NULL));
}

static void add_path(rewriting_t *r, const char *key, const char *path, const char *folder) {
  char target[PATH_MAX];
  if (path != NULL) {
    r->failed |= bl_ctl_pod_file_place(path, folder, target) != BL_OK;
    add_text(r, key, target);
  }
}

static void add_paths(rewriting_t *r, const char *key, const bl_text_list_t *paths, const char *folder) {
  char *text = NULL;
  size_t size;
  FILE *stream = paths->count == 0 ? NULL : open_memstream(&text, &size);
  if (stream == NULL) {
    r->failed |= paths->count != 0;
    return;
  }
  fprintf(stream, "%s=[", key);
  for (size_t i = 0; i < paths->count; i++) {
    char target[PATH_MAX];
    r->failed |= bl_ctl_pod_file_place(paths->items[i], folder, target) != BL_OK;
    fputs(i == 0 ? "" : ", ", stream);
    put_quoted(stream, target);
  }
  fprintf(stream, "]");
  add(r, fclose(stream) == 0 ? text : (free(text), (char *)NULL));
}

// Writes the job as pods read it.
static bl_status_t rewrite(const arguments_t *a, const char *path, const bl_job_t *job, const bl_ctl_overlay_t *overlay,
                           char **text, size_t *text_bytes, bl_error_t *err) {
  rewriting_t r = {.capacity = a->sets.count + 12};
  bl_job_t cluster = {0};
  r.sets.items = calloc(r.capacity, sizeof *r.sets.items);
  if (r.sets.items == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the job");
  }
  for (size_t i = 0; i < a->sets.count; i++) {
    add(&r, strdup(a->sets.items[i]));
  }
  add_paths(&r, "data.train", &job->data.train, a->data);
  add_paths(&r, "data.validation", &job->data.validation.files, a->data);
  add_path(&r, "model.config", job->model.config, a->data);
  add_path(&r, "model.init", job->model.init, a->data);
  if (job->checkpoint.folder != NULL) {
    add_text(&r, "checkpoint.folder", a->checkpoints);
  }
  const char *const own_files[] = {"services.tls.ca=null", "services.tls.certificate=null", "services.tls.key=null"};
  for (size_t i = 0; i < 3; i++) { // pods get the paths of theirs as arguments
    add(&r, strdup(own_files[i]));
  }
  char *driver = NULL;
  add(&r, asprintf(&driver, "services.driver=%s-driver:7600", overlay->name) < 0 ? NULL : driver);
  add(&r, bl_ctl_overlay_stages(overlay));
  add(&r, bl_ctl_overlay_stores(overlay));
  if (job->balance.host.set) {
    add(&r, bl_ctl_overlay_host_stores(overlay));
  }
  bl_status_t status = r.failed ? bl_error_set(err, BL_EXHAUSTED, "no memory for the job")
                                : bl_ctl_job_read(path, &r.sets, NULL, &cluster, err);
  if (status == BL_OK) {
    status = bl_options_dump(bl_job_options(), &cluster, text, text_bytes);
    if (status != BL_OK) {
      bl_error_set(err, status, "cannot write the job: %s", bl_status_text(status));
    }
  }
  bl_job_cleanup(&cluster);
  for (size_t i = 0; i < r.sets.count; i++) {
    free(r.sets.items[i]);
  }
  free(r.sets.items);
  return status;
}

static bl_status_t write_file(const char *folder, const char *name, const char *bytes, size_t size, bl_error_t *err) {
  char path[PATH_MAX];
  bl_status_t status = bl_path_join(path, sizeof path, folder, name);
  return status == BL_OK ? bl_file_replace(path, bytes, size, err)
                         : bl_error_set(err, status, "%s/%s: the path is too long", folder, name);
}

// Returns the absolute path `base` relative to `folder`; malloc'd. NULL: no memory. Both paths are resolved.
static char *seen_from(const char *folder, const char *base) {
  size_t common = 0, size;
  for (size_t i = 0;
       base[i] == folder[i] || (base[i] == '\0' && folder[i] == '/') || (base[i] == '/' && folder[i] == '\0'); i++) {
    if (base[i] == '\0' || folder[i] == '\0') {
      common = i;
      break;
    }
    common = base[i] == '/' ? i : common;
  }
  char *text = NULL;
  FILE *stream = open_memstream(&text, &size);
  if (stream == NULL) {
    return NULL;
  }
  fputc('.', stream);
  for (const char *c = folder + common; *c != '\0'; c++) {
    fputs(*c == '/' && c[1] != '\0' ? "/.." : "", stream);
  }
  fprintf(stream, "%s", base + common);
  return fclose(stream) == 0 ? text : (free(text), (char *)NULL);
}

// Returns whether the folder is deploy/k8s or a copy of it.
static bool is_base(const char *folder) {
  char path[PATH_MAX];
  return snprintf(path, sizeof path, "%s/base/kustomization.yaml", folder) < (int)sizeof path &&
         access(path, R_OK) == 0;
}

static bl_status_t resolve_base(const char *base, char target[PATH_MAX], bl_error_t *err) {
  if (realpath(base, target) == NULL || !is_base(target)) {
    return bl_error_set(err, BL_NOT_FOUND,
                        "ballastctl render: --base %s: there is no base/kustomization.yaml in it; give the folder "
                        "deploy/k8s of a clone",
                        base);
  }
  return BL_OK;
}

// Makes the path relative, because kustomize refuses absolute paths. *text is malloc'd.
static bl_status_t base_from(const char *output, const char *target, char **text, bl_error_t *err) {
  char folder[PATH_MAX];
  if (realpath(output, folder) == NULL) {
    return bl_error_set(err, BL_IO, "ballastctl render: %s: %s", output, strerror(errno));
  }
  *text = seen_from(folder, target);
  return *text != NULL ? BL_OK : bl_error_set(err, BL_EXHAUSTED, "no memory for the overlay");
}

static bl_status_t write_overlay(const arguments_t *a, const bl_ctl_overlay_t *overlay, const char *job,
                                 size_t job_bytes, bl_error_t *err) {
  char *text = NULL, *relative = NULL, target[PATH_MAX];
  size_t size;
  bl_ctl_overlay_t written = *overlay;
  const bool absolute = a->base[0] == '/';
  bl_status_t status = absolute ? resolve_base(a->base, target, err) : BL_OK;
  if (status == BL_OK) {
    status = bl_folder_create(a->output, 0755, err);
  }
  if (status == BL_OK && absolute) {
    status = base_from(a->output, target, &relative, err);
    written.base = relative;
  }
  FILE *stream = status == BL_OK ? open_memstream(&text, &size) : NULL;
  if (status == BL_OK && stream == NULL) {
    status = bl_error_set(err, BL_EXHAUSTED, "no memory for the overlay");
  }
  if (stream != NULL) {
    bl_ctl_overlay_print(&written, stream);
    fclose(stream);
  }
  if (status == BL_OK) {
    status = write_file(a->output, "kustomization.yaml", text, size, err);
  }
  if (status == BL_OK) {
    status = write_file(a->output, "job.yaml", job, job_bytes, err);
  }
  free(text);
  free(relative);
  return status;
}

// Returns whether the relative path of the base, such as the default, does not exist seen from the overlay; kubectl
// would refuse it. That is no error: an overlay may be written in one place and used in another.
static bool base_is_lost(const arguments_t *a) {
  char path[PATH_MAX];
  const bool is_path = a->base[0] != '/' && (a->base[0] == '.' || access(a->base, F_OK) == 0);
  return is_path && snprintf(path, sizeof path, "%s/%s", a->output, a->base) < (int)sizeof path && !is_base(path);
}

// Prints the word in single quotes if a POSIX shell would not take it as one plain word.
static void print_shell_word(const char *word, FILE *stream) {
  static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  if (word[0] != '\0' && word[strspn(word, plain)] == '\0') {
    fputs(word, stream);
    return;
  }
  fputc('\'', stream);
  for (; *word != '\0'; word++) {
    if (*word == '\'') {
      fputs("'\\''", stream); // ends the quotes, adds an escaped quote, begins them again
    } else {
      fputc(*word, stream);
    }
  }
  fputc('\'', stream);
}

static void print_summary(const arguments_t *a, const bl_job_t *job, const bl_ctl_overlay_t *o) {
  char stage[BL_BYTES_TEXT], store[BL_BYTES_TEXT], room[BL_BYTES_TEXT], shard[BL_BYTES_TEXT];
  const uint32_t pods = (bl_grid_ranks(&o->grid) + 1) / 2;
  printf("%s: %u stage%s", a->output, o->grid.stages, bl_plural(o->grid.stages));
  if (o->grid.tensor > 1) {
    printf(" of %u tensor ranks", o->grid.tensor);
  }
  if (o->grid.data > 1) {
    printf(" in %u replicas", o->grid.data);
  }
  printf(o->paired ? " in %u pod%s\n" : ", a pod and a store each\n", pods, bl_plural(pods));
  printf("  memory of a stage %s, of a store %s of which it lends %s\n", bl_bytes_format(o->pods.stage_bytes, stage),
         bl_bytes_format(o->pods.store_bytes, store), bl_bytes_format(o->pods.capacity_bytes, room));
  if (o->pods.host_bytes > 0) {
    printf("  memory of the host store of a pod %s, of which it lends %s\n", bl_bytes_format(o->pods.host_bytes, store),
           bl_bytes_format(o->pods.host_capacity_bytes, room));
  }
  printf("  processors that a stage asks for %.6g, a store %.6g\n", o->pods.stage_millicpus / 1e3,
         o->pods.store_millicpus / 1e3);
  printf("  an orderly end takes %u s at most: %s to write a stage, at %lld bytes/s\n", o->pods.grace_seconds,
         bl_bytes_format(o->pods.shard_bytes, shard), (long long)a->disk_rate);
  if (bl_ctl_pod_files_need_volumes(job)) {
    printf("  put the job's files into the volume claim %s-data; checkpoints go to %s-checkpoints\n", o->name, o->name);
  }
  if (base_is_lost(a)) {
    printf("  not ready for kubectl: %s/base is not there as seen from %s; give --base, the folder deploy/k8s of a "
           "clone\n",
           a->base, a->output);
  } else {
    fputs("  next: kubectl apply -k ", stdout);
    print_shell_word(a->output, stdout);
    putchar('\n');
  }
}

// Which stages share a machine's host is derived from addresses (job/hosts.h), so a plan for the cluster needs the
// addresses of the pods.
static bl_status_t place_hosts(bl_job_t *job, const bl_ctl_overlay_t *overlay, bl_error_t *err) {
  char *texts[] = {bl_ctl_overlay_stages(overlay), bl_ctl_overlay_stores(overlay), bl_ctl_overlay_host_stores(overlay)};
  bl_status_t status = BL_OK;
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
    if (status == BL_OK) {
      status = texts[i] != NULL ? bl_options_set(bl_job_options(), job, job->marks, texts[i], NULL, err)
                                : bl_error_set(err, BL_EXHAUSTED, "no memory for the job");
    }
    free(texts[i]);
  }
  return status;
}

static bl_status_t read_job(const arguments_t *a, const char *path, bl_job_t *job, bl_ctl_overlay_t *overlay,
                            bl_error_t *err) {
  bl_status_t status = bl_ctl_job_read(path, &a->sets, NULL, job, err);
  if (status != BL_OK) {
    return status;
  }
  overlay->name = a->name != NULL ? a->name : job->name;
  overlay->grid = bl_job_grid(job);
  if (job->balance.host.set && !overlay->paired) {
    return bl_job_fail(job, err, "balance.host",
                       "a host store runs in the pod of the stages that use it, which shares its memory: --pairing pod "
                       "makes pods that have one%s",
                       overlay->grid.tensor > 1 ? "; it does not go with tensor ranks, leave this key out" : "");
  }
  status = bl_ctl_overlay_check_name(overlay->name, err);
  if (status == BL_OK) {
    status = bl_ctl_overlay_check_images(overlay->images, overlay->tag, err);
  }
  return status == BL_OK && job->balance.host.set ? place_hosts(job, overlay, err) : status;
}

static bl_status_t render(const arguments_t *a, const char *path, bl_error_t *err) {
  bl_job_t job = {0};
  bl_training_t training = {0};
  bl_balance_plan_t plan = {0};
  char *text = NULL;
  size_t text_bytes = 0;
  bl_ctl_overlay_t overlay = {.base = a->base,
                              .images = a->images != NULL ? a->images : "",
                              .tag = a->tag != NULL ? a->tag : bl_version(),
                              .tls = a->tls,
                              .paired = a->pairing == PAIRING_POD,
                              .kueue = a->pairing == PAIRING_NODE,
                              .monitored = a->monitored,
                              .jobset = a->jobset};
  bl_status_t status = read_job(a, path, &job, &overlay, err);
  if (status == BL_OK) {
    status = bl_ctl_job_resolve(&job, &training, err);
  }
  if (status == BL_OK) {
    status = bl_ctl_pod_files_check(&job, a->data, err);
  }
  if (status == BL_OK && overlay.paired && training.grid.tensor > 1) {
    status =
        bl_job_fail(&job, err, "parallel.tensor",
                    "--pairing pod has one pair of ranks in every pod, of %u tensor ranks a pair of stages has %u; "
                    "use --pairing node",
                    training.grid.tensor, 2 * training.grid.tensor);
  }
  if (status == BL_OK && overlay.paired && training.grid.data > 1 && training.grid.stages % 2 != 0) {
    status =
        bl_job_fail(&job, err, "pipeline.stages",
                    "--pairing pod has two stages of a replica in every pod, %u do not make whole pods; take an even "
                    "number, or --pairing node",
                    training.grid.stages);
  }
  if (status == BL_OK) {
    const bl_policy_t policy = bl_policy_of_job(&job);
    status = bl_balance_plan_init(&plan, &training, &policy, err);
  }
  if (status == BL_OK) {
    overlay.grid = training.grid;
    overlay.cuda = job.pipeline.device == BL_JOB_DEVICE_CUDA;
    overlay.volumes = bl_ctl_pod_files_need_volumes(&job);
    status = bl_pods_of(&training, &plan, &job, (double)a->disk_rate, &overlay.pods, err);
  }
  if (status == BL_OK) {
    status = rewrite(a, path, &job, &overlay, &text, &text_bytes, err);
  }
  if (status == BL_OK) {
    status = write_overlay(a, &overlay, text, text_bytes, err);
  }
  if (status == BL_OK) {
    print_summary(a, &job, &overlay);
  }
  free(text);
  bl_balance_plan_cleanup(&plan);
  bl_training_cleanup(&training);
  bl_job_cleanup(&job);
  return status;
}

static bl_status_t body(void *arguments, const bl_flags_result_t *words, bl_error_t *err) {
  const arguments_t *a = arguments;
  if (a->output == NULL) {
    return bl_error_set(err, BL_INVALID, "ballastctl render: --output FOLDER says where to write the overlay");
  }
  if (a->jobset && a->pairing == PAIRING_POD) {
    return bl_error_set(err, BL_INVALID,
                        "ballastctl render: --jobset and --pairing pod do not go together: its stages are a pod each; "
                        "take --pairing node, which keeps pairs on one node");
  }
  return render(a, words->positional[0], err);
}

static int run(int argc, char *const *argv) {
  arguments_t arguments = {0};
  return bl_ctl_run(&flags, &arguments, body, argc, argv);
}

const bl_ctl_command_t bl_ctl_render_command = {"render", "an overlay for Kubernetes that runs a job", run};
