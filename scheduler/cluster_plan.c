/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When streams get a new plan, and from what. A worker that comes, goes or gets another weight marks the streams whose plan that can
 * change; siblings that are marked are planned together, so that equal plans stay equal and are made once.
 */
#include "scheduler/cluster_state.h"

#include "base/clock.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* How long a plan waits for more changes, by its workers: nobody notices with a few, and a thousand joiners make few plans. */
enum { HOMES_AT_ONCE = 64, WAIT_MS_PER_HOME = 1 };
enum { COST_LEAST = 30000, COST_PER_HOME = 200, COST_PER_SEAT = 40 }; /* of a plan, about in ns */

static bool serves_again(const struct scheduler_cluster *cluster, const struct cluster_stream *stream,
                         uint64_t home)
{
    const struct cluster_member *member = cluster_member_find(cluster, home);
    return member && cluster_stream_serves(cluster, stream, member->seat);
}

/* A loaded one: until all its homes are back, or their leases over, whoever reads it has a better plan than those that are back
 * would make. */
static bool must_wait(const struct scheduler_cluster *cluster, struct cluster_stream *stream)
{
    const uint64_t *homes = stream->view.plan.primary;
    if (cluster->now_ns >= stream->plan_from_ns)
        return false;
    if (homes[0] == SCHEDULER_PLAN_NOBODY)
        return true;
    while (stream->homes_back < SCHEDULER_PLAN_SLOTS &&
           serves_again(cluster, stream, homes[stream->homes_back]))
        stream->homes_back++;
    return stream->homes_back < SCHEDULER_PLAN_SLOTS;
}

void cluster_plan_want(struct scheduler_cluster *cluster, struct cluster_stream *stream, bool death)
{
    stream->replan_wanted = true;
    if (must_wait(cluster, stream)) {
        return; /* its timer says when, at the latest */
    } else if (death) {
        cluster_list_remove(&stream->replan);
        cluster_list_add(&cluster->dead_plans, &stream->replan, stream);
    } else if (cluster->now_ns >= stream->plan_after_ns) {
        cluster_list_add(&cluster->plans, &stream->replan, stream);
    } else {
        cluster_stream_wait(cluster, stream);
    }
}

static bool would_choose(const struct cluster_stream *stream, const struct cluster_seat *seat)
{
    struct scheduler_plan_worker worker = {.id = seat->id, .weight = seat->weight};
    return stream->least_score == -INFINITY ||
           scheduler_plan_score(stream->view.identity.family, &worker) >= stream->least_score;
}

void cluster_plan_worker(struct scheduler_cluster *cluster, int at, bool reweighed)
{
    const struct cluster_seat *seat = &cluster->seats[at];
    for (int i = 0; i < cluster->stream_count; i++) {
        struct cluster_stream *stream = cluster->streams[i];
        bool was = cluster_bit(stream->chosen, at);
        bool is = seat->state == SCHEDULER_WORKER_READY && cluster_stream_serves(cluster, stream, at);
        if (was && !is)
            cluster_plan_want(cluster, stream, true);
        else if (is && (was ? reweighed : would_choose(stream, seat)))
            cluster_plan_want(cluster, stream, false);
    }
}

/* ---- making one ---- */

struct planning {
    struct scheduler_plan_worker *workers;
    int count; /* of those that were chosen */
    double least_score;
    uint64_t homes;
    int looked_at;
};

static void fini(struct planning *planning)
{
    free(planning->workers);
}

static bool list_homes(const struct scheduler_cluster *cluster, const struct cluster_stream *stream,
                       struct planning *planning)
{
    int count = 0;
    *planning = (struct planning){.looked_at = cluster->seat_count};
    planning->workers = malloc(((size_t)cluster->seat_count + 1) * sizeof *planning->workers);
    if (!planning->workers)
        return false;
    for (int i = 0; i < cluster->seat_count; i++) {
        const struct cluster_seat *seat = &cluster->seats[i];
        if (seat->state == SCHEDULER_WORKER_READY && cluster_stream_serves(cluster, stream, i))
            planning->workers[count++] = (struct scheduler_plan_worker){seat->id, seat->weight, i};
    }
    planning->count =
        scheduler_plan_admit(stream->view.identity.family, planning->workers, count, &planning->least_score);
    planning->homes = base_hash_xxh3(planning->workers, (size_t)planning->count * sizeof *planning->workers);
    return true;
}

static void say_plan(struct scheduler_cluster *cluster, const struct cluster_stream *stream, int workers,
                     int moved)
{
    char name[CLUSTER_SHORT_CHARS];
    cluster_short(stream->view.identity.hash, name);
    cluster_line(cluster, "stream %s: plan %u, %d workers, %d slots moved", name, stream->view.plan.version,
                 workers, moved);
}

static void take_plan(struct scheduler_cluster *cluster, struct cluster_stream *stream,
                      const struct scheduler_plan *next, int workers)
{
    int moved = 0;
    bool had_workers = stream->view.planned && stream->view.plan.primary[0] != SCHEDULER_PLAN_NOBODY;
    for (int slot = 0; slot < SCHEDULER_PLAN_SLOTS; slot++)
        moved += next->primary[slot] != stream->view.plan.primary[slot];
    stream->view.plan = *next;
    stream->view.planned = true;
    cluster_stream_unstored(cluster, stream);
    if (next->version > cluster->plan_floor)
        cluster->plan_floor = next->version;
    cluster->counts.plan_changes++;
    cluster->counts.slots_moved += (uint64_t)moved;
    say_plan(cluster, stream, workers, moved);
    if (had_workers != (workers > 0))
        for (struct cluster_job *job = cluster_list_first(&stream->jobs); job;
             job = cluster_list_next(&job->reads))
            cluster_job_words(cluster, job);
}

