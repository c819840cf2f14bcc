/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan as it was first written: loops over all workers for each slot, in floating point. What scheduler/plan.c must
 * still give.
 *
 * From one plan to the next, in four steps:
 *   1. keep     a slot whose home is still there keeps it
 *   2. adopt    a dead home's slot goes to its secondary, unless that would lift it over its cap
 *   3. fill     slots of nobody go one by one to the worker most behind its share; from nothing that
 * interleaves the homes
 *   4. level    a worker over its cap gives, a joiner or one far below its share takes, each as few slots as
 * will do then secondaries anew: of each home's slots the others hold as many as their weights say, within
 * one, so that a death spreads evenly; whoever held one keeps it where that allows. share = 1024 x weight /
 * sum; cap = share rounded up, plus 1.
 */
#include "tests/unit/scheduler/plan_oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = SCHEDULER_PLAN_SLOTS, WORKERS = SCHEDULER_PLAN_WORKERS, NOBODY = -1 };

struct draft {
    int count;
    struct scheduler_plan_worker worker[WORKERS]; /* by id */
    double total, share[WORKERS];
    int held[WORKERS];                    /* slots as primary */
    int seconds[WORKERS];                 /* slots as secondary, so far */
    int primary[SLOTS], secondary[SLOTS]; /* indices, or NOBODY */
};

static int compare_workers(const void *a, const void *b)
{
    uint64_t x = ((const struct scheduler_plan_worker *)a)->id,
             y = ((const struct scheduler_plan_worker *)b)->id;
    return x < y ? -1 : x > y;
}

