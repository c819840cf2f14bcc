/* SPDX-License-Identifier: Apache-2.0 */
/* Channel arguments: what servers and channels of this project have in common is said once. */
#ifndef PROTO_RPC_ARGS_H
#define PROTO_RPC_ARGS_H

#include <grpc/grpc.h>

#define RPC_ARGS_MAX 24

struct rpc_args {
    grpc_arg items[RPC_ARGS_MAX];
    grpc_channel_args list;
};

/* Message limits, no compression, keepalive that both ends agree upon. */
void rpc_args_init(struct rpc_args *args);
/* `key` must outlive `args`. */
void rpc_args_add(struct rpc_args *args, const char *key, int value);
/* Whoever is given `args` takes a reference of its own. */
void rpc_args_add_pointer(struct rpc_args *args, const char *key, void *pointer,
                          const grpc_arg_pointer_vtable *vtable);

#endif
