/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of the data port (worker/serve.h), shared by serve.c, connection.c and answer.c only. */
#ifndef WORKER_CONNECTION_H
#define WORKER_CONNECTION_H

#include "proto/rpc/token.h"
#include "proto/wire/link.h"
#include "proto/wire/messages.h"
#include "worker/serve.h"

#define WORKER_HELLO_MS 5000
#define WORKER_STALL_MS 1000
#define WORKER_LINGER_MS 500
#define WORKER_SWEEP_MS 100
#define WORKER_HANDLES_MAX 256 /* of one connection */
#define WORKER_QUEUED_FRAMES_MAX                                                                             \
    1024                   /* to a peer that asks and does not read: then it is not heard, either */
#define WORKER_PAGES_MAX 4 /* of a manifest, on their way to one peer: each is a copy */

struct connection_handle {
    uint32_t number;
    uint8_t wanted; /* fields to send */
};

struct connection {
    struct worker_serve *serve;
    struct connection *next;
    struct wire_link *link; /* owned */
    struct event *readable, *writable;
    uint64_t core; /* handle there; 0: closed already */
    char peer[BASE_ERROR_TEXT_BYTES / 4];
    char token[RPC_TOKEN_CHARS];       /* of HELLO, checked; "": none was asked for */
    struct connection_handle *handles; /* owned */
    uint32_t handle_count;
    struct connection
        *touched_next; /* while it is touched: something was queued or came, its update is due */
    bool greeted, lingering, shut, dead, touched;
    bool deaf, mute;     /* reads nothing now; its link failed and writes nothing more */
    int pages;           /* on their way */
    bool offered, local; /* staging was offered to it; it has mapped it */
    uint64_t *loans;     /* sends of the machine that lie in staging until it has copied them; owned */
    uint32_t loan_count;
    int64_t loan_ns;              /* since the last one was done, or of the first */
    int64_t since_ns;             /* of accepting, then of lingering */
    int64_t progress_ns;          /* of the last byte that left, or of nothing to send */
    uint64_t bytes_in, bytes_out; /* as counted */
};

struct worker_serve {
    struct worker_serve_options options;
    struct event *acceptable, *sweep, *wake, *reap;
    struct connection *first, *touched;
    struct connection **by_index; /* by the low half of their handle in the machine; owned */
    uint32_t index_capacity;
    int count;
    bool pumping;
    int64_t armed_ns;           /* when `wake` goes off; INT64_MAX: it is not set */
    struct base_buffer payload; /* of the frame being made */
    struct base_metric metrics[WORKER_SERVE_METRICS];
};

/* ---- connection.c ---- */

void worker_connection_accept(struct worker_serve *serve, int fd, const char *peer);
struct connection *worker_connection_find(struct worker_serve *serve, uint64_t core);
void worker_connection_free(struct connection *connection); /* not from an event of its link */
/* FAIL to the peer, a line in the log, then linger. `metric` is counted. */
void worker_connection_refuse(struct connection *connection, int metric, enum base_code code,
                              const char *text);
/* Gone at once. `text` NULL: nothing went wrong. */
void worker_connection_kill(struct connection *connection, int metric, const char *text);
void worker_connection_linger(struct connection *connection); /* the machine has said why already */
void worker_connection_sweep(struct connection *connection, int64_t now_ns);
void worker_connection_touch(struct connection *connection); /* the pump's end updates it */
void worker_connection_update(
    struct connection *connection); /* writes, polls for what it needs, counts bytes */
const struct connection_handle *worker_connection_handle(const struct connection *connection,
                                                         uint32_t number);

/* ---- answer.c ---- */

void worker_answer_act(struct worker_serve *serve, const struct worker_action *action);
void worker_answer_fail(struct connection *connection, uint64_t request, uint32_t handle, enum base_code code,
                        const char *text);
/* A copy goes on its way; connection->pages counts it until it has left. */
enum base_code worker_answer_page(struct connection *connection, const struct wire_header *asked,
                                  const uint8_t *bytes, size_t size, struct base_error *error);
void worker_answer_sent(struct connection *connection, uint64_t token, bool done);
/* DONE came for that loan. */
enum base_code worker_answer_done(struct connection *connection, uint64_t loan, struct base_error *error);
void worker_answer_forget_loans(struct connection *connection); /* it is gone */

#endif
