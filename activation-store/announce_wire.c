// SPDX-License-Identifier: Apache-2.0
#include "announce_wire.h"

#include "ballast/v1/store.pb-c.h"

void bl_announce_handle(bl_rpc_call_t *call, const ProtobufCMessage *input, bl_policy_proxy_t *proxy) {
  const Ballast__V1__AnnounceRequest *request = (const Ballast__V1__AnnounceRequest *)input;
  bl_policy_proxy_learn(proxy, request->run, request->driver);
  Ballast__V1__AnnounceResponse output = BALLAST__V1__ANNOUNCE_RESPONSE__INIT;
  bl_rpc_call_reply(call, &output.base);
}
