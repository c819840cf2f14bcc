/* SPDX-License-Identifier: Apache-2.0 */
/* Faults between processes: fault_test ECHO_SERVER. */
#include "base/address.h"
#include "base/clock.h"
#include "tests/unit/rpc/calls.h"
#include "tests/unit/rpc/echo.h"

#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static char *echo_server_path;
extern char **environ;

/* ---- a server in a process of its own ---- */

struct child {
    pid_t pid;
    int out;
    char address[BASE_ADDRESS_CHARS];
};

/* One line of the child's output; the test fails when none comes. */
static void read_line(int fd, char *line, size_t bytes)
{
    size_t used = 0;
    struct pollfd poller = {.fd = fd, .events = POLLIN};
    do {
        assert_int_equal(poll(&poller, 1, CALLS_TIMEOUT_MS), 1);
        assert_int_equal(read(fd, line + used, 1), 1);
    } while (line[used++] != '\n' && used < bytes - 1);
    line[used] = 0;
}

static struct child start_child(const char *address)
{
    struct child child;
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pipes[1], 1);
    posix_spawn_file_actions_addclose(&actions, pipes[0]);
    char *argv[] = {echo_server_path, (char *)(uintptr_t)address, NULL};
    assert_int_equal(posix_spawn(&child.pid, echo_server_path, &actions, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(pipes[1]);
    child.out = pipes[0];
    char line[BASE_ADDRESS_CHARS + 16];
    read_line(child.out, line, sizeof line);
    assert_int_equal(sscanf(line, "ready %299s", child.address), 1);
    return child;
}

static void end_child(struct child *child, int signal)
{
    int status;
    kill(child->pid, signal);
    assert_int_equal(waitpid(child->pid, &status, 0), child->pid);
    if (signal == SIGTERM)
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(child->out);
}

static int64_t elapsed_ms(int64_t start_ns)
{
    return (base_clock_now_ns() - start_ns) / BASE_NS_PER_MS;
}

/* ---- */

/* A waiting call to nobody lasts until its deadline. One that gRPC had still given to the broken connection ends before. */
static void await_nobody(struct rpc_channel *channel, const char *address)
{
    struct base_error error;
    int64_t took_ms = 0;
    for (int i = 0; i < 100 && took_ms < 299; i++) {
        int64_t start_ns = base_clock_now_ns();
        assert_int_equal(calls_say_text(channel, "nobody", 300, &error), BASE_UNAVAILABLE);
        took_ms = elapsed_ms(start_ns);
    }
    assert_true(took_ms >= 299);
    assert_non_null(strstr(error.text, address));
}

static void test_server_killed_and_restarted(void **state)
{
    (void)state;
    struct child child = start_child("127.0.0.1:0");
    char address[BASE_ADDRESS_CHARS];
    strcpy(address, child.address);
    struct rpc_channel *patient = calls_open(address, NULL, true, NULL);
    struct rpc_channel *hasty = calls_open(address, NULL, false, NULL);
    assert_int_equal(calls_say_text(patient, "one", CALLS_TIMEOUT_MS, NULL), BASE_OK);
    assert_int_equal(calls_say_text(hasty, "one", CALLS_TIMEOUT_MS, NULL), BASE_OK);
    for (int round = 0; round < 3; round++) {
        Millrace__Test__EchoRequest held = MILLRACE__TEST__ECHO_REQUEST__INIT;
        held.hold = true;
        struct kept kept = {0};
        uint64_t before = calls_count(patient);
        calls_start(patient, &held, CALLS_TIMEOUT_MS, &kept);
        calls_await_counts(patient, before + 1, 0);
        end_child(&child, SIGKILL);
        calls_await(&kept, NULL); /* at once, not at its deadline */
        assert_int_equal(kept.code, BASE_UNAVAILABLE);
        await_nobody(patient, address);
        struct base_error error;
        int64_t start_ns = base_clock_now_ns();
        assert_int_equal(calls_say_text(hasty, "nobody", CALLS_TIMEOUT_MS, &error), BASE_UNAVAILABLE);
        assert_true(elapsed_ms(start_ns) < 5000);
        assert_non_null(strstr(error.text, address));
        child = start_child(address);
        start_ns = base_clock_now_ns();
        assert_int_equal(calls_say_text(patient, "again", CALLS_TIMEOUT_MS, NULL), BASE_OK);
        assert_true(elapsed_ms(start_ns) < 5000); /* the backoff ends at 2 s and a fifth */
    }
    rpc_channel_close(&patient);
    rpc_channel_close(&hasty);
    end_child(&child, SIGTERM);
}

static void test_stopped_server_says_so(void **state)
{
    (void)state;
    struct child child = start_child("127.0.0.1:0");
    struct rpc_channel *channel = calls_open(child.address, NULL, true, NULL);
    Millrace__Test__EchoRequest held = MILLRACE__TEST__ECHO_REQUEST__INIT;
    held.hold = true;
    struct kept kept = {0};
    calls_start(channel, &held, CALLS_TIMEOUT_MS, &kept);
    calls_await_counts(channel, 1, 0);
    end_child(&child, SIGTERM);
    calls_await(&kept, NULL);
    assert_int_not_equal(kept.code, BASE_OK);
    rpc_channel_close(&channel);
}

static int dial(const char *address)
{
    int fd;
    assert_int_equal(base_address_dial(address, &fd, NULL), BASE_OK);
    struct pollfd poller = {.fd = fd, .events = POLLOUT};
    assert_int_equal(poll(&poller, 1, CALLS_TIMEOUT_MS), 1);
    return fd;
}

/* Sends bytes until the server hangs up or all are sent; then closes. */
static void throw_bytes(const char *address, const uint8_t *bytes, size_t size)
{
    int fd = dial(address);
    struct pollfd poller = {.fd = fd, .events = POLLOUT};
    for (size_t sent = 0; sent < size && poll(&poller, 1, 2000) == 1;) {
        ssize_t n = send(fd, bytes + sent, size - sent, MSG_NOSIGNAL);
        if (n < 0)
            break;
        sent += (size_t)n;
    }
    close(fd);
}

static void test_garbage_to_the_port(void **state)
{
    (void)state;
    struct child child = start_child("127.0.0.1:0");
    struct rpc_channel *channel = calls_open(child.address, NULL, true, NULL);
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    static uint8_t bytes[65536];
    uint32_t random = 1;
    for (int round = 0; round < 40; round++) {
        for (size_t i = 0; i < sizeof bytes; i++)
            bytes[i] = (uint8_t)((random = random * 1664525u + 1013904223u) >> 24);
        if (round % 2) /* past the greeting, into the frame parser */
            memcpy(bytes, preface, sizeof preface - 1);
        if (round % 4 == 3) /* a frame's head that could be true: a short frame of each type */
            memcpy(bytes + sizeof preface - 1, (uint8_t[]){0, 0, 20, (uint8_t)(round / 4), 4, 0, 0, 0, 1}, 9);
        throw_bytes(child.address, bytes, round % 3 ? sizeof bytes : (size_t)round * 7 + 1);
        assert_int_equal(calls_say_text(channel, "undisturbed", CALLS_TIMEOUT_MS, NULL), BASE_OK);
    }
    static const char http1[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    throw_bytes(child.address, (const uint8_t *)http1, sizeof http1 - 1);
    int silent = dial(child.address); /* says nothing, and holds nobody up */
    assert_int_equal(calls_say_text(channel, "undisturbed", CALLS_TIMEOUT_MS, NULL), BASE_OK);
    end_child(&child, SIGTERM);
    close(silent);
    rpc_channel_close(&channel);
}

/* Takes connections and sends garbage back, or nothing, until `stop` is written to. */
static void test_server_that_is_none(void **state)
{
    (void)state;
    int fd, peer = -1;
    assert_int_equal(base_address_listen("127.0.0.1:0", &fd, NULL), BASE_OK);
    char address[BASE_ADDRESS_CHARS];
    assert_int_equal(base_address_local(fd, address, sizeof address, NULL), BASE_OK);
    struct rpc_channel *channel = calls_open(address, NULL, true, NULL);
    Millrace__Test__EchoRequest request = MILLRACE__TEST__ECHO_REQUEST__INIT;
    struct kept kept = {0};
    calls_start(channel, &request, 700, &kept);
    struct pollfd poller = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&poller, 1, CALLS_TIMEOUT_MS), 1);
    peer = accept(fd, NULL, NULL);
    assert_true(peer >= 0);
    static const char http1[] =
        "HTTP/1.1 400 Bad Request\r\n\r\nno gRPC here, only some text that is no frame";
    assert_int_equal(send(peer, http1, sizeof http1 - 1, MSG_NOSIGNAL), sizeof http1 - 1);
    calls_await(&kept, NULL);
    assert_int_equal(kept.code, BASE_UNAVAILABLE);
    struct kept silent = {0};
    calls_start(channel, &request, 700, &silent); /* the listener's backlog takes it; nobody speaks */
    calls_await(&silent, NULL);
    assert_int_equal(silent.code, BASE_UNAVAILABLE);
    rpc_channel_close(&channel);
    close(peer);
    close(fd);
}

