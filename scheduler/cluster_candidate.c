/* SPDX-License-Identifier: Apache-2.0 */
/* What jobs ask for, and which bits workers make of it. */
#include "scheduler/cluster_state.h"

#include "base/clock.h"
#include "base/grow.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void cluster_short(const uint8_t *hash, char text[CLUSTER_SHORT_CHARS])
{
    base_hash_to_hex(hash, (CLUSTER_SHORT_CHARS - 1) / 2, text);
}

void cluster_candidate_mark(struct scheduler_cluster *cluster, struct cluster_candidate *candidate)
{
    cluster_list_add(&cluster->dirty_candidates, &candidate->dirty, candidate);
}

void cluster_candidate_mark_sought(struct scheduler_cluster *cluster)
{
    for (int i = 0; i < cluster->candidate_count; i++)
        if (cluster->candidates[i]->sought)
            cluster_candidate_mark(cluster, cluster->candidates[i]);
}

static bool same_key(const void *item, const void *key)
{
    return memcmp(((const struct cluster_candidate *)item)->identity.hash, key, BASE_SHA256_BYTES) == 0;
}

struct cluster_candidate *cluster_candidate_find(const struct scheduler_cluster *cluster, const uint8_t *key)
{
    return cluster_index_find(&cluster->by_key, cluster_hash_bytes(key), same_key, key);
}

/* ---- votes ---- */

static struct cluster_print *print_at(const struct cluster_candidate *candidate, uint8_t print)
{
    return print < CLUSTER_PRINT_FIRST ? NULL : &candidate->prints[print - CLUSTER_PRINT_FIRST];
}

enum { WEIGHT_PARTS = 1024, WEIGHT_MOST = 1 << 20 };

static uint64_t weight_of(const struct cluster_seat *seat)
{
    double parts =
        seat->weight < WEIGHT_MOST ? seat->weight * WEIGHT_PARTS : (double)WEIGHT_MOST * WEIGHT_PARTS;
    return parts > 1 ? (uint64_t)parts : 1; /* who votes weighs something */
}

static void vote(const struct scheduler_cluster *cluster, struct cluster_candidate *candidate, int at,
                 int sign)
{
    const struct cluster_seat *seat = &cluster->seats[at];
    uint8_t print = candidate->print[at];
    if (seat->state != SCHEDULER_WORKER_READY || !cluster_bit(candidate->version->eligible, at))
        return;
    candidate->eligible += sign;
    candidate->silent += print == CLUSTER_PRINT_NONE ? sign : 0;
    if (print < CLUSTER_PRINT_FIRST)
        return;
    candidate->made += sign;
    uint64_t weight = weight_of(seat);
    print_at(candidate, print)->weight += sign > 0 ? weight : -weight;
}

void cluster_candidate_votes(struct scheduler_cluster *cluster, int seat,
                             const struct cluster_version *version, int sign)
{
    for (int i = 0; i < cluster->candidate_count; i++)
        if (!version || cluster->candidates[i]->version == version)
            vote(cluster, cluster->candidates[i], seat, sign);
}

/* ---- candidates ---- */

/* Workers that can read the dataset learn that there is something to probe, or no longer. */
static void touch_readers(struct scheduler_cluster *cluster, const struct cluster_candidate *candidate)
{
    for (int i = 0; i < cluster->seat_count; i++)
        if (cluster_bit(candidate->version->eligible, i) && cluster->seats[i].state < SCHEDULER_WORKER_LOST)
            cluster_member_touch(cluster, cluster->seats[i].member);
}

void cluster_candidate_destroy(struct cluster_candidate *candidate)
{
    free(candidate->prints);
    free(candidate);
}

enum base_code cluster_candidate_get(struct scheduler_cluster *cluster, const struct scheduler_stream *wanted,
                                     struct cluster_candidate **candidate, struct base_error *error)
{
    *candidate = cluster_candidate_find(cluster, wanted->hash);
    if (*candidate)
        return BASE_OK;
    if (cluster->candidate_count == SCHEDULER_STREAMS_MAX)
        return base_error_set(error, BASE_BUSY, "there are %d streams, the most that one server keeps",
                              SCHEDULER_STREAMS_MAX);
    struct cluster_candidate *made = calloc(1, sizeof *made);
    if (made && cluster_index_reserve(&cluster->by_key) && cluster_timer_reserve(cluster) &&
        base_grow(&cluster->candidates, (size_t)cluster->candidate_count, sizeof *cluster->candidates))
        made->version = cluster_version_hold(cluster, wanted->dataset_version);
    if (!made || !made->version) {
        free(made);
        return base_error_set(error, BASE_NO_MEMORY, "no memory for a stream");
    }
    made->identity = *wanted;
    made->first_print_ns = CLUSTER_NEVER_NS;
    made->timer.kind = CLUSTER_TIMER_CANDIDATE;
    made->timer.owner = made;
    cluster_list_init(&made->jobs);
    for (int i = 0; i < cluster->seat_count; i++)
        vote(cluster, made, i, 1);
    cluster_index_put(&cluster->by_key, cluster_hash_bytes(wanted->hash), made);
    cluster->candidates[cluster->candidate_count++] = made;
    cluster_candidate_mark(cluster, made);
    touch_readers(cluster, made);
    *candidate = made;
    return BASE_OK;
}

