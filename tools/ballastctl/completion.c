// SPDX-License-Identifier: Apache-2.0
// ballastctl completion: scripts that complete commands, flags and the values of flags, from the tables of all
// commands.
#include "ballastctl/commands.h"
#include "ballastctl/output.h"

#include <string.h>

typedef struct arguments {
  char unused;
} arguments_t;

static const bl_flags_t flags = {
    .program = "ballastctl completion",
    .usage = "bash|zsh|fish",
    .about = "Prints a script that completes commands, flags and their values: 'source <(ballastctl completion bash)', "
             "or 'ballastctl completion fish | source'.",
    .table = {NULL, 0, "command line"},
    .positional_minimum = 1,
    .positional_maximum = 1};

static bool is_file(const bl_option_t *row) {
  return row->type == BL_OPTION_PATH || row->type == BL_OPTION_PATH_LIST ||
         (row->argument != NULL && strstr(row->argument, "FILE") != NULL);
}

static void print_choices(const bl_option_t *row) {
  for (size_t i = 0; row->choices[i] != NULL; i++) {
    if (row->choices[i][0] != '\0') {
      printf(" %s", row->choices[i]);
    }
  }
}

// Returns "leases list" of "ballastctl leases list".
static const char *path_of(const bl_flags_t *command) {
  return strchr(command->program, ' ') + 1;
}

// ---- bash, and zsh through its bashcompinit

static void bash_flags(const bl_flags_t *command, void *context) {
  (void)context;
  printf("    '%s') flags='--help", path_of(command));
  for (size_t i = 0; i < command->table.count; i++) {
    const bl_option_t *row = &command->table.rows[i];
    if (!row->hidden) {
      printf(" --%s", row->name);
      if (row->letter != 0) {
        printf(" -%c", row->letter);
      }
    }
  }
  printf("' ;;\n");
}

static void bash_values(const bl_flags_t *command, void *context) {
  (void)context;
  for (size_t i = 0; i < command->table.count; i++) {
    const bl_option_t *row = &command->table.rows[i];
    if (row->hidden || row->type == BL_OPTION_BOOL) {
      continue;
    }
    printf("    '%s --%s'", path_of(command), row->name);
    if (row->letter != 0) {
      printf(" | '%s -%c'", path_of(command), row->letter);
    }
    printf(") ");
    if (row->choices != NULL) {
      printf("values='");
      print_choices(row);
      printf("' ;;\n");
    } else {
      printf("%s ;;\n", is_file(row) ? "files=1" : "values=' '");
    }
  }
}

// Completes the second argument of groups: "get" of "leases get".
static void bash_groups(const bl_flags_t *command, void *context) {
  const char *group = context, *path = path_of(command);
  size_t length = strlen(group);
  if (strncmp(path, group, length) == 0 && path[length] == ' ') {
    printf(" %s", path + length + 1);
  }
}

static void print_bash(void) {
  size_t count;
  const bl_ctl_command_t *commands = bl_ctl_commands(&count);
  printf(
      "# bash completion for ballastctl; made by 'ballastctl completion bash'\n_ballastctl() {\n"
      "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} command='' second='' seconds=''\n"
      "  local flags='' values='' files='' i\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    case ${COMP_WORDS[i]} in\n      -*) ;;\n      *) if [ -z \"$command\" ]; then command=${COMP_WORDS[i]}; "
      "elif [ -z \"$second\" ]; then second=${COMP_WORDS[i]}; fi ;;\n    esac\n  done\n"
      "  if [ -z \"$command\" ]; then\n    COMPREPLY=($(compgen -W '--help");
  for (size_t i = 0; i < count; i++) {
    printf(" %s", commands[i].name);
  }
  printf("' -- \"$current\"))\n    return\n  fi\n  case $command in\n");
  for (size_t i = 0; i < count; i++) {
    printf("    %s) seconds='", commands[i].name);
    bl_ctl_visit(bash_groups, (void *)(uintptr_t)commands[i].name);
    printf("' ;;\n");
  }
  printf("  esac\n  if [ -n \"$seconds\" ]; then\n    if [ -z \"$second\" ]; then\n"
         "      COMPREPLY=($(compgen -W \"$seconds --help\" -- \"$current\"))\n      return\n    fi\n"
         "    command=\"$command $second\"\n  fi\n  case \"$command $previous\" in\n");
  bl_ctl_visit(bash_values, NULL);
  printf("    'completion completion') values='bash zsh fish' ;;\n  esac\n"
         "  if [ -n \"$values\" ]; then\n    COMPREPLY=($(compgen -W \"$values\" -- \"$current\"))\n    return\n  fi\n"
         "  if [ -n \"$files\" ] || [[ $current != -* ]]; then\n    COMPREPLY=($(compgen -f -- \"$current\"))\n    "
         "return\n"
         "  fi\n  case $command in\n");
  bl_ctl_visit(bash_flags, NULL);
  printf("  esac\n  COMPREPLY=($(compgen -W \"$flags\" -- \"$current\"))\n}\n"
         "complete -o filenames -F _ballastctl ballastctl\n");
}

