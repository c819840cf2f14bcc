/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <regex.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static int ends[2];

static int open_pipe(void **state)
{
    (void)state;
    return pipe(ends);
}

static int close_pipe(void **state)
{
    (void)state;
    return close(ends[0]) | close(ends[1]);
}

/* What was logged since the last call: one read, so it also shows that a line is one write. */
static const char *logged(char line[8192])
{
    ssize_t size = read(ends[0], line, 8191);
    line[size < 0 ? 0 : size] = 0;
    return line;
}

static void assert_matches(const char *text, const char *pattern)
{
    regex_t regex;
    assert_int_equal(regcomp(&regex, pattern, REG_EXTENDED | REG_NOSUB), 0);
    int miss = regexec(&regex, text, 0, NULL, 0);
    regfree(&regex);
    if (miss)
        fail_msg("%s does not match %s", text, pattern);
}

static void one_logfmt_line(void **state)
{
    (void)state;
    char line[8192];
    base_log_start("worker", ends[1], BASE_LOG_INFO);
    base_log(BASE_LOG_DEBUG, "hidden", "a=%d", 1);
    base_log(BASE_LOG_INFO, "block_made", "stream=%s block=%d", "ab12", 3);
    assert_matches(logged(line), "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\\.[0-9]{3}Z level=info prog=worker "
                                 "id=block_made stream=ab12 block=3\n$");
    base_log(BASE_LOG_ERROR, "bare", "%s", "");
    assert_matches(logged(line), " level=error prog=worker id=bare\n$");
}

static void long_lines_are_cut_and_still_end(void **state)
{
    (void)state;
    char line[8192], text[6000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    base_log_start("worker", ends[1], BASE_LOG_INFO);
    base_log(BASE_LOG_WARN, "long", "text=%s", text);
    logged(line);
    assert_int_equal(strlen(line), 4096);
    assert_int_equal(line[4095], '\n');
    base_log(BASE_LOG_WARN, text, "a=1");
    logged(line);
    assert_int_equal(line[strlen(line) - 1], '\n');
}

static void quotes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t bytes;
        const char *quoted;
    } rows[] = {
        {"plain", 64, "\"plain\""},
        {"", 64, "\"\""},
        {"a \"b\" \\", 64, "\"a \\\"b\\\" \\\\\""},
        {"line\nfeed\x01\x7f", 64, "\"line\\nfeed\\x01\\x7f\""},
        {"\xc3\xa9", 64, "\"\xc3\xa9\""},
        {"abcdef", 6, "\"abc\""},
        {"ab\n", 6, "\"ab\""},
        {"abc", 3, "\"\""},
        {"abc", 2, ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char out[64] = "before";
        assert_ptr_equal(base_log_quote(rows[i].text, out, rows[i].bytes), out);
        assert_string_equal(out, rows[i].quoted);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(one_logfmt_line, open_pipe, close_pipe),
        cmocka_unit_test_setup_teardown(long_lines_are_cut_and_still_end, open_pipe, close_pipe),
        cmocka_unit_test(quotes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
