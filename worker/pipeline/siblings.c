/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One item's bytes to a row of each of several pipelines; to one, mostly. A row is of one view or several, each with draws of
 * its own: a member is one view of one sibling.
 *
 * 1. known bad, or longer than its field allows: refused, nothing decoded
 * 2. header: format, size, pixel cap
 * 3. geometry: the ops become one plan (crop, resize, window, flip), random ones by draws of the sample's key
 * 4. rows stream from the decoder through a resize into the row: the region that the members need between them, or all
 *    when the item is not known to be good. Members whose plans differ in nothing but the flip have one resize: the
 *    first makes the image, the others copy it. The same region out of more decoded pixels is the same bits, and so
 *    is the mirror image of a resize
 * 5. the mask, by the same plans
 * 6. the verdict: what the decoder said; label, box and flip beside the image
 */
#include "worker/pipeline/compiled.h"
#include "worker/pipeline/masks.h"

#include <inttypes.h>
#include <limits.h>
#include <string.h>

/* Views of siblings that decode alike. */
struct group {
    struct pipeline_scratch *scratch;
    struct member {
        struct pipeline_sibling *sibling;
        uint32_t view;
        struct pipeline_geometry geometry;
        struct transform_resize_needs needs; /* in the image */
        int first;                           /* who resizes for it: itself, or an earlier one */
    } member[PIPELINE_MEMBERS];
    int count;
    bool whole, warned;
    uint32_t width, height; /* of the image */
};

static enum pipeline_verdict verdict_of(enum decode_cause cause)
{
    switch (cause) {
    case DECODE_EMPTY:
        return PIPELINE_BAD_EMPTY;
    case DECODE_FORMAT:
        return PIPELINE_BAD_FORMAT;
    case DECODE_UNSUPPORTED:
        return PIPELINE_BAD_UNSUPPORTED;
    case DECODE_PIXELS:
        return PIPELINE_BAD_PIXELS;
    case DECODE_HEADER:
        return PIPELINE_BAD_HEADER;
    case DECODE_TRUNCATED:
        return PIPELINE_BAD_TRUNCATED;
    case DECODE_FINE:
    case DECODE_DATA:
        break;
    }
    return PIPELINE_BAD_DATA;
}

/* ---- geometry ---- */

/* The ops of this member as one plan. BASE_BAD_SAMPLE only if a resized side passes 31 bits. */
static enum base_code draw_geometry(struct member *member, const struct decode_info *info,
                                    struct base_error *error)
{
    const struct pipeline *pipeline = member->sibling->pipeline;
    struct pipeline_geometry *geometry = &member->geometry;
    struct transform_resize_plan *plan = &geometry->plan;
    uint64_t sample_key = member->sibling->input.sample_key;
    int32_t width = (int32_t)info->width, height = (int32_t)info->height;
    *geometry = (struct pipeline_geometry){.box = {.height = height, .width = width}};
    plan->filter = pipeline->filter;
    plan->order = pipeline->order;
    if (pipeline->random_crop_op >= 0)
        geometry->box = transform_crop_random(&pipeline->range, width, height, sample_key,
                                              (uint32_t)pipeline->random_crop_op, member->view);
    int64_t out_width = plan->input_width = geometry->box.width;
    int64_t out_height = plan->input_height = geometry->box.height;
    if (pipeline->random_crop_op >= 0) {
        out_width = out_height = pipeline->size;
    } else if (pipeline->resize_size > 0) {
        bool wide = out_width > out_height;
        int64_t longer = transform_crop_longer(pipeline->resize_size, wide ? out_width : out_height,
                                               wide ? out_height : out_width);
        out_width = wide ? longer : pipeline->resize_size;
        out_height = wide ? pipeline->resize_size : longer;
    }
    if (out_width > INT32_MAX || out_height > INT32_MAX)
        return base_error_set(error, BASE_BAD_SAMPLE, "%s of %d x %d cannot be resized: too narrow",
                              info->format, width, height);
    plan->output_width = (int32_t)out_width;
    plan->output_height = (int32_t)out_height;
    plan->window = (struct transform_box){.top = transform_crop_center(plan->output_height, pipeline->size),
                                          .left = transform_crop_center(plan->output_width, pipeline->size),
                                          .height = pipeline->size,
                                          .width = pipeline->size};
    if (pipeline->flip_op >= 0) {
        struct base_philox draw = base_philox_draw(sample_key, (uint32_t)pipeline->flip_op, 0, member->view);
        plan->flip = base_philox_double(draw, 0) < pipeline->flip_probability;
    }
    return BASE_OK;
}

