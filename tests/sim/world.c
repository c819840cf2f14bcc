/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QUIET_NS (20 * SIM_S) /* after the last job: everything comes to rest */
#define SWEEP_NS (250 * SIM_MS)

/* ---- verdicts and traces ---- */

static void print_time(const struct sim_world *world, char *text, size_t room)
{
    snprintf(text, room, "%lld.%06lld s", (long long)(world->now_ns / SIM_S),
             (long long)(world->now_ns % SIM_S / 1000));
}

void sim_fail(struct sim_world *world, const char *invariant, const char *format, ...)
{
    char time[40], text[300];
    va_list args;
    if (world->failed)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    print_time(world, time, sizeof time);
    world->failed = true;
    world->invariant = invariant;
    snprintf(world->verdict, sizeof world->verdict, "at %s: %s: %s", time, invariant, text);
    if (world->trace)
        printf("FAILED %s\n", world->verdict);
}

void sim_trace(struct sim_world *world, const char *format, ...)
{
    char time[40];
    va_list args;
    if (!world->trace)
        return;
    print_time(world, time, sizeof time);
    printf("%16s  ", time);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
}

void sim_at(struct sim_world *world, int64_t at_ns, sim_run *run, void *who, uint64_t what)
{
    sim_queue_put(&world->queue, &(struct sim_event){.at_ns = at_ns, .run = run, .who = who, .what = what});
}

int64_t sim_delay_ns(struct sim_world *world, struct sim_random *random)
{
    return sim_random_between(random, world->rules.delay_least_ns, world->rules.delay_most_ns);
}

/* ---- a world from its seed ---- */

static int64_t between(struct sim_world *world, int64_t least, int64_t most)
{
    return sim_random_between(&world->random, least, most);
}

static bool chance(struct sim_world *world, int permille)
{
    return sim_random_chance(&world->random, permille);
}

static bool known_key(const struct sim_world *world, const uint8_t *key)
{
    for (int i = 0; i < world->candidate_count; i++)
        if (memcmp(world->candidates[i].asked.hash, key, BASE_SHA256_BYTES) == 0)
            return true;
    return false;
}

/* Sizes from K = 256 to K = 1. */
static void draw_stream(struct sim_world *world, struct sim_candidate *candidate)
{
    static const int sizes[] = {16, 64, 100, 160, 224, 320, 500, 700};
    struct scheduler_stream *stream = &candidate->asked;
    struct scheduler_pipeline pipeline;
    char option[24];
    const char *options[1] = {option};
    const char *preset = chance(world, 700) ? "imagenet_train" : "imagenet_eval";
    snprintf(option, sizeof option, "size=%d", sizes[between(world, 0, 7)]);
    scheduler_pipeline_parse(preset, options, 1, &pipeline, NULL);
    scheduler_pipeline_print(&pipeline, "sample", stream->sample_text, sizeof stream->sample_text, NULL);
    scheduler_pipeline_print(&pipeline, NULL, candidate->preset_text, sizeof candidate->preset_text, NULL);
    memset(stream->dataset_version, 0xd1, sizeof stream->dataset_version);
    stream->items = world->items;
    stream->shuffle = pipeline.shuffle;
    stream->seed = scheduler_stream_default_seed(stream->dataset_version);
}

/* Of the first one's family, with blocks of as many rows: it differs in the filter. */
static void draw_sibling(struct sim_world *world, struct sim_candidate *candidate)
{
    static const char *const filters[] = {"filter=bicubic", "filter=lanczos"};
    const char *option = filters[between(world, 0, 1)];
    const struct sim_candidate *first = &world->candidates[0];
    struct scheduler_stream *stream = &candidate->asked;
    struct scheduler_pipeline pipeline;
    *stream = first->asked;
    scheduler_pipeline_parse(first->preset_text, &option, 1, &pipeline, NULL);
    scheduler_pipeline_print(&pipeline, "sample", stream->sample_text, sizeof stream->sample_text, NULL);
    scheduler_pipeline_print(&pipeline, NULL, candidate->preset_text, sizeof candidate->preset_text, NULL);
}

