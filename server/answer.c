/* SPDX-License-Identifier: Apache-2.0 */
#include "server/answer.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"

#include <string.h>

enum { REFUSED_AGAIN_S = 60 };

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

/* A rank that waits asks ten times a second, and is told the same: once a minute is enough. */
static bool is_news(struct server *server, const char *text)
{
    uint64_t hash = base_hash_xxh3(text, strlen(text));
    struct server_refusal *last = &server->refusals[hash % SERVER_REFUSALS];
    int64_t now_ns = base_clock_now_ns();
    if (last->hash == hash && now_ns - last->logged_ns < REFUSED_AGAIN_S * BASE_NS_PER_S)
        return false;
    *last = (struct server_refusal){hash, now_ns};
    return true;
}

void server_answer_error(struct server *server, struct rpc_call *call, const struct base_error *error)
{
    char quoted[2 * BASE_ERROR_TEXT_BYTES];
    base_metric_add(&server->metrics[SERVER_METRIC_CALLS], 1);
    base_metric_add(&server->metrics[SERVER_METRIC_CALLS_REFUSED], 1);
    if (is_news(server, error->text))
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
