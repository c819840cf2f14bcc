/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/rpc/calls.h"

#include "base/clock.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

struct rpc_channel *calls_open(const char *target, const char *token_key, bool wait_for_ready,
                               struct base_mailbox *mailbox)
{
    struct rpc_channel_options options = {
        .target = target, .token_key = token_key, .wait_for_ready = wait_for_ready, .mailbox = mailbox};
    struct rpc_channel *channel;
    assert_int_equal(rpc_channel_open(&channel, &options, NULL), BASE_OK);
    return channel;
}

enum base_code calls_say(struct rpc_channel *channel, const Millrace__Test__EchoRequest *request,
                         int64_t timeout_ms, struct base_error *error)
{
    ProtobufCMessage *message;
    enum base_code code = rpc_call_wait(
        channel, &(struct rpc_request){&millrace__test__echo__descriptor, "Say", &request->base, timeout_ms},
        &message, error);
    if (code) {
        assert_null(message);
        return code;
    }
    const Millrace__Test__EchoReply *reply = (const void *)message;
    assert_string_equal(reply->text, request->text);
    assert_int_equal(reply->padding.len, request->reply_bytes);
    protobuf_c_message_free_unpacked(message, NULL);
    return BASE_OK;
}

enum base_code calls_say_text(struct rpc_channel *channel, const char *text, int64_t timeout_ms,
                              struct base_error *error)
{
    Millrace__Test__EchoRequest request = MILLRACE__TEST__ECHO_REQUEST__INIT;
    request.text = (char *)(uintptr_t)text;
    return calls_say(channel, &request, timeout_ms, error);
}

void calls_keep(void *context, enum base_code code, const char *text, const ProtobufCMessage *message)
{
    struct kept *kept = context;
    kept->code = code;
    snprintf(kept->text, sizeof kept->text, "%s", text);
    if (message)
        snprintf(kept->reply, sizeof kept->reply, "%s",
                 ((const Millrace__Test__EchoReply *)(const void *)message)->text);
    atomic_fetch_add(&kept->times, 1);
}

void calls_start(struct rpc_channel *channel, const Millrace__Test__EchoRequest *request, int64_t timeout_ms,
                 struct kept *kept)
{
    assert_true(rpc_call_start(
        channel, &(struct rpc_request){&millrace__test__echo__descriptor, "Say", &request->base, timeout_ms},
        calls_keep, kept));
}

void calls_await(struct kept *kept, struct base_mailbox *mailbox)
{
    int64_t deadline_ns = base_clock_deadline_ns(CALLS_TIMEOUT_MS);
    while (!atomic_load(&kept->times)) {
        assert_true(base_clock_now_ns() < deadline_ns);
        struct pollfd fd = {.fd = mailbox ? base_mailbox_fd(mailbox) : -1, .events = POLLIN};
        poll(&fd, 1, 1);
        if (mailbox)
            base_mailbox_drain(mailbox);
    }
    assert_int_equal(atomic_load(&kept->times), 1);
}

static void ask_counts(struct rpc_channel *channel, uint64_t *calls, uint64_t *gone)
{
    Millrace__Test__Many request = MILLRACE__TEST__MANY__INIT;
    ProtobufCMessage *message;
    enum base_code code = rpc_call_wait(
        channel,
        &(struct rpc_request){&millrace__test__echo__descriptor, "Count", &request.base, CALLS_TIMEOUT_MS},
        &message, NULL);
    assert_int_equal(code, BASE_OK);
    const Millrace__Test__Counts *counts = (const void *)message;
    *calls = counts->calls;
    *gone = counts->gone;
    protobuf_c_message_free_unpacked(message, NULL);
}

void calls_await_counts(struct rpc_channel *channel, uint64_t calls, uint64_t gone)
{
    int64_t deadline_ns = base_clock_deadline_ns(CALLS_TIMEOUT_MS);
    uint64_t calls_now = 0, gone_now = 0;
    while (calls_now < calls || gone_now < gone) {
        assert_true(base_clock_now_ns() < deadline_ns);
        ask_counts(channel, &calls_now, &gone_now);
    }
}

uint64_t calls_count(struct rpc_channel *channel)
{
    uint64_t calls, gone;
    ask_counts(channel, &calls, &gone);
    return calls;
}
