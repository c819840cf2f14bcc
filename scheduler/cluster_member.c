/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/cluster_state.h"

#include "base/clock.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HELD_MAX = 4096 }; /* dataset versions of one worker: further ones are not looked at */

const char *scheduler_worker_state_name(enum scheduler_worker_state state)
{
    static const char *const names[] = {"ready", "draining", "lost"};
    return (unsigned)state < sizeof names / sizeof names[0] ? names[state] : "unknown";
}

void cluster_member_touch(struct scheduler_cluster *cluster, struct cluster_member *member)
{
    member->view.revision = ++cluster->revision;
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

struct cluster_member *cluster_member_find(const struct scheduler_cluster *cluster, uint64_t id)
{
    int at = lower_bound(cluster, id);
    return at < cluster->member_count && cluster->members[at]->view.id == id ? cluster->members[at] : NULL;
}

void cluster_member_destroy(struct cluster_member *member)
{
    free(member->held);
    free(member->prints);
    free(member->fronts);
    free(member);
}

static void remove_member(struct scheduler_cluster *cluster, struct cluster_member *member)
{
    int at = lower_bound(cluster, member->view.id);
    memmove(&cluster->members[at], &cluster->members[at + 1],
            (size_t)(--cluster->member_count - at) * sizeof *cluster->members);
    cluster_member_destroy(member);
    cluster->members_changed = true;
    cluster->revision++;
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

static struct cluster_member *insert_member(struct scheduler_cluster *cluster, uint64_t id)
{
    if (!cluster_grow(&cluster->members, cluster->member_count, sizeof *cluster->members))
        return NULL;
    struct cluster_member *member = calloc(1, sizeof *member);
    if (!member)
        return NULL;
    member->view.id = id;
    member->view.state = SCHEDULER_WORKER_LOST; /* until its first sync is taken in */
    int at = lower_bound(cluster, id);
    memmove(&cluster->members[at + 1], &cluster->members[at],
            (size_t)(cluster->member_count++ - at) * sizeof *cluster->members);
    cluster->members[at] = member;
    return member;
}

static const struct cluster_held *find_held(const struct cluster_member *member, const uint8_t *version)
{
    for (int i = 0; i < member->held_count; i++)
        if (memcmp(member->held[i].version, version, BASE_SHA256_BYTES) == 0)
            return &member->held[i];
    return NULL;
}

bool cluster_member_eligible(const struct cluster_member *member, const uint8_t *version, const char **error)
{
    const struct cluster_held *held = find_held(member, version);
    if (error)
        *error = held && !held->eligible ? held->error : "";
    return held && held->eligible;
}

const struct cluster_print *cluster_member_print(const struct cluster_member *member, const uint8_t *key)
{
    for (int i = 0; i < member->print_count; i++)
        if (memcmp(member->prints[i].key, key, BASE_SHA256_BYTES) == 0)
            return &member->prints[i];
    return NULL;
}

bool cluster_member_reads(const struct cluster_member *member, const struct scheduler_stream *candidate)
{
    return member->view.state != SCHEDULER_WORKER_LOST &&
           cluster_member_eligible(member, candidate->dataset_version, NULL);
}

bool cluster_member_serves(const struct cluster_member *member, const struct scheduler_live_stream *stream)
{
    const struct cluster_print *print = cluster_member_print(member, stream->key);
    return print && !print->failed && cluster_member_reads(member, &stream->identity) &&
           memcmp(print->fingerprint, stream->identity.fingerprint, sizeof print->fingerprint) == 0;
}

void cluster_member_forget_key(struct scheduler_cluster *cluster, const uint8_t *key)
{
    for (int i = 0; i < cluster->member_count; i++) {
        struct cluster_member *member = cluster->members[i];
        for (int p = 0; p < member->print_count; p++) {
            if (memcmp(member->prints[p].key, key, BASE_SHA256_BYTES) != 0)
                continue;
            member->prints[p] = member->prints[--member->print_count];
            break;
        }
    }
}

/* ---- a sync ---- */

/* The first worker that can give a manifest's pages is news to those that want them. */
static void tell_first_holder(struct scheduler_cluster *cluster, const struct cluster_member *holder,
                              const uint8_t *version)
{
    for (int i = 0; i < cluster->member_count; i++)
        if (cluster->members[i] != holder && cluster_member_eligible(cluster->members[i], version, NULL))
            return;
    for (int i = 0; i < cluster->member_count; i++)
        if (cluster->members[i] != holder && cluster->members[i]->view.state != SCHEDULER_WORKER_LOST)
            cluster_member_touch(cluster, cluster->members[i]);
}

/* All or nothing: on failure the old list stays. */
static bool take_datasets(struct scheduler_cluster *cluster, struct cluster_member *member,
                          const struct scheduler_worker_report *report)
{
    int count = report->dataset_count > HELD_MAX ? HELD_MAX : report->dataset_count;
    bool same = count == member->held_count;
    struct cluster_held *held = count > 0 ? calloc((size_t)count, sizeof *held) : NULL;
    if (count > 0 && !held)
        return false;
    for (int i = 0; i < count; i++) {
        memcpy(held[i].version, report->datasets[i].version, sizeof held[i].version);
        held[i].eligible = report->datasets[i].eligible;
        snprintf(held[i].error, sizeof held[i].error, "%s",
                 report->datasets[i].error ? report->datasets[i].error : "");
        const struct cluster_held *old = find_held(member, held[i].version);
        same = same && old && old->eligible == held[i].eligible && strcmp(old->error, held[i].error) == 0;
        if (held[i].eligible && !(old && old->eligible))
            tell_first_holder(cluster, member, held[i].version);
    }
    free(member->held);
    member->held = held;
    member->held_count = count;
    if (!same) {
        cluster->members_changed = true;
        cluster_member_touch(cluster, member);
    }
    return true;
}

static bool take_probe(struct scheduler_cluster *cluster, struct cluster_member *member,
                       const struct scheduler_probe_result *result)
{
    struct cluster_candidate *candidate = cluster_candidate_find(cluster, result->key);
    struct cluster_print print = {.failed = result->error && result->error[0]};
    if (!candidate)
        return true; /* nobody wants it any more; asked again if somebody does */
    memcpy(print.key, result->key, sizeof print.key);
    memcpy(print.fingerprint, result->fingerprint, sizeof print.fingerprint);
    snprintf(print.error, sizeof print.error, "%s", print.failed ? result->error : "");
    struct cluster_print *old = NULL;
    for (int i = 0; i < member->print_count && !old; i++)
        if (memcmp(member->prints[i].key, print.key, sizeof print.key) == 0)
            old = &member->prints[i];
    if (old && memcmp(old, &print, sizeof print) == 0)
        return true;
    if (!old) {
        if (!cluster_grow(&member->prints, member->print_count, sizeof print))
            return false;
        old = &member->prints[member->print_count++];
    }
    memcpy(old, &print, sizeof print);
    if (!print.failed && candidate->first_print_ns == CLUSTER_NEVER_NS)
        candidate->first_print_ns = cluster->now_ns;
    cluster->members_changed = true;
    cluster_member_touch(cluster, member);
    return true;
}

/* What is told again is no news: a worker's furthest epoch may be of jobs long gone. */
static bool take_front(struct scheduler_cluster *cluster, struct cluster_member *member,
                       const struct scheduler_front *front)
{
    struct cluster_stream *stream = cluster_stream_find(cluster, front->stream);
    struct scheduler_cursor at = {front->epoch, front->position};
    if (!stream)
        return true;
    int i = 0;
    while (i < member->front_count && memcmp(member->fronts[i].stream, front->stream, BASE_SHA256_BYTES) != 0)
        i++;
    if (i == member->front_count) {
        if (!cluster_grow(&member->fronts, i, sizeof *member->fronts))
            return false;
        memcpy(member->fronts[i].stream, front->stream, BASE_SHA256_BYTES);
        member->front_count++;
    } else if (cluster_cursor_compare(member->fronts[i].at, at) == 0) {
        return true;
    }
    member->fronts[i].at = at;
    cluster_stream_tell(cluster, stream, at);
    return true;
}

static bool take_lists(struct scheduler_cluster *cluster, struct cluster_member *member,
                       const struct scheduler_worker_report *report)
{
    bool fits = take_datasets(cluster, member, report);
    for (int i = 0; fits && i < report->probe_count; i++)
        fits = take_probe(cluster, member, &report->probes[i]);
    for (int i = 0; fits && i < report->front_count; i++)
        fits = take_front(cluster, member, &report->fronts[i]);
    return fits;
}

/* Fronts of streams that are gone go, too. */
static void prune_fronts(struct scheduler_cluster *cluster, struct cluster_member *member)
{
    int kept = 0;
    if (member->front_count <= cluster->stream_count)
        return;
    for (int i = 0; i < member->front_count; i++)
        if (cluster_stream_find(cluster, member->fronts[i].stream))
            member->fronts[kept++] = member->fronts[i];
    member->front_count = kept;
}

static void reset_member(struct cluster_member *member)
{
    free(member->held);
    free(member->prints);
    free(member->fronts);
    member->held = NULL;
    member->prints = NULL;
    member->fronts = NULL;
    member->held_count = member->print_count = member->front_count = 0;
    member->view.drain_ordered = false;
}

static void set_state(struct scheduler_cluster *cluster, struct cluster_member *member,
                      enum scheduler_worker_state state)
{
    if (member->view.state == state)
        return;
    cluster_line(cluster, "worker %" PRIu64 " is %s", member->view.id, scheduler_worker_state_name(state));
    member->view.state = state;
    cluster->members_changed = true;
    cluster_member_touch(cluster, member);
}

static enum scheduler_worker_state wanted_state(const struct cluster_member *member)
{
    return member->self_draining || member->view.drain_ordered ? SCHEDULER_WORKER_DRAINING
                                                               : SCHEDULER_WORKER_READY;
}

static void take_facts(struct scheduler_cluster *cluster, struct cluster_member *member,
                       const struct scheduler_worker_report *report)
{
    double weight = report->weight > 0 && isfinite(report->weight) ? report->weight : 1;
    const char *addresses = report->addresses ? report->addresses : "";
    member->view.seen_ns = cluster->now_ns;
    member->view.staging_bytes = report->staging_bytes;
    member->self_draining = report->draining;
    if (member->view.weight != weight || strcmp(member->view.addresses, addresses) != 0) {
        member->view.weight = weight;
        snprintf(member->view.addresses, sizeof member->view.addresses, "%s", addresses);
        cluster->members_changed = true;
        for (int i = 0; i < cluster->stream_count; i++) /* plans carry addresses */
            if (cluster_member_serves(member, &cluster->streams[i]->view))
                cluster_stream_touch(cluster, cluster->streams[i]);
    }
}

enum base_code scheduler_cluster_worker_sync(struct scheduler_cluster *cluster, int64_t now_ns,
                                             const struct scheduler_worker_report *report,
                                             struct base_error *error)
{
    if (now_ns > cluster->now_ns)
        cluster->now_ns = now_ns;
    if (report->id == SCHEDULER_PLAN_NOBODY)
        return base_error_set(error, BASE_INVALID, "worker: id 0 is nobody's");
    if (report->addresses && strlen(report->addresses) >= SCHEDULER_ADDRESSES_CHARS)
        return base_error_set(error, BASE_TOO_LARGE, "worker %" PRIu64 ": its addresses are over %d bytes",
                              report->id, SCHEDULER_ADDRESSES_CHARS - 1);
    struct cluster_member *member = cluster_member_find(cluster, report->id);
    if (member && report->incarnation < member->view.incarnation) {
        cluster->counts.fenced++;
        return base_error_set(error, BASE_CONFLICT,
                              "worker %" PRIu64 ": incarnation %" PRIu64 " is over, %" PRIu64 " has begun",
                              report->id, report->incarnation, member->view.incarnation);
    }
    if (!member && cluster->member_count == SCHEDULER_PLAN_WORKERS && !forget_lost(cluster))
        return base_error_set(error, BASE_BUSY,
                              "worker %" PRIu64 ": there are %d workers, the most that a plan has",
                              report->id, SCHEDULER_PLAN_WORKERS);
    if (!member && !(member = insert_member(cluster, report->id)))
        return base_error_set(error, BASE_NO_MEMORY, "worker %" PRIu64 ": no memory", report->id);
    if (report->incarnation > member->view.incarnation) {
        reset_member(member);
        member->view.incarnation = report->incarnation;
        cluster->members_changed = true;
        cluster_member_touch(cluster, member);
    }
    take_facts(cluster, member, report);
    prune_fronts(cluster, member);
    set_state(cluster, member, wanted_state(member));
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

/* ---- time ---- */

/* When its lease ends or, lost, when it is forgotten. */
static int64_t member_deadline(const struct scheduler_cluster *cluster, const struct cluster_member *member)
{
    int64_t lease_ns = cluster->options.lease_ms * BASE_NS_PER_MS;
    if (member->view.state == SCHEDULER_WORKER_LOST)
        lease_ns += cluster->options.keep_ms * BASE_NS_PER_MS;
    return member->view.seen_ns + lease_ns;
}

void cluster_member_expire(struct scheduler_cluster *cluster)
{
    for (int i = cluster->member_count - 1; i >= 0; i--) {
        struct cluster_member *member = cluster->members[i];
        if (cluster->now_ns < member_deadline(cluster, member))
            continue;
        if (member->view.state == SCHEDULER_WORKER_LOST) {
            remove_member(cluster, member);
            continue;
        }
        cluster->counts.workers_lost++;
        set_state(cluster, member, SCHEDULER_WORKER_LOST);
    }
}

int64_t cluster_member_deadline_ns(const struct scheduler_cluster *cluster)
{
    int64_t least = CLUSTER_NEVER_NS;
    for (int i = 0; i < cluster->member_count; i++) {
        int64_t at = member_deadline(cluster, cluster->members[i]);
        least = at < least ? at : least;
    }
    return least;
}
