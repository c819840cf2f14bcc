/* SPDX-License-Identifier: Apache-2.0 */
/* The trainer's calls on an open job. */
#include "client/src/job.h"

#include "base/clock.h"
#include "base/hash.h"
#include "client/src/error.h"

#include <stdio.h>
#include <string.h>

#define PAGE_TRY_MS 2000
#define PAGE_PAUSE_MS 50
#define NAME_MS 5000 /* for the name of a bad item, however short the calls are: nice to have */

/* Locks; false (and not locked): the handle is dead here. */
static bool enter(struct mr_job *job, struct mr_error *error)
{
    if (!job || !client_usable(job->client)) {
        client_error_set(error, BASE_CLOSED, "job: closed, or opened by the parent of this process");
        return false;
    }
    pthread_mutex_lock(&job->mutex);
    if (!job->closing) {
        job->users++;
        return true;
    }
    pthread_mutex_unlock(&job->mutex);
    client_error_set(error, BASE_CLOSED, "job %s: closed", job->name);
    return false;
}

static void leave(struct mr_job *job)
{
    if (--job->users == 0 && job->closing)
        pthread_cond_broadcast(&job->changed);
    pthread_mutex_unlock(&job->mutex);
}

static void wait_until(struct mr_job *job, int64_t deadline_ns)
{
    struct timespec time = {deadline_ns / BASE_NS_PER_S, deadline_ns % BASE_NS_PER_S};
    job->waiting++;
    pthread_cond_timedwait(&job->changed, &job->mutex, &time);
    job->waiting--;
}

void client_job_cursor(const struct mr_job *job, struct scheduler_cursor at, struct mr_cursor *cursor)
{
    *cursor = (struct mr_cursor){.epoch = at.epoch, .first_epoch = job->first_epoch, .position = at.position};
    memcpy(cursor->dataset_version, job->stream.dataset_version, sizeof cursor->dataset_version);
    memcpy(cursor->stream, job->stream.hash, sizeof cursor->stream);
    memcpy(cursor->fingerprint, job->stream.fingerprint, sizeof cursor->fingerprint);
}

/* ---- names of items ---- */

/* Asks until a worker gives the page. Locked. */
static enum base_code await_page(struct mr_job *job, int64_t deadline_ns, struct base_error *error)
{
    struct client_page *page = &job->page;
    while (!page->here && !job->closing && base_clock_now_ns() < deadline_ns) {
        int64_t look_ns = base_clock_now_ns() + 50 * BASE_NS_PER_MS; /* a worker may have come up */
        client_job_poke(job);
        wait_until(job, look_ns < deadline_ns ? look_ns : deadline_ns);
    }
    if (page->here && page->code == BASE_OK)
        return BASE_OK;
    if (page->here)
        return base_error_set(error, page->code, "%s", page->error.text);
    return base_error_set(error, job->closing ? BASE_CLOSED : BASE_TIMEOUT,
                          "manifest page %llu: no worker gave it in time", (unsigned long long)page->index);
}

/* A call that has no more time leaves the request under way: the next one takes its answer. */
static enum base_code fetch_page(void *context, uint64_t index, struct base_buffer *out,
                                 struct base_error *error)
{
    struct mr_job *job = context;
    struct client_page *page = &job->page;
    pthread_mutex_lock(&job->mutex);
    if (!page->wanted || page->index != index || base_clock_now_ns() >= page->try_ns) {
        page->elsewhere |= page->wanted && page->index == index;
        page->wanted = true;
        page->here = false;
        page->number = 0;
        page->index = index;
        page->try_ns = base_clock_deadline_ns(PAGE_TRY_MS);
        base_buffer_clear(&page->bytes);
        client_job_poke(job); /* though the call may have no time at all */
    }
    enum base_code code = await_page(job, base_clock_earlier(page->try_ns, job->page_deadline_ns), error);
    page->wanted = code == BASE_TIMEOUT;
    if (code == BASE_OK)
        base_buffer_put(out, page->bytes.bytes, page->bytes.size);
    pthread_mutex_unlock(&job->mutex);
    return code;
}

