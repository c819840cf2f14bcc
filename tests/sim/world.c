/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROGRESS_NS (120 * SIM_S) /* without faults somebody takes a step in such a time */
#define LONGEST_NS (3600 * SIM_S)
#define QUIET_NS (15 * SIM_S) /* after the last job: everything comes to rest */
#define SWEEP_NS (250 * SIM_MS)

/* ---- verdicts and traces ---- */

static void print_time(const struct sim_world *world, char *text, size_t room)
{
    snprintf(text, room, "%lld.%06lld s", (long long)(world->now_ns / SIM_S),
             (long long)(world->now_ns % SIM_S / 1000));
}

void sim_fail(struct sim_world *world, const char *format, ...)
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
    snprintf(world->verdict, sizeof world->verdict, "at %s: %s", time, text);
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
    sim_queue_put(&world->queue, at_ns, run, who, what);
}

int64_t sim_delay_ns(struct sim_world *world)
{
    return sim_random_between(&world->random, world->rules.delay_least_ns, world->rules.delay_most_ns);
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
        if (memcmp(world->candidates[i].key, key, BASE_SHA256_BYTES) == 0)
            return true;
    return false;
}

/* Sizes from K = 256 to K = 1. */
static void draw_stream(struct sim_world *world, struct sim_candidate *candidate)
{
    static const int sizes[] = {16, 64, 100, 160, 224, 320, 500, 700};
    struct scheduler_stream *stream = &candidate->stream;
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
    struct scheduler_stream *stream = &candidate->stream;
    struct scheduler_pipeline pipeline;
    *stream = first->stream;
    memset(stream->fingerprint, 0, sizeof stream->fingerprint);
    scheduler_pipeline_parse(first->preset_text, &option, 1, &pipeline, NULL);
    scheduler_pipeline_print(&pipeline, "sample", stream->sample_text, sizeof stream->sample_text, NULL);
    scheduler_pipeline_print(&pipeline, NULL, candidate->preset_text, sizeof candidate->preset_text, NULL);
}

static void add_candidate(struct sim_world *world)
{
    struct sim_candidate *candidate = &world->candidates[world->candidate_count];
    struct scheduler_stream *stream = &candidate->stream;
    *candidate = (struct sim_candidate){.world = world, .index = world->candidate_count};
    if (candidate->index > 0 && chance(world, 500)) { /* a near miss */
        *candidate = world->candidates[0];
        candidate->index = world->candidate_count;
        candidate->seeded = true;
        stream->seed = 4711;
        memset(stream->fingerprint, 0, sizeof stream->fingerprint);
    } else if (candidate->index > 0 && chance(world, 500)) {
        draw_sibling(world, candidate);
    } else {
        draw_stream(world, candidate);
    }
    scheduler_stream_seal(stream, NULL);
    memcpy(candidate->key, stream->hash, sizeof candidate->key);
    if (known_key(world, candidate->key))
        return;
    memset(stream->fingerprint, 0xf1, sizeof stream->fingerprint);
    scheduler_stream_seal(stream, NULL);
    const struct scheduler_pipeline *pipeline = &stream->pipeline;
    struct wire_layout layout;
    wire_layout_init(&layout, pipeline->fields, pipeline->field_count, pipeline->block_rows);
    candidate->block_bytes = layout.size;
    candidate->bad_permille = chance(world, 500) ? 0 : (int)between(world, 1, 200);
    candidate->row_ns = between(world, 50 * 1000, 5 * SIM_MS);
    if (candidate->row_ns * pipeline->block_rows > 200 * SIM_MS)
        candidate->row_ns = 200 * SIM_MS / pipeline->block_rows;
    world->candidate_count++;
}

