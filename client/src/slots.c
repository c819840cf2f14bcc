/* SPDX-License-Identifier: Apache-2.0 */
#include "client/src/slots.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ALIGN 64
#define LARGE_PAGE_BYTES ((size_t)2 << 20)

/* ---- fields ---- */

static int find_field(const struct scheduler_field *fields, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(fields[i].name, name) == 0)
            return i;
    return -1;
}

static enum base_code unknown_field(const struct scheduler_pipeline *pipeline, const char *name,
                                    struct base_error *error)
{
    char known[CLIENT_FIELDS * 26] = "";
    for (int i = 0; i < pipeline->field_count; i++) {
        strcat(known, i ? ", " : "");
        strcat(known, pipeline->fields[i].name);
    }
    return base_error_set(error, BASE_INVALID, "field \"%.40s\": this pipeline makes %s", name, known);
}

/* INVALID names what there is. `names` NULL: image, label. */
static enum base_code take_fields(struct client_fields *fields, const struct scheduler_pipeline *pipeline,
                                  const char *const *names, struct base_error *error)
{
    static const char *const standard[] = {"image", "label", NULL};
    int asked = 0;
    names = names ? names : standard;
    *fields = (struct client_fields){.pipeline = pipeline};
    for (; names[asked]; asked++) {
        int made = find_field(pipeline->fields, pipeline->field_count, names[asked]);
        if (made < 0)
            return unknown_field(pipeline, names[asked], error);
        if (fields->wanted >> made & 1)
            return base_error_set(error, BASE_INVALID, "field \"%s\" is asked for twice", names[asked]);
        fields->wanted |= (uint8_t)(1u << made);
    }
    if (asked == 0)
        return base_error_set(error, BASE_INVALID, "no field is asked for");
    for (int made = 0; made < pipeline->field_count; made++)
        if (fields->wanted >> made & 1)
            fields->sent[fields->count++] = pipeline->fields[made];
    for (int i = 0; i < asked; i++)
        fields->shown[i] = find_field(fields->sent, fields->count, names[i]);
    fields->all = fields->count == pipeline->field_count;
    return BASE_OK;
}

/* ---- memory ---- */

/* In large pages: rows are written by the kernel, read by the hash and by the trainer, each time through the page tables. */
static void *library_allocate(void *context, size_t bytes)
{
    (void)context;
    if (bytes < LARGE_PAGE_BYTES)
        return aligned_alloc(ALIGN, bytes);
    size_t whole = (bytes + LARGE_PAGE_BYTES - 1) / LARGE_PAGE_BYTES * LARGE_PAGE_BYTES;
    void *memory = aligned_alloc(LARGE_PAGE_BYTES, whole);
    if (memory)
        madvise(memory, whole, MADV_HUGEPAGE); /* a hint */
    return memory;
}

static void library_release(void *context, void *memory, size_t bytes)
{
    (void)context;
    (void)bytes;
    free(memory);
}

static size_t take(size_t *at, size_t bytes)
{
    size_t place = *at;
    *at += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return place;
}

static size_t image_values(const struct client_slots *slots)
{
    return slots->fields.sent[slots->image].max_bytes; /* u8: one a byte */
}

/* Where things lie in the chunk; `memory` NULL: only how large it is. */
static size_t lay_out(const struct client_slots *slots, struct client_slot_memory *memory)
{
    size_t at = 0;
    for (int s = 0; s < slots->fields.count; s++) {
        size_t place = take(&at, slots->batch * slots->fields.sent[s].max_bytes);
        if (memory)
            memory->values[s] = memory->chunk + place;
    }
    if (slots->finishes) {
        size_t place = take(&at, slots->batch * image_values(slots) * mr_dtype_bytes(slots->finish.dtype));
        if (memory)
            memory->finished = memory->chunk + place;
    }
    if (slots->mixes) {
        size_t place = take(&at, slots->batch * (size_t)slots->asked.classes * sizeof(float));
        if (memory)
            memory->mixed = memory->chunk + place;
    }
    return at;
}

static bool allocate_slot(struct client_slots *slots, struct client_slot_memory *memory)
{
    memory->chunk = slots->allocate(slots->context, slots->chunk_bytes);
    memory->batch.rows = calloc(slots->batch, sizeof *memory->batch.rows);
    if (!memory->chunk || !memory->batch.rows || (uintptr_t)memory->chunk % ALIGN != 0)
        return false;
    memset(memory->chunk, 0, slots->chunk_bytes); /* takes the pages now, not in the first step */
    lay_out(slots, memory);
    if (slots->draws &&
        !(memory->draws = calloc((size_t)slots->batch * slots->asked.views, sizeof *memory->draws)))
        return false;
    for (int s = 0; s < slots->fields.count; s++) {
        if (!slots->fields.sent[s].ragged)
            continue;
        memory->lengths[s] = calloc(slots->batch, sizeof *memory->lengths[s]);
        memory->places[s] = calloc(slots->batch, sizeof *memory->places[s]);
        memory->offsets[s] = calloc((size_t)slots->batch + 1, sizeof *memory->offsets[s]);
        if (!memory->lengths[s] || !memory->places[s] || !memory->offsets[s])
            return false;
    }
    return true;
}

