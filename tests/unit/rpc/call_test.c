/* SPDX-License-Identifier: Apache-2.0 */
/* Calls between a server and channels in one process. */
#include "base/clock.h"
#include "proto/rpc/token.h"
#include "tests/unit/rpc/calls.h"
#include "tests/unit/rpc/echo.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define KEY "a secret of the tests"
#define CONCURRENT 200

struct pair {
    struct echo *echo;
    struct rpc_channel *channel;
};

static struct pair open_pair(bool with_mailbox)
{
    struct pair pair;
    struct base_error error = {0};
    if (echo_start(&pair.echo, "127.0.0.1:0", NULL, with_mailbox, &error))
        fail_msg("%s", error.text);
    pair.channel = calls_open(echo_address(pair.echo), NULL, true, NULL);
    return pair;
}

static void close_pair(struct pair *pair)
{
    rpc_channel_close(&pair->channel);
    assert_null(pair->channel);
    assert_true(echo_stop(&pair->echo, 5000) < 3000); /* nothing runs: no grace is needed */
}

static Millrace__Test__EchoRequest make_request(const char *text)
{
    Millrace__Test__EchoRequest request = MILLRACE__TEST__ECHO_REQUEST__INIT;
    request.text = (char *)(uintptr_t)text;
    return request;
}

static void test_echo(void **state)
{
    (void)state;
    for (int with_mailbox = 0; with_mailbox < 2; with_mailbox++) {
        struct pair pair = open_pair(with_mailbox);
        for (int i = 0; i < 20; i++)
            assert_int_equal(calls_say_text(pair.channel, "hello", CALLS_TIMEOUT_MS, NULL), BASE_OK);
        assert_int_equal(calls_say_text(pair.channel, "", CALLS_TIMEOUT_MS, NULL),
                         BASE_OK); /* an empty message */
        close_pair(&pair);
    }
}

static void test_delayed_reply_to_a_mailbox(void **state)
{
    (void)state;
    struct pair pair = open_pair(true);
    struct base_mailbox *mailbox;
    assert_int_equal(base_mailbox_create(&mailbox, NULL), BASE_OK);
    struct rpc_channel *channel = calls_open(echo_address(pair.echo), NULL, true, mailbox);
    Millrace__Test__EchoRequest request = make_request("later");
    request.delay_ms = 100;
    struct kept kept = {0};
    int64_t start_ns = base_clock_now_ns();
    calls_start(channel, &request, CALLS_TIMEOUT_MS, &kept);
    calls_await(&kept, mailbox);
    assert_true(base_clock_now_ns() - start_ns >= 100 * BASE_NS_PER_MS);
    assert_int_equal(kept.code, BASE_OK);
    assert_string_equal(kept.reply, "later");
    rpc_channel_close(&channel);
    base_mailbox_destroy(mailbox);
    close_pair(&pair);
}

static void test_every_code_and_text_returns(void **state)
{
    (void)state;
    struct pair pair = open_pair(true);
    for (uint32_t code = 1; code < 128; code++) {
        if (!strcmp(base_error_name((enum base_code)code), "unknown"))
            continue;
        Millrace__Test__EchoRequest request = make_request("50% of \xc3\xa9t\xc3\xa9, \"quoted\"\n");
        request.code = code;
        struct base_error error;
        assert_int_equal(calls_say(pair.channel, &request, CALLS_TIMEOUT_MS, &error), code);
        assert_int_equal(error.code, code);
        assert_string_equal(error.text, "asked to fail: 50% of \xc3\xa9t\xc3\xa9, \"quoted\"\n");
    }
    close_pair(&pair);
}

static void test_deadline(void **state)
{
    (void)state;
    struct pair pair = open_pair(true);
    Millrace__Test__EchoRequest request = make_request("slow");
    request.hold = true;
    assert_int_equal(calls_say_text(pair.channel, "connect", CALLS_TIMEOUT_MS, NULL), BASE_OK);
    /* On a busy machine a short deadline may pass before the handler sees the call: then a longer one. */
    for (int64_t timeout_ms = 150; calls_count(pair.channel) < 2; timeout_ms *= 2) {
        struct base_error error;
        int64_t start_ns = base_clock_now_ns();
        assert_int_equal(calls_say(pair.channel, &request, timeout_ms, &error), BASE_TIMEOUT);
        int64_t took_ms = (base_clock_now_ns() - start_ns) / BASE_NS_PER_MS;
        assert_true(took_ms >= timeout_ms - 1 && took_ms < timeout_ms + 3000);
        assert_non_null(strstr(error.text, "Say at 127.0.0.1"));
    }
    calls_await_counts(pair.channel, 2, 1); /* the server was told */
    assert_int_equal(calls_say_text(pair.channel, "no time", 0, NULL), BASE_TIMEOUT);
    assert_int_equal(calls_say_text(pair.channel, "no time", -5, NULL), BASE_TIMEOUT);
    close_pair(&pair);
}