static void draw_items(struct sim_world *world)
{
    if (chance(world, 150))
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
    if (rules->quiet)
        return;
    rules->cluster.lease_ms = between(world, 3500, 10000);
    rules->cluster.grace_ms = rules->cluster.lease_ms + between(world, 0, chance(world, 300) ? 1000 : 50000);
    rules->stagger_ns = chance(world, 300) ? 8 * SIM_S : 500 * SIM_MS;
    rules->duplicate_permille = (int)between(world, 0, 50);
    rules->rpc_loss_permille = chance(world, 500) ? 0 : (int)between(world, 1, 100);
    rules->reset_permille = chance(world, 400) ? 0 : (int)between(world, 1, 500);
    rules->fault_gap_ns = between(world, 1, 8) * between(world, 1, 8) * 60 * SIM_MS;
    world->faults_until_ns = SIM_S + between(world, 5 * SIM_S, 40 * SIM_S);
    for (int i = 0; i < SIM_FAULTS; i++)
        rules->weights[i] = chance(world, 400) ? 0 : (int)between(world, 1, 10);
    if (rules->stagger_ns > SIM_S) /* a server that comes and goes while they start */
        rules->weights[SIM_FAULT_SERVER] += 10;
}

static void draw_worker(struct sim_world *world, int index)
{
    struct sim_worker *worker = &world->workers[index];
    uint64_t largest = 0, all = 0;
    for (int i = 0; i < world->candidate_count; i++) {
        const struct sim_candidate *candidate = &world->candidates[i];
        uint64_t size = (candidate->block_bytes + 4095) / 4096 * 4096;
        largest = size > largest ? size : largest;
        all += size * 4 * scheduler_stream_blocks(&candidate->stream);
    }
    *worker = (struct sim_worker){.world = world,
                                  .id = (uint64_t)index + 1,
                                  .weight = (double)between(world, 1, 8),
                                  .staging_bytes = all,
                                  .making_max = (uint32_t)between(world, 1, 4),
                                  .requests_max = (uint32_t)between(world, 1, 16)};
    if (!world->rules.quiet && chance(world, 700)) /* tight */
        worker->staging_bytes = largest * (uint64_t)between(world, 1, 12) + (uint64_t)between(world, 0, 9999);
}

static void start_worker(void *who, uint64_t what)
{
    (void)what;
    sim_worker_start(who);
}

static void draw_job(struct sim_world *world, int index)
{
    struct sim_job *job = &world->jobs[index];
    bool quiet = world->rules.quiet;
    *job = (struct sim_job){.world = world, .index = index};
    snprintf(job->name, sizeof job->name, "job%d", index);
    job->candidate =
        &world->candidates[chance(world, 600) ? 0 : between(world, 0, world->candidate_count - 1)];
    job->join = quiet || chance(world, 500) ? SCHEDULER_JOIN_NOW : (enum scheduler_join)between(world, 0, 2);
    job->tail = (enum scheduler_tail)between(world, 0, 2);
    job->on_bad = chance(world, quiet ? 0 : 100)
                      ? CLIENT_ON_BAD_ERROR
                      : (enum client_on_bad)between(world, CLIENT_ON_BAD_SKIP, CLIENT_ON_BAD_REPLACE);
    job->epochs = (uint32_t)between(world, 1, 3);
    job->look_ahead = (uint32_t)between(world, 1, 3);
    job->hold_most = (uint32_t)between(world, 1, job->look_ahead);
    job->save_every = (uint32_t)between(world, 1, 20);
    job->lockstep =
        world->rules.stagger_ns > SIM_S || chance(world, 800); /* else some end before others begin */
    sim_job_draw(job);
    if (!quiet && chance(world, 700)) /* it lives through a good part of the faults */
        job->pace_ns = between(world, 1, (world->faults_until_ns - SIM_S) / (int64_t)job->steps);
    if (job->pace_ns == 0 || job->pace_ns > 400 * SIM_MS)
        job->pace_ns = between(world, 200 * 1000, 20 * SIM_MS);
    int64_t first_ns = quiet ? 2 * SIM_S : 0, most_ns = quiet ? 200 * SIM_MS : 4 * SIM_S;
    sim_at(world, first_ns + between(world, 0, most_ns), sim_job_launch, job, 0);
}

/* ---- faults ---- */

