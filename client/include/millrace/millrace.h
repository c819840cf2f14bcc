/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Millrace's client library: open a job on a Millrace server, get ready batches, save a cursor.
 *
 *     struct mr_client *client;
 *     struct mr_job *job;
 *     struct mr_error error;
 *     struct mr_client_options where = {.size = sizeof where, .server = "127.0.0.1:7070"};
 *     if (mr_client_open(&client, &where, &error)) ...
 *     struct mr_job_options what = {.size = sizeof what, .dataset = "photos", .batch = 64};
 *     if (mr_job_open(&job, client, &what, 30000, &error)) ...
 *     struct mr_batch *batch;
 *     while (mr_job_next(job, &batch, 30000, &error) == MR_OK) {
 *         train(mr_batch_field(batch, "image")->data, batch->rows);
 *         mr_batch_release(batch);
 *     }
 *     mr_job_close(&job);
 *     mr_client_close(&client);
 *
 * Every wait has a deadline (timeout_ms). Every function returns an mr_code and fills an optional,
 * caller-owned mr_error; outputs are set on success only. Structs that may grow begin with `size`: set it to
 * sizeof. Zero means default everywhere else.
 *
 * Threads: a client may be used from any thread. A job is used by one thread at a time (close and stats: any
 * thread). The library runs a thread of its own for each client. It never forks; in a forked child its
 * handles answer MR_CLOSED.
 *
 * A batch is a pure function of (stream, epoch, positions): whatever dies, is added or restarted, the same
 * bits come, every position exactly once an epoch.
 */
#ifndef MILLRACE_MILLRACE_H
#define MILLRACE_MILLRACE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MR_API __attribute__((visibility("default")))

enum mr_code {
    MR_OK = 0,
    /* permanent: the same call will fail again */
    MR_INVALID = 1,
    MR_NOT_FOUND = 2,
    MR_EXISTS = 3,
    MR_REFUSED = 4,
    MR_CORRUPT = 5,
    MR_UNSUPPORTED = 6,
    MR_TOO_LARGE = 7,
    MR_CONFLICT = 8,
    MR_INTERNAL = 9,
    /* retryable: the same call may succeed later */
    MR_UNAVAILABLE = 32,
    MR_TIMEOUT = 33,
    MR_BUSY = 34,
    MR_NO_MEMORY = 35,
    MR_IO = 36,
    MR_CLOSED = 37,
    MR_CANCELLED = 38,
    /* bad sample: decided by an item's bytes */
    MR_BAD_SAMPLE = 64,
    /* not an error: mr_job_next has no more batches */
    MR_END = 128
};

#define MR_ERROR_TEXT_BYTES 512
struct mr_error {
    enum mr_code code;
    char text[MR_ERROR_TEXT_BYTES]; /* names the thing, the place and the cause */
};

MR_API const char *mr_version(void);                /* "0.1.0" */
MR_API const char *mr_code_name(enum mr_code code); /* "not_found" */

/* ---- client ---- */

struct mr_client;

struct mr_client_options {
    size_t size;
    const char *server;      /* control port; NULL: $MILLRACE_SERVER, else 127.0.0.1:7070 */
    const char *secret_file; /* the cluster's secret; NULL: $MILLRACE_SECRET_FILE, else none */
};

/* Does not wait for the server: the first call that needs it does. */
MR_API enum mr_code mr_client_open(struct mr_client **client, const struct mr_client_options *options,
                                   struct mr_error *error);
/* Jobs must be closed first (MR_BUSY otherwise, nothing happens). Less than a second in every state. Clears
 * *client. */
MR_API enum mr_code mr_client_close(struct mr_client **client);

/* ---- cursor ---- */

/* Where a job is: the first position of the next step, the same on all ranks. Plain data: keep it with the
 * model. */
struct mr_cursor {
    uint32_t epoch;       /* of the stream */
    uint32_t first_epoch; /* the stream epoch that was this job's epoch 0 */
    uint64_t position;
    uint8_t dataset_version[32], stream[32], fingerprint[16];
};

#define MR_CURSOR_TEXT_BYTES 256
/* One line of ASCII, terminated. */
MR_API void mr_cursor_print(const struct mr_cursor *cursor, char text[MR_CURSOR_TEXT_BYTES]);
MR_API enum mr_code mr_cursor_parse(struct mr_cursor *cursor, const char *text, struct mr_error *error);

/* ---- job ---- */

struct mr_job;

enum mr_tail { MR_TAIL_DROP, MR_TAIL_PAD, MR_TAIL_EXACT };
enum mr_on_bad { MR_ON_BAD_ERROR, MR_ON_BAD_SKIP, MR_ON_BAD_REPLACE };
enum mr_join { MR_JOIN_NOW, MR_JOIN_NEXT, MR_JOIN_PARTIAL };
enum mr_sampler { MR_SAMPLER_PIPELINE, MR_SAMPLER_SHUFFLE, MR_SAMPLER_SEQUENTIAL };

