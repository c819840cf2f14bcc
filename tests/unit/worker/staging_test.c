/* SPDX-License-Identifier: Apache-2.0 */
/* Staging memory: large pages where the kernel has some, and nothing lost that lies there. */
#include "worker/staging.h"

#include "proto/wire/local.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

enum { PAGES = 6, KEPT_BYTES = 5000 };

/* Kilobytes of large pages in the mapping that begins at `memory`. */
static long large_kb(const void *memory)
{
    char line[256], start[32];
    long kb = -1;
    bool ours = false;
    FILE *maps = fopen("/proc/self/smaps", "r");
    assert_non_null(maps);
    snprintf(start, sizeof start, "%lx-", (unsigned long)(uintptr_t)memory);
    while (kb < 0 && fgets(line, sizeof line, maps)) {
        ours = ours || strncmp(line, start, strlen(start)) == 0;
        if (ours)
            sscanf(line, "ShmemPmdMapped: %ld", &kb);
    }
    fclose(maps);
    return kb;
}

static void test_large_pages_keep_what_lies_there(void **state)
{
    (void)state;
    struct worker_staging staging;
    uint8_t kept[KEPT_BYTES];
    assert_int_equal(worker_staging_open(&staging, PAGES * WIRE_LOCAL_PAGE_BYTES - 1, NULL), BASE_OK);
    assert_int_equal(staging.size_bytes, PAGES * WIRE_LOCAL_PAGE_BYTES);
    assert_int_equal((uintptr_t)staging.memory % WIRE_LOCAL_PAGE_BYTES, 0);
    uint64_t across = 2 * WIRE_LOCAL_PAGE_BYTES - KEPT_BYTES / 2;
    memset(kept, 0x5A, sizeof kept);
    memcpy(staging.memory + across, kept, sizeof kept);
    for (int i = 0; i < 2; i++) /* again does nothing */
        worker_staging_prepare(&staging, WIRE_LOCAL_PAGE_BYTES + 1, WIRE_LOCAL_PAGE_BYTES);
    worker_staging_prepare(&staging, (PAGES - 1) * WIRE_LOCAL_PAGE_BYTES, WIRE_LOCAL_PAGE_BYTES);
    assert_memory_equal(staging.memory + across, kept, sizeof kept);
    for (int i = 0; staging.prepared && i < PAGES; i++)
        assert_int_equal(staging.prepared[i], i == 1 || i == 2 || i == PAGES - 1);
    if (large_kb(staging.memory) > 0)
        assert_int_equal(large_kb(staging.memory), 3 * WIRE_LOCAL_PAGE_BYTES / 1024);
    else
        print_message("this kernel has no large pages for a memfd\n");
    worker_staging_close(&staging);
}

static void test_memory_of_nobody_else(void **state)
{
    (void)state;
    struct worker_staging staging = {.fd = -1};
    staging.memory = wire_local_map(-1, 3 * WIRE_LOCAL_PAGE_BYTES, PROT_READ | PROT_WRITE);
    assert_non_null(staging.memory);
    assert_int_equal((uintptr_t)staging.memory % WIRE_LOCAL_PAGE_BYTES, 0);
    staging.size_bytes = 3 * WIRE_LOCAL_PAGE_BYTES;
    worker_staging_prepare(&staging, 0, staging.size_bytes); /* is nothing to it */
    staging.memory[staging.size_bytes - 1] = 1;
    worker_staging_close(&staging);
}

static void test_a_mapping_of_odd_size(void **state)
{
    (void)state;
    int fd = memfd_create("odd", MFD_CLOEXEC);
    assert_int_equal(ftruncate(fd, 5001), 0);
    uint8_t *memory = wire_local_map(fd, 5001, PROT_READ);
    assert_non_null(memory);
    assert_int_equal(memory[5000], 0);
    assert_int_equal(munmap(memory, 5001), 0);
    close(fd);
    assert_null(wire_local_map(fd, 5001, PROT_READ)); /* a bad descriptor */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_large_pages_keep_what_lies_there),
        cmocka_unit_test(test_memory_of_nobody_else),
        cmocka_unit_test(test_a_mapping_of_odd_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
