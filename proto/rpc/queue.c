/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rpc/queue.h"

#include <grpc/support/time.h>
#include <signal.h>

static void *run_tags(void *context)
{
    grpc_completion_queue *queue = context;
    for (;;) {
        grpc_event event = grpc_completion_queue_next(queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        if (event.type == GRPC_QUEUE_SHUTDOWN)
            return NULL;
        struct rpc_tag *tag = event.tag;
        if (atomic_load_explicit(&tag->handed, memory_order_acquire))
            tag->run(tag, event.success);
    }
}

enum base_code rpc_queue_start(struct rpc_queue *queue, struct base_error *error)
{
    queue->queue = grpc_completion_queue_create_for_next(NULL);
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int result = pthread_create(&queue->thread, NULL, run_tags, queue->queue);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!result)
        return BASE_OK;
    grpc_completion_queue_shutdown(queue->queue);
    grpc_completion_queue_destroy(queue->queue);
    return base_error_errno(error, result, "cannot start the thread of a gRPC completion queue");
}

void rpc_queue_stop(struct rpc_queue *queue)
{
    grpc_completion_queue_shutdown(queue->queue);
    pthread_join(queue->thread, NULL);
    grpc_completion_queue_destroy(queue->queue);
}

bool rpc_queue_is_current(const struct rpc_queue *queue)
{
    return pthread_equal(queue->thread, pthread_self());
}