static void add_builds(struct sim_candidate *candidate)
{
    candidate->stream_count = candidate->world->rules.mixed && chance(candidate->world, 700) ? SIM_BUILDS : 1;
    for (int i = 0; i < candidate->stream_count; i++) {
        struct sim_stream *stream = &candidate->streams[i];
        *stream = (struct sim_stream){.candidate = candidate, .build = i, .identity = candidate->asked};
        memset(stream->identity.fingerprint, 0xf1 + i, sizeof stream->identity.fingerprint);
        scheduler_stream_seal(&stream->identity, NULL);
    }
}

static void add_candidate(struct sim_world *world)
{
    struct sim_candidate *candidate = &world->candidates[world->candidate_count];
    *candidate =
        (struct sim_candidate){.world = world, .index = world->candidate_count, .gone_block = UINT64_MAX};
    if (candidate->index > 0 && chance(world, 500)) { /* a near miss */
        candidate->asked = world->candidates[0].asked;
        memcpy(candidate->preset_text, world->candidates[0].preset_text, sizeof candidate->preset_text);
        candidate->seeded = true;
        candidate->asked.seed = 4711;
    } else if (candidate->index > 0 && chance(world, 500)) {
        draw_sibling(world, candidate);
    } else {
        draw_stream(world, candidate);
    }
    scheduler_stream_seal(&candidate->asked, NULL);
    if (known_key(world, candidate->asked.hash))
        return;
    add_builds(candidate);
    const struct scheduler_pipeline *pipeline = &candidate->asked.pipeline;
    struct wire_layout layout;
    wire_layout_init(&layout, pipeline->fields, pipeline->field_count, pipeline->block_rows);
    candidate->block_bytes = layout.size;
    candidate->blocks = scheduler_stream_blocks(&candidate->asked);
    candidate->bad_permille = chance(world, 500) ? 0 : (int)between(world, 1, 200);
    candidate->row_ns = between(world, 50 * 1000, 5 * SIM_MS);
    if (candidate->row_ns * pipeline->block_rows > 200 * SIM_MS)
        candidate->row_ns = 200 * SIM_MS / pipeline->block_rows;
    world->candidate_count++;
}

static void draw_items(struct sim_world *world)
{
    if (world->rules.large)
        world->items = (uint64_t)between(world, 600, 6000);
    else if (world->rules.unequal)
        world->items = (uint64_t)between(world, 300, 1500);
    else if (chance(world, 150))
        world->items = (uint64_t)between(world, 1, 8);
    else if (chance(world, 600))
        world->items = (uint64_t)between(world, 9, 150);
    else
        world->items = (uint64_t)between(world, 151, 600);
}

static void draw_rules(struct sim_world *world)
{
    struct sim_rules *rules = &world->rules;
    rules->quiet = world->seed % 5 == 0;
    rules->delay_least_ns = between(world, 20 * 1000, 500 * 1000);
    rules->delay_most_ns =
        rules->delay_least_ns + (rules->quiet ? SIM_MS : between(world, SIM_MS, 30 * SIM_MS));
    rules->stagger_ns = 20 * SIM_MS;
    rules->ample = true;
    rules->clocks = chance(world, 700);
    if (rules->quiet)
        return;
    rules->ample = chance(world, 250);
    rules->mixed = chance(world, 250);
    rules->cluster.lease_ms = between(world, 3500, 10000);
    rules->cluster.grace_ms = rules->cluster.lease_ms + between(world, 0, chance(world, 300) ? 1000 : 50000);
    rules->stagger_ns = chance(world, 300) ? 8 * SIM_S : 500 * SIM_MS;
    rules->fault_gap_ns = between(world, 1, 8) * between(world, 1, 8) * 60 * SIM_MS;
    if (rules->large)
        rules->fault_gap_ns = rules->fault_gap_ns / 10 + 1;
    world->faults_until_ns = SIM_S + between(world, 5 * SIM_S, 40 * SIM_S);
    rules->unequal = chance(world, 40);
    if (!rules->unequal)
        return;
    rules->fault_gap_ns *= 20;
    world->faults_until_ns += between(world, 80 * SIM_S, 160 * SIM_S);
}

