/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/streams.h"

#include "base/buffer.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

enum { PROBES_MAX = 256, JOBS_MAX = 4096 };

/* The fingerprint of a stream's sample section; candidates and live streams meet in the key, the hash with a zero fingerprint. */
struct probe {
    struct worker_chore chore;
    struct worker_streams *streams;
    struct scheduler_stream stream;
    bool known, refused; /* refused: a live stream had another fingerprint, and the log says so */
    uint8_t fingerprint[16];
    struct base_error error;
};

struct kit_entry {
    struct worker_kit *kit;
    struct kit_entry *next;
};

struct worker_streams {
    struct worker_streams_options options;
    struct probe *probes[PROBES_MAX]; /* the oldest goes first */
    size_t probe_count;
    struct kit_entry *kits;
};

enum base_code worker_streams_create(struct worker_streams **out,
                                     const struct worker_streams_options *options, struct base_error *error)
{
    struct worker_streams *streams = calloc(1, sizeof *streams);
    if (!streams)
        return base_error_set(error, BASE_NO_MEMORY, "streams");
    streams->options = *options;
    *out = streams;
    return BASE_OK;
}

void worker_streams_destroy(struct worker_streams *streams)
{
    if (!streams)
        return;
    for (size_t i = 0; i < streams->probe_count; i++)
        free(streams->probes[i]);
    while (streams->kits) {
        struct kit_entry *next = streams->kits->next;
        worker_kit_destroy(streams->kits->kit);
        free(streams->kits);
        streams->kits = next;
    }
    free(streams);
}

/* ---- messages ---- */

static enum base_code read_stream(const Millrace__V1__Stream *message, struct scheduler_stream *stream,
                                  struct base_error *error)
{
    *stream = (struct scheduler_stream){
        .items = message->items, .shuffle = message->shuffle, .seed = message->seed};
    if (message->dataset_version.len != sizeof stream->dataset_version)
        return base_error_set(error, BASE_INVALID, "stream: dataset version of %zu bytes",
                              message->dataset_version.len);
    if (strlen(message->sample_text) >= sizeof stream->sample_text)
        return base_error_set(error, BASE_TOO_LARGE, "stream: sample section of %zu bytes",
                              strlen(message->sample_text));
    memcpy(stream->dataset_version, message->dataset_version.data, sizeof stream->dataset_version);
    strcpy(stream->sample_text, message->sample_text);
    if (message->fingerprint.len == sizeof stream->fingerprint)
        memcpy(stream->fingerprint, message->fingerprint.data, sizeof stream->fingerprint);
    return scheduler_stream_seal(stream, error);
}

static uint64_t worker_at(const Millrace__V1__Plan *message, const uint8_t *slot)
{
    uint16_t index = base_get_u16(slot);
    return index < message->n_workers ? message->workers[index]->worker : SCHEDULER_PLAN_NOBODY;
}

static bool read_plan(const Millrace__V1__Plan *message, struct scheduler_plan *plan)
{
    if (!message || message->primary.len != 2 * SCHEDULER_PLAN_SLOTS ||
        message->secondary.len != 2 * SCHEDULER_PLAN_SLOTS)
        return false;
    plan->version = message->version;
    for (size_t i = 0; i < SCHEDULER_PLAN_SLOTS; i++) {
        plan->primary[i] = worker_at(message, message->primary.data + 2 * i);
        plan->secondary[i] = worker_at(message, message->secondary.data + 2 * i);
    }
    return true;
}

/* ---- fingerprints ---- */

static void work(struct worker_chore *base)
{
    struct probe *probe = (struct probe *)base;
    struct pipeline *pipeline = NULL;
    if (pipeline_create(&pipeline, &probe->stream.pipeline, &probe->error) != BASE_OK)
        return;
    pipeline_fingerprint(pipeline, probe->fingerprint, &probe->error);
    pipeline_destroy(pipeline);
}

static void done(struct worker_chore *base)
{
    struct probe *probe = (struct probe *)base;
    if (base->dropped)
        return;
    char hex[33], key[13], quoted[2 * BASE_ERROR_TEXT_BYTES];
    base_hash_to_hex(probe->fingerprint, sizeof probe->fingerprint, hex);
    base_hash_to_hex(probe->stream.hash, 6, key);
    probe->known = true;
    base_log(probe->error.code == BASE_OK ? BASE_LOG_INFO : BASE_LOG_WARN, "fingerprint",
             "candidate=%s fingerprint=%s error=%s", key, hex,
             base_log_quote(probe->error.text, quoted, sizeof quoted));
    probe->streams->options.changed(probe->streams->options.context);
}