static void print_zsh(void) {
  printf("#compdef ballastctl\n# zsh completion for ballastctl; made by 'ballastctl completion zsh'\n"
         "autoload -U +X bashcompinit && bashcompinit\n");
  print_bash();
  // A shell that found this file in its fpath runs it for the first completion: that one is still to be made.
  printf("[[ ${funcstack[1]} != _ballastctl ]] || _bash_complete -o filenames -F _ballastctl\n");
}

// ---- fish

static void fish_text(const char *text) {
  for (; *text != '\0'; text++) {
    printf(*text == '\'' || *text == '\\' ? "\\%c" : "%c", *text);
  }
}

// A condition that is true while the command line has exactly the words of `path`.
static void fish_condition(const char *path) {
  const char *space = strchr(path, ' ');
  if (space == NULL) {
    printf(" -n '__fish_seen_subcommand_from %s'", path);
  } else {
    printf(" -n '__fish_seen_subcommand_from %.*s; and __fish_seen_subcommand_from %s'", (int)(space - path), path,
           space + 1);
  }
}

static void fish_command(const bl_flags_t *command, void *context) {
  (void)context;
  const char *path = path_of(command), *space = strchr(path, ' ');
  if (space != NULL) {
    printf("complete -c ballastctl -f -n '__fish_seen_subcommand_from %.*s' -a %s\n", (int)(space - path), path,
           space + 1);
  }
  for (size_t i = 0; i < command->table.count; i++) {
    const bl_option_t *row = &command->table.rows[i];
    if (row->hidden) {
      continue;
    }
    printf("complete -c ballastctl");
    fish_condition(path);
    printf(" -l %s", row->name);
    if (row->letter != 0) {
      printf(" -s %c", row->letter);
    }
    if (row->choices != NULL) {
      printf(" -x -a '");
      print_choices(row);
      printf("'");
    } else if (row->type != BL_OPTION_BOOL) {
      printf(is_file(row) ? " -r -F" : " -x");
    }
    printf(" -d '");
    fish_text(row->help);
    printf("'\n");
  }
}

static void print_fish(void) {
  size_t count;
  const bl_ctl_command_t *commands = bl_ctl_commands(&count);
  printf("# fish completion for ballastctl; made by 'ballastctl completion fish'\n");
  for (size_t i = 0; i < count; i++) {
    if (commands[i].summary != NULL) {
      printf("complete -c ballastctl -f -n __fish_use_subcommand -a %s -d '", commands[i].name);
      fish_text(commands[i].summary);
      printf("'\n");
    }
  }
  printf("complete -c ballastctl -f -n '__fish_seen_subcommand_from completion' -a 'bash zsh fish'\n");
  bl_ctl_visit(fish_command, NULL);
}

// ---- the command

static bl_status_t body(void *arguments, const bl_flags_result_t *words, bl_error_t *err) {
  (void)arguments;
  const char *shell = words->positional[0];
  if (strcmp(shell, "bash") == 0) {
    print_bash();
  } else if (strcmp(shell, "zsh") == 0) {
    print_zsh();
  } else if (strcmp(shell, "fish") == 0) {
    print_fish();
  } else {
    return bl_error_set(err, BL_INVALID, "there is no completion for '%.40s': bash, zsh and fish have one", shell);
  }
  return fflush(stdout) == 0 ? BL_OK : bl_ctl_printed(BL_IO, err);
}

static int run(int argc, char *const *argv) {
  arguments_t arguments = {0};
  return bl_ctl_run(&flags, &arguments, body, argc, argv);
}

const bl_ctl_command_t bl_ctl_completion_command = {"completion", "completion for bash, zsh and fish", run};
