/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include <time.h>

static int64_t read_ns(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * BASE_NS_PER_S + t.tv_nsec;
}

int64_t base_clock_now_ns(void)
{
    return read_ns(CLOCK_MONOTONIC);
}

int64_t base_clock_wall_ns(void)
{
    return read_ns(CLOCK_REALTIME);
}

int64_t base_clock_thread_cpu_ns(void)
{
    return read_ns(CLOCK_THREAD_CPUTIME_ID);
}

int64_t base_clock_deadline_ns(int64_t timeout_ms)
{
    int64_t now_ns = base_clock_now_ns(), most_ms = (INT64_MAX - now_ns) / BASE_NS_PER_MS;
    if (timeout_ms < 0)
        return now_ns;
    return timeout_ms < most_ms ? now_ns + timeout_ms * BASE_NS_PER_MS : INT64_MAX;
}