static void free_slot(struct client_slots *slots, struct client_slot_memory *memory)
{
    if (memory->chunk)
        slots->release(slots->context, memory->chunk, slots->chunk_bytes);
    for (int s = 0; s < slots->fields.count; s++) {
        free(memory->lengths[s]);
        free(memory->places[s]);
        free(memory->offsets[s]);
    }
    free(memory->draws);
    free(memory->batch.rows);
}

static void take_finish(struct client_slots *slots, const struct client_slots_options *options)
{
    slots->image = find_field(slots->fields.sent, slots->fields.count, "image");
    slots->label = find_field(slots->fields.sent, slots->fields.count, "label");
    slots->asked = *options->finish;
    slots->finishes = options->job->apply_finish && slots->image >= 0 && options->pipeline->finish_count > 0;
    slots->draws = slots->finishes && options->pipeline->batch_count > 0;
    slots->mixes =
        slots->draws && slots->label >= 0 && (slots->asked.mixup_p > 0 || slots->asked.cutmix_p > 0);
    client_finish_init(&slots->finish, &slots->asked);
}

enum base_code client_slots_init(struct client_slots *slots, const struct client_slots_options *options,
                                 struct base_error *error)
{
    const struct mr_job_options *job = options->job;
    *slots = (struct client_slots){.batch = job->batch, .on_bad = (enum client_on_bad)job->on_bad};
    enum base_code code = take_fields(&slots->fields, options->pipeline, job->fields, error);
    if (code != BASE_OK)
        return code;
    take_finish(slots, options);
    slots->allocate = job->slot_allocate ? job->slot_allocate : library_allocate;
    slots->release = job->slot_allocate ? job->slot_free : library_release;
    slots->context = job->slot_context;
    slots->chunk_bytes = lay_out(slots, NULL);
    slots->count = options->count;
    slots->slots = calloc(slots->count, sizeof *slots->slots);
    bool whole = slots->slots != NULL;
    for (uint32_t i = 0; i < slots->count && whole; i++)
        whole = allocate_slot(slots, &slots->slots[i]);
    if (whole)
        return BASE_OK;
    client_slots_fini(slots);
    return base_error_set(error, BASE_NO_MEMORY,
                          "no memory (aligned to %d bytes) for %u batch slots of %zu bytes", ALIGN,
                          options->count, lay_out(slots, NULL));
}

void client_slots_fini(struct client_slots *slots)
{
    for (uint32_t i = 0; i < slots->count && slots->slots; i++)
        free_slot(slots, &slots->slots[i]);
    free(slots->slots);
    slots->slots = NULL;
    slots->count = 0;
}

/* ---- hand-over ---- */

static void pad_fixed(uint8_t *values, size_t row_bytes, const struct client_step *step)
{
    for (uint32_t row = step->distinct; row < step->batch.rows; row++)
        memcpy(values + row * row_bytes, values + (row % step->distinct) * row_bytes, row_bytes);
}

/* Rows move down to where the row before ends: never past a row that has not moved yet. Padding repeats rows that have moved. */
static void pack_ragged(struct client_slot_memory *memory, int s, size_t element,
                        const struct client_step *step)
{
    uint64_t end = 0;
    uint8_t *values = memory->values[s];
    for (uint32_t row = 0; row < step->batch.rows; row++) {
        uint32_t from = step->distinct > 0 ? row % step->distinct : row;
        uint64_t bytes = memory->lengths[s][from] * element;
        memmove(values + end, values + memory->places[s][from], bytes);
        memory->places[s][row] = end;
        memory->offsets[s][row] = (int64_t)(end / element);
        end += bytes;
    }
    memory->offsets[s][step->batch.rows] = (int64_t)(end / element);
}

static void mask_labels(const struct client_slots *slots, struct client_slot_memory *memory,
                        const struct client_step *step)
{
    int label = slots->label;
    if (label < 0 || slots->fields.sent[label].dtype != SCHEDULER_I64)
        return;
    int64_t *labels = (int64_t *)(void *)memory->values[label];
    for (uint32_t row = 0; row < step->batch.rows; row++) {
        uint8_t status = step->rows[row].status;
        if (status == WIRE_ROW_BAD || (status != WIRE_ROW_OK && slots->on_bad == CLIENT_ON_BAD_SKIP))
            labels[row] = WIRE_LABEL_BAD;
    }
}

