/* SPDX-License-Identifier: Apache-2.0 */
/* Control messages made from the server's state, in an arena. They point into it and into the state: pack them before either changes. */
#ifndef SERVER_REPLIES_H
#define SERVER_REPLIES_H

#include "server/arena.h"
#include "server/server.h"

/* What a reply may take, with room for the rest of a message. */
#define SERVER_REPLIES_MESSAGE_BYTES (RPC_MESSAGE_MAX_BYTES - 4096)

/* NULL or partial when memory is out: look at arena->failed before use. Of its live streams a worker is told what has changed since
 * it was told last, as much of it as a message takes: then it is behind still. */
Millrace__V1__WorkerOrders *server_replies_orders(struct server_arena *arena, const struct server *server,
                                                  const Millrace__V1__WorkerSync *sync);
/* There is something about its live streams that a worker was not told. */
bool server_replies_orders_behind(const struct server *server, const Millrace__V1__WorkerSync *sync);

/* Lists: those that do not fit into `most_bytes` are counted as omitted. */
Millrace__V1__WorkersReply *server_replies_workers(struct server_arena *arena, const struct server *server,
                                                   int64_t now_ns, size_t most_bytes);
Millrace__V1__DatasetsReply *server_replies_datasets(struct server_arena *arena, const struct server *server,
                                                     size_t most_bytes);
Millrace__V1__JobsReply *server_replies_jobs(struct server_arena *arena, const struct server *server,
                                             size_t most_bytes);

/* `whole`: with classes, lists and workers' errors. */
Millrace__V1__DatasetInfo *server_replies_dataset(struct server_arena *arena, const struct server *server,
                                                  const struct server_dataset *dataset, bool whole);
Millrace__V1__JobAnswer *server_replies_job(struct server_arena *arena, const struct server *server,
                                            const struct scheduler_job *job);

/* The revision that a worker's long poll waits to change. */
uint64_t server_replies_orders_revision(const struct server *server, uint64_t worker);

#endif
