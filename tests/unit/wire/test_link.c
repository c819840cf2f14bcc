/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/wire/link.h"

#include "base/buffer.h"
#include "base/hash.h"
#include "proto/wire/receive.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { TOKENS = 64, PLACE_BYTES = 1 << 20 };

/* One end: what its events saw. `peer` is the raw other end of its socket. */
struct end {
    struct wire_link *link;
    int peer;
    char seen[4096]; /* "HELLO(3) GET(12) " */
    uint8_t *place;
    size_t sink_bytes; /* of a sink, 0: all that is left */
    int sent_done[TOKENS], sent_lost[TOKENS];
    enum base_code frame_code, sink_code;
    struct wire_header last;
    char text[600]; /* payload of the last small frame */
    uint64_t placed;
    enum base_code placed_code;
    bool echo;   /* answers each GET by a DATA frame with token = request */
    bool resend; /* sends a PING from `sent` */
};

static enum base_code on_sink(void *context, const struct wire_header *header, uint64_t offset,
                              struct iovec *into, struct base_error *error)
{
    struct end *end = context;
    if (end->sink_code != BASE_OK)
        return base_error_set(error, end->sink_code, "no room");
    size_t left = header->length - offset;
    into->iov_base = end->place + offset;
    into->iov_len = end->sink_bytes && end->sink_bytes < left ? end->sink_bytes : left;
    return BASE_OK;
}

static enum base_code on_placed(void *context, const struct wire_header *header, uint64_t offset,
                                struct base_error *error)
{
    struct end *end = context;
    assert_true(wire_header_is_bulk(header) && offset <= header->length && offset > end->placed);
    end->placed = offset;
    return end->placed_code == BASE_OK ? BASE_OK : base_error_set(error, end->placed_code, "row 0 differs");
}

static uint8_t answer_bytes[100000];

static enum base_code on_frame(void *context, const struct wire_header *header, const uint8_t *payload,
                               struct base_error *error)
{
    struct end *end = context;
    size_t at = strlen(end->seen);
    snprintf(end->seen + at, sizeof end->seen - at, "%s(%llu) ", wire_type_name(header->type),
             (unsigned long long)header->length);
    end->last = *header;
    end->placed = 0;
    assert_true((payload == NULL) == wire_header_is_bulk(header));
    size_t text = payload && header->length < sizeof end->text ? header->length : 0;
    if (text)
        memcpy(end->text, payload, text);
    end->text[text] = 0;
    if (end->echo && header->type == WIRE_GET) {
        struct wire_header data = {.type = WIRE_DATA, .request = header->request, .to = 1};
        struct iovec iov = {.iov_base = answer_bytes, .iov_len = sizeof answer_bytes};
        assert_int_equal(wire_link_send_parts(end->link, &data, &iov, 1, header->request, error), BASE_OK);
    }
    return end->frame_code == BASE_OK ? BASE_OK : base_error_set(error, end->frame_code, "not now");
}

static void on_sent(void *context, uint64_t token, bool done)
{
    struct end *end = context;
    assert_true(token < TOKENS);
    ++*(done ? &end->sent_done[token] : &end->sent_lost[token]);
    if (end->resend)
        (void)wire_link_send(end->link, &(struct wire_header){.type = WIRE_PING}, NULL, 0, NULL);
}

static const struct wire_link_events events = {
    .sink = on_sink, .placed = on_placed, .frame = on_frame, .sent = on_sent};
static const struct wire_link_events events_without_sink = {.frame = on_frame, .sent = on_sent};

static void end_init_with(struct end *end, int fd, int peer, const struct wire_link_events *with)
{
    *end = (struct end){.peer = peer, .place = malloc(PLACE_BYTES)};
    struct wire_link_options options = {.fd = fd, .events = with, .context = end, .queue_max_bytes = 4 << 20};
    assert_int_equal(wire_link_create(&end->link, &options, NULL), BASE_OK);
    assert_int_equal(wire_link_fd(end->link), fd);
}

static void end_init(struct end *end)
{
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    end_init_with(end, fds[0], fds[1], &events);
}

static void end_fini(struct end *end)
{
    wire_link_destroy(end->link);
    if (end->peer >= 0)
        close(end->peer);
    free(end->place);
}

