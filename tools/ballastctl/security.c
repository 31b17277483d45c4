// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/security.h"

#include "rpc/rpc.h"
#include "tls/flags.h"

#include <stdlib.h>
#include <string.h>

static struct {
  bl_tls_flags_t flags; // borrowed from the command line
  bl_tls_t *tls;
} given;

static bl_status_t secure(const bl_tls_flags_t *flags, bl_error_t *err) {
  bl_tls_t *tls;
  bl_status_t status = bl_tls_create_from_flags(flags, BL_OPERATORS | BL_DRIVERS, &tls, err);
  if (status != BL_OK) {
    return status;
  }
  bl_tls_release(given.tls);
  given.tls = tls;
  bl_rpc_secure_process(&(bl_rpc_security_t){.tls = tls, .plaintext_ok = flags->plaintext});
  return BL_OK;
}

// Reads "--name" with its value after '=' or in the next argument. *used: the number of arguments consumed; 0: it is
// another flag.
static bl_status_t read_flag(const char *name, char *const *words, int left, char **value, int *used, bl_error_t *err) {
  size_t length = strlen(name);
  *used = 0;
  if (strncmp(words[0], name, length) != 0 || (words[0][length] != '=' && words[0][length] != '\0')) {
    return BL_OK;
  }
  *used = words[0][length] == '=' ? 1 : 2;
  if (*used > left) {
    return bl_error_set(err, BL_INVALID, "%s needs a file", name);
  }
  *value = *used == 1 ? words[0] + length + 1 : words[1];
  return BL_OK;
}

bl_status_t bl_ctl_security_take(int *argc, char **argv, bl_error_t *err) {
  const struct {
    const char *name;
    char **value;
  } files[] = {
      {"--tls-ca", &given.flags.ca}, {"--tls-certificate", &given.flags.certificate}, {"--tls-key", &given.flags.key}};
  int kept = 1;
  for (int i = 1; i < *argc;) {
    int used = 0;
    if (strcmp(argv[i], "--") == 0) { // arguments after it are not flags
      while (i < *argc) {
        argv[kept++] = argv[i++];
      }
      break;
    }
    if (strcmp(argv[i], "--plaintext") == 0) {
      given.flags.plaintext = true;
      used = 1;
    }
    for (size_t k = 0; k < 3 && used == 0; k++) {
      bl_status_t status = read_flag(files[k].name, argv + i, *argc - i, files[k].value, &used, err);
      if (status != BL_OK) {
        return status;
      }
    }
    if (used == 0) {
      argv[kept++] = argv[i];
    }
    i += used > 0 ? used : 1;
  }
  argv[kept] = NULL;
  *argc = kept;
  return secure(&given.flags, err);
}

// Sets an absolute path, because the driver runs in another folder.
static bl_status_t set_path(char **key, const char *path, bl_error_t *err) {
  char *absolute = realpath(path, NULL);
  if (absolute == NULL) {
    return bl_error_set(err, BL_NOT_FOUND, "%s: no such file", path);
  }
  free(*key);
  *key = absolute;
  return BL_OK;
}

bl_status_t bl_ctl_security_for_job(bl_job_t *job, bl_error_t *err) {
  job->services.plaintext |= given.flags.plaintext;
  if (given.tls == NULL) {
    const bl_tls_flags_t flags = {.ca = job->services.tls.ca,
                                  .certificate = job->services.tls.certificate,
                                  .key = job->services.tls.key,
                                  .plaintext = job->services.plaintext};
    return secure(&flags, err);
  }
  bl_status_t status = set_path(&job->services.tls.ca, given.flags.ca, err);
  if (status == BL_OK) {
    status = set_path(&job->services.tls.certificate, given.flags.certificate, err);
  }
  if (status == BL_OK) {
    status = set_path(&job->services.tls.key, given.flags.key, err);
  }
  return status;
}

void bl_ctl_security_cleanup(void) {
  bl_rpc_secure_process(&(bl_rpc_security_t){.tls = NULL});
  bl_tls_release(given.tls);
  given.tls = NULL;
}
