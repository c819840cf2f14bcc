/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public calls: a device, its slots, and an ingest with its ring.
 *
 *   entry:  free --submit--> taken (the trainer's) --release--> free
 *   source: the mr_batch of the entry that was submitted last, until its copy is done: one at most
 * What differs between CUDA and the host is in the backend.
 */
#include "gpu_ingest/include/millrace/ingest.h"

#include "base/clock.h"
#include "gpu_ingest/backend.h"
#include "gpu_ingest/finish.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define RING 3
#define RING_MOST 64
#define ROWS_MOST 65535
#define SIDE_MOST 16384
#define VIEWS_MOST 8

struct mr_device {
    const struct ingest_backend *backend;
    void *handle;
    atomic_int users; /* slots and ingests */
    char name[INGEST_NAME_CHARS];
};

struct entry {
    struct mr_device_batch public; /* first */
    struct mr_ingest *ingest;
    uint32_t index;
    bool taken;
    bool here;               /* was finished on the CPU */
    struct mr_batch *source; /* being copied */
    uint8_t *valid;          /* [batch] */
    struct mr_row *rows;     /* [batch] */
};

struct mr_ingest {
    struct mr_device *device;
    const struct ingest_backend *backend;
    void *lane;
    struct mr_finish finish;
    uint32_t batch, views, height, width, ring, next;
    bool draws, mixes;
    void (*batch_release)(struct mr_batch *);
    struct ingest_tables tables;
    struct entry *entries;
    struct entry *copying; /* the one with a source; NULL: none */
    struct ingest_placement placement;
    enum mr_finish_where measuring; /* a batch done there is under way; MR_FINISH_AUTO: none */
    struct ingest_sample sample;    /* of it */
};

/* ---- device ---- */

static enum mr_code open_backend(struct mr_device *device, const struct mr_device_options *options,
                                 struct mr_error *error)
{
    enum mr_code code = MR_UNSUPPORTED;
#ifdef MILLRACE_CUDA
    if (options->backend != MR_BACKEND_HOST) {
        device->backend = &ingest_cuda_backend;
        code = device->backend->open(&device->handle, options->ordinal, device->name, error);
        if (code != MR_NOT_FOUND)
            return code;
    }
#endif
    if (options->backend == MR_BACKEND_CUDA || (options->backend == MR_BACKEND_AUTO && options->ordinal > 0))
        return code == MR_NOT_FOUND
                   ? code
                   : ingest_error_set(error, MR_UNSUPPORTED, "device cuda:%d: CUDA is not in this build",
                                      options->ordinal);
    device->backend = &ingest_host_backend;
    return device->backend->open(&device->handle, options->ordinal, device->name, error);
}

enum mr_code mr_device_open(struct mr_device **out, const struct mr_device_options *options,
                            struct mr_error *error)
{
    if (!options || options->size < sizeof *options)
        return ingest_error_set(error, MR_INVALID, "device: options.size is %zu, not %zu",
                                options ? options->size : 0, sizeof *options);
    if ((unsigned)options->backend > MR_BACKEND_CUDA || options->ordinal < 0)
        return ingest_error_set(error, MR_INVALID, "device: backend %d and ordinal %d are none",
                                (int)options->backend, options->ordinal);
    struct mr_device *device = calloc(1, sizeof *device);
    if (!device)
        return ingest_error_set(error, MR_NO_MEMORY, "device: no memory");
    enum mr_code code = open_backend(device, options, error);
    if (code != MR_OK) {
        free(device);
        return code;
    }
    *out = device;
    return MR_OK;
}

enum mr_code mr_device_close(struct mr_device **device)
{
    if (!device || !*device)
        return MR_OK;
    if (atomic_load(&(*device)->users) > 0)
        return MR_BUSY;
    (*device)->backend->close((*device)->handle);
    free(*device);
    *device = NULL;
    return MR_OK;
}

enum mr_backend mr_device_backend(const struct mr_device *device)
{
    return device->backend->kind;
}

const char *mr_device_name(const struct mr_device *device)
{
    return device->name;
}

void *mr_device_slot_allocate(void *context, size_t bytes)
{
    struct mr_device *device = context;
    void *memory = device->backend->slot_allocate(device->handle, bytes);
    if (memory)
        atomic_fetch_add(&device->users, 1);
    return memory;
}

void mr_device_slot_free(void *context, void *memory, size_t bytes)
{
    struct mr_device *device = context;
    (void)bytes;
    if (!memory)
        return;
    device->backend->slot_free(device->handle, memory);
    atomic_fetch_sub(&device->users, 1);
}

/* ---- creation ---- */

static enum mr_code check_finish(const struct mr_finish *finish, struct mr_error *error)
{
    bool floats = finish->dtype == MR_F32 || finish->dtype == MR_F16 || finish->dtype == MR_BF16;
    bool mixes = finish->mixup_p > 0 || finish->cutmix_p > 0;
    if (!floats && finish->dtype != MR_U8)
        return ingest_error_set(error, MR_INVALID, "ingest: images cannot be made %s",
                                mr_dtype_name(finish->dtype));
    if (!floats && (finish->normalizes || finish->erase_p > 0 || mixes))
        return ingest_error_set(error, MR_INVALID, "ingest: Normalize and batch ops need a float dtype");
    if (finish->views > VIEWS_MOST)
        return ingest_error_set(error, MR_INVALID, "ingest: %u views of a sample, at most %d", finish->views,
                                VIEWS_MOST);
    if (mixes && finish->classes == 0)
        return ingest_error_set(error, MR_INVALID, "ingest: MixUp and CutMix need the number of classes");
    return MR_OK;
}

static enum mr_code check_options(const struct mr_ingest_options *options, struct mr_error *error)
{
    if (!options || options->size < sizeof *options || !options->finish ||
        options->finish->size < sizeof *options->finish)
        return ingest_error_set(error, MR_INVALID, "ingest: options or finish, or their size, are missing");
    if (options->batch < 1 || options->batch > ROWS_MOST)
        return ingest_error_set(error, MR_INVALID, "ingest: batch is %u, must be 1 to %d", options->batch,
                                ROWS_MOST);
    if (options->height < 1 || options->height > SIDE_MOST || options->width < 1 ||
        options->width > SIDE_MOST)
        return ingest_error_set(error, MR_INVALID, "ingest: images of %u x %u, must be 1 to %d",
                                options->height, options->width, SIDE_MOST);
    if (options->ring > RING_MOST)
        return ingest_error_set(error, MR_INVALID, "ingest: ring is %u, at most %d", options->ring,
                                RING_MOST);
    if ((unsigned)options->where > MR_FINISH_GPU)
        return ingest_error_set(error, MR_INVALID, "ingest: where is %d, must be auto, client or gpu",
                                (int)options->where);
    return check_finish(options->finish, error);
}

static void fill_tables(struct ingest_tables *tables, const struct mr_finish *finish)
{
    for (int c = 0; c < INGEST_CHANNELS; c++) {
        for (uint32_t x = 0; x < 256; x++) {
            float value =
                finish->normalizes ? ingest_normalize(x, finish->mean[c], finish->std[c]) : (float)x;
            tables->values[c][x] = value;
            tables->bits[c][x] = ingest_encode(finish->dtype, value);
        }
    }
}

static struct mr_ingest *ingest_new(struct mr_device *device, const struct mr_ingest_options *options)
{
    struct mr_ingest *ingest = calloc(1, sizeof *ingest);
    uint32_t ring = options->ring > 0 ? options->ring : RING;
    if (!ingest)
        return NULL;
    ingest->device = device;
    ingest->backend = device->backend;
    ingest->finish = *options->finish;
    ingest->batch = options->batch;
    ingest->views = ingest->finish.views > 0 ? ingest->finish.views : 1;
    ingest->height = options->height;
    ingest->width = options->width;
    ingest->ring = ring;
    ingest->mixes = ingest->finish.mixup_p > 0 || ingest->finish.cutmix_p > 0;
    ingest->draws = ingest->mixes || ingest->finish.erase_p > 0;
    ingest->batch_release = options->batch_release;
    ingest_placement_init(&ingest->placement, options->where, device->backend->kind == MR_BACKEND_CUDA);
    fill_tables(&ingest->tables, &ingest->finish);
    ingest->entries = calloc(ring, sizeof *ingest->entries);
    bool good = ingest->entries != NULL;
    for (uint32_t i = 0; i < ring && good; i++) {
        struct entry *entry = &ingest->entries[i];
        entry->ingest = ingest;
        entry->index = i;
        entry->valid = calloc(ingest->batch, sizeof *entry->valid);
        entry->rows = calloc(ingest->batch, sizeof *entry->rows);
        good = entry->valid && entry->rows;
    }
    if (good)
        return ingest;
    mr_ingest_destroy(ingest);
    return NULL;
}

enum mr_code mr_ingest_create(struct mr_ingest **out, struct mr_device *device,
                              const struct mr_ingest_options *options, struct mr_error *error)
{
    enum mr_code code = check_options(options, error);
    if (code != MR_OK)
        return code;
    if (options->where == MR_FINISH_GPU && device->backend->kind == MR_BACKEND_HOST)
        return ingest_error_set(error, MR_UNSUPPORTED,
                                "ingest on host: finish on a GPU was asked for, and there is none");
    struct mr_ingest *ingest = ingest_new(device, options);
    if (!ingest)
        return ingest_error_set(error, MR_NO_MEMORY, "ingest on %s: no memory", device->name);
    uint32_t images = ingest->batch * ingest->views;
    size_t values = (size_t)images * ingest->height * ingest->width * INGEST_CHANNELS;
    size_t labels =
        ingest->batch * (ingest->mixes ? sizeof(float) * ingest->finish.classes : sizeof(int64_t));
    struct ingest_plan plan = {.ring = ingest->ring,
                               .batch = ingest->batch,
                               .images = images,
                               .in_bytes = values,
                               .image_bytes = values * mr_dtype_bytes(ingest->finish.dtype),
                               .label_bytes = labels,
                               .tables = &ingest->tables,
                               .stages = options->where != MR_FINISH_GPU};
    code = ingest->backend->lane_create(&ingest->lane, device->handle, &plan, error);
    if (code != MR_OK) {
        ingest->lane = NULL;
        mr_ingest_destroy(ingest);
        return code;
    }
    atomic_fetch_add(&device->users, 1);
    *out = ingest;
    return MR_OK;
}

/* ---- sources ---- */

static void give_back(struct entry *entry)
{
    struct mr_ingest *ingest = entry->ingest;
    struct mr_batch *source = entry->source;
    entry->source = NULL;
    ingest->copying = NULL;
    if (ingest->batch_release)
        ingest->batch_release(source);
}

/* Lets go of the batch being copied, when it has been. */
static enum mr_code settle(struct mr_ingest *ingest, int wait, struct mr_error *error)
{
    struct entry *entry = ingest->copying;
    if (!entry)
        return MR_OK;
    enum mr_code code = ingest->backend->copied(ingest->lane, entry->index, wait, error);
    if (code == MR_OK)
        give_back(entry);
    return code;
}

void mr_ingest_destroy(struct mr_ingest *ingest)
{
    if (!ingest)
        return;
    if (ingest->lane) {
        ingest->backend->lane_destroy(ingest->lane);
        atomic_fetch_sub(&ingest->device->users, 1);
    }
    if (ingest->copying)
        give_back(ingest->copying); /* nothing reads it any more */
    for (uint32_t i = 0; i < ingest->ring && ingest->entries; i++) {
        free(ingest->entries[i].valid);
        free(ingest->entries[i].rows);
    }
    free(ingest->entries);
    free(ingest);
}

/* ---- submit ---- */

/* As the wire carries it: [rows, height, width, 3], with several views [rows, views, height, width, 3]. */
static bool fits(const struct mr_ingest *ingest, const struct mr_batch *batch, const struct mr_field *image)
{
    const int64_t *side = &image->dims[image->rank - 3];
    return image->dtype == MR_U8 && image->rank == (ingest->views > 1 ? 5 : 4) &&
           image->dims[0] == batch->rows && (ingest->views == 1 || image->dims[1] == ingest->views) &&
           side[0] == ingest->height && side[1] == ingest->width && side[2] == INGEST_CHANNELS;
}

static enum mr_code check_batch(const struct mr_ingest *ingest, const struct mr_batch *batch,
                                struct mr_error *error)
{
    const struct mr_field *image = mr_batch_field(batch, "image"), *label = mr_batch_field(batch, "label");
    if (!image || image->rank < 4 || !fits(ingest, batch, image))
        return ingest_error_set(error, MR_INVALID,
                                "ingest: a batch needs the field image, uint8 [%u,%u,%u,3] (with several "
                                "views [%u,%u,...]), as the "
                                "wire carries it (apply_finish 0)",
                                batch->rows, ingest->height, ingest->width, batch->rows, ingest->views);
    if (label && (label->dtype != MR_I64 || label->rank != 1 || label->dims[0] != batch->rows))
        return ingest_error_set(error, MR_INVALID, "ingest: the field label is not int64 [%u]", batch->rows);
    if (batch->rows > ingest->batch)
        return ingest_error_set(error, MR_INVALID, "ingest: a batch of %u rows, made for %u", batch->rows,
                                ingest->batch);
    return MR_OK;
}

static struct entry *free_entry(struct mr_ingest *ingest)
{
    for (uint32_t i = 0; i < ingest->ring; i++) {
        struct entry *entry = &ingest->entries[(ingest->next + i) % ingest->ring];
        if (!entry->taken)
            return entry;
    }
    return NULL;
}

static void describe(struct entry *entry, const struct mr_batch *batch, struct ingest_place place)
{
    const struct mr_ingest *ingest = entry->ingest;
    const struct mr_field *image = mr_batch_field(batch, "image"), *label = mr_batch_field(batch, "label");
    int64_t height = ingest->height, width = ingest->width;
    struct mr_device_batch *public = &entry->public;
    memcpy(entry->valid, batch->valid, batch->rows);
    memcpy(entry->rows, batch->row, batch->rows * sizeof *batch->row);
    *public = (struct mr_device_batch){.image = *image,
                                       .rows = batch->rows,
                                       .valid_rows = batch->valid_rows,
                                       .valid = entry->valid,
                                       .row = entry->rows,
                                       .epoch = batch->epoch,
                                       .stream_epoch = batch->stream_epoch,
                                       .step = batch->step,
                                       .steps = batch->steps,
                                       .cursor = batch->cursor};
    public->image.name = "image";
    public->image.dtype = ingest->finish.dtype;
    public->image.data = place.image;
    public->image.bytes = image->bytes * mr_dtype_bytes(ingest->finish.dtype);
    if (ingest->finish.channels_first)
        memcpy(&public->image.dims[image->rank - 3], (int64_t[]){INGEST_CHANNELS, height, width},
               3 * sizeof(int64_t));
    if (!label)
        return;
    public->label = *label;
    public->label.name = "label";
    public->label.data = place.label;
    if (!ingest->mixes)
        return;
    public->label.dtype = MR_F32;
    public->label.rank = 2;
    public->label.dims[1] = ingest->finish.classes;
    public->label.bytes = (size_t)batch->rows * ingest->finish.classes * sizeof(float);
}

static enum mr_code finish_here(struct entry *entry, struct ingest_work *work, bool measure,
                                struct mr_error *error)
{
    struct mr_ingest *ingest = entry->ingest;
    enum mr_code code = ingest->backend->stage(ingest->lane, entry->index, &work->image, &work->label, error);
    if (code != MR_OK)
        return code;
    ingest_finish_run(work);
    return ingest->backend->upload(ingest->lane, entry->index, work, measure, error);
}

/* Where the placement says, and measures it if that is of use: one batch at a time. */
static enum mr_code finish(struct entry *entry, struct ingest_work *work, struct mr_error *error)
{
    struct mr_ingest *ingest = entry->ingest;
    enum mr_finish_where where = ingest_placement_where(&ingest->placement);
    bool measure = ingest->measuring == MR_FINISH_AUTO && work->rows == ingest->batch &&
                   ingest_placement_wants(&ingest->placement, where);
    int64_t begun_ns = measure ? base_clock_thread_cpu_ns() : 0;
    enum mr_code code = where == MR_FINISH_CLIENT
                            ? finish_here(entry, work, measure, error)
                            : ingest->backend->submit(ingest->lane, entry->index, work, measure, error);
    if (measure && code == MR_OK) {
        ingest->measuring = where;
        ingest->sample = (struct ingest_sample){.cpu_ns = base_clock_thread_cpu_ns() - begun_ns};
    }
    entry->here = where == MR_FINISH_CLIENT;
    return code;
}

/* Takes note of the measured batch, when it is done. */
static void learn(struct mr_ingest *ingest)
{
    if (ingest->measuring == MR_FINISH_AUTO)
        return;
    enum mr_code code = ingest->backend->measured(ingest->lane, &ingest->sample);
    if (code == MR_BUSY)
        return;
    bool decided = ingest_placement_decided(&ingest->placement);
    if (code == MR_OK)
        ingest_placement_add(&ingest->placement, ingest->measuring, &ingest->sample);
    ingest->measuring = MR_FINISH_AUTO;
    if (!decided && ingest_placement_decided(&ingest->placement) &&
        ingest_placement_where(&ingest->placement) == MR_FINISH_GPU)
        ingest->backend->unstage(ingest->lane);
}

static enum mr_code queue(struct entry *entry, const struct mr_batch *batch, struct mr_error *error)
{
    struct mr_ingest *ingest = entry->ingest;
    struct ingest_place place = ingest->backend->place(ingest->lane, entry->index);
    const struct mr_field *label = mr_batch_field(batch, "label");
    struct ingest_work work = {.in = mr_batch_field(batch, "image")->data,
                               .image = place.image,
                               .labels = label ? label->data : NULL,
                               .label = place.label,
                               .tables = &ingest->tables,
                               .draws = ingest->draws ? place.draws : NULL,
                               .rows = batch->rows,
                               .views = ingest->views,
                               .height = ingest->height,
                               .width = ingest->width,
                               .classes = ingest->mixes ? ingest->finish.classes : 0,
                               .dtype = ingest->finish.dtype,
                               .channels_first = ingest->finish.channels_first};
    if (ingest->draws)
        mr_finish_draw(&ingest->finish, batch, (int32_t)ingest->height, (int32_t)ingest->width, &work.draw,
                       place.draws);
    describe(entry, batch, place);
    return finish(entry, &work, error);
}

enum mr_code mr_ingest_submit(struct mr_ingest *ingest, struct mr_batch *batch, struct mr_device_batch **out,
                              struct mr_error *error)
{
    struct entry *entry = free_entry(ingest);
    enum mr_code code = check_batch(ingest, batch, error);
    if (code != MR_OK)
        return code;
    if (!entry)
        return ingest_error_set(error, MR_BUSY, "ingest: all %u device batches are held", ingest->ring);
    code = settle(ingest, 1, error);
    learn(ingest);
    if (code == MR_OK)
        code = queue(entry, batch, error);
    if (code != MR_OK)
        return code;
    entry->taken = true;
    entry->source = batch;
    ingest->copying = entry;
    ingest->next = (entry->index + 1) % ingest->ring;
    if (entry->here)
        give_back(entry); /* nothing reads it any more */
    else
        settle(ingest, 0, NULL);
    learn(ingest); /* on the host it is done already */
    *out = &entry->public;
    return MR_OK;
}

/* ---- the trainer's side ---- */

/* The entry of a batch that was not released yet; else NULL. */
static struct entry *entry_of(struct mr_device_batch *batch, struct mr_error *error)
{
    struct entry *entry = (struct entry *)(void *)batch; /* its first member */
    if (entry->taken)
        return entry;
    ingest_error_set(error, MR_INVALID, "ingest: this device batch was released already");
    return NULL;
}

enum mr_code mr_ingest_copied(struct mr_device_batch *batch, int wait, struct mr_error *error)
{
    struct entry *entry = entry_of(batch, error);
    if (!entry)
        return MR_INVALID;
    return entry->source ? settle(entry->ingest, wait, error) : MR_OK;
}

enum mr_code mr_ingest_stream_wait(struct mr_device_batch *batch, void *stream, struct mr_error *error)
{
    struct entry *entry = entry_of(batch, error);
    if (!entry)
        return MR_INVALID;
    settle(entry->ingest, 0, NULL);
    return entry->ingest->backend->stream_wait(entry->ingest->lane, entry->index, stream, error);
}

enum mr_code mr_ingest_wait(struct mr_device_batch *batch, struct mr_error *error)
{
    struct entry *entry = entry_of(batch, error);
    if (!entry)
        return MR_INVALID;
    enum mr_code code = entry->ingest->backend->wait(entry->ingest->lane, entry->index, error);
    settle(entry->ingest, 0, NULL);
    learn(entry->ingest);
    return code;
}

enum mr_code mr_ingest_release_streams(struct mr_device_batch *batch, void *const *streams, uint32_t count,
                                       struct mr_error *error)
{
    struct entry *entry = entry_of(batch, error);
    if (!entry)
        return MR_INVALID;
    if (count > MR_STREAMS)
        return ingest_error_set(error, MR_INVALID, "ingest: a batch was used on %u streams, at most %d",
                                count, MR_STREAMS);
    settle(entry->ingest, 0, NULL);
    enum mr_code code =
        entry->ingest->backend->release(entry->ingest->lane, entry->index, streams, count, error);
    if (code == MR_OK)
        entry->taken = false;
    return code;
}

enum mr_code mr_ingest_release(struct mr_device_batch *batch, void *stream, struct mr_error *error)
{
    return mr_ingest_release_streams(batch, &stream, 1, error);
}

enum mr_code mr_ingest_placement(const struct mr_ingest *ingest, struct mr_placement *placement)
{
    if (placement->size < sizeof *placement)
        return MR_INVALID;
    ingest_placement_describe(&ingest->placement, placement);
    return MR_OK;
}
