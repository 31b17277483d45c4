// SPDX-License-Identifier: Apache-2.0
#include "device/module.h"

#include "sys/file.h"
#include "sys/version.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FOLDER_VARIABLE "BALLAST_MODULES"
#define MODULES         4 // the most modules that a process may open

// Packages that can be installed, by the beginning of the library's file name.
static const struct {
  const char *file, *title;
} libraries[] = {
    {"libcudnn.so.", "cuDNN"},
    {"libcublasLt.so.", "the cuBLAS library of the CUDA toolkit"},
    {"libcudart.so.", "the runtime library of the CUDA toolkit"},
    {"libnccl.so.", "NCCL"},
};

static void file_name(char *name, size_t bytes, const char *module) {
  snprintf(name, bytes, "libballast-%s.so", module);
}

// Returns another major version of "libx.so.9" that this machine has, or NULL.
static const char *other_major(const char *library, char *found, size_t found_bytes) {
  const char *end = strrchr(library, '.');
  long wanted = end == NULL ? 0 : strtol(end + 1, NULL, 10);
  for (long major = wanted + 2; wanted > 0 && major > 0 && major >= wanted - 3; major--) {
    snprintf(found, found_bytes, "%.*s.%ld", (int)(end - library), library, major);
    void *handle = major == wanted ? NULL : dlopen(found, RTLD_LAZY | RTLD_LOCAL);
    if (handle != NULL) {
      dlclose(handle);
      return found;
    }
  }
  return NULL;
}

static const char *title_of(const char *library) {
  for (size_t i = 0; i < sizeof libraries / sizeof libraries[0]; i++) {
    if (strncmp(library, libraries[i].file, strlen(libraries[i].file)) == 0) {
      return libraries[i].title;
    }
  }
  return "the package that has it";
}

bl_status_t bl__module_explain(const char *path, const char *loader_text, bl_error_t *err) {
  // glibc: "libcudnn.so.9: cannot open shared object file: No such file or directory"
  const char *end = strstr(loader_text, ": cannot open shared object file");
  size_t length = end == NULL ? 0 : (size_t)(end - loader_text);
  char library[128];
  if (length == 0 || length >= sizeof library || strncmp(loader_text, path, length + 1) == 0 ||
      memchr(loader_text, '/', length) != NULL) {
    return bl_error_set(err, BL_UNIMPLEMENTED, "%s cannot be loaded: %s", path, loader_text);
  }
  snprintf(library, sizeof library, "%.*s", (int)length, loader_text);
  char found[160];
  const char *other = other_major(library, found, sizeof found);
  const char *major = strrchr(library, '.');
  if (other != NULL) {
    return bl_error_set(err, BL_UNIMPLEMENTED,
                        "%s needs %s, this machine has %s, another major version: install %s in version %s", path,
                        library, other, title_of(library), major + 1);
  }
  return bl_error_set(err, BL_UNIMPLEMENTED,
                      "%s needs %s, which this machine has not: install %s, or put the folder that has it into "
                      "LD_LIBRARY_PATH",
                      path, library, title_of(library));
}

static bl_status_t check(const bl_module_info_t *info, const char *path, const char *name, bl_error_t *err) {
  if (info->abi != BL_MODULE_ABI || info->info_bytes != sizeof *info) {
    return bl_error_set(err, BL_UNIMPLEMENTED,
                        "%s was built with interface %u of %u bytes, this program with %u of %zu: install module and "
                        "programs of one version",
                        path, info->abi, info->info_bytes, BL_MODULE_ABI, sizeof *info);
  }
  if (strcmp(info->version, bl_version()) != 0) {
    return bl_error_set(err, BL_UNIMPLEMENTED, "%s is of version %s, this program of %s: install those of one version",
                        path, info->version, bl_version());
  }
  if (strcmp(info->name, name) != 0) {
    return bl_error_set(err, BL_UNIMPLEMENTED, "%s is module %s under the name of %s", path, info->name, name);
  }
  return BL_OK;
}

