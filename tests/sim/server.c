/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void settle(struct sim_world *world);

/* ---- who is meant ---- */

static int64_t now_of(const struct sim_world *world)
{
    return sim_process_now_ns(&world->server.process);
}

static struct sim_candidate *find_candidate(struct sim_world *world, const uint8_t *key)
{
    for (int i = 0; i < world->candidate_count; i++)
        if (memcmp(key, world->candidates[i].asked.hash, BASE_SHA256_BYTES) == 0)
            return &world->candidates[i];
    sim_fail(world, "streams", "the server speaks of a stream that nobody asked for");
    return &world->candidates[0];
}

static struct sim_stream *find_stream(struct sim_world *world, const uint8_t *hash)
{
    for (int i = 0; i < world->candidate_count; i++)
        for (int b = 0; b < world->candidates[i].stream_count; b++)
            if (memcmp(hash, world->candidates[i].streams[b].identity.hash, BASE_SHA256_BYTES) == 0)
                return &world->candidates[i].streams[b];
    sim_fail(world, "streams", "the server speaks of bits that nobody makes");
    return &world->candidates[0].streams[0];
}

static struct sim_job *find_job(struct sim_world *world, const char *name)
{
    char *end;
    unsigned long index = strncmp(name, "job", 3) == 0 ? strtoul(name + 3, &end, 10) : UINT32_MAX;
    if (index < (unsigned long)world->job_count)
        return &world->jobs[index];
    sim_fail(world, "streams", "the server speaks of job %s", name);
    return &world->jobs[0];
}

/* Leases of a launch have run out: the server owes nothing to its ranks any more. */
static void note_lost(struct sim_world *world, const char *line)
{
    int index;
    char rest[40];
    if (sscanf(line, "job job%d is lost%1s", &index, rest) == 1 && strstr(line, " is lost") &&
        index < world->job_count) {
        if (world->jobs[index].launch)
            world->jobs[index].launch->lost = true;
    } else if (sscanf(line, "job job%d: a new start%4s", &index, rest) == 2 && index < world->job_count) {
        struct sim_launch *launch = world->jobs[index].launch;
        if (launch && strstr(line, ": a new start of it begins") && !sim_job_kept(launch))
            launch->lost = true;
    }
}

/* ---- what is stored, as server_persist does ---- */

/* live NULL: it is gone. */
static void store_stream(struct sim_world *world, const struct sim_stream *stream,
                         const struct scheduler_live_stream *live)
{
    struct sim_server *server = &world->server;
    struct sim_stored_stream *stored = &server->streams[stream->candidate->index][stream->build];
    if (live && live->planned && stored->used && stored->life != server->life)
        sim_check_plan_kept(world, stream, &stored->plan, &live->plan);
    stored->used = live != NULL;
    if (!live)
        return;
    stored->plan = live->plan;
    stored->life = live->planned ? server->life : stored->life;
}

