/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults. Which there are, and when, is drawn from the seed at the beginning; each has a number, and draws whom it meets and for
 * how long from random numbers of its own: so one can be left out, and the others stay what they were. Whoever is left out
 * of a world stays a target: then such a fault meets nobody.
 */
#include "tests/sim/sim.h"

#include <stdlib.h>

static int64_t between(struct sim_random *random, int64_t least, int64_t most)
{
    return sim_random_between(random, least, most);
}

/* ---- whom it meets: NULL: nobody ---- */

static struct sim_worker *any_worker(struct sim_world *world, struct sim_random *random)
{
    int64_t index = between(random, 0, world->target_workers - 1);
    return index < world->worker_count ? &world->workers[index] : NULL;
}

static struct sim_worker *any_running(struct sim_world *world, struct sim_random *random)
{
    struct sim_worker *worker = any_worker(world, random);
    return worker && worker->core ? worker : NULL;
}

static struct sim_job *any_job(struct sim_world *world, struct sim_random *random)
{
    int64_t index = between(random, 0, world->target_jobs - 1);
    return index < world->job_count ? &world->jobs[index] : NULL;
}

/* A rank that lives, of a job's latest launch. */
static struct sim_rank *any_rank(struct sim_world *world, struct sim_random *random)
{
    const struct sim_job *job = any_job(world, random);
    uint64_t word = sim_random_word(random);
    if (!job || !job->launch)
        return NULL;
    struct sim_rank *rank = job->launch->ranks[word % job->launch->shape.world];
    return rank->core ? rank : NULL;
}

static struct sim_link *any_link(struct sim_world *world, struct sim_random *random)
{
    const struct sim_rank *rank = any_rank(world, random);
    struct sim_link *found = NULL;
    uint64_t word = sim_random_word(random);
    for (int i = 0; rank && i < world->worker_count; i++) {
        struct sim_link *link = rank->to[(word + (uint64_t)i) % (uint64_t)world->worker_count];
        if (!found && link)
            found = link;
    }
    return found;
}

/* ---- connections ---- */

static void run_reset(struct sim_world *world, struct sim_random *random)
{
    struct sim_link *link = any_link(world, random);
    if (link)
        link->reset_after = (int)between(random, 0, 30);
}

static void run_spoil(struct sim_world *world, struct sim_random *random)
{
    struct sim_link *link = any_link(world, random);
    if (link)
        link->spoil_after = (int)between(random, 0, 30);
}

static void run_hole(struct sim_world *world, struct sim_random *random)
{
    struct sim_link *link = any_link(world, random);
    if (link)
        sim_link_hold(link, world->now_ns + between(random, 100 * SIM_MS, 5 * SIM_S),
                      (enum sim_direction)between(random, SIM_UP, SIM_BOTH));
}

static void run_slow_reader(struct sim_world *world, struct sim_random *random)
{
    struct sim_link *link = any_link(world, random);
    if (link)
        sim_link_hold(link, world->now_ns + between(random, 100 * SIM_MS, 3 * SIM_S), SIM_DOWN);
}

static void run_worker_hole(struct sim_world *world, struct sim_random *random)
{
    struct sim_worker *worker = any_worker(world, random);
    if (!worker)
        return;
    worker->hole_ns = world->now_ns + between(random, 200 * SIM_MS, 6 * SIM_S);
    sim_trace(world, "worker %u is cut off from trainers", (unsigned)worker->id);
    for (struct sim_link *link = world->links; link; link = link->next)
        if (link->worker == worker)
            sim_link_hold(link, worker->hole_ns, SIM_BOTH);
}

static void run_cut(struct sim_world *world, struct sim_random *random)
{
    struct sim_cut *cut = &world->cuts[between(random, 0, SIM_CUTS - 1)];
    *cut = (struct sim_cut){.until_ns = world->now_ns + between(random, 200 * SIM_MS, 12 * SIM_S),
                            .key = sim_random_word(random),
                            .one_sided = sim_random_chance(random, 400)};
    sim_trace(world, "the network parts%s", cut->one_sided ? " in one direction" : "");
    for (struct sim_link *link = world->links; link; link = link->next) {
        sim_link_hold(link, sim_process_cut_ns(&link->rank->process, &link->worker->process), SIM_UP);
        sim_link_hold(link, sim_process_cut_ns(&link->worker->process, &link->rank->process), SIM_DOWN);
    }
}

