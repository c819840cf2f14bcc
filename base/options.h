/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options from one table per program: flag > environment (MILLRACE_NAME) > default. --help is printed from the table.
 * `--name VALUE`, `--name=VALUE`; booleans take no value or =true/=false; LIST may be given several times.
 */
#ifndef BASE_OPTIONS_H
#define BASE_OPTIONS_H

#include "base/error.h"

#include <stddef.h>
#include <stdio.h>

enum base_option_type {
    BASE_OPTION_TEXT,
    BASE_OPTION_BOOL,
    BASE_OPTION_INT,   /* int64, with least and most */
    BASE_OPTION_BYTES, /* "64MiB", "1GB", "4096": MB is 10^6, MiB is 2^20 */
    BASE_OPTION_LIST,  /* of texts */
};

#define BASE_OPTIONS_LIST_MAX 64

struct base_option_list {
    const char *values[BASE_OPTIONS_LIST_MAX];
    int count;
};

struct base_option {
    /* "data-root"; the environment name is MILLRACE_DATA_ROOT (a LIST there is split at ':') */
    const char *name;
    enum base_option_type type;
    const char *default_text; /* NULL: none (NULL text, false, 0, empty list) */
    const char *value_name;   /* "DIR"; for --help */
    const char *help;         /* one line, with the unit */
    /* of the field in the caller's struct: const char *, bool, int64_t, uint64_t, base_option_list */
    size_t offset;
    int64_t least, most; /* INT only; both 0: unchecked */
};

struct base_options {
    const char *program; /* "millrace cat" */
    const char *usage;   /* "DATASET [options]" */
    const char *summary; /* one paragraph */
    const struct base_option *table;
    size_t count;
    int least_positional, most_positional;
};

/* What parse found besides options. Texts of options point into argv, the environment or the table; those of a LIST
 * from the environment point into `environment` here, so keep it, in its place, as long as the options. */
struct base_options_rest {
    const char *positional[BASE_OPTIONS_LIST_MAX];
    int count;
    bool help;    /* --help was given: print base_options_help and exit 0 */
    bool version; /* --version was given: print it and exit 0 */
    char environment[4096];
    size_t environment_used;
};

/* Fills the caller's struct. argv[0] is skipped. An unknown flag, a missing or malformed value and a wrong number of
 * positional arguments are errors that name the flag and the place it came from. */
enum base_code base_options_parse(const struct base_options *options, int argc, char **argv, void *into,
                                  struct base_options_rest *rest, struct base_error *error);
void base_options_help(const struct base_options *options, FILE *out);

/* "96MB" -> 96000000. */
enum base_code base_options_bytes(const char *text, uint64_t *bytes, struct base_error *error);

#endif