/* Members whose plan is made; the others (too narrow to be resized) have their verdict, and leave. */
static void draw_all(struct group *group, const struct decode_info *info)
{
    int kept = 0;
    for (int i = 0; i < group->count; i++) {
        struct member *member = &group->member[kept];
        *member = group->member[i];
        if (draw_geometry(member, info, &member->sibling->error) == BASE_OK)
            kept++;
        else
            member->sibling->verdict = PIPELINE_BAD_PIXELS;
    }
    group->count = kept;
}

static bool same_box(const struct transform_box *a, const struct transform_box *b)
{
    return a->top == b->top && a->left == b->left && a->height == b->height && a->width == b->width;
}

/* But for the flip. */
static bool same_image(const struct pipeline_geometry *a, const struct pipeline_geometry *b)
{
    return same_box(&a->box, &b->box) && same_box(&a->plan.window, &b->plan.window) &&
           a->plan.filter == b->plan.filter && a->plan.order == b->plan.order &&
           a->plan.output_width == b->plan.output_width && a->plan.output_height == b->plan.output_height;
}

static void find_firsts(struct group *group)
{
    for (int i = 0; i < group->count; i++) {
        group->member[i].first = i;
        for (int before = 0; before < i && group->member[i].first == i; before++)
            if (same_image(&group->member[before].geometry, &group->member[i].geometry))
                group->member[i].first = before;
    }
}

/* ---- pixels ---- */

static uint8_t *image_of(const struct member *member)
{
    const struct pipeline_sibling *sibling = member->sibling;
    return sibling->row->field[sibling->pipeline->image_field] + member->view * sibling->pipeline->view_bytes;
}

static enum base_code begin_resizes(struct group *group, struct decode_region *region,
                                    struct base_error *error)
{
    *region = (struct decode_region){.left = UINT32_MAX, .top = UINT32_MAX, .whole = group->whole};
    for (int i = 0; i < group->count; i++) {
        struct member *member = &group->member[i];
        struct transform_resize_needs *needs = &member->needs;
        const struct transform_box *box = &member->geometry.box;
        if (member->first != i)
            continue;
        enum base_code code = transform_resize_begin(group->scratch->resize[i], &member->geometry.plan,
                                                     image_of(member), needs, error);
        if (code != BASE_OK)
            return code;
        *needs = (struct transform_resize_needs){box->top + needs->top, box->top + needs->bottom,
                                                 box->left + needs->left, box->left + needs->right};
        region->left = region->left < (uint32_t)needs->left ? region->left : (uint32_t)needs->left;
        region->right = region->right > (uint32_t)needs->right ? region->right : (uint32_t)needs->right;
        region->top = region->top < (uint32_t)needs->top ? region->top : (uint32_t)needs->top;
        region->bottom = region->bottom > (uint32_t)needs->bottom ? region->bottom : (uint32_t)needs->bottom;
    }
    return BASE_OK;
}

/* What each resize needs of a band: rows [from, to) of the image. */
static void feed(struct group *group, const struct decode_region *region, const struct decode_band *band)
{
    int32_t top = (int32_t)band->top, bottom = top + (int32_t)band->rows;
    for (int i = 0; i < group->count; i++) {
        const struct transform_resize_needs *needs = &group->member[i].needs;
        int32_t from = needs->top > top ? needs->top : top,
                to = needs->bottom < bottom ? needs->bottom : bottom;
        if (group->member[i].first != i || from >= to)
            continue;
        const uint8_t *pixels = band->pixels + (size_t)(from - top) * band->pitch +
                                3 * (size_t)(needs->left - (int32_t)region->left);
        transform_resize_feed(group->scratch->resize[i], pixels, band->pitch, to - from);
    }
}