static void set_chosen(struct cluster_stream *stream, const struct planning *planning)
{
    memset(stream->chosen, 0, sizeof stream->chosen);
    for (int i = 0; i < planning->count; i++)
        cluster_bit_set(stream->chosen, (int)planning->workers[i].tag, true);
    stream->least_score = planning->least_score;
    stream->homes = planning->homes;
}

/* Those that were in it and those that now are hear of it. */
static void change_plan(struct scheduler_cluster *cluster, struct cluster_stream *stream,
                        struct scheduler_plan *next, const struct planning *planning)
{
    next->version = stream->view.plan.version;
    if (!stream->view.planned &&
        next->version < cluster->plan_floor) /* told and not stored were some below */
        next->version = cluster->plan_floor;
    next->version++;
    stream->view.revision = stream->view.plan_revision = ++cluster->revision;
    cluster_stream_touch_chosen(cluster, stream);
    set_chosen(stream, planning);
    take_plan(cluster, stream, next, planning->count);
    cluster_stream_touch_chosen(cluster, stream);
    cluster_stream_touch_jobs(cluster, stream);
}

static bool same_slots(const struct scheduler_plan *a, const struct scheduler_plan *b)
{
    return memcmp(a->primary, b->primary, sizeof a->primary) == 0 &&
           memcmp(a->secondary, b->secondary, sizeof a->secondary) == 0;
}

static bool siblings(const struct cluster_stream *a, const struct cluster_stream *b)
{
    return a != b && memcmp(a->view.identity.family, b->view.identity.family, BASE_SHA256_BYTES) == 0;
}

static void planned(struct scheduler_cluster *cluster, struct cluster_stream *stream, int workers)
{
    int64_t wait_ms = workers > HOMES_AT_ONCE ? workers * WAIT_MS_PER_HOME : 0;
    cluster_list_remove(&stream->replan);
    stream->replan_wanted = false;
    stream->plan_from_ns = INT64_MIN;
    stream->plan_after_ns = cluster->now_ns + wait_ms * BASE_NS_PER_MS;
    cluster_stream_wait(cluster, stream);
}

/* Marked siblings with the same plan and the same workers, when last and now, get the same next one. */
static int plan_siblings(struct scheduler_cluster *cluster, const struct cluster_stream *first,
                         const struct scheduler_plan *before, int moves, const struct scheduler_plan *next)
{
    int cost = 0;
    for (int i = 0; i < cluster->stream_count; i++) {
        struct cluster_stream *stream = cluster->streams[i];
        struct planning planning = {0};
        if (!stream->replan_wanted || !siblings(stream, first) || stream->moves != moves ||
            must_wait(cluster, stream) || !same_slots(&stream->view.plan, before))
            continue;
        if (list_homes(cluster, stream, &planning) && planning.homes == first->homes) {
            struct scheduler_plan copy = *next;
            stream->moves = first->moves;
            stream->unfinished = first->unfinished;
            change_plan(cluster, stream, &copy, &planning);
            planned(cluster, stream, planning.count);
        }
        cost += COST_LEAST + COST_PER_SEAT * planning.looked_at;
        fini(&planning);
    }
    return cost;
}

static int make_plan(struct scheduler_cluster *cluster, struct cluster_stream *stream,
                     struct planning *planning)
{
    struct scheduler_plan next, before;
    int moves = stream->moves,
        cost = COST_LEAST + COST_PER_HOME * planning->count + COST_PER_SEAT * planning->looked_at;
    if (planning->count == 0 && !stream->view.planned) {
        stream->replan_wanted = false; /* after a restart clients do better with the plan that they have */
        cluster_list_remove(&stream->replan);
        stream->plan_from_ns = INT64_MIN;
        return COST_PER_SEAT * planning->looked_at;
    }
    bool same = stream->view.planned && planning->homes == stream->homes;
    if (same && !(stream->unfinished && moves > 0)) {
        planned(cluster, stream, 0);
        return COST_PER_SEAT * planning->looked_at;
    }
    before = stream->view.plan;
    scheduler_plan_next(&before, planning->workers, planning->count, &stream->moves, &next);
    stream->unfinished = stream->moves == 0;
    if (same_slots(&before, &next) && stream->view.planned) {
        set_chosen(stream, planning);
    } else {
        change_plan(cluster, stream, &next, planning);
        planned(cluster, stream, planning->count); /* it is none of its siblings to be planned */
        cost += plan_siblings(cluster, stream, &before, moves, &next);
    }
    planned(cluster, stream, planning->count);
    return cost;
}

int cluster_plan_make(struct scheduler_cluster *cluster, struct cluster_stream *stream)
{
    struct planning planning;
    int cost = 1;
    stream->starved = !list_homes(cluster, stream, &planning);
    if (!stream->starved) {
        cost = make_plan(cluster, stream, &planning);
    } else {
        cluster_list_remove(&stream->replan);
        cluster->retry_ns = cluster->now_ns + BASE_NS_PER_S;
    }
    fini(&planning);
    return cost;
}

void cluster_plan_first(struct scheduler_cluster *cluster, struct cluster_stream *stream)
{
    const struct cluster_stream *sibling = NULL;
    for (int i = 0; i < cluster->stream_count && !sibling; i++)
        if (siblings(cluster->streams[i], stream) && cluster->streams[i]->view.planned)
            sibling = cluster->streams[i];
    if (sibling) {
        memcpy(stream->view.plan.primary, sibling->view.plan.primary, sizeof stream->view.plan.primary);
        memcpy(stream->view.plan.secondary, sibling->view.plan.secondary, sizeof stream->view.plan.secondary);
        stream->moves = sibling->moves;
        stream->unfinished = sibling->unfinished;
    }
    cluster->first_cost += cluster_plan_make(cluster, stream);
}
