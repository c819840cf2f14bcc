/* SPDX-License-Identifier: Apache-2.0 */
#include "base/options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct values {
    const char *out, *state;
    bool json;
    int64_t workers, any;
    uint64_t staging;
    struct base_option_list roots;
};

static const struct base_option table[] = {
    {.name = "out",
     .type = BASE_OPTION_TEXT,
     .value_name = "DIR",
     .help = "where to",
     .offset = offsetof(struct values, out)},
    {.name = "state",
     .type = BASE_OPTION_TEXT,
     .default_text = "/var/x",
     .help = "state",
     .offset = offsetof(struct values, state)},
    {.name = "json", .type = BASE_OPTION_BOOL, .help = "JSON", .offset = offsetof(struct values, json)},
    {.name = "workers",
     .type = BASE_OPTION_INT,
     .default_text = "2",
     .help = "how many",
     .offset = offsetof(struct values, workers),
     .least = 1,
     .most = 64},
    {.name = "any", .type = BASE_OPTION_INT, .help = "any number", .offset = offsetof(struct values, any)},
    {.name = "staging",
     .type = BASE_OPTION_BYTES,
     .default_text = "24MB",
     .help = "bytes",
     .offset = offsetof(struct values, staging)},
    {.name = "data-root",
     .type = BASE_OPTION_LIST,
     .value_name = "DIR",
     .help = "roots",
     .offset = offsetof(struct values, roots)},
};

static const struct base_options options = {.program = "millrace test",
                                            .usage = "DATASET [options]",
                                            .summary = "Tests.",
                                            .table = table,
                                            .count = sizeof table / sizeof *table,
                                            .least_positional = 1,
                                            .most_positional = 2};

enum { ARGUMENTS = 8 };

static enum base_code parse(const char *const arguments[ARGUMENTS], struct values *values,
                            struct base_options_rest *rest, struct base_error *error)
{
    static char copies[ARGUMENTS][64]; /* what was parsed points into them */
    static char program[] = "prog";
    char *argv[ARGUMENTS + 2] = {program};
    int argc = 1;
    for (int i = 0; i < ARGUMENTS && arguments[i]; i++) {
        snprintf(copies[i], sizeof copies[i], "%s", arguments[i]);
        argv[argc++] = copies[i];
    }
    return base_options_parse(&options, argc, argv, values, rest, error);
}

static int clear_environment(void **state)
{
    (void)state;
    return unsetenv("MILLRACE_WORKERS") | unsetenv("MILLRACE_DATA_ROOT") | unsetenv("MILLRACE_JSON") |
           unsetenv("MILLRACE_STAGING");
}

static void defaults(void **state)
{
    (void)state;
    struct values v;
    struct base_options_rest rest;
    memset(&v, 0xff, sizeof v);
    assert_int_equal(parse((const char *const[ARGUMENTS]){"set"}, &v, &rest, NULL), BASE_OK);
    assert_null(v.out);
    assert_string_equal(v.state, "/var/x");
    assert_false(v.json);
    assert_int_equal(v.workers, 2);
    assert_int_equal(v.any, 0);
    assert_int_equal(v.staging, 24000000);
    assert_int_equal(v.roots.count, 0);
    assert_int_equal(rest.count, 1);
    assert_string_equal(rest.positional[0], "set");
}

static void flags_of_every_form(void **state)
{
    (void)state;
    struct values v;
    struct base_options_rest rest;
    assert_int_equal(parse((const char *const[ARGUMENTS]){"--workers", "7", "set", "--json", "--any=-5",
                                                          "--staging=1GiB", "--out="},
                           &v, &rest, NULL),
                     BASE_OK);
    assert_int_equal(v.workers, 7);
    assert_int_equal(v.any, -5);
    assert_true(v.json);
    assert_int_equal(v.staging, UINT64_C(1) << 30);
    assert_string_equal(v.out, "");

    assert_int_equal(parse((const char *const[ARGUMENTS]){"--json=false", "--any", "-9", "--data-root=/a:b",
                                                          "--data-root", "/c", "--", "--json"},
                           &v, &rest, NULL),
                     BASE_OK);
    assert_false(v.json);
    assert_int_equal(v.any, -9);
    assert_int_equal(v.roots.count, 2);
    assert_string_equal(v.roots.values[0], "/a:b"); /* a flag's value is one value */
    assert_string_equal(v.roots.values[1], "/c");
    assert_string_equal(rest.positional[0], "--json");
}

static void environment(void **state)
{
    (void)state;
    struct values v;
    struct base_options_rest rest;
    struct base_error error;
    setenv("MILLRACE_WORKERS", "9", 1);
    setenv("MILLRACE_DATA_ROOT", "/x:/y::/z", 1);
    setenv("MILLRACE_JSON", "true", 1);
    assert_int_equal(parse((const char *const[ARGUMENTS]){"set"}, &v, &rest, NULL), BASE_OK);
    assert_int_equal(v.workers, 9);
    assert_true(v.json);
    assert_int_equal(v.roots.count, 3);
    assert_string_equal(v.roots.values[2], "/z");
    assert_string_equal(getenv("MILLRACE_DATA_ROOT"), "/x:/y::/z");

    assert_int_equal(
        parse((const char *const[ARGUMENTS]){"set", "--workers=3", "--data-root=/f"}, &v, &rest, NULL),
        BASE_OK);
    assert_int_equal(v.workers, 3);
    assert_int_equal(v.roots.count, 1);
    assert_string_equal(v.roots.values[0], "/f");

    setenv("MILLRACE_WORKERS", "many", 1);
    assert_int_equal(parse((const char *const[ARGUMENTS]){"set"}, &v, &rest, &error), BASE_INVALID);
    assert_string_equal(error.text, "MILLRACE_WORKERS: \"many\" is not a whole number");
    assert_int_equal(parse((const char *const[ARGUMENTS]){"set", "--workers=3"}, &v, &rest, NULL), BASE_OK);
}