static enum base_code stream_rows(struct group *group, struct base_error *error)
{
    struct decode_region region;
    enum base_code code = begin_resizes(group, &region, error);
    if (code == BASE_OK)
        code = decode_image_begin(group->scratch->image, &region, error);
    struct decode_band band = {0};
    while (code == BASE_OK) {
        code = decode_image_read(group->scratch->image, &band, error);
        if (code != BASE_OK || band.rows == 0)
            break;
        feed(group, &region, &band);
    }
    if (code == BASE_OK)
        code = decode_image_end(group->scratch->image, &group->warned, error);
    return code;
}

static void mirror(uint8_t *to, const uint8_t *from, int32_t width, int32_t height)
{
    for (int32_t y = 0; y < height; y++, to += 3 * width, from += 3 * width)
        for (int32_t x = 0; x < width; x++)
            memcpy(to + 3 * x, from + 3 * (width - 1 - x), 3);
}

static void copy_images(const struct group *group)
{
    for (int i = 0; i < group->count; i++) {
        const struct member *member = &group->member[i], *first = &group->member[member->first];
        int32_t width = member->geometry.plan.window.width, height = member->geometry.plan.window.height;
        if (first == member)
            continue;
        if (member->geometry.plan.flip != first->geometry.plan.flip)
            mirror(image_of(member), image_of(first), width, height);
        else
            memcpy(image_of(member), image_of(first), 3 * (size_t)width * (size_t)height);
    }
}

/* ---- verdicts ---- */

static enum base_code decode_and_resize(struct group *group, enum pipeline_verdict *bad,
                                        struct base_error *error)
{
    struct decode_info info;
    struct decode_image *image = group->scratch->image;
    const struct pipeline_sibling *any = group->member[0].sibling;
    enum base_code code =
        decode_image_open(image, any->input.bytes, any->input.size, any->pipeline->max_pixels, &info, error);
    if (code == BASE_OK) {
        group->width = info.width;
        group->height = info.height;
        draw_all(group, &info);
        find_firsts(group);
        if (group->count > 0)
            code = stream_rows(group, error);
    }
    *bad = code == BASE_BAD_SAMPLE ? verdict_of(decode_image_cause(image)) : PIPELINE_UNKNOWN;
    decode_image_close(image);
    return code;
}

static void put_draws(const struct member *member)
{
    const struct pipeline *pipeline = member->sibling->pipeline;
    const struct transform_box *box = &member->geometry.box;
    struct pipeline_row *row = member->sibling->row;
    if (pipeline->flip_field >= 0)
        row->field[pipeline->flip_field][member->view] = member->geometry.plan.flip;
    if (pipeline->box_field >= 0) {
        uint8_t *at = row->field[pipeline->box_field] + (size_t)16 * member->view;
        base_set_u32(at, (uint32_t)box->top);
        base_set_u32(at + 4, (uint32_t)box->left);
        base_set_u32(at + 8, (uint32_t)box->height);
        base_set_u32(at + 12, (uint32_t)box->width);
    }
}

static void put_item(const struct pipeline_sibling *sibling)
{
    const struct pipeline *pipeline = sibling->pipeline;
    const struct pipeline_input *input = &sibling->input;
    struct pipeline_row *row = sibling->row;
    if (pipeline->label_field >= 0)
        base_set_u64(row->field[pipeline->label_field], (uint64_t)input->label);
    if (pipeline->encoded_field >= 0) {
        memcpy(row->field[pipeline->encoded_field], input->bytes, input->size);
        row->ragged_length[pipeline->encoded_field] = (uint32_t)input->size;
    }
}

static enum base_code make_masks(struct group *group, struct base_error *error)
{
    const struct pipeline_sibling *any = group->member[0].sibling;
    struct pipeline_masks masks = {.bytes = any->input.mask,
                                   .size = any->input.mask_size,
                                   .max_pixels = any->pipeline->max_pixels,
                                   .width = group->width,
                                   .height = group->height};
    for (int i = 0; i < group->count; i++) {
        const struct member *member = &group->member[i];
        const struct pipeline *pipeline = member->sibling->pipeline;
        if (pipeline->mask_field < 0)
            continue;
        masks.wanted[masks.count].geometry = &member->geometry;
        masks.wanted[masks.count].fill = pipeline->mask_fill;
        masks.wanted[masks.count++].out =
            member->sibling->row->field[pipeline->mask_field] + member->view * (pipeline->view_bytes / 3);
    }
    return masks.count > 0 ? pipeline_masks_run(group->scratch, &masks, error) : BASE_OK;
}