static void test_gone_caller_is_seen(void **state)
{
    (void)state;
    struct pair pair = open_pair(true);
    struct rpc_channel *other = calls_open(echo_address(pair.echo), NULL, true, NULL);
    Millrace__Test__EchoRequest request = make_request("held");
    request.hold = true;
    struct kept kept[3] = {0};
    for (int i = 0; i < 3; i++)
        calls_start(other, &request, CALLS_TIMEOUT_MS, &kept[i]);
    calls_await_counts(pair.channel, 3, 0);
    rpc_channel_close(&other);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(atomic_load(&kept[i].times), 1);
        assert_int_equal(kept[i].code, BASE_CANCELLED);
    }
    calls_await_counts(pair.channel, 3, 3);
    close_pair(&pair);
}

static void test_many_at_once(void **state)
{
    (void)state;
    struct pair pair = open_pair(true);
    struct kept *kept = calloc(CONCURRENT, sizeof *kept);
    int64_t start_ns = base_clock_now_ns();
    for (int i = 0; i < CONCURRENT; i++) {
        char text[16];
        snprintf(text, sizeof text, "%d", i);
        Millrace__Test__EchoRequest request = make_request(text);
        request.delay_ms = 200;
        calls_start(pair.channel, &request, CALLS_TIMEOUT_MS, &kept[i]);
    }
    for (int i = 0; i < CONCURRENT; i++) {
        calls_await(&kept[i], NULL);
        assert_int_equal(kept[i].code, BASE_OK);
        assert_int_equal(atoi(kept[i].reply), i);
    }
    assert_true(base_clock_now_ns() - start_ns < 10 * BASE_NS_PER_S); /* 40 s one after the other */
    free(kept);
    close_pair(&pair);
}

static void test_stop_with_calls_in_flight(void **state)
{
    (void)state;
    for (int64_t grace_ms = 0; grace_ms <= 200; grace_ms += 200) {
        struct pair pair = open_pair(true);
        Millrace__Test__EchoRequest request = make_request("held");
        request.hold = true;
        struct kept kept[20] = {0};
        for (int i = 0; i < 20; i++)
            calls_start(pair.channel, &request, CALLS_TIMEOUT_MS, &kept[i]);
        calls_await_counts(pair.channel, 20, 0);
        assert_true(echo_stop(&pair.echo, grace_ms) < 1000);
        for (int i = 0; i < 20; i++) {
            calls_await(&kept[i], NULL);
            assert_true(kept[i].code == BASE_UNAVAILABLE || kept[i].code == BASE_CANCELLED);
        }
        rpc_channel_close(&pair.channel);
    }
}

static void test_stop_lets_running_calls_end(void **state)
{
    (void)state;
    struct pair pair = open_pair(true);
    Millrace__Test__EchoRequest request = make_request("soon");
    request.delay_ms = 150;
    struct kept kept = {0};
    calls_start(pair.channel, &request, CALLS_TIMEOUT_MS, &kept);
    calls_await_counts(pair.channel, 1, 0);
    assert_true(echo_stop(&pair.echo, CALLS_TIMEOUT_MS) < 5000);
    calls_await(&kept, NULL);
    assert_int_equal(kept.code, BASE_OK);
    rpc_channel_close(&pair.channel);
}