/* A refusal comes back at once: no busy asking. False: no time is left. */
static bool pause_page(struct mr_job *job, int64_t deadline_ns)
{
    int64_t until_ns = base_clock_now_ns() + PAGE_PAUSE_MS * BASE_NS_PER_MS;
    if (until_ns > deadline_ns)
        return false;
    pthread_mutex_lock(&job->mutex);
    job->page.elsewhere = true;
    while (!job->closing && base_clock_now_ns() < until_ns)
        wait_until(job, until_ns);
    pthread_mutex_unlock(&job->mutex);
    return true;
}

/* Not locked. Tries again, elsewhere, until the deadline. */
static enum base_code find_item(struct mr_job *job, uint64_t item, struct manifest_entry *entry,
                                int64_t deadline_ns, struct base_error *error)
{
    enum base_code code;
    job->page_deadline_ns = deadline_ns;
    do {
        code = BASE_OK;
        if (!job->manifest)
            code =
                manifest_remote_create(&job->manifest, job->stream.dataset_version, fetch_page, job, error);
        if (code == BASE_OK)
            code = manifest_remote_entry(job->manifest, item, entry, error);
    } while ((code == BASE_CORRUPT || base_error_class(code) == BASE_CLASS_RETRYABLE) &&
             code != BASE_CLOSED && pause_page(job, deadline_ns));
    return code;
}

enum mr_code mr_job_item(struct mr_job *job, uint64_t item, struct mr_item *out, int64_t timeout_ms,
                         struct mr_error *error)
{
    int64_t deadline_ns = base_clock_deadline_ns(timeout_ms);
    struct manifest_entry entry;
    struct base_error why;
    if (!enter(job, error))
        return MR_CLOSED;
    pthread_mutex_unlock(&job->mutex);
    enum base_code code =
        item < job->stream.items
            ? find_item(job, item, &entry, deadline_ns, &why)
            : base_error_set(&why, BASE_NOT_FOUND, "dataset %s has %llu items, no item %llu", job->dataset,
                             (unsigned long long)job->stream.items, (unsigned long long)item);
    pthread_mutex_lock(&job->mutex);
    leave(job);
    if (code != BASE_OK)
        return client_error_pass(error, code, &why);
    out->label = entry.label;
    out->size_bytes = entry.size_bytes;
    snprintf(out->name, sizeof out->name, "%s", entry.name);
    return MR_OK;
}

/* ---- batches ---- */

static enum base_code take(struct mr_job *job, struct client_step *step, int64_t timeout_ms,
                           struct base_error *error)
{
    int64_t begun_ns = base_clock_now_ns(), deadline_ns = base_clock_deadline_ns(timeout_ms);
    enum base_code code;
    char why[300];
    for (;;) {
        int64_t now_ns = base_clock_now_ns();
        if (job->closing)
            return base_error_set(error, BASE_CLOSED, "job %s: closed", job->name);
        if (job->over.code != BASE_OK)
            return base_error_set(error, job->over.code, "%s", job->over.text);
        code = client_core_take(job->core, now_ns, step, error);
        job->stall_ns += (uint64_t)(now_ns - begun_ns);
        begun_ns = now_ns;
        if (code != BASE_TIMEOUT || now_ns >= deadline_ns)
            break;
        wait_until(job, deadline_ns);
    }
    if (code == BASE_TIMEOUT) {
        client_core_why(job->core, why, sizeof why);
        base_error_set(error, code, "job %s: no batch within %lld ms: %s", job->name, (long long)timeout_ms,
                       why);
    }
    if (code == BASE_UNAVAILABLE)
        base_error_prefix(error, code, "dataset %s", job->dataset);
    return code;
}

/* Locked before and after, not meanwhile. TIMEOUT: its name may come yet, within NAME_MS of the first call. */
static enum base_code name_bad_item(struct mr_job *job, int64_t deadline_ns, struct base_error *error)
{
    struct client_core_bad bad = client_core_bad(job->core);
    struct manifest_entry entry;
    struct base_error why;
    if (job->name_until_ns == 0)
        job->name_until_ns = base_clock_deadline_ns(NAME_MS);
    int64_t until_ns = base_clock_earlier(job->name_until_ns, deadline_ns);
    pthread_mutex_unlock(&job->mutex);
    enum base_code code = find_item(job, bad.item, &entry, until_ns, &why);
    pthread_mutex_lock(&job->mutex);
    while (code != BASE_OK && !job->closing && base_clock_now_ns() < until_ns) /* no busy asking */
        wait_until(job, until_ns);
    if (code != BASE_OK && !job->closing && base_clock_now_ns() < job->name_until_ns)
        return base_error_set(error, BASE_TIMEOUT, "job %s: item %llu is bad, its name is asked for",
                              job->name, (unsigned long long)bad.item);
    return base_error_set(error, BASE_BAD_SAMPLE,
                          "dataset %s: item %llu (%.300s) at epoch %u position %llu is bad: %s", job->dataset,
                          (unsigned long long)bad.item, code == BASE_OK ? entry.name : "name not known",
                          bad.epoch, (unsigned long long)bad.position, mr_cause_name(bad.cause));
}

