/* SPDX-License-Identifier: Apache-2.0 */
/* What must be there, is there, and is there once: see proof.h. */
#include "client/cli/proof.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST = 3 };

/* ---- the frontier ---- */

/* The latest start of a rank in the shape of `like`; NULL: none. */
static const struct cli_proof_start *latest(const struct cli_proof *proof, size_t group,
                                            const struct ledger_start *like, uint32_t rank)
{
    for (size_t i = proof->start_count; i-- > 0;) {
        const struct cli_proof_start *start = &proof->starts[i];
        if (start->group == group && start->is.rank == rank && start->is.world == like->world &&
            start->is.batch == like->batch && start->is.tail == like->tail)
            return start;
    }
    return NULL;
}

static void find_frontier(struct cli_proof *proof, size_t index)
{
    struct cli_proof_group *group = &proof->groups[index];
    const struct ledger_start *last = &proof->starts[group->last].is;
    uint32_t lacking = 0;
    group->frontier = proof->starts[group->last].at;
    for (uint32_t rank = 0; rank < last->world; rank++) {
        const struct cli_proof_start *start = latest(proof, index, last, rank);
        if (start && cli_proof_compare(start->at, group->frontier) < 0)
            group->frontier = start->at;
        if (!start && lacking++ < FIRST)
            cli_proof_say(proof, "job %s: no ledger of rank %u of %u", last->job, rank, last->world);
    }
}

/* ---- steps ---- */

static const struct ledger_start *shape_of(const struct cli_proof *proof, const struct cli_proof_step *step)
{
    return &proof->starts[step->start].is;
}

