/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of calls share: a channel to an echo service, and calls whose answers are kept. */
#ifndef TESTS_UNIT_RPC_CALLS_H
#define TESTS_UNIT_RPC_CALLS_H

#include "proto/rpc/rpc.h"
#include "tests/unit/rpc/echo.pb-c.h"

#include <stdatomic.h>

#define CALLS_TIMEOUT_MS 20000 /* for what should take far less */

struct kept { /* an asynchronous answer */
    atomic_int times;
    enum base_code code;
    char text[BASE_ERROR_TEXT_BYTES];
    char reply[64];
};

struct rpc_channel *calls_open(const char *target, const char *token_key, bool wait_for_ready,
                               struct base_mailbox *mailbox);
/* Calls Say and waits; checks that the reply's text is the request's. */
enum base_code calls_say(struct rpc_channel *channel, const Millrace__Test__EchoRequest *request,
                         int64_t timeout_ms, struct base_error *error);
enum base_code calls_say_text(struct rpc_channel *channel, const char *text, int64_t timeout_ms,
                              struct base_error *error);
/* The callback of a call whose answer goes to the struct kept that is its context. */
void calls_keep(void *context, enum base_code code, const char *text, const ProtobufCMessage *message);
void calls_start(struct rpc_channel *channel, const Millrace__Test__EchoRequest *request, int64_t timeout_ms,
                 struct kept *kept);
/* Waits until `kept` was answered; the test fails after CALLS_TIMEOUT_MS. `mailbox` (or NULL) is drained
 * meanwhile. */
void calls_await(struct kept *kept, struct base_mailbox *mailbox);
/* Asks the service until its handler has been given `calls` Says and `gone` callers of held ones have gone. A call may be
 * cancelled before its handler sees it: wait for the one before causing the other. */
void calls_await_counts(struct rpc_channel *channel, uint64_t calls, uint64_t gone);
/* How many Says the handler has been given. */
uint64_t calls_count(struct rpc_channel *channel);

#endif
