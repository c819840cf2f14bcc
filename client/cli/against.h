/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The figures of another program or loader, for millrace bench --against.
 *
 * A command is run by the shell; it prints a line with `images/s X`, and `cpu_s/1000 Y` if it knows. A file named *.py defines
 * loader(), which returns what a training loop would iterate: batches that are tuples, lists or dictionaries whose first part
 * has a row for each sample. It is imported by python3, iterated once to warm up (no longer than `seconds`) and then for `seconds`.
 */
#ifndef CLIENT_CLI_AGAINST_H
#define CLIENT_CLI_AGAINST_H

#include "base/error.h"

#include <stdint.h>

struct cli_against {
    double images_s, cpu_s_1000; /* cpu_s_1000: 0 where it did not say */
};

/* Waits until it has ended. Its output goes to stderr. INVALID: it failed or told no images/s. */
enum base_code cli_against_run(const char *what, int64_t seconds, struct cli_against *result,
                               struct base_error *error);

#endif
