/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of sibling streams, made together while that pays.
 *
 * Streams of a family have the same item at the same position, so that block (epoch, number) of each of them takes
 * the same items. When one is about to be made, those siblings' are made with it that are queued here, or are absent and will be
 * asked for here: this worker is their home, a claim that is not dormant will use them, and their memory is free or held by what is
 * used later; but what goes along leaves a block's room to each place in the making that is free, and to the next block of every
 * place: those may be more urgent. What comes of it is ordinary: who asks finds the block MAKING or READY, and pays its part then.
 *
 * Whether it pays is measured, for each set of streams, in prep CPU a row:
 *
 *   LEARNING ----------------> TOGETHER --------------------> APART      together >= 0.95 x the sum of alone
 *     ^    8 blocks of each      |   ^ judged at each block,    |
 *     |    made alone            |   | from the 8th on          |
 *     +--------------------------+---+--------------------------+        after 1000 blocks
 */
#include "worker/machine.h"

#include "base/grow.h"

#include <stdlib.h>
#include <string.h>

#define WORTH 0.95           /* of the sum of alone: together must be less */
#define REMEMBERED_BLOCKS 16 /* a mean counts these fully, older ones ever less */
#define GROUPS_MOST 1024     /* sets of streams; of more the one used longest ago is forgotten, and counted */
#define MEMBERS (1 + WORKER_SIBLINGS)

enum phase { LEARNING, TOGETHER, APART };

struct group {
    uint32_t id; /* never 0 of one that is in use */
    uint32_t streams[MEMBERS], count;
    enum phase phase;
    uint32_t blocks;               /* of this phase */
    uint64_t learnt_from[MEMBERS]; /* the streams' alone_blocks when LEARNING began */
    struct worker_cost together;
    uint64_t used;
};

struct worker_siblings {
    struct group *groups; /* owned; a place with id 0 is free */
    uint32_t count, ids;
    uint64_t uses;
};

/* Who could be made with it. */
struct candidate {
    uint32_t stream, block; /* block WORKER_NONE: absent */
    uint64_t next_use;      /* 0 of a queued one */
};

/* ---- costs ---- */

static void add_cost(struct worker_cost *cost, int64_t cpu_ns, uint32_t rows)
{
    if (cost->blocks >= REMEMBERED_BLOCKS) {
        cost->cpu_ns /= 2;
        cost->rows /= 2;
        cost->blocks /= 2;
    }
    cost->cpu_ns += (double)cpu_ns;
    cost->rows += rows;
    cost->blocks++;
}

static double a_row(const struct worker_cost *cost)
{
    return cost->rows > 0 ? cost->cpu_ns / cost->rows : 0;
}

static double alone_ns(const struct worker_core *core, const struct group *group)
{
    double sum = 0;
    for (uint32_t i = 0; i < group->count; i++)
        sum += a_row(&core->streams[group->streams[i]]->alone);
    return sum;
}

/* ---- groups ---- */

static void learn(const struct worker_core *core, struct group *group)
{
    group->phase = LEARNING;
    group->blocks = 0;
    for (uint32_t i = 0; i < group->count; i++)
        group->learnt_from[i] = core->streams[group->streams[i]]->alone_blocks;
}

static bool same_streams(const struct group *group, const uint32_t *streams, uint32_t count)
{
    return group->id != 0 && group->count == count &&
           memcmp(group->streams, streams, count * sizeof *streams) == 0;
}

/* A free place, or that of the one used longest ago, when there are too many. NULL: no memory. */
static struct group *get_place(struct worker_core *core)
{
    struct worker_siblings *siblings = core->siblings;
    struct group *place = NULL;
    for (uint32_t i = 0; i < siblings->count; i++)
        if (!place || siblings->groups[i].used < place->used)
            place = &siblings->groups[i];
    if (place && (place->id == 0 || siblings->count == GROUPS_MOST)) {
        core->counts.sibling_sets_forgotten += place->id != 0;
        return place;
    }
    if (!base_grow(&siblings->groups, siblings->count, sizeof *siblings->groups))
        return NULL;
    return &siblings->groups[siblings->count++];
}

/* `streams` ascend. NULL: no memory. What the streams cost alone may be known already. */
static struct group *get_group(struct worker_core *core, const uint32_t *streams, uint32_t count)
{
    if (!core->siblings)
        core->siblings = calloc(1, sizeof *core->siblings);
    struct worker_siblings *siblings = core->siblings;
    for (uint32_t i = 0; siblings && i < siblings->count; i++)
        if (same_streams(&siblings->groups[i], streams, count)) {
            siblings->groups[i].used = ++siblings->uses;
            return &siblings->groups[i];
        }
    struct group *place = siblings ? get_place(core) : NULL;
    if (!place) {
        core->broken = true;
        return NULL;
    }
    *place = (struct group){.id = ++siblings->ids, .count = count, .used = ++siblings->uses};
    memcpy(place->streams, streams, count * sizeof *streams);
    return place;
}

