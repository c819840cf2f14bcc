/* SPDX-License-Identifier: Apache-2.0 */
/* What millrace bench --against takes for figures, from commands and from loader() of Python files, and what it refuses. */
#include "client/cli/against.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static char folder[64];

static int begin(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/millrace-against-XXXXXX");
    return mkdtemp(folder) ? 0 : 1;
}

static int end(void **state)
{
    (void)state;
    return rmdir(folder);
}

static void test_commands(void **state)
{
    static const struct {
        const char *command;
        double images_s, cpu_s_1000; /* 0: refused */
    } rows[] = {
        {"echo a peer images/s 10.5 cpu_s/1000 99", 10.5, 99},
        {"echo warming up; echo images/s 3", 3, 0},
        {"echo images/s 1; echo images/s 2", 2, 0}, /* the last one counts */
        {"echo nothing", 0, 0},
        {"echo images/s many", 0, 0},
        {"echo images/s nan", 0, 0},
        {"echo images/s 10; exit 3", 0, 0},
        {"/nonexistent/program", 0, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct cli_against result;
        struct base_error error;
        enum base_code code = cli_against_run(rows[i].command, 1, &result, &error);
        assert_int_equal(code, rows[i].images_s > 0 ? BASE_OK : BASE_INVALID);
        if (code == BASE_OK) {
            assert_true(result.images_s == rows[i].images_s);
            assert_true(result.cpu_s_1000 == rows[i].cpu_s_1000);
        }
    }
}

static enum base_code run_file(const char *text, struct cli_against *result)
{
    char path[96];
    struct base_error error;
    snprintf(path, sizeof path, "%s/my_loader.py", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("import sys, time\nsys.dont_write_bytecode = True\n", file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
    enum base_code code = cli_against_run(path, 1, result, &error);
    unlink(path);
    return code;
}

/* 8 rows each 10 ms and more: at most 800 a second. */
static void test_files(void **state)
{
    static const char *const good[] = {
        "class L:\n"
        "    def __iter__(self):\n"
        "        for _ in range(5):\n"
        "            time.sleep(.01)\n"
        "            yield [0] * 8, [1] * 8\n"
        "def loader(): return L()\n",
        "def endless():\n"
        "    while True:\n"
        "        time.sleep(.01)\n"
        "        yield {'image': [0] * 8, 'label': [1] * 8}\n"
        "class L:\n"
        "    def __iter__(self): return endless()\n"
        "def loader(): return L()\n",
    };
    static const char *const bad[] = {
        "def loader(): return []\n",
        "def loader(): raise ValueError('mine')\n",
        "def laoder(): return [([0], [1])]\n",
        "def loader(): return iter([([0], [1])])\n", /* one epoch only */
        "syntax error\n",
    };
    struct cli_against result;
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(run_file(good[i], &result), BASE_OK);
        assert_true(result.images_s > 8 && result.images_s <= 800);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(run_file(bad[i], &result), BASE_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_commands),
        cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
