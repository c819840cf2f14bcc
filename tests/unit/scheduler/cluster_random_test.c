/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random histories of the cluster machine, each from a seed: workers that sync, fall silent, drain, change their bits or
 * their eligibility; jobs that open, move, vanish, restart and leave zombies; the server restarted from what it was told
 * to store. After every event the promises of scheduler/cluster.h are held against a model that only knows who said what
 * and when. In every other history steps do next to nothing, so that events meet what earlier ones have left undone; the
 * promises are then held when all is done. And nothing is forgotten: all derived anew is as it is.
 */
#include "tests/unit/scheduler/cluster_fixture.h"

#include "base/hash.h"
#include "base/philox.h"
#include "scheduler/cluster_state.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SEEDS = 100, EVENTS = 250, WORKERS = 6, JOBS = 5, WORLD = 3, STREAMS = 64, STEPS = 500 };

struct model_worker {
    struct fake_worker say; /* as last said */
    bool synced, drained;   /* drained: an operator said so */
    int64_t seen_ns;
    uint64_t revision, orders; /* orders: hash of what it was last told */
};

struct model_job {
    char id[16];
    struct scheduler_job_request request; /* of its latest accepted open */
    struct scheduler_job_cursor resume;   /* of that request */
    bool opened;
    uint64_t generation[WORLD], zombie[WORLD]; /* zombie: an earlier start's; 0: none */
    uint64_t revision, answer;
    /* the store */
    bool stored;
    struct scheduler_job_stored record;
};

struct model_stream {
    uint8_t hash[BASE_SHA256_BYTES];
    struct scheduler_plan plan;
    bool stored;
    struct scheduler_stream identity;
    struct scheduler_plan stored_plan;
    int64_t unread_ns; /* 0: read */
};

struct world {
    uint64_t seed, draws, generations, digest;
    int64_t now;
    struct scheduler_cluster *cluster;
    struct model_worker workers[WORKERS];
    struct model_job jobs[JOBS];
    struct model_stream streams[STREAMS];
    int stream_count;
    uint64_t waited, refused, restarted, fenced, undone;
};

static uint64_t draw(struct world *world, uint64_t below)
{
    return base_philox_below(world->seed, 0, world->draws++, below);
}

static void mix(uint64_t *hash, const void *bytes, size_t size)
{
    *hash = (*hash ^ base_hash_xxh3(bytes, size)) * UINT64_C(0x9E3779B97F4A7C15);
}

/* ---- what must hold ---- */

static bool may_make(const struct world *world, const struct model_worker *worker,
                     const struct scheduler_live_stream *stream)
{
    return worker->synced && world->now < worker->seen_ns + 10 * SECOND && !worker->say.draining &&
           !worker->drained && !worker->say.not_eligible && !worker->say.cannot_make &&
           worker->say.bits == stream->identity.fingerprint[0];
}

static struct model_stream *model_stream(struct world *world, const uint8_t *hash)
{
    for (int i = 0; i < world->stream_count; i++)
        if (memcmp(world->streams[i].hash, hash, BASE_SHA256_BYTES) == 0)
            return &world->streams[i];
    assert_true(world->stream_count < STREAMS);
    struct model_stream *stream = &world->streams[world->stream_count++];
    memset(stream, 0, sizeof *stream);
    memcpy(stream->hash, hash, BASE_SHA256_BYTES);
    return stream;
}

