// SPDX-License-Identifier: Apache-2.0
// Private to the client of a stage: reads its answers. Each function reads the answer to one method into members of
// `answer`, which borrow from `output` and from *made, a malloc'd block that the caller frees after use (NULL: none).
// If memory for the block is exhausted, those members stay zero.
//
// Thread: pure functions.
#ifndef BALLAST_DRIVER_STAGE_ANSWER_WIRE_H
#define BALLAST_DRIVER_STAGE_ANSWER_WIRE_H

#include "stage_client_wire.h"

#include <protobuf-c/protobuf-c.h>

typedef void (*bl__answer_fn)(const ProtobufCMessage *output, bl_stage_answer_t *answer, void **made);

void bl__answer_status(const ProtobufCMessage *output, bl_stage_answer_t *answer, void **made);
void bl__answer_takeover(const ProtobufCMessage *output, bl_stage_answer_t *answer, void **made);
void bl__answer_place(const ProtobufCMessage *output, bl_stage_answer_t *answer, void **made);    // Configure
void bl__answer_paths(const ProtobufCMessage *output, bl_stage_answer_t *answer, void **made);    // Connect
void bl__answer_prepared(const ProtobufCMessage *output, bl_stage_answer_t *answer, void **made); // PreparePlan
void bl__answer_run(const ProtobufCMessage *output, bl_stage_answer_t *answer, void **made);
void bl__answer_files(const ProtobufCMessage *output, bl_stage_answer_t *answer, void **made); // WriteSnapshot

#endif
