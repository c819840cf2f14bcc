/* SPDX-License-Identifier: Apache-2.0 */
/* A job's talk with the server: opened, kept in sync by long polls, closed. The server away: nothing happens, streams run on. */
#ifndef CLIENT_CONTROL_H
#define CLIENT_CONTROL_H

#include "client/src/job.h"
#include "proto/schema/millrace.pb-c.h"

/* The trainer's thread: asks until the job is running or the deadline (the error says what it waits for). *answer is the caller's.
 * Keeps the packed request in the job. */
enum base_code client_control_open(struct mr_job *job, const struct mr_job_options *options,
                                   int64_t deadline_ns, Millrace__V1__JobAnswer **answer,
                                   struct base_error *error);
/* Takes over a plan: to the machine, with the workers' addresses. Mutex held. */
void client_control_plan(struct mr_job *job, const Millrace__V1__Plan *plan);
/* Begins and ends the long polls. Loop thread, mutex held. */
enum base_code client_control_start(struct mr_job *job, struct base_error *error);
void client_control_stop(struct mr_job *job);
/* A newer plan is known to exist: asks beside the long poll. Loop thread, mutex held. */
void client_control_fetch(struct mr_job *job);
/* The trainer's thread: says goodbye, waits a quarter of a second at most. */
void client_control_close(struct mr_job *job);

#endif