static struct sim_worker *any_worker(struct sim_world *world)
{
    return &world->workers[between(world, 0, world->worker_count - 1)];
}

static struct sim_link *any_link(struct sim_world *world)
{
    struct sim_link *found = NULL;
    int seen = 0;
    for (struct sim_link *link = world->links; link; link = link->next)
        if (link->client_open && between(world, 0, seen++) == 0)
            found = link;
    return found;
}

static void fault_worker_hole(struct sim_world *world)
{
    struct sim_worker *worker = any_worker(world);
    worker->hole_ns = world->now_ns + between(world, 200 * SIM_MS, 6 * SIM_S);
    sim_trace(world, "worker %u is cut off", (unsigned)worker->id);
    for (struct sim_link *link = world->links; link; link = link->next)
        if (link->worker == worker)
            sim_link_hold(link, worker->hole_ns, true);
}

static void server_again(void *who, uint64_t what)
{
    (void)what;
    sim_server_start(who);
}

static void fault_server(struct sim_world *world)
{
    if (!world->server.cluster)
        return;
    sim_server_stop(world);
    int64_t down_ns = between(world, 100 * SIM_MS, chance(world, 500) ? 2 * SIM_S : 20 * SIM_S);
    sim_at(world, world->now_ns + down_ns, server_again, world, 0);
}

static int64_t away_ns(struct sim_world *world)
{
    return between(world, 50 * SIM_MS, chance(world, 700) ? 3 * SIM_S : 15 * SIM_S);
}

static void fault_worker_crash(struct sim_world *world)
{
    struct sim_worker *worker = any_worker(world);
    bool for_good = world->worker_count - world->gone > 1 && chance(world, 50);
    if (!worker->core)
        return;
    world->gone += for_good;
    sim_worker_crash(worker, for_good ? 2 * LONGEST_NS : away_ns(world));
}

static void fault_drain_ordered(struct sim_world *world)
{
    const struct sim_worker *worker = any_worker(world);
    if (!world->server.cluster)
        return;
    sim_trace(world, "an operator drains worker %u", (unsigned)worker->id);
    sim_server_drain(world, worker->id);
}

static void fault(struct sim_world *world, enum sim_fault kind)
{
    struct sim_link *link = any_link(world);
    switch (kind) {
    case SIM_FAULT_RESET:
        if (link)
            link->reset_after = (int)between(world, 0, 30);
        break;
    case SIM_FAULT_HOLE:
        if (link)
            sim_link_hold(link, world->now_ns + between(world, 100 * SIM_MS, 5 * SIM_S), true);
        break;
    case SIM_FAULT_SLOW_READER:
        if (link)
            sim_link_hold(link, world->now_ns + between(world, 100 * SIM_MS, 3 * SIM_S), false);
        break;
    case SIM_FAULT_WORKER_HOLE:
        fault_worker_hole(world);
        break;
    case SIM_FAULT_WORKER_CRASH:
        fault_worker_crash(world);
        break;
    case SIM_FAULT_DRAIN:
        sim_worker_drain(any_worker(world), between(world, 100 * SIM_MS, 6 * SIM_S), away_ns(world));
        break;
    case SIM_FAULT_DRAIN_ORDERED:
        fault_drain_ordered(world);
        break;
    case SIM_FAULT_SERVER:
        fault_server(world);
        break;
    case SIM_FAULT_SERVER_HOLE:
        world->server_hole_ns = world->now_ns + between(world, 100 * SIM_MS, 8 * SIM_S);
        break;
    case SIM_FAULT_STORAGE:
        world->storage_ns = world->now_ns + between(world, 100 * SIM_MS, 15 * SIM_S);
        break;
    case SIM_FAULT_WORKER_STORAGE:
        any_worker(world)->storage_ns = world->now_ns + between(world, 100 * SIM_MS, 15 * SIM_S);
        break;
    default:
        sim_job_crash(&world->jobs[between(world, 0, world->job_count - 1)], chance(world, 300));
    }
}