/* Two links that speak to each other. */
static void ends_init(struct end *a, struct end *b)
{
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    end_init_with(a, fds[0], -1, &events);
    end_init_with(b, fds[1], -1, &events);
}

static void put_frame(struct base_buffer *out, struct wire_header header, const void *payload)
{
    wire_header_write(&header, base_buffer_extend(out, WIRE_HEADER_BYTES));
    if (payload)
        base_buffer_put(out, payload, header.length);
}

static void put_hello(struct base_buffer *out)
{
    put_frame(out, (struct wire_header){.type = WIRE_HELLO, .length = 3}, "abc");
}

static enum base_code feed(struct end *end, const void *bytes, size_t size, struct base_error *error)
{
    assert_int_equal(send(end->peer, bytes, size, MSG_NOSIGNAL), (ssize_t)size);
    return wire_link_read(end->link, UINT64_MAX, error);
}

/* ---- receiving ---- */

static void frames_of_all_sizes_come(void **state)
{
    (void)state;
    static const size_t sizes[] = {0,    1,    12,   255,  256,  257,   4031, 4032,
                                   4033, 4095, 4096, 4097, 4160, 30000, 65536};
    for (size_t cut = 0; cut < 3; cut++) {
        struct end end;
        char expected[2048] = "HELLO(3) ";
        struct base_buffer out;
        uint8_t payload[65536];
        memset(payload, 7, sizeof payload);
        base_buffer_init(&out);
        put_hello(&out);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            put_frame(&out, (struct wire_header){.type = WIRE_MARK, .length = sizes[i]}, payload);
            put_frame(&out, (struct wire_header){.type = WIRE_DATA, .to = 1, .length = sizes[i]}, payload);
            size_t at = strlen(expected);
            snprintf(expected + at, sizeof expected - at, "MARK(%zu) DATA(%zu) ", sizes[i], sizes[i]);
        }
        end_init(&end);
        end.sink_bytes = cut == 2 ? 100 : 0;
        size_t chunk = cut == 0 ? 50000 : 997;
        for (size_t at = 0; at < out.size; at += chunk)
            assert_int_equal(feed(&end, out.bytes + at, out.size - at < chunk ? out.size - at : chunk, NULL),
                             BASE_OK);
        assert_string_equal(end.seen, expected);
        assert_true(wire_link_bytes_in(end.link) == out.size);
        for (size_t i = 0; i < 65536; i++)
            assert_int_equal(end.place[i], 7);
        base_buffer_fini(&out);
        end_fini(&end);
    }
}

static void unknown_frames_are_skipped(void **state)
{
    (void)state;
    struct end end;
    struct base_buffer out;
    uint8_t payload[10000] = {0};
    base_buffer_init(&out);
    put_hello(&out);
    put_frame(&out, (struct wire_header){.type = 99, .length = 10000}, payload);
    put_frame(&out, (struct wire_header){.type = 98, .length = 5}, payload);
    put_frame(&out, (struct wire_header){.type = WIRE_PING}, NULL);
    end_init(&end);
    assert_int_equal(feed(&end, out.bytes, out.size, NULL), BASE_OK);
    assert_string_equal(end.seen, "HELLO(3) PING(0) ");
    base_buffer_fini(&out);
    end_fini(&end);
}

static void reading_stops_at_its_budget(void **state)
{
    (void)state;
    struct end end;
    struct base_buffer out;
    base_buffer_init(&out);
    put_hello(&out);
    for (int i = 0; i < 300; i++)
        put_frame(&out, (struct wire_header){.type = WIRE_PING}, NULL);
    end_init(&end);
    assert_int_equal(send(end.peer, out.bytes, out.size, 0), (ssize_t)out.size);
    assert_int_equal(wire_link_read(end.link, 1, NULL), BASE_OK);
    assert_true(wire_link_bytes_in(end.link) <= WIRE_RECEIVE_AHEAD_BYTES);
    assert_int_equal(wire_link_read(end.link, UINT64_MAX, NULL), BASE_OK);
    assert_true(wire_link_bytes_in(end.link) == out.size);
    base_buffer_fini(&out);
    end_fini(&end);
}

/* ---- what must be refused ---- */

struct refusal {
    const char *what;
    bool hello;                /* comes before it */
    struct wire_header header; /* or, with type 0, bytes that are no header at all */
    enum base_code code;
    const char *text;
    bool answered; /* by a FAIL that says the same */
};

