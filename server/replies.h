/* SPDX-License-Identifier: Apache-2.0 */
/* Control messages made from the server's state, in an arena. They point into it and into the state: pack them before either changes. */
#ifndef SERVER_REPLIES_H
#define SERVER_REPLIES_H

#include "server/arena.h"
#include "server/server.h"

/* NULL or partial when memory is out: look at arena->failed before use. */
Millrace__V1__WorkerOrders *server_replies_orders(struct server_arena *arena, const struct server *server,
                                                  uint64_t worker);
Millrace__V1__WorkersReply *server_replies_workers(struct server_arena *arena, const struct server *server,
                                                   int64_t now_ns);
/* `whole`: with classes, lists and workers' errors. */
Millrace__V1__DatasetInfo *server_replies_dataset(struct server_arena *arena, const struct server *server,
                                                  const struct server_dataset *dataset, bool whole);
Millrace__V1__DatasetsReply *server_replies_datasets(struct server_arena *arena, const struct server *server);
Millrace__V1__JobAnswer *server_replies_job(struct server_arena *arena, const struct server *server,
                                            const struct scheduler_job *job);
Millrace__V1__JobsReply *server_replies_jobs(struct server_arena *arena, const struct server *server);

/* The revision that a worker's long poll waits to change. */
uint64_t server_replies_orders_revision(const struct server *server, uint64_t worker);

#endif