static void calm_down(struct sim_world *world)
{
    sim_trace(world, "faults are over");
    world->calm = true;
    world->storage_ns = world->server_hole_ns = 0;
    sim_server_start(world);
    for (int i = 0; i < world->worker_count; i++)
        world->workers[i].storage_ns = world->workers[i].hole_ns = 0;
    for (struct sim_link *link = world->links; link; link = link->next)
        link->reset_after = -1;
}

static void on_fault(void *who, uint64_t what)
{
    struct sim_world *world = who;
    int sum = 0;
    (void)what;
    if (world->now_ns >= world->faults_until_ns) {
        calm_down(world);
        return;
    }
    for (int i = 0; i < SIM_FAULTS; i++)
        sum += world->rules.weights[i];
    int64_t at = sum > 0 ? between(world, 0, sum - 1) : -1;
    for (int i = 0; i < SIM_FAULTS && at >= 0; i++) {
        at -= world->rules.weights[i];
        if (at < 0)
            fault(world, (enum sim_fault)i);
    }
    sim_at(world, world->now_ns + between(world, 1, 2 * world->rules.fault_gap_ns), on_fault, world, 0);
}

/* ---- looking on ---- */

static void check_progress(struct sim_world *world)
{
    for (int i = 0; i < world->job_count; i++) {
        const struct sim_job *job = &world->jobs[i];
        char why[300] = "not begun";
        int64_t since_ns = job->launch && job->launch->started ? job->progress_ns : world->progress_ns;
        since_ns = since_ns > world->faults_until_ns ? since_ns : world->faults_until_ns;
        if (job->done || world->now_ns - since_ns < PROGRESS_NS)
            continue;
        for (uint32_t r = 0; job->launch && r < job->launch->shape.world; r++)
            if (job->launch->ranks[r]->core && job->launch->ranks[r]->taken == job->launch->whole)
                client_core_why(job->launch->ranks[r]->core, why, sizeof why);
        sim_fail(world, "%s has taken no step for %lld s: %s", job->name, (long long)(PROGRESS_NS / SIM_S),
                 why);
    }
    if (world->now_ns > LONGEST_NS)
        sim_fail(world, "the jobs do not end");
}

static void on_sweep(void *who, uint64_t what)
{
    struct sim_world *world = who;
    (void)what;
    sim_link_sweep(world);
    if (world->calm)
        check_progress(world);
    if (world->jobs_done == world->job_count && world->ended_ns == 0)
        world->ended_ns = world->now_ns;
    sim_at(world, world->now_ns + SWEEP_NS, on_sweep, world, 0);
}

static void check_rest(struct sim_world *world)
{
    for (int i = 0; i < world->worker_count; i++) {
        const struct sim_worker *worker = &world->workers[i];
        struct worker_counts counts;
        if (!worker->core)
            continue;
        worker_core_counts(worker->core, world->now_ns, &counts);
        if (counts.waiting + counts.sending + counts.connections + counts.handles + counts.blocks_making +
                counts.blocks_queued >
            0)
            sim_fail(
                world,
                "worker %u does not come to rest: %llu wait, %llu sent, %llu connections, %llu made, %llu "
                "queued",
                (unsigned)worker->id, (unsigned long long)counts.waiting, (unsigned long long)counts.sending,
                (unsigned long long)counts.connections, (unsigned long long)counts.blocks_making,
                (unsigned long long)counts.blocks_queued);
        for (int e = 0; e < worker->extent_count; e++)
            if (worker->extents[e].pins > 0)
                sim_fail(world, "worker %u: a block stays pinned", (unsigned)worker->id);
    }
}

/* Without faults and with room for everything each position of each epoch is prepared once, for all jobs. Of an epoch in which
 * only a sibling is read, too, perhaps: a worker does not know when a job will end. */