struct mr_job_options {
    size_t size;
    const char
        *job; /* identity of the training run, one for all its ranks; NULL: made up (world must be 1) */
    const char *dataset;        /* name of a registered dataset */
    const char *pipeline;       /* preset or text; NULL: imagenet_train */
    const char *const *options; /* "KEY=VALUE" for the pipeline; NULL-terminated; NULL: none */
    const char *const *fields;  /* NULL-terminated; NULL: image, label */
    const uint64_t *seed;       /* NULL: the dataset version's own, so that jobs share */
    enum mr_sampler sampler;
    enum mr_join join;
    enum mr_tail tail;
    enum mr_on_bad on_bad;
    uint32_t rank, world;           /* data-parallel; world 0: 1 */
    uint32_t batch;                 /* rows per rank and step, 1..65535 */
    uint32_t epochs;                /* MR_END after so many of the job's epochs; 0: never */
    uint32_t look_ahead;            /* steps kept ahead of the one handed over; 0: 2 */
    const struct mr_cursor *resume; /* NULL: a new run */
    const uint32_t
        *start_epoch; /* stream epoch to begin with, instead of join and resume (inspection); NULL: no */
    uint64_t start_position; /* with start_epoch */
    int accept_new_bits;     /* resume although the fingerprint changed */
    int apply_finish;  /* run the pipeline's finish and batch sections; 0: what the wire carries (u8, NHWC) */
    uint32_t stall_ms; /* a request without any progress for so long is asked elsewhere; 0: 1000 */
    uint32_t unavailable_ms; /* an item unavailable everywhere for so long is an error; 0: 10000 */
    /* Memory of batch slots (pinned, for instance), 64-byte aligned; NULL: the library's. Called inside
     * mr_job_open and mr_job_close only. */
    void *(*slot_allocate)(void *context, size_t bytes);
    void (*slot_free)(void *context, void *memory, size_t bytes);
    void *slot_context;
    /* Append-only record of what was handed over, for `millrace audit`: a file (one job's at a time), or a folder, then
     * JOB.RANK.ledger in it. NULL: none. Each batch is written just before mr_job_next returns it: a kill loses at most
     * that one; without fsync, a power cut may lose more. About 8 bytes a row. */
    const char *ledger;
    /* Its share of each worker's preparing beside other jobs that want more than there is: twice the weight, twice the rows.
     * 0.01 to 100, the same on all ranks; 0: 1. */
    double weight;
    /* Rows by sockets only, also from workers of this host that run as this user: else they come through memory. The environment
     * variable MILLRACE_SOCKETS_ONLY=1 does the same for all jobs. */
    int sockets_only;
};

/* Returns when the job may start (a join `next` waits for the epoch), or at the deadline. */
MR_API enum mr_code mr_job_open(struct mr_job **job, struct mr_client *client,
                                const struct mr_job_options *options, int64_t timeout_ms,
                                struct mr_error *error);
/* Batches of this job must not be used any more. Less than a second in every state. Clears *job; NULL is
 * fine. */
MR_API void mr_job_close(struct mr_job **job);

/* ---- batch ---- */

enum mr_dtype { MR_U8 = 1, MR_I32 = 2, MR_I64 = 3, MR_F32 = 4, MR_F16 = 5, MR_BF16 = 6 };
MR_API size_t mr_dtype_bytes(enum mr_dtype dtype);
MR_API const char *mr_dtype_name(enum mr_dtype dtype); /* numpy's: "uint8" */

#define MR_DIMS 6
struct mr_field {
    const char *name;
    enum mr_dtype dtype;
    int rank; /* number of dims, the first is rows; ragged: 1, dims[0] = all values */
    int64_t dims[MR_DIMS];
    const void *data;
    size_t bytes;
    const int64_t *offsets; /* ragged: rows + 1 offsets into data, in elements; else NULL */
};

enum mr_row_status { MR_ROW_OK = 0, MR_ROW_SUBSTITUTED = 1, MR_ROW_BAD = 2 };
struct mr_row {
    uint64_t position, item, used_item, hash;
    uint8_t status, cause; /* cause: mr_cause_name */
};
MR_API const char *mr_cause_name(uint8_t cause); /* "bad_truncated"; "" for 0 */

struct mr_batch {
    uint32_t rows;        /* of the arrays below: the batch size; with tail exact maybe fewer, even 0 */
    uint32_t valid_rows;  /* rows with valid[i] = 1 */
    const uint8_t *valid; /* 0: padding, or skipped as bad (its label is -100 then) */
    const struct mr_row *row;
    uint32_t epoch; /* the job's own, from 0 */
    uint32_t stream_epoch;
    uint64_t step, steps;    /* step 0 .. steps - 1 of this epoch as this run sees it */
    struct mr_cursor cursor; /* to go on after this batch */
    int field_count;
    const struct mr_field *fields;
};

