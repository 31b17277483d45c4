// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/commands.h"
#include "ballastctl/output.h"

#include "config/flags.h"
#include "device/libraries.h"
#include "draw/canvas.h"
#include "formats/safetensors.h"
#include "rpc/rpc.h"
#include "sys/version.h"

typedef struct arguments {
  int output;
} arguments_t;

static const bl_option_t rows[] = {BL_CTL_OUTPUT_FLAG(arguments_t, output)};
static const bl_flags_t flags = {
    .program = "ballastctl version",
    .usage = "[-o FORMAT]",
    .about = "Prints the version of this program; with -o wide, json and others also the revision of its sources and "
             "the versions of its libraries, of NVIDIA's driver and of the libraries that a GPU would be used with. "
             "--version in place of a command prints those that exist as lines, as the services do.",
    .table = {rows, 1, "command line"}};
static const bl_ctl_column_t columns[] = {{.key = "name", .title = "NAME"},
                                          {.key = "version", .title = "VERSION"},
                                          {.key = "revision", .title = "REVISION", .wide = true},
                                          {.key = "compiler", .title = "COMPILER", .wide = true},
                                          {.key = "libuv", .title = "LIBUV", .wide = true},
                                          {.key = "grpc", .title = "GRPC", .wide = true},
                                          {.key = "protobuf-c", .title = "PROTOBUF-C", .wide = true},
                                          {.key = "openssl", .title = "OPENSSL", .wide = true},
                                          {.key = "libyaml", .title = "LIBYAML", .wide = true},
                                          {.key = "jansson", .title = "JANSSON", .wide = true},
                                          {.key = "cairo", .title = "CAIRO", .wide = true},
                                          {.key = "driver", .title = "DRIVER", .wide = true},
                                          {.key = "cuda", .title = "CUDA", .wide = true},
                                          {.key = "cublaslt", .title = "CUBLASLT", .wide = true},
                                          {.key = "cudnn", .title = "CUDNN", .wide = true},
                                          {.key = "nccl", .title = "NCCL", .wide = true},
                                          {.key = "cupti", .title = "CUPTI", .wide = true}};

static const bl_library_t *const linked[] = {
    &bl_loop_library,    &bl_rpc_library,     &bl_rpc_messages_library, &bl_tls_library,
    &bl_options_library, &bl_formats_library, &bl_canvas_library,
};
#define LINKED (sizeof linked / sizeof linked[0])

int bl_ctl_print_version(void) {
  bl_version_print("ballastctl", stdout);
  bl_version_print_libraries(linked, LINKED, stdout);
  bl_device_libraries_print(BL_DEVICE_CUDA, stdout);
  return 0;
}

// Loading NVIDIA's libraries takes a moment, so they are loaded only if they are shown.
static bl_status_t add_libraries(json_t *version) {
  bl_device_library_t loaded[BL_DEVICE_LIBRARIES];
  for (size_t i = 0; i < LINKED; i++) {
    if (json_object_set_new(version, linked[i]->name, json_string(linked[i]->version())) != 0) {
      return BL_EXHAUSTED;
    }
  }
  bl_device_libraries(BL_DEVICE_CUDA, loaded);
  for (size_t i = 0; i < BL_DEVICE_LIBRARIES; i++) {
    if (json_object_set_new(version, loaded[i].name, json_string(loaded[i].version)) != 0) {
      return BL_EXHAUSTED;
    }
  }
  return BL_OK;
}

static bl_status_t body(void *arguments, const bl_flags_result_t *words, bl_error_t *err) {
  const arguments_t *a = arguments;
  (void)words;
  json_t *version = json_pack("{s:s, s:s, s:s, s:s}", "name", "ballast", "version", bl_version(), "revision",
                              bl_revision(), "compiler", "gcc " __VERSION__);
  bl_status_t status = version == NULL ? BL_EXHAUSTED : BL_OK;
  if (status == BL_OK && a->output != BL_CTL_TABLE && a->output != BL_CTL_NAME) {
    status = add_libraries(version);
  }
  if (status == BL_OK) {
    status = bl_ctl_print_object(a->output, columns, sizeof columns / sizeof columns[0], version, stdout);
  }
  json_decref(version);
  return bl_ctl_printed(status, err);
}

static int run(int argc, char *const *argv) {
  arguments_t arguments = {0};
  return bl_ctl_run(&flags, &arguments, body, argc, argv);
}

const bl_ctl_command_t bl_ctl_version_command = {"version", "the version of this program", run};
