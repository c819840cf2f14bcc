/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/indexing.h"

#include "base/log.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TELL_MS = 5000, NAMES_MAX = 100, CLASSES_MAX_BYTES = 800000 };

enum state { RUNNING, FINISHED, TELLING, TOLD };

/* One order, from the server's word to its acknowledgement. */
struct job {
    struct worker_chore chore;
    struct worker_indexing *indexing;
    struct job *next;
    enum state state;
    uint64_t order;
    char *dataset, *path, *masks; /* owned; masks NULL: none */
    bool verify;
    struct worker_dataset *held; /* a reference, of verify */
    struct manifest *manifest;   /* made; owned */
    struct base_error error;
    uint8_t version[BASE_SHA256_BYTES];
    struct source_difference difference;
};

struct worker_indexing {
    struct worker_indexing_options options;
    struct job *first;
};

enum base_code worker_indexing_create(struct worker_indexing **out,
                                      const struct worker_indexing_options *options, struct base_error *error)
{
    struct worker_indexing *indexing = calloc(1, sizeof *indexing);
    if (!indexing)
        return base_error_set(error, BASE_NO_MEMORY, "indexing");
    indexing->options = *options;
    *out = indexing;
    return BASE_OK;
}

static void free_job(struct job *job)
{
    if (job->manifest)
        manifest_close(&job->manifest);
    worker_dataset_release(job->held);
    base_buffer_fini(&job->difference.names);
    free(job->dataset);
    free(job->path);
    free(job->masks);
    free(job);
}

void worker_indexing_destroy(struct worker_indexing *indexing)
{
    while (indexing && indexing->first) {
        struct job *next = indexing->first->next;
        free_job(indexing->first);
        indexing->first = next;
    }
    free(indexing);
}

/* ---- the chore ---- */

/* All of them must fit into one message to the server. */
static void check_classes(struct job *job)
{
    uint32_t count = manifest_classes(job->manifest);
    size_t bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        bytes += strlen(manifest_class(job->manifest, i)) + 8;
    if (bytes > CLASSES_MAX_BYTES)
        base_error_set(&job->error, BASE_TOO_LARGE,
                       "%s: the names of its %u classes take %zu bytes of a message, and %d are the most",
                       job->path, count, bytes, CLASSES_MAX_BYTES);
}

static void index_folder(struct job *job)
{
    const struct worker_indexing_options *options = &job->indexing->options;
    char made[PATH_MAX], path[PATH_MAX];
    snprintf(made, sizeof made, "%s/manifests/order-%llu.new", options->state_dir,
             (unsigned long long)job->order);
    struct source_place place = {.path = job->path, .masks = job->masks};
    enum base_code code = source_folder_index(
        options->roots, &place, made, worker_chores_cancel(options->chores), job->version, &job->error);
    if (code != BASE_OK)
        return;
    worker_holdings_path(options->state_dir, job->version, path, sizeof path);
    if (rename(made, path) != 0) {
        base_error_errno(&job->error, errno, "renaming %s to %s", made, path);
        unlink(made);
        return;
    }
    if (manifest_open(&job->manifest, path, job->version, &job->error) == BASE_OK)
        check_classes(job);
}

static void compare_folder(struct job *job)
{
    base_buffer_init(&job->difference.names);
    if (!job->held) {
        base_error_set(&job->error, BASE_UNAVAILABLE, "this worker does not hold the manifest of %s",
                       job->dataset);
        return;
    }
    struct source_folder folder = {job->indexing->options.roots, job->path, job->held->manifest};
    source_folder_compare(&folder, &job->difference, &job->error);
}

static void work(struct worker_chore *base)
{
    struct job *job = (struct job *)base;
    if (job->verify)
        compare_folder(job);
    else
        index_folder(job);
}

static void done(struct worker_chore *base)
{
    struct job *job = (struct job *)base;
    char quoted[2 * BASE_ERROR_TEXT_BYTES], name[600];
    job->state = FINISHED; /* dropped or not: the tick tells, destroy frees */
    if (base->dropped)
        return;
    base_log(job->error.code == BASE_OK ? BASE_LOG_INFO : BASE_LOG_WARN, job->verify ? "verified" : "indexed",
             "dataset=%s items=%llu changed=%llu error=%s", base_log_quote(job->dataset, name, sizeof name),
             job->manifest ? (unsigned long long)manifest_items(job->manifest) : 0,
             (unsigned long long)job->difference.changed,
             base_log_quote(job->error.text, quoted, sizeof quoted));
    job->indexing->options.finished(job->indexing->options.context);
}

/* ---- orders ---- */

static const struct job *find(const struct worker_indexing *indexing, uint64_t order)
{
    const struct job *job = indexing->first;
    while (job && job->order != order)
        job = job->next;
    return job;
}

