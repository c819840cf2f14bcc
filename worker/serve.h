/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data port: accepts connections, turns their frames into events of the worker's machine and carries out its actions.
 * Loop thread only.
 *
 *   accepted --HELLO ok--> greeted --(GET, OPEN, MARK, CANCEL, PAGE)--> ... --broken or closed--> gone
 *      |  no HELLO in 5 s      |  broke the rules: FAIL, then the write side is shut and the rest is read away for 500 ms,
 *      +----> gone             +----> lingering ----> gone   so that a reset does not overtake the FAIL
 *
 * One that does not read (no progress of a send for 1 s, or more than the queue's cap) or does not say that it copied what was lent to it
 * (none of it for 1 s) is closed at once: it pins blocks.
 */
#ifndef WORKER_SERVE_H
#define WORKER_SERVE_H

#include "base/metrics.h"
#include "worker/core.h"
#include "worker/kit.h"
#include "worker/local.h"
#include "worker/make.h"

#include <event2/event.h>

struct worker_serve;

struct worker_serve_hooks {
    void (*want_sync)(void *context);
    void (*stream_gone)(void *context, struct worker_kit *kit); /* frees it */
    struct worker_kit *(*find_kit)(void *context, const uint8_t stream[32]);
    const struct worker_dataset *(*find_dataset)(void *context, const uint8_t version[32]);
};

struct worker_serve_options {
    struct event_base *loop;
    int listen_fd; /* owned from here on */
    struct worker_core *core;
    struct worker_make *make;
    uint8_t *staging;
    const struct worker_local *local; /* NULL: staging is lent to nobody */
    const char *token_key;            /* NULL: no token is asked */
    const char *name;                 /* for HELLO */
    uint32_t requests_max;            /* told at OPEN */
    int connections_max;
    uint64_t queue_max_bytes; /* unsent bytes of one connection */
    const struct worker_serve_hooks *hooks;
    void *context;
};

enum base_code worker_serve_start(struct worker_serve **serve, const struct worker_serve_options *options,
                                  struct base_error *error);
/* Closes all connections. Clears *serve. */
void worker_serve_stop(struct worker_serve **serve);

/* Carries out what the machine wants: after each event that did not come through here. */
void worker_serve_pump(struct worker_serve *serve);

enum {
    WORKER_METRIC_CONNECTIONS,
    WORKER_METRIC_ACCEPTED,
    WORKER_METRIC_DROPPED_LIMIT,
    WORKER_METRIC_DROPPED_FRAME,
    WORKER_METRIC_DROPPED_RULES,
    WORKER_METRIC_DROPPED_TOKEN,
    WORKER_METRIC_DROPPED_STALL,
    WORKER_METRIC_DROPPED_HELLO,
    WORKER_METRIC_DROPPED_CUT,
    WORKER_METRIC_BYTES_IN,
    WORKER_METRIC_BYTES_OUT,
    WORKER_METRIC_BYTES_LENT,
    WORKER_METRIC_CONNECTIONS_LOCAL,
    WORKER_METRIC_PAGES,
    WORKER_SERVE_METRICS,
};
struct base_metric *worker_serve_metrics(struct worker_serve *serve); /* WORKER_SERVE_METRICS rows */

#endif