static void judge(struct pipeline_sibling *sibling, const struct base_error *error, enum pipeline_verdict bad)
{
    sibling->verdict = error->code == BASE_BAD_SAMPLE ? bad : PIPELINE_UNKNOWN;
    sibling->error = *error;
}

static void put_member(const struct member *member, enum pipeline_verdict good)
{
    member->sibling->verdict = good;
    put_draws(member);
    if (member->view == 0)
        put_item(member->sibling);
}

static void run_group(struct group *group)
{
    struct base_error error = {0};
    enum pipeline_verdict bad;
    enum base_code code = decode_and_resize(group, &bad, &error);
    /* Bytes that were good and are not: they changed, or the verdict is another file's. Judge them anew. */
    if (!group->whole && (code == BASE_BAD_SAMPLE || (code == BASE_OK && group->warned))) {
        group->whole = true;
        code = decode_and_resize(group, &bad, &error);
    }
    if (code == BASE_OK)
        copy_images(group);
    struct base_error mask_error = {0};
    enum base_code mask_code = code == BASE_OK ? make_masks(group, &mask_error) : BASE_OK;
    for (int i = 0; i < group->count; i++) {
        const struct member *member = &group->member[i];
        struct pipeline_sibling *sibling = member->sibling;
        enum pipeline_verdict good = group->warned ? PIPELINE_WARNED : PIPELINE_GOOD;
        if (code != BASE_OK)
            judge(sibling, &error, bad);
        else if (mask_code != BASE_OK && sibling->pipeline->mask_field >= 0)
            judge(sibling, &mask_error, PIPELINE_BAD_MASK);
        else
            put_member(member, good);
    }
}

/* What needs no look at the pixels. */
static bool refused(struct pipeline_sibling *sibling)
{
    const struct pipeline *pipeline = sibling->pipeline;
    const struct pipeline_input *input = &sibling->input;
    if (pipeline_verdict_is_final(input->known)) {
        sibling->verdict = input->known;
        base_error_set(&sibling->error, BASE_BAD_SAMPLE, "%s, as found before",
                       pipeline_verdict_name(input->known));
        return true;
    }
    if (pipeline->encoded_field >= 0 && input->size > pipeline->encoded_max_bytes) {
        sibling->verdict = PIPELINE_BAD_ROW_BYTES;
        base_error_set(&sibling->error, BASE_BAD_SAMPLE, "%zu bytes are over the field's largest of %" PRIu64,
                       input->size, pipeline->encoded_max_bytes);
        return true;
    }
    return false;
}

static bool decode_alike(const struct pipeline *a, const struct pipeline *b)
{
    const struct scheduler_op *left = &a->parsed.sample[0], *right = &b->parsed.sample[0];
    bool same = left->kind == right->kind && left->version == right->version;
    for (int i = 0; i < SCHEDULER_PIPELINE_ARGS; i++)
        same = same && left->args[i] == right->args[i];
    return same;
}

int pipeline_siblings_run(struct pipeline_scratch *scratch, struct pipeline_sibling *siblings, int count)
{
    bool done[PIPELINE_SIBLINGS];
    int decodes = 0;
    for (int i = 0; i < count; i++) {
        siblings[i].error.code = BASE_OK;
        siblings[i].shared = false;
        done[i] = refused(&siblings[i]);
    }
    for (int i = 0; i < count; i++) {
        struct group group = {.scratch = scratch};
        for (int other = i; other < count; other++) {
            if (done[other] || !decode_alike(siblings[i].pipeline, siblings[other].pipeline))
                continue;
            done[other] = true;
            siblings[other].shared = group.count > 0;
            for (uint32_t view = 0; view < siblings[other].pipeline->parsed.views; view++)
                group.member[group.count++] = (struct member){.sibling = &siblings[other], .view = view};
            group.whole = group.whole || siblings[other].input.known != PIPELINE_GOOD;
        }
        if (group.count == 0)
            continue;
        run_group(&group);
        decodes++;
    }
    return decodes;
}
