/* SPDX-License-Identifier: Apache-2.0 */
#include "server/certificates.h"

#include "base/log.h"

#include <inttypes.h>
#include <string.h>

static const struct server_epoch *count_of(const struct server_rank *rank, uint32_t epoch)
{
    for (int i = 0; i < rank->epoch_count; i++)
        if (rank->epochs[i].epoch == epoch)
            return &rank->epochs[i];
    return NULL;
}

static bool said_before(const struct server_rank *rank, const struct server_epoch *count)
{
    const struct server_epoch *own = count_of(rank, count->epoch);
    return own && own->stream_epoch == count->stream_epoch && own->positions == count->positions &&
           own->hash == count->hash && own->whole == count->whole;
}

/* The ranks' counts of an epoch, added; false: one of them has none yet. */
static bool add_up(const struct server_job *job, uint32_t epoch, struct server_epoch *sum)
{
    for (uint32_t i = 0; i < job->world; i++) {
        const struct server_epoch *own = count_of(&job->ranks[i], epoch);
        if (!own)
            return false;
        if (i == 0)
            *sum = (struct server_epoch){.epoch = epoch, .stream_epoch = own->stream_epoch, .whole = true};
        sum->positions += own->positions;
        sum->hash += own->hash;
        sum->whole = sum->whole && own->whole && own->stream_epoch == sum->stream_epoch;
    }
    return true;
}

/* Where the certificate of an epoch stands or will stand: they are in order of epochs, and the oldest goes. */
static struct server_certificate *place_of(struct server_job *job, uint32_t epoch)
{
    int at = 0;
    while (at < job->certificate_count && job->certificates[at].is.epoch < epoch)
        at++;
    if (at < job->certificate_count && job->certificates[at].is.epoch == epoch)
        return &job->certificates[at];
    if (job->certificate_count == SERVER_CERTIFICATES) {
        if (at == 0)
            return NULL;
        memmove(job->certificates, job->certificates + 1, (size_t)--at * sizeof *job->certificates);
    } else {
        memmove(job->certificates + at + 1, job->certificates + at,
                (size_t)(job->certificate_count++ - at) * sizeof *job->certificates);
    }
    job->certificates[at] = (struct server_certificate){.is.epoch = epoch};
    return &job->certificates[at];
}

static bool differ(const struct server_certificate *a, const struct server_certificate *b)
{
    return a->is.whole && b->is.whole && a->is.stream_epoch == b->is.stream_epoch &&
           a->is.positions == b->is.positions && memcmp(a->stream, b->stream, sizeof a->stream) == 0 &&
           a->is.hash != b->is.hash;
}

static void compare(struct server *server, const struct server_job *job,
                    const struct server_certificate *certificate)
{
    for (const struct server_job *other = server->jobs.first; other; other = other->next) {
        for (int i = 0; i < other->certificate_count && other != job; i++) {
            if (!differ(&other->certificates[i], certificate))
                continue;
            base_metric_add(&server->metrics[SERVER_METRIC_EPOCHS_DIFFER], 1);
            base_log(BASE_LOG_ERROR, "epoch_differs",
                     "job=%s epoch=%u hash=%016" PRIx64 " other=%s other_epoch=%u other_hash=%016" PRIx64
                     " stream_epoch=%u positions=%" PRIu64,
                     job->id, certificate->is.epoch, certificate->is.hash, other->id,
                     other->certificates[i].is.epoch, other->certificates[i].is.hash,
                     certificate->is.stream_epoch, certificate->is.positions);
        }
    }
}

static void certify(struct server *server, struct server_job *job, uint32_t epoch)
{
    const struct scheduler_job *planned = scheduler_cluster_job(server->cluster, job->id);
    struct server_epoch sum;
    if (!planned || !planned->stream || !add_up(job, epoch, &sum))
        return;
    struct server_certificate *to = place_of(job, epoch);
    if (!to || (to->made && to->is.hash == sum.hash && to->is.positions == sum.positions &&
                to->is.whole == sum.whole)) /* told before */
        return;
    if (to->made && to->is.whole && !sum.whole) /* of an earlier launch: it says more */
        return;
    to->made = true;
    to->is = sum;
    memcpy(to->stream, planned->stream->identity.hash, sizeof to->stream);
    for (int i = 0; i < 8; i++)
        to->hash[i] = (uint8_t)(sum.hash >> (56 - 8 * i));
    compare(server, job, to);
}

void server_certificates_report(struct server *server, struct server_job *job,
                                const Millrace__V1__JobSync *sync)
{
    if (sync->rank >= job->world)
        return;
    struct server_rank *rank = &job->ranks[sync->rank], before = *rank;
    rank->epoch_count = 0;
    for (size_t i = 0; i < sync->n_epochs && rank->epoch_count < SERVER_CERTIFICATES; i++) {
        const Millrace__V1__EpochCount *from = sync->epochs[i];
        rank->epochs[rank->epoch_count++] =
            (struct server_epoch){from->epoch, from->stream_epoch, from->positions, from->hash, from->whole};
    }
    for (int i = 0; i < rank->epoch_count; i++)
        if (!said_before(&before, &rank->epochs[i]))
            certify(server, job, rank->epochs[i].epoch);
}
