/* SPDX-License-Identifier: Apache-2.0 */
/* A completion queue and its one thread. Every operation handed to gRPC carries a tag, whose run is called on
 * that thread. */
#ifndef PROTO_RPC_QUEUE_H
#define PROTO_RPC_QUEUE_H

#include "base/error.h"

#include <grpc/grpc.h>
#include <pthread.h>
#include <stdatomic.h>

struct rpc_tag {
    void (*run)(struct rpc_tag *tag, bool ok);
    atomic_bool handed;
};

/* Called before an operation is handed to gRPC with this tag. gRPC orders what was written before with the tag's run; saying so
 * here as well lets ThreadSanitizer see it, which knows nothing of gRPC's own atomics. */
static inline void rpc_tag_hand(struct rpc_tag *tag)
{
    atomic_store_explicit(&tag->handed, true, memory_order_release);
}

struct rpc_queue {
    grpc_completion_queue *queue;
    pthread_t thread;
};

/* The thread takes no signals. */
enum base_code rpc_queue_start(struct rpc_queue *queue, struct base_error *error);
/* Runs all tags under way, then ends the thread. No operation may start on the queue from the call on; not
 * for its thread. */
void rpc_queue_stop(struct rpc_queue *queue);
bool rpc_queue_is_current(const struct rpc_queue *queue);

#endif