/* ---- windows ---- */

static void open_window(struct sim_world *world, struct sim_random *random, enum sim_noise noise,
                        int most_permille)
{
    world->noise[noise] =
        (struct sim_window){.until_ns = world->now_ns + between(random, 500 * SIM_MS, 10 * SIM_S),
                            .permille = (int)between(random, 1, most_permille)};
}

static void run_lost_calls(struct sim_world *world, struct sim_random *random)
{
    open_window(world, random, SIM_NOISE_LOST_CALL, 300);
}

static void run_twice(struct sim_world *world, struct sim_random *random)
{
    open_window(world, random, SIM_NOISE_TWICE, 300);
}

static void run_late_calls(struct sim_world *world, struct sim_random *random)
{
    open_window(world, random, SIM_NOISE_LATE_CALL, 500);
}

static void run_resets(struct sim_world *world, struct sim_random *random)
{
    open_window(world, random, SIM_NOISE_RESET, 700);
}

bool sim_fault_noise(const struct sim_world *world, struct sim_random *random, enum sim_noise noise)
{
    const struct sim_window *window = &world->noise[noise];
    return window->until_ns > world->now_ns && sim_random_chance(random, window->permille);
}

/* ---- workers ---- */

static int64_t away_ns(struct sim_random *random)
{
    return between(random, 50 * SIM_MS, sim_random_chance(random, 700) ? 3 * SIM_S : 15 * SIM_S);
}

/* One of each build stays, and half of all. */
static bool may_go_for_good(const struct sim_world *world, const struct sim_worker *worker)
{
    int others = 0, gone = 0;
    for (int i = 0; i < world->worker_count; i++) {
        const struct sim_worker *other = &world->workers[i];
        others += other != worker && !other->for_good && other->build == worker->build;
        gone += other->for_good;
    }
    return others > 0 && 2 * gone < world->worker_count;
}

static void run_worker_crash(struct sim_world *world, struct sim_random *random)
{
    struct sim_worker *worker = any_running(world, random);
    bool for_good = sim_random_chance(random, 50);
    if (!worker)
        return;
    worker->for_good = for_good && may_go_for_good(world, worker);
    sim_worker_crash(worker, away_ns(random));
}

static void run_worker_pause(struct sim_world *world, struct sim_random *random)
{
    struct sim_worker *worker = any_running(world, random);
    if (!worker)
        return;
    sim_trace(world, "worker %u is stopped", (unsigned)worker->id);
    worker->process.paused_ns = world->now_ns + between(random, 100 * SIM_MS, 12 * SIM_S);
}

static void run_worker_jump(struct sim_world *world, struct sim_random *random)
{
    struct sim_worker *worker = any_running(world, random);
    if (!worker)
        return;
    sim_trace(world, "the clock of worker %u jumps", (unsigned)worker->id);
    sim_process_jump(&worker->process, between(random, SIM_MS, 40 * SIM_S));
    sim_worker_wake(worker);
}

static void run_worker_slow(struct sim_world *world, struct sim_random *random)
{
    struct sim_worker *worker = any_worker(world, random);
    if (!worker)
        return;
    sim_trace(world, "worker %u is slow", (unsigned)worker->id);
    worker->slow_ns = world->now_ns + between(random, SIM_S, 20 * SIM_S);
    worker->slow_times = (int)between(random, 2, 20);
}

static void run_worker_slow_net(struct sim_world *world, struct sim_random *random)
{
    struct sim_worker *worker = any_worker(world, random);
    if (!worker)
        return;
    sim_trace(world, "the network of worker %u is slow", (unsigned)worker->id);
    worker->slow_net_ns = world->now_ns + between(random, SIM_S, 15 * SIM_S);
    worker->slow_times = (int)between(random, 2, 20);
}

static void run_drain(struct sim_world *world, struct sim_random *random)
{
    struct sim_worker *worker = any_running(world, random);
    if (worker && !sim_process_stopped(&worker->process))
        sim_worker_drain(worker, between(random, 100 * SIM_MS, 6 * SIM_S), away_ns(random));
}

