/* SPDX-License-Identifier: Apache-2.0 */
/* Random parts of random blocks through two links with a relay between them that cuts the bytes anywhere. */
#include "proto/wire/link.h"

#include "base/buffer.h"
#include "base/clock.h"
#include "tests/unit/wire/random_block.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { PARTS = 6 };

/* What is asked for, and what came. */
struct part {
    uint8_t wanted;
    uint32_t from, to;
    int sent_count, sent_field[SCHEDULER_PIPELINE_FIELDS];
    struct scheduler_field sent[SCHEDULER_PIPELINE_FIELDS];
    uint8_t *scratch;
    uint8_t *head, *lengths[SCHEDULER_PIPELINE_FIELDS], *values[SCHEDULER_PIPELINE_FIELDS];
    int run_count;
    struct wire_part_run runs[WIRE_PART_RUNS];
    bool came;
    int freed; /* times that `sent` was called */
};

struct test {
    struct random_block block;
    struct part parts[PARTS];
    struct wire_link *sender, *receiver;
    int ends[4]; /* sender 0-1 relay 2-3 receiver */
    int came;
};

static enum base_code place_run(struct test *test, struct part *part, uint64_t offset, struct iovec *into)
{
    for (int i = 0; i < part->run_count; i++) {
        const struct wire_part_run *run = &part->runs[i];
        if (offset < run->offset || offset >= run->offset + run->size)
            continue;
        uint8_t **where = run->is_lengths ? part->lengths : part->values;
        if (!where[run->sent_index])
            where[run->sent_index] = malloc(run->size);
        uint64_t left = run->offset + run->size - offset;
        into->iov_base = where[run->sent_index] + (offset - run->offset);
        into->iov_len =
            random_below(&test->block.state, 3) ? left : 1 + random_below(&test->block.state, left);
        return BASE_OK;
    }
    return BASE_INTERNAL;
}

static enum base_code sink(void *context, const struct wire_header *header, uint64_t offset,
                           struct iovec *into, struct base_error *error)
{
    struct test *test = context;
    struct part *part = &test->parts[header->request - 1];
    uint32_t rows = (uint32_t)(header->to - header->from);
    size_t head_bytes = wire_part_head_bytes(part->sent_count, rows);
    if (offset == 0)
        part->head = malloc(head_bytes);
    if (offset < head_bytes) {
        *into = (struct iovec){.iov_base = part->head + offset, .iov_len = head_bytes - offset};
        return BASE_OK;
    }
    struct wire_part_head head = wire_part_head_view(part->head, part->sent_count, rows);
    if (offset == head_bytes) {
        enum base_code code = wire_part_check(&head, part->sent, header->length, error);
        if (code != BASE_OK)
            return code;
        part->run_count = wire_part_runs(&head, part->sent, part->runs);
    }
    return place_run(test, part, offset, into);
}

static enum base_code frame(void *context, const struct wire_header *header, const uint8_t *payload,
                            struct base_error *error)
{
    (void)error;
    struct test *test = context;
    if (header->type != WIRE_DATA)
        return BASE_OK;
    assert_null(payload);
    test->parts[header->request - 1].came = true;
    test->came++;
    return BASE_OK;
}

static void sent(void *context, uint64_t token, bool done)
{
    struct test *test = context;
    assert_true(done);
    assert_int_equal(test->parts[token].freed++, 0);
}

static const struct wire_link_events events = {.sink = sink, .frame = frame, .sent = sent};

static struct wire_link *make_link(struct test *test, int fd)
{
    struct wire_link *link;
    struct wire_link_options options = {
        .fd = fd, .events = &events, .context = test, .queue_max_bytes = 1 << 30};
    assert_int_equal(wire_link_create(&link, &options, NULL), BASE_OK);
    return link;
}

static void ask_part(struct test *test, struct part *part)
{
    struct random_block *b = &test->block;
    part->wanted = (uint8_t)(1 + random_below(&b->state, (1u << b->field_count) - 1));
    part->from = (uint32_t)random_below(&b->state, b->layout.rows);
    part->to = part->from + 1 + (uint32_t)random_below(&b->state, b->layout.rows - part->from);
    part->sent_count = random_block_sent(b, part->wanted, part->sent, part->sent_field);
}

static void send_part(struct test *test, uint64_t token)
{
    struct part *part = &test->parts[token];
    struct random_block *b = &test->block;
    struct iovec iov[WIRE_PART_IOVECS];
    uint64_t length;
    part->scratch = malloc(wire_part_scratch_bytes(&b->layout, part->wanted, part->to - part->from));
    int count = wire_part_gather(&b->layout, b->block, &(struct wire_cut){part->wanted, part->from, part->to},
                                 part->scratch, iov, &length);
    struct wire_header header = {
        .type = WIRE_DATA, .request = token + 1, .from = (uint16_t)part->from, .to = (uint16_t)part->to};
    assert_int_equal(wire_link_send_parts(test->sender, &header, iov, count, token, NULL), BASE_OK);
}

