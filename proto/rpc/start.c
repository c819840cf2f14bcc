/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rpc/rpc.h"

#include "base/log.h"

#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <stdatomic.h>
#include <unistd.h>

/* The process that first started gRPC, whose own state is global as well; it stays set for good, because
 * nothing of gRPC survives a fork, not even when all was stopped before. */
static _Atomic pid_t starter;

static void log_line(gpr_log_func_args *args)
{
    char text[1024];
    base_log(BASE_LOG_DEBUG, "grpc", "text=%s", base_log_quote(args->message, text, sizeof text));
}

void rpc_start(void)
{
    pid_t none = 0;
    if (atomic_compare_exchange_strong(&starter, &none, getpid()))
        gpr_set_log_function(log_line);
    if (rpc_usable())
        grpc_init();
}

void rpc_stop(void)
{
    if (rpc_usable())
        grpc_shutdown();
}

bool rpc_usable(void)
{
    return atomic_load(&starter) == getpid();
}
