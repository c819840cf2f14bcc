/* SPDX-License-Identifier: Apache-2.0 */
/* What numpy itself reads from our files. */
#include "client/cli/npy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/millrace-npy-XXXXXX";

static void in_python(const char *expression)
{
    char command[1024];
    snprintf(command, sizeof command,
             "cd %s && /usr/bin/python3 -c \"import numpy; a = numpy.load('a.npy'); assert %s, (a.shape, "
             "a.dtype)\"",
             folder, expression);
    assert_int_equal(system(command), 0);
}

static struct cli_npy *create(const char *descr, const int64_t *dims, int rank)
{
    char path[128];
    struct cli_npy *npy;
    snprintf(path, sizeof path, "%s/a.npy", folder);
    assert_int_equal(cli_npy_create(&npy, path, descr, dims, rank, NULL), BASE_OK);
    return npy;
}

static void rows_come_back(void **state)
{
    (void)state;
    const int64_t dims[] = {2, 3};
    const int32_t rows[2][2][3] = {{{1, 2, 3}, {4, 5, 6}}, {{-7, 8, 9}, {10, 11, 1 << 30}}};
    struct cli_npy *npy = create("<i4", dims, 2);
    for (int i = 0; i < 100; i++)
        assert_int_equal(cli_npy_add(npy, rows[i % 2], sizeof rows[0], 1, NULL), BASE_OK);
    assert_int_equal(cli_npy_finish(npy, NULL), BASE_OK);
    cli_npy_destroy(npy);
    in_python("a.shape == (100, 2, 3) and a.dtype == numpy.int32 and a.flags.c_contiguous and a[99, 1, 2] == "
              "2**30 and "
              "a[99, 0, 0] == -7 and a[98].ravel().tolist() == [1, 2, 3, 4, 5, 6]");
}

static void a_row_may_be_one_value_and_there_may_be_none(void **state)
{
    (void)state;
    struct cli_npy *npy = create("|u1", NULL, 0);
    assert_int_equal(cli_npy_finish(npy, NULL), BASE_OK);
    cli_npy_destroy(npy);
    in_python("a.shape == (0,) and a.dtype == numpy.uint8");
    npy = create("<i8", NULL, 0);
    const int64_t values[] = {-1, INT64_MAX};
    assert_int_equal(cli_npy_add(npy, values, sizeof values, 2, NULL), BASE_OK);
    assert_int_equal(cli_npy_finish(npy, NULL), BASE_OK);
    cli_npy_destroy(npy);
    in_python("a.tolist() == [-1, 2**63 - 1]");
}

static void nothing_is_left_of_a_file_without_an_end(void **state)
{
    (void)state;
    char command[256];
    struct cli_npy *npy = create("|u1", NULL, 0);
    assert_int_equal(cli_npy_add(npy, "abc", 3, 3, NULL), BASE_OK);
    cli_npy_destroy(npy);
    cli_npy_destroy(NULL);
    snprintf(command, sizeof command, "! ls %s | grep -q part", folder);
    assert_int_equal(system(command), 0);
    struct base_error error;
    assert_int_equal(cli_npy_create(&npy, "/nonexistent/a.npy", "|u1", NULL, 0, &error), BASE_NOT_FOUND);
    assert_non_null(strstr(error.text, "/nonexistent/a.npy"));
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    char command[256];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_come_back),
        cmocka_unit_test(a_row_may_be_one_value_and_there_may_be_none),
        cmocka_unit_test(nothing_is_left_of_a_file_without_an_end),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
