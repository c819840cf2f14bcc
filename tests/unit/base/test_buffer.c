/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buffer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void puts_are_little_endian(void **state)
{
    (void)state;
    struct base_buffer b;
    base_buffer_init(&b);
    base_buffer_put_u8(&b, 0x01);
    base_buffer_put_u16(&b, 0x0302);
    base_buffer_put_u32(&b, 0x07060504);
    base_buffer_put_u64(&b, UINT64_C(0x0f0e0d0c0b0a0908));
    base_buffer_put_text(&b, "hi");
    static const uint8_t expected[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 2, 0, 'h', 'i'};
    assert_false(b.failed);
    assert_int_equal(b.size, sizeof expected);
    assert_memory_equal(b.bytes, expected, sizeof expected);
    base_buffer_fini(&b);
}

static void what_was_put_is_read(void **state)
{
    (void)state;
    struct base_buffer b;
    base_buffer_init(&b);
    for (uint32_t i = 0; i < 1000; i++) {
        base_buffer_put_u32(&b, i * 2654435761u);
        base_buffer_put_text(&b, i % 2 ? "odd" : "");
        base_buffer_put_u64(&b, UINT64_MAX - i);
        base_buffer_put_u16(&b, (uint16_t)(65535 - i));
        base_buffer_put_u8(&b, (uint8_t)i);
    }
    struct base_reader r = base_reader_of(b.bytes, b.size);
    for (uint32_t i = 0; i < 1000; i++) {
        char text[4];
        assert_int_equal(base_reader_u32(&r), i * 2654435761u);
        base_reader_text(&r, text, sizeof text);
        assert_string_equal(text, i % 2 ? "odd" : "");
        assert_true(base_reader_u64(&r) == UINT64_MAX - i);
        assert_int_equal(base_reader_u16(&r), 65535 - i);
        assert_int_equal(base_reader_u8(&r), (uint8_t)i);
        assert_true(base_reader_done(&r) == (i == 999));
    }
    base_buffer_fini(&b);
}

static void printf_grows(void **state)
{
    (void)state;
    struct base_buffer b;
    base_buffer_init(&b);
    for (int i = 0; i < 500; i++)
        base_buffer_printf(&b, "%03d,", i);
    assert_int_equal(b.size, 2000);
    assert_int_equal(strlen(base_buffer_text(&b)), 2000);
    assert_string_equal(base_buffer_text(&b) + 1992, "498,499,");
    base_buffer_clear(&b);
    assert_string_equal(base_buffer_text(&b), "");
    base_buffer_fini(&b);
}

static void out_of_memory_sticks(void **state)
{
    (void)state;
    struct base_buffer b;
    base_buffer_init(&b);
    base_buffer_put_u8(&b, 7);
    assert_null(base_buffer_extend(&b, SIZE_MAX - 8));
    assert_true(b.failed);
    base_buffer_put_u32(&b, 1);
    base_buffer_printf(&b, "more");
    assert_int_equal(b.size, 1);
    assert_null(base_buffer_text(&b));
    base_buffer_fini(&b);
}

static void empty_extend_is_not_null(void **state)
{
    (void)state;
    struct base_buffer b;
    base_buffer_init(&b);
    assert_non_null(base_buffer_extend(&b, 0));
    assert_int_equal(b.size, 0);
    base_buffer_put(&b, NULL, 0);
    assert_false(b.failed);
    base_buffer_fini(&b);
}

static void long_text_is_cut(void **state)
{
    (void)state;
    char *text = malloc(70001);
    memset(text, 'x', 70000);
    text[70000] = 0;
    struct base_buffer b;
    base_buffer_init(&b);
    base_buffer_put_text(&b, text);
    assert_int_equal(b.size, 2 + 65535);
    base_buffer_fini(&b);
    free(text);
}

static void short_reads_fail_and_stay_failed(void **state)
{
    (void)state;
    static const uint8_t bytes[] = {1, 2, 3};
    struct base_reader r = base_reader_of(bytes, sizeof bytes);
    assert_int_equal(base_reader_u32(&r), 0);
    assert_true(r.failed);
    assert_int_equal(base_reader_u8(&r), 0); /* though a byte is there */
    assert_null(base_reader_view(&r, 1));
    assert_false(base_reader_done(&r));

    r = base_reader_of(bytes, sizeof bytes);
    assert_null(base_reader_view(&r, SIZE_MAX));
    r = base_reader_of(NULL, 0);
    assert_true(base_reader_done(&r));
    assert_non_null(base_reader_view(&r, 0));
    assert_int_equal(base_reader_u64(&r), 0);
    assert_true(r.failed);
}

static void bad_texts_fail(void **state)
{
    (void)state;
    static const struct {
        const char *what;
        uint8_t bytes[6];
        size_t size, capacity;
        bool fails;
        const char *text;
    } rows[] = {
        {"fits exactly", {3, 0, 'a', 'b', 'c'}, 5, 4, false, "abc"},
        {"one too long for the place", {4, 0, 'a', 'b', 'c', 'd'}, 6, 4, true, ""},
        {"length beyond the bytes", {9, 0, 'a', 'b', 'c', 'd'}, 6, 64, true, ""},
        {"half a length", {1}, 1, 64, true, ""},
        {"a zero byte inside", {3, 0, 'a', 0, 'c'}, 5, 64, true, ""},
        {"empty", {0, 0}, 2, 1, false, ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[64] = "before";
        struct base_reader r = base_reader_of(rows[i].bytes, rows[i].size);
        base_reader_text(&r, text, rows[i].capacity);
        if (r.failed != rows[i].fails || strcmp(text, rows[i].text) != 0)
            fail_msg("%s: failed=%d text=%s", rows[i].what, r.failed, text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(puts_are_little_endian),
        cmocka_unit_test(what_was_put_is_read),
        cmocka_unit_test(printf_grows),
        cmocka_unit_test(out_of_memory_sticks),
        cmocka_unit_test(empty_extend_is_not_null),
        cmocka_unit_test(long_text_is_cut),
        cmocka_unit_test(short_reads_fail_and_stay_failed),
        cmocka_unit_test(bad_texts_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
