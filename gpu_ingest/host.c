/* SPDX-License-Identifier: Apache-2.0 */
/* The twin without a GPU: ordinary memory, and all work done inside submit. */
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
    place->draws = calloc(plan->batch, sizeof *place->draws);
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

/* On a copy of the work, which no store can change, and with dtype and layout as constants: loops without reloads. */
static inline __attribute__((always_inline)) void pixels(const struct ingest_work *given, enum mr_dtype dtype,
                                                         int first)
{
    const struct ingest_work work = *given;
    for (uint32_t row = 0; row < work.rows; row++)
        ingest_any_row(&work, dtype, first, row, 0, 1);
}

static inline __attribute__((always_inline)) void layouts(const struct ingest_work *work, enum mr_dtype dtype)
{
    if (work->channels_first)
        pixels(work, dtype, 1);
    else
        pixels(work, dtype, 0);
}

static void images(const struct ingest_work *work)
{
    switch (work->dtype) {
    case MR_F32:
        layouts(work, MR_F32);
        break;
    case MR_F16:
        layouts(work, MR_F16);
        break;
    case MR_BF16:
        layouts(work, MR_BF16);
        break;
    default:
        layouts(work, MR_U8);
    }
}

static enum mr_code host_submit(void *lane, uint32_t entry, const struct ingest_work *work,
                                struct mr_error *error)
{
    (void)lane;
    (void)entry;
    (void)error;
    images(work);
    for (uint32_t row = 0; work->labels && row < work->rows; row++)
        for (uint32_t at = 0; at < (work->classes > 0 ? work->classes : 1); at++)
            ingest_label(work, row, at);
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

const struct ingest_backend ingest_host_backend = {
    .kind = MR_BACKEND_HOST,
    .open = host_open,
    .close = host_close,
    .slot_allocate = host_slot_allocate,
    .slot_free = host_slot_free,
    .lane_create = host_lane_create,
    .lane_destroy = host_lane_destroy,
    .place = host_place,
    .reusable = host_done,
    .submit = host_submit,
    .copied = host_copied,
    .wait = host_done,
    .stream_wait = host_stream,
    .release = host_stream,
};