static void check_plan(struct world *world, const struct scheduler_live_stream *stream)
{
    struct model_stream *model = model_stream(world, stream->identity.hash);
    assert_true(stream->plan.version >= model->plan.version);
    if (!stream->planned)
        return;
    bool may[WORKERS + 1] = {true}, good = true; /* nobody may, too */
    for (uint64_t id = 1; id <= WORKERS; id++)
        may[id] = may_make(world, &world->workers[id - 1], stream);
    for (int s = 0; s < SCHEDULER_PLAN_SLOTS; s++) {
        uint64_t home = stream->plan.primary[s], second = stream->plan.secondary[s];
        good &=
            home <= WORKERS && second <= WORKERS && may[home] && may[second] && (home != 0 || second == 0);
    }
    assert_true(good);
    bool same = memcmp(stream->plan.primary, model->plan.primary, sizeof model->plan.primary) == 0 &&
                memcmp(stream->plan.secondary, model->plan.secondary, sizeof model->plan.secondary) == 0;
    assert_true(same || stream->plan.version > model->plan.version);
    model->plan = stream->plan;
}

/* A worker that may make a stream and has probed it is in its plan. */
static void check_members(struct world *world, const struct scheduler_live_stream *stream)
{
    for (uint64_t id = 1; stream->planned && id <= WORKERS; id++) {
        const struct scheduler_live_stream *served = NULL;
        for (int i = 0; (served = scheduler_cluster_served_at(world->cluster, id, i)) && served != stream;
             i++)
            continue;
        if (served && may_make(world, &world->workers[id - 1], stream))
            assert_true(fixture_held(stream, id) > 0);
    }
}

static void check_use(struct world *world, const struct scheduler_live_stream *stream)
{
    struct model_stream *model = model_stream(world, stream->identity.hash);
    int jobs = 0;
    for (int i = 0; i < scheduler_cluster_job_count(world->cluster); i++) {
        const struct scheduler_job *job = scheduler_cluster_job_at(world->cluster, i);
        jobs += job->stream == stream && job->ranks_live > 0;
    }
    assert_int_equal(stream->jobs, jobs);
    if (jobs > 0)
        model->unread_ns = 0;
    else if (model->unread_ns == 0)
        model->unread_ns = world->now;
    assert_true(model->unread_ns == 0 || world->now - model->unread_ns < 60 * SECOND);
}

static bool in_plan(const struct scheduler_plan *plan, uint64_t id)
{
    for (int s = 0; s < SCHEDULER_PLAN_SLOTS; s++)
        if (plan->primary[s] == id || plan->secondary[s] == id)
            return true;
    return false;
}

static uint64_t hash_orders(const struct world *world, uint64_t id)
{
    uint64_t hash = 0;
    const struct scheduler_stream *probe;
    const struct scheduler_live_stream *stream;
    const struct scheduler_worker *worker = scheduler_cluster_worker(world->cluster, id);
    mix(&hash, &worker->drain_ordered, sizeof worker->drain_ordered);
    for (int i = 0; (probe = scheduler_cluster_probe_at(world->cluster, id, i)); i++)
        mix(&hash, probe->hash, sizeof probe->hash);
    for (int i = 0; (stream = scheduler_cluster_served_at(world->cluster, id, i)); i++) {
        mix(&hash, stream->identity.hash, sizeof stream->identity.hash);
        if (!stream->planned || !in_plan(&stream->plan, id))
            continue; /* nobody asks it but by mistake: it need not know whom they should */
        mix(&hash, &stream->plan, sizeof stream->plan);
        for (int j = 0; j < scheduler_cluster_job_count(world->cluster); j++) {
            const struct scheduler_job *job = scheduler_cluster_job_at(world->cluster, j);
            if (job->stream == stream && job->ranks_live > 0)
                mix(&hash, job->id, strlen(job->id));
        }
    }
    return hash;
}

static uint64_t hash_answer(const struct scheduler_job *job)
{
    uint64_t hash = 0;
    mix(&hash, &job->state, sizeof job->state);
    mix(&hash, job->reason, strlen(job->reason));
    mix(&hash, &job->start.epoch, sizeof job->start.epoch);
    mix(&hash, &job->start.position, sizeof job->start.position);
    mix(&hash, &job->first_epoch, sizeof job->first_epoch);
    if (job->stream) {
        mix(&hash, job->stream->identity.hash, BASE_SHA256_BYTES);
        if (job->stream->planned)
            mix(&hash, &job->stream->plan, sizeof job->stream->plan);
    }
    return hash;
}

