/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* Numbers and names are on the wire, in logs and in public headers: they are written out here a second time.
 */
static void table(void **state)
{
    (void)state;
    static const struct {
        int number;
        const char *name;
        enum base_class class;
    } rows[] = {
        {0, "ok", BASE_CLASS_OK},
        {1, "invalid", BASE_CLASS_PERMANENT},
        {2, "not_found", BASE_CLASS_PERMANENT},
        {3, "exists", BASE_CLASS_PERMANENT},
        {4, "refused", BASE_CLASS_PERMANENT},
        {5, "corrupt", BASE_CLASS_PERMANENT},
        {6, "unsupported", BASE_CLASS_PERMANENT},
        {7, "too_large", BASE_CLASS_PERMANENT},
        {8, "conflict", BASE_CLASS_PERMANENT},
        {9, "internal", BASE_CLASS_PERMANENT},
        {32, "unavailable", BASE_CLASS_RETRYABLE},
        {33, "timeout", BASE_CLASS_RETRYABLE},
        {34, "busy", BASE_CLASS_RETRYABLE},
        {35, "no_memory", BASE_CLASS_RETRYABLE},
        {36, "io", BASE_CLASS_RETRYABLE},
        {37, "closed", BASE_CLASS_RETRYABLE},
        {38, "cancelled", BASE_CLASS_RETRYABLE},
        {64, "bad_sample", BASE_CLASS_BAD_SAMPLE},
    };
    size_t known = 0;
    for (int number = 0; number < 256; number++)
        known += strcmp(base_error_name((enum base_code)number), "unknown") != 0;
    assert_int_equal(known, sizeof rows / sizeof *rows);
    for (size_t i = 0; i < known; i++) {
        enum base_code code = (enum base_code)rows[i].number;
        assert_string_equal(base_error_name(code), rows[i].name);
        assert_int_equal(base_error_class(code), rows[i].class);
    }
}

static void set_and_prefix(void **state)
{
    (void)state;
    struct base_error error;
    assert_int_equal(base_error_set(&error, BASE_CORRUPT, "frame %d", 7), BASE_CORRUPT);
    assert_int_equal(error.code, BASE_CORRUPT);
    assert_string_equal(error.text, "frame 7");
    assert_int_equal(base_error_prefix(&error, BASE_CORRUPT, "peer %s", "a:1"), BASE_CORRUPT);
    assert_string_equal(error.text, "peer a:1: frame 7");
    assert_int_equal(base_error_set(NULL, BASE_BUSY, "%s", "x"), BASE_BUSY);
    assert_int_equal(base_error_prefix(NULL, BASE_BUSY, "%s", "x"), BASE_BUSY);
    assert_int_equal(base_error_errno(NULL, ENOENT, "%s", "x"), BASE_NOT_FOUND);
}

static void long_text_is_cut(void **state)
{
    (void)state;
    struct base_error error;
    char text[2000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    base_error_set(&error, BASE_IO, "%s", text);
    assert_int_equal(strlen(error.text), BASE_ERROR_TEXT_BYTES - 1);
    base_error_prefix(&error, BASE_IO, "%s", "front");
    assert_memory_equal(error.text, "front: xxx", 10);
    assert_int_equal(strlen(error.text), BASE_ERROR_TEXT_BYTES - 1);
    base_error_prefix(&error, BASE_IO, "%s", text);
    base_error_errno(&error, ENOENT, "%s", text);
    assert_int_equal(strlen(error.text), BASE_ERROR_TEXT_BYTES - 1);
}

static void errnos(void **state)
{
    (void)state;
    static const struct {
        int number;
        enum base_code code;
    } rows[] = {
        {ENOMEM, BASE_NO_MEMORY},       {EACCES, BASE_REFUSED},    {ENOENT, BASE_NOT_FOUND},
        {EEXIST, BASE_EXISTS},          {ETIMEDOUT, BASE_TIMEOUT}, {ECONNREFUSED, BASE_UNAVAILABLE},
        {ECONNRESET, BASE_UNAVAILABLE}, {EPIPE, BASE_UNAVAILABLE}, {EIO, BASE_IO},
        {ENOTDIR, BASE_NOT_FOUND},      {EADDRINUSE, BASE_IO},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct base_error error;
        assert_int_equal(base_error_errno(&error, rows[i].number, "open %s", "f"), rows[i].code);
        assert_int_equal(error.code, rows[i].code);
        assert_memory_equal(error.text, "open f: ", 8);
        assert_string_equal(error.text + 8, strerror(rows[i].number));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table),
        cmocka_unit_test(set_and_prefix),
        cmocka_unit_test(long_text_is_cut),
        cmocka_unit_test(errnos),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