static void run_drain_ordered(struct sim_world *world, struct sim_random *random)
{
    const struct sim_worker *worker = any_worker(world, random);
    if (!worker || !world->server.cluster)
        return;
    sim_trace(world, "an operator drains worker %u", (unsigned)worker->id);
    sim_server_drain(world, worker->id);
}

static void run_worker_storage(struct sim_world *world, struct sim_random *random)
{
    struct sim_worker *worker = any_worker(world, random);
    if (worker)
        worker->storage_ns = world->now_ns + between(random, 100 * SIM_MS, 15 * SIM_S);
}

/* ---- storage ---- */

static void run_storage(struct sim_world *world, struct sim_random *random)
{
    world->storage_ns = world->now_ns + between(random, 100 * SIM_MS, 15 * SIM_S);
}

static void run_file_gone(struct sim_world *world, struct sim_random *random)
{
    struct sim_candidate *candidate = &world->candidates[between(random, 0, world->candidate_count - 1)];
    uint64_t block = (uint64_t)between(random, 0, (int64_t)candidate->blocks - 1);
    if (candidate->gone_block == UINT64_MAX)
        candidate->gone_block = block;
    sim_trace(world, "a file of block %llu of stream %d is deleted",
              (unsigned long long)candidate->gone_block, candidate->index);
}

/* ---- the server ---- */

static void server_again(void *who, uint64_t what)
{
    (void)what;
    sim_server_start(who);
}

static void run_server(struct sim_world *world, struct sim_random *random)
{
    if (!world->server.cluster)
        return;
    sim_server_stop(world);
    int64_t down_ns = between(random, 100 * SIM_MS, sim_random_chance(random, 500) ? 2 * SIM_S : 20 * SIM_S);
    sim_at(world, world->now_ns + down_ns, server_again, world, 0);
}

static void run_server_hole(struct sim_world *world, struct sim_random *random)
{
    world->server_hole_ns = world->now_ns + between(random, 100 * SIM_MS, 8 * SIM_S);
}

static void run_server_pause(struct sim_world *world, struct sim_random *random)
{
    sim_trace(world, "the server is stopped");
    world->server.process.paused_ns = world->now_ns + between(random, 100 * SIM_MS, 15 * SIM_S);
}

static void run_server_jump(struct sim_world *world, struct sim_random *random)
{
    sim_trace(world, "the clock of the server jumps");
    sim_process_jump(&world->server.process, between(random, SIM_MS, 60 * SIM_S));
    sim_server_wake(world);
}

/* ---- jobs ---- */

static void run_job_crash(struct sim_world *world, struct sim_random *random)
{
    struct sim_job *job = any_job(world, random);
    if (job)
        sim_job_crash(job, random, sim_random_chance(random, 300));
}

static void run_job_leave(struct sim_world *world, struct sim_random *random)
{
    struct sim_job *job = any_job(world, random);
    if (job)
        sim_job_leave(job);
}

static void run_job_seek(struct sim_world *world, struct sim_random *random)
{
    struct sim_job *job = any_job(world, random);
    if (job)
        sim_job_seek(job, random);
}

static void run_rank_pause(struct sim_world *world, struct sim_random *random)
{
    struct sim_rank *rank = any_rank(world, random);
    if (!rank)
        return;
    sim_trace(world, "%s/%u is stopped", rank->job->name, rank->rank);
    rank->process.paused_ns = world->now_ns + between(random, 100 * SIM_MS, 15 * SIM_S);
}

static void run_rank_jump(struct sim_world *world, struct sim_random *random)
{
    struct sim_rank *rank = any_rank(world, random);
    if (!rank)
        return;
    sim_trace(world, "the clock of %s/%u jumps", rank->job->name, rank->rank);
    sim_process_jump(&rank->process, between(random, SIM_MS, 40 * SIM_S));
    sim_rank_wake(rank);
}

/* ---- all ---- */