/* Who would not be woken has nothing new to hear. */
static void check_revisions(struct world *world)
{
    for (uint64_t id = 1; id <= WORKERS; id++) {
        struct model_worker *model = &world->workers[id - 1];
        const struct scheduler_worker *worker = scheduler_cluster_worker(world->cluster, id);
        uint64_t orders = worker ? hash_orders(world, id) : 0;
        if (worker && model->revision == worker->revision)
            assert_true(model->orders == orders);
        model->revision = worker ? worker->revision : 0;
        model->orders = orders;
        mix(&world->digest, &model->revision, sizeof model->revision);
    }
    for (int i = 0; i < JOBS; i++) {
        struct model_job *model = &world->jobs[i];
        const struct scheduler_job *job = scheduler_cluster_job(world->cluster, model->id);
        uint64_t answer = job ? hash_answer(job) : 0;
        if (job && model->revision == job->revision)
            assert_true(model->answer == answer);
        model->revision = job ? job->revision : 0;
        model->answer = answer;
        mix(&world->digest, &answer, sizeof answer);
    }
}

static bool read_by_another(const struct world *world, const struct scheduler_job *job)
{
    for (int i = 0; i < scheduler_cluster_job_count(world->cluster); i++) {
        const struct scheduler_job *other = scheduler_cluster_job_at(world->cluster, i);
        if (other != job && other->stream == job->stream && other->state == SCHEDULER_JOB_RUNNING)
            return true;
    }
    return false;
}

static void check_job(struct world *world, const struct scheduler_job *job)
{
    bool live = job->ranks_live > 0;
    switch (job->state) {
    case SCHEDULER_JOB_PREPARING:
        assert_true(live && !job->stream);
        break;
    case SCHEDULER_JOB_WAITING:
        assert_true(live && job->stream && !job->has_start && read_by_another(world, job));
        world->waited++;
        break;
    case SCHEDULER_JOB_RUNNING:
        assert_true(live && job->stream && job->has_start);
        assert_true(job->at.epoch > job->start.epoch ||
                    (job->at.epoch == job->start.epoch && job->at.position >= job->start.position));
        assert_true(job->start.epoch >= job->first_epoch);
        break;
    case SCHEDULER_JOB_LOST:
    case SCHEDULER_JOB_CLOSED:
        assert_false(live);
        break;
    case SCHEDULER_JOB_REFUSED:
        assert_null(job->stream);
        world->refused++;
        break;
    }
    assert_true(job->reason[0] != 0);
    assert_true(!job->stream || memcmp(job->stream->key, job->key, sizeof job->key) == 0);
}

static void take_stored(struct world *world)
{
    uint8_t hash[BASE_SHA256_BYTES];
    char id[SCHEDULER_JOB_CHARS];
    bool gone;
    while (scheduler_cluster_take_stream(world->cluster, hash, &gone)) {
        struct model_stream *model = model_stream(world, hash);
        const struct scheduler_live_stream *stream = scheduler_cluster_stream(world->cluster, hash);
        model->stored = !gone;
        if (gone) /* and perhaps made again: then it is told once more */
            continue;
        assert_non_null(stream);
        model->identity = stream->identity;
        model->stored_plan = stream->plan;
    }
    while (scheduler_cluster_take_job(world->cluster, id, &gone)) {
        struct model_job *model = &world->jobs[atoi(id + 1)];
        const struct scheduler_job *job = scheduler_cluster_job(world->cluster, id);
        model->stored = !gone;
        if (gone)
            continue;
        assert_non_null(job);
        memset(model->record.stream, 0, sizeof model->record.stream);
        if (job->stream)
            memcpy(model->record.stream, job->stream->identity.hash, sizeof model->record.stream);
        model->record.first_epoch = job->first_epoch;
        model->record.at = job->at;
    }
}

