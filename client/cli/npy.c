/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/npy.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Version 1.0, padded to where the data begins whatever the shape becomes. */
enum { HEADER_BYTES = 192, PREFIX_BYTES = 10 };

struct cli_npy {
    FILE *file;
    char *path, *part; /* owned; part: NULL after finish */
    char descr[8];
    int64_t dims[CLI_NPY_DIMS];
    int rank;
    uint64_t rows;
};

static enum base_code write_header(struct cli_npy *npy, struct base_error *error)
{
    char header[HEADER_BYTES + 1] = "\x93NUMPY\x01";
    size_t length = HEADER_BYTES - PREFIX_BYTES;
    header[7] = 0;
    header[8] = (char)(length & 0xFF);
    header[9] = (char)(length >> 8);
    int used =
        snprintf(header + PREFIX_BYTES, length, "{'descr': '%s', 'fortran_order': False, 'shape': (%llu,",
                 npy->descr, (unsigned long long)npy->rows);
    for (int i = 0; i < npy->rank; i++)
        used +=
            snprintf(header + PREFIX_BYTES + used, length - (size_t)used, " %lld,", (long long)npy->dims[i]);
    used += snprintf(header + PREFIX_BYTES + used, length - (size_t)used, "), }");
    memset(header + PREFIX_BYTES + used, ' ', length - (size_t)used);
    header[HEADER_BYTES - 1] = '\n';
    if (fseek(npy->file, 0, SEEK_SET) != 0 || fwrite(header, 1, HEADER_BYTES, npy->file) != HEADER_BYTES)
        return base_error_errno(error, errno, "%s", npy->path);
    return BASE_OK;
}

enum base_code cli_npy_create(struct cli_npy **npy, const char *path, const char *descr, const int64_t *dims,
                              int rank, struct base_error *error)
{
    struct cli_npy *n = calloc(1, sizeof *n);
    if (!n || !(n->path = strdup(path)) || asprintf(&n->part, "%s.part", path) < 0) {
        cli_npy_destroy(n);
        return base_error_set(error, BASE_NO_MEMORY, "%s: no memory", path);
    }
    snprintf(n->descr, sizeof n->descr, "%s", descr);
    n->rank = rank < CLI_NPY_DIMS ? rank : CLI_NPY_DIMS;
    for (int i = 0; i < n->rank; i++)
        n->dims[i] = dims[i];
    n->file = fopen(n->part, "wbe");
    enum base_code code =
        n->file ? write_header(n, error) : base_error_errno(error, errno, "%s: cannot be written", path);
    if (code == BASE_OK)
        *npy = n;
    else
        cli_npy_destroy(n);
    return code;
}

enum base_code cli_npy_add(struct cli_npy *npy, const void *bytes, size_t size, uint64_t rows,
                           struct base_error *error)
{
    npy->rows += rows;
    return size == 0 || fwrite(bytes, 1, size, npy->file) == size
               ? BASE_OK
               : base_error_errno(error, errno, "%s", npy->path);
}

enum base_code cli_npy_finish(struct cli_npy *npy, struct base_error *error)
{
    enum base_code code = write_header(npy, error);
    FILE *file = npy->file;
    npy->file = NULL;
    if (fclose(file) != 0 && code == BASE_OK)
        code = base_error_errno(error, errno, "%s", npy->path);
    if (code == BASE_OK && rename(npy->part, npy->path) != 0)
        code = base_error_errno(error, errno, "%s", npy->path);
    if (code != BASE_OK)
        return code;
    char *part = npy->part;
    npy->part = NULL; /* first: a signal's handler may look */
    free(part);
    return BASE_OK;
}

void cli_npy_unlink(const struct cli_npy *npy)
{
    if (npy && npy->part)
        unlink(npy->part);
}

void cli_npy_destroy(struct cli_npy *npy)
{
    if (!npy)
        return;
    if (npy->file)
        fclose(npy->file);
    cli_npy_unlink(npy);
    free(npy->part);
    free(npy->path);
    free(npy);
}
