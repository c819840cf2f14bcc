/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How busy this worker is, smoothed over a few seconds: how long blocks wait before they are made, and how many of
 * the places in the making are in use. The scheduler moves slots by it.
 */
#ifndef WORKER_LOAD_H
#define WORKER_LOAD_H

#include <stdbool.h>
#include <stdint.h>

#define WORKER_LOAD_NS (5 * INT64_C(1000000000)) /* what is older hardly counts */

struct worker_load {
    double queue_ms, making_share; /* until then_ns */
    int64_t then_ns, began_ns; /* began: something is queued since, or was made last; 0: nothing is queued */
    double making;             /* share in use since then_ns */
};

/* Says what holds from now on: the share of making places in use, and whether blocks are queued. */
void worker_load_note(struct worker_load *load, int64_t now_ns, double making, bool queued);
/* A block left the queue for the making. */
void worker_load_waited(struct worker_load *load, int64_t now_ns, int64_t waited_ns);
/* What is so now. A queue that does not move counts with the time since it last did. */
struct worker_load worker_load_now(const struct worker_load *load, int64_t now_ns);

#endif
