/* SPDX-License-Identifier: Apache-2.0 */
/* Only files of our own naming go, and of those only what nobody wants. */
#include "worker/sweep.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
#define UPPER "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"

static const struct {
    const char *name;
    int goes; /* 0: never, 1: as a part, 2: as a manifest that is not wanted */
} rows[] = {
    {A ".manifest", 0}, /* wanted */
    {B ".manifest", 2},
    {A ".manifest.x1Y2z3", 1},
    {B ".manifest.abcdef", 1},
    {"order-7.new", 1},
    {"order-18446744073709551615.new.Zz09aA", 1},
    {"order-.new", 0},
    {"order-7.old", 0},
    {"order-7.new.abc", 0},
    {"order-7.new.abcdefg", 0},
    {"reorder-7.new", 0},
    {A, 0},
    {A "a.manifest", 0},
    {UPPER ".manifest", 0},
    {B ".manifest.bak", 0},
    {B ".manifest~", 0},
    {"notes.manifest", 0},
    {"README", 0},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

static bool wanted(void *context, const uint8_t version[32])
{
    (void)context;
    return version[0] == 0xaa;
}

static void check(const char *folder, int gone)
{
    char path[256];
    for (int i = 0; i < ROWS; i++) {
        snprintf(path, sizeof path, "%s/manifests/%s", folder, rows[i].name);
        bool there = access(path, F_OK) == 0;
        if (there == (rows[i].goes > 0 && rows[i].goes <= gone))
            fail_msg("%s is %sthere after sweep %d", rows[i].name, there ? "" : "not ", gone);
    }
}

static void only_our_own(void **state)
{
    (void)state;
    char folder[] = "/tmp/millrace-sweep-XXXXXX", path[256], command[64];
    assert_non_null(mkdtemp(folder));
    assert_int_equal(worker_sweep_parts(folder), 0); /* no such folder yet */
    snprintf(path, sizeof path, "%s/manifests", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    for (int i = 0; i < ROWS; i++) {
        snprintf(path, sizeof path, "%s/manifests/%s", folder, rows[i].name);
        int fd = open(path, O_CREAT | O_WRONLY, 0600);
        assert_true(fd >= 0);
        close(fd);
    }
    check(folder, 0);
    assert_int_equal(worker_sweep_parts(folder), 4);
    check(folder, 1);
    assert_int_equal(worker_sweep_manifests(folder, wanted, NULL), 1);
    check(folder, 2);
    assert_int_equal(worker_sweep_manifests(folder, wanted, NULL), 0);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(only_our_own)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
