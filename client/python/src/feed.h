/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between a job and a ring: a batch of the job goes to the device one step before it is asked for, so that its copy goes on beside
 * the trainer's work.
 *
 *   job --> pending --submit--> ahead --> handed over
 * One of the two at most is there: `pending` after a submit that failed, `ahead` else.
 *
 * One thread at a time, without the GIL.
 */
#ifndef CLIENT_PYTHON_FEED_H
#define CLIENT_PYTHON_FEED_H

#include "client/python/src/ring.h"

struct python_feed {
    struct python_ring *ring;
    struct mr_batch *pending;
    struct python_loan *ahead;
    struct mr_cursor at;  /* with any of them: behind the batch handed over last */
    struct mr_error said; /* when the job was asked ahead: for the next call; MR_OK: nothing */
};

/* As mr_job_next. After a failure the batch is not lost: the next call goes on with it. */
enum mr_code python_feed_next(struct python_feed *feed, struct mr_job *job, int64_t timeout_ms,
                              struct python_loan **loan, struct mr_error *error);
/* Takes what is ready, if the ring has room for it. */
void python_feed_prefetch(struct python_feed *feed, struct mr_job *job);
/* After a seek, and before the job is closed. */
void python_feed_drop(struct python_feed *feed);

#endif
