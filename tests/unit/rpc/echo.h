/* SPDX-License-Identifier: Apache-2.0 */
/* A service for tests: its own loop thread, which owns a mailbox, answers at once, later, with an error, or
 * never. */
#ifndef TESTS_UNIT_RPC_ECHO_H
#define TESTS_UNIT_RPC_ECHO_H

#include "proto/rpc/rpc.h"

struct echo;

/* `with_mailbox`: handlers run on the loop thread; else on gRPC's, where delays and holds are refused. */
enum base_code echo_start(struct echo **echo, const char *address, const char *token_key, bool with_mailbox,
                          struct base_error *error);
struct rpc_server *echo_server(struct echo *echo);
const char *echo_address(struct echo *echo);
/* Stops the server, then the loop. Returns how long rpc_server_stop took. */
int64_t echo_stop(struct echo **echo, int64_t grace_ms);

#endif
