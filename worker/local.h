/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gives the staging memory's descriptor to trainers of this host (proto/wire/local.h): a Unix socket with a name that
 * nobody can guess; each who connects gets it at once and is forgotten, or nothing. Loop thread only.
 *
 * Security: the descriptor shows the blocks of all jobs, so only those get it who could read them, and the secret, anyway: this worker's
 * own user, in the same user and process namespace. Everybody else goes on by sockets. It can never be written through (worker/staging.h).
 */
#ifndef WORKER_LOCAL_H
#define WORKER_LOCAL_H

#include "base/error.h"
#include "proto/wire/local.h"

#include <event2/event.h>

struct worker_local;

/* `fd` stays the caller's. */
enum base_code worker_local_start(struct worker_local **local, struct event_base *loop, int fd,
                                  struct base_error *error);
void worker_local_stop(struct worker_local **local);                /* clears it; NULL is fine */
const uint8_t *worker_local_name(const struct worker_local *local); /* WIRE_LOCAL_NAME_BYTES */

#endif