static void assert_fail_came(int peer, const struct refusal *row)
{
    uint8_t bytes[2048];
    struct wire_header header;
    ssize_t size = recv(peer, bytes, sizeof bytes, MSG_DONTWAIT);
    if (size < WIRE_HEADER_BYTES || wire_header_read(bytes, &header, NULL) != BASE_OK ||
        header.type != WIRE_FAIL)
        fail_msg("%s: no FAIL came (%zd bytes)", row->what, size);
    assert_int_equal(header.status, row->code);
    assert_int_equal(header.length, size - WIRE_HEADER_BYTES);
    if (row->header.type)
        assert_int_equal(header.request, row->header.request);
    bytes[size] = 0;
    if (!strstr((char *)bytes + WIRE_HEADER_BYTES, row->text))
        fail_msg("%s: FAIL says %s", row->what, bytes + WIRE_HEADER_BYTES);
}

static void check_refusal(const struct refusal *row)
{
    struct end end;
    struct base_buffer out;
    struct base_error error = {0};
    base_buffer_init(&out);
    if (row->hello)
        put_hello(&out);
    if (row->header.type)
        put_frame(&out, row->header, NULL);
    else
        base_buffer_printf(
            &out, "GET / HTTP/1.1\r\nHost: trainer.example\r\nAccept: everything there is to eat\r\n\r\n");
    end_init(&end);
    enum base_code code = feed(&end, out.bytes, out.size, &error);
    if (code != row->code || error.code != row->code || !strstr(error.text, row->text))
        fail_msg("%s: %s \"%s\"", row->what, base_error_name(code), error.text);
    if (row->answered)
        assert_fail_came(end.peer, row);
    struct base_error again = {0};
    assert_int_equal(wire_link_read(end.link, UINT64_MAX, &again), row->code);
    assert_string_equal(again.text, error.text);
    assert_int_equal(wire_link_send(end.link, &(struct wire_header){.type = WIRE_PING}, NULL, 0, NULL),
                     BASE_CLOSED);
    base_buffer_fini(&out);
    end_fini(&end);
}