/* qsort_r's context is the proof. */
static int by_step(const void *a, const void *b, void *context)
{
    const struct cli_proof_step *x = a, *y = b;
    const struct ledger_start *s = shape_of(context, x), *t = shape_of(context, y);
    const uint64_t keys[][2] = {{x->group, y->group}, {x->epoch, y->epoch}, {x->begin, y->begin},
                                {s->world, t->world}, {s->batch, t->batch}, {s->tail, t->tail},
                                {x->rank, y->rank}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (keys[i][0] != keys[i][1])
            return keys[i][0] < keys[i][1] ? -1 : 1;
    return 0;
}

/* Whether a later launch began at or before it: then what it lacks came from there. */
static bool is_superseded(const struct cli_proof *proof, const struct cli_proof_step *step,
                          uint64_t generation)
{
    struct cli_proof_cursor begin = {step->epoch, step->begin};
    for (size_t i = proof->start_count; i-- > 0 && proof->starts[i].is.generation > generation;) {
        const struct ledger_start *start = &proof->starts[i].is;
        struct cli_proof_cursor from = {start->epoch, start->position};
        if (proof->starts[i].group == step->group && cli_proof_compare(from, begin) <= 0)
            return true;
    }
    return false;
}

static void judge_step(struct cli_proof *proof, const struct cli_proof_step *steps, size_t count)
{
    const struct ledger_start *shape = shape_of(proof, steps);
    struct cli_proof_cursor begin = {steps->epoch, steps->begin};
    uint64_t generation = 0;
    uint32_t ranks = 1;
    for (size_t i = 0; i < count; i++) {
        uint64_t own = shape_of(proof, &steps[i])->generation;
        generation = own > generation ? own : generation;
        ranks += i > 0 && steps[i].rank != steps[i - 1].rank;
    }
    if (ranks == shape->world || cli_proof_compare(begin, proof->groups[steps->group].frontier) >= 0 ||
        is_superseded(proof, steps, generation))
        return;
    struct cli_proof_epoch *epoch = proof->epochs;
    while (epoch->group != steps->group || epoch->stream_epoch != steps->epoch)
        epoch++;
    if (epoch->uneven++ < FIRST)
        cli_proof_say(proof,
                      "job %s epoch %u: uneven, the step at position %" PRIu64 " came to %u of %u ranks",
                      shape->job, epoch->job_epoch, steps->begin, ranks, shape->world);
}

static void judge_steps(struct cli_proof *proof)
{
    qsort_r(proof->steps, proof->step_count, sizeof *proof->steps, by_step, proof);
    for (size_t i = 0, count; i < proof->step_count; i += count) {
        const struct cli_proof_step *first = &proof->steps[i];
        struct cli_proof_step next = *first;
        for (count = 1; i + count < proof->step_count; count++) {
            next = proof->steps[i + count];
            next.rank = first->rank; /* all else must be equal */
            if (by_step(first, &next, proof) != 0)
                break;
        }
        judge_step(proof, first, count);
    }
}

/* ---- what was given up ---- */

/* The start before it in its file; NULL: none. */
static const struct cli_proof_start *start_before(const struct cli_proof *proof,
                                                  const struct cli_proof_start *start)
{
    const struct cli_proof_start *best = NULL;
    for (size_t i = 0; i < proof->start_count; i++) {
        const struct cli_proof_start *other = &proof->starts[i];
        if (other->file == start->file && other->offset < start->offset &&
            (!best || other->offset > best->offset))
            best = other;
    }
    return best && best->group == start->group ? best : NULL;
}

/* From where to where a start went on elsewhere, forwards; false: it did not. */
static bool gave_up(const struct cli_proof *proof, const struct cli_proof_start *start,
                    struct cli_proof_cursor *from, struct cli_proof_cursor *to)
{
    const struct cli_proof_start *before = start->is.abandons ? start_before(proof, start) : NULL;
    *to = (struct cli_proof_cursor){start->is.epoch, start->is.position};
    if (before)
        *from = before->at;
    return before && cli_proof_compare(*from, *to) < 0;
}

static void excuse(struct cli_proof *proof, struct cli_proof_epoch *epoch)
{
    struct cli_proof_cursor from, to;
    for (size_t i = 0; i < proof->start_count; i++) {
        const struct cli_proof_start *start = &proof->starts[i];
        if (start->group != epoch->group || !gave_up(proof, start, &from, &to) ||
            epoch->stream_epoch < from.epoch || epoch->stream_epoch > to.epoch)
            continue;
        uint64_t begin = epoch->stream_epoch == from.epoch ? from.position : 0;
        uint64_t end = epoch->stream_epoch == to.epoch ? to.position : start->is.items;
        for (uint64_t position = begin; position < end; position++) {
            epoch->abandoned += !epoch->seen[position];
            epoch->seen[position] += !epoch->seen[position];
        }
    }
}

/* Whole epochs [from, to) of a group. */
static bool are_given_up(const struct cli_proof *proof, size_t group, uint32_t begin, uint32_t end)
{
    struct cli_proof_cursor from, to;
    for (size_t i = 0; i < proof->start_count; i++)
        if (proof->starts[i].group == group && gave_up(proof, &proof->starts[i], &from, &to) &&
            from.epoch <= begin && to.epoch >= end)
            return true;
    return false;
}

/* ---- positions ---- */

/* The job's first position: a new run may have joined within an epoch. */
static struct cli_proof_cursor first_of(const struct cli_proof *proof, size_t group)
{
    struct cli_proof_cursor first = {proof->groups[group].is.first_epoch, 0};
    bool found = false;
    for (size_t i = 0; i < proof->start_count; i++) {
        const struct ledger_start *start = &proof->starts[i].is;
        struct cli_proof_cursor from = {start->epoch, start->position};
        if (proof->starts[i].group != group || start->resumed ||
            (found && cli_proof_compare(first, from) <= 0))
            continue;
        first = from;
        found = true;
    }
    return first;
}

static void judge_missing(struct cli_proof *proof, struct cli_proof_epoch *epoch, uint64_t begin,
                          uint64_t end)
{
    const char *job = proof->groups[epoch->group].is.job;
    int runs = 0;
    for (uint64_t position = begin; position < end; position++) {
        uint64_t first = position;
        while (position < end && !epoch->seen[position])
            position++;
        if (position == first)
            continue;
        epoch->missing += position - first;
        if (runs++ < FIRST)
            cli_proof_say(proof, "job %s epoch %u positions %" PRIu64 " to %" PRIu64 ": missing", job,
                          epoch->job_epoch, first, position - 1);
    }
}

static void judge_epoch(struct cli_proof *proof, struct cli_proof_epoch *epoch, bool complete)
{
    const struct cli_proof_group *group = &proof->groups[epoch->group];
    struct cli_proof_cursor first = first_of(proof, epoch->group);
    bool finished = epoch->stream_epoch < group->frontier.epoch;
    uint64_t begin = epoch->stream_epoch == first.epoch ? first.position : 0, end = 0;
    if (finished)
        end = epoch->ended ? epoch->end : group->is.items;
    else if (epoch->stream_epoch == group->frontier.epoch)
        end = group->frontier.position;
    excuse(proof, epoch);
    judge_missing(proof, epoch, begin, end);
    if (finished && epoch->ended && end < group->is.items &&
        (!epoch->end_drops || group->is.items - end >= epoch->end_rows)) {
        epoch->others++;
        cli_proof_say(proof, "job %s epoch %u: ends at position %" PRIu64 " of %" PRIu64, group->is.job,
                      epoch->job_epoch, end, group->is.items);
    }
    if (!finished && complete)
        cli_proof_say(proof, "job %s epoch %u: incomplete", group->is.job, epoch->job_epoch);
    bool wrong = epoch->missing || epoch->doubled || epoch->differing || epoch->uneven || epoch->others;
    enum cli_proof_state good = epoch->abandoned ? CLI_PROOF_ABANDONED : CLI_PROOF_COMPLETE;
    epoch->state = wrong ? CLI_PROOF_VIOLATED : finished ? good : CLI_PROOF_INCOMPLETE;
}

static int by_epoch(const void *a, const void *b)
{
    const struct cli_proof_epoch *x = a, *y = b;
    if (x->group != y->group)
        return x->group < y->group ? -1 : 1;
    return x->job_epoch < y->job_epoch ? -1 : x->job_epoch > y->job_epoch;
}

/* Epochs before the frontier of which nothing is there at all. */
static void judge_gaps(struct cli_proof *proof, size_t group)
{
    struct cli_proof_cursor first = first_of(proof, group), frontier = proof->groups[group].frontier;
    const struct ledger_start *is = &proof->groups[group].is;
    uint32_t expected = first.epoch;
    for (size_t i = 0; i <= proof->epoch_count; i++) {
        const struct cli_proof_epoch *epoch = i < proof->epoch_count ? &proof->epochs[i] : NULL;
        if (epoch && epoch->group != group)
            continue;
        uint32_t here = epoch && epoch->stream_epoch < frontier.epoch ? epoch->stream_epoch : frontier.epoch;
        if (here > expected && !are_given_up(proof, group, expected, here))
            cli_proof_say(proof, "job %s epochs %u to %u: missing, no ledger has anything of them", is->job,
                          expected - is->first_epoch, here - is->first_epoch - 1);
        expected = here >= expected ? here + (here < frontier.epoch) : expected;
    }
}

enum base_code cli_proof_judge(struct cli_proof *proof, bool complete, struct base_error *error)
{
    if (!proof->start_count)
        return base_error_set(error, BASE_INVALID, "no ledger has a start in it");
    for (size_t i = 0; i < proof->group_count; i++)
        find_frontier(proof, i);
    if (proof->epoch_count)
        qsort(proof->epochs, proof->epoch_count, sizeof *proof->epochs, by_epoch);
    if (proof->step_count)
        judge_steps(proof);
    for (size_t i = 0; i < proof->epoch_count; i++)
        judge_epoch(proof, &proof->epochs[i], complete);
    for (size_t i = 0; i < proof->group_count; i++)
        judge_gaps(proof, i);
    return BASE_OK;
}