/* Of all that anybody may see. */
static uint64_t hash_all(const struct world *world)
{
    uint64_t hash = 0;
    for (uint64_t id = 1; id <= WORKERS; id++) {
        uint64_t orders = scheduler_cluster_worker(world->cluster, id) ? hash_orders(world, id) : 0;
        mix(&hash, &orders, sizeof orders);
    }
    for (int i = 0; i < scheduler_cluster_job_count(world->cluster); i++) {
        uint64_t answer = hash_answer(scheduler_cluster_job_at(world->cluster, i));
        mix(&hash, &answer, sizeof answer);
    }
    return hash;
}

static void settle(struct world *world)
{
    for (int i = 0; scheduler_cluster_deadline_ns(world->cluster) <= world->now && i < STEPS; i++)
        scheduler_cluster_tick(world->cluster, world->now);
    assert_true(scheduler_cluster_deadline_ns(world->cluster) > world->now);
}

/* Votes are counted as they change: they are what counting all anew gives. */
static void check_votes(const struct scheduler_cluster *cluster, const struct cluster_candidate *candidate)
{
    int ready = 0, eligible = 0, prints[256] = {0};
    double weights[256] = {0};
    for (int i = 0; i < cluster->seat_count; i++) {
        const struct cluster_seat *seat = &cluster->seats[i];
        bool votes = seat->state == SCHEDULER_WORKER_READY && cluster_bit(candidate->version->eligible, i);
        ready += seat->state == SCHEDULER_WORKER_READY;
        eligible += votes;
        prints[candidate->print[i]] += votes;
        weights[candidate->print[i]] += votes ? seat->weight : 0;
    }
    assert_int_equal(cluster->ready_count, ready);
    assert_int_equal(candidate->eligible, eligible);
    assert_int_equal(candidate->silent, prints[CLUSTER_PRINT_NONE]);
    assert_int_equal(candidate->made, eligible - prints[CLUSTER_PRINT_NONE] - prints[CLUSTER_PRINT_FAILED]);
    for (int i = 0; i < candidate->print_count; i++) {
        double parts = 1024 * weights[CLUSTER_PRINT_FIRST + i];
        assert_true(fabs((double)candidate->prints[i].weight - parts) <= prints[CLUSTER_PRINT_FIRST + i]);
    }
}

/* Nothing was forgotten: everything marked, and settled once more, is as it was. */
static void check_derived(struct world *world)
{
    struct scheduler_cluster *cluster = world->cluster;
    uint64_t before = hash_all(world);
    for (int i = 0; i < cluster->candidate_count; i++) {
        check_votes(cluster, cluster->candidates[i]);
        cluster_candidate_mark(cluster, cluster->candidates[i]);
    }
    for (int i = 0; i < cluster->job_count; i++) {
        cluster_job_mark(cluster, cluster->jobs[i]);
        cluster_job_words(cluster, cluster->jobs[i]);
    }
    for (int i = 0; i < cluster->stream_count; i++) {
        cluster_stream_mark(cluster, cluster->streams[i]);
        cluster->streams[i]->homes = 0;
        cluster_plan_want(cluster, cluster->streams[i], true);
    }
    settle(world);
    if (hash_all(world) != before)
        fail_msg("seed %llu: derived anew it is not what it was", (unsigned long long)world->seed);
}