static void describe_finished(const struct client_slots *slots, const struct client_slot_memory *memory,
                              struct mr_field *field)
{
    int64_t *dims = field->dims + field->rank - 3, height = dims[0], width = dims[1], channels = dims[2];
    field->dtype = slots->finish.dtype;
    field->data = memory->finished;
    field->bytes *= mr_dtype_bytes(slots->finish.dtype);
    if (!slots->finish.channels_first)
        return;
    dims[0] = channels;
    dims[1] = height;
    dims[2] = width;
}

static void describe_mixed(const struct client_slots *slots, const struct client_slot_memory *memory,
                           struct mr_field *field)
{
    field->dtype = MR_F32;
    field->rank = 2;
    field->dims[1] = slots->asked.classes;
    field->data = memory->mixed;
    field->bytes = (size_t)field->dims[0] * slots->asked.classes * sizeof(float);
}

static struct mr_field describe(const struct client_slots *slots, const struct client_slot_memory *memory,
                                int s, uint32_t rows)
{
    const struct scheduler_field *sent = &slots->fields.sent[s];
    struct mr_field field = {
        .name = sent->name, .dtype = (enum mr_dtype)sent->dtype, .data = memory->values[s]};
    if (sent->ragged) {
        field.rank = 1;
        field.dims[0] = memory->offsets[s][rows];
        field.offsets = memory->offsets[s];
        field.bytes = (size_t)field.dims[0] * scheduler_dtype_bytes(sent->dtype);
        return field;
    }
    field.rank = sent->rank + 1;
    field.dims[0] = rows;
    for (int d = 0; d < sent->rank; d++)
        field.dims[d + 1] = sent->dims[d];
    field.bytes = rows * sent->max_bytes;
    if (s == slots->image && slots->finishes)
        describe_finished(slots, memory, &field);
    if (s == slots->label && slots->mixes)
        describe_mixed(slots, memory, &field);
    return field;
}

static void fill_rows(struct client_batch *batch, const struct client_step *step)
{
    for (uint32_t row = 0; row < step->batch.rows; row++)
        batch->rows[row] = (struct mr_row){
            .position = scheduler_steps_position(&step->batch, row),
            .item = step->rows[row].item,
            .used_item = step->rows[row].used_item,
            .hash = step->rows[row].hash,
            .status = step->rows[row].status,
            .cause = step->rows[row].cause,
        };
}

static void run_finish(struct client_slots *slots, struct client_slot_memory *memory)
{
    const struct mr_batch *batch = &memory->batch.public;
    const struct scheduler_field *image = &slots->fields.sent[slots->image];
    const uint8_t *in = memory->values[slots->image];
    struct client_mix mix = {.rows = memory->draws,
                             .count = batch->rows,
                             .views = slots->asked.views,
                             .height = (int32_t)image->dims[image->rank - 3],
                             .width = (int32_t)image->dims[image->rank - 2]};
    client_finish_run(&slots->finish, in, memory->finished, (size_t)mix.count * mix.views,
                      (size_t)mix.height * (size_t)mix.width);
    if (!slots->draws)
        return;
    mr_finish_draw(&slots->asked, batch, mix.height, mix.width, &mix.draw, memory->draws);
    client_mix_images(&mix, &slots->finish, in, memory->finished);
    if (slots->mixes)
        client_mix_labels(&mix, (const int64_t *)(void *)memory->values[slots->label], slots->asked.classes,
                          (float *)(void *)memory->mixed);
}

struct client_batch *client_slots_batch(struct client_slots *slots, const struct client_step *step)
{
    struct client_slot_memory *memory = &slots->slots[step->slot];
    struct client_batch *batch = &memory->batch;
    for (int s = 0; s < slots->fields.count; s++) {
        const struct scheduler_field *sent = &slots->fields.sent[s];
        if (sent->ragged)
            pack_ragged(memory, s, scheduler_dtype_bytes(sent->dtype), step);
        else
            pad_fixed(memory->values[s], sent->max_bytes, step);
    }
    mask_labels(slots, memory, step);
    fill_rows(batch, step);
    for (int i = 0; i < slots->fields.count; i++)
        batch->fields[i] = describe(slots, memory, slots->fields.shown[i], step->batch.rows);
    batch->slot = step->slot;
    batch->public = (struct mr_batch){
        .rows = step->batch.rows,
        .valid_rows = step->valid_rows,
        .valid = step->valid,
        .row = batch->rows,
        .stream_epoch = step->epoch,
        .step = step->step,
        .steps = step->steps,
        .field_count = slots->fields.count,
        .fields = batch->fields,
    };
    if (slots->finishes)
        run_finish(slots, memory);
    return batch;
}

const struct mr_field *mr_batch_field(const struct mr_batch *batch, const char *name)
{
    for (int i = 0; i < batch->field_count; i++)
        if (strcmp(batch->fields[i].name, name) == 0)
            return &batch->fields[i];
    return NULL;
}
