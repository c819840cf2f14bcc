/* SPDX-License-Identifier: Apache-2.0 */
#include "client/src/draw.h"

#include "base/math.h"
#include "base/philox.h"

#include <math.h>

enum { TRIES = 10, ERASE = 0, MIX = 1 /* ERASE of view v > 0: 1 + v */ };

static const enum mr_dtype dtypes[] = {MR_U8, MR_F32, MR_F16, MR_BF16}; /* the words of ToDtype */

static void take_normalize(struct mr_finish *finish, const struct scheduler_op *op)
{
    static const char *const means[] = {"mean0", "mean1", "mean2"};
    static const char *const stds[] = {"std0", "std1", "std2"};
    finish->normalizes = 1;
    for (int channel = 0; channel < 3; channel++) {
        finish->mean[channel] = (float)scheduler_op_arg(op, means[channel]);
        finish->std[channel] = (float)scheduler_op_arg(op, stds[channel]);
    }
}

static void take_erasing(struct mr_finish *finish, const struct scheduler_op *op)
{
    finish->erase_p = scheduler_op_arg(op, "p");
    finish->erase_scale[0] = scheduler_op_arg(op, "scale_min");
    finish->erase_scale[1] = scheduler_op_arg(op, "scale_max");
    finish->erase_ratio[0] = scheduler_op_arg(op, "ratio_min");
    finish->erase_ratio[1] = scheduler_op_arg(op, "ratio_max");
}

static bool take_op(struct mr_finish *finish, const struct scheduler_op *op)
{
    switch (op->kind) {
    case SCHEDULER_OP_TO_DTYPE:
        finish->dtype = dtypes[(int)scheduler_op_arg(op, "dtype")];
        return true;
    case SCHEDULER_OP_NORMALIZE:
        take_normalize(finish, op);
        return true;
    case SCHEDULER_OP_LAYOUT:
        finish->channels_first = scheduler_op_arg(op, "order") == 1;
        return true;
    case SCHEDULER_OP_RANDOM_ERASING:
        take_erasing(finish, op);
        return true;
    case SCHEDULER_OP_MIX_UP:
        finish->mixup_p = scheduler_op_arg(op, "p");
        return true;
    case SCHEDULER_OP_CUT_MIX:
        finish->cutmix_p = scheduler_op_arg(op, "p");
        return true;
    default:
        return false;
    }
}

enum base_code client_draw_finish(struct mr_finish *finish, const struct scheduler_pipeline *pipeline,
                                  uint32_t classes, uint64_t seed, struct base_error *error)
{
    bool known = true;
    *finish = (struct mr_finish){
        .size = sizeof *finish, .dtype = MR_U8, .classes = classes, .seed = seed, .views = pipeline->views};
    for (int i = 0; i < pipeline->finish_count; i++)
        known &= take_op(finish, &pipeline->finish[i]);
    for (int i = 0; i < pipeline->batch_count; i++)
        known &= take_op(finish, &pipeline->batch[i]);
    if (!known)
        return base_error_set(error, BASE_UNSUPPORTED, "finish: an op that this client does not know");
    if (classes == 0 && (finish->mixup_p > 0 || finish->cutmix_p > 0))
        return base_error_set(error, BASE_INVALID,
                              "batch: MixUp and CutMix need labels, and the dataset has no classes");
    return BASE_OK;
}

/* ---- RandomErasing ---- */

static double between(const double range[2], double u)
{
    return range[0] + (range[1] - range[0]) * u;
}

/* One try: a box that fits. */
static bool try_size(const struct mr_finish *finish, const double log_ratio[2], struct base_philox u,
                     struct mr_box *box)
{
    double area = (double)box->height * box->width * between(finish->erase_scale, base_philox_double(u, 0));
    double ratio = base_math_exp(between(log_ratio, base_philox_double(u, 1)));
    double h = sqrt(area * ratio), w = sqrt(area / ratio); /* exact to the last bit by IEEE 754 */
    if (!(h < box->height && w < box->width))              /* nor would they fit when rounded */
        return false;
    struct mr_box tried = {.height = (int32_t)base_math_round(h), .width = (int32_t)base_math_round(w)};
    if (tried.height >= box->height || tried.width >= box->width)
        return false;
    *box = tried;
    return true;
}