static void drop(struct scheduler_cluster *cluster, struct cluster_candidate *candidate)
{
    struct cluster_job *job;
    int at = 0;
    touch_readers(cluster, candidate);
    while ((job = cluster_list_take(&candidate->jobs)))
        job->candidate = NULL;
    cluster_index_remove(&cluster->by_key, cluster_hash_bytes(candidate->identity.hash), candidate);
    cluster_timer_set(cluster, &candidate->timer, CLUSTER_NEVER_NS);
    cluster_list_remove(&candidate->dirty);
    cluster_version_drop(cluster, candidate->version);
    while (cluster->candidates[at] != candidate)
        at++;
    cluster->candidates[at] = cluster->candidates[--cluster->candidate_count];
    cluster->revision++; /* whoever looks through them begins anew */
    cluster_candidate_destroy(candidate);
}

static int64_t settled_ns(const struct scheduler_cluster *cluster, const struct cluster_candidate *candidate)
{
    if (candidate->first_print_ns == CLUSTER_NEVER_NS)
        return CLUSTER_NEVER_NS;
    return candidate->first_print_ns + cluster->options.settle_ms * BASE_NS_PER_MS;
}

void cluster_candidate_settle(struct scheduler_cluster *cluster, struct cluster_candidate *candidate)
{
    bool wanted = candidate->streams > 0;
    candidate->sought = false;
    candidate->waited |= cluster->now_ns >= settled_ns(cluster, candidate);
    for (struct cluster_job *job = cluster_list_first(&candidate->jobs); job;
         job = cluster_list_next(&job->wants)) {
        wanted |= cluster_job_live(job);
        if (!cluster_job_live(job) || job->stream)
            continue;
        candidate->sought = true;
        cluster_job_mark(cluster, job);
        cluster_job_words(cluster, job);
    }
    if (wanted)
        cluster_timer_set(cluster, &candidate->timer,
                          candidate->waited ? CLUSTER_NEVER_NS : settled_ns(cluster, candidate));
    else
        drop(cluster, candidate);
}

/* ---- fingerprints ---- */

static int find_print(const struct cluster_candidate *candidate, const uint8_t *fingerprint)
{
    for (int i = 0; i < candidate->print_count; i++)
        if (candidate->prints[i].users > 0 && memcmp(candidate->prints[i].fingerprint, fingerprint,
                                                     sizeof candidate->prints[i].fingerprint) == 0)
            return i;
    return -1;
}

uint8_t cluster_candidate_print(struct cluster_candidate *candidate, const uint8_t *fingerprint)
{
    int at = find_print(candidate, fingerprint);
    if (at < 0) {
        for (at = 0; at < candidate->print_count && candidate->prints[at].users > 0; at++)
            continue;
        if (at == candidate->print_count) {
            if (at == CLUSTER_PRINTS || !base_grow(&candidate->prints, (size_t)at, sizeof *candidate->prints))
                return CLUSTER_PRINT_FAILED;
            candidate->print_count++;
        }
        candidate->prints[at] = (struct cluster_print){0};
        memcpy(candidate->prints[at].fingerprint, fingerprint, sizeof candidate->prints[at].fingerprint);
    }
    candidate->prints[at].users++;
    return (uint8_t)(CLUSTER_PRINT_FIRST + at);
}

void cluster_candidate_release(struct cluster_candidate *candidate, uint8_t print)
{
    if (print >= CLUSTER_PRINT_FIRST)
        print_at(candidate, print)->users--;
}

static void set_print(const struct scheduler_cluster *cluster, struct cluster_candidate *candidate, int seat,
                      uint8_t print)
{
    vote(cluster, candidate, seat, -1);
    cluster_candidate_release(candidate, candidate->print[seat]);
    candidate->print[seat] = print;
    vote(cluster, candidate, seat, 1);
}

static void note_failure(struct cluster_candidate *candidate, uint64_t worker, const char *error)
{
    if (error && (candidate->failed_worker == 0 || candidate->failed_worker == worker)) {
        candidate->failed_worker = worker;
        snprintf(candidate->failed_error, sizeof candidate->failed_error, "%s", error);
    } else if (!error && candidate->failed_worker == worker) {
        candidate->failed_worker = 0;
    }
}

