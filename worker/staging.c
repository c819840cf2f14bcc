/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/staging.h"

#include "base/log.h"
#include "proto/wire/local.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE /* Linux 5.1 */
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#ifndef MADV_POPULATE_READ /* Linux 5.14 */
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_COLLAPSE /* Linux 6.1 */
#define MADV_COLLAPSE 25
#endif

enum { SMALL_PAGE_BYTES = 4096 };

static int make_shared(uint64_t size_bytes)
{
    int fd = memfd_create("millrace-staging", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd >= 0 && ftruncate(fd, (off_t)size_bytes) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* After our own mapping, the only one that may write. */
static bool seal(int fd)
{
    return fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0;
}

void worker_staging_prepare(const struct worker_staging *staging, uint64_t offset, uint64_t size_bytes)
{
    uint64_t end = (offset + size_bytes + WIRE_LOCAL_PAGE_BYTES - 1) / WIRE_LOCAL_PAGE_BYTES;
    for (uint64_t i = offset / WIRE_LOCAL_PAGE_BYTES; staging->prepared && i < end; i++) {
        uint8_t *page = staging->memory + i * WIRE_LOCAL_PAGE_BYTES;
        if (atomic_exchange_explicit(&staging->prepared[i], 1, memory_order_relaxed))
            continue;
        /* Hints, both. Nothing is collapsed where there is no small page at all. */
        (void)madvise(page, SMALL_PAGE_BYTES, MADV_POPULATE_READ);
        (void)madvise(page, WIRE_LOCAL_PAGE_BYTES, MADV_COLLAPSE);
    }
}

enum base_code worker_staging_open(struct worker_staging *staging, uint64_t size_bytes,
                                   struct base_error *error)
{
    size_bytes += -size_bytes % WIRE_LOCAL_PAGE_BYTES;
    *staging = (struct worker_staging){.size_bytes = size_bytes, .fd = make_shared(size_bytes)};
    void *memory = wire_local_map(staging->fd, size_bytes, PROT_READ | PROT_WRITE);
    if (memory && staging->fd >= 0 && !seal(staging->fd)) {
        base_log(BASE_LOG_INFO, "local_off", "cause=\"this kernel cannot seal memory\"");
        close(staging->fd);
        staging->fd = -1; /* the memory stays, shared with nobody */
    }
    if (!memory) {
        base_error_errno(error, errno, "--staging: %llu bytes of memory", (unsigned long long)size_bytes);
        worker_staging_close(staging);
        return error ? error->code = BASE_NO_MEMORY : BASE_NO_MEMORY;
    }
    madvise(memory, size_bytes, MADV_HUGEPAGE); /* a hint; all that plain memory needs */
    staging->memory = memory;
    if (staging->fd >= 0) /* without it pages are small */
        staging->prepared = calloc(size_bytes / WIRE_LOCAL_PAGE_BYTES, sizeof *staging->prepared);
    return BASE_OK;
}

void worker_staging_close(struct worker_staging *staging)
{
    if (staging->memory)
        munmap(staging->memory, staging->size_bytes);
    if (staging->fd >= 0)
        close(staging->fd);
    free(staging->prepared);
    *staging = (struct worker_staging){.fd = -1};
}