static void bad_frames_are_refused(void **state)
{
    (void)state;
    static const struct refusal rows[] = {
        {"garbage", false, {.type = 0}, BASE_CORRUPT, "magic 20544547", true},
        {"garbage after HELLO", true, {.type = 0}, BASE_CORRUPT, "magic", true},
        {"GET first",
         false,
         {.type = WIRE_GET, .request = 4, .to = 1},
         BASE_CORRUPT,
         "GET frame before HELLO",
         true},
        {"PING first", false, {.type = WIRE_PING}, BASE_CORRUPT, "PING frame before HELLO", true},
        {"HELLO twice", true, {.type = WIRE_HELLO}, BASE_CORRUPT, "second HELLO", true},
        {"version 9",
         true,
         {.type = WIRE_GET, .version = 9, .request = 5, .to = 1},
         BASE_UNSUPPORTED,
         "version 9",
         true},
        {"version 9 at once",
         false,
         {.type = WIRE_HELLO, .version = 9, .request = 5},
         BASE_UNSUPPORTED,
         "version 9",
         true},
        {"critical flag",
         true,
         {.type = WIRE_PING, .flags = 0x9000, .request = 6},
         BASE_UNSUPPORTED,
         "0x1000",
         true},
        {"critical type",
         true,
         {.type = 77, .flags = 0x8000, .request = 7},
         BASE_UNSUPPORTED,
         "type 77",
         true},
        {"oversize", true, {.type = WIRE_MARK, .length = 65537}, BASE_TOO_LARGE, "65537", true},
        {"far oversize",
         true,
         {.type = WIRE_DATA, .to = 1, .length = UINT64_MAX},
         BASE_TOO_LARGE,
         "DATA",
         true},
        {"GET of no rows",
         true,
         {.type = WIRE_GET, .request = 8, .from = 3, .to = 3},
         BASE_CORRUPT,
         "[3, 3)",
         true},
        {"bad FAIL", true, {.type = WIRE_FAIL, .flags = 0xc000}, BASE_UNSUPPORTED, "FAIL", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check_refusal(&rows[i]);
}

static void events_may_refuse(void **state)
{
    (void)state;
    for (int where = 0; where < 2; where++) {
        struct end end;
        struct base_buffer out;
        struct base_error error = {0};
        base_buffer_init(&out);
        put_hello(&out);
        put_frame(&out, (struct wire_header){.type = WIRE_DATA, .to = 1, .length = 3}, "abc");
        end_init(&end);
        *(where ? &end.sink_code : &end.frame_code) = BASE_BUSY;
        assert_int_equal(feed(&end, out.bytes, out.size, &error), BASE_BUSY);
        assert_string_equal(error.text, where ? "no room" : "not now");
        assert_string_equal(end.seen, "HELLO(3) ");
        assert_int_equal(recv(end.peer, out.bytes, 1, MSG_DONTWAIT), -1); /* the owner says why, if anybody */
        base_buffer_fini(&out);
        end_fini(&end);
    }
}

static void bytes_in_place_may_be_refused(void **state)
{
    (void)state;
    struct end end;
    struct base_buffer out;
    struct base_error error = {0};
    base_buffer_init(&out);
    put_hello(&out);
    put_frame(&out, (struct wire_header){.type = WIRE_DATA, .to = 1, .length = 50000}, answer_bytes);
    end_init(&end);
    assert_int_equal(feed(&end, out.bytes, 20000, NULL), BASE_OK);
    assert_in_range(end.placed, 20000 - WIRE_RECEIVE_AHEAD_BYTES - 200, 20000);
    end.placed_code = BASE_CORRUPT;
    assert_int_equal(feed(&end, out.bytes + 20000, 20000, &error), BASE_CORRUPT);
    assert_string_equal(error.text, "row 0 differs");
    assert_string_equal(end.seen, "HELLO(3) ");
    base_buffer_fini(&out);
    end_fini(&end);
}

/* Reads that take more than the cache holds would make `placed` come too late for its purpose. */
static void large_payloads_come_in_strides(void **state)
{
    (void)state;
    struct end end = {.place = answer_bytes}; /* nothing is written there */
    struct wire_receive receive;
    struct base_buffer out;
    struct iovec iov[2];
    base_buffer_init(&out);
    put_hello(&out);
    put_frame(&out,
              (struct wire_header){.type = WIRE_DATA, .to = 1, .length = 2 * WIRE_RECEIVE_STRIDE_BYTES + 9},
              NULL);
    wire_receive_init(&receive, &events, &end);
    assert_int_equal(wire_receive_room(&receive, UINT64_MAX, iov), 1);
    memcpy(iov[0].iov_base, out.bytes, out.size);
    assert_int_equal(wire_receive_advance(&receive, out.size, NULL), BASE_OK);
    for (uint64_t stride = 1; stride <= 2; stride++) {
        assert_int_equal(wire_receive_room(&receive, UINT64_MAX, iov), 1);
        assert_int_equal(iov[0].iov_len, WIRE_RECEIVE_STRIDE_BYTES);
        assert_int_equal(wire_receive_advance(&receive, iov[0].iov_len, NULL), BASE_OK);
        assert_int_equal(end.placed, stride * WIRE_RECEIVE_STRIDE_BYTES);
    }
    assert_int_equal(wire_receive_room(&receive, UINT64_MAX, iov), 2); /* the end, and what comes behind it */
    assert_int_equal(iov[0].iov_len, 9);
    wire_receive_fini(&receive);
    base_buffer_fini(&out);
}

static void an_end_without_sink_takes_no_data(void **state)
{
    (void)state;
    struct wire_header rows[] = {{.type = WIRE_DATA, .to = 1, .length = 0},
                                 {.type = WIRE_PAGE, .flags = WIRE_FLAG_REPLY, .request = 1, .length = 9}};
    for (int i = 0; i < 2; i++) {
        int fds[2];
        struct end end;
        struct base_buffer out;
        struct base_error error = {0};
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
        end_init_with(&end, fds[0], fds[1], &events_without_sink);
        base_buffer_init(&out);
        put_hello(&out);
        put_frame(&out, rows[i], NULL);
        assert_int_equal(feed(&end, out.bytes, out.size, &error), BASE_CORRUPT);
        assert_non_null(strstr(error.text, "does not take"));
        base_buffer_fini(&out);
        end_fini(&end);
    }
}

/* A stream cut after any byte ends cleanly between frames only. */
static void cuts_are_told_from_ends(void **state)
{
    (void)state;
    struct base_buffer out;
    base_buffer_init(&out);
    put_hello(&out);
    put_frame(&out, (struct wire_header){.type = WIRE_MARK, .length = 12}, "twelve bytes");
    put_frame(&out, (struct wire_header){.type = WIRE_DATA, .to = 1, .length = 5}, "fives");
    for (size_t size = 0; size <= out.size; size++) {
        struct end end;
        struct base_error error = {0};
        end_init(&end);
        assert_int_equal(feed(&end, out.bytes, size, NULL), BASE_OK);
        close(end.peer);
        end.peer = -1;
        bool between = size == 0 || size == 67 || size == 67 + 76 || size == out.size;
        enum base_code code = wire_link_read(end.link, UINT64_MAX, &error);
        if (code != (between ? BASE_CLOSED : BASE_UNAVAILABLE) || !error.text[0])
            fail_msg("after %zu bytes: %s %s", size, base_error_name(code), error.text);
        if (size == out.size - 2)
            assert_string_equal(error.text, "cut inside a DATA frame, after 3 of 5 bytes");
        end_fini(&end);
    }
    base_buffer_fini(&out);
}

static void seeded_garbage_never_crashes(void **state)
{
    (void)state;
    uint64_t word = 1;
    for (int seed = 0; seed < 2000; seed++) {
        struct end end;
        struct base_buffer out;
        struct base_error error = {0};
        base_buffer_init(&out);
        put_hello(&out);
        for (int i = 0; i < 6; i++) {
            word = word * UINT64_C(6364136223846793005) + 1442695040888963407u;
            struct wire_header header = {.type = (uint8_t)(word >> 60), .request = word >> 50 & 1, .to = 1};
            header.length = word >> 40 & 255;
            put_frame(&out, header, answer_bytes);
        }
        word = word * UINT64_C(6364136223846793005) + 1442695040888963407u;
        out.bytes[(word >> 20) % out.size] ^= (uint8_t)(word >> 33);
        end_init(&end);
        enum base_code code = feed(&end, out.bytes, out.size, &error);
        assert_true(code == BASE_OK || error.text[0]);
        base_buffer_fini(&out);
        end_fini(&end);
    }
}

/* ---- sending ---- */

static void say_hello(struct end *a, struct end *b)
{
    assert_int_equal(wire_link_send(a->link, &(struct wire_header){.type = WIRE_HELLO}, "hi", 2, NULL),
                     BASE_OK);
    assert_int_equal(wire_link_read(b->link, UINT64_MAX, NULL), BASE_OK);
}

static void small_payloads_are_copied(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 256, 257, 65536};
    struct end a, b;
    ends_init(&a, &b);
    say_hello(&a, &b);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint8_t payload[65536];
        memset(payload, 'x', sizeof payload);
        struct wire_header header = {.type = WIRE_RETRY, .length = 999};
        assert_int_equal(wire_link_send(a.link, &header, payload, sizes[i], NULL), BASE_OK);
        memset(payload, 'y', sizeof payload);
        assert_int_equal(wire_link_read(b.link, UINT64_MAX, NULL), BASE_OK);
        if (sizes[i] && sizes[i] < sizeof b.text)
            assert_int_equal(b.text[sizes[i] - 1], 'x');
    }
    assert_string_equal(b.seen, "HELLO(2) RETRY(0) RETRY(1) RETRY(256) RETRY(257) RETRY(65536) ");
    end_fini(&a);
    end_fini(&b);
}

