/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that blocks are prepared in: a memfd, so that trainers of this host can map it. It is sealed: nobody can change its size
 * (a reader would die of that), and nobody but this mapping can ever write it.
 * A memfd gets large pages only when asked for each, which saves most of the page faults of whoever prepares and a part of the CPU time
 * of whoever sends or copies.
 */
#ifndef WORKER_STAGING_H
#define WORKER_STAGING_H

#include "base/error.h"

#include <stdatomic.h>

struct worker_staging {
    uint8_t *memory;
    uint64_t size_bytes;
    int fd;                 /* -1: the kernel cannot do that; plain memory */
    atomic_uchar *prepared; /* a byte for each large page; owned */
};

/* Reserved, not touched. */
enum base_code worker_staging_open(struct worker_staging *staging, uint64_t size_bytes,
                                   struct base_error *error);
/* Before something is written there for the first time: large pages, if the kernel has some. Any thread. */
void worker_staging_prepare(const struct worker_staging *staging, uint64_t offset, uint64_t size_bytes);
void worker_staging_close(struct worker_staging *staging); /* zeros with fd -1 are fine */

#endif
