/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this rank was handed of each epoch, as a sum that the server adds over ranks and compares over jobs: addition modulo 2^64
 * of XXH3(position, row hash), so order and cutting into batches and ranks do not enter.
 */
#ifndef CLIENT_CERTIFICATE_H
#define CLIENT_CERTIFICATE_H

#include "client/include/millrace/millrace.h"

#include <stdbool.h>

#define CLIENT_CERTIFICATES 4 /* finished epochs that are told again with each sync */

struct client_certificate {
    uint32_t epoch, stream_epoch;
    uint64_t positions, hash;
    bool whole; /* from position 0 on */
};

/* All zeros at first. */
struct client_certificates {
    struct client_certificate now; /* the epoch under way, if `begun` */
    bool begun;
    struct client_certificate finished[CLIENT_CERTIFICATES]; /* the oldest first */
    int finished_count;
};

/* A batch that is handed over: its first `rows` rows are no padding, its step begins at position `step_begin`. */
void client_certificates_add(struct client_certificates *certificates, const struct mr_batch *batch,
                             uint64_t step_begin, uint32_t rows);

#endif
