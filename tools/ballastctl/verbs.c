// SPDX-License-Identifier: Apache-2.0
// ballastctl: starts and operates training runs.
#include "ballastctl/verbs.h"
#include "ballastctl/security.h"

#include "sys/log.h"

#include <string.h>

int main(int argc, char **argv) {
  // clang-format off
  const bl_ctl_verb_t verbs[] = {
      bl_ctl_run_verb,
      bl_ctl_status_verb,
      bl_ctl_stages_verb,
      bl_ctl_stores_verb,
      bl_ctl_leases_verb,
      bl_ctl_policy_verb,
      bl_ctl_drain_verb,
      bl_ctl_quota_verb,
      bl_ctl_dashboard_verb,
      bl_ctl_health_verb,
      bl_ctl_doctor_verb,
      bl_ctl_trace_verb,
      bl_ctl_plot_verb,
      bl_ctl_compare_verb,
      bl_ctl_schedule_verb,
      bl_ctl_simulate_verb,
      bl_ctl_plan_verb,
      bl_ctl_estimate_verb,
      bl_ctl_render_verb,
      bl_ctl_preflight_verb,
      bl_ctl_configuration_verb,
      bl_ctl_completion_verb,
      bl_ctl_manual_verb,
      bl_ctl_version_verb,
  };
  // clang-format on
  bl_log_init("ballastctl", BL_LOG_WARNING);
  if (argc == 2 && strcmp(argv[1], "--version") == 0) {
    return bl_ctl_print_version();
  }
  bl_error_t err;
  if (bl_ctl_security_take(&argc, argv, &err) != BL_OK) {
    return bl_ctl_finish(err.status, &err);
  }
  int exit_code = bl_ctl_dispatch("ballastctl", verbs, sizeof verbs / sizeof verbs[0], argc - 1, argv + 1);
  bl_ctl_security_cleanup();
  return exit_code;
}