/* Carries at most `most` bytes from fd 1 to fd 2. */
static void relay(struct test *test, size_t most)
{
    uint8_t bytes[8192];
    ssize_t size = recv(test->ends[1], bytes, most, MSG_DONTWAIT);
    for (ssize_t at = 0; at < size;) {
        ssize_t put = send(test->ends[2], bytes + at, (size_t)(size - at), MSG_DONTWAIT);
        if (put > 0)
            at += put;
        else
            assert_int_equal(wire_link_read(test->receiver, UINT64_MAX, NULL), BASE_OK);
    }
}

static void pump(struct test *test)
{
    int64_t deadline_ns = base_clock_deadline_ns(20000);
    static const size_t chunks[] = {1, 7, 63, 64, 65, 500, 4096, 8192};
    size_t most = chunks[random_below(&test->block.state, 8)];
    while (test->came < PARTS) {
        assert_true(base_clock_now_ns() < deadline_ns);
        assert_int_equal(wire_link_write(test->sender, NULL), BASE_OK);
        for (int i = 0; i < 8; i++)
            relay(test, 1 + random_below(&test->block.state, most));
        assert_int_equal(wire_link_read(test->receiver, 1 + random_below(&test->block.state, 20000), NULL),
                         BASE_OK);
    }
    assert_false(wire_link_wants_write(test->sender));
    assert_true(wire_link_bytes_out(test->sender) == wire_link_bytes_in(test->receiver));
}

static void compare_part(struct test *test, struct part *part)
{
    struct random_block *b = &test->block;
    struct wire_part_head head = wire_part_head_view(part->head, part->sent_count, part->to - part->from);
    assert_true(part->came);
    assert_int_equal(part->freed, 1);
    for (int s = 0; s < part->sent_count; s++) {
        const struct scheduler_field *field = &part->sent[s];
        if (field->ragged)
            assert_int_equal(wire_part_check_lengths(&head, part->sent, s, part->lengths[s], NULL), BASE_OK);
        size_t at = 0;
        for (uint32_t i = 0; i < head.rows; i++) {
            uint32_t size = b->sizes[part->from + i][part->sent_field[s]];
            const uint8_t *values = part->values[s] ? part->values[s] + at : (const uint8_t *)"";
            if (field->ragged)
                assert_int_equal(base_get_u32(part->lengths[s] + 4 * i) * scheduler_dtype_bytes(field->dtype),
                                 size);
            assert_memory_equal(values, b->values[part->from + i][part->sent_field[s]], size);
            assert_true(wire_part_verify_field(&head, i, s, values, size));
            at += size;
        }
    }
    for (uint32_t i = 0; i < head.rows; i++) {
        uint8_t row[WIRE_ROW_BYTES];
        wire_row_write(&b->rows[part->from + i], row);
        assert_memory_equal(head.row_table + i * WIRE_ROW_BYTES, row, sizeof row);
        if (part->sent_count == b->field_count)
            assert_true(wire_part_verify_row(&head, i));
    }
}

static void run_seed(uint64_t seed)
{
    struct test *test = calloc(1, sizeof *test);
    random_block_init(&test->block, seed);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, test->ends), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, test->ends + 2), 0);
    if (seed % 2)
        setsockopt(test->ends[0], SOL_SOCKET, SO_SNDBUF, &(int){1},
                   sizeof(int)); /* the least: partial writes */
    test->sender = make_link(test, test->ends[0]);
    test->receiver = make_link(test, test->ends[3]);
    assert_int_equal(wire_link_send(test->sender, &(struct wire_header){.type = WIRE_HELLO}, NULL, 0, NULL),
                     BASE_OK);
    for (uint64_t i = 0; i < PARTS; i++) {
        ask_part(test, &test->parts[i]);
        send_part(test, i);
    }
    pump(test);
    for (int i = 0; i < PARTS; i++) {
        struct part *part = &test->parts[i];
        compare_part(test, part);
        free(part->scratch);
        free(part->head);
        for (int s = 0; s < SCHEDULER_PIPELINE_FIELDS; s++) {
            free(part->lengths[s]);
            free(part->values[s]);
        }
    }
    wire_link_destroy(test->sender);
    wire_link_destroy(test->receiver);
    close(test->ends[1]);
    close(test->ends[2]);
    random_block_fini(&test->block);
    free(test);
}

static void parts_come_through_however_the_bytes_are_cut(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 120; seed++)
        run_seed(seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(parts_come_through_however_the_bytes_are_cut)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
