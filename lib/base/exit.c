// SPDX-License-Identifier: Apache-2.0
#include "base/exit.h"

const bl_exit_t bl_exits[BL_EXITS] = {
    {0, "success; a service or run ended as requested", true},
    {1, "an internal error, or input and output that failed", false},
    {2, "invalid command line or job", true},
    {3, "there is no such thing", false},
    {4,
     "not possible in this state, such as an address that is taken; or fenced by a newer process, such as another "
     "driver",
     true},
    {5, "no process answers there, or a stage of the run has died", false},
    {6, "no answer in time", false},
    {7, "not allowed, or not authenticated", true},
    {8, "memory, slots or quota are exhausted", false},
    {9, "unhealthy: a part of a run does not answer, or a check failed", false},
    {10, "partly done: messages name what was not", false},
    {130, "interrupted; of a run: before its last step", false},
};
