/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/wire/messages.h"

#include "proto/wire/header.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct wire_hello hello_sample = {
    .version_min = 1, .version_max = 3, .features = 5, .token = "job.17.abcd", .name = "trainer at host"};

static const struct wire_open open_sample = {.stream = {1, 2, 3},
                                             .fingerprint = {9, 8},
                                             .job = "run-1",
                                             .rank = 2,
                                             .field_count = 2,
                                             .fields = {"image", "label"}};

static const struct wire_opened opened_sample = {
    .requests_max = 64,
    .block_rows = 8,
    .field_count = 3,
    .fields =
        {
            {.name = "image", .dtype = SCHEDULER_U8, .rank = 3, .dims = {224, 224, 3}, .max_bytes = 150528},
            {.name = "label", .dtype = SCHEDULER_I64, .max_bytes = 8},
            {.name = "boxes",
             .dtype = SCHEDULER_F32,
             .rank = 1,
             .dims = {-1},
             .ragged = true,
             .max_bytes = 4096},
        },
    .wanted = 0x5,
};

/* Every prefix of a good payload is CORRUPT, and so is one byte more. Each is its own allocation, so that a sanitizer
 * sees a read past it. */
typedef enum base_code (*reader)(const uint8_t *bytes, size_t size, struct base_error *error);

static void assert_exact(const struct base_buffer *good, reader read)
{
    for (size_t size = 0; size <= good->size + 1; size++) {
        uint8_t *bytes = calloc(1, size ? size : 1);
        memcpy(bytes, good->bytes, size < good->size ? size : good->size);
        struct base_error error = {0};
        enum base_code code = read(bytes, size, &error);
        if (code != (size == good->size ? BASE_OK : BASE_CORRUPT) || (code != BASE_OK && !error.text[0]))
            fail_msg("%zu of %zu bytes: %s %s", size, good->size, base_error_name(code), error.text);
        free(bytes);
    }
}

static enum base_code read_hello(const uint8_t *bytes, size_t size, struct base_error *error)
{
    struct wire_hello hello;
    return wire_hello_read(bytes, size, &hello, error);
}

static enum base_code read_open(const uint8_t *bytes, size_t size, struct base_error *error)
{
    struct wire_open open;
    return wire_open_read(bytes, size, &open, error);
}

static enum base_code read_opened(const uint8_t *bytes, size_t size, struct base_error *error)
{
    struct wire_opened opened;
    return wire_opened_read(bytes, size, &opened, error);
}

static enum base_code read_mark(const uint8_t *bytes, size_t size, struct base_error *error)
{
    struct wire_mark mark;
    return wire_mark_read(bytes, size, &mark, error);
}

static enum base_code read_moved(const uint8_t *bytes, size_t size, struct base_error *error)
{
    uint64_t worker;
    return wire_moved_read(bytes, size, &worker, error);
}

static void hello_round_trips(void **state)
{
    (void)state;
    struct base_buffer out;
    struct wire_hello hello;
    base_buffer_init(&out);
    wire_hello_write(&hello_sample, &out);
    assert_int_equal(wire_hello_read(out.bytes, out.size, &hello, NULL), BASE_OK);
    assert_int_equal(hello.version_min, 1);
    assert_int_equal(hello.version_max, 3);
    assert_int_equal(hello.features, 5);
    assert_string_equal(hello.token, hello_sample.token);
    assert_string_equal(hello.name, hello_sample.name);
    assert_exact(&out, read_hello);
    base_buffer_fini(&out);
}