static void senseless_sends_are_refused(void **state)
{
    (void)state;
    struct end a, b;
    struct iovec iov[WIRE_LINK_PARTS_MAX + 1] = {0};
    struct base_error error = {0};
    ends_init(&a, &b);
    struct wire_header mark = {.type = WIRE_MARK}, data = {.type = WIRE_DATA, .to = 1};
    assert_int_equal(wire_link_send(a.link, &mark, answer_bytes, 65537, &error), BASE_INVALID);
    assert_int_equal(wire_link_send_parts(a.link, &data, iov, WIRE_LINK_PARTS_MAX + 1, 0, &error),
                     BASE_INVALID);
    assert_int_equal(wire_link_send_parts(a.link, &data, iov, -1, 0, &error), BASE_INVALID);
    iov[0].iov_len = (size_t)1 << 32;
    assert_int_equal(wire_link_send_parts(a.link, &data, iov, 1, 0, &error), BASE_INVALID);
    assert_true(wire_link_bytes_out(a.link) == 0);
    end_fini(&a);
    assert_int_equal(a.sent_done[0] + a.sent_lost[0], 0);
    end_fini(&b);
}

/* Queues DATA frames of 100 kB until the queue is full; returns how many were taken. */
static int fill_queue(struct end *end, enum base_code *code)
{
    struct wire_header header = {.type = WIRE_DATA, .to = 1};
    struct iovec iov = {.iov_base = answer_bytes, .iov_len = sizeof answer_bytes};
    for (int token = 0; token < TOKENS; token++) {
        *code = wire_link_send_parts(end->link, &header, &iov, 1, (uint64_t)token, NULL);
        if (*code != BASE_OK)
            return token;
    }
    return TOKENS;
}

