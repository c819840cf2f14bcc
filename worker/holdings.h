/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The datasets that the server wants held here.
 *
 *   ORDERED -> (chore: open or pull the manifest, probe files) -> HELD, eligible or not
 *      ^                                                              | not
 *      +---- after 200 ms, doubling up to 10 s -----------------------+
 */
#ifndef WORKER_HOLDINGS_H
#define WORKER_HOLDINGS_H

#include "proto/schema/millrace.pb-c.h"
#include "worker/chore.h"
#include "worker/dataset.h"

struct worker_holdings;

struct worker_holdings_options {
    struct worker_chores *chores;
    const struct source_roots *roots;
    const char *state_dir, *token_key, *name;
    void (*changed)(void *context);
    void *context;
};

enum base_code worker_holdings_create(struct worker_holdings **holdings,
                                      const struct worker_holdings_options *options,
                                      struct base_error *error);
void worker_holdings_destroy(struct worker_holdings *holdings); /* NULL is fine */

/* These and no others; starts what is due. */
void worker_holdings_order(struct worker_holdings *holdings, int64_t now_ns,
                           Millrace__V1__DatasetOrder *const *orders, size_t count);
void worker_holdings_tick(struct worker_holdings *holdings, int64_t now_ns); /* tries again what is due */
struct worker_dataset *worker_holdings_find(const struct worker_holdings *holdings,
                                            const uint8_t version[32]);

/* For WorkerSync; valid until the next call of any function here. */
size_t worker_holdings_count(const struct worker_holdings *holdings);
void worker_holdings_report(const struct worker_holdings *holdings, size_t index,
                            Millrace__V1__DatasetHeld *held);

/* STATE/manifests/HEX.manifest */
void worker_holdings_path(const char *state_dir, const uint8_t version[32], char *path, size_t path_bytes);

#endif