/* ---- its workers ---- */

static void start_worker(void *who, uint64_t what)
{
    (void)what;
    sim_worker_start(who);
}

static void draw_staging(struct sim_worker *worker, struct sim_random *random)
{
    const struct sim_world *world = worker->world;
    uint64_t largest = 0;
    for (int i = 0; i < world->candidate_count; i++) {
        const struct sim_candidate *candidate = &world->candidates[i];
        uint64_t size = (candidate->block_bytes + 4095) / 4096 * 4096;
        largest = size > largest ? size : largest;
        worker->staging_bytes += size * 8 * candidate->blocks;
    }
    if (!world->rules.ample && sim_random_chance(random, 800)) /* tight */
        worker->staging_bytes = largest * (uint64_t)sim_random_between(random, 1, 12) +
                                (uint64_t)sim_random_between(random, 0, 9999);
}

static void draw_worker(struct sim_world *world, int index)
{
    struct sim_worker *worker = &world->workers[index];
    struct sim_random random = sim_random_of(world->seed, SIM_DRAWS_WORKER, (uint64_t)index);
    *worker = (struct sim_worker){.world = world,
                                  .id = (uint64_t)index + 1,
                                  .weight = (double)sim_random_between(&random, 1, 8),
                                  .making_max = (uint32_t)sim_random_between(&random, 1, 4),
                                  .requests_max = (uint32_t)sim_random_between(&random, 1, 16)};
    worker->build = world->rules.mixed && sim_random_chance(&random, 400);
    draw_staging(worker, &random);
    if (world->rules.unequal && sim_random_chance(&random, 400)) {
        worker->slow_ns = world->faults_until_ns;
        worker->slow_times = (int)sim_random_between(&random, 5, 20);
    }
    int64_t at_ns = sim_random_between(&random, 0, 8 * SIM_S);
    if (sim_random_chance(&random, 200)) /* it joins in the midst of it all */
        at_ns = sim_random_between(&random, 0, world->faults_until_ns);
    if (world->rules.quiet || index == 0)
        at_ns = 0;
    sim_process_init(&worker->process, world, SIM_HOST_WORKERS + (uint64_t)index, random);
    sim_at(world, at_ns, start_worker, worker, 0);
}

/* ---- its jobs ---- */

static void draw_pace(struct sim_job *job)
{
    const struct sim_world *world = job->world;
    bool quiet = world->rules.quiet;
    int64_t most_ns = quiet ? 200 * SIM_MS : 4 * SIM_S;
    sim_job_draw(job);
    if (!quiet && sim_random_chance(&job->random, 700)) /* it lives through a good part of the faults */
        job->pace_ns =
            sim_random_between(&job->random, 1, (world->faults_until_ns - SIM_S) / (int64_t)job->steps);
    int64_t slowest_ns = world->rules.unequal ? 3 * SIM_S : 400 * SIM_MS;
    if (job->pace_ns == 0 || job->pace_ns > slowest_ns)
        job->pace_ns = sim_random_between(&job->random, 200 * 1000, 20 * SIM_MS);
    if (!quiet && sim_random_chance(&job->random, 200))
        most_ns = world->faults_until_ns / 2;
    sim_at(job->world, (quiet ? 2 * SIM_S : 0) + sim_random_between(&job->random, 0, most_ns), sim_job_launch,
           job, 0);
}