static void check(struct world *world)
{
    char line[SCHEDULER_WORDS_CHARS];
    bool lazy = world->cluster->step_work == 1;
    if (lazy && draw(world, 4)) {
        world->undone += scheduler_cluster_deadline_ns(world->cluster) <= world->now;
        for (int i = 0; i < world->stream_count; i++)
            world->streams[i].unread_ns = 0; /* somebody may have read it meanwhile */
        return;
    }
    for (int i = 0; scheduler_cluster_deadline_ns(world->cluster) <= world->now && i < STEPS; i++)
        scheduler_cluster_tick(world->cluster,
                               world->now); /* a step does a bounded part of what is to be done */
    take_stored(world);
    assert_true(scheduler_cluster_deadline_ns(world->cluster) > world->now);
    for (int i = 0; i < scheduler_cluster_stream_count(world->cluster); i++) {
        const struct scheduler_live_stream *stream = scheduler_cluster_stream_at(world->cluster, i);
        check_plan(world, stream);
        check_members(world, stream);
        check_use(world, stream);
        assert_int_equal(model_stream(world, stream->identity.hash)->stored_plan.version,
                         stream->plan.version);
    }
    for (int i = 0; i < world->stream_count; i++)
        if (!scheduler_cluster_stream(world->cluster, world->streams[i].hash))
            world->streams[i].unread_ns = 0;
    for (int i = 0; i < scheduler_cluster_job_count(world->cluster); i++)
        check_job(world, scheduler_cluster_job_at(world->cluster, i));
    check_revisions(world);
    if (draw(world, 8) == 0)
        check_derived(world);
    take_stored(world);
    while (scheduler_cluster_take_line(world->cluster, line))
        mix(&world->digest, line, strlen(line));
}

/* ---- what happens ---- */

static void worker_event(struct world *world)
{
    struct model_worker *worker = &world->workers[draw(world, WORKERS)];
    struct base_error error = {0};
    uint64_t kind = draw(world, 20);
    const struct scheduler_live_stream *stream =
        scheduler_cluster_stream_at(world->cluster, (int)draw(world, 4));
    if (kind == 0 && worker->synced) {
        scheduler_cluster_worker_leave(world->cluster, world->now, worker->say.id, worker->say.incarnation);
        worker->synced = worker->drained = false;
        return;
    }
    if (kind == 1) {
        enum base_code code =
            scheduler_cluster_worker_drain(world->cluster, world->now, worker->say.id, &error);
        worker->drained |= code == BASE_OK;
        return;
    }
    if (kind == 2) { /* a new start, perhaps another build */
        worker->say.incarnation++;
        worker->say.bits = draw(world, 4) ? 0xaa : 0xbb;
        worker->say.cannot_make = draw(world, 8) == 0;
        worker->drained = false;
    }
    if (kind == 3)
        worker->say.draining = draw(world, 3) == 0;
    if (kind == 4)
        worker->say.not_eligible = draw(world, 3) == 0;
    if (kind == 5)
        worker->say.weight = 1 + (double)draw(world, 8);
    worker->say.front_stream = stream ? stream->identity.hash : NULL;
    worker->say.front_epoch = (uint32_t)draw(world, 6);
    assert_int_equal(fixture_sync(world->cluster, world->now, &worker->say, &error), BASE_OK);
    worker->synced = true;
    worker->seen_ns = world->now;
}

static void fill_open(struct world *world, const struct model_job *job, struct scheduler_job_request *request,
                      struct scheduler_job_cursor *resume)
{
    const struct scheduler_job *view = scheduler_cluster_job(world->cluster, job->id);
    *request = fixture_request(job->id);
    request->world = 1 + (uint32_t)draw(world, WORLD);
    request->batch = 10 + (uint32_t)draw(world, 3) * 7;
    request->tail = (enum scheduler_tail)draw(world, 3);
    request->join = (enum scheduler_join)draw(world, 3);
    request->has_seed = draw(world, 5) == 0;
    request->seed = draw(world, 2);
    if (draw(world, 4) == 0) {
        request->sample_text = fixture_sample_text("imagenet_eval");
        request->shuffle = false;
    }
    if (!view || !view->stream || !view->has_start || draw(world, 2))
        return;
    *resume = (struct scheduler_job_cursor){.at = view->at, .first_epoch = view->first_epoch};
    memcpy(resume->dataset_version, request->dataset_version, BASE_SHA256_BYTES);
    memcpy(resume->fingerprint, view->stream->identity.fingerprint, sizeof resume->fingerprint);
    request->resume = resume;
    request->accept_new_bits = draw(world, 4) == 0;
}

