/* SPDX-License-Identifier: Apache-2.0 */
/* Pulls a manifest from workers that hold it, page by page over their data ports. Blocks: chores only. */
#ifndef WORKER_PULL_H
#define WORKER_PULL_H

#include "base/error.h"

struct worker_pull {
    const char *const *addresses; /* of holders, tried in turn; a broken one is left with what it gave */
    int address_count;
    const uint8_t *version; /* 32 bytes */
    const char *path;       /* where the manifest goes, whole or not at all */
    const char *token_key;  /* NULL: no token */
    const char *name;       /* for HELLO */
    const _Atomic bool *cancel;
};
/* UNAVAILABLE names the last holder and what went wrong there. */
enum base_code worker_pull_manifest(const struct worker_pull *pull, struct base_error *error);

#endif
