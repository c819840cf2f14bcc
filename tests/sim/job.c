/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/check.h"

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
    struct sim_random *random = &job->random;
    shape->items = job->world->items;
    shape->tail = job->tail;
    do {
        shape->world = (uint32_t)sim_random_between(random, 1, job->world->rules.large ? SIM_RANKS : 3);
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

static void resume_at(struct sim_launch *launch)
{
    const struct sim_job *job = launch->job;
    launch->resumes = job->has_saved;
    if (!job->has_saved)
        return;
    const struct scheduler_stream *stream = &job->stream->identity;
    launch->resume = (struct scheduler_job_cursor){.at = job->saved, .first_epoch = job->first_epoch};
    memcpy(launch->resume.dataset_version, stream->dataset_version, BASE_SHA256_BYTES);
    memcpy(launch->resume.fingerprint, stream->fingerprint, sizeof stream->fingerprint);
    memcpy(launch->resume.stream, stream->hash, BASE_SHA256_BYTES);
}

static void add_rank(struct sim_launch *launch, uint32_t index)
{
    struct sim_job *job = launch->job;
    struct sim_world *world = job->world;
    struct sim_rank *rank = sim_memory_get(&world->memory, sizeof *rank);
    uint64_t host = SIM_HOST_RANKS + (uint64_t)job->index * SIM_RANKS + index;
    launch->ranks[index] = rank;
    *rank = (struct sim_rank){.world = world, .job = job, .launch = launch, .rank = index};
    sim_process_init(&rank->process, world, host,
                     sim_random_of(world->seed, SIM_DRAWS_RANK, host << 20 | launch->number));
    sim_process_at(&rank->process,
                   world->now_ns + sim_random_between(&rank->process.random, 0, world->rules.stagger_ns),
                   begin_rank, rank, 0);
}

void sim_job_launch(void *who, uint64_t unused)
{
    struct sim_job *job = who;
    struct sim_world *world = job->world;
    struct sim_launch *before = job->launch;
    (void)unused;
    if (job->done)
        return;
    struct sim_launch *launch = sim_memory_get(&world->memory, sizeof *launch);
    launch->job = job;
    launch->before = before;
    launch->mixed = before && (before->half || before->mixed);
    launch->number = ++job->launches;
    if (before && sim_random_chance(&job->random, 500))
        sim_job_draw(job);
    launch->shape = job->shape;
    resume_at(launch);
    job->launch = launch;
    job->progress_ns = world->now_ns;
    sim_trace(world, "%s: launch %u, world %u, batch %u, stream %d", job->name, launch->number,
              launch->shape.world, launch->shape.batch, job->candidate->index);
    for (uint32_t i = 0; i < launch->shape.world; i++)
        add_rank(launch, i);
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
        int64_t after_ns = sim_random_between(&job->random, 0, zombies ? 8 * SIM_S : 300 * SIM_MS);
        sim_at(world, world->now_ns + after_ns, kill_rank, launch->ranks[i], 0);
    }
}

void sim_job_crash(struct sim_job *job, struct sim_random *random, bool zombies)
{
    struct sim_world *world = job->world;
    struct sim_launch *launch = job->launch;
    if (job->done || !launch || launch->over)
        return;
    uint32_t first = (uint32_t)sim_random_between(random, 0, launch->shape.world - 1);
    sim_trace(world, "%s/%u crashes", job->name, first);
    end_launch(job, zombies);
    sim_rank_kill(launch->ranks[first]);
    sim_at(world, world->now_ns + sim_random_between(random, 400 * SIM_MS, 12 * SIM_S), sim_job_launch, job,
           0);
}

static bool may_seek(const struct sim_job *job)
{
    const struct sim_launch *launch = job->launch;
    if (job->done || !launch || launch->over || !launch->started)
        return false;
    for (uint32_t i = 0; i < launch->shape.world; i++)
        if (!launch->ranks[i]->core || launch->ranks[i]->dead || launch->ranks[i]->done)
            return false;
    return true;
}