/* An image as large as `whole`. */
static struct mr_box erase(const struct mr_finish *finish, uint64_t key, uint32_t row, uint32_t view,
                           struct mr_box whole)
{
    uint32_t op = view == 0 ? ERASE : MIX + view;
    double log_ratio[2] = {base_math_log(finish->erase_ratio[0]), base_math_log(finish->erase_ratio[1])};
    if (base_philox_double(base_philox_draw(key, op, 0, row), 0) >= finish->erase_p)
        return (struct mr_box){0};
    for (uint32_t t = 1; t <= TRIES; t++) {
        struct mr_box box = whole;
        if (!try_size(finish, log_ratio, base_philox_draw(key, op, t, row), &box))
            continue;
        uint64_t index = 2 * (uint64_t)row;
        box.top = (int32_t)base_philox_below(key, op, index, (uint64_t)(whole.height - box.height) + 1);
        box.left = (int32_t)base_philox_below(key, op, index + 1, (uint64_t)(whole.width - box.width) + 1);
        return box;
    }
    return (struct mr_box){0};
}

/* ---- MixUp and CutMix ---- */

static enum mr_mix choose(const struct mr_finish *finish, uint64_t key)
{
    struct base_philox u = base_philox_draw(key, MIX, 0, 0);
    bool both = finish->mixup_p > 0 && finish->cutmix_p > 0;
    bool up = both ? base_philox_double(u, 0) < 0.5 : finish->mixup_p > 0;
    if (base_philox_double(u, 1) >= (up ? finish->mixup_p : finish->cutmix_p))
        return MR_MIX_NONE;
    return up ? MR_MIX_UP : MR_MIX_CUT;
}

/* [centre - half, centre + half) inside [0, length) */
static int32_t clip(int64_t at, int32_t length)
{
    return (int32_t)(at < 0 ? 0 : at > length ? length : at);
}

static struct mr_box cut(uint64_t key, double lambda, int32_t height, int32_t width)
{
    int64_t x = (int64_t)base_philox_below(key, MIX, 0, (uint64_t)width);
    int64_t y = (int64_t)base_philox_below(key, MIX, 1, (uint64_t)height);
    double r = 0.5 * sqrt(1.0 - lambda);
    int32_t half_width = (int32_t)(r * width), half_height = (int32_t)(r * height);
    int32_t left = clip(x - half_width, width), top = clip(y - half_height, height);
    return (struct mr_box){.top = top,
                           .left = left,
                           .height = clip(y + half_height, height) - top,
                           .width = clip(x + half_width, width) - left};
}

static void draw_mix(const struct mr_finish *finish, uint64_t key, int32_t height, int32_t width,
                     struct mr_batch_draw *draw)
{
    double lambda = base_philox_double(base_philox_draw(key, MIX, 1, 0), 0);
    *draw = (struct mr_batch_draw){.mix = choose(finish, key), .share = 1};
    if (draw->mix == MR_MIX_NONE)
        return;
    if (draw->mix == MR_MIX_CUT) {
        draw->cut = cut(key, lambda, height, width);
        lambda = 1.0 - (double)draw->cut.width * draw->cut.height / ((double)width * height);
    }
    draw->share = (float)lambda;
    draw->partner_share = (float)(1.0 - lambda);
}

static void pair(const struct mr_batch *batch, uint32_t views, struct mr_row_draw *images)
{
    int32_t first = -1, before = -1, step = (int32_t)views;
    for (int32_t row = 0; row < (int32_t)batch->rows; row++) {
        images[row * step].partner = row * step;
        if (!batch->valid[row])
            continue;
        images[row * step].partner = (before < 0 ? row : before) * step;
        first = first < 0 ? row : first;
        before = row;
    }
    if (first >= 0)
        images[first * step].partner = before * step;
    for (int32_t image = 0; image < (int32_t)batch->rows * step; image++)
        images[image].partner = images[image - image % step].partner + image % step;
}

void mr_finish_draw(const struct mr_finish *finish, const struct mr_batch *batch, int32_t height,
                    int32_t width, struct mr_batch_draw *draw, struct mr_row_draw *images)
{
    uint32_t views = finish->views ? finish->views : 1;
    struct mr_box whole = {.height = height, .width = width};
    uint64_t first = batch->rows > 0 ? batch->row[0].position : 0;
    uint64_t key = base_philox_sample_key(finish->seed, first, batch->stream_epoch, UINT64_MAX);
    draw_mix(finish, key, height, width, draw);
    pair(batch, views, images);
    for (uint32_t i = 0; i < batch->rows * views; i++)
        images[i].erased = batch->valid[i / views] && finish->erase_p > 0
                               ? erase(finish, key, i / views, i % views, whole)
                               : (struct mr_box){0};
}
