// SPDX-License-Identifier: Apache-2.0
// ballastctl manual: the manual page and its Markdown form, from the tables of all commands.
#include "ballastctl/commands.h"
#include "ballastctl/output.h"

#include "base/exit.h"
#include "base/status.h"
#include "sys/version.h"

#include <string.h>

typedef struct arguments {
  int format;
} arguments_t;

enum { MAN, MARKDOWN, EXIT_CODES };
static const char *const formats[] = {"man", "markdown", "exit-codes", NULL};
static const bl_option_t rows[] = {{.name = "format",
                                    .letter = 'f',
                                    .type = BL_OPTION_ENUM,
                                    .offset = offsetof(arguments_t, format),
                                    .choices = formats,
                                    .preset = "man",
                                    .help = "How it is written; exit-codes: the table of docs/exit-codes.md alone."}};
static const bl_flags_t flags = {.program = "ballastctl manual",
                                 .usage = "[--format man|markdown|exit-codes]",
                                 .about = "Prints the manual of ballastctl: 'ballastctl manual | man -l -'.",
                                 .table = {rows, 1, "command line"}};

static void visit_man(const bl_flags_t *command, void *context) {
  (void)context;
  printf(".SS %s\n", strchr(command->program, ' ') + 1);
  bl_flags_print_man(command, stdout);
}

static void print_man(void) {
  printf(
      ".TH BALLASTCTL 1 \"\" \"Ballast %s\" \"Ballast\"\n.SH NAME\nballastctl \\- starts and operates training runs\n"
      ".SH SYNOPSIS\n.B ballastctl\n.I COMMAND\n[arguments]\n.SH DESCRIPTION\n"
      "Ballast trains language models with pipeline parallelism and keeps the memory of the pipeline level. Data goes\n"
      "to standard output, messages to standard error. Without \\fB\\-\\-endpoint\\fR a command asks the newest local "
      "run\n"
      "of this user.\n.SH COMMANDS\n",
      bl_version());
  bl_ctl_visit(visit_man, NULL);
  printf(".SH EXIT STATUS\n");
  for (size_t i = 0; i < BL_EXITS; i++) {
    printf(".TP\n.B %d\n%s\n", bl_exits[i].code, bl_exits[i].meaning);
  }
  printf(".SH ENVIRONMENT\n.TP\n.B XDG_RUNTIME_DIR\nWhere local runs leave their sockets and endpoints.\n"
         ".TP\n.B BALLAST_LOG\nHow much is logged: error, warning, info or debug.\n"
         ".SH SEE ALSO\n.BR stage\\-service (1),\n.BR activation\\-store (1),\n.BR ballast\\-driver (1)\n");
}

static void visit_markdown(const bl_flags_t *command, void *context) {
  (void)context;
  printf("\n## %s\n\n", strchr(command->program, ' ') + 1);
  bl_flags_print_markdown(command, stdout);
}

static void print_markdown(void) {
  size_t count;
  const bl_ctl_command_t *commands = bl_ctl_commands(&count);
  printf("| command | what it does |\n| --- | --- |\n");
  for (size_t i = 0; i < count; i++) {
    if (commands[i].summary != NULL) {
      printf("| `%s` | %s |\n", commands[i].name, commands[i].summary);
    }
  }
  printf("\n| exit code | meaning |\n| --- | --- |\n");
  for (size_t i = 0; i < BL_EXITS; i++) {
    printf("| %d | %s |\n", bl_exits[i].code, bl_exits[i].meaning);
  }
  bl_ctl_visit(visit_markdown, NULL);
}

// Prints each exit code with the statuses that map to it, and how a Kubernetes Job reacts to it.
static void print_exit_codes(void) {
  printf("| code | meaning | statuses, with gRPC's code | the driver's Job |\n| --- | --- | --- | --- |\n");
  for (size_t i = 0; i < BL_EXITS; i++) {
    const bl_exit_t *row = &bl_exits[i];
    const char *before = "";
    printf("| %d | %s | ", row->code, row->meaning);
    for (int status = 0; status < BL_STATUS_COUNT; status++) {
      if (bl_status_exit_code((bl_status_t)status) == row->code) {
        printf("%s`%s` %d", before, bl_status_name((bl_status_t)status), bl_status_grpc_code((bl_status_t)status));
        before = ", ";
      }
    }
    printf(" | %s |\n", row->code == 0 ? "done" : row->final ? "failed" : "tried again");
  }
}

static bl_status_t body(void *arguments, const bl_flags_result_t *words, bl_error_t *err) {
  const arguments_t *a = arguments;
  (void)words;
  if (a->format == MAN) {
    print_man();
  } else if (a->format == MARKDOWN) {
    print_markdown();
  } else {
    print_exit_codes();
  }
  return fflush(stdout) == 0 ? BL_OK : bl_ctl_printed(BL_IO, err);
}

static int run(int argc, char *const *argv) {
  arguments_t arguments = {0};
  return bl_ctl_run(&flags, &arguments, body, argc, argv);
}

const bl_ctl_command_t bl_ctl_manual_command = {"manual", "the manual of this program", run};
