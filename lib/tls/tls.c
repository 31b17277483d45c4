// SPDX-License-Identifier: Apache-2.0
#include "tls/tls.h"

#include "sys/clock.h"
#include "sys/file.h"
#include "sys/log.h"
#include "tls/flags.h"
#include "tls/tls_core.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define FILES 3
// Minimum time between two checks of the files.
#define LOOK_NS BL_NS_PER_S

// What distinguishes two states of a file.
typedef struct stamp {
  struct timespec changed;
  ino_t inode;
  off_t size_bytes;
} stamp_t;

struct bl_tls {
  pthread_mutex_t mutex;
  unsigned users;
  char *paths[FILES]; // ca, certificate, key
  unsigned roles;
  bl__tls_set_t *set;
  uint64_t generation;
  uint64_t looked_ns;
  stamp_t stamps[FILES]; // of the set in use, or of the set that was refused last
};

// ---- sets -----------------------------------------------------------------------------------------------------------

static void wipe(char *text) {
  if (text != NULL) {
    OPENSSL_cleanse(text, strlen(text));
    free(text);
  }
}

static void free_set(bl__tls_set_t *set) {
  if (set == NULL) {
    return;
  }
  free(set->ca);
  free(set->certificate);
  wipe(set->key);
  X509_free(set->leaf);
  sk_X509_pop_free(set->others, X509_free);
  X509_STORE_free(set->authorities);
  SSL_CTX_free(set->context);
  free(set);
}

static bl_status_t judge_set(bl__tls_set_t *set, const bl_tls_t *tls, EVP_PKEY *key, bl_error_t *err) {
  if (X509_check_private_key(set->leaf, key) != 1) {
    ERR_clear_error();
    return bl_error_set(err, BL_INVALID,
                        "TLS key %s does not belong to the certificate %s; give the pair that was made "
                        "together",
                        tls->paths[2], tls->paths[1]);
  }
  char what[512], have[BL_IDENTITY_TEXT_BYTES], want[BL_IDENTITY_TEXT_BYTES];
  snprintf(what, sizeof what, "TLS certificate %s", tls->paths[1]);
  bl_status_t status = bl__certificate_identity(set->leaf, what, &set->identity, err);
  if (status == BL_OK && (tls->roles & BL_ROLE_BIT(set->identity.role)) == 0) {
    status = bl_error_set(err, BL_UNAUTHENTICATED, "%s is for the role %s, this program must be %s", what,
                          bl_identity_format(&set->identity, have), bl_roles_format(tls->roles, want));
  }
  if (status == BL_OK) {
    status = bl__certificate_verify(set->leaf, set->others, set->authorities, 0, what, err);
  }
  return status;
}

static bl_status_t read_text(const char *path, const char *what, char **text, bl_error_t *err) {
  size_t size;
  bl_status_t status = bl_file_read(path, BL_TLS_FILE_LIMIT_BYTES, text, &size, err);
  if (status != BL_OK) {
    bl_error_prefix(err, "TLS %s", what);
  } else if (strlen(*text) != size) {
    wipe(*text);
    *text = NULL;
    status = bl_error_set(err, BL_INVALID, "TLS %s %s is not in PEM form; " BL__TLS_ADVICE, what, path);
  }
  return status;
}

static bl_status_t read_set(const bl_tls_t *tls, bl__tls_set_t **result, bl_error_t *err) {
  bl__tls_set_t *set = calloc(1, sizeof *set);
  if (set == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "TLS: out of memory");
  }
  EVP_PKEY *key = NULL;
  bl_status_t status = read_text(tls->paths[0], "authorities", &set->ca, err);
  if (status == BL_OK) {
    status = read_text(tls->paths[1], "certificate", &set->certificate, err);
  }
  if (status == BL_OK) {
    status = read_text(tls->paths[2], "key", &set->key, err);
  }
  if (status == BL_OK) {
    status = bl__authorities_parse(set->ca, tls->paths[0], &set->authorities, err);
  }
  if (status == BL_OK) {
    status = bl__certificates_parse(set->certificate, tls->paths[1], &set->leaf, &set->others, err);
  }
  if (status == BL_OK) {
    status = bl__key_parse(set->key, tls->paths[2], &key, err);
  }
  if (status == BL_OK) {
    status = judge_set(set, tls, key, err);
  }
  if (status == BL_OK) {
    status = bl__tls_context_create(set, key, err);
  }
  EVP_PKEY_free(key);
  if (status != BL_OK) {
    free_set(set);
    return status;
  }
  set->users = 1;
  *result = set;
  return BL_OK;
}