/* To a step of an epoch that it has begun, rather an earlier one; it is a new link of the chain of cursors. */
void sim_job_seek(struct sim_job *job, struct sim_random *random)
{
    struct sim_launch *launch = job->launch;
    uint64_t part = (uint64_t)sim_random_between(random, 0, 1300), epoch = sim_random_word(random);
    if (!may_seek(job))
        return;
    const struct sim_shape *shape = &launch->shape;
    uint32_t begun = launch->whole_at.epoch - job->first_epoch + 1;
    struct scheduler_cursor to = {job->first_epoch, 0};
    to.epoch += (uint32_t)(epoch % (begun < job->epochs ? begun : job->epochs));
    uint64_t step = (uint64_t)shape->world * shape->batch, most = shape->items * part / 1000;
    for (uint64_t at = step; at <= most && sim_model_whole(shape, at); at += step)
        to.position = at;
    sim_trace(job->world, "%s goes on at epoch %u, position %llu", job->name, to.epoch,
              (unsigned long long)to.position);
    launch->number = ++job->launches;
    launch->whole_at = job->saved = to;
    for (uint32_t i = 0; i < shape->world; i++) {
        launch->ranks[i]->taken = launch->whole;
        sim_rank_seek(launch->ranks[i], to);
    }
}

static void finish(struct sim_job *job)
{
    job->done = true;
    job->world->jobs_done++;
    sim_trace(job->world, "%s is done", job->name);
}

void sim_job_leave(struct sim_job *job)
{
    struct sim_launch *launch = job->launch;
    if (job->done || !launch || launch->over)
        return;
    sim_trace(job->world, "%s is ended by its user", job->name);
    launch->over = true;
    for (uint32_t i = 0; i < launch->shape.world; i++) {
        if (launch->ranks[i]->core && !launch->ranks[i]->dead)
            sim_rank_finish(launch->ranks[i]);
        else
            sim_rank_kill(launch->ranks[i]);
    }
    finish(job);
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
    job->refusals += job->world->calm;
    sim_check_refused(job);
    sim_job_crash(job, &job->random, false);
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
    job->stream = rank->stream;
    sim_check_start(rank);
}

/* Its leases run: after a restart, too, until they are over. */
bool sim_job_kept(const struct sim_launch *launch)
{
    const struct sim_world *world = launch->job->world;
    int64_t up_ns = sim_process_now_ns(&world->server.process) - world->server.started_ns;
    return !launch->lost && !launch->mixed &&
           (up_ns < world->rules.cluster.lease_ms * SIM_MS || world->rules.quiet);
}

/* The ranks of a launch begin at one place, unless the server lost those before: then trainers refuse to begin. */
static void split(struct sim_rank *rank)
{
    sim_check_together(rank);
    sim_job_crash(rank->job, &rank->job->random, false);
}

void sim_job_fenced(struct sim_rank *rank)
{
    sim_check_fenced(rank);
    sim_job_failed(rank);
}

void sim_job_started(struct sim_rank *rank)
{
    struct sim_job *job = rank->job;
    struct sim_launch *launch = rank->launch;
    if (launch != job->launch)
        return;
    if (launch->started) {
        if (!same(rank->at, launch->start) || rank->first_epoch != job->first_epoch ||
            rank->stream != launch->stream)
            split(rank);
        return;
    }
    struct scheduler_cursor wanted = normal(&launch->shape, launch->resume.at);
    if (!launch->resumes)
        begin_ledger(rank);
    else
        sim_check_resume(rank, wanted);
    launch->started = true;
    job->progress_ns = job->world->now_ns;
    launch->stream = rank->stream;
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
            sim_check_saved(job, p, row[p] == launch->number);
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
    sim_check_once(rank, position, *by == rank->launch->number);
    *by = rank->launch->number;
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
    sim_check_step(rank, step, &wanted);
    for (uint32_t i = 0; i < wanted.rows && !world->failed; i++) {
        sim_check_row(rank, step, &wanted, i);
        if (wanted.offset + i < wanted.valid)
            note_delivered(rank, wanted.begin + wanted.offset + i);
    }
    rank->at = sim_model_next(shape, rank->at);
    sim_check_cursor(rank, step);
    rank->taken++;
    job->progress_ns = world->progress_ns = world->now_ns;
    advance_whole(rank->launch);
}

void sim_job_ended(struct sim_rank *rank)
{
    struct sim_job *job = rank->job;
    struct sim_launch *launch = rank->launch;
    sim_check_end(rank);
    sim_rank_finish(rank);
    if (launch != job->launch || launch->over)
        return;
    for (uint32_t i = 0; i < launch->shape.world; i++)
        if (!launch->ranks[i]->done)
            return;
    sim_check_even(job);
    save(job);
    launch->over = true;
    finish(job);
}