static void assert_sent_once(const struct end *end, int taken)
{
    for (int token = 0; token < TOKENS; token++)
        assert_int_equal(end->sent_done[token] + end->sent_lost[token], token < taken);
}

static void the_queue_is_bounded(void **state)
{
    (void)state;
    struct end end;
    enum base_code code;
    end_init(&end);
    int taken = fill_queue(&end, &code);
    assert_int_equal(code, BASE_TOO_LARGE);
    assert_in_range(taken, 41, TOKENS - 1); /* 4 MiB and what the socket holds */
    assert_true(wire_link_wants_write(end.link));
    end_fini(&end);
    assert_sent_once(&end, taken);
    assert_true(end.sent_lost[taken - 1]);
}

static void a_frame_over_the_bound_goes_alone(void **state)
{
    (void)state;
    struct end end;
    end_init(&end);
    uint8_t *bytes = calloc(1, 5 << 20);
    struct iovec iov = {.iov_base = bytes, .iov_len = 5 << 20};
    struct wire_header header = {.type = WIRE_DATA, .to = 1}, ping = {.type = WIRE_PING};
    assert_int_equal(wire_link_send_parts(end.link, &header, &iov, 1, 0, NULL), BASE_OK);
    assert_int_equal(wire_link_send(end.link, &ping, NULL, 0, NULL), BASE_TOO_LARGE);
    end_fini(&end);
    assert_sent_once(&end, 1);
    free(bytes);
}

static void sent_comes_once_when_all_goes_well(void **state)
{
    (void)state;
    struct end a, b;
    enum base_code code;
    ends_init(&a, &b);
    say_hello(&a, &b);
    a.resend = true;
    int taken = fill_queue(&a, &code);
    for (int i = 0; i < 10000 && wire_link_wants_write(a.link); i++) {
        assert_int_equal(wire_link_read(b.link, UINT64_MAX, NULL), BASE_OK);
        assert_int_equal(wire_link_write(a.link, NULL), BASE_OK);
    }
    assert_int_equal(wire_link_read(b.link, UINT64_MAX, NULL), BASE_OK);
    assert_false(wire_link_wants_write(a.link));
    assert_sent_once(&a, taken);
    for (int token = 0; token < taken; token++)
        assert_int_equal(a.sent_done[token], 1);
    assert_non_null(strstr(b.seen, "PING(0)"));
    assert_true(wire_link_bytes_out(a.link) == wire_link_bytes_in(b.link));
    end_fini(&a);
    end_fini(&b);
}

/* The ways a connection dies with frames queued: each frame is told of once, and by nobody else than destroy or write. */
enum death {
    PEER_CLOSES,
    PEER_CLOSES_UNSEEN,
    PEER_STALLS,
    PEER_SENDS_GARBAGE,
    PEER_READS_SOME_AND_CLOSES,
    DEATHS
};

