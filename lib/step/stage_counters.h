// SPDX-License-Identifier: Apache-2.0
// The counters of a stage in a step: one table for the record, its copies to and from messages, the report, the status
// and the metrics. A new counter needs a row here, a field of the same name in StageCounters (stage.proto), and the
// code that counts.
//
// The columns, each passed to X after two arguments of the caller's choice:
//   type, name   of the field, in the record and in the message
//   key, unit    of the report's field, "" if it has none; what is counted in ns is reported in seconds
//   shown        in the status of a run, under its name
//   metric       TOTAL(name, metric, help of the stage, help of the driver) for ballast_METRIC_total and
//                ballast_run_METRIC_total, or NONE
//
// Pure. Thread: values of their owner.
#ifndef BALLAST_STEP_STAGE_COUNTERS_H
#define BALLAST_STEP_STAGE_COUNTERS_H

#include <stdbool.h>
#include <stdint.h>

typedef enum { BL_COUNTER_NUMBER, BL_COUNTER_NS } bl_counter_unit_t;

// evicted, loaded: blocks that were parked, and blocks that were loaded back; loaded = evicted - lost.
// lost, dropped, recomputed: blocks lost with their store, blocks that never reached a store, and blocks recomputed for
// either reason; recomputed = lost + dropped. The E operations of a plan are evicted + dropped, its L operations loaded
// + recomputed. The R operations of pipeline.recompute: full belong to the schedule. They show in busy_ns and in the
// trace, not here.
// stall_ns: waiting for peers and stores; busy_ns: computing.
// moved_bytes, moved_ns: bytes moved to stores and back, and how long that took in parallel with everything else.
// host_moved_bytes, host_moved_ns: the share of moved_* that is of host stores.
// cross_machine_bytes: boundary tensors that this stage sent to another machine, and blocks moved to and from stores
// there.
// clang-format off
#define BL_STAGE_COUNTERS(X, a, b)                                                                                     \
  X(a, b, uint32_t, own_slots, "own_slots", BL_COUNTER_NUMBER, false, NONE)                                            \
  X(a, b, uint32_t, peak_slots, "peak_slots", BL_COUNTER_NUMBER, true, NONE)                                           \
  X(a, b, uint64_t, peak_slot_bytes, "peak_slot_bytes", BL_COUNTER_NUMBER, false, NONE)                                \
  X(a, b, uint32_t, evicted, "evicted", BL_COUNTER_NUMBER, false,                                                      \
    TOTAL(evicted, "evictions", "Blocks parked in a store, in applied steps.",                                         \
          "Blocks parked in stores, all stages together."))                                                            \
  X(a, b, uint32_t, loaded, "loaded", BL_COUNTER_NUMBER, false,                                                        \
    TOTAL(loaded, "loads", "Blocks that came back from a store, in applied steps.",                                    \
          "Blocks that came back, all stages together."))                                                              \
  X(a, b, uint32_t, lost, "lost", BL_COUNTER_NUMBER, false,                                                            \
    TOTAL(lost, "lost_blocks", "Blocks lost with their store, in applied steps.",                                      \
          "Blocks lost with a store, all stages together."))                                                           \
  X(a, b, uint32_t, dropped, "dropped", BL_COUNTER_NUMBER, false,                                                      \
    TOTAL(dropped, "dropped_blocks", "Blocks dropped, by the policy or because no store took them.",                   \
          "Blocks dropped, by the policy or because no store took them, all stages together."))                        \
  X(a, b, uint32_t, recomputed, "recomputed", BL_COUNTER_NUMBER, false,                                                \
    TOTAL(recomputed, "recomputed_blocks", "Blocks recomputed, lost and dropped ones.",                                \
          "Blocks recomputed, all stages together."))                                                                  \
  X(a, b, uint64_t, stall_ns, "stall_seconds", BL_COUNTER_NS, false, NONE)                                             \
  X(a, b, uint64_t, busy_ns, "busy_seconds", BL_COUNTER_NS, false, NONE)                                               \
  X(a, b, uint64_t, moved_bytes, "", BL_COUNTER_NUMBER, false, NONE)                                                   \
  X(a, b, uint64_t, moved_ns, "", BL_COUNTER_NS, false, NONE)                                                          \
  X(a, b, uint64_t, host_moved_bytes, "host_moved_bytes", BL_COUNTER_NUMBER, true,                                     \
    TOTAL(host_moved_bytes, "host_moved_bytes", "Bytes of blocks to memory of the host and back, in applied steps.",   \
          "Bytes of blocks to memory of hosts and back, all stages together."))                                        \
  X(a, b, uint64_t, host_moved_ns, "", BL_COUNTER_NS, false, NONE)                                                     \
  X(a, b, uint64_t, cross_machine_bytes, "cross_machine_bytes", BL_COUNTER_NUMBER, true,                               \
    TOTAL(cross_machine_bytes, "cross_machine_bytes", "Bytes that crossed to another machine, in applied steps.",      \
          "Bytes that crossed to another machine, all stages together."))
// clang-format on

#define BL__COUNTER_FIELD(a, b, type, name, ...) type name;
typedef struct bl_stage_counters {
  BL_STAGE_COUNTERS(BL__COUNTER_FIELD, , )
} bl_stage_counters_t;

// Copies all counters between two pointers to records or messages: BL_STAGE_COUNTERS(BL_COUNTER_COPY, to, from)
#define BL_COUNTER_COPY(to, from, type, name, ...) (to)->name = (from)->name;

// Expands to USE_TOTAL(name, ...) for each counter with metrics and to USE_NONE for the others. The caller defines
// both: BL_STAGE_COUNTERS(BL_COUNTER_METRIC, USE, )
#define BL_COUNTER_METRIC(use, unused, type, name, key, unit, shown, metric) use##_##metric

#endif
