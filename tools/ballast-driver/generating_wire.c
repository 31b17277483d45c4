// SPDX-License-Identifier: Apache-2.0
#include "service_core_wire.h"

#include <stdlib.h>

#define GENERATION_MAX 65536 // per text: bounds what is kept for a slow reader

// A text that is being generated. Keeps what the reader has not taken yet.
typedef struct bl__text_stream {
  bl_driver_service_t *service;
  bl_rpc_call_t *call;
  uint32_t *tokens;
  size_t count, sent;
  bool bytes; // tokens are bytes
  bool done;
  bl_error_t err;
} bl__text_stream_t;

static void text_free(bl__text_stream_t *text) {
  if (text->service->text == text) {
    text->service->text = NULL;
  }
  free(text->tokens);
  free(text);
}

static void text_feed(bl__text_stream_t *text);

static void text_sent(bl_rpc_call_t *call, void *context) {
  (void)call;
  text_feed(context);
}

static void text_feed(bl__text_stream_t *text) {
  if (!bl_rpc_call_can_send(text->call)) {
    return;
  }
  if (text->sent == text->count) {
    if (text->done) {
      bl_rpc_call_finish(text->call, text->err.status, text->err.status == BL_OK ? "" : text->err.text);
      text_free(text);
    }
    return;
  }
  uint8_t byte = (uint8_t)text->tokens[text->sent];
  Ballast__V1__GenerateResponse output = BALLAST__V1__GENERATE_RESPONSE__INIT;
  output.token = text->tokens[text->sent];
  if (text->bytes) {
    output.text = (ProtobufCBinaryData){.data = &byte, .len = 1};
  }
  text->sent++;
  (void)!bl_rpc_call_send(text->call, &output.base, text_sent, text); // cancelled: text_gone follows
}

static void text_drawn(uint32_t token, void *context) {
  bl__text_stream_t *text = context;
  text->tokens[text->count++] = token;
  text_feed(text);
}

static void text_done(const bl_error_t *err, void *context) {
  bl__text_stream_t *text = context;
  text->done = true;
  text->err = *err;
  text_feed(text);
}

static void text_gone(bl_rpc_call_t *call, void *context) {
  bl__text_stream_t *text = context;
  bl_driver_generate_cancel(text->service->driver, text);
  bl_rpc_call_finish(call, BL_CANCELLED, "the reader has gone");
  text_free(text);
}

void bl__handle_generate(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_driver_service_t *service = context;
  const Ballast__V1__GenerateRequest *request = (const Ballast__V1__GenerateRequest *)input;
  if (bl__refuse_early(service, call)) {
    return;
  }
  if (request->tokens > GENERATION_MAX) {
    bl_rpc_call_finish(call, BL_INVALID, "tokens: at most 65536");
    return;
  }
  if (service->text != NULL) {
    bl_rpc_call_finish(call, BL_PRECONDITION, "another text is being drawn: ask again when it is done");
    return;
  }
  bl__text_stream_t *text = calloc(1, sizeof *text);
  uint32_t *tokens = calloc(request->tokens + 1, sizeof *tokens);
  if (text == NULL || tokens == NULL) {
    free(text);
    free(tokens);
    bl_rpc_call_finish(call, BL_EXHAUSTED, "no memory for a text");
    return;
  }
  *text = (bl__text_stream_t){.service = service,
                              .call = call,
                              .tokens = tokens,
                              .bytes = bl_driver_job(service->driver)->data.format == BL_JOB_FORMAT_TEXT};
  service->text = text;
  bl_sampling_t sampling = {.prompt = request->prompt.data,
                            .prompt_bytes = request->prompt.len,
                            .tokens = request->tokens,
                            .seed = request->seed,
                            .temperature = request->temperature,
                            .drawn = text_drawn,
                            .done = text_done,
                            .context = text};
  bl_error_t err;
  bl_rpc_call_on_cancel(call, text_gone, text);
  if (bl_driver_generate(service->driver, &sampling, &err) != BL_OK) {
    bl_rpc_call_fail(call, &err);
    text_free(text);
  }
}
