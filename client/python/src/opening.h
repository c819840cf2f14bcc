/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens a client and a job on a thread of its own, so that whoever waits for it may be interrupted at any moment: what is
 * abandoned closes itself when the library answers.
 */
#ifndef CLIENT_PYTHON_OPENING_H
#define CLIENT_PYTHON_OPENING_H

#include "client/python/src/memory.h"
#include "client/include/millrace/millrace.h"

#include <stdbool.h>

#define PYTHON_TEXTS 128
#define PYTHON_LIST 64

/* Everything a job is opened with, owned. */
struct python_request {
    struct mr_client_options where;
    struct mr_job_options what;
    struct mr_cursor resume;
    uint64_t seed;
    const char *options[PYTHON_LIST + 1], *fields[PYTHON_LIST + 1];
    char *texts[PYTHON_TEXTS];
    int text_count;
    bool failed; /* a text could not be kept: no memory, or too many */
};
/* A copy that lives as long as the request; NULL stays NULL. */
const char *python_request_keep(struct python_request *request, const char *text);

struct python_opening;
struct python_opened {
    struct mr_client *client;
    struct mr_job *job;
    enum mr_code code;
    struct mr_error error;
};

/* Takes the request's texts and a reference of the pool, even when it fails (NULL: no memory, no thread). */
struct python_opening *python_opening_start(struct python_request *request, struct python_pool *pool,
                                            int64_t timeout_ms);
/* True: `opened` is filled, its handles are the caller's, `opening` is gone. */
bool python_opening_wait(struct python_opening *opening, int64_t timeout_ms, struct python_opened *opened);
void python_opening_abandon(struct python_opening *opening);

#endif