/* Whether the log since the last look says that a new launch of the job has begun. */
static bool launched(struct world *world, const char *job)
{
    char line[SCHEDULER_WORDS_CHARS], want[64];
    bool found = false;
    snprintf(want, sizeof want, "job %s: a new start", job);
    while (scheduler_cluster_take_line(world->cluster, line)) {
        mix(&world->digest, line, strlen(line));
        found |= strstr(line, want) != NULL;
    }
    return found;
}

static void open_rank(struct world *world, struct model_job *job, const struct scheduler_job_request *request)
{
    struct base_error error = {0};
    bool known = scheduler_cluster_job(world->cluster, job->id) != NULL;
    enum base_code code = scheduler_cluster_job_open(world->cluster, world->now, request, &error);
    bool replaced = launched(world, job->id) || !known;
    bool listed = code == BASE_OK || (code == BASE_CONFLICT && strstr(error.text, "bits have fingerprint"));
    assert_true(listed || ((code == BASE_CONFLICT || code == BASE_UNAVAILABLE) && error.text[0] != 0));
    assert_true(listed || !replaced);
    for (uint32_t r = 0; replaced && r < WORLD; r++) {
        if (known && job->generation[r] && (r != request->rank || job->generation[r] < request->generation))
            job->zombie[r] = job->generation[r];
        job->generation[r] = 0;
    }
    if (replaced) {
        if (request->resume)
            job->resume = *request->resume;
        job->request = *request;
        job->request.resume = request->resume ? &job->resume : NULL;
    }
    if (listed)
        job->generation[request->rank] = request->generation;
    job->opened |= listed;
}

static void open_event(struct world *world)
{
    struct model_job *job = &world->jobs[draw(world, JOBS)];
    const struct scheduler_job *view = scheduler_cluster_job(world->cluster, job->id);
    struct scheduler_job_request request;
    struct scheduler_job_cursor resume;
    if (job->opened && view && draw(world, 2)) { /* one more rank of the same start, or the same call again */
        request = job->request;
        request.rank = (uint32_t)draw(world, request.world);
        request.generation = job->generation[request.rank];
        if (!request.generation)
            request.generation = ++world->generations;
    } else {
        fill_open(world, job, &request, &resume);
        request.rank = (uint32_t)draw(world, request.world);
        request.generation = ++world->generations;
    }
    open_rank(world, job, &request);
}

static void move_event(struct world *world)
{
    struct model_job *job = &world->jobs[draw(world, JOBS)];
    const struct scheduler_job *view = scheduler_cluster_job(world->cluster, job->id);
    uint32_t rank = (uint32_t)draw(world, WORLD);
    struct base_error error = {0};
    struct scheduler_job_report report = {.job = job->id, .rank = rank};
    if (draw(world, 6) == 0 && job->zombie[rank]) {
        report.generation = job->zombie[rank];
        enum base_code code = scheduler_cluster_job_sync(world->cluster, world->now, &report, &error);
        if (code != BASE_CONFLICT && code != BASE_NOT_FOUND)
            fail_msg("seed %llu: zombie %llu of rank %u of job %s: code %d, %s",
                     (unsigned long long)world->seed, (unsigned long long)job->zombie[rank], rank, job->id,
                     code, view ? view->reason : "unknown");
        world->fenced++;
        return;
    }
    report.generation = job->generation[rank];
    if (!report.generation || !view)
        return;
    report.has_cursor = view->has_start;
    report.at = view->at;
    report.at.position += draw(world, 400);
    if (report.at.position >= 1000)
        report.at = (struct scheduler_cursor){report.at.epoch + 1, 0};
    enum base_code code = draw(world, 12)
                              ? scheduler_cluster_job_sync(world->cluster, world->now, &report, &error)
                              : scheduler_cluster_job_close(world->cluster, world->now, &report, &error);
    assert_true(code == BASE_OK || code == BASE_CONFLICT);
}

