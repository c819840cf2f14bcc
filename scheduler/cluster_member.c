/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/cluster_state.h"

#include "base/clock.h"
#include "base/grow.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *scheduler_worker_state_name(enum scheduler_worker_state state)
{
    static const char *const names[] = {"ready", "draining", "lost"};
    return (unsigned)state < sizeof names / sizeof names[0] ? names[state] : "unknown";
}

void cluster_member_touch(struct scheduler_cluster *cluster, struct cluster_member *member)
{
    member->view.revision = ++cluster->revision;
    cluster_list_add(&cluster->woken_members, &member->woken, member);
}

static bool same_id(const void *item, const void *key)
{
    return ((const struct cluster_member *)item)->view.id == *(const uint64_t *)key;
}

struct cluster_member *cluster_member_find(const struct scheduler_cluster *cluster, uint64_t id)
{
    return cluster_index_find(&cluster->by_worker, id, same_id, &id);
}

/* Index of the first member whose id is not below. */
static int lower_bound(const struct scheduler_cluster *cluster, uint64_t id)
{
    int low = 0, high = cluster->member_count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (cluster->members[middle]->view.id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void cluster_member_destroy(struct cluster_member *member)
{
    for (int i = 0; i < member->held_count; i++)
        free(member->held[i].error);
    free(member->held);
    free(member->fronts);
    free(member);
}

void cluster_member_weigh(struct scheduler_cluster *cluster, struct cluster_member *member)
{
    cluster_candidate_votes(cluster, member->seat, NULL, -1);
    cluster->seats[member->seat].weight = member->view.weight * member->load.factor;
    cluster_candidate_votes(cluster, member->seat, NULL, 1);
    cluster_plan_worker(cluster, member->seat, true);
}

static void set_seat(struct scheduler_cluster *cluster, int seat, int state)
{
    cluster_candidate_votes(cluster, seat, NULL, -1);
    cluster->ready_count -= cluster->seats[seat].state == SCHEDULER_WORKER_READY;
    cluster->seats[seat].state = (uint8_t)state;
    cluster->ready_count += cluster->seats[seat].state == SCHEDULER_WORKER_READY;
    cluster_candidate_votes(cluster, seat, NULL, 1);
}

/* What it says of what it can make and whether it does has changed. */
static void changed(struct scheduler_cluster *cluster, struct cluster_member *member)
{
    cluster_candidate_mark_sought(cluster);
    cluster_plan_worker(cluster, member->seat, false);
    cluster_member_touch(cluster, member);
}

static void forget_said(struct scheduler_cluster *cluster, struct cluster_member *member)
{
    cluster_held_clear(cluster, member);
    cluster_candidate_forget(cluster, member);
    member->front_count = 0;
}

static void remove_member(struct scheduler_cluster *cluster, struct cluster_member *member)
{
    int at = lower_bound(cluster, member->view.id), seat = member->seat;
    forget_said(cluster, member);
    set_seat(cluster, seat, CLUSTER_SEAT_FREE);
    changed(cluster, member);
    cluster_timer_set(cluster, &member->timer, CLUSTER_NEVER_NS);
    cluster_list_remove(&member->woken);
    cluster_index_remove(&cluster->by_worker, member->view.id, member);
    memmove(&cluster->members[at], &cluster->members[at + 1],
            (size_t)(--cluster->member_count - at) * sizeof *cluster->members);
    cluster->seats[seat].member = NULL;
    cluster->free_seats[cluster->free_count++] = seat;
    cluster_member_destroy(member);
}

/* The longest lost one makes room for another. */
static bool forget_lost(struct scheduler_cluster *cluster)
{
    struct cluster_member *oldest = NULL;
    for (int i = 0; i < cluster->member_count; i++) {
        struct cluster_member *member = cluster->members[i];
        if (member->view.state == SCHEDULER_WORKER_LOST &&
            (!oldest || member->view.seen_ns < oldest->view.seen_ns))
            oldest = member;
    }
    if (oldest)
        remove_member(cluster, oldest);
    return oldest != NULL;
}

/* Room for one more in every table, a seat among them; false: no memory. */
static bool reserve(struct scheduler_cluster *cluster)
{
    return cluster_index_reserve(&cluster->by_worker) && cluster_timer_reserve(cluster) &&
           base_grow(&cluster->members, (size_t)cluster->member_count, sizeof *cluster->members) &&
           (cluster->free_count > 0 ||
            (base_grow(&cluster->seats, (size_t)cluster->seat_count, sizeof *cluster->seats) &&
             base_grow(&cluster->free_seats, (size_t)cluster->seat_count, sizeof *cluster->free_seats)));
}

static struct cluster_member *insert_member(struct scheduler_cluster *cluster, uint64_t id)
{
    struct cluster_member *member = reserve(cluster) ? calloc(1, sizeof *member) : NULL;
    if (!member)
        return NULL;
    member->view.id = id;
    member->view.state = SCHEDULER_WORKER_LOST; /* until its first sync is taken in */
    member->timer.kind = CLUSTER_TIMER_MEMBER;
    member->timer.owner = member;
    cluster_load_reset(&member->load);
    member->seat =
        cluster->free_count > 0 ? cluster->free_seats[--cluster->free_count] : cluster->seat_count++;
    cluster->seats[member->seat] = (struct cluster_seat){member, id, 1, SCHEDULER_WORKER_LOST};
    int at = lower_bound(cluster, id);
    memmove(&cluster->members[at + 1], &cluster->members[at],
            (size_t)(cluster->member_count++ - at) * sizeof *cluster->members);
    cluster->members[at] = member;
    cluster_index_put(&cluster->by_worker, id, member);
    return member;
}

/* ---- a sync ---- */

static int find_front(const struct cluster_member *member, uint64_t stream)
{
    int low = 0, high = member->front_count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (member->fronts[middle].stream < stream)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* What is told again is no news: a worker's furthest epoch may be of jobs long gone. */
static bool take_front(struct scheduler_cluster *cluster, struct cluster_member *member,
                       const struct scheduler_front *told)
{
    struct cluster_stream *stream = cluster_stream_find(cluster, told->stream);
    struct cluster_front front = {cluster_hash_bytes(told->stream), {told->epoch, told->position}};
    if (!stream)
        return true;
    int at = find_front(member, front.stream);
    bool known = at < member->front_count && member->fronts[at].stream == front.stream;
    if (known && cluster_cursor_compare(member->fronts[at].at, front.at) == 0)
        return true;
    if (!known) {
        if (!base_grow(&member->fronts, (size_t)member->front_count, sizeof *member->fronts))
            return false;
        memmove(&member->fronts[at + 1], &member->fronts[at],
                (size_t)(member->front_count++ - at) * sizeof front);
    }
    member->fronts[at] = front;
    cluster_stream_tell(cluster, stream, front.at);
    return true;
}

/* Fronts of streams that are gone go, too. */
static void prune_fronts(struct scheduler_cluster *cluster, struct cluster_member *member)
{
    int kept = 0;
    if (member->front_count <= cluster->stream_count)
        return;
    for (int i = 0; i < member->front_count; i++)
        if (cluster_index_find(&cluster->by_stream, member->fronts[i].stream, NULL, NULL))
            member->fronts[kept++] = member->fronts[i];
    member->front_count = kept;
}

static bool take_lists(struct scheduler_cluster *cluster, struct cluster_member *member,
                       const struct scheduler_worker_report *report)
{
    bool news = false, fits = cluster_held_take(cluster, member, report, &news);
    for (int i = 0; fits && i < report->probe_count; i++)
        fits = cluster_candidate_take(cluster, member, &report->probes[i], &news);
    if (news)
        changed(cluster, member);
    for (int i = 0; fits && i < report->front_count; i++)
        fits = take_front(cluster, member, &report->fronts[i]);
    return fits;
}

static int64_t deadline_ns(const struct scheduler_cluster *cluster, const struct cluster_member *member)
{
    int64_t lease_ns = cluster->options.lease_ms * BASE_NS_PER_MS;
    if (member->view.state == SCHEDULER_WORKER_LOST)
        lease_ns += cluster->options.keep_ms * BASE_NS_PER_MS;
    return member->view.seen_ns + lease_ns;
}

static void set_state(struct scheduler_cluster *cluster, struct cluster_member *member,
                      enum scheduler_worker_state state)
{
    if (member->view.state == state)
        return;
    cluster_line(cluster, "worker %" PRIu64 " is %s", member->view.id, scheduler_worker_state_name(state));
    member->view.state = state;
    set_seat(cluster, member->seat, state);
    changed(cluster, member);
}

static enum scheduler_worker_state wanted_state(const struct cluster_member *member)
{
    return member->self_draining || member->view.drain_ordered ? SCHEDULER_WORKER_DRAINING
                                                               : SCHEDULER_WORKER_READY;
}

static void take_incarnation(struct scheduler_cluster *cluster, struct cluster_member *member,
                             uint64_t incarnation)
{
    if (incarnation == member->view.incarnation)
        return;
    forget_said(cluster, member);
    cluster_load_reset(&member->load);
    cluster_member_weigh(cluster, member);
    member->view.drain_ordered = false;
    member->view.incarnation = incarnation;
    changed(cluster, member);
}

static void take_facts(struct scheduler_cluster *cluster, struct cluster_member *member,
                       const struct scheduler_worker_report *report)
{
    double weight = report->weight > 0 && isfinite(report->weight) ? report->weight : 1;
    const char *addresses = report->addresses ? report->addresses : "";
    member->view.seen_ns = cluster->now_ns;
    member->view.staging_bytes = report->staging_bytes;
    member->self_draining = report->draining;
    cluster_load_take(&member->load, report);
    if (member->view.weight != weight || member->load.fresh) {
        member->view.weight = weight;
        if (member->load.fresh)
            cluster_load_begin(cluster, member);
        cluster_member_weigh(cluster, member);
        cluster_candidate_mark_sought(cluster);
    }
    if (strcmp(member->view.addresses, addresses) == 0)
        return;
    snprintf(member->view.addresses, sizeof member->view.addresses, "%s", addresses);
    for (int i = 0; i < cluster->stream_count; i++) /* the plans of jobs carry addresses */
        if (cluster_bit(cluster->streams[i]->chosen, member->seat))
            cluster_stream_touch_jobs(cluster, cluster->streams[i]);
}

static enum base_code admit(struct scheduler_cluster *cluster, const struct scheduler_worker_report *report,
                            struct cluster_member **member, struct base_error *error)
{
    if (report->id == SCHEDULER_PLAN_NOBODY)
        return base_error_set(error, BASE_INVALID, "worker: id 0 is nobody's");
    if (report->addresses && strlen(report->addresses) >= SCHEDULER_ADDRESSES_CHARS)
        return base_error_set(error, BASE_TOO_LARGE, "worker %" PRIu64 ": its addresses are over %d bytes",
                              report->id, SCHEDULER_ADDRESSES_CHARS - 1);
    *member = cluster_member_find(cluster, report->id);
    bool lives = *member && (*member)->view.state != SCHEDULER_WORKER_LOST; /* else its clock was put back */
    if (lives && report->incarnation < (*member)->view.incarnation) {
        cluster->counts.fenced++;
        return base_error_set(error, BASE_CONFLICT,
                              "worker %" PRIu64 ": incarnation %" PRIu64 " is over, %" PRIu64 " has begun",
                              report->id, report->incarnation, (*member)->view.incarnation);
    }
    if (!*member && cluster->member_count == SCHEDULER_WORKERS_MAX && !forget_lost(cluster))
        return base_error_set(error, BASE_BUSY,
                              "worker %" PRIu64 ": there are %d workers, the most that one server keeps",
                              report->id, SCHEDULER_WORKERS_MAX);
    if (!*member && !(*member = insert_member(cluster, report->id)))
        return base_error_set(error, BASE_NO_MEMORY, "worker %" PRIu64 ": no memory", report->id);
    return BASE_OK;
}

enum base_code scheduler_cluster_worker_sync(struct scheduler_cluster *cluster, int64_t now_ns,
                                             const struct scheduler_worker_report *report,
                                             struct base_error *error)
{
    struct cluster_member *member = NULL;
    if (now_ns > cluster->now_ns)
        cluster->now_ns = now_ns;
    enum base_code code = admit(cluster, report, &member, error);
    if (code)
        return code;
    take_incarnation(cluster, member, report->incarnation);
    take_facts(cluster, member, report);
    prune_fronts(cluster, member);
    set_state(cluster, member, wanted_state(member));
    cluster_timer_set(cluster, &member->timer, deadline_ns(cluster, member));
    bool fits = take_lists(cluster, member, report);
    scheduler_cluster_tick(cluster, now_ns);
    return fits ? BASE_OK
                : base_error_set(error, BASE_NO_MEMORY, "worker %" PRIu64 ": no memory for its lists",
                                 report->id);
}

void scheduler_cluster_worker_leave(struct scheduler_cluster *cluster, int64_t now_ns, uint64_t id,
                                    uint64_t incarnation)
{
    struct cluster_member *member = cluster_member_find(cluster, id);
    if (member && member->view.incarnation <= incarnation) {
        cluster_line(cluster, "worker %" PRIu64 " has left", id);
        remove_member(cluster, member);
    }
    scheduler_cluster_tick(cluster, now_ns);
}

enum base_code scheduler_cluster_worker_drain(struct scheduler_cluster *cluster, int64_t now_ns, uint64_t id,
                                              struct base_error *error)
{
    struct cluster_member *member = cluster_member_find(cluster, id);
    if (!member)
        return base_error_set(error, BASE_NOT_FOUND, "worker %" PRIu64 ": not in this cluster", id);
    if (!member->view.drain_ordered) {
        member->view.drain_ordered = true;
        cluster_member_touch(cluster, member);
        if (member->view.state == SCHEDULER_WORKER_READY)
            set_state(cluster, member, SCHEDULER_WORKER_DRAINING);
    }
    scheduler_cluster_tick(cluster, now_ns);
    return BASE_OK;
}

/* Its lease has ended; or, lost, it is forgotten. */
void cluster_member_expire(struct scheduler_cluster *cluster, struct cluster_member *member)
{
    if (member->view.state == SCHEDULER_WORKER_LOST) {
        remove_member(cluster, member);
        return;
    }
    cluster->counts.workers_lost++;
    set_state(cluster, member, SCHEDULER_WORKER_LOST);
    cluster_timer_set(cluster, &member->timer, deadline_ns(cluster, member));
}

/* ---- its orders ---- */

/* Both are most often asked for the one after that which they found last: they look from there on. */

const struct scheduler_stream *scheduler_cluster_probe_at(const struct scheduler_cluster *cluster,
                                                          uint64_t worker, int index)
{
    struct cluster_member *member = cluster_member_find(cluster, worker);
    if (!member || member->view.state != SCHEDULER_WORKER_READY)
        return NULL;
    bool on = member->probes.revision == cluster->revision && member->probes.index <= index;
    int found = on ? member->probes.index : 0;
    for (int i = on ? member->probes.at : 0; i < cluster->candidate_count; i++) {
        struct cluster_candidate *candidate = cluster->candidates[i];
        if (candidate->print[member->seat] != CLUSTER_PRINT_NONE ||
            !cluster_bit(candidate->version->eligible, member->seat))
            continue;
        if (found++ < index)
            continue;
        member->probes.revision = cluster->revision;
        member->probes.index = index;
        member->probes.at = i;
        return &candidate->identity;
    }
    return NULL;
}

const struct scheduler_live_stream *scheduler_cluster_served_at(const struct scheduler_cluster *cluster,
                                                                uint64_t worker, int index)
{
    struct cluster_member *member = cluster_member_find(cluster, worker);
    if (!member)
        return NULL;
    bool on = member->serves.revision == cluster->revision && member->serves.index <= index;
    int found = on ? member->serves.index : 0;
    for (int i = on ? member->serves.at : 0; i < cluster->stream_count; i++) {
        if (!cluster_stream_serves(cluster, cluster->streams[i], member->seat) || found++ < index)
            continue;
        member->serves.revision = cluster->revision;
        member->serves.index = index;
        member->serves.at = i;
        return &cluster->streams[i]->view;
    }
    return NULL;
}

bool scheduler_cluster_served_since(const struct scheduler_cluster *cluster, uint64_t worker,
                                    uint64_t revision)
{
    const struct cluster_member *member = cluster_member_find(cluster, worker);
    for (int i = 0; member && i < cluster->stream_count; i++)
        if (cluster->streams[i]->view.revision > revision &&
            cluster_stream_serves(cluster, cluster->streams[i], member->seat))
            return true;
    return false;
}
