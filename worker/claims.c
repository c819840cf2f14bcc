/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/claims.h"

#include "worker/core.h"

#include "base/clock.h"
#include "base/grow.h"
#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

void worker_claims_init(struct worker_claims *claims, uint64_t wrap)
{
    *claims = (struct worker_claims){.wrap = wrap};
}

void worker_claims_fini(struct worker_claims *claims)
{
    for (uint32_t i = 0; i < claims->count; i++)
        free(claims->items[i].job);
    free(claims->items);
    free(claims->sorted);
    *claims = (struct worker_claims){0};
}

static struct worker_claim *add(struct worker_claims *claims)
{
    for (uint32_t i = 0; i < claims->count; i++)
        if (!claims->items[i].job)
            return &claims->items[i];
    if (!base_grow(&claims->items, claims->count, sizeof *claims->items))
        return NULL;
    claims->items[claims->count] = (struct worker_claim){.share = WORKER_CLAIMS_NO_SHARE};
    return &claims->items[claims->count++];
}

int64_t worker_claims_open(struct worker_claims *claims, const char *job, uint32_t rank)
{
    uint64_t hash = base_hash_xxh3(job, strlen(job));
    for (uint32_t i = 0; i < claims->count; i++) {
        struct worker_claim *claim = &claims->items[i];
        if (claim->job && claim->job_hash == hash && claim->rank == rank && strcmp(claim->job, job) == 0) {
            claim->handles++;
            return i;
        }
    }
    struct worker_claim *claim = add(claims);
    char *copy = claim ? strdup(job) : NULL;
    if (!copy)
        return -1;
    *claim = (struct worker_claim){
        .job = copy, .job_hash = hash, .rank = rank, .share = claim->share, .handles = 1};
    claims->in_use++;
    return claim - claims->items;
}

static void forget(struct worker_claims *claims, struct worker_claim *claim)
{
    free(claim->job);
    *claim = (struct worker_claim){.share = claim->share};
    claims->in_use--;
}

void worker_claims_close(struct worker_claims *claims, uint32_t index)
{
    struct worker_claim *claim = &claims->items[index];
    claim->handles--;
    if (claim->handles == 0 && !claim->live)
        forget(claims, claim);
}

/* While nobody moves, all may be at something else together: nobody falls asleep by that. */
static void pass(struct worker_claims *claims, int64_t now_ns)
{
    int64_t step_ns = now_ns - claims->heard_ns, most_ns = WORKER_MARK_MS * BASE_NS_PER_MS;
    claims->clock_ns += step_ns < most_ns ? step_ns : most_ns;
    claims->heard_ns = now_ns;
}

/* How many of the sorted are before a position. */
static uint32_t before(const struct worker_claims *claims, uint64_t position)
{
    uint32_t low = 0, high = claims->sorted_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (claims->sorted[middle] < position)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Most moves pass nobody. */
static void shift(struct worker_claims *claims, uint64_t from, uint64_t to)
{
    uint64_t *sorted = claims->sorted;
    uint32_t at = before(claims, from);
    for (; at + 1 < claims->sorted_count && sorted[at + 1] < to; at++)
        sorted[at] = sorted[at + 1];
    for (; at > 0 && sorted[at - 1] > to; at--)
        sorted[at] = sorted[at - 1];
    sorted[at] = to;
}

void worker_claims_move(struct worker_claims *claims, uint32_t index, int64_t now_ns, uint64_t low_water)
{
    struct worker_claim *claim = &claims->items[index];
    if (claim->live && claim->low_water == low_water)
        return;
    pass(claims, now_ns);
    claim->moved_ns = claims->clock_ns;
    if (claim->counted && !claims->stale)
        shift(claims, claim->low_water, low_water);
    else
        claims->stale = true;
    claim->live = true;
    claim->low_water = low_water;
}

static bool listed(const struct worker_live_job *jobs, int count, const char *job)
{
    for (int i = 0; i < count; i++)
        if (strcmp(jobs[i].job, job) == 0)
            return true;
    return false;
}

void worker_claims_list(struct worker_claims *claims, const struct worker_live_job *jobs, int count)
{
    for (uint32_t i = 0; i < claims->count; i++) {
        struct worker_claim *claim = &claims->items[i];
        if (!claim->job || listed(jobs, count, claim->job))
            continue;
        claim->live = false;
        claims->stale = true;
        if (claim->handles == 0)
            forget(claims, claim);
    }
}

static int compare(const void *a, const void *b)
{
    const uint64_t *left = a, *right = b;
    return (*left > *right) - (*left < *right);
}

static void count_claim(struct worker_claims *claims, struct worker_claim *claim)
{
    int64_t sleeps_ns = claim->moved_ns + WORKER_DORMANT_MS * BASE_NS_PER_MS;
    bool live = claim->job && claim->live;
    claim->counted = live && !claims->still && claims->clock_ns < sleeps_ns;
    claims->dormant += live && !claim->counted;
    if (!claim->counted)
        return;
    claims->sorted[claims->sorted_count++] = claim->low_water;
    if (sleeps_ns < claims->sleeps_ns)
        claims->sleeps_ns = sleeps_ns;
}

bool worker_claims_sort(struct worker_claims *claims, int64_t now_ns)
{
    bool still = now_ns - claims->heard_ns >= WORKER_STILL_MS * BASE_NS_PER_MS;
    if (!claims->stale && claims->still == still && claims->clock_ns < claims->sleeps_ns)
        return true;
    if (claims->sorted_capacity < claims->count) {
        uint32_t capacity = 2 * claims->count;
        uint64_t *sorted = realloc(claims->sorted, capacity * sizeof *sorted);
        if (!sorted)
            return false;
        claims->sorted = sorted;
        claims->sorted_capacity = capacity;
    }
    claims->still = still;
    claims->sorted_count = claims->dormant = 0;
    claims->sleeps_ns = INT64_MAX;
    for (uint32_t i = 0; i < claims->count; i++)
        count_claim(claims, &claims->items[i]);
    if (claims->sorted_count > 1)
        qsort(claims->sorted, claims->sorted_count, sizeof *claims->sorted, compare);
    claims->stale = false;
    return true;
}

uint64_t worker_claims_next_use(const struct worker_claims *claims, uint64_t start, uint64_t end)
{
    uint32_t low = before(claims, end);
    if (low > 0)
        return claims->sorted[low - 1] >= start ? 0 : start - claims->sorted[low - 1];
    if (claims->wrap > 0 && claims->sorted_count > 0)
        return start + claims->wrap - claims->sorted[claims->sorted_count - 1];
    return WORKER_CLAIMS_NEVER;
}
