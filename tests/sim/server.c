/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/sim.h"

#include <stdio.h>
#include <string.h>

static void settle(struct sim_world *world);

/* ---- who is meant ---- */

static struct sim_candidate *find_candidate(struct sim_world *world, const uint8_t *hash, bool live)
{
    for (int i = 0; i < world->candidate_count; i++) {
        struct sim_candidate *candidate = &world->candidates[i];
        if (memcmp(hash, live ? candidate->stream.hash : candidate->key, BASE_SHA256_BYTES) == 0)
            return candidate;
    }
    sim_fail(world, "the server speaks of a stream that nobody asked for");
    return &world->candidates[0];
}

static struct sim_job *find_job(struct sim_world *world, const char *name)
{
    for (int i = 0; i < world->job_count; i++)
        if (strcmp(world->jobs[i].name, name) == 0)
            return &world->jobs[i];
    sim_fail(world, "the server speaks of job %s", name);
    return &world->jobs[0];
}

/* Leases of a launch have run out: the server owes nothing to its ranks any more. */
static void note_lost(struct sim_world *world, const char *line)
{
    char lost[40], anew[60];
    for (int i = 0; i < world->job_count; i++) {
        struct sim_launch *launch = world->jobs[i].launch;
        snprintf(lost, sizeof lost, "job %s is lost", world->jobs[i].name);
        snprintf(anew, sizeof anew, "job %s: a new start of it begins", world->jobs[i].name);
        if (launch && (strcmp(lost, line) == 0 || (strcmp(anew, line) == 0 && !sim_job_kept(launch))))
            launch->lost = true;
    }
}

/* ---- what is stored, as server_persist does ---- */

static void persist(struct sim_world *world)
{
    struct sim_server *server = &world->server;
    uint8_t hash[BASE_SHA256_BYTES];
    char id[SCHEDULER_JOB_CHARS], line[SCHEDULER_WORDS_CHARS];
    bool gone;
    while (scheduler_cluster_take_stream(server->cluster, hash, &gone)) {
        int index = find_candidate(world, hash, true)->index;
        const struct scheduler_live_stream *live = scheduler_cluster_stream(server->cluster, hash);
        if (!gone && !live)
            continue;
        server->stored[index] = !gone;
        server->stored_plan[index] = gone ? 0 : live->plan.version;
        for (int i = 0; gone && i < world->job_count;
             i++) /* no lease of its readers had run for longer than the grace */
            if (world->jobs[i].candidate->index == index && world->jobs[i].launch)
                world->jobs[i].launch->lost = true;
    }
    while (scheduler_cluster_take_job(server->cluster, id, &gone)) {
        int index = find_job(world, id)->index;
        const struct scheduler_job *job = scheduler_cluster_job(server->cluster, id);
        struct sim_stored_job *stored = &server->jobs[index];
        if (!gone && !job)
            continue;
        *stored = (struct sim_stored_job){.used = !gone};
        if (gone)
            continue;
        stored->request = server->opened[index];
        stored->resume = server->resumes[index];
        stored->stored = (struct scheduler_job_stored){.first_epoch = job->first_epoch, .at = job->at};
        if (job->stream && job->has_start)
            memcpy(stored->stored.stream, job->stream->identity.hash, BASE_SHA256_BYTES);
    }
    while (scheduler_cluster_take_line(server->cluster, line)) {
        sim_trace(world, "server: %s", line);
        note_lost(world, line);
    }
}

/* ---- answers ---- */

static struct sim_orders *take_orders(struct sim_world *world, uint64_t id)
{
    const struct scheduler_cluster *cluster = world->server.cluster;
    const struct scheduler_worker *worker = scheduler_cluster_worker(cluster, id);
    struct sim_orders *orders = sim_memory_get(&world->memory, sizeof *orders);
    const struct scheduler_stream *probe;
    const struct scheduler_live_stream *live;
    orders->revision = worker->revision;
    orders->drain = worker->drain_ordered;
    for (int i = 0; (probe = scheduler_cluster_probe_at(cluster, id, i)); i++)
        orders->probe |= 1u << find_candidate(world, probe->hash, false)->index;
    while (orders->stream_count < SIM_CANDIDATES &&
           (live = scheduler_cluster_served_at(cluster, id, orders->stream_count))) {
        int at = orders->stream_count++;
        orders->streams[at].candidate = find_candidate(world, live->identity.hash, true);
        if (live->planned)
            orders->streams[at].plan = sim_plan_keep(orders->streams[at].candidate, &live->plan);
        for (int i = 0; i < scheduler_cluster_job_count(cluster); i++) {
            const struct scheduler_job *job = scheduler_cluster_job_at(cluster, i);
            if (job->stream == live &&
                (job->state == SCHEDULER_JOB_RUNNING || job->state == SCHEDULER_JOB_WAITING))
                orders->streams[at].jobs[orders->streams[at].job_count++] = find_job(world, job->id)->name;
        }
    }
    return orders;
}