static void draw_job(struct sim_world *world, int index)
{
    struct sim_job *job = &world->jobs[index];
    struct sim_random random = sim_random_of(world->seed, SIM_DRAWS_JOB, (uint64_t)index);
    bool quiet = world->rules.quiet;
    *job = (struct sim_job){.world = world, .index = index};
    snprintf(job->name, sizeof job->name, "job%d", index);
    job->candidate = &world->candidates[sim_random_chance(&random, 600)
                                            ? 0
                                            : sim_random_between(&random, 0, world->candidate_count - 1)];
    job->join = quiet || sim_random_chance(&random, 500)
                    ? SCHEDULER_JOIN_NOW
                    : (enum scheduler_join)sim_random_between(&random, 0, 2);
    job->tail = (enum scheduler_tail)sim_random_between(&random, 0, 2);
    job->on_bad =
        sim_random_chance(&random, quiet ? 0 : 100)
            ? CLIENT_ON_BAD_ERROR
            : (enum client_on_bad)sim_random_between(&random, CLIENT_ON_BAD_SKIP, CLIENT_ON_BAD_REPLACE);
    job->weight = sim_random_chance(&random, 500) ? 0 : (double)sim_random_between(&random, 1, 80) / 10;
    job->epochs = (uint32_t)sim_random_between(&random, 1, 3);
    if (world->history->epochs > 0 && job->epochs > (uint32_t)world->history->epochs)
        job->epochs = (uint32_t)world->history->epochs;
    job->look_ahead = (uint32_t)sim_random_between(&random, 1, 3);
    job->hold_most = (uint32_t)sim_random_between(&random, 1, job->look_ahead);
    job->save_every = (uint32_t)sim_random_between(&random, 1, 20);
    job->lockstep = world->rules.stagger_ns > SIM_S ||
                    sim_random_chance(&random, 800); /* else some end before others begin */
    job->random = random;
    draw_pace(job);
}

/* ---- looking on ---- */

static void on_sweep(void *who, uint64_t what)
{
    struct sim_world *world = who;
    (void)what;
    sim_link_sweep(world);
    if (world->calm)
        sim_check_progress(world);
    if (world->jobs_done == world->job_count && world->ended_ns == 0)
        world->ended_ns = world->now_ns;
    sim_at(world, world->now_ns + SWEEP_NS, on_sweep, world, 0);
}

/* ---- life ---- */

static void *list(size_t count, size_t size)
{
    void *items = calloc(count, size);
    if (!items)
        abort();
    return items;
}

/* How many there are, and how many faults are aimed at: those of the seed, or more if more are wanted. */
static void draw_counts(struct sim_world *world)
{
    const struct sim_history *history = world->history;
    bool large = world->rules.large;
    int workers = (int)between(world, large ? 20 : 1, large ? 200 : 5);
    int jobs = (int)between(world, large ? 5 : 1, large ? 50 : 4);
    world->worker_count = history->workers > 0 ? history->workers : workers;
    world->job_count = history->jobs > 0 ? history->jobs : jobs;
    world->target_workers = world->worker_count > workers ? world->worker_count : workers;
    world->target_jobs = world->job_count > jobs ? world->job_count : jobs;
    world->workers = list((size_t)world->worker_count, sizeof *world->workers);
    world->jobs = list((size_t)world->job_count, sizeof *world->jobs);
    world->server.jobs = list((size_t)world->job_count, sizeof *world->server.jobs);
    world->server.opened = list((size_t)world->job_count, sizeof *world->server.opened);
    world->server.resumes = list((size_t)world->job_count, sizeof *world->server.resumes);
}