static void versions_agree_on_the_highest_both_speak(void **state)
{
    (void)state;
    static const struct {
        uint16_t a_min, a_max, b_min, b_max, agreed;
    } rows[] = {{1, 1, 1, 1, 1}, {1, 2, 2, 3, 2}, {2, 3, 1, 2, 2},
                {1, 5, 2, 3, 3}, {1, 1, 2, 2, 0}, {4, 9, 1, 3, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct wire_hello a = {.version_min = rows[i].a_min, .version_max = rows[i].a_max};
        struct wire_hello b = {.version_min = rows[i].b_min, .version_max = rows[i].b_max};
        assert_int_equal(wire_hello_agree(&a, &b), rows[i].agreed);
        assert_int_equal(wire_hello_agree(&b, &a), rows[i].agreed);
    }
}

static void bad_hellos_fail(void **state)
{
    (void)state;
    struct wire_hello rows[] = {
        {.version_min = 0, .version_max = 1},
        {.version_min = 3, .version_max = 2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct base_buffer out;
        base_buffer_init(&out);
        wire_hello_write(&rows[i], &out);
        assert_int_equal(read_hello(out.bytes, out.size, NULL), BASE_CORRUPT);
        base_buffer_fini(&out);
    }
    struct base_buffer out;
    base_buffer_init(&out);
    char token[WIRE_TOKEN_CHARS + 1];
    memset(token, 'x', sizeof token);
    token[WIRE_TOKEN_CHARS] = 0;
    base_buffer_put_u32(&out, 0x00010001);
    base_buffer_put_u64(&out, 0);
    base_buffer_put_text(&out, token);
    base_buffer_put_text(&out, "");
    assert_int_equal(read_hello(out.bytes, out.size, NULL), BASE_CORRUPT);
    base_buffer_fini(&out);
}

static void open_round_trips(void **state)
{
    (void)state;
    struct base_buffer out;
    struct wire_open open;
    base_buffer_init(&out);
    wire_open_write(&open_sample, &out);
    assert_int_equal(wire_open_read(out.bytes, out.size, &open, NULL), BASE_OK);
    assert_memory_equal(open.stream, open_sample.stream, sizeof open.stream);
    assert_memory_equal(open.fingerprint, open_sample.fingerprint, sizeof open.fingerprint);
    assert_string_equal(open.job, "run-1");
    assert_int_equal(open.rank, 2);
    assert_int_equal(open.field_count, 2);
    assert_string_equal(open.fields[1], "label");
    assert_exact(&out, read_open);
    base_buffer_fini(&out);
}

static void bad_opens_fail(void **state)
{
    (void)state;
    static const struct {
        const char *what;
        int count;
        const char *fields[3], *text;
    } rows[] = {
        {"no fields", 0, {NULL}, "no fields"},
        {"too many fields", WIRE_FIELDS_MAX + 1, {NULL}, "more than 8"},
        {"one field twice", 2, {"image", "image"}, "\"image\" twice"},
        {"a name too long", 1, {"a-name-of-twenty-four-ch"}, "does not fit"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct base_buffer out;
        struct base_error error = {0};
        base_buffer_init(&out);
        base_buffer_extend(&out, 48);
        memset(out.bytes, 1, 48);
        base_buffer_put_text(&out, "job");
        base_buffer_put_u32(&out, 0);
        base_buffer_put_u8(&out, (uint8_t)rows[i].count);
        for (int f = 0; f < rows[i].count; f++)
            base_buffer_put_text(&out, rows[i].fields[0] ? rows[i].fields[f] : "x");
        enum base_code code = read_open(out.bytes, out.size, &error);
        if (code != BASE_CORRUPT || !strstr(error.text, rows[i].text))
            fail_msg("%s: %s %s", rows[i].what, base_error_name(code), error.text);
        base_buffer_fini(&out);
    }
}

static void opened_round_trips(void **state)
{
    (void)state;
    struct base_buffer out;
    struct wire_opened opened;
    base_buffer_init(&out);
    wire_opened_write(&opened_sample, &out);
    assert_int_equal(wire_opened_read(out.bytes, out.size, &opened, NULL), BASE_OK);
    assert_int_equal(opened.requests_max, 64);
    assert_int_equal(opened.block_rows, 8);
    assert_int_equal(opened.field_count, 3);
    assert_int_equal(opened.wanted, 5);
    for (int i = 0; i < 3; i++) {
        const struct scheduler_field *a = &opened.fields[i], *b = &opened_sample.fields[i];
        assert_string_equal(a->name, b->name);
        assert_int_equal(a->dtype, b->dtype);
        assert_int_equal(a->rank, b->rank);
        assert_memory_equal(a->dims, b->dims, sizeof a->dims);
        assert_int_equal(a->ragged, b->ragged);
        assert_int_equal(a->max_bytes, b->max_bytes);
    }
    assert_exact(&out, read_opened);
    base_buffer_fini(&out);
}

static void no_requests(struct wire_opened *o)
{
    o->requests_max = 0;
}
static void no_rows(struct wire_opened *o)
{
    o->block_rows = 0;
}
static void three_rows(struct wire_opened *o)
{
    o->block_rows = 3;
}
static void many_rows(struct wire_opened *o)
{
    o->block_rows = 512;
}
static void none_sent(struct wire_opened *o)
{
    o->wanted = 0;
}
static void fourth_sent(struct wire_opened *o)
{
    o->wanted = 8;
}
static void no_fields(struct wire_opened *o)
{
    o->field_count = 0;
}
static void dtype_0(struct wire_opened *o)
{
    o->fields[0].dtype = (enum scheduler_dtype)0;
}
static void dtype_7(struct wire_opened *o)
{
    o->fields[0].dtype = (enum scheduler_dtype)7;
}
static void wrong_size(struct wire_opened *o)
{
    o->fields[0].max_bytes--;
}
static void dim_0(struct wire_opened *o)
{
    o->fields[0].dims[1] = 0;
}
static void dim_negative(struct wire_opened *o)
{
    o->fields[0].dims[0] = -1;
}
static void dims_wrap(struct wire_opened *o)
{
    o->fields[0].dims[0] = o->fields[0].dims[1] = INT64_C(1) << 32;
    o->fields[0].max_bytes = 0;
}
static void no_name(struct wire_opened *o)
{
    o->fields[1].name[0] = 0;
}
static void same_name(struct wire_opened *o)
{
    strcpy(o->fields[1].name, "image");
}
static void ragged_part(struct wire_opened *o)
{
    o->fields[2].max_bytes = 4097;
}
static void ragged_empty(struct wire_opened *o)
{
    o->fields[2].max_bytes = 0;
}
static void ragged_fixed(struct wire_opened *o)
{
    o->fields[2].dims[0] = 1024;
}
static void ragged_rank(struct wire_opened *o)
{
    o->fields[2].rank = 2;
}
static void block_huge(struct wire_opened *o)
{
    o->block_rows = 256;
    o->fields[2].max_bytes = UINT64_C(1) << 30;
}

static void bad_answers_to_open_fail(void **state)
{
    (void)state;
#define ROW(change, code, text)                                                                              \
    {                                                                                                        \
#change, change, code, text                                                                          \
    }
    static const struct {
        const char *what;
        void (*change)(struct wire_opened *);
        enum base_code code;
        const char *text;
    } rows[] = {
        ROW(no_requests, BASE_CORRUPT, "no requests"),
        ROW(no_rows, BASE_CORRUPT, "blocks of 0 rows"),
        ROW(three_rows, BASE_CORRUPT, "blocks of 3 rows"),
        ROW(many_rows, BASE_CORRUPT, "blocks of 512 rows"),
        ROW(none_sent, BASE_CORRUPT, "0x00"),
        ROW(fourth_sent, BASE_CORRUPT, "0x08 of 3"),
        ROW(no_fields, BASE_CORRUPT, "no fields"),
        ROW(dtype_0, BASE_CORRUPT, ""),
        ROW(dtype_7, BASE_CORRUPT, ""),
        ROW(wrong_size, BASE_CORRUPT, "\"image\""),
        ROW(dim_0, BASE_CORRUPT, "\"image\""),
        ROW(dim_negative, BASE_CORRUPT, "\"image\""),
        ROW(dims_wrap, BASE_CORRUPT, "\"image\""),
        ROW(no_name, BASE_CORRUPT, "\"\""),
        ROW(same_name, BASE_CORRUPT, "\"image\" twice"),
        ROW(ragged_part, BASE_CORRUPT, "\"boxes\""),
        ROW(ragged_empty, BASE_CORRUPT, "\"boxes\""),
        ROW(ragged_fixed, BASE_CORRUPT, "\"boxes\""),
        ROW(ragged_rank, BASE_CORRUPT, "\"boxes\""),
        ROW(block_huge, BASE_TOO_LARGE, "over 2147483648"),
    };
#undef ROW
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct wire_opened opened = opened_sample;
        struct base_error error = {0};
        struct base_buffer out;
        base_buffer_init(&out);
        rows[i].change(&opened);
        wire_opened_write(&opened, &out);
        enum base_code code = read_opened(out.bytes, out.size, &error);
        if (code != rows[i].code || !strstr(error.text, rows[i].text))
            fail_msg("%s: %s %s", rows[i].what, base_error_name(code), error.text);
        base_buffer_fini(&out);
    }
}

static void mark_and_moved_round_trip(void **state)
{
    (void)state;
    struct base_buffer out;
    struct wire_mark mark = {.epoch = 4, .position = UINT64_C(1) << 40}, again;
    uint64_t worker;
    base_buffer_init(&out);
    wire_mark_write(&mark, &out);
    assert_int_equal(wire_mark_read(out.bytes, out.size, &again, NULL), BASE_OK);
    assert_int_equal(again.epoch, 4);
    assert_true(again.position == mark.position);
    assert_exact(&out, read_mark);

    base_buffer_clear(&out);
    wire_moved_write(77, &out);
    assert_int_equal(wire_moved_read(out.bytes, out.size, &worker, NULL), BASE_OK);
    assert_int_equal(worker, 77);
    assert_exact(&out, read_moved);

    base_buffer_clear(&out);
    wire_moved_write(0, &out);
    assert_int_equal(read_moved(out.bytes, out.size, NULL), BASE_CORRUPT);
    base_buffer_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hello_round_trips),
        cmocka_unit_test(versions_agree_on_the_highest_both_speak),
        cmocka_unit_test(bad_hellos_fail),
        cmocka_unit_test(open_round_trips),
        cmocka_unit_test(bad_opens_fail),
        cmocka_unit_test(opened_round_trips),
        cmocka_unit_test(bad_answers_to_open_fail),
        cmocka_unit_test(mark_and_moved_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
