// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/plan/operations.h"

#include "ballastctl/program.h"

#include "job/architecture.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

#define LINE_BYTES 512

typedef struct asked {
  FILE *job, *answer; // input and output of the program
  pid_t pid;
} asked_t;

static void close_pipe(const int ends[2]) {
  close(ends[0]);
  close(ends[1]);
}

// Starts the program with its standard error in the same pipe as its answer, because its log is not for the user.
static bl_status_t start(char *list, asked_t *asked, bl_error_t *err) {
  char path[PATH_MAX], operation[] = "--operation-memory";
  const char *program = bl_ctl_program_path("stage-service", path);
  char *const argv[] = {(char *)(uintptr_t)program, operation, list, NULL};
  int in[2], out[2];
  if (pipe2(in, O_CLOEXEC) != 0) {
    return bl_error_set(err, BL_UNAVAILABLE, "no pipe: %s", strerror(errno));
  }
  if (pipe2(out, O_CLOEXEC) != 0) {
    close_pipe(in);
    return bl_error_set(err, BL_UNAVAILABLE, "no pipe: %s", strerror(errno));
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDERR_FILENO);
  int failed = posix_spawnp(&asked->pid, program, &actions, NULL, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]);
  close(out[1]);
  if (failed != 0) {
    close(in[1]);
    close(out[0]);
    return bl_error_set(err, BL_UNAVAILABLE, "%s: cannot be started: %s", program, strerror(failed));
  }
  asked->job = fdopen(in[1], "w");
  asked->answer = fdopen(out[0], "r");
  return BL_OK;
}

// Returns whether the line is an answer.
static bool read_line(const char *line, bl_ctl_operations_answer_t *answer) {
  char attention[16];
  bl_operation_memory_t *m = &answer->memory;
  const int fields =
      sscanf(line, "%" SCNu32 " %15s %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64,
             &answer->micro_batch, attention, &m->packed_layer_bytes, &m->packed_head_bytes, &m->layer_workspace_bytes,
             &m->head_workspace_bytes, &m->held_bytes, &m->logits.piece_elements, &m->logits.row_multiple);
  const bool flash = strcmp(attention, bl_attention_name(BL_ATTENTION_FLASH)) == 0;
  answer->attention = flash ? BL_ATTENTION_FLASH : BL_ATTENTION_NAIVE;
  return fields == 9;
}

static void keep(bl_ctl_operations_t *operations, const bl_ctl_operations_answer_t *answer) {
  // NOLINTNEXTLINE(bugprone-sizeof-expression): an array of pointers, as what they point to stays where it is
  const size_t bytes = (operations->count + 1) * sizeof *operations->answers;
  bl_ctl_operations_answer_t **grown = realloc(operations->answers, bytes);
  bl_ctl_operations_answer_t *kept = malloc(sizeof *kept);
  if (grown != NULL) {
    operations->answers = grown;
  }
  if (grown == NULL || kept == NULL) {
    free(kept);
    return;
  }
  *kept = *answer;
  grown[operations->count++] = kept;
}

static void read_answer(bl_ctl_operations_t *operations, uint32_t slices, FILE *from, char said[LINE_BYTES]) {
  char line[LINE_BYTES];
  said[0] = '\0';
  while (fgets(line, sizeof line, from) != NULL) {
    bl_ctl_operations_answer_t answer;
    if (read_line(line, &answer)) {
      answer.slices = slices;
      keep(operations, &answer);
    } else {
      line[strcspn(line, "\n")] = '\0';
      memcpy(said, line, sizeof line);
    }
  }
}

// Ignores SIGPIPE meanwhile: a program that ended early reads nothing, and this process must go on.
static void send_job(FILE *job, const char *text, size_t bytes) {
  void (*before)(int) = signal(SIGPIPE, SIG_IGN);
  if (job != NULL) {
    (void)!fwrite(text, 1, bytes, job);
    fclose(job);
  }
  signal(SIGPIPE, before);
}