static void begin(struct sim_world *world)
{
    world->rules.large = world->seed % 125 == 3 || world->history->workers > 50 || world->history->jobs > 20;
    draw_rules(world);
    draw_items(world);
    world->rules.together_percent = (int)between(world, 50, 110);
    int candidates = (int)between(world, 1, SIM_CANDIDATES);
    for (int i = 0; i < candidates; i++)
        add_candidate(world);
    draw_counts(world);
    sim_process_init(&world->server.process, world, SIM_HOST_SERVER,
                     sim_random_of(world->seed, SIM_DRAWS_WORLD, 1));
    for (int i = 0; i < world->worker_count; i++)
        draw_worker(world, i);
    for (int i = 0; i < world->job_count; i++)
        draw_job(world, i);
    sim_server_start(world);
    sim_at(world, SWEEP_NS, on_sweep, world, 0);
    world->calm = world->rules.quiet;
    if (!world->rules.quiet)
        sim_fault_draw(world);
    sim_trace(world, "%llu items, %d streams, %d workers, %d jobs%s", (unsigned long long)world->items,
              world->candidate_count, world->worker_count, world->job_count,
              world->rules.quiet ? ", quiet" : "");
}

static void end(struct sim_world *world)
{
    for (int j = 0; j < world->job_count; j++)
        for (struct sim_launch *launch = world->jobs[j].launch; launch; launch = launch->before)
            for (uint32_t i = 0; i < launch->shape.world; i++)
                client_core_destroy(launch->ranks[i]->core);
    for (int i = 0; i < world->worker_count; i++)
        sim_worker_stop(&world->workers[i]);
    sim_server_fini(world);
    for (int c = 0; c < world->candidate_count; c++)
        for (int e = 0; e < SIM_EPOCHS; e++)
            scheduler_order_destroy(world->candidates[c].orders[e]);
    sim_link_fini(world);
    free(world->workers);
    free(world->jobs);
    free(world->faults);
    sim_queue_fini(&world->queue);
    sim_memory_fini(&world->memory);
}

/* An event whose process is stopped waits until it goes on. */
static void handle(struct sim_world *world, struct sim_event *event)
{
    if (event->process && sim_process_stopped(event->process)) {
        event->at_ns = event->process->paused_ns;
        sim_queue_put(&world->queue, event);
        return;
    }
    world->events++;
    event->run(event->who, event->what);
}

static void judge(struct sim_world *world)
{
    if (!world->failed)
        sim_check_rest(world);
    for (int i = 0; i < world->worker_count; i++)
        sim_worker_count(&world->workers[i]);
    if (!world->failed)
        sim_check_remade(world);
    if (!world->failed && world->rules.quiet)
        sim_check_quiet(world);
}

static void tell(const struct sim_world *world, struct sim_result *result)
{
    *result = (struct sim_result){.failed = world->failed,
                                  .invariant = world->invariant,
                                  .events = world->events,
                                  .virtual_ns = world->now_ns,
                                  .longest_ns = world->longest_ns,
                                  .workers = world->worker_count,
                                  .jobs = world->job_count,
                                  .tally = world->tally};
    memcpy(result->verdict, world->verdict, sizeof result->verdict);
    for (int i = 0; i < world->job_count; i++)
        if ((int)world->jobs[i].epochs > result->epochs)
            result->epochs = (int)world->jobs[i].epochs;
    if (!world->failed || world->faults_done == 0)
        return;
    result->faults = list((size_t)world->faults_done, sizeof *result->faults);
    result->fault_count = world->faults_done;
    for (int i = 0; i < world->faults_done; i++)
        result->faults[i] = world->faults[i].number;
}

void sim_world_run(const struct sim_history *history, struct sim_result *result)
{
    struct sim_world *world = list(1, sizeof *world);
    struct sim_event event;
    world->seed = history->seed;
    world->history = history;
    world->trace = history->trace;
    world->random = sim_random_of(history->seed, SIM_DRAWS_WORLD, 0);
    world->now_ns = SIM_S; /* 0 is "never" in places */
    begin(world);
    while (!world->failed && (world->ended_ns == 0 || world->now_ns < world->ended_ns + QUIET_NS) &&
           sim_queue_take(&world->queue, &event)) {
        world->now_ns = event.at_ns > world->now_ns ? event.at_ns : world->now_ns;
        handle(world, &event);
    }
    judge(world);
    tell(world, result);
    end(world);
    free(world);
}