static void take_answer(struct sim_world *world, struct sim_call *call, const char *name)
{
    const struct scheduler_job *job = scheduler_cluster_job(world->server.cluster, name);
    if (!job || job->state == SCHEDULER_JOB_REFUSED) {
        call->code = job ? BASE_CONFLICT : BASE_NOT_FOUND;
        return;
    }
    call->answer = (struct sim_answer){.revision = job->revision};
    call->answer.running =
        job->state == SCHEDULER_JOB_RUNNING && job->stream && job->has_start && job->stream->planned;
    if (!call->answer.running)
        return;
    call->answer.candidate = find_candidate(world, job->stream->identity.hash, true);
    call->answer.plan = sim_plan_keep(call->answer.candidate, &job->stream->plan);
    call->answer.start = job->start;
    call->answer.first_epoch = job->first_epoch;
}

/* ---- calls on their way ---- */

struct sim_call *sim_server_call(struct sim_world *world, enum sim_call_kind kind)
{
    struct sim_call *call = sim_memory_get(&world->memory, sizeof *call);
    call->world = world;
    call->kind = kind;
    return call;
}

static void give(struct sim_call *call)
{
    if (call->done)
        return;
    call->done = true;
    if (call->kind != SIM_WORKER_SYNC)
        sim_rank_answer(call->rank, call);
    else if (call->worker->life == call->life)
        sim_worker_orders(call->worker, call->news, call->code, call->orders);
}

static void on_reply(void *who, uint64_t what)
{
    (void)what;
    give(who);
}

static void on_timeout(void *who, uint64_t what)
{
    struct sim_call *call = who;
    (void)what;
    if (call->done)
        return;
    call->code = BASE_TIMEOUT;
    give(call);
}

static bool is_lost(struct sim_world *world)
{
    return world->server_hole_ns > world->now_ns ||
           (!world->calm && sim_random_chance(&world->random, world->rules.rpc_loss_permille));
}

static void reply(struct sim_call *call, enum base_code code)
{
    struct sim_world *world = call->world;
    if (call->done || is_lost(world))
        return;
    call->code = code;
    if (code == BASE_OK && call->kind == SIM_WORKER_SYNC)
        call->orders = take_orders(world, call->worker->id);
    else if (code == BASE_OK && call->kind != SIM_JOB_CLOSE)
        take_answer(world, call, call->rank->job->name);
    sim_at(world, world->now_ns + sim_delay_ns(world), on_reply, call, 0);
}

/* ---- long polls ---- */

static bool is_ready(const struct sim_world *world, const struct sim_call *call)
{
    const struct scheduler_cluster *cluster = world->server.cluster;
    if (call->kind == SIM_WORKER_SYNC) {
        const struct scheduler_worker *worker = scheduler_cluster_worker(cluster, call->worker->id);
        return worker->revision != call->seen_revision;
    }
    const struct scheduler_job *job = scheduler_cluster_job(cluster, call->rank->job->name);
    return !job || job->revision != call->seen_revision;
}

static void poll(struct sim_world *world)
{
    struct sim_call **at = &world->server.parked;
    while (*at) {
        struct sim_call *call = *at;
        if (call->deadline_ns > world->now_ns && !is_ready(world, call)) {
            at = &call->next;
            continue;
        }
        *at = call->next;
        reply(call, BASE_OK);
    }
}

static void on_poll(void *who, uint64_t life)
{
    struct sim_world *world = who;
    if (world->server.cluster && world->server.life == life)
        poll(world);
}

static void park(struct sim_call *call)
{
    struct sim_world *world = call->world;
    if (call->wait_ns == 0 || is_ready(world, call)) {
        reply(call, BASE_OK);
        return;
    }
    call->deadline_ns = world->now_ns + call->wait_ns;
    call->next = world->server.parked;
    world->server.parked = call;
    sim_at(world, call->deadline_ns, on_poll, world, world->server.life);
}

/* ---- calls that have come ---- */

static enum base_code open_job(struct sim_call *call, struct base_error *error)
{
    struct sim_world *world = call->world;
    struct sim_server *server = &world->server;
    int index = call->rank->job->index;
    if (call->open.resume)
        call->open.resume = &call->resume;
    enum base_code code = scheduler_cluster_job_open(server->cluster, world->now_ns, &call->open, error);
    if (code != BASE_OK)
        return code;
    server->opened[index] = call->open;
    server->resumes[index] = call->resume;
    return code;
}

