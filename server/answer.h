/* SPDX-License-Identifier: Apache-2.0 */
/* Answering a call with a message made in an arena, or with an error; counts both. */
#ifndef SERVER_ANSWER_H
#define SERVER_ANSWER_H

#include "server/replies.h"

/* Replies unless the arena ran out; ends the arena. */
void server_answer(struct server *server, struct rpc_call *call, struct server_arena *arena,
                   const void *message);
void server_answer_error(struct server *server, struct rpc_call *call, const struct base_error *error);
void server_answer_empty(struct server *server, struct rpc_call *call);

#endif
