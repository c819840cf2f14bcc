/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the data plane is measured against: a second process that sends messages (64-byte header, payload) over one TCP connection on
 * loopback with sendmsg, and this one that receives the payload into place. No checksums, no reordering, nothing else.
 */
#ifndef CLIENT_CLI_COPY_H
#define CLIENT_CLI_COPY_H

#include "base/error.h"

#include <stddef.h>

struct cli_copy;

struct cli_copy_work {
    size_t message_bytes;                      /* payload */
    size_t sent_set_bytes, received_set_bytes; /* memory that each side goes round in */
    int64_t duration_ns;
};
struct cli_copy_result {
    uint64_t bytes;
    double wall_s, sender_cpu_s, receiver_cpu_s;
};

/* Forks: before this process makes threads. */
enum base_code cli_copy_start(struct cli_copy **copy, struct base_error *error);
enum base_code cli_copy_run(struct cli_copy *copy, const struct cli_copy_work *work,
                            struct cli_copy_result *result, struct base_error *error);
void cli_copy_stop(struct cli_copy **copy);

double cli_copy_cpu_s(void); /* user and system time of this process */

#endif