static struct probe *find_probe(const struct worker_streams *streams, const uint8_t key[32])
{
    for (size_t i = 0; i < streams->probe_count; i++)
        if (memcmp(streams->probes[i]->stream.hash, key, BASE_SHA256_BYTES) == 0)
            return streams->probes[i];
    return NULL;
}

/* Room for one more: the oldest known one goes. */
static bool make_room(struct worker_streams *streams)
{
    if (streams->probe_count < PROBES_MAX)
        return true;
    for (size_t i = 0; i < streams->probe_count; i++) {
        if (!streams->probes[i]->known)
            continue;
        free(streams->probes[i]);
        streams->probe_count--;
        memmove(streams->probes + i, streams->probes + i + 1,
                (streams->probe_count - i) * sizeof *streams->probes);
        return true;
    }
    return false;
}

/* The probe of a stream, begun if it is new; NULL: no room now. */
static struct probe *probe_of(struct worker_streams *streams, const struct scheduler_stream *stream)
{
    struct scheduler_stream bare = *stream;
    memset(bare.fingerprint, 0, sizeof bare.fingerprint);
    if (scheduler_stream_seal(&bare, NULL) != BASE_OK)
        return NULL;
    struct probe *probe = find_probe(streams, bare.hash);
    if (probe)
        return probe;
    probe = make_room(streams) ? calloc(1, sizeof *probe) : NULL;
    if (!probe)
        return NULL;
    probe->chore.work = work;
    probe->chore.done = done;
    probe->streams = streams;
    probe->stream = bare;
    streams->probes[streams->probe_count++] = probe;
    worker_chore_begin(streams->options.chores, &probe->chore);
    return probe;
}

size_t worker_streams_probes(const struct worker_streams *streams)
{
    return streams->probe_count;
}

bool worker_streams_report(const struct worker_streams *streams, size_t index,
                           Millrace__V1__StreamProbe *message)
{
    struct probe *probe = streams->probes[index];
    millrace__v1__stream_probe__init(message);
    message->key = (ProtobufCBinaryData){sizeof probe->stream.hash, probe->stream.hash};
    if (probe->error.code == BASE_OK)
        message->fingerprint = (ProtobufCBinaryData){sizeof probe->fingerprint, probe->fingerprint};
    else
        message->error = probe->error.text;
    return probe->known;
}

/* ---- live streams ---- */

struct worker_kit *worker_streams_find(const struct worker_streams *streams, const uint8_t hash[32])
{
    for (const struct kit_entry *entry = streams->kits; entry; entry = entry->next)
        if (memcmp(entry->kit->stream.hash, hash, BASE_SHA256_BYTES) == 0)
            return entry->kit;
    return NULL;
}

void worker_streams_gone(struct worker_streams *streams, struct worker_kit *kit)
{
    for (struct kit_entry **at = &streams->kits; *at; at = &(*at)->next) {
        struct kit_entry *entry = *at;
        if (entry->kit != kit)
            continue;
        *at = entry->next;
        base_log(BASE_LOG_INFO, "stream_gone", "stream=%s", kit->hex);
        worker_kit_destroy(kit);
        free(entry);
        return;
    }
}

static void log_refused(const struct scheduler_stream *stream, const char *why)
{
    char hex[13], quoted[2 * BASE_ERROR_TEXT_BYTES];
    base_hash_to_hex(stream->hash, 6, hex);
    base_log(BASE_LOG_ERROR, "stream_refused", "stream=%s error=%s", hex,
             base_log_quote(why, quoted, sizeof quoted));
}

/* Our fingerprint is this stream's: true; not known yet, or another: false. */
static bool bits_agree(struct worker_streams *streams, const struct scheduler_stream *stream)
{
    struct probe *probe = probe_of(streams, stream);
    if (!probe || !probe->known)
        return false;
    if (probe->error.code == BASE_OK &&
        memcmp(probe->fingerprint, stream->fingerprint, sizeof probe->fingerprint) == 0)
        return true;
    if (!probe->refused)
        log_refused(stream, "this build makes other bits");
    probe->refused = true;
    return false;
}

