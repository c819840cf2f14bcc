/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/machine.h"

#include "base/grow.h"
#include "base/hash.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROW_COST_GUESS_NS 1e6 /* until a block of the stream was made */

static double later(double a, double b)
{
    return a > b ? a : b;
}

static struct worker_share *share_at(const struct worker_core *core, uint32_t index)
{
    return worker_slots_at(&core->shares, index);
}

/* ---- weights ---- */

static double sane(double weight)
{
    if (!isfinite(weight) || weight <= 0)
        return 1;
    if (weight < WORKER_WEIGHT_LEAST)
        return WORKER_WEIGHT_LEAST;
    return weight < WORKER_WEIGHT_MOST ? weight : WORKER_WEIGHT_MOST;
}

static int compare(const void *a, const void *b)
{
    const struct worker_weight *left = a, *right = b;
    return (left->job > right->job) - (left->job < right->job);
}

/* A job that the server did not list has only just come, or has gone. */
static double weight_of(const struct worker_stream *stream, const struct worker_share *share)
{
    if (!share->of_job)
        return stream->weight > 0 ? stream->weight : 1;
    struct worker_weight key = {.job = share->job}, *found = NULL;
    if (stream->weight_count > 0)
        found = bsearch(&key, stream->weights, stream->weight_count, sizeof key, compare);
    return found ? found->weight : 1;
}

static bool list_weights(struct worker_stream *stream, const struct worker_live_job *jobs, int count)
{
    struct worker_weight *weights = realloc(stream->weights, ((size_t)count + 1) * sizeof *weights);
    if (!weights)
        return false;
    stream->weights = weights;
    stream->weight_count = (uint32_t)count;
    stream->weight = 0;
    for (int i = 0; i < count; i++) {
        weights[i] =
            (struct worker_weight){base_hash_xxh3(jobs[i].job, strlen(jobs[i].job)), sane(jobs[i].weight)};
        stream->weight += weights[i].weight;
    }
    if (count > 1)
        qsort(weights, (size_t)count, sizeof *weights, compare);
    return true;
}

void worker_share_weigh(struct worker_core *core, uint32_t index, const struct worker_live_job *jobs,
                        int count)
{
    if (!list_weights(core->streams[index], jobs, count))
        core->broken = true;
    for (uint32_t i = 0; i < core->shares.count; i++) {
        struct worker_share *share = share_at(core, i);
        if (!share->slot.used || share->stream != index)
            continue;
        double weight = weight_of(core->streams[index], share);
        if (share->active_at != WORKER_NONE)
            core->active_weight += weight - share->weight;
        share->weight = weight;
    }
}

/* ---- life ---- */

uint32_t worker_share_open(struct worker_core *core, uint32_t stream, const uint64_t *job)
{
    uint32_t index;
    for (uint32_t i = 0; job && i < core->shares.count; i++) {
        struct worker_share *share = share_at(core, i);
        if (share->slot.used && share->stream == stream && share->of_job && share->job == *job) {
            share->keepers++;
            return i;
        }
    }
    struct worker_share *share = worker_slots_get(&core->shares, &index);
    if (!share)
        return WORKER_NONE;
    share->stream = stream;
    share->of_job = job != NULL;
    share->job = job ? *job : 0;
    share->weight = weight_of(core->streams[stream], share);
    share->active_at = WORKER_NONE;
    share->keepers = 1;
    return index;
}

void worker_share_release(struct worker_core *core, uint32_t index)
{
    struct worker_share *share = share_at(core, index);
    if (--share->keepers > 0)
        return;
    free(share->queue.blocks);
    worker_slots_put(&core->shares, index);
}

void worker_share_sweep(struct worker_core *core, struct worker_stream *stream)
{
    for (uint32_t i = 0; i < stream->claims.count; i++) {
        struct worker_claim *claim = &stream->claims.items[i];
        if (claim->job || claim->share == WORKER_NONE)
            continue;
        worker_share_release(core, claim->share);
        claim->share = WORKER_NONE;
    }
}

void worker_share_close(struct worker_core *core, struct worker_stream *stream)
{
    for (uint32_t i = 0; i < stream->claims.count; i++)
        if (stream->claims.items[i].share != WORKER_NONE)
            worker_share_release(core, stream->claims.items[i].share);
    worker_share_release(core, stream->share);
}

void worker_share_clear(struct worker_core *core)
{
    for (uint32_t i = 0; i < core->shares.count; i++)
        if (share_at(core, i)->slot.used)
            free(share_at(core, i)->queue.blocks);
    free(core->active);
    worker_slots_fini(&core->shares);
}

/* ---- the queue of a share ---- */

static void heap_set(struct worker_core *core, struct worker_heap *heap, uint32_t at, uint32_t block)
{
    heap->blocks[at] = block;
    worker_block_at(core, block)->heap_at = at;
}

