/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>

#include <cmocka.h>

static void nests_and_commas(void **state)
{
    (void)state;
    struct base_buffer out;
    struct base_json json;
    base_buffer_init(&out);
    base_json_begin(&json, &out);
    base_json_object(&json, NULL);
    base_json_object(&json, "empty");
    base_json_object_end(&json);
    base_json_array(&json, "list");
    base_json_int(&json, NULL, INT64_MIN);
    base_json_uint(&json, NULL, UINT64_MAX);
    base_json_array(&json, NULL);
    base_json_array_end(&json);
    base_json_object(&json, NULL);
    base_json_bool(&json, "yes", true);
    base_json_bool(&json, "no", false);
    base_json_object_end(&json);
    base_json_array_end(&json);
    base_json_text(&json, "none", NULL);
    base_json_object_end(&json);
    assert_string_equal(base_buffer_text(&out),
                        "{\"empty\":{},\"list\":[-9223372036854775808,18446744073709551615,[],"
                        "{\"yes\":true,\"no\":false}],\"none\":null}");
    base_buffer_fini(&out);
}

static void texts(void **state)
{
    (void)state;
    static const struct {
        const char *text, *json;
    } rows[] = {
        {"", "\"\""},
        {"a\"b\\c/", "\"a\\\"b\\\\c/\""},
        {"\b\f\n\r\t", "\"\\b\\f\\n\\r\\t\""},
        {"\x01\x1f\x7f", "\"\\u0001\\u001f\x7f\""},
        {"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", "\"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\""},
        {"\xf4\x8f\xbf\xbf", "\"\xf4\x8f\xbf\xbf\""},
        /* not UTF-8: a lone byte, a cut sequence, overlong forms, a surrogate, beyond U+10FFFF */
        {"a\xff"
         "b",
         "\"a\xef\xbf\xbd"
         "b\""},
        {"\x80", "\"\xef\xbf\xbd\""},
        {"\xc3", "\"\xef\xbf\xbd\""},
        {"\xe2\x82", "\"\xef\xbf\xbd\xef\xbf\xbd\""},
        {"\xe2\x82\"", "\"\xef\xbf\xbd\xef\xbf\xbd\\\"\""},
        {"\xc0\xaf", "\"\xef\xbf\xbd\xef\xbf\xbd\""},
        {"\xe0\x80\xaf", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},
        {"\xed\xa0\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},
        {"\xf4\x90\x80\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct base_buffer out;
        struct base_json json;
        base_buffer_init(&out);
        base_json_begin(&json, &out);
        base_json_text(&json, NULL, rows[i].text);
        assert_string_equal(base_buffer_text(&out), rows[i].json);
        base_buffer_fini(&out);
    }
}

static void doubles(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *json;
    } rows[] = {
        {0, "0"},
        {0.1, "0.1"},
        {1.0 / 3, "0.33333333333333331"},
        {-2.5e-300, "-2.5e-300"},
        {NAN, "null"},
        {INFINITY, "null"},
        {-INFINITY, "null"},
        {1e22, "1e+22"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct base_buffer out;
        struct base_json json;
        base_buffer_init(&out);
        base_json_begin(&json, &out);
        base_json_double(&json, NULL, rows[i].value);
        assert_string_equal(base_buffer_text(&out), rows[i].json);
        base_buffer_fini(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nests_and_commas),
        cmocka_unit_test(texts),
        cmocka_unit_test(doubles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
