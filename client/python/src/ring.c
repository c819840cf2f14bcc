/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/src/ring.h"

#include "client/python/src/align.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STREAM_LEGACY ((void *)1) /* as CUDA has them */
#define STREAM_PER_THREAD ((void *)2)

struct python_ring {
    atomic_int refs; /* of the job, and of each loan */
    pid_t pid;
    struct mr_device *device;
    struct python_ring_options options;
    struct mr_finish finish;
    pthread_mutex_t mutex;       /* guards what follows, and every call of an ingest */
    struct mr_ingest *ingest;    /* NULL: no batch came yet, which tells the size of images */
    uint32_t lent;               /* of its entries */
    struct python_loan *copying; /* the entry submitted last, while it is lent */
    bool lost;                   /* the device failed for good: entries are no more, their loans are inert */
};

static enum mr_code say(struct mr_error *error, enum mr_code code, const char *text)
{
    if (error) {
        error->code = code;
        snprintf(error->text, sizeof error->text, "%s", text);
    }
    return code;
}

/* ---- the ring ---- */

enum mr_code python_ring_open(struct python_ring **out, const struct python_ring_options *options,
                              struct mr_error *error)
{
    struct mr_device_options which = {
        .size = sizeof which, .backend = options->backend, .ordinal = options->ordinal};
    struct python_ring *ring = calloc(1, sizeof *ring);
    if (!ring)
        return say(error, MR_NO_MEMORY, "device: no memory");
    enum mr_code code = mr_device_open(&ring->device, &which, error);
    if (code != MR_OK) {
        free(ring);
        return code;
    }
    ring->pid = getpid();
    ring->options = *options;
    atomic_init(&ring->refs, 1);
    pthread_mutex_init(&ring->mutex, NULL);
    *out = ring;
    return MR_OK;
}

void python_ring_get(struct python_ring *ring)
{
    atomic_fetch_add(&ring->refs, 1);
}

void python_ring_put(struct python_ring *ring)
{
    if (!ring || atomic_fetch_sub(&ring->refs, 1) > 1 || ring->pid != getpid())
        return;
    mr_ingest_destroy(ring->ingest);
    mr_device_close(&ring->device);
    pthread_mutex_destroy(&ring->mutex);
    free(ring);
}

const char *python_ring_name(const struct python_ring *ring)
{
    return mr_device_name(ring->device);
}

bool python_ring_placement(struct python_ring *ring, struct mr_placement *placement)
{
    pthread_mutex_lock(&ring->mutex);
    bool known = ring->ingest && mr_ingest_placement(ring->ingest, placement) == MR_OK;
    pthread_mutex_unlock(&ring->mutex);
    return known;
}

struct mr_device *python_ring_device(struct python_ring *ring)
{
    return ring->device;
}

int python_ring_ordinal(const struct python_ring *ring)
{
    return ring->options.backend == MR_BACKEND_CUDA ? ring->options.ordinal : -1;
}

void python_ring_plan(struct python_ring *ring, const struct mr_finish *finish)
{
    ring->finish = *finish;
}

bool python_ring_has_room(struct python_ring *ring)
{
    pthread_mutex_lock(&ring->mutex);
    bool room = ring->lent < ring->options.entries;
    pthread_mutex_unlock(&ring->mutex);
    return room;
}

static void settle(struct python_ring *ring)
{
    if (!ring->copying || mr_ingest_copied(ring->copying->batch, 1, NULL) == MR_OK)
        return;
    mr_ingest_destroy(ring->ingest); /* which lets go of the mr_batch */
    ring->ingest = NULL;
    ring->copying = NULL;
    ring->lost = true;
}

void python_ring_settle(struct python_ring *ring)
{
    if (ring->pid != getpid())
        return;
    pthread_mutex_lock(&ring->mutex);
    settle(ring);
    pthread_mutex_unlock(&ring->mutex);
}

/* ---- fields that stay on the host ---- */

