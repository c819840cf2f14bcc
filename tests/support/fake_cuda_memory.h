/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the fake CUDA, of devices and pinned: each in pages of its own, full of rubbish, with a border. Its callers lock. */
#ifndef TESTS_SUPPORT_FAKE_CUDA_MEMORY_H
#define TESTS_SUPPORT_FAKE_CUDA_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fake_region {
    struct fake_region *next;
    uint8_t *base;
    size_t bytes, mapped;
    int device;
    bool pinned;
};

void *fake_memory_take(size_t bytes, bool pinned, int device);
/* Looks at its border. */
void fake_memory_give(struct fake_region *region);
/* NULL: pageable memory, or none. */
struct fake_region *fake_memory_find(const void *memory);
/* What is not within a region may be anything. */
void fake_memory_check(const void *memory, size_t bytes, const char *what);
/* Devices' memory can be touched, or not. */
void fake_memory_open(bool open);
int fake_memory_count(int device); /* live regions; -1: of all */

/* Ends the program. */
__attribute__((noreturn, format(printf, 1, 2))) void fake_cuda_wrong(const char *format, ...);

#endif