static struct group *find_group(const struct worker_core *core, uint32_t id)
{
    for (uint32_t i = 0; core->siblings && i < core->siblings->count; i++)
        if (id != 0 && core->siblings->groups[i].id == id)
            return &core->siblings->groups[i];
    return NULL;
}

void worker_siblings_forget(struct worker_core *core, uint32_t stream)
{
    for (uint32_t i = 0; core->siblings && i < core->siblings->count; i++) {
        struct group *group = &core->siblings->groups[i];
        for (uint32_t m = 0; m < group->count; m++)
            if (group->streams[m] == stream) {
                *group = (struct group){0};
                break;
            }
    }
}

static bool learnt(const struct worker_core *core, const struct group *group)
{
    for (uint32_t i = 0; i < group->count; i++)
        if (core->streams[group->streams[i]]->alone_blocks <
            group->learnt_from[i] + core->options.learn_blocks)
            return false;
    return true;
}

/* One more block of it begins: together? */
static bool pays(struct worker_core *core, struct group *group)
{
    if (group->phase == LEARNING && learnt(core, group)) {
        group->phase = TOGETHER;
        group->blocks = 0;
        group->together = (struct worker_cost){0};
    } else if (group->phase == TOGETHER && group->together.blocks >= core->options.learn_blocks &&
               a_row(&group->together) >= WORTH * alone_ns(core, group)) {
        group->phase = APART;
        group->blocks = 0;
    } else if (group->phase != LEARNING && group->blocks >= core->options.learn_again) {
        learn(core, group);
    }
    group->blocks++;
    return group->phase == TOGETHER;
}

void worker_siblings_made(struct worker_core *core, const struct worker_block *block,
                          const struct worker_made *made)
{
    struct worker_stream *stream = core->streams[block->stream];
    uint32_t rows = worker_block_rows(stream, block->number);
    struct group *group = find_group(core, block->group);
    if (made->code != BASE_OK || made->cpu_ns <= 0 || block->rides)
        return;
    if (block->part == 1) {
        add_cost(&stream->alone, made->cpu_ns, rows);
        stream->alone_blocks++;
    } else if (group) {
        add_cost(&group->together, made->cpu_ns, rows);
    }
}

/* ---- who ---- */

static bool are_siblings(const struct worker_stream *a, const struct worker_stream *b)
{
    return a != b && a->live && b->live && a->block_rows == b->block_rows && a->uses_epoch == b->uses_epoch &&
           memcmp(a->family, b->family, sizeof a->family) == 0;
}

/* A failed block is made alone: nobody suffers for what only another's substitute needs. */
static bool may_join(struct worker_core *core, int64_t now_ns, const struct worker_block *block,
                     struct candidate *candidate)
{
    struct worker_stream *stream = core->streams[candidate->stream];
    candidate->block = worker_block_find(core, candidate->stream, block->epoch, block->number);
    if (candidate->block != WORKER_NONE) {
        const struct worker_block *queued = worker_block_at(core, candidate->block);
        candidate->next_use = 0;
        return queued->state == WORKER_QUEUED && queued->attempts == 0;
    }
    if (worker_request_home(stream, block->epoch, block->number) != core->options.worker)
        return false;
    if (!worker_claims_sort(&stream->claims, now_ns)) {
        core->broken = true;
        return false;
    }
    uint64_t start = worker_block_start(stream, block->epoch, block->number);
    candidate->next_use =
        worker_claims_next_use(&stream->claims, start, start + worker_block_rows(stream, block->number));
    return candidate->next_use != WORKER_CLAIMS_NEVER;
}

/* Memory that what goes along must leave: for a block in each free place, and for the next one of every place. */
static uint64_t kept_bytes(const struct worker_core *core)
{
    uint64_t most = 0, places = core->options.making_max;
    for (uint32_t i = 0; i < core->stream_count; i++)
        if (core->streams[i] && core->streams[i]->live && core->streams[i]->block_bytes > most)
            most = core->streams[i]->block_bytes;
    return worker_arena_round(most) * (2 * places - worker_block_makings(core));
}

/* Those used soonest, as far as there is memory for all of them. */
static uint32_t find_candidates(struct worker_core *core, int64_t now_ns, uint32_t index,
                                struct candidate *found)
{
    const struct worker_block *block = worker_block_at(core, index);
    uint64_t bytes = 0, left = core->arena.free_bytes + core->evictable_bytes, keep = kept_bytes(core);
    uint32_t count = 0, kept = 0;
    for (uint32_t i = 0; i < core->stream_count; i++) {
        struct candidate candidate = {.stream = i};
        if (!core->streams[i] || !are_siblings(core->streams[i], core->streams[block->stream]) ||
            !may_join(core, now_ns, block, &candidate))
            continue;
        uint32_t at = count < WORKER_SIBLINGS ? count++ : WORKER_SIBLINGS;
        for (; at > 0 && candidate.next_use < found[at - 1].next_use; at--)
            if (at < WORKER_SIBLINGS)
                found[at] = found[at - 1];
        if (at < WORKER_SIBLINGS)
            found[at] = candidate;
    }
    for (; kept < count; kept++) {
        bytes += worker_arena_round(core->streams[found[kept].stream]->block_bytes);
        if (left < bytes + keep || !worker_block_room(core, now_ns, bytes, found[kept].next_use + 1))
            break;
    }
    return kept;
}