static bool stays(const struct mr_field *field)
{
    return strcmp(field->name, "image") != 0 && strcmp(field->name, "label") != 0;
}

static size_t offset_bytes(const struct mr_field *field, uint32_t rows)
{
    return field->offsets ? (rows + (size_t)1) * sizeof *field->offsets : 0;
}

static void copy_other(struct mr_field *other, const struct mr_field *field, uint32_t rows, char **at)
{
    *other = *field;
    other->data = memcpy(*at, field->data, field->bytes);
    *at += python_align_up(field->bytes);
    if (field->offsets)
        other->offsets = memcpy(*at, field->offsets, offset_bytes(field, rows));
    *at += python_align_up(offset_bytes(field, rows));
}

static bool keep_others(struct python_loan *loan, const struct mr_batch *batch)
{
    size_t bytes = 0;
    for (int i = 0; i < batch->field_count; i++) {
        const struct mr_field *field = &batch->fields[i];
        if (!stays(field))
            continue;
        bytes += python_align_up(field->bytes) + python_align_up(offset_bytes(field, batch->rows));
        loan->other_count++;
    }
    if (loan->other_count == 0)
        return true;
    loan->others = calloc((size_t)loan->other_count, sizeof *loan->others);
    loan->others_memory = aligned_alloc(PYTHON_ALIGN, bytes + PYTHON_ALIGN);
    if (!loan->others || !loan->others_memory)
        return false;
    char *at = loan->others_memory;
    struct mr_field *other = loan->others;
    for (int i = 0; i < batch->field_count; i++)
        if (stays(&batch->fields[i]))
            copy_other(other++, &batch->fields[i], batch->rows, &at);
    return true;
}

/* ---- loans ---- */

static void loan_free(struct python_loan *loan)
{
    free(loan->others);
    free(loan->others_memory);
    free(loan);
}

static struct python_loan *loan_new(struct python_ring *ring, const struct mr_batch *batch)
{
    struct python_loan *loan = calloc(1, sizeof *loan);
    if (!loan)
        return NULL;
    loan->ring = ring;
    if (keep_others(loan, batch))
        return loan;
    loan_free(loan);
    return NULL;
}

/* Where the ring's batches are finished now: one batch alone measures nothing. */
static enum mr_finish_where place_of(const struct python_ring *ring)
{
    struct mr_placement placement = {.size = sizeof placement};
    if (ring->options.backend == MR_BACKEND_HOST || !ring->ingest ||
        mr_ingest_placement(ring->ingest, &placement) != MR_OK)
        return ring->options.where;
    return placement.where;
}

static enum mr_code create(struct python_ring *ring, const struct mr_batch *batch, bool alone,
                           struct mr_ingest **ingest, struct mr_error *error)
{
    const struct mr_field *image = mr_batch_field(batch, "image");
    if (!image || image->rank < 4)
        return say(error, MR_UNSUPPORTED, "device: batches have no images");
    struct mr_finish finish = ring->finish;
    finish.views = image->rank > 4 ? (uint32_t)image->dims[1] : 1; /* also where nothing is finished */
    struct mr_ingest_options options = {
        .size = sizeof options,
        .finish = &finish,
        .batch = ring->options.rows,
        .height = (uint32_t)image->dims[image->rank - 3],
        .width = (uint32_t)image->dims[image->rank - 2],
        .ring = alone ? 1 : ring->options.entries,
        .where = alone ? place_of(ring) : ring->options.where,
        .batch_release = alone ? NULL : mr_batch_release,
    };
    return mr_ingest_create(ingest, ring->device, &options, error);
}

static enum mr_code submit_to_ring(struct python_loan *loan, struct mr_batch *batch, struct mr_error *error)
{
    struct python_ring *ring = loan->ring;
    enum mr_code code = ring->ingest ? MR_OK : create(ring, batch, false, &ring->ingest, error);
    if (code == MR_OK)
        code = mr_ingest_submit(ring->ingest, batch, &loan->batch, error);
    if (code != MR_OK)
        return code;
    ring->lent++;
    ring->copying = loan;
    return MR_OK;
}

