/* SPDX-License-Identifier: Apache-2.0 */
#include "base/limits.h"

#include <ftw.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

struct plant {
    const char *path, *text;
};

enum { PLANTS = 6 };

static char root[] = "/tmp/millrace-limits-XXXXXX";

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *walk)
{
    (void)status, (void)kind, (void)walk;
    return remove(path);
}

static void plant(const struct plant *files)
{
    for (; files->path; files++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", root, files->path);
        for (char *slash = path + sizeof root; (slash = strchr(slash, '/')); slash++) {
            *slash = 0;
            mkdir(path, 0755);
            *slash = '/';
        }
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fputs(files->text, file);
        fclose(file);
    }
}

static int make_root(void **state)
{
    (void)state;
    strcpy(root + sizeof root - 7, "XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    (void)state;
    return nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

static void cores(void **state)
{
    (void)state;
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    int all = CPU_COUNT(&set);
    const struct {
        const char *what;
        struct plant files[PLANTS];
        int cores;
    } rows[] = {
        {"nothing is there", {{0}}, all},
        {"v2, no limit", {{"proc/self/cgroup", "0::/\n"}, {"sys/fs/cgroup/cpu.max", "max 100000\n"}}, all},
        {"v2, half a core",
         {{"proc/self/cgroup", "0::/a\n"}, {"sys/fs/cgroup/a/cpu.max", "50000 100000\n"}},
         1},
        {"v2, rounded up",
         {{"proc/self/cgroup", "0::/a\n"}, {"sys/fs/cgroup/a/cpu.max", "110000 100000\n"}},
         least(2, all)},
        {"v2, the parent's limit is lower",
         {{"proc/self/cgroup", "0::/a/b\n"},
          {"sys/fs/cgroup/a/b/cpu.max", "max 100000\n"},
          {"sys/fs/cgroup/a/cpu.max", "100000 100000\n"}},
         1},
        {"v2, in a container: the path is outside, the mount's own files hold",
         {{"proc/self/cgroup", "0::/host/pod\n"}, {"sys/fs/cgroup/cpu.max", "100000 100000\n"}},
         1},
        {"v2, more than there is",
         {{"proc/self/cgroup", "0::/\n"}, {"sys/fs/cgroup/cpu.max", "99900000 100000\n"}},
         all},
        {"v1",
         {{"proc/self/cgroup", "5:memory:/x\n4:cpu,cpuacct:/a\n0::/\n"},
          {"sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "20000\n"},
          {"sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n"}},
         1},
        {"v1, no limit",
         {{"proc/self/cgroup", "4:cpu,cpuacct:/a\n"},
          {"sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "-1\n"},
          {"sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n"}},
         all},
        {"garbage", {{"proc/self/cgroup", "zzz\n\n:\n0::\n"}, {"sys/fs/cgroup/cpu.max", "lots\n"}}, all},
        {"zero and negative", {{"proc/self/cgroup", "0::/\n"}, {"sys/fs/cgroup/cpu.max", "0 -5\n"}}, all},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        make_root(state);
        plant(rows[i].files);
        int got = base_limits_cores_at(root);
        remove_root(state);
        if (got != rows[i].cores)
            fail_msg("%s: %d", rows[i].what, got);
    }
}

static void memory(void **state)
{
    (void)state;
    static const struct {
        const char *what;
        struct plant files[PLANTS];
        uint64_t bytes;
    } rows[] = {
        {"no cgroup", {{"proc/meminfo", "MemTotal:  1000 kB\nMemFree: 1 kB\n"}}, 1024000},
        {"v2",
         {{"proc/meminfo", "MemTotal: 1000 kB\n"},
          {"proc/self/cgroup", "0::/a\n"},
          {"sys/fs/cgroup/a/memory.max", "5000\n"}},
         5000},
        {"v2, the parent's is lower",
         {{"proc/meminfo", "MemTotal: 1000 kB\n"},
          {"proc/self/cgroup", "0::/a/b\n"},
          {"sys/fs/cgroup/a/b/memory.max", "5000\n"},
          {"sys/fs/cgroup/a/memory.max", "4000\n"}},
         4000},
        {"v2, max",
         {{"proc/meminfo", "MemTotal: 1000 kB\n"},
          {"proc/self/cgroup", "0::/a\n"},
          {"sys/fs/cgroup/a/memory.max", "max\n"}},
         1024000},
        {"v1",
         {{"proc/meminfo", "MemTotal: 1000 kB\n"},
          {"proc/self/cgroup", "3:memory:/a\n"},
          {"sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n"},
          {"sys/fs/cgroup/memory/memory.limit_in_bytes", "7000\n"}},
         7000},
        {"garbage",
         {{"proc/meminfo", "MemTotal: 1000 kB\n"},
          {"proc/self/cgroup", "0::/a\n"},
          {"sys/fs/cgroup/a/memory.max", "-1\n"}},
         1024000},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        make_root(state);
        plant(rows[i].files);
        uint64_t got = base_limits_memory_bytes_at(root);
        remove_root(state);
        if (got != rows[i].bytes)
            fail_msg("%s: %llu", rows[i].what, (unsigned long long)got);
    }
}

static void this_machine(void **state)
{
    (void)state;
    assert_in_range(base_limits_cores(), 1, 8192);
    assert_true(base_limits_memory_bytes() > 16 << 20);
    assert_true(base_limits_descriptors() >= 64);
    assert_int_equal(base_limits_descriptors(), base_limits_descriptors());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cores),
        cmocka_unit_test(memory),
        cmocka_unit_test(this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
