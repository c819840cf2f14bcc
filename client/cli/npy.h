/* SPDX-License-Identifier: Apache-2.0 */
/* Writes one numpy file of rows whose number is not known before the end. */
#ifndef CLIENT_CLI_NPY_H
#define CLIENT_CLI_NPY_H

#include "base/error.h"

#include <stddef.h>

enum { CLI_NPY_DIMS = 5 };

struct cli_npy;

/* `descr` as numpy has it ("|u1", "<i8"); `dims` of one row. Beside `path`, renamed at finish. */
enum base_code cli_npy_create(struct cli_npy **npy, const char *path, const char *descr, const int64_t *dims,
                              int rank, struct base_error *error);
/* `rows` more rows in `size` bytes. */
enum base_code cli_npy_add(struct cli_npy *npy, const void *bytes, size_t size, uint64_t rows,
                           struct base_error *error);
enum base_code cli_npy_finish(struct cli_npy *npy, struct base_error *error);
void cli_npy_unlink(
    const struct cli_npy *npy);            /* removes what is not finished; from a signal's handler, too */
void cli_npy_destroy(struct cli_npy *npy); /* without finish: removes what was written */

#endif