static void persist(struct sim_world *world)
{
    struct sim_server *server = &world->server;
    uint8_t hash[BASE_SHA256_BYTES];
    char id[SCHEDULER_JOB_CHARS], line[SCHEDULER_WORDS_CHARS];
    bool gone;
    while (scheduler_cluster_take_stream(server->cluster, hash, &gone)) {
        struct sim_stream *stream = find_stream(world, hash);
        int index = stream->candidate->index;
        const struct scheduler_live_stream *live = scheduler_cluster_stream(server->cluster, hash);
        if (!gone && !live)
            continue;
        stream->dropped |= gone;
        store_stream(world, stream, gone ? NULL : live);
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

static struct sim_orders *make_orders(const struct scheduler_cluster *cluster)
{
    size_t jobs = SIM_CANDIDATES * (size_t)scheduler_cluster_job_count(cluster);
    struct sim_orders *orders = calloc(1, sizeof *orders + jobs * sizeof *orders->all);
    if (!orders)
        abort();
    return orders;
}

static struct sim_orders *take_orders(struct sim_world *world, uint64_t id)
{
    const struct scheduler_cluster *cluster = world->server.cluster;
    const struct scheduler_worker *worker = scheduler_cluster_worker(cluster, id);
    struct sim_orders *orders = make_orders(cluster);
    const struct scheduler_stream *probe;
    const struct scheduler_live_stream *live;
    struct sim_job **jobs = orders->all;
    orders->revision = worker->revision;
    orders->drain = worker->drain_ordered;
    for (int i = 0; (probe = scheduler_cluster_probe_at(cluster, id, i)); i++)
        orders->probe |= 1u << find_candidate(world, probe->hash)->index;
    while (orders->stream_count < SIM_CANDIDATES &&
           (live = scheduler_cluster_served_at(cluster, id, orders->stream_count))) {
        int at = orders->stream_count++;
        orders->streams[at].stream = find_stream(world, live->identity.hash);
        orders->streams[at].jobs = jobs;
        if (live->planned)
            orders->streams[at].plan = sim_plan_keep(orders->streams[at].stream, &live->plan);
        for (int i = 0; i < scheduler_cluster_job_count(cluster); i++) {
            const struct scheduler_job *job = scheduler_cluster_job_at(cluster, i);
            if (job->stream == live &&
                (job->state == SCHEDULER_JOB_RUNNING || job->state == SCHEDULER_JOB_WAITING))
                *jobs++ = find_job(world, job->id);
        }
        orders->streams[at].job_count = (int)(jobs - orders->streams[at].jobs);
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
    call->answer.stream = find_stream(world, job->stream->identity.hash);
    call->answer.plan = sim_plan_keep(call->answer.stream, &job->stream->plan);
    call->answer.start = job->start;
    call->answer.first_epoch = job->first_epoch;
}

/* ---- calls on their way ---- */

struct sim_call *sim_server_call(struct sim_process *process, enum sim_call_kind kind)
{
    struct sim_server *server = &process->world->server;
    struct sim_call *call = server->free_calls;
    if (call)
        server->free_calls = call->next;
    else
        call = sim_memory_get(&process->world->memory, sizeof *call);
    *call = (struct sim_call){.world = process->world, .process = process, .kind = kind};
    return call;
}

static void free_orders(struct sim_call *call)
{
    free(call->orders);
    call->orders = NULL;
}

static void put_call(struct sim_call *call)
{
    if (--call->uses > 0)
        return;
    free_orders(call);
    call->next = call->world->server.free_calls;
    call->world->server.free_calls = call;
}

static void call_at(struct sim_process *process, int64_t at_ns, sim_run *run, struct sim_call *call)
{
    call->uses++;
    sim_process_at(process, at_ns, run, call, 0);
}

static void give(struct sim_call *call)
{
    if (call->done)
        return;
    call->done = true;
    if (call->kind != SIM_WORKER_SYNC) {
        sim_rank_answer(call->rank, call);
    } else if (call->worker->life == call->life) {
        struct sim_orders *orders = call->code == BASE_OK ? call->orders : NULL;
        if (orders)
            call->orders = NULL;
        sim_worker_orders(call->worker, call->news, call->code, orders);
    }
}

static void on_reply(void *who, uint64_t what)
{
    (void)what;
    give(who);
    free_orders(who);
    put_call(who);
}

static void on_timeout(void *who, uint64_t what)
{
    struct sim_call *call = who;
    (void)what;
    if (!call->done) {
        call->code = BASE_TIMEOUT;
        give(call);
    }
    put_call(call);
}

static bool is_lost(struct sim_call *call, bool back)
{
    struct sim_world *world = call->world;
    struct sim_process *server = &world->server.process;
    return world->server_hole_ns > world->now_ns ||
           sim_process_cut_ns(back ? server : call->process, back ? call->process : server) > 0 ||
           sim_fault_noise(world, &call->process->random, SIM_NOISE_LOST_CALL);
}

static int64_t delay_of(struct sim_call *call)
{
    struct sim_random *random = &call->process->random;
    int64_t delay_ns = sim_delay_ns(call->world, random);
    if (sim_fault_noise(call->world, random, SIM_NOISE_LATE_CALL))
        delay_ns += sim_random_between(random, 0, 3 * SIM_S);
    return delay_ns;
}

static void reply(struct sim_call *call, enum base_code code)
{
    struct sim_world *world = call->world;
    if (call->done || call->replied || is_lost(call, true))
        return;
    call->replied = true;
    call->code = code;
    if (code == BASE_OK && call->kind == SIM_WORKER_SYNC)
        call->orders = take_orders(world, call->worker->id);
    else if (code == BASE_OK && call->kind != SIM_JOB_CLOSE)
        take_answer(world, call, call->rank->job->name);
    call_at(call->process, world->now_ns + delay_of(call), on_reply, call);
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

static void poll(struct sim_world *world, bool all)
{
    struct sim_server *server = &world->server;
    uint64_t revision = scheduler_cluster_revision(server->cluster);
    if (!all && revision == server->polled)
        return;
    server->polled = revision;
    struct sim_call **at = &server->parked;
    while (*at) {
        struct sim_call *call = *at;
        if (call->deadline_ns > world->now_ns && !call->done && !is_ready(world, call)) {
            at = &call->next;
            continue;
        }
        *at = call->next;
        call->parked = false;
        reply(call, BASE_OK);
        put_call(call);
    }
}

static void on_poll(void *who, uint64_t what)
{
    struct sim_call *call = who;
    (void)what;
    if (call->parked && call->world->server.cluster)
        poll(call->world, true);
    put_call(call);
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
    call->parked = true;
    call->uses++;
    world->server.parked = call;
    call_at(&world->server.process, call->deadline_ns, on_poll, call);
}

/* ---- calls that have come ---- */

static enum base_code open_job(struct sim_call *call, struct base_error *error)
{
    struct sim_world *world = call->world;
    struct sim_server *server = &world->server;
    int index = call->rank->job->index;
    if (call->open.resume)
        call->open.resume = &call->resume;
    enum base_code code = scheduler_cluster_job_open(server->cluster, now_of(world), &call->open, error);
    if (code != BASE_OK)
        return code;
    server->opened[index] = call->open;
    server->resumes[index] = call->resume;
    return code;
}

static enum base_code sync_job(struct sim_call *call, struct base_error *error)
{
    struct sim_world *world = call->world;
    struct sim_rank *rank = call->rank;
    const struct scheduler_cluster *cluster = world->server.cluster;
    enum base_code code = scheduler_cluster_job_sync(world->server.cluster, now_of(world), &call->job, error);
    if (code != BASE_OK)
        return code;
    if (rank->told_life != world->server.life)
        rank->seeks_told = 0;
    rank->told_life = world->server.life;
    rank->seeks_told = call->job.seeks > rank->seeks_told ? call->job.seeks : rank->seeks_told;
    sim_check_told_cursor(rank, scheduler_cluster_job(cluster, call->job.job));
    return code;
}

static enum base_code execute(struct sim_call *call, struct base_error *error)
{
    struct scheduler_cluster *cluster = call->world->server.cluster;
    int64_t now_ns = now_of(call->world);
    switch (call->kind) {
    case SIM_WORKER_SYNC:
        return scheduler_cluster_worker_sync(cluster, now_ns, &call->report, error);
    case SIM_JOB_OPEN:
        return open_job(call, error);
    case SIM_JOB_SYNC:
        return sync_job(call, error);
    default:
        return scheduler_cluster_job_close(cluster, now_ns, &call->job, error);
    }
}

static void on_call(void *who, uint64_t what)
{
    struct sim_call *call = who;
    struct sim_world *world = call->world;
    struct base_error error = {0};
    (void)what;
    if (!world->server.cluster) {
        reply(call, BASE_UNAVAILABLE);
        put_call(call);
        return;
    }
    enum base_code code = execute(call, &error);
    if (code != BASE_OK)
        sim_trace(world, "server says %s: %s", base_error_name(code), error.text);
    persist(world);
    bool polls = code == BASE_OK && (call->kind == SIM_WORKER_SYNC || call->kind == SIM_JOB_SYNC);
    if (!polls)
        reply(call, code);
    else if (!call->parked && !call->replied && !call->done)
        park(call);
    settle(world);
    put_call(call);
}

void sim_server_send(struct sim_call *call, int64_t timeout_ns)
{
    struct sim_world *world = call->world;
    struct sim_random *random = &call->process->random;
    call->report.datasets = call->held;
    call->report.probes = call->probes;
    call->report.fronts = call->fronts;
    if (!is_lost(call, false)) {
        int64_t at_ns = world->now_ns + delay_of(call);
        call_at(&world->server.process, at_ns, on_call, call);
        if (sim_fault_noise(world, random, SIM_NOISE_TWICE))
            call_at(&world->server.process, at_ns + sim_random_between(random, 0, SIM_S), on_call, call);
    }
    call_at(call->process, world->now_ns + timeout_ns + call->wait_ns, on_timeout, call);
}

/* ---- time ---- */

static void on_tick(void *who, uint64_t life)
{
    struct sim_world *world = who;
    struct sim_server *server = &world->server;
    if (!server->cluster || server->life != life || world->now_ns < server->tick_ns)
        return;
    server->tick_ns = INT64_MAX;
    scheduler_cluster_tick(server->cluster, now_of(world));
    persist(world);
    settle(world);
}

static void set_timer(struct sim_world *world, int64_t at_ns)
{
    world->server.tick_ns = at_ns;
    sim_process_at(&world->server.process, at_ns, on_tick, world, world->server.life);
}

static void settle(struct sim_world *world)
{
    struct sim_server *server = &world->server;
    poll(world, false);
    int64_t deadline_ns = scheduler_cluster_deadline_ns(server->cluster);
    if (deadline_ns == INT64_MAX)
        return;
    deadline_ns = sim_process_when_ns(&server->process, deadline_ns);
    if (deadline_ns < server->tick_ns)
        set_timer(world, deadline_ns > world->now_ns ? deadline_ns : world->now_ns + 1);
}

void sim_server_wake(struct sim_world *world)
{
    if (world->server.cluster)
        set_timer(world, world->now_ns);
}

/* ---- life ---- */

static void load_streams(struct sim_world *world, int candidate)
{
    struct sim_server *server = &world->server;
    struct base_error error = {0};
    for (int b = 0; b < world->candidates[candidate].stream_count; b++)
        if (server->streams[candidate][b].used &&
            scheduler_cluster_load_stream(server->cluster, now_of(world),
                                          &world->candidates[candidate].streams[b].identity,
                                          &server->streams[candidate][b].plan, &error) != BASE_OK)
            sim_fail(world, "stored", "stream %d.%d is not loaded: %s", candidate, b, error.text);
}

static void load(struct sim_world *world)
{
    struct sim_server *server = &world->server;
    struct base_error error = {0};
    for (int i = 0; i < world->candidate_count; i++)
        load_streams(world, i);
    for (int i = 0; i < world->job_count; i++) {
        struct sim_stored_job *stored = &server->jobs[i];
        if (!stored->used)
            continue;
        if (stored->request.resume)
            stored->request.resume = &stored->resume;
        server->opened[i] = stored->request;
        server->resumes[i] = stored->resume;
        if (scheduler_cluster_load_job(server->cluster, now_of(world), &stored->request, &stored->stored,
                                       &error) != BASE_OK)
            sim_fail(world, "stored", "job %s is not loaded: %s", world->jobs[i].name, error.text);
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
    server->started_ns = now_of(world);
    server->polled = 0;
    server->tick_ns = INT64_MAX;
    options.first_revision = server->life << 40;
    if (scheduler_cluster_create(&server->cluster, &options, &error) != BASE_OK) {
        sim_fail(world, "stored", "cluster: %s", error.text);
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
    while (parked) {
        struct sim_call *call = parked;
        parked = call->next;
        call->parked = false;
        reply(call, BASE_UNAVAILABLE);
        put_call(call);
    }
}

void sim_server_drain(struct sim_world *world, uint64_t worker)
{
    scheduler_cluster_worker_drain(world->server.cluster, now_of(world), worker, NULL);
    persist(world);
    settle(world);
}

void sim_server_fini(struct sim_world *world)
{
    struct sim_server *server = &world->server;
    struct sim_event event;
    while (sim_queue_take(&world->queue, &event)) /* orders on their way */
        if (event.run == on_reply)
            free_orders(event.who);
    scheduler_cluster_destroy(server->cluster);
    free(server->jobs);
    free(server->opened);
    free(server->resumes);
}
