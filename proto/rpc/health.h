/* SPDX-License-Identifier: Apache-2.0 */
/* grpc.health.v1: Check is a call like others, Watch a stream that says each change of state. All services of
 * a server are in one state. */
#ifndef PROTO_RPC_HEALTH_H
#define PROTO_RPC_HEALTH_H

#include "proto/rpc/call.h"

#define RPC_HEALTH_METHODS 2

extern const ProtobufCServiceDescriptor *const rpc_health_service;
extern const rpc_handler rpc_health_handlers[RPC_HEALTH_METHODS]; /* their context is the server */

/* `lock` of the call is held in both. A message of a watch is on its way: sends the next if there is one. */
void rpc_health_sent(struct rpc_call *call, bool ok);
/* The server's state changed, or it ends its watches. */
void rpc_health_push(struct rpc_call *call, bool end);

#endif
