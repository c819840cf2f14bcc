/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/fake_cuda_memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, BORDER = 64, POISON = 0xa5 };

static struct fake_region *regions;

void fake_cuda_wrong(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("fake CUDA: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    abort();
}

struct fake_region *fake_memory_find(const void *memory)
{
    const uint8_t *at = memory;
    for (struct fake_region *region = regions; region; region = region->next)
        if (at >= region->base && at < region->base + region->mapped)
            return region;
    return NULL;
}

void fake_memory_check(const void *memory, size_t bytes, const char *what)
{
    const struct fake_region *region = fake_memory_find(memory);
    if (region && (const uint8_t *)memory + bytes > region->base + region->bytes)
        fake_cuda_wrong("%s: %zu bytes, beyond the end of %zu", what, bytes, region->bytes);
}

void fake_memory_open(bool open)
{
    int protection = open ? PROT_READ | PROT_WRITE : PROT_NONE;
    for (const struct fake_region *region = regions; region; region = region->next)
        if (!region->pinned && mprotect(region->base, region->mapped, protection) != 0)
            fake_cuda_wrong("mprotect failed");
}

void *fake_memory_take(size_t bytes, bool pinned, int device)
{
    struct fake_region *region = calloc(1, sizeof *region);
    size_t mapped = (bytes + BORDER + PAGE - 1) / PAGE * PAGE;
    void *base = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!region || base == MAP_FAILED)
        fake_cuda_wrong("no memory");
    memset(base, POISON, mapped);
    *region = (struct fake_region){regions, base, bytes, mapped, device, pinned};
    regions = region;
    if (!pinned)
        mprotect(base, mapped, PROT_NONE);
    return base;
}

void fake_memory_give(struct fake_region *region)
{
    mprotect(region->base, region->mapped, PROT_READ);
    for (size_t at = region->bytes; at < region->mapped; at++)
        if (region->base[at] != POISON)
            fake_cuda_wrong("memory of %zu bytes was written to at %zu", region->bytes, at);
    munmap(region->base, region->mapped);
    struct fake_region **at = &regions;
    while (*at != region)
        at = &(*at)->next;
    *at = region->next;
    free(region);
}

int fake_memory_count(int device)
{
    int count = 0;
    for (const struct fake_region *region = regions; region; region = region->next)
        count += device < 0 || region->device == device;
    return count;
}