static void begin(struct worker_indexing *indexing, const Millrace__V1__IndexOrder *order)
{
    struct job *job = calloc(1, sizeof *job);
    if (!job)
        return;
    base_buffer_init(&job->difference.names);
    job->dataset = strdup(order->dataset);
    job->path = strdup(order->path);
    job->masks = order->masks[0] ? strdup(order->masks) : NULL;
    if (!job->dataset || !job->path || (order->masks[0] && !job->masks)) {
        free_job(job);
        return;
    }
    job->chore.work = work;
    job->chore.done = done;
    job->indexing = indexing;
    job->order = order->order;
    job->verify = order->verify;
    if (order->verify && order->version.len == BASE_SHA256_BYTES) {
        job->held = worker_holdings_find(indexing->options.holdings, order->version.data);
        if (job->held)
            worker_dataset_hold(job->held);
        memcpy(job->version, order->version.data, sizeof job->version);
    }
    job->next = indexing->first;
    indexing->first = job;
    worker_chore_begin(indexing->options.chores, &job->chore);
}

/* Jobs that the server knows about, and no longer orders, are forgotten. */
static void forget_told(struct worker_indexing *indexing, Millrace__V1__IndexOrder *const *orders,
                        size_t count)
{
    for (struct job **at = &indexing->first; *at;) {
        struct job *job = *at;
        bool ordered = false;
        for (size_t i = 0; i < count; i++)
            ordered = ordered || orders[i]->order == job->order;
        if (ordered || job->state != TOLD) {
            at = &job->next;
            continue;
        }
        *at = job->next;
        free_job(job);
    }
}

void worker_indexing_order(struct worker_indexing *indexing, Millrace__V1__IndexOrder *const *orders,
                           size_t count)
{
    forget_told(indexing, orders, count);
    for (size_t i = 0; i < count; i++)
        if (!find(indexing, orders[i]->order))
            begin(indexing, orders[i]);
}

/* ---- results ---- */

static void told(void *context, enum base_code code, const char *text, const ProtobufCMessage *reply)
{
    (void)text, (void)reply;
    struct job *job = context;
    /* An order that the server does not know (any more) is as good as told. */
    job->state = code == BASE_OK || base_error_class(code) == BASE_CLASS_PERMANENT ? TOLD : FINISHED;
}

static char *mutable_text(const char *text)
{
    union {
        const char *in;
        char *out;
    } cast = {.in = text}; /* protobuf-c has no const; it only reads these */
    return cast.out;
}

struct texts {
    char *text[MANIFEST_SKIPPED_LISTED];
    size_t count;
};

static char **class_names(const struct manifest *manifest, size_t *count)
{
    *count = manifest_classes(manifest);
    char **names = calloc(*count > 0 ? *count : 1, sizeof *names);
    if (!names)
        *count = 0;
    for (size_t i = 0; i < *count; i++)
        names[i] = mutable_text(manifest_class(manifest, (uint32_t)i));
    return names;
}

static void list_skipped(const struct manifest *manifest, struct texts *texts)
{
    const char *name;
    for (texts->count = 0; texts->count < NAMES_MAX; texts->count++) {
        name = manifest_skipped_name(manifest, (uint32_t)texts->count);
        if (!name)
            return;
        texts->text[texts->count] = mutable_text(name);
    }
}

/* The texts point into *all, which is the caller's to free. */
static void list_changed(struct base_buffer *names, struct texts *texts, char **out)
{
    const char *text = base_buffer_text(names);
    char *all = *out = text ? strdup(text) : NULL;
    texts->count = 0;
    char *rest = NULL;
    for (char *line = all ? strtok_r(all, "\n", &rest) : NULL; line && texts->count < NAMES_MAX;
         line = strtok_r(NULL, "\n", &rest))
        texts->text[texts->count++] = line;
}

static void tell(struct job *job, struct rpc_channel *channel)
{
    Millrace__V1__IndexResult result = MILLRACE__V1__INDEX_RESULT__INIT;
    struct texts skipped = {.count = 0}, changed = {.count = 0};
    char *changed_names = NULL;
    result.worker = job->indexing->options.worker;
    result.order = job->order;
    result.code = (uint32_t)job->error.code;
    result.error = job->error.code == BASE_OK ? mutable_text("") : job->error.text;
    result.version = (ProtobufCBinaryData){sizeof job->version, job->version};
    if (job->manifest) {
        list_skipped(job->manifest, &skipped);
        result.items = manifest_items(job->manifest);
        result.bytes = manifest_total_bytes(job->manifest);
        result.skipped = manifest_skipped(job->manifest);
        result.masks = manifest_masks(job->manifest) != NULL;
        result.classes = class_names(job->manifest, &result.n_classes);
    }
    if (job->verify && job->error.code == BASE_OK) {
        list_changed(&job->difference.names, &changed, &changed_names);
        result.changed = job->difference.changed;
    }
    result.skipped_names = skipped.text;
    result.n_skipped_names = skipped.count;
    result.changed_names = changed.text;
    result.n_changed_names = changed.count;
    job->state = TELLING;
    if (!rpc_call_start(
            channel,
            &(struct rpc_request){&millrace__v1__cluster__descriptor, "Indexed", &result.base, TELL_MS}, told,
            job))
        told(job, BASE_NO_MEMORY, "no memory for a call", NULL);
    free(result.classes);
    free(changed_names);
}

void worker_indexing_tell(struct worker_indexing *indexing, struct rpc_channel *channel)
{
    for (struct job *job = indexing->first; job; job = job->next)
        if (job->state == FINISHED)
            tell(job, channel);
}