static void give_set(bl__tls_set_t *set) { // mutex held
  if (--set->users == 0) {
    free_set(set);
  }
}

// ---- changes --------------------------------------------------------------------------------------------------------

// Reads the present state of the files. A missing file is also a state.
static void read_stamps(const bl_tls_t *tls, stamp_t stamps[FILES]) {
  memset(stamps, 0, FILES * sizeof *stamps); // zeroed, because stamps are compared as bytes
  for (size_t i = 0; i < FILES; i++) {
    struct stat info;
    if (stat(tls->paths[i], &info) == 0) {
      stamps[i].changed = info.st_mtim;
      stamps[i].inode = info.st_ino;
      stamps[i].size_bytes = info.st_size;
    }
  }
}

static void refresh(bl_tls_t *tls) { // mutex held
  uint64_t now_ns = bl_clock_now_ns();
  if (now_ns - tls->looked_ns < LOOK_NS) {
    return;
  }
  tls->looked_ns = now_ns;
  stamp_t stamps[FILES];
  read_stamps(tls, stamps);
  if (memcmp(stamps, tls->stamps, sizeof stamps) == 0) {
    return;
  }
  memcpy(tls->stamps, stamps, sizeof stamps);
  bl__tls_set_t *set;
  bl_error_t err;
  if (read_set(tls, &set, &err) != BL_OK) {
    bl_log(BL_LOG_WARNING, "changed TLS files are not used, those before stay: %s", err.text);
    return;
  }
  give_set(tls->set);
  tls->set = set;
  tls->generation++;
  bl_log(BL_LOG_INFO, "TLS certificate %s was read again", tls->paths[1]);
}

uint64_t bl_tls_refresh(bl_tls_t *tls) {
  pthread_mutex_lock(&tls->mutex);
  refresh(tls);
  uint64_t generation = tls->generation;
  pthread_mutex_unlock(&tls->mutex);
  return generation;
}

bl__tls_set_t *bl__tls_take_set(bl_tls_t *tls) {
  pthread_mutex_lock(&tls->mutex);
  refresh(tls);
  bl__tls_set_t *set = tls->set;
  set->users++;
  pthread_mutex_unlock(&tls->mutex);
  return set;
}

void bl__tls_give_set(bl_tls_t *tls, bl__tls_set_t *set) {
  pthread_mutex_lock(&tls->mutex);
  give_set(set);
  pthread_mutex_unlock(&tls->mutex);
}

// ---- life -----------------------------------------------------------------------------------------------------------

static void free_tls(bl_tls_t *tls) {
  free_set(tls->set);
  for (size_t i = 0; i < FILES; i++) {
    free(tls->paths[i]);
  }
  pthread_mutex_destroy(&tls->mutex);
  free(tls);
}

bl_status_t bl_tls_create(const bl_tls_options_t *options, bl_tls_t **result, bl_error_t *err) {
  const char *const paths[FILES] = {options->ca, options->certificate, options->key};
  static const char *const flags[FILES] = {"--tls-ca", "--tls-certificate", "--tls-key"};
  bl_tls_t *tls = calloc(1, sizeof *tls);
  if (tls == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "TLS: out of memory");
  }
  signal(SIGPIPE, SIG_IGN);
  pthread_mutex_init(&tls->mutex, NULL);
  tls->users = 1;
  tls->roles = options->roles;
  bl_status_t status = BL_OK;
  for (size_t i = 0; i < FILES && status == BL_OK; i++) {
    if (paths[i] == NULL) {
      status = bl_error_set(err, BL_INVALID, "TLS needs %s: authorities, certificate and key go together", flags[i]);
    } else if ((tls->paths[i] = strdup(paths[i])) == NULL) {
      status = bl_error_set(err, BL_EXHAUSTED, "TLS: out of memory");
    }
  }
  if (status == BL_OK) {
    read_stamps(tls, tls->stamps);
    tls->looked_ns = bl_clock_now_ns();
    status = read_set(tls, &tls->set, err);
  }
  if (status != BL_OK) {
    free_tls(tls);
    return status;
  }
  *result = tls;
  return BL_OK;
}