static void die(enum death death)
{
    struct end end;
    enum base_code code;
    uint8_t some[150000];
    end_init(&end);
    end.resend = true; /* a `sent` that sends must not revive it */
    int taken = fill_queue(&end, &code);
    if (death == PEER_READS_SOME_AND_CLOSES) {
        assert_true(recv(end.peer, some, sizeof some, 0) > 0);
        assert_int_equal(wire_link_write(end.link, NULL), BASE_OK);
    }
    if (death == PEER_SENDS_GARBAGE) {
        struct base_error error;
        memset(some, 'g', 64);
        assert_int_equal(feed(&end, some, 64, &error), BASE_CORRUPT);
    }
    if (death == PEER_CLOSES || death == PEER_CLOSES_UNSEEN || death == PEER_READS_SOME_AND_CLOSES) {
        close(end.peer);
        end.peer = -1;
    }
    if (death == PEER_CLOSES || death == PEER_READS_SOME_AND_CLOSES) {
        assert_int_equal(wire_link_write(end.link, NULL), BASE_UNAVAILABLE);
        assert_int_equal(wire_link_read(end.link, 1, NULL), BASE_UNAVAILABLE);
        assert_int_equal(wire_link_send(end.link, &(struct wire_header){.type = WIRE_PING}, NULL, 0, NULL),
                         BASE_CLOSED);
    }
    end_fini(&end);
    assert_sent_once(&end, taken);
    assert_int_equal(end.sent_lost[taken - 1], 1);
}

static void sent_comes_once_in_every_death(void **state)
{
    (void)state;
    for (enum death death = 0; death < DEATHS; death++)
        die(death);
}

static void answers_leave_when_the_read_ends(void **state)
{
    (void)state;
    struct end a, b;
    ends_init(&a, &b);
    b.echo = true;
    say_hello(&a, &b);
    assert_int_equal(wire_link_send(b.link, &(struct wire_header){.type = WIRE_HELLO}, NULL, 0, NULL),
                     BASE_OK);
    for (uint64_t request = 1; request <= 9; request++)
        assert_int_equal(wire_link_send(a.link,
                                        &(struct wire_header){.type = WIRE_GET, .request = request, .to = 1},
                                        "low-water...", 12, NULL),
                         BASE_OK);
    for (int i = 0; i < 1000 && !(i && !wire_link_wants_write(b.link)); i++) {
        assert_int_equal(i ? wire_link_write(b.link, NULL) : wire_link_read(b.link, UINT64_MAX, NULL),
                         BASE_OK);
        assert_int_equal(wire_link_read(a.link, UINT64_MAX, NULL), BASE_OK);
    }
    assert_int_equal(wire_link_read(a.link, UINT64_MAX, NULL), BASE_OK);
    assert_int_equal(a.last.request, 9);
    assert_memory_equal(a.place, answer_bytes, sizeof answer_bytes);
    for (int token = 1; token <= 9; token++)
        assert_int_equal(b.sent_done[token], 1);
    end_fini(&a);
    end_fini(&b);
}

static void held_frames_leave_together(void **state)
{
    (void)state;
    int fds[2];
    struct wire_link *link;
    uint8_t bytes[3 * WIRE_HEADER_BYTES];
    assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM, 0, fds), 0); /* one send, one datagram */
    struct wire_link_options options = {
        .fd = fds[0], .events = &events, .queue_max_bytes = 4096, .holds = true};
    assert_int_equal(wire_link_create(&link, &options, NULL), BASE_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(wire_link_send(link, &(struct wire_header){.type = WIRE_PING}, NULL, 0, NULL),
                         BASE_OK);
    assert_true(wire_link_wants_write(link));
    assert_int_equal(recv(fds[1], bytes, sizeof bytes, MSG_DONTWAIT), -1);
    assert_int_equal(wire_link_write(link, NULL), BASE_OK);
    assert_int_equal(recv(fds[1], bytes, sizeof bytes, MSG_DONTWAIT), 2 * WIRE_HEADER_BYTES);
    wire_link_destroy(link);
    close(fds[1]);
}

/* A sequenced packet a system call. */
static int packets(int fd, uint8_t *bytes, size_t size)
{
    int count = 0;
    while (recv(fd, bytes, size, MSG_DONTWAIT) > 0)
        count++;
    return count;
}

