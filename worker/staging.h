/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that blocks are prepared in: a memfd, so that trainers of this host can map it. It is sealed: nobody can change its size
 * (a reader would die of that), and nobody but this mapping can ever write it.
 */
#ifndef WORKER_STAGING_H
#define WORKER_STAGING_H

#include "base/error.h"

struct worker_staging {
    uint8_t *memory;
    uint64_t size_bytes;
    int fd; /* -1: the kernel cannot do that; plain memory */
};

/* Reserved, not touched. */
enum base_code worker_staging_open(struct worker_staging *staging, uint64_t size_bytes,
                                   struct base_error *error);
void worker_staging_close(struct worker_staging *staging); /* zeros with fd -1 are fine */

#endif
