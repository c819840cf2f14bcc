/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One job's connection to one worker: from an address to frames. Loop thread, under the job's mutex.
 *
 *   RESOLVING --> DIALLING -- connected, HELLO sent --> GREETING -- HELLO came --> READY (OPEN, GET, MARK, PAGE)
 *       ^------------+  refused: the next address
 *
 * A session that ends by itself reports client_core_lost and is gone; one that is closed reports nothing more.
 */
#ifndef CLIENT_SESSION_H
#define CLIENT_SESSION_H

#include "client/src/core.h"
#include "proto/wire/header.h"

struct mr_job;
struct client_session;

/* Ends by itself when no address works. */
void client_session_start(struct mr_job *job, uint64_t worker);
void client_session_close(struct mr_job *job, uint64_t worker);
void client_session_close_all(struct mr_job *job);

/* Sends an action that is a frame: OPEN, GET, CANCEL, MARK. A session that is no more, or not so far: nothing happens. */
void client_session_send(struct mr_job *job, const struct client_action *action);
/* Frames wait for this, which needs no mutex. Returns when to come again: DONE waits a moment for the GETs that follow it while a
 * trainer waits. INT64_MAX: no need. */
int64_t client_session_flush_all(struct mr_job *job);
/* Asks any session that is open for a page of the manifest; false: there is none. */
bool client_session_ask_page(struct mr_job *job, uint64_t index);

#endif
