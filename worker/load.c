/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/load.h"

#include "base/clock.h"

/* Weights of old and new for a step of time; no exp(): many small steps come to the same. */
static double old_part(int64_t step_ns)
{
    return step_ns > 0 ? (double)WORKER_LOAD_NS / (double)(WORKER_LOAD_NS + step_ns) : 1;
}

static void pass(struct worker_load *load, int64_t now_ns)
{
    double old = old_part(now_ns - load->then_ns);
    load->making_share = old * load->making_share + (1 - old) * load->making;
    if (load->began_ns == 0)
        load->queue_ms *= old;
    if (now_ns > load->then_ns)
        load->then_ns = now_ns;
}

void worker_load_note(struct worker_load *load, int64_t now_ns, double making, bool queued)
{
    pass(load, now_ns);
    load->making = making;
    if (queued != (load->began_ns != 0))
        load->began_ns = queued ? now_ns : 0;
}

void worker_load_waited(struct worker_load *load, int64_t now_ns, int64_t waited_ns)
{
    load->queue_ms += ((double)waited_ns / BASE_NS_PER_MS - load->queue_ms) / 8;
    load->began_ns = now_ns;
}

struct worker_load worker_load_now(const struct worker_load *load, int64_t now_ns)
{
    struct worker_load now = *load;
    pass(&now, now_ns);
    double stuck_ms = now.began_ns != 0 ? (double)(now_ns - now.began_ns) / BASE_NS_PER_MS : 0;
    if (now.queue_ms < stuck_ms)
        now.queue_ms = stuck_ms;
    return now;
}