static void on_call(void *who, uint64_t what)
{
    struct sim_call *call = who;
    struct sim_world *world = call->world;
    struct scheduler_cluster *cluster = world->server.cluster;
    struct base_error error = {0};
    enum base_code code;
    (void)what;
    if (call->done)
        return;
    if (!cluster) {
        reply(call, BASE_UNAVAILABLE);
        return;
    }
    switch (call->kind) {
    case SIM_WORKER_SYNC:
        code = scheduler_cluster_worker_sync(cluster, world->now_ns, &call->report, &error);
        break;
    case SIM_JOB_OPEN:
        code = open_job(call, &error);
        break;
    case SIM_JOB_SYNC:
        code = scheduler_cluster_job_sync(cluster, world->now_ns, &call->job, &error);
        break;
    default:
        code = scheduler_cluster_job_close(cluster, world->now_ns, &call->job, &error);
    }
    if (code != BASE_OK)
        sim_trace(world, "server says %s: %s", base_error_name(code), error.text);
    persist(world);
    if (code == BASE_OK && (call->kind == SIM_WORKER_SYNC || call->kind == SIM_JOB_SYNC))
        park(call);
    else
        reply(call, code);
    settle(world);
}

void sim_server_send(struct sim_call *call, int64_t timeout_ns)
{
    struct sim_world *world = call->world;
    call->report.datasets = call->held;
    call->report.probes = call->probes;
    call->report.fronts = call->fronts;
    if (!is_lost(world))
        sim_at(world, world->now_ns + sim_delay_ns(world), on_call, call, 0);
    sim_at(world, world->now_ns + timeout_ns + call->wait_ns, on_timeout, call, 0);
}

/* ---- time ---- */

static void on_tick(void *who, uint64_t life)
{
    struct sim_world *world = who;
    struct sim_server *server = &world->server;
    if (!server->cluster || server->life != life || world->now_ns < server->tick_ns)
        return;
    server->tick_ns = INT64_MAX;
    scheduler_cluster_tick(server->cluster, world->now_ns);
    persist(world);
    settle(world);
}

static void settle(struct sim_world *world)
{
    struct sim_server *server = &world->server;
    poll(world);
    int64_t deadline_ns = scheduler_cluster_deadline_ns(server->cluster);
    if (deadline_ns >= server->tick_ns)
        return;
    server->tick_ns = deadline_ns > world->now_ns ? deadline_ns : world->now_ns + 1;
    sim_at(world, server->tick_ns, on_tick, world, server->life);
}

/* ---- life ---- */

static void load(struct sim_world *world)
{
    struct sim_server *server = &world->server;
    struct base_error error = {0};
    for (int i = 0; i < world->candidate_count; i++)
        if (server->stored[i] &&
            scheduler_cluster_load_stream(server->cluster, world->now_ns, &world->candidates[i].stream,
                                          server->stored_plan[i], &error) != BASE_OK)
            sim_fail(world, "stream %d is not loaded: %s", i, error.text);
    for (int i = 0; i < world->job_count; i++) {
        struct sim_stored_job *stored = &server->jobs[i];
        if (!stored->used)
            continue;
        if (stored->request.resume)
            stored->request.resume = &stored->resume;
        server->opened[i] = stored->request;
        server->resumes[i] = stored->resume;
        if (scheduler_cluster_load_job(server->cluster, world->now_ns, &stored->request, &stored->stored,
                                       &error) != BASE_OK)
            sim_fail(world, "job %s is not loaded: %s", world->jobs[i].name, error.text);
    }
}

void sim_server_start(struct sim_world *world)
{
    struct sim_server *server = &world->server;
    struct scheduler_cluster_options options = world->rules.cluster;
    struct base_error error;
    if (server->cluster)
        return;
    sim_trace(world, "server starts");
    server->life++;
    server->started_ns = world->now_ns;
    server->tick_ns = INT64_MAX;
    options.first_revision = server->life << 40;
    if (scheduler_cluster_create(&server->cluster, &options, &error) != BASE_OK) {
        sim_fail(world, "cluster: %s", error.text);
        return;
    }
    load(world);
    persist(world);
    settle(world);
}

void sim_server_stop(struct sim_world *world)
{
    struct sim_server *server = &world->server;
    if (!server->cluster)
        return;
    sim_trace(world, "server stops");
    struct sim_call *parked = server->parked;
    server->parked = NULL;
    scheduler_cluster_destroy(server->cluster);
    server->cluster = NULL;
    for (; parked; parked = parked->next)
        reply(parked, BASE_UNAVAILABLE);
}

void sim_server_drain(struct sim_world *world, uint64_t worker)
{
    scheduler_cluster_worker_drain(world->server.cluster, world->now_ns, worker, NULL);
    persist(world);
    settle(world);
}
