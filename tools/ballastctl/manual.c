// SPDX-License-Identifier: Apache-2.0
// ballastctl manual: the manual page and its Markdown form, from the tables of all verbs.
#include "output.h"
#include "verbs.h"

#include "base/status.h"
#include "sys/version.h"

#include <string.h>

typedef struct arguments {
  int format;
} arguments_t;

static const char *const formats[] = {"man", "markdown", NULL};
static const bl_option_t rows[] = {{.name = "format",
                                    .letter = 'f',
                                    .type = BL_OPTION_ENUM,
                                    .offset = offsetof(arguments_t, format),
                                    .choices = formats,
                                    .preset = "man",
                                    .help = "How it is written."}};
static const bl_flags_t flags = {.program = "ballastctl manual",
                                 .usage = "[--format man|markdown]",
                                 .about = "Prints the manual of ballastctl: 'ballastctl manual | man -l -'.",
                                 .table = {rows, 1, "command line"}};

// Exit codes of all verbs; DESIGN's table is the contract, base/status.h has the numbers.
static const struct {
  int code;
  const char *meaning;
} exits[] = {{0, "it went well"},
             {1, "an internal error, or input and output that failed"},
             {2, "wrong words, or a job that cannot be"},
             {3, "there is no such thing"},
             {4, "not possible in this state, or fenced by somebody newer"},
             {5, "nobody answers there"},
             {6, "no answer in time"},
             {7, "not allowed, or not authenticated"},
             {8, "memory, room or quota is exhausted"},
             {9, "unhealthy: a part of a run does not answer"},
             {10, "done in part: messages say for what it was not"},
             {130, "interrupted"}};
#define EXITS (sizeof exits / sizeof exits[0])

static void visit_man(const bl_flags_t *verb, void *context) {
  (void)context;
  printf(".SS %s\n", strchr(verb->program, ' ') + 1);
  bl_flags_print_man(verb, stdout);
}

static void print_man(void) {
  printf(
      ".TH BALLASTCTL 1 \"\" \"Ballast %s\" \"Ballast\"\n.SH NAME\nballastctl \\- starts and operates training runs\n"
      ".SH SYNOPSIS\n.B ballastctl\n.I VERB\n[arguments]\n.SH DESCRIPTION\n"
      "Ballast trains language models with pipeline parallelism and keeps the memory of the pipeline level. Data goes\n"
      "to standard output, messages to standard error. Without \\fB\\-\\-endpoint\\fR a verb asks the newest local "
      "run\n"
      "of this user.\n.SH VERBS\n",
      bl_version());
  bl_ctl_visit(visit_man, NULL);
  printf(".SH EXIT STATUS\n");
  for (size_t i = 0; i < EXITS; i++) {
    printf(".TP\n.B %d\n%s\n", exits[i].code, exits[i].meaning);
  }
  printf(".SH ENVIRONMENT\n.TP\n.B XDG_RUNTIME_DIR\nWhere local runs leave their sockets and endpoints.\n"
         ".TP\n.B BALLAST_LOG\nHow much is logged: error, warning, info or debug.\n"
         ".SH SEE ALSO\n.BR stage\\-service (1),\n.BR activation\\-store (1),\n.BR ballast\\-driver (1)\n");
}

static void visit_markdown(const bl_flags_t *verb, void *context) {
  (void)context;
  printf("\n## %s\n\n", strchr(verb->program, ' ') + 1);
  bl_flags_print_markdown(verb, stdout);
}

static void print_markdown(void) {
  size_t count;
  const bl_ctl_verb_t *verbs = bl_ctl_verbs(&count);
  printf("| verb | what it does |\n| --- | --- |\n");
  for (size_t i = 0; i < count; i++) {
    if (verbs[i].summary != NULL) {
      printf("| `%s` | %s |\n", verbs[i].name, verbs[i].summary);
    }
  }
  printf("\n| exit code | meaning |\n| --- | --- |\n");
  for (size_t i = 0; i < EXITS; i++) {
    printf("| %d | %s |\n", exits[i].code, exits[i].meaning);
  }
  bl_ctl_visit(visit_markdown, NULL);
}

static int run(int argc, char *const *argv) {
  arguments_t arguments;
  bl_flags_result_t result;
  bl_error_t err;
  bl_status_t status = bl_flags_parse(&flags, argc, argv, &arguments, &result, &err);
  if (status == BL_OK && result.help) {
    bl_flags_print_help(&flags, stdout);
  } else if (status == BL_OK) {
    if (arguments.format == 0) {
      print_man();
    } else {
      print_markdown();
    }
    if (fflush(stdout) != 0) {
      status = bl_ctl_printed(BL_IO, &err);
    }
  }
  bl_options_cleanup(&flags.table, &arguments);
  return bl_ctl_finish(status, &err);
}

const bl_ctl_verb_t bl_ctl_manual_verb = {"manual", "the manual of this program", run};
