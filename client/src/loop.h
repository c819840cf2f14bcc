/* SPDX-License-Identifier: Apache-2.0 */
/* The client's one thread: a libevent loop that drains a mailbox. Everything that touches sockets runs on it. */
#ifndef CLIENT_LOOP_H
#define CLIENT_LOOP_H

#include "base/error.h"
#include "base/mailbox.h"

struct client_loop;
struct event_base;

/* The thread takes no signals: they are the host program's. */
enum base_code client_loop_start(struct client_loop **loop, struct base_error *error);
/* Runs what was posted, ends the thread, clears *loop. NULL is fine. */
void client_loop_stop(struct client_loop **loop);

struct event_base *client_loop_base(const struct client_loop *loop);
struct base_mailbox *client_loop_mailbox(const struct client_loop *loop);
/* Runs `run(context)` on the thread and waits for it. Not from that thread. */
void client_loop_call(struct client_loop *loop, void (*run)(void *context), void *context);

#endif
