/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/rpc/echo.h"

#include "base/clock.h"
#include "tests/unit/rpc/echo.pb-c.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define TICK_MS 5

struct later {
    struct later *next;
    struct rpc_call *call;
    const Millrace__Test__EchoRequest *request;
    int64_t due_ns;
};

struct echo {
    struct rpc_server *server;
    struct base_mailbox *mailbox;
    pthread_t loop;
    bool has_loop;
    atomic_bool ends;
    struct later *later; /* the loop thread's */
    atomic_ulong calls, gone;
};

static void answer(struct rpc_call *call, const Millrace__Test__EchoRequest *request)
{
    if (request->code) {
        rpc_fail(call, (enum base_code)request->code, "asked to fail: %s", request->text);
        return;
    }
    Millrace__Test__EchoReply reply = MILLRACE__TEST__ECHO_REPLY__INIT;
    reply.text = request->text;
    reply.padding.len = request->reply_bytes;
    reply.padding.data = calloc(1, request->reply_bytes + 1);
    rpc_reply(call, &reply.base);
    free(reply.padding.data);
}

static void say(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct echo *echo = context;
    const Millrace__Test__EchoRequest *request = (const void *)message;
    atomic_fetch_add(&echo->calls, 1);
    if (!request->delay_ms && !request->hold) {
        answer(call, request);
        return;
    }
    if (!echo->mailbox) {
        rpc_fail(call, BASE_UNSUPPORTED, "no loop to wait on");
        return;
    }
    struct later *later = malloc(sizeof *later);
    *later = (struct later){echo->later, call, request,
                            request->hold ? INT64_MAX : base_clock_deadline_ns(request->delay_ms)};
    echo->later = later;
}

static void count(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct echo *echo = context;
    (void)message;
    Millrace__Test__Counts reply = MILLRACE__TEST__COUNTS__INIT;
    reply.calls = atomic_load(&echo->calls);
    reply.gone = atomic_load(&echo->gone);
    rpc_reply(call, &reply.base);
}

static void answer_due(struct echo *echo, int64_t now_ns)
{
    for (struct later **p = &echo->later; *p;) {
        struct later *later = *p;
        bool gone = rpc_call_cancelled(later->call);
        if (now_ns < later->due_ns && !gone) {
            p = &later->next;
            continue;
        }
        *p = later->next;
        if (gone)
            atomic_fetch_add(&echo->gone, 1);
        answer(later->call, later->request);
        free(later);
    }
}

static void *loop(void *context)
{
    struct echo *echo = context;
    while (!atomic_load(&echo->ends)) {
        struct pollfd fd = {.fd = base_mailbox_fd(echo->mailbox), .events = POLLIN};
        poll(&fd, 1, TICK_MS);
        base_mailbox_drain(echo->mailbox);
        answer_due(echo, base_clock_now_ns());
    }
    return NULL;
}

enum base_code echo_start(struct echo **out, const char *address, const char *token_key, bool with_mailbox,
                          struct base_error *error)
{
    static const rpc_handler handlers[] = {say, count};
    struct echo *echo = calloc(1, sizeof *echo);
    struct rpc_service service = {&millrace__test__echo__descriptor, handlers, echo};
    enum base_code code = with_mailbox ? base_mailbox_create(&echo->mailbox, error) : BASE_OK;
    if (code)
        goto failed;
    struct rpc_server_options options = {.address = address,
                                         .token_key = token_key,
                                         .mailbox = echo->mailbox,
                                         .services = &service,
                                         .service_count = 1};
    code = rpc_server_start(&echo->server, &options, error);
    if (code)
        goto failed;
    if (with_mailbox)
        echo->has_loop = !pthread_create(&echo->loop, NULL, loop, echo);
    *out = echo;
    return BASE_OK;
failed:
    base_mailbox_destroy(echo->mailbox);
    free(echo);
    return code;
}

struct rpc_server *echo_server(struct echo *echo)
{
    return echo->server;
}

const char *echo_address(struct echo *echo)
{
    return rpc_server_address(echo->server);
}

int64_t echo_stop(struct echo **pointer, int64_t grace_ms)
{
    struct echo *echo = *pointer;
    *pointer = NULL;
    int64_t start_ns = base_clock_now_ns();
    rpc_server_stop(&echo->server, grace_ms);
    int64_t took_ms = (base_clock_now_ns() - start_ns) / BASE_NS_PER_MS;
    atomic_store(&echo->ends, true);
    if (echo->has_loop)
        pthread_join(echo->loop, NULL);
    base_mailbox_destroy(echo->mailbox);
    answer_due(echo, INT64_MAX); /* what the stop has cancelled is still to be answered */
    free(echo);
    return took_ms;
}