static void test_stop_with_calls_in_the_mailbox(void **state)
{
    (void)state;
    struct base_mailbox *mailbox; /* nobody drains it while the server lives */
    assert_int_equal(base_mailbox_create(&mailbox, NULL), BASE_OK);
    static const rpc_handler none[2] = {NULL, NULL}; /* must not be called */
    struct rpc_service service = {&millrace__test__echo__descriptor, none, NULL};
    struct rpc_server_options options = {
        .address = "127.0.0.1:0", .mailbox = mailbox, .services = &service, .service_count = 1};
    struct rpc_server *server;
    assert_int_equal(rpc_server_start(&server, &options, NULL), BASE_OK);
    struct rpc_channel *channel = calls_open(rpc_server_address(server), NULL, true, NULL);
    Millrace__Test__EchoRequest request = make_request("unheard");
    struct kept kept = {0};
    calls_start(channel, &request, 300, &kept);
    calls_await(&kept, NULL);
    assert_int_equal(kept.code, BASE_TIMEOUT);
    struct kept another = {0};
    calls_start(channel, &request, CALLS_TIMEOUT_MS, &another);
    rpc_server_stop(&server, 50);
    base_mailbox_destroy(mailbox);
    calls_await(&another, NULL);
    assert_int_not_equal(another.code, BASE_OK);
    rpc_channel_close(&channel);
}

static void test_close_with_calls_in_flight(void **state)
{
    (void)state;
    struct pair pair = open_pair(true);
    struct base_mailbox *mailbox;
    assert_int_equal(base_mailbox_create(&mailbox, NULL), BASE_OK);
    struct rpc_channel *channel = calls_open(echo_address(pair.echo), NULL, true, mailbox);
    Millrace__Test__EchoRequest request = make_request("held");
    request.hold = true;
    struct kept kept[5] = {0};
    for (int i = 0; i < 5; i++)
        calls_start(channel, &request, CALLS_TIMEOUT_MS, &kept[i]);
    rpc_channel_close(&channel);
    for (int i = 0; i < 5; i++)
        assert_int_equal(atomic_load(&kept[i].times), 0); /* the owner has not drained */
    base_mailbox_drain(mailbox);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(atomic_load(&kept[i].times), 1);
        assert_int_equal(kept[i].code, BASE_CANCELLED);
    }
    base_mailbox_destroy(mailbox);
    close_pair(&pair);
    rpc_channel_close(&channel); /* NULL */
}

static void test_oversize_both_ways(void **state)
{
    (void)state;
    struct pair pair = open_pair(true);
    struct base_error error;
    uint8_t *padding = calloc(1, RPC_MESSAGE_MAX_BYTES);
    Millrace__Test__EchoRequest request = make_request("big");
    request.padding.data = padding;
    request.padding.len = RPC_MESSAGE_MAX_BYTES - 16;
    assert_int_equal(calls_say(pair.channel, &request, CALLS_TIMEOUT_MS, &error), BASE_OK);
    request.padding.len = RPC_MESSAGE_MAX_BYTES;
    assert_int_equal(calls_say(pair.channel, &request, CALLS_TIMEOUT_MS, &error), BASE_TOO_LARGE);
    assert_non_null(strstr(error.text, "EchoRequest"));
    request.padding.len = 0;
    request.reply_bytes = RPC_MESSAGE_MAX_BYTES - 16;
    assert_int_equal(calls_say(pair.channel, &request, CALLS_TIMEOUT_MS, &error), BASE_OK);
    request.reply_bytes = RPC_MESSAGE_MAX_BYTES;
    assert_int_equal(calls_say(pair.channel, &request, CALLS_TIMEOUT_MS, &error), BASE_TOO_LARGE);
    assert_non_null(strstr(error.text, "EchoReply"));
    assert_int_equal(calls_say_text(pair.channel, "still there", CALLS_TIMEOUT_MS, NULL), BASE_OK);
    free(padding);
    close_pair(&pair);
}

static void test_growing_message_is_refused(void **state)
{
    (void)state;
    struct pair pair = open_pair(true);
    enum { COUNT = 400000 }; /* 800 kB on the wire, far more unpacked */
    Millrace__Test__Counts empty = MILLRACE__TEST__COUNTS__INIT;
    Millrace__Test__Counts **list = malloc(COUNT * sizeof(Millrace__Test__Counts *));
    for (int i = 0; i < COUNT; i++)
        list[i] = &empty;
    Millrace__Test__Many request = MILLRACE__TEST__MANY__INIT;
    request.list = list;
    static const struct {
        size_t count;
        enum base_code code;
    } rows[] = {{0, BASE_OK}, {100, BASE_OK}, {COUNT, BASE_INVALID}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ProtobufCMessage *reply;
        request.n_list = rows[i].count;
        assert_int_equal(rpc_call_wait(pair.channel,
                                       &(struct rpc_request){&millrace__test__echo__descriptor, "Count",
                                                             &request.base, CALLS_TIMEOUT_MS},
                                       &reply, NULL),
                         rows[i].code);
        if (reply)
            protobuf_c_message_free_unpacked(reply, NULL);
    }
    free(list);
    close_pair(&pair);
}

