/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/sim.h"

#include <string.h>

static bool same(struct scheduler_cursor a, struct scheduler_cursor b)
{
    return a.epoch == b.epoch && a.position == b.position;
}

static struct scheduler_cursor normal(const struct sim_shape *shape, struct scheduler_cursor at)
{
    if (sim_model_whole(shape, at.position))
        return at;
    return (struct scheduler_cursor){at.epoch + 1, 0};
}

/* ---- launches ---- */

static void draw_shape(struct sim_job *job, struct sim_shape *shape)
{
    struct sim_random *random = &job->world->random;
    shape->items = job->world->items;
    shape->tail = job->tail;
    do {
        shape->world = (uint32_t)sim_random_between(random, 1, SIM_RANKS);
        shape->batch = (uint32_t)sim_random_between(random, 1, 64);
        if (sim_random_chance(random, 300))
            shape->batch = (uint32_t)sim_random_between(random, 1, 4);
        if (shape->items * job->epochs / (shape->world * shape->batch) > 400)
            shape->batch = 64;
        if (shape->items < 64 && shape->tail == SCHEDULER_TAIL_DROP)
            shape->batch = 1;
    } while (shape->tail == SCHEDULER_TAIL_DROP && shape->items < (uint64_t)shape->world * shape->batch);
}

void sim_job_draw(struct sim_job *job)
{
    draw_shape(job, &job->shape);
    job->steps = 1 + job->world->items * job->epochs / (job->shape.world * job->shape.batch);
}

static void begin_rank(void *who, uint64_t what)
{
    struct sim_rank *rank = who;
    (void)what;
    if (!rank->dead && !rank->launch->over)
        sim_rank_begin(rank);
}

void sim_job_launch(void *who, uint64_t unused)
{
    struct sim_job *job = who;
    struct sim_world *world = job->world;
    struct sim_launch *before = job->launch;
    struct sim_launch *launch = sim_memory_get(&world->memory, sizeof *launch);
    const struct scheduler_stream *stream = &job->candidate->stream;
    (void)unused;
    launch->job = job;
    launch->before = before;
    launch->mixed = before && (before->half || before->mixed);
    launch->number = ++job->launches;
    if (before && sim_random_chance(&world->random, 500))
        sim_job_draw(job);
    launch->shape = job->shape;
    launch->resumes = job->has_saved;
    launch->resume = (struct scheduler_job_cursor){.at = job->saved, .first_epoch = job->first_epoch};
    memcpy(launch->resume.dataset_version, stream->dataset_version, BASE_SHA256_BYTES);
    memcpy(launch->resume.fingerprint, stream->fingerprint, sizeof stream->fingerprint);
    memcpy(launch->resume.stream, stream->hash, BASE_SHA256_BYTES);
    job->launch = launch;
    job->progress_ns = world->now_ns;
    sim_trace(world, "%s: launch %u, world %u, batch %u, stream %d", job->name, launch->number,
              launch->shape.world, launch->shape.batch, job->candidate->index);
    for (uint32_t i = 0; i < launch->shape.world; i++) {
        struct sim_rank *rank = sim_memory_get(&world->memory, sizeof *rank);
        launch->ranks[i] = rank;
        *rank = (struct sim_rank){.world = world, .job = job, .launch = launch, .rank = i};
        sim_at(world, world->now_ns + sim_random_between(&world->random, 0, world->rules.stagger_ns),
               begin_rank, rank, 0);
    }
}

static void kill_rank(void *who, uint64_t what)
{
    (void)what;
    sim_rank_kill(who);
}

static void end_launch(struct sim_job *job, bool zombies)
{
    struct sim_world *world = job->world;
    struct sim_launch *launch = job->launch;
    launch->over = true;
    for (uint32_t i = 0; i < launch->shape.world; i++)
        launch->half |= !launch->ranks[i]->core;
    for (uint32_t i = 0; i < launch->shape.world; i++) {
        int64_t after_ns = sim_random_between(&world->random, 0, zombies ? 8 * SIM_S : 300 * SIM_MS);
        sim_at(world, world->now_ns + after_ns, kill_rank, launch->ranks[i], 0);
    }
}

void sim_job_crash(struct sim_job *job, bool zombies)
{
    struct sim_world *world = job->world;
    struct sim_launch *launch = job->launch;
    if (job->done || !launch || launch->over)
        return;
    uint32_t first = (uint32_t)sim_random_between(&world->random, 0, launch->shape.world - 1);
    sim_trace(world, "%s/%u crashes", job->name, first);
    end_launch(job, zombies);
    sim_rank_kill(launch->ranks[first]);
    sim_at(world, world->now_ns + sim_random_between(&world->random, 400 * SIM_MS, 12 * SIM_S),
           sim_job_launch, job, 0);
}

static void finish(struct sim_job *job)
{
    job->done = true;
    job->world->jobs_done++;
    sim_trace(job->world, "%s is done", job->name);
}

