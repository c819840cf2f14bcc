/* SPDX-License-Identifier: Apache-2.0 */
#include "base/address.h"

#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static void parse(void **state)
{
    (void)state;
    static const struct {
        const char *text, *host;
        uint16_t port;
    } rows[] = {
        {"127.0.0.1:80", "127.0.0.1", 80},
        {"host.example:65535", "host.example", 65535},
        {"[::1]:0", "::1", 0},
        {"[fe80::1%eth0]:9", "fe80::1%eth0", 9},
        /* rows that must fail */
        {"", NULL, 0},
        {"host", NULL, 0},
        {"host:", NULL, 0},
        {":80", NULL, 0},
        {"[]:80", NULL, 0},
        {"host:65536", NULL, 0},
        {"host:-1", NULL, 0},
        {"host:+1", NULL, 0},
        {"host: 1", NULL, 0},
        {"host:1x", NULL, 0},
        {"host:999999", NULL, 0},
        {"::1:80", NULL, 0},
        {"[::1]", NULL, 0},
        {"[::1:80", NULL, 0},
        {"[::1]80", NULL, 0},
        {"http://host:80", NULL, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char host[256];
        uint16_t port = 1;
        struct base_error error = {0};
        enum base_code code = base_address_parse(rows[i].text, host, &port, &error);
        if (rows[i].host) {
            assert_int_equal(code, BASE_OK);
            assert_string_equal(host, rows[i].host);
            assert_int_equal(port, rows[i].port);
        } else if (code != BASE_INVALID || !strstr(error.text, rows[i].text)) {
            fail_msg("\"%s\": %s %s", rows[i].text, base_error_name(code), error.text);
        }
    }
}

static void host_over_255_bytes_is_refused(void **state)
{
    (void)state;
    char text[300], host[256];
    uint16_t port;
    memset(text, 'a', sizeof text);
    strcpy(text + 255, ":80");
    assert_int_equal(base_address_parse(text, host, &port, NULL), BASE_OK);
    memset(text, 'a', sizeof text);
    strcpy(text + 256, ":80");
    assert_int_equal(base_address_parse(text, host, &port, NULL), BASE_INVALID);
}

static void loopback(void **state)
{
    (void)state;
    static const char *const inside[] = {"127.0.0.1", "127.9.9.9", "::1",
                                         "localhost", "LOCALHOST", "::ffff:127.0.0.1"};
    static const char *const outside[] = {"0.0.0.0",           "::",    "10.0.0.1", "128.0.0.1",
                                          "127.0.0.1.example", "127.1", ""};
    for (size_t i = 0; i < sizeof inside / sizeof *inside; i++)
        assert_true(base_address_is_loopback(inside[i]));
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++)
        assert_false(base_address_is_loopback(outside[i]));
}

static bool flags_are_right(int fd)
{
    return fcntl(fd, F_GETFL) & O_NONBLOCK && fcntl(fd, F_GETFD) & FD_CLOEXEC;
}

static bool ready(int fd, short events)
{
    struct pollfd poller = {.fd = fd, .events = events};
    return poll(&poller, 1, 10000) == 1;
}

static void listen_dial_and_talk(void **state)
{
    (void)state;
    int server, client;
    char text[BASE_ADDRESS_CHARS];
    assert_int_equal(base_address_listen("127.0.0.1:0", &server, NULL), BASE_OK);
    assert_int_equal(base_address_local(server, text, sizeof text, NULL), BASE_OK);
    assert_memory_equal(text, "127.0.0.1:", 10);
    assert_int_equal(base_address_local(server, text, 5, NULL), BASE_TOO_LARGE);
    assert_int_equal(base_address_local(server, text, sizeof text, NULL), BASE_OK);
    assert_int_equal(base_address_dial(text, &client, NULL), BASE_OK);
    assert_true(flags_are_right(server) && flags_are_right(client));
    assert_true(ready(client, POLLOUT));
    assert_int_equal(base_address_connected(client, text, NULL), BASE_OK);
    assert_true(ready(server, POLLIN));
    int peer = accept(server, NULL, NULL);
    assert_true(peer >= 0);
    assert_int_equal(write(client, "x", 1), 1);
    assert_true(ready(peer, POLLIN));
    close(peer);
    close(client);
    close(server);
}

/* The port is taken: an error that names it, never a silent second server (SO_REUSEPORT). */
static void port_in_use(void **state)
{
    (void)state;
    int first, second = -1;
    char text[BASE_ADDRESS_CHARS];
    struct base_error error;
    assert_int_equal(base_address_listen("127.0.0.1:0", &first, NULL), BASE_OK);
    assert_int_equal(base_address_local(first, text, sizeof text, NULL), BASE_OK);
    assert_int_equal(base_address_listen(text, &second, &error), BASE_IO);
    char expected[BASE_ADDRESS_CHARS + 64];
    snprintf(expected, sizeof expected, "listen on %s: Address already in use", text);
    assert_string_equal(error.text, expected);
    assert_int_equal(second, -1);
    close(first);
}

static void nobody_listens(void **state)
{
    (void)state;
    int fd;
    char text[BASE_ADDRESS_CHARS];
    struct base_error error;
    assert_int_equal(base_address_listen("127.0.0.1:0", &fd, NULL), BASE_OK);
    assert_int_equal(base_address_local(fd, text, sizeof text, NULL), BASE_OK);
    close(fd);
    enum base_code code = base_address_dial(text, &fd, &error);
    if (!code) {
        assert_true(ready(fd, POLLOUT));
        code = base_address_connected(fd, text, &error);
        close(fd);
    }
    assert_int_equal(code, BASE_UNAVAILABLE);
    assert_non_null(strstr(error.text, "Connection refused"));
}

static void unknown_host_is_named(void **state)
{
    (void)state;
    int fd;
    struct base_error error;
    /* A label of 70 characters: refused by the resolver itself, so no name server is asked. */
    char text[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.invalid:80";
    assert_int_equal(base_address_dial(text, &fd, &error), BASE_UNAVAILABLE);
    assert_non_null(strstr(error.text, text));
    assert_int_equal(base_address_dial("nonsense", &fd, NULL), BASE_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parse),
        cmocka_unit_test(host_over_255_bytes_is_refused),
        cmocka_unit_test(loopback),
        cmocka_unit_test(listen_dial_and_talk),
        cmocka_unit_test(port_in_use),
        cmocka_unit_test(nobody_listens),
        cmocka_unit_test(unknown_host_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