static void large_frames_are_not_held(void **state)
{
    (void)state;
    enum { LARGE = 100000 };
    int fds[2];
    struct end end = {0};
    uint8_t *bytes = calloc(1, LARGE);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds), 0);
    assert_int_equal(setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &(int){4 * LARGE}, sizeof(int)), 0);
    struct wire_link_options options = {
        .fd = fds[0], .events = &events, .context = &end, .queue_max_bytes = 4 * LARGE, .holds = true};
    assert_int_equal(wire_link_create(&end.link, &options, NULL), BASE_OK);
    struct wire_header get = {.type = WIRE_PING}, data = {.type = WIRE_DATA};
    assert_int_equal(wire_link_send(end.link, &get, NULL, 0, NULL), BASE_OK);
    assert_int_equal(packets(fds[1], bytes, LARGE), 0);
    struct iovec part = {bytes, LARGE};
    assert_int_equal(wire_link_send_parts(end.link, &data, &part, 1, 1, NULL), BASE_OK);
    assert_int_equal(packets(fds[1], bytes, LARGE), 1); /* and what was held went with it */
    assert_false(wire_link_wants_write(end.link));
    assert_int_equal(end.sent_done[1], 1);
    assert_int_equal(wire_link_send(end.link, &get, NULL, 0, NULL), BASE_OK);
    assert_int_equal(wire_link_read(end.link, 1, NULL),
                     BASE_OK); /* nothing came; what is held waits for write */
    assert_int_equal(packets(fds[1], bytes, LARGE), 0);
    assert_int_equal(wire_link_write(end.link, NULL), BASE_OK);
    assert_int_equal(packets(fds[1], bytes, LARGE), 1);
    wire_link_destroy(end.link);
    close(fds[1]);
    free(bytes);
}

/* However many there are, a read is a system call for 16 KiB of them; behind DATA, whose bytes have a place, it is less. */
static void small_frames_come_together(void **state)
{
    (void)state;
    struct end end = {.place = answer_bytes};
    struct wire_receive receive;
    struct base_buffer out;
    struct iovec iov[2];
    base_buffer_init(&out);
    put_hello(&out);
    for (int i = 0; i < 20; i++)
        put_frame(&out, (struct wire_header){.type = WIRE_GET, .request = 1, .to = 1, .length = 3}, "abc");
    put_frame(&out, (struct wire_header){.type = WIRE_DATA, .to = 1, .length = 9}, NULL);
    wire_receive_init(&receive, &events, &end);
    assert_int_equal(wire_receive_room(&receive, 1, iov), 1);
    assert_int_equal(iov[0].iov_len, WIRE_RECEIVE_AHEAD_BYTES);
    assert_int_equal(wire_receive_room(&receive, UINT64_MAX, iov), 1);
    assert_int_equal(iov[0].iov_len, WIRE_RECEIVE_BETWEEN_BYTES);
    memcpy(iov[0].iov_base, out.bytes, out.size);
    assert_int_equal(wire_receive_advance(&receive, out.size, NULL), BASE_OK);
    assert_int_equal(receive.frames, 21);
    assert_int_equal(wire_receive_room(&receive, UINT64_MAX, iov), 2);
    assert_int_equal(iov[0].iov_len, 9);
    assert_int_equal(iov[1].iov_len, WIRE_RECEIVE_AHEAD_BYTES);
    wire_receive_fini(&receive);
    base_buffer_fini(&out);
}

static int fill_answer(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof answer_bytes; i++)
        answer_bytes[i] = (uint8_t)(i * 31 >> 3);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_of_all_sizes_come),
        cmocka_unit_test(unknown_frames_are_skipped),
        cmocka_unit_test(reading_stops_at_its_budget),
        cmocka_unit_test(bad_frames_are_refused),
        cmocka_unit_test(events_may_refuse),
        cmocka_unit_test(bytes_in_place_may_be_refused),
        cmocka_unit_test(large_payloads_come_in_strides),
        cmocka_unit_test(an_end_without_sink_takes_no_data),
        cmocka_unit_test(cuts_are_told_from_ends),
        cmocka_unit_test(seeded_garbage_never_crashes),
        cmocka_unit_test(small_payloads_are_copied),
        cmocka_unit_test(senseless_sends_are_refused),
        cmocka_unit_test(the_queue_is_bounded),
        cmocka_unit_test(a_frame_over_the_bound_goes_alone),
        cmocka_unit_test(sent_comes_once_when_all_goes_well),
        cmocka_unit_test(sent_comes_once_in_every_death),
        cmocka_unit_test(answers_leave_when_the_read_ends),
        cmocka_unit_test(held_frames_leave_together),
        cmocka_unit_test(large_frames_are_not_held),
        cmocka_unit_test(small_frames_come_together),
    };
    return cmocka_run_group_tests(tests, fill_answer, NULL);
}
