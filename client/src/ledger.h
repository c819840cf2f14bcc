/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a job's ledger (proto/ledger/ledger.h), one record at a time with one write each: a process killed at any moment
 * loses at most the record being written. No fsync: what was written survives the process, not the machine's power.
 * One writer a file (it is locked). All memory is taken at open.
 */
#ifndef CLIENT_LEDGER_H
#define CLIENT_LEDGER_H

#include "client/include/millrace/millrace.h"
#include "proto/ledger/ledger.h"

struct client_ledger;

/* `path`: a file, made or continued, or a folder: then JOB.RANK.ledger in it. A torn last record is cut off; a file that is no
 * ledger is refused and not touched. Writes the start. */
enum base_code client_ledger_open(struct client_ledger **ledger, const char *path,
                                  const struct ledger_start *start, struct base_error *error);
/* The same ledger goes on elsewhere. On an error nothing counts as written. */
enum base_code client_ledger_restart(struct client_ledger *ledger, const struct ledger_start *start,
                                     struct base_error *error);
void client_ledger_close(struct client_ledger **ledger); /* NULL is fine */

/* Where a batch lies in its step: first position and length of the whole step. */
struct client_ledger_step {
    uint64_t begin, valid;
    uint32_t rows; /* of the batch that are no padding */
};
/* Appends the record of a batch. On an error (it names the file) nothing counts as written: the same call may be made again. */
enum base_code client_ledger_append(struct client_ledger *ledger, const struct mr_batch *batch,
                                    const struct client_ledger_step *step, struct base_error *error);

#endif
