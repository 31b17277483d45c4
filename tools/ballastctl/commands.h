// SPDX-License-Identifier: Apache-2.0
// All commands of ballastctl.
#ifndef BALLAST_BALLASTCTL_COMMANDS_H
#define BALLAST_BALLASTCTL_COMMANDS_H

#include "ballastctl/command.h"

extern const bl_ctl_command_t bl_ctl_compare_command;
extern const bl_ctl_command_t bl_ctl_completion_command;
extern const bl_ctl_command_t bl_ctl_configuration_command;
extern const bl_ctl_command_t bl_ctl_dashboard_command;
extern const bl_ctl_command_t bl_ctl_doctor_command;
extern const bl_ctl_command_t bl_ctl_drain_command;
extern const bl_ctl_command_t bl_ctl_estimate_command;
extern const bl_ctl_command_t bl_ctl_health_command;
extern const bl_ctl_command_t bl_ctl_leases_command;
extern const bl_ctl_command_t bl_ctl_manual_command;
extern const bl_ctl_command_t bl_ctl_plan_command;
extern const bl_ctl_command_t bl_ctl_plot_command;
extern const bl_ctl_command_t bl_ctl_policy_command;
extern const bl_ctl_command_t bl_ctl_preflight_command;
extern const bl_ctl_command_t bl_ctl_quota_command;
extern const bl_ctl_command_t bl_ctl_render_command;
extern const bl_ctl_command_t bl_ctl_run_command;
extern const bl_ctl_command_t bl_ctl_schedule_command;
extern const bl_ctl_command_t bl_ctl_simulate_command;
extern const bl_ctl_command_t bl_ctl_stages_command;
extern const bl_ctl_command_t bl_ctl_status_command;
extern const bl_ctl_command_t bl_ctl_stores_command;
extern const bl_ctl_command_t bl_ctl_trace_command;
extern const bl_ctl_command_t bl_ctl_version_command;

// `leases watch` and `schedule frontier`, each in a file of its own.
int bl_ctl_leases_watch(int argc, char *const *argv);
int bl_ctl_schedule_frontier(int argc, char *const *argv);

// Prints this program and its libraries, one per line, for --version in place of a command. Returns the exit code.
int bl_ctl_print_version(void);

#endif
