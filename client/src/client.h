/* SPDX-License-Identifier: Apache-2.0 */
/* What one mr_client is: a loop thread and a channel to the server. */
#ifndef CLIENT_CLIENT_H
#define CLIENT_CLIENT_H

#include "base/address.h"
#include "client/include/millrace/millrace.h"
#include "client/src/loop.h"
#include "proto/rpc/rpc.h"

#include <stdatomic.h>
#include <sys/types.h>

#define CLIENT_KEY_BYTES 4097

struct mr_client {
    pid_t pid; /* of the process that opened it: in a forked child it is inert */
    struct client_loop *loop;
    struct rpc_channel *channel;
    char server[BASE_ADDRESS_CHARS];
    char key[CLIENT_KEY_BYTES]; /* of tokens; "": none */
    atomic_int jobs;
    atomic_uint serial; /* of jobs with made-up names */
};

/* False in a forked child. */
bool client_usable(const struct mr_client *client);

#endif
