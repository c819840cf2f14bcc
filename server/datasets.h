/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The registered datasets and the work of indexing them. Indexing runs on a worker; this is its book-keeping:
 * which worker has which order, whom to ask next when one refuses or dies.
 *
 *   (none) --add--> INDEXING --indexed--> READY    add again: indexed once more, the old version serves meanwhile
 *                    |    ^                        verify: an order beside it
 *    all have refused v    | add again
 *                    FAILED
 *
 * Loop thread only. Records belong to the registry and live until removed.
 */
#ifndef SERVER_DATASETS_H
#define SERVER_DATASETS_H

#include "proto/schema/millrace.pb-c.h"
#include "server/store/store.h"

#include <stdbool.h>

#define SERVER_DATASET_NAME_CHARS 128
#define SERVER_DATASET_TRIED_MAX 64

enum server_dataset_state { SERVER_DATASET_INDEXING, SERVER_DATASET_READY, SERVER_DATASET_FAILED };

struct server_lines { /* texts, owned */
    char **line;
    size_t count;
};

/* Index or verify: given to one worker after another until one has done it. */
struct server_order {
    uint64_t id;     /* 0: none */
    uint64_t worker; /* 0: not given to anyone yet */
    uint64_t tried[SERVER_DATASET_TRIED_MAX];
    int tried_count;
    char last_error[BASE_ERROR_TEXT_BYTES];
    enum base_code last_code;
};

struct server_dataset {
    char name[SERVER_DATASET_NAME_CHARS];
    char *path, *masks; /* masks "": none. Of the version that there is, or of the first one to be */
    char *asked_masks;  /* of the version being made beside one that there is; NULL: the same */
    enum server_dataset_state state;
    char error[BASE_ERROR_TEXT_BYTES];
    enum base_code index_code; /* why indexing failed; not stored */
    bool has_version;
    uint8_t version[BASE_SHA256_BYTES];
    uint64_t items, bytes, skipped;
    struct server_lines classes, skipped_names;
    struct server_order index, verify;
    uint64_t verify_done; /* rises with each verify that ended */
    enum base_code verify_code;
    uint64_t changed;
    struct server_lines changed_names;
    struct server_dataset *next;
};

struct server_datasets;

/* Orders are numbered from over `last_order`: a worker may still hold, and answer, those of an earlier start. */
enum base_code server_datasets_create(struct server_datasets **datasets, struct store *store,
                                      uint64_t last_order, struct base_error *error);
void server_datasets_destroy(struct server_datasets *datasets);

/* Rises when orders or a dataset's state change. */
uint64_t server_datasets_revision(const struct server_datasets *datasets);
struct server_dataset *server_datasets_first(
    const struct server_datasets *datasets); /* by name; then ->next */
struct server_dataset *server_datasets_find(const struct server_datasets *datasets, const char *name);
const struct server_dataset *server_datasets_find_version(const struct server_datasets *datasets,
                                                          const uint8_t version[BASE_SHA256_BYTES]);
/* The error of a name that is not registered: NOT_FOUND, with names that are. */
enum base_code server_datasets_unknown(const struct server_datasets *datasets, const char *name,
                                       struct base_error *error);

/* What `dataset add` says of it. */
struct server_dataset_place {
    const char *path, *masks; /* masks "": none */
};
/* Registers, or indexes once more when the name has this path already, with these masks: what there is stays until that
 * is done, and if it fails. EXISTS: another path, and
 * not one that failed. */
enum base_code server_datasets_add(struct server_datasets *datasets, const char *name,
                                   const struct server_dataset_place *place, struct server_dataset **dataset,
                                   struct base_error *error);
/* Of the version that is to be made. */
const char *server_dataset_asked_masks(const struct server_dataset *dataset);
enum base_code server_datasets_remove(struct server_datasets *datasets, const char *name,
                                      struct base_error *error);
/* Orders a comparison with the source; done when verify_done rises. */
enum base_code server_datasets_verify(struct server_datasets *datasets, struct server_dataset *dataset,
                                      struct base_error *error);

/* Gives orders that nobody has to live workers which have not refused them; takes them back from the dead.
 * With no worker left to ask, a dataset fails with the last refusal; with no worker at all, it waits. */
void server_datasets_assign(struct server_datasets *datasets, const uint64_t *live, int count);
bool server_datasets_ordering(const struct server_datasets *datasets); /* an order is out, or to be given */
/* A worker's answer; one for an order that it does not have any more is ignored. */
enum base_code server_datasets_indexed(struct server_datasets *datasets,
                                       const Millrace__V1__IndexResult *result, struct base_error *error);

const char *server_dataset_state_name(enum server_dataset_state state);

#endif
