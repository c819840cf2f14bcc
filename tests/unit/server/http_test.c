/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP port with more connections than it may have: the rest waits, none is refused or lost, and all are counted. */
#include "server/http/http.h"

#include "base/address.h"
#include "base/clock.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST = 4, MORE = 7, WAIT_MS = 10000 };

static struct base_metric connections, full;

static int answer(void *context, struct base_buffer *body)
{
    (void)context;
    base_buffer_put(body, "here", 4);
    return 200;
}

static void turn(struct event_base *loop)
{
    event_base_loop(loop, EVLOOP_ONCE | EVLOOP_NONBLOCK);
    poll(NULL, 0, 1);
}

static void expect_connections(struct event_base *loop, int64_t wanted)
{
    int64_t deadline_ns = base_clock_deadline_ns(WAIT_MS);
    while (base_metric_get(&connections) != wanted) {
        if (base_clock_now_ns() > deadline_ns)
            fail_msg("%lld connections instead of %lld", (long long)base_metric_get(&connections),
                     (long long)wanted);
        turn(loop);
    }
}

static int dial(const char *address)
{
    int fd = -1;
    assert_int_equal(base_address_dial(address, &fd, NULL), BASE_OK);
    struct pollfd polled = {.fd = fd, .events = POLLOUT};
    assert_int_equal(poll(&polled, 1, WAIT_MS), 1);
    assert_int_equal(base_address_connected(fd, address, NULL), BASE_OK);
    return fd;
}

static void ask(int fd)
{
    static const char request[] = "GET /here HTTP/1.1\r\nHost: x\r\n\r\n";
    assert_int_equal(send(fd, request, sizeof request - 1, MSG_NOSIGNAL), sizeof request - 1);
}

static bool answered(int fd)
{
    char reply[1024] = "";
    ssize_t got = recv(fd, reply, sizeof reply - 1, MSG_DONTWAIT);
    return got > 0 && strstr(reply, " 200 ") && strstr(reply, "\r\n\r\nhere");
}

static void expect_answer(struct event_base *loop, int fd)
{
    int64_t deadline_ns = base_clock_deadline_ns(WAIT_MS);
    while (!answered(fd)) {
        assert_true(base_clock_now_ns() < deadline_ns);
        turn(loop);
    }
}

static void too_many_wait(void **state)
{
    (void)state;
    static const struct http_route route = {.path = "/here", .content_type = "text/plain", .answer = answer};
    const struct http_options options = {.address = "127.0.0.1:0",
                                         .routes = &route,
                                         .count = 1,
                                         .connections_max = MOST,
                                         .connections = &connections,
                                         .full = &full};
    struct event_base *loop = event_base_new();
    struct http *http = NULL;
    int fds[MORE];
    assert_int_equal(http_start(&http, loop, &options, NULL), BASE_OK);
    for (int i = 0; i < MORE; i++)
        fds[i] = dial(http_address(http));
    expect_connections(loop, MOST);
    ask(fds[0]);
    expect_answer(loop, fds[0]);
    ask(fds[MORE - 1]);
    for (int i = 0; i < 20; i++)
        turn(loop);
    assert_false(answered(fds[MORE - 1]));
    assert_int_equal(base_metric_get(&connections), MOST);
    for (int i = 0; i < MORE - 1; i++) /* who waited comes in the places of those that go */
        close(fds[i]);
    expect_answer(loop, fds[MORE - 1]);
    expect_connections(loop, 1);
    assert_true(base_metric_get(&full) >= 1);
    close(fds[MORE - 1]);
    expect_connections(loop, 0);
    fds[0] = dial(http_address(http));
    expect_connections(loop, 1);
    http_stop(&http); /* with one that is open */
    close(fds[0]);
    event_base_free(loop);
    assert_int_equal(base_metric_get(&connections), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(too_many_wait)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