static void rows_that_fail(void **state)
{
    (void)state;
    static const struct {
        const char *arguments[ARGUMENTS];
        const char *text;
    } rows[] = {
        {{"set", "--wrong"}, "unknown flag --wrong (millrace test --help lists them)"},
        {{"set", "--wrong=1"}, "unknown flag --wrong (millrace test --help lists them)"},
        {{"set", "--work", "1"}, "unknown flag --work (millrace test --help lists them)"},
        {{"set", "-w"}, "unknown flag -w (millrace test --help lists them)"},
        {{"set", "--=1"}, "unknown flag -- (millrace test --help lists them)"},
        {{"set", "--workers"}, "--workers needs a value (VALUE)"},
        {{"set", "--out", "--json"}, "--out needs a value (DIR)"},
        {{"set", "--workers", "0"}, "--workers: 0 is not within 1 to 64"},
        {{"set", "--workers", "65"}, "--workers: 65 is not within 1 to 64"},
        {{"set", "--workers", "1x"}, "--workers: \"1x\" is not a whole number"},
        {{"set", "--workers", ""}, "--workers: \"\" is not a whole number"},
        {{"set", "--workers", " 1"}, "--workers: \" 1\" is not a whole number"},
        {{"set", "--workers", "1.5"}, "--workers: \"1.5\" is not a whole number"},
        {{"set", "--any", "9223372036854775808"}, "--any: \"9223372036854775808\" is not a whole number"},
        {{"set", "--any", "--5"}, "--any needs a value (VALUE)"},
        {{"set", "--json=yes"}, "--json: \"yes\" is not true or false"},
        {{"set", "--staging", "24 MB"}, "--staging: \"24 MB\" is not a number of bytes (4096, 64MiB, 1GB)"},
        {{"set", "--staging", "-1"}, "--staging: \"-1\" is not a number of bytes (4096, 64MiB, 1GB)"},
        {{"set", "--staging", "MB"}, "--staging: \"MB\" is not a number of bytes (4096, 64MiB, 1GB)"},
        {{"set", "--staging", "20000000TiB"}, "--staging: \"20000000TiB\" is more bytes than 64 bits hold"},
        {{"set", "--staging", "18446744073709551616"},
         "--staging: \"18446744073709551616\" is more bytes than 64 bits hold"},
        {{NULL}, "an argument is missing: usage: millrace test DATASET [options]"},
        {{"a", "b", "c"}, "\"c\" is one argument too many: usage: millrace test DATASET [options]"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct values v;
        struct base_options_rest rest;
        struct base_error error = {0};
        assert_int_equal(parse(rows[i].arguments, &v, &rest, &error), BASE_INVALID);
        assert_string_equal(error.text, rows[i].text);
    }
}

static void lists_have_an_end(void **state)
{
    (void)state;
    struct values v;
    struct base_options_rest rest;
    struct base_error error;
    char many[5000];
    memset(many, 0, sizeof many);
    for (int i = 0; i < BASE_OPTIONS_LIST_MAX + 1; i++)
        strcat(many, "d:");
    setenv("MILLRACE_DATA_ROOT", many, 1);
    assert_int_equal(parse((const char *const[ARGUMENTS]){"set"}, &v, &rest, &error), BASE_INVALID);
    assert_string_equal(error.text, "MILLRACE_DATA_ROOT: given more than 64 times");
    memset(many, 'x', sizeof many - 1);
    setenv("MILLRACE_DATA_ROOT", many, 1);
    assert_int_equal(parse((const char *const[ARGUMENTS]){"set"}, &v, &rest, &error), BASE_TOO_LARGE);
}

static void help_is_printed_from_the_table(void **state)
{
    (void)state;
    struct values v;
    struct base_options_rest rest;
    assert_int_equal(parse((const char *const[ARGUMENTS]){"--help", "--wrong"}, &v, &rest, NULL), BASE_OK);
    assert_true(rest.help);
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    base_options_help(&options, out);
    fclose(out);
    static const char *const parts[] = {
        "Usage: millrace test DATASET [options]\n\nTests.\n",
        "  --out DIR ",
        " where to\n",
        "  --json  ",
        "  --workers N ",
        "how many [2]\n",
        "  --data-root DIR ",
        "(may be given several times)",
        "MILLRACE_SOME_NAME",
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        assert_non_null(strstr(text, parts[i]));
    free(text);
}

static void bytes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } rows[] = {
        {"0", 0},           {"4096", 4096},      {"4096B", 4096},
        {"96MB", 96000000}, {"64MiB", 64 << 20}, {"1kB", 1000},
        {"1KiB", 1024},     {"2GB", 2000000000}, {"16777215TiB", UINT64_C(16777215) << 40},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint64_t value = 7;
        assert_int_equal(base_options_bytes(rows[i].text, &value, NULL), BASE_OK);
        assert_true(value == rows[i].bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(defaults, clear_environment, clear_environment),
        cmocka_unit_test_setup_teardown(flags_of_every_form, clear_environment, clear_environment),
        cmocka_unit_test_setup_teardown(environment, clear_environment, clear_environment),
        cmocka_unit_test_setup_teardown(rows_that_fail, clear_environment, clear_environment),
        cmocka_unit_test_setup_teardown(lists_have_an_end, clear_environment, clear_environment),
        cmocka_unit_test(help_is_printed_from_the_table),
        cmocka_unit_test(bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