void sim_job_failed(struct sim_rank *rank)
{
    struct sim_job *job = rank->job;
    sim_rank_kill(rank);
    if (rank->launch != job->launch || rank->launch->over || job->done)
        return;
    if (job->spoilt) {
        end_launch(job, false);
        finish(job);
        return;
    }
    if (job->world->calm && ++job->refusals > 30)
        sim_fail(job->world, "%s is refused again and again", job->name);
    sim_job_crash(job, false);
}

/* ---- the ledger ---- */

static void begin_ledger(struct sim_rank *rank)
{
    struct sim_job *job = rank->job;
    struct sim_world *world = job->world;
    size_t size = (size_t)job->epochs * world->items * sizeof *job->delivered;
    if (!job->delivered)
        job->delivered = sim_memory_get(&world->memory, size);
    memset(job->delivered, 0, size);
    job->first_epoch = rank->first_epoch;
    if (job->join == SCHEDULER_JOIN_NOW && (rank->at.epoch != 0 || rank->at.position != 0))
        sim_fail(world, "%s joins now and begins at (%u, %llu)", job->name, rank->at.epoch,
                 (unsigned long long)rank->at.position);
    if (rank->at.epoch != rank->first_epoch ||
        (job->join != SCHEDULER_JOIN_PARTIAL && rank->at.position != 0))
        sim_fail(world, "%s begins at (%u, %llu) with first epoch %u", job->name, rank->at.epoch,
                 (unsigned long long)rank->at.position, rank->first_epoch);
}

/* Its leases run: after a restart, too, until they are over. */
bool sim_job_kept(const struct sim_launch *launch)
{
    const struct sim_world *world = launch->job->world;
    int64_t up_ns = world->now_ns - world->server.started_ns;
    return !launch->lost && !launch->mixed &&
           (up_ns < world->rules.cluster.lease_ms * SIM_MS || world->rules.quiet);
}

/* The ranks of a launch begin at one place, unless the server lost those before: then trainers refuse to begin. */
static void split(struct sim_rank *rank)
{
    const struct sim_launch *launch = rank->launch;
    if (sim_job_kept(launch))
        sim_fail(rank->world, "%s/%u begins at (%u, %llu), the ranks before it at (%u, %llu)",
                 rank->job->name, rank->rank, rank->at.epoch, (unsigned long long)rank->at.position,
                 launch->start.epoch, (unsigned long long)launch->start.position);
    else
        sim_job_crash(rank->job, false);
}

void sim_job_fenced(struct sim_rank *rank)
{
    const struct sim_launch *launch = rank->launch;
    if (launch == rank->job->launch && !launch->over && sim_job_kept(launch))
        sim_fail(rank->world, "%s/%u is fenced, though nobody has started its job anew", rank->job->name,
                 rank->rank);
    sim_job_failed(rank);
}

void sim_job_started(struct sim_rank *rank)
{
    struct sim_job *job = rank->job;
    struct sim_launch *launch = rank->launch;
    if (launch != job->launch)
        return;
    if (launch->started) {
        if (!same(rank->at, launch->start) || rank->first_epoch != job->first_epoch)
            split(rank);
        return;
    }
    struct scheduler_cursor wanted = normal(&launch->shape, launch->resume.at);
    if (!launch->resumes)
        begin_ledger(rank);
    else if (!same(rank->at, wanted) || rank->first_epoch != job->first_epoch)
        sim_fail(job->world, "%s resumes at (%u, %llu), not (%u, %llu)", job->name, rank->at.epoch,
                 (unsigned long long)rank->at.position, wanted.epoch, (unsigned long long)wanted.position);
    launch->started = true;
    launch->start = launch->whole_at = job->saved = rank->at;
    job->has_saved = true;
}

/* Everything from the last saved cursor to this one has been delivered by this launch. */
static void save(struct sim_job *job)
{
    struct sim_launch *launch = job->launch;
    while (!same(job->saved, launch->whole_at)) {
        struct sim_step step = sim_model_step(&launch->shape, 0, job->saved.position);
        const uint16_t *row =
            job->delivered + (size_t)(job->saved.epoch - job->first_epoch) * launch->shape.items;
        for (uint64_t p = step.begin; p < step.begin + step.valid; p++)
            if (row[p] != launch->number)
                sim_fail(job->world, "%s: position (%u, %llu) was not delivered before its cursor was saved",
                         job->name, job->saved.epoch, (unsigned long long)p);
        job->saved = sim_model_next(&launch->shape, job->saved);
    }
}

static void note_delivered(struct sim_rank *rank, uint64_t position)
{
    struct sim_job *job = rank->job;
    uint32_t epoch = rank->at.epoch - job->first_epoch;
    if (rank->launch != job->launch || rank->launch->over)
        return; /* a zombie: what it has does not count */
    uint16_t *by = &job->delivered[(size_t)epoch * rank->launch->shape.items + position];
    if (*by == rank->launch->number)
        sim_fail(job->world, "%s/%u: position (%u, %llu) is delivered twice", job->name, rank->rank,
                 rank->at.epoch, (unsigned long long)position);
    *by = rank->launch->number;
}

