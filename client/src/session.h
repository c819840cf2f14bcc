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
/* Frames wait that may leave now. *wake_ns becomes earlier if others wait until then: DONE does, a moment, for the GETs that follow
 * it when the trainer is quick. */
bool client_session_frames_wait(const struct mr_job *job, int64_t *wake_ns);
/* They leave. The loop thread, without the mutex but with job->flushing; what the sockets do not take leaves later. */
void client_session_flush_all(struct mr_job *job);
/* Any thread, mutex held and not flushing: likewise, but what the sockets do not take waits for the loop. */
void client_session_write_all(struct mr_job *job);
/* Asks any session that is open for a page of the manifest; false: there is none. */
bool client_session_ask_page(struct mr_job *job, uint64_t index);

#endif
