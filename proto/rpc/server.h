/* SPDX-License-Identifier: Apache-2.0 */
/* What calls and health need of their server. */
#ifndef PROTO_RPC_SERVER_H
#define PROTO_RPC_SERVER_H

#include "proto/rpc/call.h"

/* Hands an armed call to gRPC; false when the server stops. */
bool rpc_server_request(struct rpc_server *server, struct rpc_call *call);
/* Lists a call that arrived; false when the server has ended its calls. */
bool rpc_server_link(struct rpc_server *server, struct rpc_call *call);
/* Takes a call off the list; nothing happens when it is not on it. */
void rpc_server_unlink(struct rpc_server *server, struct rpc_call *call);

const char *rpc_server_token_key(const struct rpc_server *server); /* NULL: no token is asked */
struct base_mailbox *rpc_server_mailbox(const struct rpc_server *server);

bool rpc_server_is_stopping(const struct rpc_server *server);
bool rpc_server_is_serving(const struct rpc_server *server);
bool rpc_server_has_service(const struct rpc_server *server, const char *name); /* "": the server itself */

#endif
