// SPDX-License-Identifier: Apache-2.0
#include "rpc/credentials.h"

#include "base/host.h"
#include "sys/log.h"

#include <grpc/support/alloc.h>
#include <grpc/support/string_util.h>

#include <stdlib.h>
#include <string.h>

bl_status_t bl__plaintext_check(bool allowed, const bl__address_t *address, const char *text, bl_error_t *err) {
  if (address->is_unix || allowed || bl_host_is_loopback(address->host)) {
    return BL_OK;
  }
  return bl_error_set(err, BL_DENIED,
                      "%s: plaintext is refused off the loopback interface; give --tls-ca, --tls-certificate and "
                      "--tls-key, or allow it with --plaintext",
                      text);
}

// ---- serving --------------------------------------------------------------------------------------------------------

// gRPC calls it at the start and at every handshake, on threads of its own, for one listener never concurrently.
static grpc_ssl_certificate_config_reload_status give_certificate(void *context,
                                                                  grpc_ssl_server_certificate_config **config) {
  bl__server_identity_t *identity = context;
  if (bl_tls_refresh(identity->tls) == identity->generation && identity->given) {
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
  }
  bl_tls_material_t material;
  if (bl_tls_material_init(&material, identity->tls, NULL) != BL_OK) {
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_FAIL; // the previous certificate stays
  }
  grpc_ssl_pem_key_cert_pair pair = {.private_key = material.key, .cert_chain = material.certificate};
  *config = grpc_ssl_server_certificate_config_create(material.ca, &pair, 1);
  identity->generation = material.generation;
  identity->given = true;
  bl_tls_material_cleanup(&material);
  return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

grpc_server_credentials *bl__server_credentials_create(bl__server_identity_t *identity) {
  if (identity->tls == NULL) {
    return grpc_insecure_server_credentials_create();
  }
  return grpc_ssl_server_credentials_create_with_options(
      grpc_ssl_server_credentials_create_options_using_config_fetcher(
          GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY, give_certificate, identity));
}

static bool is_secure(const grpc_auth_context *context) {
  grpc_auth_property_iterator types =
      grpc_auth_context_find_properties_by_name(context, GRPC_TRANSPORT_SECURITY_TYPE_PROPERTY_NAME);
  const grpc_auth_property *type = grpc_auth_property_iterator_next(&types);
  return type != NULL && strcmp(type->value, GRPC_SSL_TRANSPORT_SECURITY_TYPE) == 0;
}

bl_status_t bl__call_identity(grpc_call *call, bl_identity_t *identity, bl_error_t *err) {
  *identity = (bl_identity_t){.role = BL_ROLE_NONE};
  grpc_auth_context *context = grpc_call_auth_context(call);
  if (context == NULL) {
    return BL_OK;
  }
  bl_status_t status = BL_OK;
  if (is_secure(context)) {
    unsigned found = 0;
    grpc_auth_property_iterator uris = grpc_auth_context_find_properties_by_name(context, GRPC_PEER_URI_PROPERTY_NAME);
    const grpc_auth_property *uri;
    while ((uri = grpc_auth_property_iterator_next(&uris)) != NULL) {
      bl_status_t read = bl_identity_parse(uri->value, identity, err);
      found += read == BL_OK;
      status = read == BL_INVALID ? BL_UNAUTHENTICATED : status;
    }
    if (found != 1 || status != BL_OK) {
      status = bl_error_set(err, BL_UNAUTHENTICATED,
                            "your certificate names %s: it must have one subjectAltName URI such as " BL_IDENTITY_SCHEME
                            "stage; deploy/certificates.sh makes such",
                            found > 1 ? "more than one role" : "no role");
    }
  }
  grpc_auth_context_release(context);
  return status;
}

// ---- calling --------------------------------------------------------------------------------------------------------

struct bl__trust {
  grpc_tls_certificate_verifier_external external; // gRPC's view of it
  atomic_uint users;
  bl_tls_t *tls;
  unsigned roles;
  pthread_mutex_t mutex;
  bl_error_t refusal; // BL_OK: none
};

bl__trust_t *bl__trust_create(bl_tls_t *tls, unsigned roles) {
  bl__trust_t *trust = calloc(1, sizeof *trust);
  if (trust != NULL) {
    atomic_init(&trust->users, 1);
    trust->tls = bl_tls_acquire(tls);
    trust->roles = roles;
    pthread_mutex_init(&trust->mutex, NULL);
  }
  return trust;
}

void bl__trust_release(bl__trust_t *trust) {
  if (trust != NULL && atomic_fetch_sub(&trust->users, 1) == 1) {
    pthread_mutex_destroy(&trust->mutex);
    bl_tls_release(trust->tls);
    free(trust);
  }
}

bool bl__trust_refusal(bl__trust_t *trust, bl_error_t *err) {
  pthread_mutex_lock(&trust->mutex);
  *err = trust->refusal;
  pthread_mutex_unlock(&trust->mutex);
  return err->status != BL_OK;
}

// Judges a server's certificate completely, after the handshake has proved that the server owns the key and before data
// is sent to it. gRPC's own check would test the host name, which does not matter here, and would not report the
// reason.
static int judge(void *context, grpc_tls_custom_verification_check_request *request,
                 grpc_tls_on_custom_verification_check_done_cb done, void *argument, grpc_status_code *code,
                 char **text) {
  (void)done, (void)argument; // judged synchronously
  bl__trust_t *trust = context;
  const char *chain = request->peer_info.peer_cert_full_chain;
  if (chain == NULL || chain[0] == '\0') {
    chain = request->peer_info.peer_cert;
  }
  bl_identity_t server;
  bl_error_t err = {0};
  bl_status_t status = chain != NULL ? bl_tls_judge_server(trust->tls, chain, trust->roles, &server, &err)
                                     : bl_error_set(&err, BL_UNAUTHENTICATED, "the server shows no certificate");
  *code = GRPC_STATUS_OK;
  if (status != BL_OK) {
    *code = (grpc_status_code)bl_status_grpc_code(status);
    *text = gpr_strdup(err.text);
  }
  pthread_mutex_lock(&trust->mutex);
  trust->refusal = err;
  pthread_mutex_unlock(&trust->mutex);
  return 1;
}

static void cancel(void *context, grpc_tls_custom_verification_check_request *request) {
  (void)context, (void)request; // `judge` never waits
}

static void destruct(void *context) {
  bl__trust_release(context);
}

grpc_channel_credentials *bl__channel_credentials_create(bl__trust_t *trust, uint64_t *generation) {
  bl_tls_material_t material;
  if (bl_tls_material_init(&material, trust->tls, NULL) != BL_OK) {
    return NULL;
  }
  *generation = material.generation;
  grpc_tls_identity_pairs *pairs = grpc_tls_identity_pairs_create();
  grpc_tls_identity_pairs_add_pair(pairs, material.key, material.certificate);
  grpc_tls_certificate_provider *provider = grpc_tls_certificate_provider_static_data_create(material.ca, pairs);
  bl_tls_material_cleanup(&material);
  trust->external = (grpc_tls_certificate_verifier_external){
      .user_data = trust, .verify = judge, .cancel = cancel, .destruct = destruct};
  atomic_fetch_add(&trust->users, 1); // the verifier's reference, released by destruct
  grpc_tls_certificate_verifier *verifier = grpc_tls_certificate_verifier_external_create(&trust->external);
  grpc_tls_credentials_options *options = grpc_tls_credentials_options_create();
  grpc_tls_credentials_options_set_certificate_provider(options, provider);
  grpc_tls_credentials_options_watch_root_certs(options);
  grpc_tls_credentials_options_watch_identity_key_cert_pairs(options);
  grpc_tls_credentials_options_set_verify_server_cert(options, 0); // `judge` does it, and reports the reason
  grpc_tls_credentials_options_set_check_call_host(options, 0);
  grpc_tls_credentials_options_set_certificate_verifier(options, verifier);
  grpc_channel_credentials *credentials = grpc_tls_credentials_create(options); // takes ownership of the options
  grpc_tls_certificate_verifier_release(verifier);
  grpc_tls_certificate_provider_release(provider);
  return credentials;
}