/* The slot is the trainer's thread's now. */
static struct client_batch *finish(struct mr_job *job, const struct client_step *step)
{
    struct client_batch *batch = client_slots_batch(&job->slots, step);
    batch->job = job;
    batch->public.epoch = step->epoch - job->first_epoch;
    client_job_cursor(job, step->after, &batch->public.cursor);
    job->lies =
        (struct client_ledger_step){step->batch.step_begin, step->batch.step_valid, step->batch.valid};
    return batch;
}

/* Locked before and after, not meanwhile: finishing takes a while, and a disk may. `step` NULL: what the ledger did not take
 * before. On an error the batch is kept. */
static enum base_code hand_over(struct mr_job *job, const struct client_step *step, struct mr_batch **out,
                                struct base_error *error)
{
    pthread_mutex_unlock(&job->mutex);
    struct client_batch *batch = step ? finish(job, step) : job->unwritten;
    enum base_code code =
        job->ledger ? client_ledger_append(job->ledger, &batch->public, &job->lies, error) : BASE_OK;
    pthread_mutex_lock(&job->mutex);
    job->unwritten = code == BASE_OK ? NULL : batch;
    if (code != BASE_OK)
        return code;
    client_certificates_add(&job->certificates, &batch->public, job->lies.begin, job->lies.rows);
    job->batches++;
    for (int i = 0; i < batch->public.field_count; i++)
        job->bytes += batch->fields[i].bytes;
    *out = &batch->public;
    return BASE_OK;
}

static enum base_code next(struct mr_job *job, struct mr_batch **batch, int64_t timeout_ms,
                           struct base_error *error)
{
    struct client_step step;
    int64_t deadline_ns = base_clock_deadline_ns(timeout_ms);
    if (job->unwritten)
        return hand_over(job, NULL, batch, error);
    struct scheduler_cursor before = client_core_cursor(job->core);
    enum base_code code = take(job, &step, timeout_ms, error);
    if (code == BASE_OK) {
        job->before = before;
        code = hand_over(job, &step, batch, error);
    } else if (code == BASE_BAD_SAMPLE) {
        code = name_bad_item(job, deadline_ns, error);
    }
    return code;
}

enum mr_code mr_job_next(struct mr_job *job, struct mr_batch **batch, int64_t timeout_ms,
                         struct mr_error *error)
{
    struct base_error why;
    if (!enter(job, error))
        return MR_CLOSED;
    enum base_code code = next(job, batch, timeout_ms, &why);
    bool ended = code == BASE_CLOSED && !job->closing;
    if (code != BASE_OK) /* a batch taken makes no room: its release does */
        client_job_poke(job);
    leave(job);
    if (code == BASE_OK)
        return MR_OK;
    client_error_set(error, code, "%s", why.text);
    if (ended && error)
        error->code = MR_END;
    return ended ? MR_END : (enum mr_code)code;
}

/* ---- elsewhere ---- */

static enum base_code check_cursor(const struct mr_job *job, const struct mr_cursor *to,
                                   struct base_error *error)
{
    char theirs[65], ours[65];
    bool other_version = memcmp(to->dataset_version, job->stream.dataset_version, 32) != 0;
    if (!other_version && memcmp(to->stream, job->stream.hash, 32) == 0)
        return BASE_OK;
    base_hash_to_hex(other_version ? to->dataset_version : to->stream, 32, theirs);
    base_hash_to_hex(other_version ? job->stream.dataset_version : job->stream.hash, 32, ours);
    return base_error_set(error, BASE_CONFLICT, "job %s: the cursor is of %s %.12s, the job of %.12s",
                          job->name, other_version ? "dataset version" : "stream", theirs, ours);
}

