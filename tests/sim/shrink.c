/* SPDX-License-Identifier: Apache-2.0 */
/* Delta debugging (ddmin, Zeller 1999): leaves out ever smaller shares of the faults, then jobs, workers and epochs. */
#include "tests/sim/sim.h"

#include <stdlib.h>
#include <string.h>

struct shrink {
    struct sim_history *history; /* the smallest that fails so far; its faults are owned */
    struct sim_result *last;     /* of it */
    uint64_t events_left;
};

/* The history fails as the smallest one does: then it becomes the smallest. */
static bool fails(struct shrink *shrink, const struct sim_history *tried)
{
    struct sim_result result;
    if (shrink->events_left == 0)
        return false;
    sim_world_run(tried, &result);
    shrink->events_left -= result.events < shrink->events_left ? result.events : shrink->events_left;
    free(result.faults);
    result.faults = NULL;
    if (!result.failed || strcmp(result.invariant, shrink->last->invariant) != 0)
        return false;
    *shrink->last = result;
    return true;
}

/* Without the faults [from, to) of the list. */
static bool without(struct shrink *shrink, int from, int to)
{
    struct sim_history tried = *shrink->history;
    uint32_t *faults = malloc(((size_t)tried.fault_count + 1) * sizeof *faults);
    int kept = 0;
    if (!faults)
        abort();
    for (int i = 0; i < tried.fault_count; i++)
        if (i < from || i >= to)
            faults[kept++] = tried.faults[i];
    tried.faults = faults;
    tried.fault_count = kept;
    bool smaller = fails(shrink, &tried);
    if (smaller) {
        uint32_t *old = (uint32_t *)(uintptr_t)shrink->history->faults;
        *shrink->history = tried;
        free(old);
    } else {
        free(faults);
    }
    return smaller;
}

static bool fewer_faults(struct shrink *shrink)
{
    int before = shrink->history->fault_count;
    for (int share = before; share > 0; share /= 2)
        for (int from = shrink->history->fault_count - share; from > -share; from -= share)
            without(shrink, from < 0 ? 0 : from, from + share);
    return shrink->history->fault_count < before;
}

/* From all that there are down to one, by halves and then by one. */
static bool fewer(struct shrink *shrink, int *number, int now)
{
    bool smaller = false;
    for (int step = now / 2; step > 0; step /= 2) {
        int kept = *number;
        while (now - step >= 1) {
            *number = now - step;
            if (!fails(shrink, shrink->history))
                break;
            kept = now = *number;
            smaller = true;
        }
        *number = kept;
    }
    return smaller;
}

void sim_shrink(struct sim_history *history, struct sim_result *last, uint64_t most_events)
{
    struct shrink shrink = {history, last, most_events};
    bool smaller = true;
    history->some = true;
    history->trace = false;
    while (smaller && shrink.events_left > 0) {
        smaller = fewer_faults(&shrink);
        smaller |= fewer(&shrink, &history->jobs, last->jobs);
        smaller |= fewer(&shrink, &history->workers, last->workers);
        smaller |= fewer(&shrink, &history->epochs, last->epochs);
    }
}
