/* SPDX-License-Identifier: Apache-2.0 */
#include "base/limits.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, CPU_SET_CORES = 8192 };

/*
 * A process's cgroup is named in /proc/self/cgroup, one hierarchy a line: "0::/a/b" (v2),
 * "4:cpu,cpuacct:/a/b" (v1). Its limits and those of all its parents hold. Inside a container the path may
 * lie outside what is mounted; the walk then ends at the mount, whose files are the container's own.
 */

static bool read_text(const char *path, char *text, size_t text_bytes)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    size_t size = fread(text, 1, text_bytes - 1, file);
    text[size] = 0;
    fclose(file);
    return size > 0;
}

/* True when `name` is one of the words of `list`, which are parted by ','. */
static bool list_has(const char *list, size_t list_bytes, const char *name)
{
    size_t name_bytes = strlen(name);
    for (const char *at = list, *end = list + list_bytes; at < end;) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        size_t size = (size_t)((comma ? comma : end) - at);
        if (size == name_bytes && memcmp(at, name, size) == 0)
            return true;
        at += size + 1;
    }
    return false;
}

/* The path of this process in the hierarchy of `controller` ("" is v2); "/" when it is not named. */
static void find_group(const char *root, const char *controller, char path[PATH_BYTES])
{
    char name[PATH_BYTES], text[PATH_BYTES];
    snprintf(path, PATH_BYTES, "/");
    snprintf(name, sizeof name, "%s/proc/self/cgroup", root);
    if (!read_text(name, text, sizeof text))
        return;
    char *save = NULL;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *list = strchr(line, ':'), *group = list ? strchr(list + 1, ':') : NULL;
        if (!group)
            continue;
        size_t list_bytes = (size_t)(group - list - 1);
        if (*controller ? list_has(list + 1, list_bytes, controller) : list_bytes == 0)
            snprintf(path, PATH_BYTES, "%s", group + 1);
    }
}

/* Calls `visit` with the text of `file` in the group and in each of its parents, as far as they are there. */
static void walk_up(const char *root, const char *controller, const char *file,
                    void (*visit)(const char *text, const char *directory, void *into), void *into)
{
    char group[PATH_BYTES];
    find_group(root, controller, group);
    for (;;) {
        char directory[2 * PATH_BYTES], name[2 * PATH_BYTES + 64], text[128];
        snprintf(directory, sizeof directory, "%s/sys/fs/cgroup/%s%s", root, controller, group);
        snprintf(name, sizeof name, "%s/%s", directory, file);
        if (read_text(name, text, sizeof text))
            visit(text, directory, into);
        char *slash = strrchr(group, '/');
        if (!slash || !group[strspn(group, "/")])
            return;
        *slash = 0;
    }
}

static void lower_cores(double quota, double period, double *cores)
{
    if (quota > 0 && period > 0 && quota / period < *cores)
        *cores = quota / period;
}

/* "150000 100000" or "max 100000". */
static void visit_cpu_max(const char *text, const char *directory, void *into)
{
    (void)directory;
    char *end;
    double quota = strtod(text, &end);
    if (end != text)
        lower_cores(quota, strtod(end, NULL), into);
}

/* -1: no limit. */
static void visit_cfs_quota(const char *text, const char *directory, void *into)
{
    char name[2 * PATH_BYTES + 64], period[64];
    snprintf(name, sizeof name, "%s/cpu.cfs_period_us", directory);
    if (read_text(name, period, sizeof period))
        lower_cores(strtod(text, NULL), strtod(period, NULL), into);
}

static int affinity_cores(void)
{
    cpu_set_t *set = CPU_ALLOC(CPU_SET_CORES);
    size_t size = CPU_ALLOC_SIZE(CPU_SET_CORES);
    int count = set && sched_getaffinity(0, size, set) == 0 ? CPU_COUNT_S(size, set) : 0;
    if (set)
        CPU_FREE(set);
    return count > 0 ? count : 1;
}

int base_limits_cores_at(const char *root)
{
    int usable = affinity_cores();
    double cores = usable;
    walk_up(root, "", "cpu.max", visit_cpu_max, &cores);
    walk_up(root, "cpu", "cpu.cfs_quota_us", visit_cfs_quota, &cores);
    int whole = (int)cores;
    if (whole < cores)
        whole++;
    return whole < 1 ? 1 : whole;
}

int base_limits_cores(void)
{
    return base_limits_cores_at("");
}

/* "max" or a number of bytes; v1 writes a number near 2^63 for no limit. */
static void visit_memory(const char *text, const char *directory, void *into)
{
    (void)directory;
    uint64_t *least = into;
    char *end;
    errno = 0;
    uint64_t bytes = isdigit((unsigned char)*text) ? strtoull(text, &end, 10) : UINT64_MAX;
    if (!errno && bytes < *least)
        *least = bytes;
}

static uint64_t physical_bytes(const char *root)
{
    char name[PATH_BYTES], text[512];
    uint64_t kib = 0;
    snprintf(name, sizeof name, "%s/proc/meminfo", root);
    if (read_text(name, text, sizeof text)) {
        const char *at = strstr(text, "MemTotal:");
        if (at && sscanf(at, "MemTotal: %" SCNu64, &kib) == 1)
            return kib * 1024;
    }
    return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t base_limits_memory_bytes_at(const char *root)
{
    uint64_t bytes = physical_bytes(root);
    walk_up(root, "", "memory.max", visit_memory, &bytes);
    walk_up(root, "memory", "memory.limit_in_bytes", visit_memory, &bytes);
    return bytes;
}

uint64_t base_limits_memory_bytes(void)
{
    return base_limits_memory_bytes_at("");
}

int base_limits_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return 1024;
    struct rlimit raised = {.rlim_cur = limit.rlim_max, .rlim_max = limit.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0)
        limit = raised;
    return limit.rlim_cur > INT32_MAX ? INT32_MAX : (int)limit.rlim_cur;
}

void base_limits_heap(void)
{
    mallopt(M_ARENA_MAX, 2);
    mallopt(M_MMAP_THRESHOLD, 256 << 10); /* setting it stops it from rising with what is freed */
}