/* The next batch. It stays valid until released; at most look_ahead may be held at once (MR_BUSY otherwise).
 * MR_END after the last epoch. MR_TIMEOUT: call again. MR_UNAVAILABLE names the item and the cause: the job
 * may be asked again. MR_BAD_SAMPLE (policy error) names dataset, item and cause (MR_TIMEOUT for up to 5 s, while the name is asked for):
 * the batch is not handed over and the job can only be closed, or told to seek. MR_IO names the ledger that cannot be written (a full disk): the batch is
 * kept, the next call tries again. */
MR_API enum mr_code mr_job_next(struct mr_job *job, struct mr_batch **batch, int64_t timeout_ms,
                                struct mr_error *error);
/* Goes on elsewhere: the next batch is the first one at `to`, whose epoch may be any, before or behind. What was asked for and
 * not handed over is cancelled at the workers, unless it begins right there; held batches stay. All ranks must go to the
 * same place: only the audit sees when they do not. MR_CONFLICT: a cursor of another dataset version or stream;
 * MR_INVALID: outside the epoch; nothing changes. MR_IO: as in mr_job_next. */
MR_API enum mr_code mr_job_seek(struct mr_job *job, const struct mr_cursor *to, struct mr_error *error);
MR_API void mr_batch_release(struct mr_batch *batch);
/* NULL: not asked for. */
MR_API const struct mr_field *mr_batch_field(const struct mr_batch *batch, const char *name);

/* ---- about a job ---- */

struct mr_job_info {
    size_t size;
    uint64_t items;
    uint64_t steps; /* of a whole epoch */
    uint32_t class_count;
    const char *const *classes; /* live as long as the job */
    const char *pipeline;       /* canonical text */
    const char *note;           /* what it shares, in words */
    struct mr_cursor cursor;    /* after the batch handed over last */
};
MR_API enum mr_code mr_job_info(struct mr_job *job, struct mr_job_info *info, struct mr_error *error);

struct mr_job_stats {
    size_t size;
    uint64_t rows, batches, bytes;
    uint64_t stall_ns; /* mr_job_next waited */
    uint32_t ready;    /* batches ready and not taken */
    uint64_t substituted, skipped;
    uint64_t requests, moved, retries, reconnects, failovers, bad_frames;
    uint64_t hedges, hedges_won; /* asked of a second worker while the first was silent; which was quicker */
    uint64_t socket_bytes,
        memory_bytes; /* received by sockets; taken from the memory of workers on this host */
};
MR_API enum mr_code mr_job_stats(struct mr_job *job, struct mr_job_stats *stats);

/* ---- finish and batch ops, for whoever runs them himself (millrace/ingest.h does, on a GPU) ---- */

/* What the pipeline's sections `finish` and `batch` ask for, in numbers. Values are x, 0 to 255, or (x / 255 - mean) / std in
 * float32, per channel; rows are erased first, then mixed; rounded once, to the dtype. */
struct mr_finish {
    size_t size;
    enum mr_dtype dtype; /* MR_U8, MR_F32, MR_F16, MR_BF16 */
    int channels_first;  /* NCHW; 0: NHWC */
    int normalizes;
    float mean[3], std[3];
    double erase_p, erase_scale[2], erase_ratio[2]; /* RandomErasing; p 0: none */
    double mixup_p, cutmix_p; /* 0: none; both: a coin says which of them, batch by batch */
    uint32_t classes; /* with mixup or cutmix labels are float32 [rows, classes]; all 0 for a label outside */
    uint64_t seed;    /* of the stream */
    uint32_t views;   /* of a sample: with several, images are [rows, views, ...]; 0: 1 */
};
MR_API enum mr_code mr_job_finish(struct mr_job *job, struct mr_finish *finish, struct mr_error *error);

struct mr_box {
    int32_t top, left, height, width; /* height 0: none */
};
struct mr_row_draw { /* of an image: row * views + view */
    int32_t
        partner; /* the same view of the valid row before it (of the first: the last); itself: not mixed */
    struct mr_box erased; /* to 0 */
};
enum mr_mix { MR_MIX_NONE, MR_MIX_UP, MR_MIX_CUT };
struct mr_batch_draw {
    enum mr_mix mix;
    float share, partner_share; /* label = share * own + partner_share * partner's; MR_MIX_UP: values too */
    struct mr_box cut;          /* MR_MIX_CUT: these values are the partner's */
};
/* What chance decides for a batch of images of height x width, a pure function of (seed, stream epoch, first position):
 * fills *draw and images[batch->rows * views]. Rows that are not valid are neither erased nor mixed. */
MR_API void mr_finish_draw(const struct mr_finish *finish, const struct mr_batch *batch, int32_t height,
                           int32_t width, struct mr_batch_draw *draw, struct mr_row_draw *images);

/* Name (path in the dataset), size and label of an item, from the manifest's pages, pulled and verified on
 * demand. */
#define MR_ITEM_NAME_BYTES 4096
struct mr_item {
    int32_t label;
    uint64_t size_bytes;
    char name[MR_ITEM_NAME_BYTES];
};
MR_API enum mr_code mr_job_item(struct mr_job *job, uint64_t item, struct mr_item *out, int64_t timeout_ms,
                                struct mr_error *error);

#ifdef __cplusplus
}
#endif

#endif
