/* SPDX-License-Identifier: Apache-2.0 */
/* Which dataset versions workers hold. */
#include "scheduler/cluster_state.h"

#include <stdlib.h>
#include <string.h>

enum { HELD_MAX = 4096 }; /* of one worker: further ones are not looked at */

static bool same_version(const void *item, const void *key)
{
    return memcmp(((const struct cluster_version *)item)->hash, key, BASE_SHA256_BYTES) == 0;
}

static struct cluster_version *find(const struct scheduler_cluster *cluster, const uint8_t *version)
{
    return cluster_index_find(&cluster->by_version, cluster_hash_bytes(version), same_version, version);
}

struct cluster_version *cluster_version_hold(struct scheduler_cluster *cluster, const uint8_t *version)
{
    struct cluster_version *found = find(cluster, version);
    if (!found) {
        found = cluster_index_reserve(&cluster->by_version) ? calloc(1, sizeof *found) : NULL;
        if (!found)
            return NULL;
        memcpy(found->hash, version, sizeof found->hash);
        cluster_index_put(&cluster->by_version, cluster_hash_bytes(version), found);
    }
    found->holders++;
    return found;
}

void cluster_version_drop(struct scheduler_cluster *cluster, struct cluster_version *version)
{
    if (--version->holders > 0)
        return;
    cluster_index_remove(&cluster->by_version, cluster_hash_bytes(version->hash), version);
    free(version);
}

/* The first worker that can give a manifest's pages is news to those that want them. */
static void tell_first_holder(struct scheduler_cluster *cluster, const struct cluster_member *holder)
{
    for (int i = 0; i < cluster->member_count; i++)
        if (cluster->members[i] != holder && cluster->members[i]->view.state != SCHEDULER_WORKER_LOST)
            cluster_member_touch(cluster, cluster->members[i]);
}

static void set_eligible(struct scheduler_cluster *cluster, const struct cluster_member *member,
                         struct cluster_version *version, bool eligible)
{
    if (cluster_bit(version->eligible, member->seat) == eligible)
        return;
    cluster_candidate_votes(cluster, member->seat, version, -1);
    cluster_bit_set(version->eligible, member->seat, eligible);
    cluster_candidate_votes(cluster, member->seat, version, 1);
    version->eligible_count += eligible ? 1 : -1;
    if (eligible && version->eligible_count == 1)
        tell_first_holder(cluster, member);
}

static const char *error_of(const struct cluster_held *held)
{
    return held->error ? held->error : "";
}

static const char *told_error(const struct scheduler_dataset_held *told)
{
    return told->error ? told->error : "";
}

static bool same_list(const struct cluster_member *member, const struct scheduler_worker_report *report,
                      int count)
{
    bool same = count == member->held_count;
    for (int i = 0; same && i < count; i++) {
        const struct scheduler_dataset_held *told = &report->datasets[i];
        const struct cluster_held *held = &member->held[i];
        same = memcmp(held->version->hash, told->version, BASE_SHA256_BYTES) == 0 &&
               held->eligible == told->eligible &&
               strncmp(error_of(held), told_error(told), CLUSTER_ERROR_CHARS - 1) == 0;
    }
    return same;
}

static void free_list(struct scheduler_cluster *cluster, struct cluster_held *held, int count)
{
    for (int i = 0; i < count; i++) {
        free(held[i].error);
        cluster_version_drop(cluster, held[i].version);
    }
    free(held);
}

static struct cluster_held *make_list(struct scheduler_cluster *cluster,
                                      const struct scheduler_worker_report *report, int count)
{
    struct cluster_held *held = calloc((size_t)count + 1, sizeof *held);
    for (int i = 0; held && i < count; i++) {
        const struct scheduler_dataset_held *told = &report->datasets[i];
        const char *error = told_error(told);
        held[i].version = cluster_version_hold(cluster, told->version);
        held[i].eligible = told->eligible;
        held[i].error = held[i].version && error[0] ? strndup(error, CLUSTER_ERROR_CHARS - 1) : NULL;
        if (held[i].version && (held[i].error || !error[0]))
            continue;
        free_list(cluster, held, held[i].version ? i + 1 : i);
        return NULL;
    }
    return held;
}

const struct cluster_member *cluster_version_refuser(const struct cluster_version *version,
                                                     const char **error)
{
    for (int i = 0; version->refuser && i < version->refuser->held_count; i++)
        if (version->refuser->held[i].version == version)
            *error = error_of(&version->refuser->held[i]);
    return version->refuser;
}

/* Who says why it cannot read what. */
static void note_refusals(struct cluster_member *member, bool stays)
{
    for (int i = 0; i < member->held_count; i++) {
        struct cluster_version *version = member->held[i].version;
        if (stays && member->held[i].error && !member->held[i].eligible)
            version->refuser = member;
        else if (version->refuser == member)
            version->refuser = NULL;
    }
}

bool cluster_held_take(struct scheduler_cluster *cluster, struct cluster_member *member,
                       const struct scheduler_worker_report *report, bool *changed)
{
    int count = report->dataset_count > HELD_MAX ? HELD_MAX : report->dataset_count;
    if (same_list(member, report, count))
        return true;
    struct cluster_held *held = make_list(cluster, report, count);
    if (!held)
        return false;
    for (int i = 0; i < count; i++) /* those that stay are not without holders in between */
        set_eligible(cluster, member, held[i].version, held[i].eligible);
    for (int i = 0; i < member->held_count; i++) {
        bool named = false;
        for (int j = 0; j < count && !named; j++)
            named = held[j].version == member->held[i].version;
        if (!named)
            set_eligible(cluster, member, member->held[i].version, false);
    }
    note_refusals(member, false);
    free_list(cluster, member->held, member->held_count);
    member->held = held;
    member->held_count = count;
    note_refusals(member, true);
    *changed = true;
    return true;
}

void cluster_held_clear(struct scheduler_cluster *cluster, struct cluster_member *member)
{
    for (int i = 0; i < member->held_count; i++)
        set_eligible(cluster, member, member->held[i].version, false);
    note_refusals(member, false);
    free_list(cluster, member->held, member->held_count);
    member->held = NULL;
    member->held_count = 0;
}

bool cluster_held_eligible(const struct scheduler_cluster *cluster, const struct cluster_member *member,
                           const uint8_t *version, const char **error)
{
    const struct cluster_version *known = find(cluster, version);
    bool eligible = known && cluster_bit(known->eligible, member->seat);
    if (!error)
        return eligible;
    *error = "";
    for (int i = 0; known && !eligible && i < member->held_count; i++)
        if (member->held[i].version == known)
            *error = error_of(&member->held[i]);
    return eligible;
}
