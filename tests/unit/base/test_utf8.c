/* SPDX-License-Identifier: Apache-2.0 */
#include "base/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void valid_and_not(void **state)
{
    (void)state;
    static const struct {
        const char *text, *escaped; /* NULL: valid */
    } rows[] = {
        {"", NULL},
        {"plain", NULL},
        {"p\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", NULL},
        {"\xf4\x8f\xbf\xbf", NULL},
        {"p\xe9", "p\\xe9"},
        {"cut \xe2\x82", "cut \\xe2\\x82"},
        {"\xc0\xaf", "\\xc0\\xaf"},                   /* overlong */
        {"\xed\xa0\x80", "\\xed\\xa0\\x80"},          /* surrogate */
        {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"}, /* over U+10FFFF */
        {"\xff\xc3\xa9\xfe", "\\xff\xc3\xa9\\xfe"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct base_buffer out;
        base_buffer_init(&out);
        base_utf8_put(&out, rows[i].text);
        assert_int_equal(base_utf8_is_valid(rows[i].text), !rows[i].escaped);
        assert_string_equal(base_buffer_text(&out), rows[i].escaped ? rows[i].escaped : rows[i].text);
        assert_true(base_utf8_is_valid(base_buffer_text(&out)));
        base_buffer_fini(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(valid_and_not)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
