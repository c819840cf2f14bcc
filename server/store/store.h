/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What survives the server: datasets, jobs, streams' plans, the quarantine list. SQLite in
 * DIR/server.db, schema versioned; a newer schema than this build knows is refused. One thread. Texts and
 * blobs are copied both ways: callbacks' records live during the call only.
 */
#ifndef SERVER_STORE_STORE_H
#define SERVER_STORE_STORE_H

#include "base/error.h"
#include "base/hash.h"

#include <stddef.h>

struct store;

/* Makes DIR and the file when missing; takes the write lock for good, so that two servers cannot share one
 * state. */
enum base_code store_open(struct store **store, const char *dir, struct base_error *error);
void store_close(struct store **store);

/* Changes between them are one write, all or nothing; without them each change is one of its own. Every write is on the
 * disk when it returns. */
enum base_code store_begin(struct store *store, struct base_error *error);
enum base_code store_commit(struct store *store, struct base_error *error);
void store_rollback(struct store *store);

/* Where this start's revisions and orders begin: over all that earlier starts on this state can have used, whatever
 * the clock says; with a new state, over what another one's servers used, as far as the clock says. */
#define STORE_NUMBERS_A_START (UINT64_C(1) << 40)
enum base_code store_first_number(struct store *store, uint64_t now_us, uint64_t *first,
                                  struct base_error *error);

/* ---- datasets ---- */

struct store_dataset {
    const char *name, *path, *state, *error; /* state: indexing | ready | failed */
    uint8_t version[BASE_SHA256_BYTES];      /* ready only */
    uint64_t items, bytes, skipped;
    const char *classes, *skipped_names; /* lists, as server/datasets.c joins them */
    const char *masks;                   /* a folder; empty or NULL: none */
};
enum base_code store_dataset_put(struct store *store, const struct store_dataset *dataset,
                                 struct base_error *error);
enum base_code store_dataset_remove(struct store *store, const char *name, struct base_error *error);
typedef void (*store_dataset_fn)(void *context, const struct store_dataset *dataset);
enum base_code store_datasets_each(struct store *store, store_dataset_fn each, void *context,
                                   struct base_error *error);

/* ---- jobs ---- */

struct store_job {
    const char *id, *dataset;
    const char *record; /* how it was opened: packed millrace.v1.JobOpen of the rank that opened last */
    size_t record_size;
    uint8_t stream[BASE_SHA256_BYTES]; /* zeros: it has no start in one yet */
    uint32_t first_epoch, epoch;
    uint64_t position; /* least of its ranks' cursors, as last known */
};
enum base_code store_job_put(struct store *store, const struct store_job *job, struct base_error *error);
enum base_code store_job_remove(struct store *store, const char *id, struct base_error *error);
typedef void (*store_job_fn)(void *context, const struct store_job *job);
enum base_code store_jobs_each(struct store *store, store_job_fn each, void *context,
                               struct base_error *error);

/* ---- streams: so that slots stay where they are, and plan versions go on above those already told ---- */

struct store_stream {
    uint8_t hash[BASE_SHA256_BYTES], dataset_version[BASE_SHA256_BYTES], fingerprint[16];
    uint64_t items, seed;
    bool shuffle;
    const char *sample_text;
    uint32_t plan_version;
    const uint8_t *homes; /* of its slots, as server/server.c packs them; kept by an older server: none */
    size_t homes_size;
};
enum base_code store_stream_put(struct store *store, const struct store_stream *stream,
                                struct base_error *error);
enum base_code store_stream_remove(struct store *store, const uint8_t hash[BASE_SHA256_BYTES],
                                   struct base_error *error);
typedef void (*store_stream_fn)(void *context, const struct store_stream *stream);
enum base_code store_streams_each(struct store *store, store_stream_fn each, void *context,
                                  struct base_error *error);

/* ---- quarantine ---- */

struct store_bad_item {
    uint8_t version[BASE_SHA256_BYTES];
    uint64_t item;
    const char *name, *cause;
};
enum base_code store_bad_item_put(struct store *store, const struct store_bad_item *bad,
                                  struct base_error *error);
enum base_code store_bad_items_remove(struct store *store, const uint8_t version[BASE_SHA256_BYTES],
                                      struct base_error *error);
typedef void (*store_bad_item_fn)(void *context, const struct store_bad_item *bad);
enum base_code store_bad_items_count(struct store *store, const uint8_t version[BASE_SHA256_BYTES],
                                     uint64_t *count, struct base_error *error);
/* The first `most` of a version, by item. */
enum base_code store_bad_items_each(struct store *store, const uint8_t version[BASE_SHA256_BYTES],
                                    uint32_t most, store_bad_item_fn each, void *context,
                                    struct base_error *error);

#endif
