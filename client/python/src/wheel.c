/* SPDX-License-Identifier: Apache-2.0 */
/* For the wheel only: Debian's libevent takes these two from glibc 2.36, the wheel runs on 2.34. build_wheel.sh takes the version
 * off its references, so that glibc's are found where there are any, and else these. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>

#define EXPORT __attribute__((visibility("default")))
EXPORT void arc4random_buf(void *memory, size_t bytes);
EXPORT uint32_t arc4random(void);

void arc4random_buf(void *memory, size_t bytes)
{
    char *at = memory;
    while (bytes > 0) {
        ssize_t got = getrandom(at, bytes, 0);
        if (got < 0 && errno != EINTR)
            abort(); /* a kernel without it: glibc's does the same */
        at += got > 0 ? got : 0;
        bytes -= got > 0 ? (size_t)got : 0;
    }
}

uint32_t arc4random(void)
{
    uint32_t value;
    arc4random_buf(&value, sizeof value);
    return value;
}
