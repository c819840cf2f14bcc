/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Proves from ledgers that jobs were handed each position of each epoch exactly once, and one content for one position.
 *
 * A start is one process of one rank. Starts of one (job, dataset version, first epoch) are a chain, whatever their world and
 * batch; those that begin at one cursor with one shape are a launch. Within a launch no position may come twice. A later launch
 * goes on from a saved cursor: what it delivers again must be the same. All that is before the frontier, the least cursor
 * that the ranks of the last launch have reached, must be there, but for what the trainer gave up when it went on elsewhere
 * (mr_job_seek); behind it the epoch is incomplete.
 *
 * Memory: 2 bytes a position and job epoch, 9 a position and stream epoch, 64 a batch.
 */
#ifndef CLIENT_CLI_PROOF_H
#define CLIENT_CLI_PROOF_H

#include "base/error.h"
#include "proto/ledger/ledger.h"

enum { CLI_PROOF_WORDS_MAX = 60, CLI_PROOF_WORDS_CHARS = 512 };

struct cli_proof_cursor {
    uint32_t epoch; /* of the stream */
    uint64_t position;
};

struct cli_proof_start {
    struct ledger_start is;
    size_t file, group;
    uint64_t offset, until; /* its batches in the file */
    uint16_t launch;        /* of its group, from 1 in the order of generations */
    uint64_t batches;
    struct cli_proof_cursor at; /* after its last batch */
};

struct cli_proof_group {
    struct ledger_start is; /* any of its starts: job, dataset version, items, first epoch */
    size_t last;            /* the latest start that was handed anything */
    uint16_t launches;
    struct cli_proof_cursor frontier;
};

enum cli_proof_state { CLI_PROOF_COMPLETE, CLI_PROOF_INCOMPLETE, CLI_PROOF_ABANDONED, CLI_PROOF_VIOLATED };

struct cli_proof_epoch {
    size_t group;
    uint32_t job_epoch, stream_epoch;
    uint16_t *seen; /* [items]: the launch that delivered it last; 0: none */
    uint64_t delivered, again, skipped, missing, doubled, differing, uneven; /* positions; uneven: steps */
    uint64_t abandoned; /* positions not delivered: the trainer went on elsewhere */
    uint64_t others;    /* batches that are not in order; an end too early */
    bool ended;
    uint64_t end;      /* ended: where */
    uint64_t end_rows; /* of that launch's step */
    bool end_drops;
    enum cli_proof_state state;
};

/* What one position of a stream holds. */
struct cli_proof_rows {
    uint8_t stream[32];
    uint32_t epoch;
    uint64_t items, *hashes;
    uint8_t *known;
};

struct cli_proof_step {
    size_t group, start;
    uint32_t epoch, rank;
    uint64_t begin;
};

struct cli_proof {
    const char *const *paths;
    struct cli_proof_start *starts; /* in order of generations once sealed */
    size_t start_count;
    struct cli_proof_group *groups;
    size_t group_count;
    struct cli_proof_epoch *epochs;
    size_t epoch_count;
    struct cli_proof_rows *rows;
    size_t rows_count;
    struct cli_proof_step *steps;
    size_t step_count;
    uint64_t batches, torn, violations;
    char (*words)[CLI_PROOF_WORDS_CHARS]; /* the first of the violations */
    int word_count;
};

/* Reads all of them. CORRUPT: a file is no ledger. Damaged records are violations. `paths` must live as long as the proof. */
enum base_code cli_proof_open(struct cli_proof *proof, const char *const *paths, size_t count,
                              struct base_error *error);
void cli_proof_close(struct cli_proof *proof);
/* `complete`: an epoch that is not finished is a violation, too. */
enum base_code cli_proof_judge(struct cli_proof *proof, bool complete, struct base_error *error);

/* Counts a violation; kept in words while there is room. */
void cli_proof_say(struct cli_proof *proof, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Less than, equal to or greater than 0. */
int cli_proof_compare(struct cli_proof_cursor a, struct cli_proof_cursor b);

#endif