bl_status_t bl_module_load(const char *folder, const char *name, const bl_module_info_t **module, bl_error_t *err) {
  char file[64], path[PATH_MAX];
  file_name(file, sizeof file, name);
  if (bl_path_join(path, sizeof path, folder, file) != BL_OK) {
    return bl_error_set(err, BL_INVALID, "%s: the path is too long", folder);
  }
  if (access(path, F_OK) != 0) {
    return bl_error_set(err, BL_NOT_FOUND, "%s is not there", path);
  }
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (handle == NULL) {
    return bl__module_explain(path, dlerror(), err);
  }
  const bl_module_info_t *info = dlsym(handle, BL_MODULE_SYMBOL);
  bl_status_t status = info == NULL ? bl_error_set(err, BL_UNIMPLEMENTED, "%s is no module of Ballast: it has no %s",
                                                   path, BL_MODULE_SYMBOL)
                                    : check(info, path, name, err);
  if (status != BL_OK) {
    dlclose(handle);
    return status;
  }
  *module = info;
  return BL_OK;
}

// Sets `folder` to the program's folder followed by `tail`, or to "".
static void program_folder(char folder[PATH_MAX], const char *tail) {
  char path[PATH_MAX];
  ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  path[length < 0 ? 0 : length] = '\0';
  char *slash = strrchr(path, '/');
  folder[0] = '\0';
  if (slash != NULL && (size_t)(slash - path) + strlen(tail) < PATH_MAX) {
    memcpy(folder, path, (size_t)(slash - path));
    memcpy(folder + (slash - path), tail, strlen(tail) + 1);
  }
}

static bl_status_t find(const char *name, const bl_module_info_t **module, bl_error_t *err) {
  const char *given = getenv(FOLDER_VARIABLE);
  if (given != NULL && given[0] != '\0') {
    bl_status_t status = bl_module_load(given, name, module, err);
    if (status == BL_NOT_FOUND) {
      return bl_error_set(err, BL_UNIMPLEMENTED,
                          "module %s: libballast-%s.so is not in %s, which " FOLDER_VARIABLE " names", name, name,
                          given);
    }
    return status;
  }
  char folders[2][PATH_MAX];
  program_folder(folders[0], "");
  program_folder(folders[1], "/../lib");
  for (size_t i = 0; i < 2; i++) {
    bl_status_t status = bl_module_load(folders[i], name, module, err);
    if (status != BL_NOT_FOUND) {
      return status;
    }
  }
  return bl_error_set(err, BL_UNIMPLEMENTED,
                      "module %s: libballast-%s.so is neither in %.300s nor in %.300s: build Ballast where the CUDA "
                      "toolkit is (cmake -DBALLAST_CUDA=ON), or name the folder that has it in " FOLDER_VARIABLE,
                      name, name, folders[0], folders[1]);
}

bl_status_t bl_module_open(const char *name, const bl_module_info_t **module, bl_error_t *err) {
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  static const bl_module_info_t *opened[MODULES];
  bl_status_t status = BL_UNIMPLEMENTED;
  pthread_mutex_lock(&mutex);
  size_t i = 0;
  while (i < MODULES && opened[i] != NULL && strcmp(opened[i]->name, name) != 0) {
    i++;
  }
  if (i < MODULES) {
    status = opened[i] != NULL ? BL_OK : find(name, &opened[i], err);
  } else {
    (void)bl_error_set(err, status, "module %s: there are only %d", name, MODULES);
  }
  if (status == BL_OK) {
    *module = opened[i];
  }
  pthread_mutex_unlock(&mutex);
  return status;
}

const void *bl_module_interface(const bl_module_info_t *module, const char *name, size_t table_bytes, bl_error_t *err) {
  const void *table = module->interface(name, table_bytes);
  if (table == NULL) {
    (void)bl_error_set(err, BL_UNIMPLEMENTED,
                       "module %s has no table '%s' of %zu bytes: install module and programs of one build",
                       module->name, name, table_bytes);
  }
  return table;
}
