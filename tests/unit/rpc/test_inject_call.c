/* SPDX-License-Identifier: Apache-2.0 */
/* Calls while memory and threads fail at the caller: an answer or a clear error, once; the channel is as good as before. */
#include "base/address.h"
#include "tests/support/inject.h"
#include "tests/unit/rpc/calls.h"

#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

extern char **environ;
static char *server_path;
static char address[BASE_ADDRESS_CHARS];
static pid_t server;

static int start_server(void **state)
{
    (void)state;
    int ends[2];
    posix_spawn_file_actions_t actions;
    char *argv[] = {server_path, (char[]){"127.0.0.1:0"}, NULL};
    if (pipe(ends) != 0)
        return -1;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    int failed = posix_spawn(&server, server_path, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    FILE *said = fdopen(ends[0], "r");
    bool ready = !failed && said && fscanf(said, "ready %299s", address) == 1;
    if (said)
        fclose(said);
    rpc_start();
    return ready ? 0 : -1;
}

static int stop_server(void **state)
{
    (void)state;
    rpc_stop();
    kill(server, SIGTERM);
    return waitpid(server, NULL, 0) == server ? 0 : -1;
}

/* One after the other: open, a call that is waited for, one that is called back through a mailbox. */
static enum base_code call_twice(void *context, struct base_error *error)
{
    (void)context;
    struct base_mailbox *mailbox = NULL;
    struct rpc_channel *channel = NULL;
    struct kept kept = {0};
    Millrace__Test__EchoRequest request = MILLRACE__TEST__ECHO_REQUEST__INIT;
    request.text = (char[]){"hello"};
    struct rpc_channel_options options = {.target = address, .wait_for_ready = true};
    enum base_code code = base_mailbox_create(&mailbox, error);
    options.mailbox = mailbox;
    if (code == BASE_OK)
        code = rpc_channel_open(&channel, &options, error);
    if (code == BASE_OK)
        code = calls_say(channel, &request, CALLS_TIMEOUT_MS, error);
    if (code == BASE_OK && !rpc_call_start(channel,
                                           &(struct rpc_request){&millrace__test__echo__descriptor, "Say",
                                                                 &request.base, CALLS_TIMEOUT_MS},
                                           calls_keep, &kept))
        code = base_error_set(error, BASE_NO_MEMORY, "Say: no memory");
    else if (code == BASE_OK) {
        calls_await(&kept, mailbox);
        code = kept.code == BASE_OK ? BASE_OK : base_error_set(error, kept.code, "%s", kept.text);
    }
    inject_stop();
    if (code == BASE_OK)
        assert_string_equal(kept.reply, "hello");
    if (channel)
        assert_int_equal(calls_say(channel, &request, CALLS_TIMEOUT_MS, NULL), BASE_OK);
    rpc_channel_close(&channel);
    base_mailbox_destroy(mailbox);
    return code;
}

static enum base_code start_and_stop(void *context, struct base_error *error)
{
    (void)context;
    struct rpc_server *started = NULL;
    const struct rpc_server_options options = {.address = "127.0.0.1:0", .token_key = "secret"};
    enum base_code code = rpc_server_start(&started, &options, error);
    inject_stop();
    assert_int_equal(started != NULL, code == BASE_OK);
    rpc_server_stop(&started, 0);
    return code;
}

static void calls(void **state)
{
    (void)state;
    inject_each("rpc: calls", INJECT_MEMORY | INJECT_THREAD | INJECT_FOREIGN, call_twice, NULL);
}

static void servers(void **state)
{
    (void)state;
    inject_each("rpc: server", INJECT_MEMORY | INJECT_THREAD | INJECT_FOREIGN, start_and_stop, NULL);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    server_path = argv[1];
    const struct CMUnitTest tests[] = {cmocka_unit_test(calls), cmocka_unit_test(servers)};
    return cmocka_run_group_tests(tests, start_server, stop_server);
}
