/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rpc/args.h"

#include "proto/rpc/rpc.h"

#include <grpc/compression.h>

#define KEEPALIVE_TIME_MS 10000
#define KEEPALIVE_TIMEOUT_MS 10000
#define METADATA_MAX_BYTES 8192

void rpc_args_init(struct rpc_args *args)
{
    args->list = (grpc_channel_args){.num_args = 0, .args = args->items};
    rpc_args_add(args, GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, RPC_MESSAGE_MAX_BYTES);
    rpc_args_add(args, GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, RPC_MESSAGE_MAX_BYTES);
    rpc_args_add(args, GRPC_ARG_MAX_METADATA_SIZE, METADATA_MAX_BYTES);
    /* 1 MB of gzip is up to 1 GB of message: only the identity is spoken. */
    rpc_args_add(args, GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1 << GRPC_COMPRESS_NONE);
    rpc_args_add(args, GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
    /* A server answers pings more frequent than its minimum with GOAWAY: the minimum is half of what clients
     * send. */
    rpc_args_add(args, GRPC_ARG_KEEPALIVE_TIME_MS, KEEPALIVE_TIME_MS);
    rpc_args_add(args, GRPC_ARG_KEEPALIVE_TIMEOUT_MS, KEEPALIVE_TIMEOUT_MS);
    rpc_args_add(args, GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    rpc_args_add(args, GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    rpc_args_add(args, GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, KEEPALIVE_TIME_MS / 2);
}

static void add(struct rpc_args *args, grpc_arg arg)
{
    if (args->list.num_args < RPC_ARGS_MAX) /* the table is sized for what this folder adds; a test counts */
        args->items[args->list.num_args++] = arg;
}

void rpc_args_add(struct rpc_args *args, const char *key, int value)
{
    /* gRPC copies keys and does not write */
    add(args, (grpc_arg){.type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)key, .value.integer = value});
}

void rpc_args_add_pointer(struct rpc_args *args, const char *key, void *pointer,
                          const grpc_arg_pointer_vtable *vtable)
{
    add(args, (grpc_arg){.type = GRPC_ARG_POINTER,
                         .key = (char *)(uintptr_t)key,
                         .value.pointer = {.p = pointer, .vtable = vtable}});
}