// Asks for both kinds of attention of one micro-batch in `slices`.
static bl_status_t ask(bl_ctl_operations_t *operations, uint32_t micro_batch, uint32_t slices, bl_error_t *err) {
  bl_job_t job = *operations->job; // borrows
  char *text = NULL, list[16], said[LINE_BYTES] = "";
  size_t bytes = 0;
  asked_t asked = {0};
  snprintf(list, sizeof list, "%" PRIu32, micro_batch);
  job.pipeline.slices.value = slices;
  job.pipeline.slices.set = true;
  bl_status_t status = bl_job_dump(&job, &text, &bytes) == BL_OK
                           ? start(list, &asked, err)
                           : bl_error_set(err, BL_EXHAUSTED, "no memory to ask what operations need");
  if (status == BL_OK) {
    send_job(asked.job, text, bytes);
    if (asked.answer != NULL) {
      read_answer(operations, slices, asked.answer, said);
      fclose(asked.answer);
    }
    int ended = 0;
    while (waitpid(asked.pid, &ended, 0) < 0 && errno == EINTR) {
    }
    if (!WIFEXITED(ended) || WEXITSTATUS(ended) != 0) {
      status = bl_error_set(err, BL_UNAVAILABLE, "%s", said[0] != '\0' ? said : "stage-service ended early");
    }
  }
  free(text);
  return status;
}

static const bl_operation_memory_t *find(const bl_ctl_operations_t *operations, uint32_t micro_batch, uint32_t slices,
                                         bl_attention_t attention) {
  for (uint32_t i = 0; i < operations->count; i++) {
    const bl_ctl_operations_answer_t *answer = operations->answers[i];
    if (answer->micro_batch == micro_batch && answer->slices == slices && answer->attention == attention) {
      return &answer->memory;
    }
  }
  return NULL;
}

void bl_ctl_operations_init(bl_ctl_operations_t *operations, const bl_job_t *job) {
  *operations = (bl_ctl_operations_t){.job = job, .without = ""};
}

// Keeps what is known of a GPU that cannot be asked.
static void keep_of_gpu(bl_ctl_operations_t *operations, bl_ctl_operations_answer_t answer) {
  const bl_job_t *job = operations->job;
  const bl_grid_t grid = bl_job_grid(job);
  bl_model_t model;
  if (bl_architecture_read(job, &model, NULL) == BL_OK) {
    answer.memory =
        bl_operation_memory_of_gpu(&model, (bl_layer_parts_t){.count = grid.tensor_parts, .ranks = grid.tensor},
                                   job->train.dtype == BL_JOB_DTYPE_BF16 ? BL_DTYPE_BF16 : BL_DTYPE_FP32);
    keep(operations, &answer);
  }
}

void bl_ctl_operations_cleanup(bl_ctl_operations_t *operations) {
  for (uint32_t i = 0; i < operations->count; i++) {
    free(operations->answers[i]);
  }
  free(operations->answers);
}

const bl_operation_memory_t *bl_ctl_operations_find(void *operations, uint32_t micro_batch, uint32_t slices,
                                                    bl_attention_t attention) {
  bl_ctl_operations_t *self = operations;
  const bl_ctl_operations_answer_t none = {.micro_batch = micro_batch, .slices = slices, .attention = attention};
  const bool gpu = self->job->pipeline.device == BL_JOB_DEVICE_CUDA;
  const bl_operation_memory_t *found = find(self, micro_batch, slices, attention);
  if (found == NULL && self->unknown.text[0] == '\0') {
    bl_error_t err;
    if (ask(self, micro_batch, slices, &err) != BL_OK) {
      self->unknown = err;
      self->without =
          gpu ? "workspace of operations" : "copies of weights that products read and workspace of operations";
    } else if (find(self, micro_batch, slices, attention) == NULL) {
      keep(self, &none); // not a valid block: stores zeros, so that it is not asked for again
    }
    found = find(self, micro_batch, slices, attention);
  }
  if (found == NULL && gpu) {
    keep_of_gpu(self, none);
    found = find(self, micro_batch, slices, attention);
  }
  return found;
}
