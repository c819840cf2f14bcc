/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/src/feed.h"

static enum mr_code take(struct python_feed *feed, struct mr_job *job, int64_t timeout_ms,
                         struct mr_error *error)
{
    struct mr_job_info info = {.size = sizeof info};
    enum mr_code code = mr_job_info(job, &info, error);
    if (code != MR_OK)
        return code;
    feed->at = info.cursor;
    code = mr_job_next(job, &feed->pending, timeout_ms, error);
    if (code != MR_BUSY)
        return code;
    python_ring_settle(feed->ring); /* the one slot there is was being copied */
    return mr_job_next(job, &feed->pending, timeout_ms, error);
}

enum mr_code python_feed_next(struct python_feed *feed, struct mr_job *job, int64_t timeout_ms,
                              struct python_loan **loan, struct mr_error *error)
{
    enum mr_code code = feed->said.code;
    if (code != MR_OK) {
        *error = feed->said;
        feed->said.code = MR_OK;
        return code;
    }
    if (feed->ahead) {
        *loan = feed->ahead;
        feed->ahead = NULL;
        return MR_OK;
    }
    if (!feed->pending)
        code = take(feed, job, timeout_ms, error);
    if (code == MR_OK)
        code = python_ring_submit(feed->ring, feed->pending, true, loan, error);
    if (code == MR_OK)
        feed->pending = NULL;
    return code;
}

void python_feed_prefetch(struct python_feed *feed, struct mr_job *job)
{
    if (feed->ahead || feed->pending || feed->said.code != MR_OK || !python_ring_has_room(feed->ring))
        return;
    enum mr_code code = take(feed, job, 0, &feed->said);
    if (code == MR_OK)
        code = python_ring_submit(feed->ring, feed->pending, false, &feed->ahead, &feed->said);
    if (code == MR_OK)
        feed->pending = NULL;
    if (code == MR_OK || code == MR_TIMEOUT || code == MR_END || code == MR_BUSY)
        feed->said.code = MR_OK;
}

void python_feed_drop(struct python_feed *feed)
{
    python_loan_release(feed->ahead);
    feed->ahead = NULL;
    if (feed->pending)
        mr_batch_release(feed->pending);
    feed->pending = NULL;
    feed->said.code = MR_OK;
}
