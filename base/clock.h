/* SPDX-License-Identifier: Apache-2.0 */
/* The only place that reads a clock. Machines take `now_ns` as a parameter instead. Any thread. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

#define BASE_NS_PER_MS INT64_C(1000000)
#define BASE_NS_PER_S INT64_C(1000000000)

int64_t base_clock_now_ns(void);        /* monotonic; for deadlines and durations */
int64_t base_clock_wall_ns(void);       /* since 1970; for logs and token expiry only */
int64_t base_clock_thread_cpu_ns(void); /* CPU time of the calling thread */

/* The instant `timeout_ms` from now. Every wait has a deadline: there is no "for ever". */
int64_t base_clock_deadline_ns(int64_t timeout_ms);

/* Of two instants, or of two spans the shorter and the longer. */
static inline int64_t base_clock_earlier(int64_t a_ns, int64_t b_ns)
{
    return a_ns < b_ns ? a_ns : b_ns;
}
static inline int64_t base_clock_later(int64_t a_ns, int64_t b_ns)
{
    return a_ns > b_ns ? a_ns : b_ns;
}

#endif