/* In memory of its own. Waits for the copy: only the ring's may be under way when the job is closed. */
static enum mr_code submit_alone(struct python_loan *loan, struct mr_batch *batch, struct mr_error *error)
{
    enum mr_code code = create(loan->ring, batch, true, &loan->own, error);
    if (code != MR_OK)
        return code;
    code = mr_ingest_submit(loan->own, batch, &loan->batch, error);
    if (code == MR_OK)
        code = mr_ingest_copied(loan->batch, 1, error);
    if (code == MR_OK)
        mr_batch_release(batch);
    else
        mr_ingest_destroy(loan->own);
    return code;
}

enum mr_code python_ring_submit(struct python_ring *ring, struct mr_batch *batch, bool grow,
                                struct python_loan **out, struct mr_error *error)
{
    struct python_loan *loan = loan_new(ring, batch);
    if (!loan)
        return say(error, MR_NO_MEMORY, "device: no memory for a batch's fields");
    pthread_mutex_lock(&ring->mutex);
    enum mr_code code = MR_BUSY;
    if (ring->lost)
        code = say(error, MR_IO, "the device failed before");
    else if (ring->lent < ring->options.entries)
        code = submit_to_ring(loan, batch, error);
    else if (grow)
        code = submit_alone(loan, batch, error);
    pthread_mutex_unlock(&ring->mutex);
    if (code != MR_OK) {
        loan_free(loan);
        return code;
    }
    python_ring_get(ring);
    *out = loan;
    return MR_OK;
}

/* The per-thread default stream is another one on whichever thread drops the batch; the legacy one comes after those of all threads. */
static enum mr_code remember(struct python_loan *loan, void *stream, struct mr_error *error)
{
    if (stream == STREAM_PER_THREAD)
        stream = STREAM_LEGACY;
    for (uint32_t i = 0; i < loan->stream_count; i++)
        if (loan->streams[i] == stream)
            return MR_OK;
    if (loan->stream_count == MR_STREAMS)
        return say(error, MR_TOO_LARGE, "device: a batch is used on more than 8 streams");
    loan->streams[loan->stream_count++] = stream;
    return MR_OK;
}

enum mr_code python_loan_use(struct python_loan *loan, void *stream, struct mr_error *error)
{
    struct python_ring *ring = loan->ring;
    if (ring->pid != getpid())
        return say(error, MR_CLOSED, "this batch is the parent's: nothing of a device works after a fork");
    pthread_mutex_lock(&ring->mutex);
    enum mr_code code = loan->own || !ring->lost
                            ? remember(loan, stream, error)
                            : say(error, MR_IO, "the device failed: its batches are lost");
    if (code == MR_OK)
        code = mr_ingest_stream_wait(loan->batch, stream, error);
    pthread_mutex_unlock(&ring->mutex);
    return code;
}

static void give_back(struct python_loan *loan)
{
    enum mr_code code = mr_ingest_release_streams(loan->batch, loan->streams, loan->stream_count, NULL);
    if (loan->own)
        mr_ingest_destroy(loan->own);
    else if (code == MR_OK) /* else nobody knows when it may be written: never again */
        loan->ring->lent--;
}

void python_loan_release(struct python_loan *loan)
{
    struct python_ring *ring = loan ? loan->ring : NULL;
    if (!loan || ring->pid != getpid())
        return;
    pthread_mutex_lock(&ring->mutex);
    if (ring->copying == loan) {
        settle(ring); /* its mr_batch must be gone before the job is */
        ring->copying = NULL;
    }
    if (loan->own || !ring->lost)
        give_back(loan);
    pthread_mutex_unlock(&ring->mutex);
    loan_free(loan);
    python_ring_put(ring);
}