bool cluster_candidate_take(struct scheduler_cluster *cluster, struct cluster_member *member,
                            const struct scheduler_probe_result *result, bool *changed)
{
    struct cluster_candidate *candidate = cluster_candidate_find(cluster, result->key);
    if (!candidate)
        return true; /* nobody wants it any more; asked again if somebody does */
    bool failed = result->error && result->error[0];
    uint8_t before = candidate->print[member->seat], now = CLUSTER_PRINT_FAILED;
    if (!failed) {
        if (before >= CLUSTER_PRINT_FIRST &&
            memcmp(print_at(candidate, before)->fingerprint, result->fingerprint,
                   sizeof candidate->prints->fingerprint) == 0)
            return true;
        now = cluster_candidate_print(candidate, result->fingerprint);
        if (now == CLUSTER_PRINT_FAILED && candidate->print_count < CLUSTER_PRINTS)
            return false; /* no memory: it is told again */
    }
    note_failure(candidate, member->view.id,
                 failed                        ? result->error
                 : now == CLUSTER_PRINT_FAILED ? "no room for its fingerprint"
                                               : NULL);
    if (now == before)
        return true;
    set_print(cluster, candidate, member->seat, now);
    if (!failed && candidate->first_print_ns == CLUSTER_NEVER_NS)
        candidate->first_print_ns = cluster->now_ns;
    cluster_candidate_mark(cluster, candidate);
    *changed = true;
    return true;
}

void cluster_candidate_forget(struct scheduler_cluster *cluster, const struct cluster_member *member)
{
    for (int i = 0; i < cluster->candidate_count; i++) {
        struct cluster_candidate *candidate = cluster->candidates[i];
        set_print(cluster, candidate, member->seat, CLUSTER_PRINT_NONE);
        note_failure(candidate, member->view.id, NULL);
    }
}

/* ---- which one ---- */

bool cluster_candidate_settled(const struct scheduler_cluster *cluster, struct cluster_candidate *candidate)
{
    return candidate->made > 0 &&
           (candidate->silent == 0 || cluster->now_ns >= settled_ns(cluster, candidate));
}

bool cluster_fingerprint_offered(const struct cluster_candidate *candidate, const uint8_t *fingerprint)
{
    int at = find_print(candidate, fingerprint);
    return at >= 0 && candidate->prints[at].weight > 0;
}

static bool choose_being_read(const struct scheduler_cluster *cluster, struct cluster_candidate *candidate,
                              uint8_t *fingerprint)
{
    int most = 0;
    for (int i = 0; candidate->streams > 0 && i < cluster->stream_count; i++) {
        const struct cluster_stream *stream = cluster->streams[i];
        const uint8_t *bits = stream->view.identity.fingerprint;
        if (stream->candidate != candidate || stream->view.jobs <= most ||
            !cluster_fingerprint_offered(candidate, bits))
            continue;
        most = stream->view.jobs;
        memcpy(fingerprint, bits, sizeof stream->view.identity.fingerprint);
    }
    return most > 0;
}

/* Ties go to the lowest worker. */
static uint64_t lowest_voter(const struct scheduler_cluster *cluster,
                             const struct cluster_candidate *candidate, const struct cluster_print *print)
{
    uint64_t lowest = UINT64_MAX;
    for (int i = 0; i < cluster->seat_count; i++)
        if (candidate->print[i] >= CLUSTER_PRINT_FIRST && print_at(candidate, candidate->print[i]) == print &&
            cluster->seats[i].state == SCHEDULER_WORKER_READY &&
            cluster_bit(candidate->version->eligible, i) && cluster->seats[i].id < lowest)
            lowest = cluster->seats[i].id;
    return lowest;
}

bool cluster_fingerprint_choose(const struct scheduler_cluster *cluster, struct cluster_candidate *candidate,
                                uint8_t *fingerprint)
{
    const struct cluster_print *best = NULL;
    if (choose_being_read(cluster, candidate, fingerprint))
        return true;
    if (!cluster_candidate_settled(cluster, candidate))
        return false;
    for (int i = 0; i < candidate->print_count; i++) {
        const struct cluster_print *print = &candidate->prints[i];
        if (print->users > 0 && print->weight > 0 &&
            (!best || print->weight > best->weight ||
             (print->weight == best->weight &&
              lowest_voter(cluster, candidate, print) < lowest_voter(cluster, candidate, best))))
            best = print;
    }
    if (best)
        memcpy(fingerprint, best->fingerprint, sizeof best->fingerprint);
    return best != NULL;
}
