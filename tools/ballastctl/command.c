// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/command.h"

#include "config/nearest.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static void print_commands(const char *program, const bl_ctl_command_t *commands, size_t command_count, FILE *stream) {
  fprintf(stream, "usage: %s COMMAND [arguments]\n\n", program);
  for (size_t i = 0; i < command_count; i++) {
    if (commands[i].summary != NULL) {
      fprintf(stream, "  %-14s %s\n", commands[i].name, commands[i].summary);
    }
  }
  fprintf(stream, "\n%s COMMAND --help says more.\n", program);
  fputs("Every command takes --tls-ca, --tls-certificate and --tls-key FILE, for services that want TLS, and "
        "--plaintext for\n"
        "services on other hosts that do not.\n",
        stream);
}

static const bl_ctl_command_t *root;
static size_t root_count;
static bool visiting;

static void visit_commands(const bl_ctl_command_t *commands, size_t command_count) {
  char help[] = "--help", *words[] = {help, NULL};
  for (size_t i = 0; i < command_count; i++) {
    if (commands[i].summary != NULL) {
      (void)commands[i].run(1, words);
    }
  }
}

void bl_ctl_visit(bl_flags_visit_fn visit, void *context) {
  visiting = true;
  bl_flags_divert_help(visit, context);
  visit_commands(root, root_count);
  bl_flags_divert_help(NULL, NULL);
  visiting = false;
}

const bl_ctl_command_t *bl_ctl_commands(size_t *count) {
  *count = root_count;
  return root;
}

int bl_ctl_dispatch(const char *program, const bl_ctl_command_t *commands, size_t command_count, int argc,
                    char *const *argv) {
  if (root == NULL) {
    root = commands;
    root_count = command_count;
  }
  if (visiting) { // help was requested for a group of commands
    visit_commands(commands, command_count);
    return 0;
  }
  if (argc == 0) {
    print_commands(program, commands, command_count, stderr);
    return bl_status_exit_code(BL_INVALID);
  }
  if (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0 || strcmp(argv[0], "help") == 0) {
    print_commands(program, commands, command_count, stdout);
    return 0;
  }
  bl_nearest_t nearest = {.name = argv[0]};
  for (size_t i = 0; i < command_count; i++) {
    if (strcmp(argv[0], commands[i].name) == 0) {
      return commands[i].run(argc - 1, argv + 1);
    }
    bl_nearest_offer(&nearest, commands[i].name);
  }
  bl_error_t err;
  char advice[BL_NEAREST_ADVICE_BYTES];
  bool near = bl_nearest_is_near(argv[0], nearest.best);
  return bl_ctl_finish(bl_error_set(&err, BL_INVALID, "'%.60s' is no command of %s; %s", argv[0], program,
                                    near ? bl_nearest_advise(&nearest, advice) : "--help lists them"),
                       &err);
}

int bl_ctl_run(const bl_flags_t *flags, void *arguments, bl_ctl_body_fn body, int argc, char *const *argv) {
  bl_flags_result_t words;
  bl_error_t err = {0};
  bl_status_t status = bl_flags_parse(flags, argc, argv, arguments, &words, &err);
  if (status == BL_OK && words.help) {
    bl_flags_print_help(flags, stdout);
  } else if (status == BL_OK) {
    status = body(arguments, &words, &err);
  }
  bl_options_cleanup(&flags->table, arguments);
  return bl_ctl_finish(status, &err);
}

int bl_ctl_finish(bl_status_t status, const bl_error_t *err) {
  if (status != BL_OK) { // an error of the command line names the command, too: "ballastctl run: ..."
    bool named = strncmp(err->text, "ballastctl ", strlen("ballastctl ")) == 0;
    fprintf(stderr, "%s%s\n", named ? "" : "ballastctl: ", err->text);
  }
  return bl_status_exit_code(status);
}
