/* SPDX-License-Identifier: Apache-2.0 */
/* A channel, as its invocations (invoke.c) see it. */
#ifndef PROTO_RPC_CHANNEL_H
#define PROTO_RPC_CHANNEL_H

#include "proto/rpc/queue.h"
#include "proto/rpc/rpc.h"

struct rpc_invocation;

struct rpc_channel {
    grpc_channel *grpc;
    struct rpc_queue queue;
    struct base_mailbox *mailbox;
    char *target;
    char *token_key;
    bool wait_for_ready;

    pthread_mutex_t lock;
    struct rpc_invocation *invocations; /* under way */
    bool closing;
    uint64_t
        connection; /* rises when gRPC's channel is replaced; `grpc` and this change on the queue's thread only */
};

/* The connection that a call of number `connection` used says nothing any more: later calls get a new one, those under way end.
 * On the queue's thread. */
void rpc_channel_renew(struct rpc_channel *channel, uint64_t connection);

/* Cancels what is under way; the channel's lock is held. */
void rpc_invocations_cancel(struct rpc_invocation *first);

#endif
