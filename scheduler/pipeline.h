/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pipeline's text: parsed, canonical, checked. Server, worker and client must agree on it, so it lives here and is
 * pure; what the ops do to pixels is in worker/ (sample) and client/ (finish, batch).
 *
 *   text     := preset | section ('|' section)*
 *   preset   := imagenet_train | imagenet_eval
 *   section  := ('sample' | 'finish' | 'batch') ':' op*
 *   op       := Name ['@' version] ['(' [key=value (',' key=value)*] ')']
 * Canonical: sections in the order sample, finish, batch, each present; every op with its version and all its arguments
 * in table order; numbers in the shortest form that reads back the same (scheduler/number.h), whatever the locale.
 * sample := Decode [Resize] (RandomResizedCrop | CenterCrop) [RandomHorizontalFlip] [Views] [Mask] [Encoded], without Resize before
 * RandomResizedCrop, and Views only where something is drawn; finish := [ToDtype] [Normalize] [Layout]; batch := [RandomErasing] [MixUp] [CutMix], and needs a float
 * ToDtype; MixUp and CutMix not beside Mask. `size` and `max_bytes` must be said.
 *   sample: Decode@1(exif=ignore,max_pixels=134217728) RandomResizedCrop@1(...) ... | finish: ... | batch:
 *
 * Options (KEY=VALUE beside a preset or text) set an argument of every op that has it: resize_order=pillow13, size=192,
 * keep_encoded=BYTES (adds Encoded(max_bytes=BYTES): the file's bytes as the ragged field `encoded`), views=K (adds
 * Views(count=K); 1: takes it away, so that one view is one text), mask=FILL (adds Mask(fill=FILL)).
 */
#ifndef SCHEDULER_PIPELINE_H
#define SCHEDULER_PIPELINE_H

#include "base/error.h"

#include <stddef.h>

#define SCHEDULER_PIPELINE_TEXT_BYTES 4096 /* longer outside text is refused */
#define SCHEDULER_PIPELINE_OPS 16          /* a section's ops, at most */
#define SCHEDULER_PIPELINE_ARGS 8
#define SCHEDULER_PIPELINE_FIELDS 8
#define SCHEDULER_FIELD_DIMS 4
#define SCHEDULER_PIPELINE_VIEWS 8 /* of a sample, at most */

enum scheduler_dtype {
    SCHEDULER_U8 = 1,
    SCHEDULER_I32 = 2,
    SCHEDULER_I64 = 3,
    SCHEDULER_F32 = 4,
    SCHEDULER_F16 = 5,
    SCHEDULER_BF16 = 6
};
size_t scheduler_dtype_bytes(enum scheduler_dtype dtype);

enum scheduler_op_kind {
    SCHEDULER_OP_DECODE,              /* exif (ignore), max_pixels */
    SCHEDULER_OP_RANDOM_RESIZED_CROP, /* size, scale_min, scale_max, ratio_min, ratio_max, filter, resize_order */
    SCHEDULER_OP_RESIZE,              /* size (of the shorter side), filter, resize_order */
    SCHEDULER_OP_CENTER_CROP,         /* size */
    SCHEDULER_OP_RANDOM_HORIZONTAL_FLIP, /* p */
    SCHEDULER_OP_VIEWS,                  /* count: each view has its own draws (docs/adr/0010) */
    SCHEDULER_OP_MASK,                   /* fill (outside the image) */
    SCHEDULER_OP_ENCODED,                /* max_bytes */
    SCHEDULER_OP_TO_DTYPE,               /* finish: dtype uint8|float32|float16|bfloat16 */
    SCHEDULER_OP_NORMALIZE,              /* finish: mean0..2, std0..2: float32 (x/255-mean)/std */
    SCHEDULER_OP_LAYOUT,                 /* finish: order NHWC|NCHW */
    SCHEDULER_OP_RANDOM_ERASING,         /* batch: p, scale_min, scale_max, ratio_min, ratio_max */
    SCHEDULER_OP_MIX_UP,                 /* batch: p, alpha (1) */
    SCHEDULER_OP_CUT_MIX,                /* batch: p, alpha (1) */
    SCHEDULER_OP_KINDS,
};

enum scheduler_filter { SCHEDULER_BILINEAR, SCHEDULER_BICUBIC, SCHEDULER_LANCZOS };
enum scheduler_resize_order { SCHEDULER_ORDER_CLASSIC, SCHEDULER_ORDER_PILLOW13 };

/* Arguments by index, as the table of the kind lists them; words are their index in the argument's word list. */
struct scheduler_op {
    enum scheduler_op_kind kind;
    uint16_t version;
    double args[SCHEDULER_PIPELINE_ARGS];
};

/* One field of a row as it is made and sent (transport.md). dims of one row, -1 = ragged (first dim only). */
struct scheduler_field {
    char name[24];
    enum scheduler_dtype dtype;
    int rank; /* number of dims */
    int64_t dims[SCHEDULER_FIELD_DIMS];
    bool ragged;
    uint64_t max_bytes; /* largest row; of a fixed field exactly its size */
};

struct scheduler_pipeline {
    struct scheduler_op sample[SCHEDULER_PIPELINE_OPS], finish[SCHEDULER_PIPELINE_OPS],
        batch[SCHEDULER_PIPELINE_OPS];
    int sample_count, finish_count, batch_count;
    bool shuffle;         /* the preset's sampler; explicit text: true when a sample op is random */
    bool uses_randomness; /* a sample op draws: seed and epoch enter */
    uint32_t views;       /* of a sample; 1 without Views */
    bool mask;            /* the dataset must have masks */
    /* made rows: image u8 [H,W,3], label i64 [], box i32 [4] (top, left, height, width in the decoded image), flip u8 [],
     * then `mask` u8 [H,W] with Mask, `encoded` u8 [-1] when kept; with Views image, box, flip and mask have one more dim in front. Always all of them; OPEN
     * chooses what is sent. */
    struct scheduler_field fields[SCHEDULER_PIPELINE_FIELDS];
    int field_count;
    uint64_t row_bytes;  /* largest row: the sum of max_bytes */
    uint32_t block_rows; /* K: the largest power of two in 1..256 with K * row_bytes <= 2 MiB, else 1 */
};

/* `options`: count texts KEY=VALUE. Errors name the op, the argument and the place. An output size that no op fixes
 * (images of unequal size) is refused: a sample section must end with a known size. */
enum base_code scheduler_pipeline_parse(const char *text, const char *const *options, int count,
                                        struct scheduler_pipeline *pipeline, struct base_error *error);
/* Canonical text of one section ("sample", "finish", "batch") or of all (NULL). */
enum base_code scheduler_pipeline_print(const struct scheduler_pipeline *pipeline, const char *section,
                                        char *text, size_t text_bytes, struct base_error *error);
/* The value of argument `key` of `op`; key must be one of its kind's. */
double scheduler_op_arg(const struct scheduler_op *op, const char *key);
const char *scheduler_op_name(enum scheduler_op_kind kind);

#endif