/* A forked child's handles are inert: they say so, and closing them disturbs nobody. */
static void test_fork(void **state)
{
    (void)state;
    struct echo *echo;
    assert_int_equal(echo_start(&echo, "127.0.0.1:0", NULL, false, NULL), BASE_OK);
    struct rpc_channel *channel = calls_open(echo_address(echo), NULL, true, NULL);
    assert_int_equal(calls_say_text(channel, "before", CALLS_TIMEOUT_MS, NULL), BASE_OK);
    pid_t pid = fork();
    if (!pid) {
        alarm(10);
        struct rpc_channel_options options = {.target = "127.0.0.1:1"};
        struct rpc_channel *another;
        struct kept kept = {0};
        Millrace__Test__EchoRequest request = MILLRACE__TEST__ECHO_REQUEST__INIT;
        ProtobufCMessage *reply;
        bool good = !rpc_usable();
        rpc_start();
        good = good && !rpc_usable() && rpc_channel_open(&another, &options, NULL) == BASE_CLOSED;
        calls_start(channel, &request, 1000, &kept);
        good = good && atomic_load(&kept.times) == 1 && kept.code == BASE_CLOSED;
        good = good && rpc_call_wait(channel,
                                     &(struct rpc_request){&millrace__test__echo__descriptor, "Say",
                                                           &request.base, 1000},
                                     &reply, NULL) == BASE_CLOSED;
        rpc_channel_close(&channel);
        rpc_stop();
        _exit(good ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(calls_say_text(channel, "after", CALLS_TIMEOUT_MS, NULL), BASE_OK);
    rpc_channel_close(&channel);
    echo_stop(&echo, 1000);
}

/* A server whose gRPC may hold little memory refuses the connections that are too many, and serves again when they have gone. */
static void test_memory_is_bounded(void **state)
{
    (void)state;
    enum { MANY = 1000 };
    static int fds[MANY];
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0";
    const struct rpc_server_options options = {.address = "127.0.0.1:0", .memory_max_bytes = 1 << 18};
    struct rpc_server *server = NULL;
    int refused = 0;
    assert_int_equal(rpc_server_start(&server, &options, NULL), BASE_OK);
    for (int i = 0; i < MANY; i++) {
        struct pollfd polled = {.events = POLLOUT};
        assert_int_equal(base_address_dial(rpc_server_address(server), &fds[i], NULL), BASE_OK);
        polled.fd = fds[i];
        assert_int_equal(poll(&polled, 1, CALLS_TIMEOUT_MS), 1);
        send(fds[i], preface, sizeof preface - 1, MSG_NOSIGNAL);
    }
    int64_t until_ns = base_clock_deadline_ns(CALLS_TIMEOUT_MS);
    for (int i = 0; refused == 0 && base_clock_now_ns() < until_ns; i = (i + 1) % MANY) {
        struct pollfd polled = {.fd = fds[i], .events = POLLIN};
        char bytes[64];
        while (poll(&polled, 1, 0) == 1 && refused == 0)
            refused += recv(fds[i], bytes, sizeof bytes, MSG_DONTWAIT) <= 0;
    }
    assert_true(refused > 0);
    for (int i = 0; i < MANY; i++)
        close(fds[i]);
    struct rpc_channel *channel = calls_open(rpc_server_address(server), NULL, true, NULL);
    Millrace__Test__EchoRequest request = MILLRACE__TEST__ECHO_REQUEST__INIT;
    ProtobufCMessage *reply;
    int64_t deadline_ns = base_clock_deadline_ns(CALLS_TIMEOUT_MS);
    enum base_code code;
    do /* it has no such service: an answer all the same, once it has let go of what it held */
        code = rpc_call_wait(
            channel,
            &(struct rpc_request){&millrace__test__echo__descriptor, "Say", &request.base, CALLS_TIMEOUT_MS},
            &reply, NULL);
    while (code != BASE_UNSUPPORTED && base_clock_now_ns() < deadline_ns);
    assert_int_equal(code, BASE_UNSUPPORTED);
    rpc_channel_close(&channel);
    rpc_server_stop(&server, 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_is_bounded),      cmocka_unit_test(test_server_killed_and_restarted),
        cmocka_unit_test(test_stopped_server_says_so), cmocka_unit_test(test_garbage_to_the_port),
        cmocka_unit_test(test_server_that_is_none),    cmocka_unit_test(test_fork),
    };
    if (argc != 2)
        return 2;
    echo_server_path = argv[1];
    rpc_start();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rpc_stop();
    return failed;
}