static struct worker_kit *add_kit(struct worker_streams *streams, const struct scheduler_stream *stream)
{
    struct worker_dataset *dataset = worker_holdings_find(streams->options.holdings, stream->dataset_version);
    if (!dataset || !bits_agree(streams, stream))
        return NULL;
    struct base_error error = {0};
    struct kit_entry *entry = calloc(1, sizeof *entry);
    if (!entry || worker_kit_create(&entry->kit, stream, dataset, &error) != BASE_OK) {
        log_refused(stream, entry ? error.text : "no memory");
        free(entry);
        return NULL;
    }
    void *context = entry->kit;
    if (worker_core_stream_add(streams->options.core, 0, stream, entry->kit->layout.size, &context, &error) !=
        BASE_OK) {
        log_refused(stream, error.text);
        worker_kit_destroy(entry->kit);
        free(entry);
        return NULL;
    }
    entry->next = streams->kits;
    streams->kits = entry;
    base_log(BASE_LOG_INFO, "stream_live", "stream=%s dataset=%s items=%llu block_rows=%u", entry->kit->hex,
             dataset->name, (unsigned long long)stream->items, (unsigned)stream->pipeline.block_rows);
    return entry->kit;
}

static void order_stream(struct worker_streams *streams, int64_t now_ns,
                         const Millrace__V1__StreamOrder *order)
{
    struct worker_core *core = streams->options.core;
    struct scheduler_stream stream;
    struct base_error error = {0};
    if (!order->stream || read_stream(order->stream, &stream, &error) != BASE_OK)
        return;
    struct worker_kit *kit = worker_streams_find(streams, stream.hash);
    if (kit) { /* it may have been removed meanwhile */
        void *context = kit;
        worker_core_stream_add(core, now_ns, &kit->stream, kit->layout.size, &context, NULL);
    } else if (!add_kit(streams, &stream)) {
        return;
    }
    struct scheduler_plan plan;
    if (read_plan(order->plan, &plan))
        worker_core_stream_plan(core, now_ns, stream.hash, &plan);
    struct worker_live_job jobs[JOBS_MAX];
    int count = order->n_live < JOBS_MAX ? (int)order->n_live : JOBS_MAX;
    for (int i = 0; i < count; i++)
        jobs[i] = (struct worker_live_job){order->live[i]->job, order->live[i]->weight};
    worker_core_stream_jobs(core, now_ns, stream.hash, jobs, count);
}

static bool ordered(const Millrace__V1__WorkerOrders *orders, const uint8_t hash[32])
{
    for (size_t i = 0; i < orders->n_streams; i++) {
        const Millrace__V1__Stream *stream = orders->streams[i]->stream;
        if (stream && stream->hash.len == BASE_SHA256_BYTES &&
            memcmp(stream->hash.data, hash, BASE_SHA256_BYTES) == 0)
            return true;
    }
    return false;
}

/* What cannot be read is of a later version, mostly: it is said, or the server would wait for a fingerprint. True: something new. */
static bool refuse_probe(struct worker_streams *streams, const Millrace__V1__Stream *message,
                         const struct base_error *why)
{
    if (message->hash.len != BASE_SHA256_BYTES || find_probe(streams, message->hash.data) ||
        !make_room(streams))
        return false;
    struct probe *probe = calloc(1, sizeof *probe);
    if (!probe)
        return false;
    memcpy(probe->stream.hash, message->hash.data, sizeof probe->stream.hash);
    probe->error = *why;
    probe->known = true;
    streams->probes[streams->probe_count++] = probe;
    log_refused(&probe->stream, why->text);
    return true;
}

void worker_streams_order(struct worker_streams *streams, int64_t now_ns,
                          const Millrace__V1__WorkerOrders *orders)
{
    bool news = false;
    for (size_t i = 0; i < orders->n_probe; i++) {
        struct scheduler_stream stream;
        struct base_error error = {0};
        if (read_stream(orders->probe[i], &stream, &error) == BASE_OK)
            probe_of(streams, &stream);
        else
            news |= refuse_probe(streams, orders->probe[i], &error);
    }
    for (size_t i = 0; i < orders->n_streams; i++)
        order_stream(streams, now_ns, orders->streams[i]);
    for (const struct kit_entry *entry = streams->kits; entry; entry = entry->next)
        if (!ordered(orders, entry->kit->stream.hash))
            worker_core_stream_remove(streams->options.core, now_ns, entry->kit->stream.hash);
    if (news) /* last: it may order again */
        streams->options.changed(streams->options.context);
}
