/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/staging.h"

#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE /* Linux 5.1 */
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#define LARGE_PAGE_BYTES (UINT64_C(2) << 20)

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

enum base_code worker_staging_open(struct worker_staging *staging, uint64_t size_bytes,
                                   struct base_error *error)
{
    size_bytes += (LARGE_PAGE_BYTES - size_bytes % LARGE_PAGE_BYTES) % LARGE_PAGE_BYTES;
    *staging = (struct worker_staging){.size_bytes = size_bytes, .fd = make_shared(size_bytes)};
    int flags = staging->fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    void *memory = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, flags, staging->fd, 0);
    if (memory != MAP_FAILED && staging->fd >= 0 && !seal(staging->fd)) {
        base_log(BASE_LOG_INFO, "local_off", "cause=\"this kernel cannot seal memory\"");
        close(staging->fd);
        staging->fd = -1; /* the memory stays, shared with nobody */
    }
    if (memory == MAP_FAILED) {
        base_error_errno(error, errno, "--staging: %llu bytes of memory", (unsigned long long)size_bytes);
        worker_staging_close(staging);
        return error ? error->code = BASE_NO_MEMORY : BASE_NO_MEMORY;
    }
    madvise(memory, size_bytes, MADV_HUGEPAGE); /* a hint */
    staging->memory = memory;
    return BASE_OK;
}

void worker_staging_close(struct worker_staging *staging)
{
    if (staging->memory)
        munmap(staging->memory, staging->size_bytes);
    if (staging->fd >= 0)
        close(staging->fd);
    *staging = (struct worker_staging){.fd = -1};
}