static int find(const struct draft *draft, uint64_t id)
{
    int low = 0, high = draft->count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (draft->worker[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < draft->count && draft->worker[low].id == id ? low : NOBODY;
}

static void draft_init(struct draft *draft, const struct scheduler_plan_worker *workers, int count)
{
    memset(draft, 0, sizeof *draft);
    draft->count = count > WORKERS ? WORKERS : count;
    if (draft->count > 0)
        memcpy(draft->worker, workers, (size_t)draft->count * sizeof *workers);
    qsort(draft->worker, (size_t)draft->count, sizeof *workers, compare_workers);
    for (int i = 0; i < draft->count; i++)
        draft->total += draft->worker[i].weight;
    for (int i = 0; i < draft->count; i++)
        draft->share[i] = SLOTS * draft->worker[i].weight / draft->total;
}

static int cap(const struct draft *draft, int worker)
{
    return (int)ceil(draft->share[worker]) + 1;
}

/* Times the total: exact for whole weights, so that equals are equal (the first version rounded here). */
static double excess(const struct draft *draft, int worker)
{
    return draft->held[worker] * draft->total - SLOTS * draft->worker[worker].weight;
}

static void give(struct draft *draft, int slot, int worker)
{
    if (draft->primary[slot] != NOBODY)
        draft->held[draft->primary[slot]]--;
    draft->primary[slot] = worker;
    draft->held[worker]++;
}

static void keep(struct draft *draft, const struct scheduler_plan *previous)
{
    for (int slot = 0; slot < SLOTS; slot++) {
        int home = find(draft, previous->primary[slot]);
        draft->primary[slot] = NOBODY;
        draft->secondary[slot] = find(draft, previous->secondary[slot]);
        if (home != NOBODY)
            give(draft, slot, home);
    }
}

static void adopt(struct draft *draft)
{
    for (int slot = 0; slot < SLOTS; slot++) {
        int heir = draft->secondary[slot];
        if (draft->primary[slot] == NOBODY && heir != NOBODY && draft->held[heir] < cap(draft, heir))
            give(draft, slot, heir);
    }
}

/* Whoever is most behind what it should have of the slots given so far: the smooth weighted round robin. */
static void fill(struct draft *draft)
{
    int given = 0;
    for (int i = 0; i < draft->count; i++)
        given += draft->held[i];
    for (int slot = 0; slot < SLOTS; slot++) {
        if (draft->primary[slot] != NOBODY)
            continue;
        int best = 0;
        double most = -INFINITY;
        given++;
        for (int i = 0; i < draft->count; i++) {
            double behind = draft->share[i] * given / SLOTS - draft->held[i];
            if (behind > most + 1e-9)
                best = i, most = behind;
        }
        give(draft, slot, best);
    }
}

/* Less than this calls for more slots. Wide enough that what a death leaves uneven moves nothing further. */
static bool starved(const struct draft *draft, int worker)
{
    double share = floor(draft->share[worker]);
    double slack = share / 16 > 2 ? share / 16 : 2;
    return draft->held[worker] < share - slack || (draft->held[worker] == 0 && share >= 1);
}

/* How many slots each worker shall gain (or, below 0, lose). */
static bool level_counts(const struct draft *draft, int *change)
{
    struct draft plan = *draft;
    bool any = false;
    for (;;) {
        int most = 0, least = 0, taker = NOBODY, giver = NOBODY;
        for (int i = 0; i < plan.count; i++) {
            if (excess(&plan, i) > excess(&plan, most))
                most = i;
            if (excess(&plan, i) < excess(&plan, least))
                least = i;
            /* once it takes it takes up to its share, once it gives it gives down to it */
            if (starved(&plan, i) || (change[i] > 0 && plan.held[i] < (int)plan.share[i]))
                taker = taker == NOBODY ? i : taker;
            if (plan.held[i] > cap(&plan, i) || (change[i] < 0 && plan.held[i] > (int)ceil(plan.share[i])))
                giver = giver == NOBODY ? i : giver;
        }
        if (taker == NOBODY && giver == NOBODY)
            return any;
        taker = taker == NOBODY ? least : taker;
        giver = giver == NOBODY ? most : giver;
        if (taker == giver)
            return any;
        plan.held[taker]++, plan.held[giver]--;
        change[taker]++, change[giver]--;
        any = true;
    }
}

/* The slot nearest to `ideal`, either way round, whose home still gives. */
static int nearest_given(const struct draft *draft, const int *change, int ideal)
{
    for (int distance = 0; distance < SLOTS; distance++) {
        int slot = (ideal + (distance % 2 ? -(distance + 1) / 2 : distance / 2) + SLOTS) % SLOTS;
        if (change[draft->primary[slot]] < 0)
            return slot;
    }
    return NOBODY;
}

/* A taker's slots are spread over the ring. */
static void level(struct draft *draft)
{
    int change[WORKERS] = {0};
    if (!level_counts(draft, change))
        return;
    for (int taker = 0; taker < draft->count; taker++) {
        int wanted = change[taker];
        for (int i = 0; i < wanted; i++) {
            int slot = nearest_given(draft, change, i * SLOTS / wanted);
            if (slot == NOBODY)
                return;
            change[draft->primary[slot]]++;
            change[taker]--;
            give(draft, slot, taker);
        }
    }
}

/* How many of `home`'s slots each other worker shall be second for: its share rounded down, and the rest one
 * by one to those that are furthest below their share as primaries, counting what this would bring, then
 * least often second. */
static void second_quotas(const struct draft *draft, int home, int *quota)
{
    int left = draft->held[home];
    double others = draft->total - draft->worker[home].weight;
    bool more[WORKERS] = {false};
    for (int i = 0; i < draft->count; i++) {
        quota[i] = i == home ? 0 : (int)(draft->held[home] * draft->worker[i].weight / others);
        left -= quota[i];
    }
    for (; left > 0; left--) {
        int best = NOBODY;
        double least = INFINITY;
        for (int i = 0; i < draft->count; i++) {
            if (i == home || more[i])
                continue;
            double mine = excess(draft, i) / draft->total + draft->seconds[i] / (draft->share[i] + 1);
            if (mine < least - 1e-9)
                best = i, least = mine;
        }
        if (best == NOBODY)
            return;
        quota[best]++;
        more[best] = true;
    }
}

static void second_slots(struct draft *draft, int home, int *quota)
{
    int open[SLOTS], opened = 0;
    for (int slot = 0; slot < SLOTS; slot++) {
        if (draft->primary[slot] != home)
            continue;
        int second = draft->secondary[slot];
        if (second != NOBODY && quota[second] > 0)
            quota[second]--, draft->seconds[second]++;
        else
            open[opened++] = slot;
    }
    for (int i = 0; i < opened; i++) {
        int best = NOBODY;
        for (int step = 1; step <= draft->count; step++) { /* from the home's neighbour on */
            int other = (home + step) % draft->count;
            if (other != home && quota[other] > 0 && (best == NOBODY || quota[other] > quota[best]))
                best = other;
        }
        draft->secondary[open[i]] = best; // cppcheck-suppress uninitvar
        if (best != NOBODY)
            quota[best]--, draft->seconds[best]++;
    }
}

static void assign_seconds(struct draft *draft)
{
    int quota[WORKERS];
    for (int home = 0; home < draft->count; home++) {
        memset(quota, 0, sizeof quota);
        if (draft->count > 1)
            second_quotas(draft, home, quota);
        second_slots(draft, home, quota);
    }
}

void plan_oracle_next(const struct scheduler_plan *previous, const struct scheduler_plan_worker *workers,
                      int count, struct scheduler_plan *next)
{
    struct draft draft;
    struct scheduler_plan made;
    memset(&made, 0, sizeof made);
    draft_init(&draft, workers, count);
    keep(&draft, previous);
    if (draft.count > 0) {
        adopt(&draft);
        fill(&draft);
        level(&draft);
        assign_seconds(&draft);
    }
    for (int slot = 0; slot < SLOTS; slot++) {
        int home = draft.primary[slot], second = draft.secondary[slot];
        made.primary[slot] = home == NOBODY ? SCHEDULER_PLAN_NOBODY : draft.worker[home].id;
        made.secondary[slot] = second == NOBODY ? SCHEDULER_PLAN_NOBODY : draft.worker[second].id;
    }
    bool same = memcmp(made.primary, previous->primary, sizeof made.primary) == 0 &&
                memcmp(made.secondary, previous->secondary, sizeof made.secondary) == 0;
    made.version = same ? previous->version : previous->version + 1;
    *next = made;
}