static bool sooner(const struct worker_core *core, uint32_t a, uint32_t b)
{
    const struct worker_block *left = worker_block_at(core, a), *right = worker_block_at(core, b);
    if (left->deadline_ns != right->deadline_ns)
        return left->deadline_ns < right->deadline_ns;
    return left->epoch != right->epoch ? left->epoch < right->epoch : left->number < right->number;
}

static void sift_up(struct worker_core *core, struct worker_heap *heap, uint32_t at)
{
    uint32_t block = heap->blocks[at];
    while (at > 0 && sooner(core, block, heap->blocks[(at - 1) / 2])) {
        heap_set(core, heap, at, heap->blocks[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    heap_set(core, heap, at, block);
}

static void sift_down(struct worker_core *core, struct worker_heap *heap, uint32_t at)
{
    uint32_t block = heap->blocks[at];
    for (uint32_t child = 2 * at + 1; child < heap->count; child = 2 * at + 1) {
        if (child + 1 < heap->count && sooner(core, heap->blocks[child + 1], heap->blocks[child]))
            child++;
        if (!sooner(core, heap->blocks[child], block))
            break;
        heap_set(core, heap, at, heap->blocks[child]);
        at = child;
    }
    heap_set(core, heap, at, block);
}

static bool heap_put(struct worker_core *core, struct worker_heap *heap, uint32_t block)
{
    if (!base_grow(&heap->blocks, heap->count, sizeof *heap->blocks))
        return false;
    heap->blocks[heap->count++] = block;
    sift_up(core, heap, heap->count - 1);
    return true;
}

static void heap_remove(struct worker_core *core, struct worker_heap *heap, uint32_t at)
{
    uint32_t last = heap->blocks[--heap->count];
    if (at == heap->count)
        return;
    heap_set(core, heap, at, last);
    sift_down(core, heap, at);
    sift_up(core, heap, worker_block_at(core, last)->heap_at);
}

/* ---- who has something queued ---- */

/* Where it stands: one that comes back gets no credit for the time in which it asked for nothing. */
static double stands_at(const struct worker_core *core, const struct worker_share *share)
{
    return share->active_at == WORKER_NONE ? later(share->had_ns, core->virtual_ns) : share->had_ns;
}

static bool activate(struct worker_core *core, uint32_t index)
{
    struct worker_share *share = share_at(core, index);
    if (!base_grow(&core->active, core->active_count, sizeof *core->active))
        return false;
    if (core->active_count == 0 && core->counts.blocks_making == 0) /* after a rest nobody owes anything */
        core->virtual_ns = later(core->virtual_ns, core->most_had_ns);
    share->had_ns = stands_at(core, share);
    share->active_at = core->active_count;
    core->active[core->active_count++] = index;
    core->active_weight += share->weight;
    return true;
}

static void deactivate(struct worker_core *core, struct worker_share *share)
{
    uint32_t last = core->active[--core->active_count];
    core->active[share->active_at] = last;
    share_at(core, last)->active_at = share->active_at;
    share->active_at = WORKER_NONE;
    core->active_weight = core->active_count > 0 ? core->active_weight - share->weight : 0;
}

static void enqueue(struct worker_core *core, uint32_t index)
{
    uint32_t at = worker_block_at(core, index)->share;
    struct worker_share *share = share_at(core, at);
    share->keepers++;
    if (!heap_put(core, &share->queue, index) || (share->active_at == WORKER_NONE && !activate(core, at)))
        core->broken = true;
}

static void dequeue(struct worker_core *core, uint32_t index)
{
    const struct worker_block *block = worker_block_at(core, index);
    struct worker_share *share = share_at(core, block->share);
    heap_remove(core, &share->queue, block->heap_at);
    if (share->queue.count == 0)
        deactivate(core, share);
}

/* ---- blocks ---- */

static bool charged_to_asker(enum worker_cause cause)
{
    return cause == WORKER_CAUSE_PRESSURE || cause == WORKER_CAUSE_LATE || cause == WORKER_CAUSE_HEDGE;
}

void worker_share_put(struct worker_core *core, uint32_t index, uint32_t asker)
{
    struct worker_block *block = worker_block_at(core, index);
    bool again = asker != WORKER_NONE && charged_to_asker(block->cause);
    block->share = again ? asker : core->streams[block->stream]->share;
    enqueue(core, index);
}

void worker_share_offer(struct worker_core *core, uint32_t index, uint32_t asker)
{
    struct worker_block *block = worker_block_at(core, index);
    uint32_t from = block->share;
    if (from == asker || !charged_to_asker(block->cause) ||
        stands_at(core, share_at(core, asker)) >= stands_at(core, share_at(core, from)))
        return;
    dequeue(core, index);
    worker_share_release(core, from);
    block->share = asker;
    enqueue(core, index);
}

void worker_share_hasten(struct worker_core *core, uint32_t index)
{
    const struct worker_block *block = worker_block_at(core, index);
    sift_up(core, &share_at(core, block->share)->queue, block->heap_at);
}

void worker_share_drop(struct worker_core *core, uint32_t index)
{
    dequeue(core, index);
    worker_share_release(core, worker_block_at(core, index)->share);
}

uint32_t worker_share_first(const struct worker_core *core, uint32_t stream)
{
    for (uint32_t i = 0; i < core->active_count; i++)
        if (share_at(core, core->active[i])->stream == stream)
            return share_at(core, core->active[i])->queue.blocks[0];
    return WORKER_NONE;
}

static double least_had(const struct worker_core *core)
{
    double least = INFINITY;
    for (uint32_t i = 0; i < core->active_count; i++) {
        double had_ns = share_at(core, core->active[i])->had_ns;
        least = had_ns < least ? had_ns : least;
    }
    return least;
}

uint32_t worker_share_next(const struct worker_core *core)
{
    double limit = least_had(core) + (double)WORKER_SHARE_WINDOW_NS, next_had = 0;
    int64_t next_deadline_ns = INT64_MAX;
    uint32_t next = WORKER_NONE;
    for (uint32_t i = 0; i < core->active_count; i++) {
        const struct worker_share *share = share_at(core, core->active[i]);
        if (share->had_ns > limit)
            continue;
        int64_t deadline_ns = worker_block_at(core, share->queue.blocks[0])->deadline_ns;
        if (next != WORKER_NONE && (deadline_ns > next_deadline_ns ||
                                    (deadline_ns == next_deadline_ns && share->had_ns >= next_had)))
            continue;
        next = share->queue.blocks[0];
        next_deadline_ns = deadline_ns;
        next_had = share->had_ns;
    }
    return next;
}

static void charge(struct worker_core *core, struct worker_share *share, double cost_ns)
{
    share->had_ns += cost_ns / share->weight;
    core->most_had_ns = later(core->most_had_ns, share->had_ns);
}

static double guess_ns(const struct worker_core *core, const struct worker_block *block)
{
    const struct worker_stream *stream = core->streams[block->stream];
    double row_cost_ns = stream->row_cost_ns > 0 ? stream->row_cost_ns : ROW_COST_GUESS_NS;
    return row_cost_ns * worker_block_rows(stream, block->number);
}

/* That cost would put an account farther ahead of the last one that waits than the window: what is queued in it would not be served. */
static bool is_too_much(const struct worker_core *core, uint32_t index, double cost_ns)
{
    const struct worker_share *share = share_at(core, index);
    return stands_at(core, share) + cost_ns / share->weight >
           least_had(core) + (double)WORKER_SHARE_WINDOW_NS;
}

void worker_share_spare(struct worker_core *core, uint32_t index)
{
    struct worker_block *block = worker_block_at(core, index);
    block->spared = is_too_much(core, block->share, guess_ns(core, block));
}

void worker_share_start(struct worker_core *core, uint32_t index)
{
    struct worker_block *block = worker_block_at(core, index);
    core->virtual_ns = later(core->virtual_ns, least_had(core));
    dequeue(core, index);
    block->charged_ns = block->unasked || block->spared ? 0 : guess_ns(core, block);
    charge(core, share_at(core, block->share), block->charged_ns);
}

/* The account may stand still: a debt counts from where it would stand now. */
static void charge_late(struct worker_core *core, uint32_t index, double cost_ns)
{
    struct worker_share *share = share_at(core, index);
    share->had_ns = stands_at(core, share);
    charge(core, share, cost_ns);
}

void worker_share_ask(struct worker_core *core, uint32_t index, uint32_t asker)
{
    struct worker_block *block = worker_block_at(core, index);
    uint32_t payer = charged_to_asker(block->cause) ? asker : core->streams[block->stream]->share;
    bool paid = !block->unasked || block->spared;
    block->unasked = false;
    if (paid)
        return;
    double cost_ns = block->state == WORKER_READY ? block->owed_ns : guess_ns(core, block);
    block->spared = is_too_much(core, payer, cost_ns);
    if (!block->spared)
        charge_late(core, payer, cost_ns);
    if (block->state == WORKER_READY)
        return;
    block->charged_ns = cost_ns;
    share_at(core, payer)->keepers++;
    worker_share_release(core, block->share);
    block->share = payer;
}

void worker_share_settle(struct worker_core *core, uint32_t index, double cost_ns)
{
    struct worker_block *block = worker_block_at(core, index);
    block->owed_ns = cost_ns * block->part;
    if (cost_ns > 0 && !block->unasked && !block->spared)
        charge(core, share_at(core, block->share), cost_ns * block->pays - block->charged_ns);
    worker_share_release(core, block->share);
}

double worker_share_before(const struct worker_core *core, uint32_t index)
{
    const struct worker_block *block = worker_block_at(core, index);
    return block->heap_at * core->active_weight / share_at(core, block->share)->weight;
}
