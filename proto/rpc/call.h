/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One call at a server, from the request that is armed before anyone calls to the last tag of gRPC.
 *
 *   armed --arrived--> held ----answered----> sending --last tag--> freed
 *                       |  \--killed (server stops)--> dead: freed once the holder has answered and gRPC is
 * done
 *
 * Two parties keep it: its holder (mailbox, handler or watch) until it is answered, and gRPC while tags are
 * under way. All fields from `grpc` on are guarded by `lock`; a server's lock is taken before a call's.
 */
#ifndef PROTO_RPC_CALL_H
#define PROTO_RPC_CALL_H

#include "proto/rpc/queue.h"
#include "proto/rpc/rpc.h"

#include <stdatomic.h>

struct rpc_method {
    const ProtobufCMethodDescriptor *descriptor; /* NULL: the method that stands for all unknown ones */
    rpc_handler handler;
    void *context;
    void *registration;
    bool is_open;       /* no token is asked */
    bool is_inline;     /* answered on the completion-queue thread, whatever the mailbox */
    atomic_int missing; /* requests that found no memory to be armed: calls that end take their places */
};

/* A health stream (health.c). */
struct rpc_watch {
    bool active;
    bool known;   /* the service asked about is one of ours */
    bool started; /* initial metadata are sent */
    bool sending; /* a message is under way: gRPC allows one */
    bool ended;   /* the server stops: the status comes next */
    int last_sent;
};

struct rpc_call {
    struct rpc_tag arrived, closed, sent;
    struct base_message message;
    struct rpc_server *server;
    struct rpc_method *method; /* the server's, as it is: the holder does not touch either */
    rpc_handler handler;
    void *context;
    grpc_metadata_array metadata;
    grpc_call_details details; /* of unknown methods */
    grpc_byte_buffer *request_bytes;
    gpr_timespec deadline;
    ProtobufCMessage *request;
    int close_cancelled; /* written by gRPC */
    atomic_bool cancelled;

    struct rpc_call *next,
        **link; /* the server's list of calls, guarded by the server's lock; link is NULL outside */

    pthread_mutex_t lock;
    grpc_call *grpc; /* NULL when dead */
    bool held, dead;
    int tags; /* under way */
    struct rpc_watch watch;
};

/* Asks gRPC for the next call of `method`; false without memory. */
bool rpc_call_arm(struct rpc_server *server, struct rpc_method *method);

/* Ends a call that is not answered and lets go of gRPC's part: the server is stopping, and its lock is held.
 */
void rpc_call_kill(struct rpc_call *call);

/* The calls below: `lock` is held, and the call is neither dead nor answered. */
void rpc_call_send_message(struct rpc_call *call, grpc_byte_buffer *bytes, bool first);
void rpc_call_send_status(struct rpc_call *call, grpc_byte_buffer *bytes, bool first, enum base_code code,
                          const char *text);

#endif
