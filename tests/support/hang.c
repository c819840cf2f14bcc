/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded into a worker: a read of an item does not come back while the file that $MILLRACE_TEST_HANG names exists. */
#include <stdlib.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

__attribute__((visibility("default"))) ssize_t pread(int fd, void *bytes, size_t size, off_t offset)
{
    const char *file = getenv("MILLRACE_TEST_HANG");
    struct iovec part = {bytes, size};
    while (file && access(file, F_OK) == 0)
        usleep(20000);
    return preadv(fd, &part, 1, offset);
}
