/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ledger's format: what a trainer was handed, one record a batch. The client writes it, `millrace audit` reads it.
 *
 *   record   magic4 "MRLG" version2 kind2 length4 check4 | length bytes | XXH3 of all before, 8
 *            check: the low half of XXH3 of the 12 bytes before it, so that a wrong length is not taken for a torn end
 *   START    job text, rank4 world4 batch4 tail1 flags1 reserved2 generation8 items8 first_epoch4 epoch4 position8
 *            dataset version 32, stream 32, fingerprint 16
 *   BATCH    job epoch4 stream epoch4 step8 steps8 step_begin8 step_valid8 after epoch4 reserved4 position8
 *            padding4 run_count4, runs (begin8 count4) | row hashes 8 each | valid bits, one a row
 *
 * Little endian. A START begins a ledger and each later start that goes on in the same file. Rows of a BATCH are those of its
 * runs in order; padding rows are only counted. A file that ends within a record is a normal end: its writer was killed.
 */
#ifndef PROTO_LEDGER_LEDGER_H
#define PROTO_LEDGER_LEDGER_H

#include "base/buffer.h"
#include "base/error.h"

#include <stdio.h>

#define LEDGER_VERSION 1
#define LEDGER_HEAD_BYTES 16
#define LEDGER_END_BYTES 8
#define LEDGER_LENGTH_MAX (1 << 20)
#define LEDGER_ROWS_MAX 65535
#define LEDGER_RUNS_MAX 16
#define LEDGER_ITEMS_MAX (UINT64_C(1) << 40)
#define LEDGER_WORLD_MAX 65536
#define LEDGER_JOB_CHARS 128

enum ledger_kind { LEDGER_START = 1, LEDGER_BATCH = 2 };

struct ledger_start {
    char job[LEDGER_JOB_CHARS];
    uint32_t rank, world, batch;
    uint8_t tail; /* enum mr_tail */
    bool resumed; /* from a cursor: what is before it was delivered by earlier starts */
    bool
        abandons; /* by mr_job_seek: what lies between the start before it in the file and here was given up */
    bool uses_epoch; /* of the stream: else rows are the same every epoch */
    uint64_t generation, items;
    uint32_t first_epoch, epoch; /* stream epochs: of the job's epoch 0, and where this start begins */
    uint64_t position;
    uint8_t dataset_version[32], stream[32], fingerprint[16];
};

struct ledger_run {
    uint64_t begin;
    uint32_t count;
};

struct ledger_batch {
    uint32_t job_epoch, epoch;
    uint64_t step, steps, step_begin, step_valid;
    uint32_t after_epoch; /* the cursor to go on behind it */
    uint64_t after_position;
    uint32_t padding, rows; /* rows: of the runs together */
    int run_count;
    struct ledger_run runs[LEDGER_RUNS_MAX];
    const uint8_t *hashes; /* [rows] little endian; of the record's bytes */
    const uint8_t *valid;  /* bits */
};
static inline uint64_t ledger_hash(const struct ledger_batch *batch, uint32_t row)
{
    return base_get_u64(batch->hashes + 8 * (size_t)row);
}
static inline bool ledger_valid(const struct ledger_batch *batch, uint32_t row)
{
    return batch->valid[row / 8] >> row % 8 & 1;
}

struct ledger_record {
    enum ledger_kind kind;
    union {
        struct ledger_start start;
        struct ledger_batch batch;
    };
};

/* Append a whole record. Of a batch, `hashes` and `valid` are as in the record. */
void ledger_put_start(struct base_buffer *out, const struct ledger_start *start);
void ledger_put_batch(struct base_buffer *out, const struct ledger_batch *batch);
/* Bytes of a batch's record with `rows` rows in `runs` runs. */
size_t ledger_batch_bytes(uint32_t rows, int runs);

/* Bytes of the whole record that a head begins. CORRUPT: no head of ours; UNSUPPORTED: another version. */
enum base_code ledger_head(const uint8_t head[LEDGER_HEAD_BYTES], size_t *record_bytes,
                           struct base_error *error);
/* Whether `size` bytes, cut anywhere, may be the beginning of a record. */
bool ledger_may_begin(const uint8_t *bytes, size_t size);
/* A whole record, outside bytes. CORRUPT says what is wrong with it. */
enum base_code ledger_parse(const uint8_t *bytes, size_t size, struct ledger_record *record,
                            struct base_error *error);

/* ---- a file of them ---- */

struct ledger_reader {
    FILE *file;
    const char *path; /* the caller's */
    uint64_t offset;  /* of the next record */
    bool torn;        /* at the end: within a record */
    uint8_t *bytes;
    size_t capacity;
};
enum base_code ledger_reader_open(struct ledger_reader *reader, const char *path, struct base_error *error);
void ledger_reader_close(struct ledger_reader *reader); /* of zeros is fine */
/* CLOSED: no more (see `torn`). CORRUPT: a damaged record, named by file and offset; where `offset` has moved on, the next call
 * reads what follows it, else nothing more can be read. */
enum base_code ledger_reader_next(struct ledger_reader *reader, struct ledger_record *record,
                                  struct base_error *error);

#endif