static enum base_code seek(struct mr_job *job, const struct mr_cursor *to, struct base_error *error)
{
    struct ledger_start start;
    enum base_code code = job->over.code == BASE_OK
                              ? check_cursor(job, to, error)
                              : base_error_set(error, job->over.code, "%s", job->over.text);
    if (code == BASE_OK)
        code = client_core_seek(job->core, base_clock_now_ns(), to->first_epoch,
                                (struct scheduler_cursor){to->epoch, to->position}, error);
    if (code != BASE_OK)
        return code;
    job->first_epoch = to->first_epoch;
    job->seeks++;
    job->name_until_ns = 0;
    job->certificates.begun = false;
    if (job->unwritten)
        client_core_release(job->core, base_clock_now_ns(), job->unwritten->slot);
    job->unwritten = NULL;
    if (!job->ledger)
        return BASE_OK;
    client_job_ledger_start(job, true, (uint64_t)base_clock_wall_ns(), &start);
    start.abandons = true;
    return client_ledger_restart(job->ledger, &start, error);
}

enum mr_code mr_job_seek(struct mr_job *job, const struct mr_cursor *to, struct mr_error *error)
{
    struct base_error why;
    if (!enter(job, error))
        return MR_CLOSED;
    enum base_code code = seek(job, to, &why);
    client_job_poke(job);
    leave(job);
    return code == BASE_OK ? MR_OK : client_error_set(error, code, "%s", why.text);
}

void mr_batch_release(struct mr_batch *public)
{
    struct client_batch *batch = (struct client_batch *)(void *)public; /* its first member */
    if (!batch || !client_usable(batch->job->client))
        return;
    struct mr_job *job = batch->job;
    pthread_mutex_lock(&job->mutex);
    client_core_release(job->core, base_clock_now_ns(), batch->slot);
    if (client_core_is_brisk(job->core) && client_job_ask(job))
        pthread_mutex_unlock(&job->mutex);
    else
        client_job_unlock_poking(job);
}

/* ---- about the job ---- */

enum mr_code mr_job_info(struct mr_job *job, struct mr_job_info *info, struct mr_error *error)
{
    if (info->size < sizeof *info)
        return client_error_set(error, BASE_INVALID, "job: info.size is %zu, not %zu", info->size,
                                sizeof *info);
    if (!enter(job, error))
        return MR_CLOSED;
    info->items = job->stream.items;
    info->steps = scheduler_steps_left(&job->shape, (struct scheduler_cursor){0, 0});
    info->class_count = job->class_count;
    info->classes = (const char *const *)job->classes;
    info->pipeline = job->pipeline_text;
    info->note = job->note;
    client_job_cursor(job, job->unwritten ? job->before : client_core_cursor(job->core), &info->cursor);
    leave(job);
    return MR_OK;
}

enum mr_code mr_job_finish(struct mr_job *job, struct mr_finish *finish, struct mr_error *error)
{
    if (finish->size < sizeof *finish)
        return client_error_set(error, BASE_INVALID, "job: finish.size is %zu, not %zu", finish->size,
                                sizeof *finish);
    if (!enter(job, error))
        return MR_CLOSED;
    *finish = job->finish;
    leave(job);
    return MR_OK;
}

enum mr_code mr_job_stats(struct mr_job *job, struct mr_job_stats *stats)
{
    size_t first_size = offsetof(struct mr_job_stats, hedges); /* of 0.1.0's first headers */
    if (stats->size < first_size)
        return MR_INVALID;
    if (!enter(job, NULL))
        return MR_CLOSED;
    struct client_core_stats core = client_core_stats(job->core);
    struct mr_job_stats all = {
        .size = stats->size,
        .rows = core.rows,
        .batches = job->batches,
        .bytes = job->bytes,
        .stall_ns = job->stall_ns,
        .ready = core.ready,
        .substituted = core.substituted,
        .skipped = core.skipped,
        .requests = core.requests,
        .moved = core.moved,
        .retries = core.retries,
        .reconnects = core.reconnects,
        .failovers = core.failovers,
        .bad_frames = job->bad_frames,
        .hedges = core.hedges,
        .hedges_won = core.hedges_won,
        .socket_bytes = job->socket_bytes,
        .memory_bytes = job->memory_bytes,
    };
    memcpy(stats, &all, stats->size < sizeof all ? stats->size : sizeof all);
    leave(job);
    return MR_OK;
}
