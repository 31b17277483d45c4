// SPDX-License-Identifier: Apache-2.0
// All verbs of ballastctl.
#ifndef BALLAST_BALLASTCTL_VERBS_H
#define BALLAST_BALLASTCTL_VERBS_H

#include "ballastctl/verb.h"

extern const bl_ctl_verb_t bl_ctl_compare_verb;
extern const bl_ctl_verb_t bl_ctl_completion_verb;
extern const bl_ctl_verb_t bl_ctl_configuration_verb;
extern const bl_ctl_verb_t bl_ctl_dashboard_verb;
extern const bl_ctl_verb_t bl_ctl_doctor_verb;
extern const bl_ctl_verb_t bl_ctl_drain_verb;
extern const bl_ctl_verb_t bl_ctl_estimate_verb;
extern const bl_ctl_verb_t bl_ctl_health_verb;
extern const bl_ctl_verb_t bl_ctl_leases_verb;
extern const bl_ctl_verb_t bl_ctl_manual_verb;
extern const bl_ctl_verb_t bl_ctl_plan_verb;
extern const bl_ctl_verb_t bl_ctl_plot_verb;
extern const bl_ctl_verb_t bl_ctl_policy_verb;
extern const bl_ctl_verb_t bl_ctl_preflight_verb;
extern const bl_ctl_verb_t bl_ctl_quota_verb;
extern const bl_ctl_verb_t bl_ctl_render_verb;
extern const bl_ctl_verb_t bl_ctl_run_verb;
extern const bl_ctl_verb_t bl_ctl_schedule_verb;
extern const bl_ctl_verb_t bl_ctl_simulate_verb;
extern const bl_ctl_verb_t bl_ctl_stages_verb;
extern const bl_ctl_verb_t bl_ctl_status_verb;
extern const bl_ctl_verb_t bl_ctl_stores_verb;
extern const bl_ctl_verb_t bl_ctl_trace_verb;
extern const bl_ctl_verb_t bl_ctl_version_verb;

// `leases watch` and `schedule frontier`, each in a file of its own.
int bl_ctl_leases_watch(int argc, char *const *argv);
int bl_ctl_schedule_frontier(int argc, char *const *argv);

// Prints this program and its libraries, one per line, for --version in place of a verb. Returns the exit code.
int bl_ctl_print_version(void);

#endif