static void create(struct world *world)
{
    struct scheduler_cluster_options options = {.first_revision = world->restarted * UINT64_C(1000000000)};
    assert_int_equal(scheduler_cluster_create(&world->cluster, &options, NULL), BASE_OK);
    if (world->seed % 2)
        world->cluster->step_work = 1;
}

/* The server is gone; its heir knows what was stored. Nobody is told what was not stored, so versions cannot fall. */
static void restart_event(struct world *world)
{
    struct base_error error = {0};
    scheduler_cluster_destroy(world->cluster);
    world->restarted++;
    create(world);
    for (int i = 0; i < world->stream_count; i++) {
        struct model_stream *stream = &world->streams[i];
        stream->unread_ns = 0;
        if (!stream->stored) /* dropped before: its versions begin anew */
            memset(&stream->plan, 0, sizeof stream->plan);
        if (stream->stored && scheduler_cluster_load_stream(world->cluster, world->now, &stream->identity,
                                                            &stream->stored_plan, &error))
            fail_msg("%s", error.text);
    }
    for (int i = 0; i < JOBS; i++) {
        struct model_job *job = &world->jobs[i];
        job->request.rank = 0;
        job->opened = job->stored;
        if (job->stored &&
            scheduler_cluster_load_job(world->cluster, world->now, &job->request, &job->record, &error))
            fail_msg("%s", error.text);
        memset(job->zombie, 0, sizeof job->zombie); /* any generation attaches now */
    }
    for (int i = 0; i < WORKERS; i++)
        world->workers[i].synced = world->workers[i].drained = false;
}

static void run(struct world *world, uint64_t seed)
{
    memset(world, 0, sizeof *world);
    world->seed = seed;
    world->now = 1000 * SECOND;
    create(world);
    for (int i = 0; i < WORKERS; i++)
        world->workers[i].say =
            (struct fake_worker){.id = (uint64_t)i + 1, .incarnation = 1, .weight = 2, .bits = 0xaa};
    for (int i = 0; i < JOBS; i++)
        snprintf(world->jobs[i].id, sizeof world->jobs[i].id, "j%d", i);
    for (int e = 0; e < EVENTS; e++) {
        uint64_t kind = draw(world, 100);
        world->now += (int64_t)draw(world, kind == 99 ? 70000 : 1200) * MS;
        scheduler_cluster_tick(world->cluster, world->now);
        check(world);
        if (kind < 45)
            worker_event(world);
        else if (kind < 60)
            open_event(world);
        else if (kind < 98)
            move_event(world);
        else if (kind == 98)
            restart_event(world);
        check(world);
    }
    scheduler_cluster_destroy(world->cluster);
}

static void every_history_keeps_every_promise(void **state)
{
    (void)state;
    static struct world world;
    uint64_t waited = 0, refused = 0, restarted = 0, fenced = 0, undone = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        run(&world, seed);
        waited += world.waited, refused += world.refused, restarted += world.restarted,
            fenced += world.fenced, undone += world.undone;
    }
    print_message("states seen: waiting %llu, refused %llu; restarts %llu, zombies %llu\n",
                  (unsigned long long)waited, (unsigned long long)refused, (unsigned long long)restarted,
                  (unsigned long long)fenced);
    assert_true(waited > 100 && refused > 10 && restarted > 100 && fenced > 100 && undone > 1000);
}

static void a_seed_is_a_history(void **state)
{
    (void)state;
    static struct world one, two;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        run(&one, seed);
        run(&two, seed);
        assert_true(one.digest == two.digest);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_history_keeps_every_promise),
        cmocka_unit_test(a_seed_is_a_history),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
