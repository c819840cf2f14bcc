/* SPDX-License-Identifier: Apache-2.0 */
/* The ops as table rows: names, versions, arguments with ranges and defaults, and in which order they may stand. Private to
 * scheduler/; what users need of it is in scheduler/pipeline.h. */
#ifndef SCHEDULER_OPS_H
#define SCHEDULER_OPS_H

#include "scheduler/pipeline.h"

enum scheduler_section { SCHEDULER_SAMPLE, SCHEDULER_FINISH, SCHEDULER_BATCH, SCHEDULER_SECTIONS };

enum scheduler_arg_type { SCHEDULER_ARG_INTEGER, SCHEDULER_ARG_REAL, SCHEDULER_ARG_WORD };

struct scheduler_arg_row {
    const char *key;
    enum scheduler_arg_type type;
    bool required; /* explicit text must say it */
    double least, most, standard;
    const char *const *words; /* of SCHEDULER_ARG_WORD: ends with NULL */
};

struct scheduler_op_row {
    const char *name;
    uint16_t version;
    enum scheduler_section section;
    int rank; /* ops of a section stand in rising rank: at most one of a rank */
    bool random;
    const struct scheduler_arg_row *args; /* ends with key NULL */
};

const struct scheduler_op_row *scheduler_ops_row(enum scheduler_op_kind kind);
/* By name; SCHEDULER_OP_KINDS when there is none. */
enum scheduler_op_kind scheduler_ops_find(const char *name, size_t size);
/* Index of argument `key`, -1 when the kind has none of that name. */
int scheduler_ops_find_arg(enum scheduler_op_kind kind, const char *key, size_t size);
/* For errors: the names of a section's ops, of a kind's arguments. Return `text`. */
const char *scheduler_ops_names(enum scheduler_section section, char *text, size_t size);
const char *scheduler_ops_args(enum scheduler_op_kind kind, char *text, size_t size);
void scheduler_ops_init(struct scheduler_op *op, enum scheduler_op_kind kind); /* with its defaults */
/* Reads argument `arg` from text. The error names op, argument and value. */
enum base_code scheduler_ops_set(struct scheduler_op *op, int arg, const char *value, size_t size,
                                 struct base_error *error);
/* What one argument alone cannot say: scale_min <= scale_max, ratio_min <= ratio_max. */
enum base_code scheduler_ops_check(const struct scheduler_op *op, struct base_error *error);

#endif