static const struct {
    const char *name;
    void (*run)(struct sim_world *world, struct sim_random *random);
    int weight; /* at most */
} kinds[] = {
    {"reset", run_reset, 10},
    {"spoilt frame", run_spoil, 10},
    {"hole", run_hole, 10},
    {"slow reader", run_slow_reader, 10},
    {"worker hole", run_worker_hole, 10},
    {"cut", run_cut, 10},
    {"lost calls", run_lost_calls, 4},
    {"twice", run_twice, 4},
    {"late calls", run_late_calls, 4},
    {"resets", run_resets, 4},
    {"worker crash", run_worker_crash, 10},
    {"worker pause", run_worker_pause, 10},
    {"worker clock", run_worker_jump, 6},
    {"slow worker", run_worker_slow, 6},
    {"slow network", run_worker_slow_net, 6},
    {"drain", run_drain, 10},
    {"drain ordered", run_drain_ordered, 10},
    {"worker storage", run_worker_storage, 10},
    {"storage", run_storage, 10},
    {"file gone", run_file_gone, 1},
    {"server", run_server, 10},
    {"server hole", run_server_hole, 10},
    {"server pause", run_server_pause, 6},
    {"server clock", run_server_jump, 2},
    {"job crash", run_job_crash, 10},
    {"job leaves", run_job_leave, 1},
    {"job seeks", run_job_seek, 6},
    {"rank pause", run_rank_pause, 10},
    {"rank clock", run_rank_jump, 6},
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static void on_fault(void *who, uint64_t index)
{
    struct sim_world *world = who;
    const struct sim_fault *fault = &world->faults[index];
    struct sim_random random = sim_random_of(world->seed, SIM_DRAWS_FAULT, fault->number);
    if (world->ended_ns > 0)
        return; /* everything comes to rest */
    world->faults_done = (int)index + 1;
    sim_trace(world, "fault %u: %s", fault->number, kinds[fault->kind].name);
    kinds[fault->kind].run(world, &random);
}

static void calm_down(void *who, uint64_t what)
{
    struct sim_world *world = who;
    (void)what;
    sim_trace(world, "faults are over");
    world->calm = true;
    world->storage_ns = world->server_hole_ns = 0;
    for (int i = 0; i < SIM_NOISES; i++)
        world->noise[i].until_ns = 0;
    for (int i = 0; i < SIM_CUTS; i++)
        world->cuts[i].until_ns = 0;
    sim_server_start(world);
    for (int i = 0; i < world->worker_count; i++) {
        struct sim_worker *worker = &world->workers[i];
        worker->storage_ns = worker->hole_ns = worker->slow_ns = worker->slow_net_ns = 0;
    }
    for (struct sim_link *link = world->links; link; link = link->next)
        link->reset_after = link->spoil_after = -1;
}

static int draw_kind(struct sim_random *random, const int *weights)
{
    int sum = 0, kind = 0;
    for (int i = 0; i < KINDS; i++)
        sum += weights[i];
    int64_t at = between(random, 0, sum - 1);
    for (; at >= weights[kind]; kind++)
        at -= weights[kind];
    return kind;
}

static bool is_wanted(const struct sim_history *history, uint32_t number)
{
    for (int i = 0; i < history->fault_count; i++)
        if (history->faults[i] == number)
            return true;
    return !history->some;
}

static void add(struct sim_world *world, const struct sim_fault *fault)
{
    struct sim_fault *grown = realloc(world->faults, ((size_t)world->fault_count + 1) * sizeof *grown);
    if (!grown)
        abort();
    world->faults = grown;
    world->faults[world->fault_count] = *fault;
    sim_at(world, fault->at_ns, on_fault, world, (uint64_t)world->fault_count++);
}

void sim_fault_draw(struct sim_world *world)
{
    struct sim_random random = sim_random_of(world->seed, SIM_DRAWS_FAULTS, 0);
    int weights[KINDS], kinds_left = 0;
    for (int i = 0; i < KINDS; i++) {
        weights[i] = sim_random_chance(&random, 500) ? 0 : (int)between(&random, 1, kinds[i].weight);
        kinds_left += weights[i] > 0;
        if (kinds[i].run == run_server && world->rules.stagger_ns > SIM_S)
            weights[i] += 10; /* a server that comes and goes while they start */
    }
    weights[0] += kinds_left == 0;
    int64_t at_ns = world->now_ns + between(&random, 0, SIM_S);
    for (uint32_t number = 1; at_ns < world->faults_until_ns; number++) {
        struct sim_fault fault = {number, draw_kind(&random, weights), at_ns};
        at_ns += between(&random, 1, 2 * world->rules.fault_gap_ns);
        if (is_wanted(world->history, number))
            add(world, &fault);
    }
    sim_at(world, world->faults_until_ns, calm_down, world, 0);
}