static bool is_valid(const struct sim_job *job, const struct wire_row *row)
{
    return row->status == WIRE_ROW_OK ||
           (row->status == WIRE_ROW_SUBSTITUTED && job->on_bad != CLIENT_ON_BAD_SKIP);
}

static void check_row(struct sim_rank *rank, const struct client_step *step, const struct sim_step *wanted,
                      uint32_t i)
{
    uint64_t position = wanted->begin + (wanted->offset + i) % wanted->valid;
    const struct wire_row *got = &step->rows[i];
    struct wire_row row;
    sim_model_row(rank->candidate, rank->at.epoch, position, &row);
    bool counts = wanted->offset + i < wanted->valid;
    if (got->item != row.item || got->used_item != row.used_item || got->hash != row.hash ||
        got->occurrence != row.occurrence || got->status != row.status)
        sim_fail(rank->world, "%s/%u: row %u of (%u, %llu) holds item %llu, not %llu", rank->job->name,
                 rank->rank, i, rank->at.epoch, (unsigned long long)position, (unsigned long long)got->item,
                 (unsigned long long)row.item);
    uint64_t payload = rank->payload[(uint64_t)step->slot * rank->launch->shape.batch + i];
    if (i < step->distinct && payload != sim_model_payload(rank->candidate, &row))
        sim_fail(rank->world, "%s/%u: the bytes of row %u of (%u, %llu) are another row's", rank->job->name,
                 rank->rank, i, rank->at.epoch, (unsigned long long)position);
    if ((step->valid[i] != 0) != (counts && is_valid(rank->job, &row)))
        sim_fail(rank->world, "%s/%u: row %u of (%u, %llu) is %s", rank->job->name, rank->rank, i,
                 rank->at.epoch, (unsigned long long)position, step->valid[i] ? "valid" : "not valid");
    if (counts)
        note_delivered(rank, position);
}

static void advance_whole(struct sim_launch *launch)
{
    struct sim_job *job = launch->job;
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < launch->shape.world; i++)
        if (launch->ranks[i]->taken < least)
            least = launch->ranks[i]->taken;
    if (least == launch->whole)
        return;
    for (; launch->whole < least; launch->whole++)
        launch->whole_at = sim_model_next(&launch->shape, launch->whole_at);
    if (launch == job->launch && !launch->over && launch->whole % job->save_every == 0)
        save(job);
    for (uint32_t i = 0; i < launch->shape.world; i++)
        if (launch->ranks[i]->core)
            sim_rank_try(launch->ranks[i]);
}

void sim_job_took(struct sim_rank *rank, const struct client_step *step)
{
    struct sim_job *job = rank->job;
    struct sim_world *world = job->world;
    const struct sim_shape *shape = &rank->launch->shape;
    struct sim_step wanted = sim_model_step(shape, rank->rank, rank->at.position);
    uint64_t distinct = wanted.rows < wanted.valid ? wanted.rows : wanted.valid;
    if (rank->at.epoch - rank->first_epoch >= job->epochs)
        sim_fail(world, "%s/%u is given a step after its last", job->name, rank->rank);
    if (step->epoch != rank->at.epoch || step->batch.step_begin != rank->at.position ||
        step->batch.rows != wanted.rows || step->distinct != distinct)
        sim_fail(world, "%s/%u is given %u rows of the step at (%u, %llu), not %u of (%u, %llu)", job->name,
                 rank->rank, step->batch.rows, step->epoch, (unsigned long long)step->batch.step_begin,
                 wanted.rows, rank->at.epoch, (unsigned long long)rank->at.position);
    for (uint32_t i = 0; i < wanted.rows && !world->failed; i++)
        check_row(rank, step, &wanted, i);
    rank->at = sim_model_next(shape, rank->at);
    if (!same(step->after, rank->at) || !same(client_core_cursor(rank->core), rank->at))
        sim_fail(world, "%s/%u: the cursor is (%u, %llu), not (%u, %llu)", job->name, rank->rank,
                 step->after.epoch, (unsigned long long)step->after.position, rank->at.epoch,
                 (unsigned long long)rank->at.position);
    rank->taken++;
    job->progress_ns = world->progress_ns = world->now_ns;
    advance_whole(rank->launch);
}

void sim_job_ended(struct sim_rank *rank)
{
    struct sim_job *job = rank->job;
    struct sim_launch *launch = rank->launch;
    if (rank->at.epoch - rank->first_epoch < job->epochs)
        sim_fail(job->world, "%s/%u ends at (%u, %llu)", job->name, rank->rank, rank->at.epoch,
                 (unsigned long long)rank->at.position);
    sim_rank_finish(rank);
    if (launch != job->launch || launch->over)
        return;
    for (uint32_t i = 0; i < launch->shape.world; i++)
        if (!launch->ranks[i]->done)
            return;
    for (uint32_t i = 0; i < launch->shape.world; i++)
        if (launch->ranks[i]->taken != launch->whole)
            sim_fail(job->world, "%s: rank %u had %llu steps, another %llu", job->name, i,
                     (unsigned long long)launch->ranks[i]->taken, (unsigned long long)launch->whole);
    save(job);
    launch->over = true;
    finish(job);
}
