/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sample section, compiled: an item's bytes in, one row out. Knows nothing of files, sockets, blocks or threads.
 * row = f(bytes, sample key, label): the same bits on every machine (see fingerprint).
 */
#ifndef WORKER_PIPELINE_PIPELINE_H
#define WORKER_PIPELINE_PIPELINE_H

#include "scheduler/pipeline.h"

/* What is known of an item from its bytes. Kept beside the item once decided (one byte). */
enum pipeline_verdict {
    PIPELINE_UNKNOWN = 0, /* not seen yet: the next run decodes it whole and decides */
    PIPELINE_GOOD = 1,    /* decoded whole without a warning: later only the region is decoded */
    PIPELINE_WARNED = 2,  /* decodes, with warnings: always decoded whole */
    /* bad, by cause; numbers travel in rows (transport.md) */
    PIPELINE_BAD_EMPTY = 16,       /* no bytes at all */
    PIPELINE_BAD_FORMAT = 17,      /* no format known by its content */
    PIPELINE_BAD_UNSUPPORTED = 18, /* a known format that is not built: named in the text */
    PIPELINE_BAD_PIXELS = 19,      /* over the pixel cap, by its header */
    PIPELINE_BAD_HEADER = 20,      /* the decoder refused the header */
    PIPELINE_BAD_DATA = 21,        /* the decoder failed in the data */
    PIPELINE_BAD_TRUNCATED = 22,   /* bytes end before the last row */
    PIPELINE_BAD_ROW_BYTES = 23,   /* the row is over its field's largest */
    PIPELINE_BAD_MASK = 24,        /* the mask cannot be decoded, or is not as large as the image */
};
bool pipeline_verdict_is_bad(enum pipeline_verdict verdict);
bool pipeline_verdict_is_final(enum pipeline_verdict verdict);    /* bad whatever a pipeline's caps are */
const char *pipeline_verdict_name(enum pipeline_verdict verdict); /* "bad_truncated" */

struct pipeline; /* immutable: any thread */
/* One a thread: decoder state and working memory, grown to the largest image met, capped. */
struct pipeline_scratch;

enum base_code pipeline_create(struct pipeline **pipeline, const struct scheduler_pipeline *parsed,
                               struct base_error *error);
void pipeline_destroy(struct pipeline *pipeline);
enum base_code pipeline_scratch_create(struct pipeline_scratch **scratch, struct base_error *error);
void pipeline_scratch_destroy(struct pipeline_scratch *scratch);

struct pipeline_input {
    const uint8_t *bytes; /* the whole file */
    size_t size;
    const uint8_t *mask; /* the whole file, where the pipeline has Mask */
    size_t mask_size;
    int64_t label;
    uint64_t sample_key; /* base_philox_sample_key */
    enum pipeline_verdict known;
};

/* Where the fields of one row go, in the order of scheduler_pipeline.fields: a fixed field exactly max_bytes, a ragged one
 * up to max_bytes with its length (in elements) written to ragged_length. */
struct pipeline_row {
    uint8_t *field[SCHEDULER_PIPELINE_FIELDS];
    uint32_t ragged_length[SCHEDULER_PIPELINE_FIELDS];
};

/* Makes the row. BASE_OK and *verdict good or warned; or BASE_BAD_SAMPLE and *verdict the cause, `error` the text (without the
 * item's name, which the caller knows): the row's bytes are then unspecified. Other codes (no memory) decide nothing. */
enum base_code pipeline_run(const struct pipeline *pipeline, struct pipeline_scratch *scratch,
                            const struct pipeline_input *input, struct pipeline_row *row,
                            enum pipeline_verdict *verdict, struct base_error *error);

/* Several pipelines' rows of the same item. */
#define PIPELINE_SIBLINGS 4
struct pipeline_sibling {
    const struct pipeline *pipeline;
    struct pipeline_input input; /* files: the same of all */
    struct pipeline_row *row;
    /* what pipeline_run would say; the text of `error` only with a code */
    enum pipeline_verdict verdict;
    struct base_error error;
    bool shared; /* an earlier sibling's decode was enough */
};
/* At most PIPELINE_SIBLINGS. Each gets to the last bit what pipeline_run would have given it; those whose decode op is the same share
 * one decode, and those that resize alike the resize. Returns how many times the bytes were decoded. */
int pipeline_siblings_run(struct pipeline_scratch *scratch, struct pipeline_sibling *siblings, int count);

/* Which bits this build makes: hash over built-in samples sent through the decoders and ops that the pipeline uses. Under
 * 50 ms. SIMD level and host do not enter. */
enum base_code pipeline_fingerprint(const struct pipeline *pipeline, uint8_t fingerprint[16],
                                    struct base_error *error);

#endif
