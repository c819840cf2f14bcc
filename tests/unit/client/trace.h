/* SPDX-License-Identifier: Apache-2.0 */
/* A random life of one client machine among workers that answer, move, stall, die and come back, on virtual time. */
#ifndef TESTS_UNIT_CLIENT_TRACE_H
#define TESTS_UNIT_CLIENT_TRACE_H

#include "client/src/core.h"

#define TRACE_WORKERS 6

struct trace_options {
    uint64_t seed;
    struct client_core_options core;
    int workers;
    bool faults;
    bool seeks; /* the trainer goes on elsewhere now and then */
    bool lags;  /* workers say nothing for a while now and then, and then all of it */
};

struct trace_result {
    uint64_t steps, seeks, requests, failovers, moved, retries, cancelled, hedges, hedges_won;
    char failure[256]; /* empty: all is well */
};

/* Runs until the end of the job (or 200 steps), checks every step against semantics.md spelled out. */
struct trace_result trace_run(const struct trace_options *options);

#endif