static void test_wrong_calls(void **state)
{
    (void)state;
    struct pair pair = open_pair(true);
    struct base_error error;
    ProtobufCMessage *reply;
    Millrace__Test__Many many = MILLRACE__TEST__MANY__INIT;
    assert_int_equal(
        rpc_call_wait(pair.channel,
                      &(struct rpc_request){&millrace__test__echo__descriptor, "Nope", &many.base, 1000},
                      &reply, &error),
        BASE_UNSUPPORTED);
    assert_int_equal(
        rpc_call_wait(pair.channel,
                      &(struct rpc_request){&millrace__test__echo__descriptor, "Say", &many.base, 1000},
                      &reply, &error),
        BASE_INVALID);
    assert_non_null(strstr(error.text, "EchoRequest"));
    close_pair(&pair);
}

static void test_tokens(void **state)
{
    (void)state;
    static const struct {
        const char *server, *client;
        enum base_code code;
    } rows[] = {
        {NULL, NULL, BASE_OK},
        {NULL, KEY, BASE_OK},
        {KEY, KEY, BASE_OK},
        {KEY, NULL, BASE_REFUSED},
        {KEY, "another secret, wrong", BASE_REFUSED},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct echo *echo;
        assert_int_equal(echo_start(&echo, "127.0.0.1:0", rows[i].server, true, NULL), BASE_OK);
        struct rpc_channel *channel = calls_open(echo_address(echo), rows[i].client, true, NULL);
        struct base_error error;
        assert_int_equal(calls_say_text(channel, "who", CALLS_TIMEOUT_MS, &error), rows[i].code);
        if (rows[i].code)
            assert_non_null(strstr(error.text, "token"));
        rpc_channel_close(&channel);
        echo_stop(&echo, 1000);
    }
}

static void test_port_in_use_is_said(void **state)
{
    (void)state;
    struct pair pair = open_pair(true);
    struct echo *second = NULL;
    struct base_error error;
    assert_int_not_equal(echo_start(&second, echo_address(pair.echo), NULL, true, &error), BASE_OK);
    assert_non_null(strstr(error.text, echo_address(pair.echo)));
    assert_non_null(strstr(error.text, "in use"));
    static const char *const bad[] = {"", "nonsense", "127.0.0.1", "127.0.0.1:99999", "203.0.113.7:0"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_not_equal(echo_start(&second, bad[i], NULL, true, &error), BASE_OK);
    assert_int_equal(calls_say_text(pair.channel, "undisturbed", CALLS_TIMEOUT_MS, NULL), BASE_OK);
    close_pair(&pair);
}

static void test_ipv6(void **state)
{
    (void)state;
    struct echo *echo;
    struct base_error error;
    if (echo_start(&echo, "[::1]:0", NULL, true, &error)) {
        print_message("no IPv6 loopback here: %s\n", error.text);
        skip();
    }
    assert_int_equal(strncmp(echo_address(echo), "[::1]:", 6), 0);
    struct rpc_channel *channel = calls_open(echo_address(echo), NULL, true, NULL);
    assert_int_equal(calls_say_text(channel, "six", CALLS_TIMEOUT_MS, NULL), BASE_OK);
    rpc_channel_close(&channel);
    echo_stop(&echo, 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_echo),
        cmocka_unit_test(test_delayed_reply_to_a_mailbox),
        cmocka_unit_test(test_every_code_and_text_returns),
        cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_gone_caller_is_seen),
        cmocka_unit_test(test_many_at_once),
        cmocka_unit_test(test_stop_with_calls_in_flight),
        cmocka_unit_test(test_stop_lets_running_calls_end),
        cmocka_unit_test(test_stop_with_calls_in_the_mailbox),
        cmocka_unit_test(test_close_with_calls_in_flight),
        cmocka_unit_test(test_oversize_both_ways),
        cmocka_unit_test(test_growing_message_is_refused),
        cmocka_unit_test(test_wrong_calls),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_port_in_use_is_said),
        cmocka_unit_test(test_ipv6),
    };
    rpc_start();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rpc_stop();
    return failed;
}