static int compare_streams(const void *a, const void *b)
{
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return left < right ? -1 : left > right;
}

static struct group *group_of(struct worker_core *core, uint32_t stream, const struct candidate *candidates,
                              uint32_t count)
{
    uint32_t streams[MEMBERS] = {stream};
    for (uint32_t i = 0; i < count; i++)
        streams[i + 1] = candidates[i].stream;
    qsort(streams, count + 1, sizeof *streams, compare_streams);
    return get_group(core, streams, count + 1);
}

/* ---- together ---- */

/* Blocks that are MAKING together. */
struct together {
    uint32_t blocks[MEMBERS], count;
};

/* The first one, whose turn it is, pays for those that are spared, but no more than it would cost alone. */
static double first_pays(const struct worker_core *core, const struct together *together,
                         const struct group *group)
{
    const struct worker_block *first = worker_block_at(core, together->blocks[0]);
    double all = a_row(&group->together), most = a_row(&core->streams[first->stream]->alone),
           pays = first->part;
    for (uint32_t i = 1; i < together->count; i++)
        if (worker_block_at(core, together->blocks[i])->spared)
            pays += worker_block_at(core, together->blocks[i])->part;
    if (pays * all > most)
        pays = most / all;
    return pays > first->part ? pays : first->part;
}

/* Each one's part of what the making costs: as it would be alone. */
static void share_cost(const struct worker_core *core, const struct together *together,
                       const struct group *group, bool whole)
{
    double sum = 0;
    for (uint32_t i = 0; i < together->count; i++)
        sum += a_row(&core->streams[worker_block_at(core, together->blocks[i])->stream]->alone);
    for (uint32_t i = 0; i < together->count; i++) {
        struct worker_block *block = worker_block_at(core, together->blocks[i]);
        block->part = block->pays = a_row(&core->streams[block->stream]->alone) / sum;
        block->group = whole ? group->id : 0;
    }
    worker_block_at(core, together->blocks[0])->pays = first_pays(core, together, group);
}

static void join(struct worker_core *core, int64_t now_ns, const struct candidate *candidate,
                 struct together *together, struct worker_action *action)
{
    struct worker_stream *stream = core->streams[candidate->stream];
    struct worker_sibling *sibling = &action->siblings[action->sibling_count];
    uint32_t index = candidate->block;
    uint64_t offset;
    if (!worker_block_reserve(core, now_ns, stream->block_bytes, candidate->next_use + 1, &offset))
        return;
    if (index == WORKER_NONE) {
        struct worker_block absent = {.stream = candidate->stream,
                                      .epoch = action->epoch,
                                      .number = action->number,
                                      .since_ns = now_ns,
                                      .deadline_ns = action->deadline_ns};
        bool pressed = false;
        if (worker_history_was_made(&stream->history, action->epoch, action->number, &pressed))
            absent.cause = pressed ? WORKER_CAUSE_PRESSURE : WORKER_CAUSE_LATE;
        index = worker_block_queue(core, &absent, WORKER_NONE);
        if (index == WORKER_NONE)
            return; /* the machine is broken */
        worker_block_at(core, index)->unasked = true;
    }
    worker_share_spare(core, index);
    worker_block_begin(core, now_ns, index, offset);
    struct worker_block *block = worker_block_at(core, index);
    block->rides = true;
    core->counts.blocks_riding++;
    together->blocks[together->count++] = index;
    *sibling = (struct worker_sibling){.stream = stream->context,
                                       .block = worker_slots_handle(&core->blocks, index),
                                       .offset = offset,
                                       .size_bytes = stream->block_bytes,
                                       .cause = block->cause,
                                       .jobs = worker_block_jobs(core, block)};
    action->sibling_count++;
    action->deadline_ns = block->deadline_ns < action->deadline_ns ? block->deadline_ns : action->deadline_ns;
}

void worker_siblings_join(struct worker_core *core, int64_t now_ns, uint32_t index,
                          struct worker_action *action)
{
    struct candidate candidates[WORKER_SIBLINGS];
    uint32_t stream = worker_block_at(core, index)->stream;
    if (worker_block_at(core, index)->attempts > 0)
        return;
    uint32_t count = find_candidates(core, now_ns, index, candidates);
    struct group *group = count > 0 ? group_of(core, stream, candidates, count) : NULL;
    if (!group || !pays(core, group))
        return;
    struct together together = {.blocks = {index}, .count = 1};
    for (uint32_t i = 0; i < count; i++)
        join(core, now_ns, &candidates[i], &together, action);
    if (together.count > 1) /* fewer than the group: not what that would cost */
        share_cost(core, &together, group, together.count == count + 1);
}

void worker_siblings_fini(struct worker_core *core)
{
    if (core->siblings)
        free(core->siblings->groups);
    free(core->siblings);
}
