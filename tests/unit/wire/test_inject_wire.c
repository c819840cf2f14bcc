/* SPDX-License-Identifier: Apache-2.0 */
/* A link and the messages while memory and sockets fail: frames come whole and in order, or the link says what failed. */
#include "proto/wire/link.h"
#include "proto/wire/messages.h"
#include "tests/support/inject.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { SMALL = 5000, LARGE = 60000, TOKEN = 7 };

/* What one end saw. */
struct end {
    struct wire_link *link;
    int hellos, marks, data, done, lost;
    uint8_t place[LARGE];
};

static enum base_code on_sink(void *context, const struct wire_header *header, uint64_t offset,
                              struct iovec *into, struct base_error *error)
{
    (void)error;
    struct end *end = context;
    *into = (struct iovec){end->place + offset, header->length - offset};
    return BASE_OK;
}

static void assert_filled(const uint8_t *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        assert_int_equal(bytes[i], (uint8_t)(i * 31));
}

static enum base_code on_frame(void *context, const struct wire_header *header, const uint8_t *payload,
                               struct base_error *error)
{
    (void)error;
    struct end *end = context;
    end->hellos += header->type == WIRE_HELLO;
    end->marks += header->type == WIRE_MARK;
    end->data += header->type == WIRE_DATA;
    assert_filled(header->type == WIRE_DATA ? end->place : payload, header->length);
    return BASE_OK;
}

static void on_sent(void *context, uint64_t token, bool done)
{
    struct end *end = context;
    assert_int_equal(token, TOKEN);
    end->done += done;
    end->lost += !done;
}

static const struct wire_link_events events = {.sink = on_sink, .frame = on_frame, .sent = on_sent};
static uint8_t bytes[LARGE];

/* *taken: the parts were, so `sent` must come. */
static enum base_code send_all(struct wire_link *link, bool *taken, struct base_error *error)
{
    struct iovec parts[2] = {{bytes, LARGE / 2}, {bytes + LARGE / 2, LARGE / 2}};
    enum base_code code = wire_link_send(link, &(struct wire_header){.type = WIRE_HELLO}, bytes, 100, error);
    if (code == BASE_OK)
        code = wire_link_send(link, &(struct wire_header){.type = WIRE_MARK}, bytes, SMALL, error);
    if (code == BASE_OK)
        code = wire_link_send_parts(link, &(struct wire_header){.type = WIRE_DATA, .to = 1}, parts, 2, TOKEN,
                                    error);
    *taken = code == BASE_OK;
    for (int i = 0; i < 3 && code == BASE_OK; i++)
        code = wire_link_write(link, error);
    return code;
}

static enum base_code create(struct end *end, int fd, struct base_error *error)
{
    *end = (struct end){.link = NULL};
    struct wire_link_options options = {
        .fd = fd, .events = &events, .context = end, .queue_max_bytes = 1 << 20};
    enum base_code code = wire_link_create(&end->link, &options, error);
    if (code != BASE_OK)
        close(fd);
    return code;
}

static enum base_code use_links(void *context, struct base_error *error)
{
    (void)context;
    int fds[2];
    bool taken = false;
    struct inject_plan plan = inject_pause();
    static struct end a, b;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    inject_start(&plan);
    enum base_code code = create(&a, fds[0], error);
    enum base_code other = create(&b, fds[1], code == BASE_OK ? error : NULL);
    code = code == BASE_OK ? other : code;
    if (code == BASE_OK)
        code = send_all(a.link, &taken, error);
    for (int i = 0; i < 3 && code == BASE_OK; i++)
        code = wire_link_read(b.link, UINT64_MAX, error);
    inject_stop();
    wire_link_destroy(a.link);
    wire_link_destroy(b.link);
    assert_int_equal(a.done + a.lost, taken);
    bool all = b.hellos == 1 && b.marks == 1 && b.data == 1;
    assert_true(code != BASE_OK || (all && a.done == 1));
    return code;
}

static enum base_code use_messages(void *context, struct base_error *error)
{
    (void)context;
    struct base_buffer out;
    struct wire_open open = {.job = "job", .field_count = 2, .fields = {"image", "label"}}, again;
    base_buffer_init(&out);
    for (int i = 0; i < 10; i++)
        wire_open_write(&open, &out);
    inject_stop();
    bool failed = out.failed;
    if (!failed) {
        assert_int_equal(wire_open_read(out.bytes, out.size / 10, &again, error), BASE_OK);
        assert_string_equal(again.fields[1], "label");
    }
    base_buffer_fini(&out);
    return failed ? base_error_set(error, BASE_NO_MEMORY, "OPEN: no memory") : BASE_OK;
}

static void links(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 31);
    inject_each("link", INJECT_MEMORY | INJECT_CALL | INJECT_SHORT, use_links, NULL);
}

static void messages(void **state)
{
    (void)state;
    inject_each("messages", INJECT_MEMORY, use_messages, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(links), cmocka_unit_test(messages)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