static void check_quiet(struct sim_world *world)
{
    for (int c = 0; c < world->candidate_count; c++) {
        const struct sim_candidate *candidate = &world->candidates[c];
        uint64_t least = 0, most = 0, related = 0;
        for (int i = 0; i < world->job_count; i++) {
            const struct sim_job *job = &world->jobs[i];
            uint64_t rows = world->items * (candidate->stream.uses_epoch ? job->epochs : 1);
            if (memcmp(job->candidate->stream.family, candidate->stream.family, BASE_SHA256_BYTES) == 0)
                related = rows > related ? rows : related;
            if (job->candidate != candidate)
                continue;
            most = rows > most ? rows : most;
            if (job->tail != SCHEDULER_TAIL_DROP && rows > least)
                least = rows;
        }
        most = most > 0 ? related : 0;
        if (candidate->rows_made < least || candidate->rows_made > most)
            sim_fail(world, "a quiet world made %llu rows of stream %d, not %llu",
                     (unsigned long long)candidate->rows_made, c, (unsigned long long)most);
    }
    for (int i = 0; i < WORKER_CAUSES; i++)
        if (world->remade[i] > 0)
            sim_fail(world, "a quiet world made %llu blocks again (%s)", (unsigned long long)world->remade[i],
                     worker_cause_name((enum worker_cause)i));
}

/* ---- life ---- */

static void begin(struct sim_world *world)
{
    draw_rules(world);
    draw_items(world);
    world->together_percent = (int)between(world, 50, 110);
    int candidates = (int)between(world, 1, SIM_CANDIDATES);
    for (int i = 0; i < candidates; i++)
        add_candidate(world);
    world->worker_count = (int)between(world, 1, SIM_WORKERS);
    for (int i = 0; i < world->worker_count; i++) {
        draw_worker(world, i);
        int64_t at_ns = world->rules.quiet || i == 0 ? 0 : between(world, 0, 8 * SIM_S);
        sim_at(world, at_ns, start_worker, &world->workers[i], 0);
    }
    for (int i = world->worker_count; i < SIM_WORKERS; i++)
        world->workers[i] = (struct sim_worker){.world = world, .id = (uint64_t)i + 1};
    world->job_count = (int)between(world, 1, SIM_JOBS);
    for (int i = 0; i < world->job_count; i++)
        draw_job(world, i);
    sim_server_start(world);
    sim_at(world, SWEEP_NS, on_sweep, world, 0);
    if (world->rules.quiet)
        world->calm = true;
    else
        sim_at(world, between(world, 0, SIM_S), on_fault, world, 0);
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
    for (int i = 0; i < SIM_WORKERS; i++)
        sim_worker_stop(&world->workers[i]);
    scheduler_cluster_destroy(world->server.cluster);
    for (int c = 0; c < world->candidate_count; c++)
        for (int e = 0; e < SIM_EPOCHS; e++)
            scheduler_order_destroy(world->candidates[c].orders[e]);
    sim_queue_fini(&world->queue);
    sim_memory_fini(&world->memory);
}

void sim_world_run(uint64_t seed, bool trace, struct sim_result *result)
{
    struct sim_world *world = calloc(1, sizeof *world);
    struct sim_event event;
    if (!world)
        abort();
    world->seed = seed;
    world->trace = trace;
    world->random.state = seed * UINT64_C(0xd1342543de82ef95) + 1;
    world->now_ns = SIM_S; /* 0 is "never" in places */
    begin(world);
    while (!world->failed && (world->ended_ns == 0 || world->now_ns < world->ended_ns + QUIET_NS) &&
           sim_queue_take(&world->queue, &event)) {
        world->now_ns = event.at_ns > world->now_ns ? event.at_ns : world->now_ns;
        world->events++;
        event.run(event.who, event.what);
    }
    if (!world->failed)
        check_rest(world);
    if (!world->failed && world->rules.quiet)
        check_quiet(world);
    *result = (struct sim_result){.failed = world->failed,
                                  .events = world->events,
                                  .together = world->together,
                                  .virtual_ns = world->now_ns};
    memcpy(result->verdict, world->verdict, sizeof result->verdict);
    end(world);
    free(world);
}