bl_status_t bl_tls_create_from_flags(const bl_tls_flags_t *flags, unsigned roles, bl_tls_t **tls, bl_error_t *err) {
  if (flags->ca == NULL && flags->certificate == NULL && flags->key == NULL) {
    *tls = NULL;
    return BL_OK;
  }
  const bl_tls_options_t options = {
      .ca = flags->ca, .certificate = flags->certificate, .key = flags->key, .roles = roles};
  return bl_tls_create(&options, tls, err);
}

bl_tls_t *bl_tls_acquire(bl_tls_t *tls) {
  pthread_mutex_lock(&tls->mutex);
  tls->users++;
  pthread_mutex_unlock(&tls->mutex);
  return tls;
}

void bl_tls_release(bl_tls_t *tls) {
  if (tls == NULL) {
    return;
  }
  pthread_mutex_lock(&tls->mutex);
  bool last = --tls->users == 0;
  pthread_mutex_unlock(&tls->mutex);
  if (last) {
    free_tls(tls);
  }
}

void bl_tls_identity(bl_tls_t *tls, bl_identity_t *identity) {
  pthread_mutex_lock(&tls->mutex);
  *identity = tls->set->identity;
  pthread_mutex_unlock(&tls->mutex);
}

// ---- uses -----------------------------------------------------------------------------------------------------------

bl_status_t bl_tls_material_init(bl_tls_material_t *material, bl_tls_t *tls, bl_error_t *err) {
  memset(material, 0, sizeof *material);
  pthread_mutex_lock(&tls->mutex);
  refresh(tls);
  material->generation = tls->generation;
  material->ca = strdup(tls->set->ca);
  material->certificate = strdup(tls->set->certificate);
  material->key = strdup(tls->set->key);
  pthread_mutex_unlock(&tls->mutex);
  if (material->ca == NULL || material->certificate == NULL || material->key == NULL) {
    bl_tls_material_cleanup(material);
    return bl_error_set(err, BL_EXHAUSTED, "TLS: out of memory");
  }
  return BL_OK;
}

void bl_tls_material_cleanup(bl_tls_material_t *material) {
  free(material->ca);
  free(material->certificate);
  wipe(material->key);
  memset(material, 0, sizeof *material);
}

bl_status_t bl_tls_judge_server(bl_tls_t *tls, const char *chain, unsigned roles, bl_identity_t *identity,
                                bl_error_t *err) {
  static const char what[] = "the server's certificate";
  X509 *leaf;
  STACK_OF(X509) * others;
  bl_status_t status = bl__certificates_parse(chain, what, &leaf, &others, err);
  if (status != BL_OK) {
    return status;
  }
  bl__tls_set_t *set = bl__tls_take_set(tls);
  status = bl__certificate_verify(leaf, others, set->authorities, X509_PURPOSE_SSL_SERVER, what, err);
  bl__tls_give_set(tls, set);
  if (status == BL_OK) {
    status = bl__certificate_identity(leaf, what, identity, err);
  }
  if (status == BL_OK && (roles & BL_ROLE_BIT(identity->role)) == 0) {
    char have[BL_IDENTITY_TEXT_BYTES], want[BL_IDENTITY_TEXT_BYTES];
    status =
        bl_error_set(err, BL_UNAUTHENTICATED, "%s is for the role %s, but a %s is wanted here; is the address right?",
                     what, bl_identity_format(identity, have), bl_roles_format(roles, want));
  }
  X509_free(leaf);
  sk_X509_pop_free(others, X509_free);
  return status;
}

bl_status_t bl_tls_judge_own(bl_tls_t *tls, bl_error_t *err) {
  bl__tls_set_t *set = bl__tls_take_set(tls);
  char what[512];
  snprintf(what, sizeof what, "this program's own TLS certificate %s", tls->paths[1]);
  bl_status_t status =
      bl__certificate_verify(set->leaf, set->others, set->authorities, X509_PURPOSE_SSL_CLIENT, what, err);
  bl__tls_give_set(tls, set);
  return status;
}

int64_t bl_tls_expiry(bl_tls_t *tls) {
  bl__tls_set_t *set = bl__tls_take_set(tls);
  struct tm end = {0};
  int64_t seconds = ASN1_TIME_to_tm(X509_get0_notAfter(set->leaf), &end) == 1 ? (int64_t)timegm(&end) : 0;
  bl__tls_give_set(tls, set);
  return seconds;
}

static const char *version(void) {
  return OpenSSL_version(OPENSSL_VERSION_STRING);
}

const bl_library_t bl_tls_library = {"openssl", version};
