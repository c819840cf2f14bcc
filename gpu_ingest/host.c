/* SPDX-License-Identifier: Apache-2.0 */
/* The twin without a GPU: ordinary memory, in which the CPU finishes. Nothing is ever under way. */
#include "gpu_ingest/backend.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ALIGN 64
#define LARGE_PAGE_BYTES ((size_t)2 << 20)

/* In large pages where it is large, and touched: a step meets no page for the first time. */
static void *take(size_t bytes)
{
    size_t align = bytes < LARGE_PAGE_BYTES ? ALIGN : LARGE_PAGE_BYTES;
    size_t whole = bytes > 0 ? (bytes + align - 1) / align * align : align;
    void *memory = aligned_alloc(align, whole);
    if (!memory)
        return NULL;
    if (align == LARGE_PAGE_BYTES)
        madvise(memory, whole, MADV_HUGEPAGE); /* a hint */
    return memset(memory, 0, whole);
}

struct lane {
    uint32_t ring;
    struct ingest_place *places;
};

static enum mr_code host_open(void **device, int ordinal, char name[INGEST_NAME_CHARS],
                              struct mr_error *error)
{
    (void)ordinal;
    (void)error;
    *device = NULL;
    snprintf(name, INGEST_NAME_CHARS, "host");
    return MR_OK;
}

static void host_close(void *device)
{
    (void)device;
}

static void *host_slot_allocate(void *device, size_t bytes)
{
    (void)device;
    return take(bytes);
}

static void host_slot_free(void *device, void *memory)
{
    (void)device;
    free(memory);
}

static void host_lane_destroy(void *handle)
{
    struct lane *lane = handle;
    for (uint32_t i = 0; i < lane->ring && lane->places; i++) {
        free(lane->places[i].image);
        free(lane->places[i].label);
        free(lane->places[i].draws);
    }
    free(lane->places);
    free(lane);
}

static bool place_init(struct ingest_place *place, const struct ingest_plan *plan)
{
    place->image = take(plan->image_bytes);
    place->label = take(plan->label_bytes);
    place->draws = calloc(plan->images, sizeof *place->draws);
    return place->image && place->label && place->draws;
}

static enum mr_code host_lane_create(void **out, void *device, const struct ingest_plan *plan,
                                     struct mr_error *error)
{
    struct lane *lane = calloc(1, sizeof *lane);
    (void)device;
    if (!lane)
        return ingest_error_set(error, MR_NO_MEMORY, "ingest on host: no memory for a lane");
    lane->ring = plan->ring;
    lane->places = calloc(plan->ring, sizeof *lane->places);
    bool good = lane->places != NULL;
    for (uint32_t i = 0; i < plan->ring && good; i++)
        good = place_init(&lane->places[i], plan);
    *out = lane;
    if (good)
        return MR_OK;
    host_lane_destroy(lane);
    return ingest_error_set(error, MR_NO_MEMORY, "ingest on host: no memory for %u batches of %zu bytes",
                            plan->ring, plan->image_bytes + plan->label_bytes);
}

static struct ingest_place host_place(void *lane, uint32_t entry)
{
    return ((struct lane *)lane)->places[entry];
}

/* ---- work ---- */

/* Finished in place. */
static enum mr_code host_stage(void *lane, uint32_t entry, void **image, void **label, struct mr_error *error)
{
    struct ingest_place place = host_place(lane, entry);
    (void)error;
    *image = place.image;
    *label = place.label;
    return MR_OK;
}

static enum mr_code host_upload(void *lane, uint32_t entry, const struct ingest_work *work, bool measure,
                                struct mr_error *error)
{
    (void)lane;
    (void)entry;
    (void)work;
    (void)measure;
    (void)error;
    return MR_OK;
}

static enum mr_code host_measured(void *lane, struct ingest_sample *sample)
{
    (void)lane;
    (void)sample;
    return MR_OK;
}

static enum mr_code host_done(void *lane, uint32_t entry, struct mr_error *error)
{
    (void)lane;
    (void)entry;
    (void)error;
    return MR_OK;
}

static enum mr_code host_copied(void *lane, uint32_t entry, int wait, struct mr_error *error)
{
    (void)wait;
    return host_done(lane, entry, error);
}

static enum mr_code host_stream(void *lane, uint32_t entry, void *stream, struct mr_error *error)
{
    (void)stream;
    return host_done(lane, entry, error);
}

static enum mr_code host_release(void *lane, uint32_t entry, void *const *streams, uint32_t count,
                                 struct mr_error *error)
{
    (void)streams;
    (void)count;
    return host_done(lane, entry, error);
}

const struct ingest_backend ingest_host_backend = {
    .kind = MR_BACKEND_HOST,
    .open = host_open,
    .close = host_close,
    .slot_allocate = host_slot_allocate,
    .slot_free = host_slot_free,
    .lane_create = host_lane_create,
    .lane_destroy = host_lane_destroy,
    .place = host_place,
    .stage = host_stage,
    .upload = host_upload,
    .measured = host_measured,
    .copied = host_copied,
    .wait = host_done,
    .stream_wait = host_stream,
    .release = host_release,
};
