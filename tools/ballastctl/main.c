// SPDX-License-Identifier: Apache-2.0
// ballastctl: starts and operates training runs.
#include "ballastctl/commands.h"
#include "ballastctl/output.h"
#include "ballastctl/security.h"

#include "base/error.h"
#include "sys/log.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void end_by_signal(int number) {
  (void)number;
  _exit(bl_status_exit_code(BL_CANCELLED));
}

// For process 1, as in a container, the kernel drops signals without a handler: an init container would end only when it
// is killed. Commands with handlers of their own replace these.
static void handle_signals(void) {
  const struct sigaction action = {.sa_handler = end_by_signal};
  if (getpid() == 1) {
    (void)sigaction(SIGTERM, &action, NULL);
    (void)sigaction(SIGINT, &action, NULL);
  }
}

int main(int argc, char **argv) {
  // clang-format off
  const bl_ctl_command_t commands[] = {
      bl_ctl_run_command,
      bl_ctl_status_command,
      bl_ctl_stages_command,
      bl_ctl_stores_command,
      bl_ctl_leases_command,
      bl_ctl_policy_command,
      bl_ctl_drain_command,
      bl_ctl_quota_command,
      bl_ctl_dashboard_command,
      bl_ctl_health_command,
      bl_ctl_doctor_command,
      bl_ctl_trace_command,
      bl_ctl_plot_command,
      bl_ctl_compare_command,
      bl_ctl_schedule_command,
      bl_ctl_simulate_command,
      bl_ctl_plan_command,
      bl_ctl_estimate_command,
      bl_ctl_render_command,
      bl_ctl_preflight_command,
      bl_ctl_configuration_command,
      bl_ctl_completion_command,
      bl_ctl_manual_command,
      bl_ctl_version_command,
  };
  // clang-format on
  handle_signals();
  bl_log_init("ballastctl", BL_LOG_WARNING);
  if (argc == 2 && strcmp(argv[1], "--version") == 0) {
    return bl_ctl_print_version();
  }
  bl_error_t err;
  if (bl_ctl_security_take(&argc, argv, &err) != BL_OK) {
    return bl_ctl_finish(err.status, &err);
  }
  int exit_code = bl_ctl_dispatch("ballastctl", commands, sizeof commands / sizeof commands[0], argc - 1, argv + 1);
  bl_ctl_security_cleanup();
  if (exit_code == 0 && fflush(stdout) != 0) { // a help; commands check what they print
    exit_code = bl_ctl_finish(bl_ctl_printed(BL_IO, &err), &err);
  }
  return exit_code;
}
