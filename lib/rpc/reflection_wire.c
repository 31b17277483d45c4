// SPDX-License-Identifier: Apache-2.0
// Serves both versions of the protocol with one implementation. Their messages are equal on the wire and differ only in
// the package's name, so v1alpha is v1's service under another name. No state is kept between requests.
#include "rpc/descriptors.h"
#include "rpc/reflection.h"
#include "rpc/server_core.h"

#include "descriptor_set.h"
#include "grpc/reflection/v1/reflection.pb-c.h"
#include "grpc/reflection/v1alpha/reflection.pb-c.h"

#include <string.h>

typedef Grpc__Reflection__V1__ServerReflectionRequest request_t;
typedef Grpc__Reflection__V1__ServerReflectionResponse response_t;

// A response and everything that it may point to.
typedef struct answer {
  response_t message;
  Grpc__Reflection__V1__FileDescriptorResponse files;
  Grpc__Reflection__V1__ExtensionNumberResponse extensions;
  Grpc__Reflection__V1__ListServiceResponse list;
  Grpc__Reflection__V1__ErrorResponse error;
  ProtobufCBinaryData data[BL_RPC_REFLECTION_FILES];
  Grpc__Reflection__V1__ServiceResponse services[BL_RPC_REFLECTION_SERVICES];
  Grpc__Reflection__V1__ServiceResponse *pointers[BL_RPC_REFLECTION_SERVICES];
  bl_error_t err;
} answer_t;

static bl__span_t descriptor_set(void) {
  return (bl__span_t){bl_proto_descriptor_set, bl_proto_descriptor_set_bytes};
}

static void answer_error(answer_t *answer, bl_status_t status, const char *what, const char *name) {
  (void)bl_error_set(&answer->err, status, "%s %.200s", what, name);
  grpc__reflection__v1__error_response__init(&answer->error);
  answer->error.error_code = bl_status_grpc_code(status);
  answer->error.error_message = answer->err.text;
  answer->message.message_response_case =
      GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ERROR_RESPONSE;
  answer->message.error_response = &answer->error;
}

static void answer_files(answer_t *answer, bl__span_t file) {
  bl__span_t files[BL_RPC_REFLECTION_FILES];
  size_t count = bl__descriptors_closure(descriptor_set(), file, files, BL_RPC_REFLECTION_FILES);
  for (size_t i = 0; i < count; i++) {
    answer->data[i].data = (uint8_t *)files[i].bytes; // packing only reads
    answer->data[i].len = files[i].size_bytes;
  }
  grpc__reflection__v1__file_descriptor_response__init(&answer->files);
  answer->files.file_descriptor_proto = answer->data;
  answer->files.n_file_descriptor_proto = count;
  answer->message.message_response_case =
      GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_FILE_DESCRIPTOR_RESPONSE;
  answer->message.file_descriptor_response = &answer->files;
}

static void answer_list(answer_t *answer, const bl_rpc_server_t *server) {
  const ProtobufCServiceDescriptor *last = NULL;
  size_t count = 0;
  for (size_t i = 0; i < server->method_count; i++) { // methods of one service are adjacent
    const ProtobufCServiceDescriptor *service = server->methods[i].service;
    if (service == NULL || service == last || count == BL_RPC_REFLECTION_SERVICES) {
      continue;
    }
    last = service;
    grpc__reflection__v1__service_response__init(&answer->services[count]);
    answer->services[count].name = (char *)service->name;
    answer->pointers[count] = &answer->services[count];
    count++;
  }
  grpc__reflection__v1__list_service_response__init(&answer->list);
  answer->list.service = answer->pointers;
  answer->list.n_service = count;
  answer->message.message_response_case =
      GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_LIST_SERVICES_RESPONSE;
  answer->message.list_services_response = &answer->list;
}

// No message of this project has extensions.
static void answer_extensions(answer_t *answer, const char *type) {
  if (!bl__descriptors_message(descriptor_set(), type)) {
    answer_error(answer, BL_NOT_FOUND, "no message named", type);
    return;
  }
  grpc__reflection__v1__extension_number_response__init(&answer->extensions);
  answer->extensions.base_type_name = (char *)type;
  answer->message.message_response_case =
      GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ALL_EXTENSION_NUMBERS_RESPONSE;
  answer->message.all_extension_numbers_response = &answer->extensions;
}

static void fill(answer_t *answer, const request_t *request, const bl_rpc_server_t *server) {
  bl__span_t file;
  grpc__reflection__v1__server_reflection_response__init(&answer->message);
  answer->message.valid_host = request->host;
  answer->message.original_request = (request_t *)request;
  switch (request->message_request_case) {
  case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_BY_FILENAME:
    if (bl__descriptors_file(descriptor_set(), request->file_by_filename, &file)) {
      answer_files(answer, file);
    } else {
      answer_error(answer, BL_NOT_FOUND, "no file named", request->file_by_filename);
    }
    break;
  case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_SYMBOL:
    if (bl__descriptors_symbol(descriptor_set(), request->file_containing_symbol, &file)) {
      answer_files(answer, file);
    } else {
      answer_error(answer, BL_NOT_FOUND, "no file defines", request->file_containing_symbol);
    }
    break;
  case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_EXTENSION:
    answer_error(answer, BL_NOT_FOUND, "no extensions of", request->file_containing_extension->containing_type);
    break;
  case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_ALL_EXTENSION_NUMBERS_OF_TYPE:
    answer_extensions(answer, request->all_extension_numbers_of_type);
    break;
  case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_LIST_SERVICES:
    answer_list(answer, server);
    break;
  default:
    answer_error(answer, BL_INVALID, "a reflection request that asks nothing", "this server knows of");
  }
}

// ---- the stream: reads a request, answers it, reads the next --------------------------------------------------------

static void on_request(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context);

static void on_cancelled(bl_rpc_call_t *call, void *context) {
  (void)context;
  bl_rpc_call_finish(call, BL_CANCELLED, NULL);
}

static void on_sent(bl_rpc_call_t *call, void *context) {
  bl_rpc_call_read(call, on_request, context);
}

static void on_request(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  if (input == NULL) {
    bl_rpc_call_finish(call, BL_OK, NULL);
    return;
  }
  answer_t answer;
  fill(&answer, (const request_t *)input, bl_rpc_call_server(call));
  bl_status_t status = bl_rpc_call_send(call, &answer.message.base, on_sent, context);
  if (status != BL_OK) {
    bl_rpc_call_finish(call, status, "the answer cannot be sent");
  }
}

static void handle(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_rpc_call_on_cancel(call, on_cancelled, NULL);
  on_request(call, input, context);
}

bl_status_t bl_rpc_reflection_add(bl_rpc_server_t *server, bl_error_t *err) {
  static const bl_rpc_method_t methods[] = {{"ServerReflectionInfo", handle}};
  static ProtobufCServiceDescriptor older;
  older = grpc__reflection__v1__server_reflection__descriptor;
  older.name = grpc__reflection__v1alpha__server_reflection__descriptor.name;
  bl_status_t status =
      bl_rpc_server_add_service(server, &grpc__reflection__v1__server_reflection__descriptor, methods, 1, NULL, err);
  if (status == BL_OK) {
    status = bl_rpc_server_add_service(server, &older, methods, 1, NULL, err);
  }
  return status;
}
