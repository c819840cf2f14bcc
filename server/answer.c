/* SPDX-License-Identifier: Apache-2.0 */
#include "server/answer.h"

#include "base/log.h"

void server_answer(struct server *server, struct rpc_call *call, struct server_arena *arena,
                   const void *message)
{
    base_metric_add(&server->metrics[SERVER_METRIC_CALLS], 1);
    if (arena->failed || !message)
        rpc_fail(call, BASE_NO_MEMORY, "the server has no memory for the answer");
    else
        rpc_reply(call, message);
    server_arena_fini(arena);
}

void server_answer_error(struct server *server, struct rpc_call *call, const struct base_error *error)
{
    char quoted[2 * BASE_ERROR_TEXT_BYTES];
    base_metric_add(&server->metrics[SERVER_METRIC_CALLS], 1);
    base_metric_add(&server->metrics[SERVER_METRIC_CALLS_REFUSED], 1);
    base_log(BASE_LOG_WARN, "call_refused", "code=%s error=%s", base_error_name(error->code),
             base_log_quote(error->text, quoted, sizeof quoted));
    rpc_fail(call, error->code, "%s", error->text);
}

void server_answer_empty(struct server *server, struct rpc_call *call)
{
    Millrace__V1__Empty empty = MILLRACE__V1__EMPTY__INIT;
    base_metric_add(&server->metrics[SERVER_METRIC_CALLS], 1);
    rpc_reply(call, &empty.base);
}
