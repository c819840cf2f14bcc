/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control calls: gRPC C core beneath, protobuf-c messages above; the only user of grpc headers. Methods are
 * dispatched from protoc-c's service descriptors: there are no method tables by hand. Unary calls only (long
 * polls are unary, too), plus grpc.health.v1 (Check, Watch), which the server answers by itself.
 *
 * Threads: one completion-queue thread per server or channel. Handlers and replies run on the mailbox's owner
 * when one was given, else on the completion-queue thread, where nothing may block: stop, close and
 * rpc_call_wait are not for that thread.
 */
#ifndef PROTO_RPC_RPC_H
#define PROTO_RPC_RPC_H

#include "base/error.h"
#include "base/mailbox.h"

#include <protobuf-c/protobuf-c.h>

#define RPC_MESSAGE_MAX_BYTES (1 << 20) /* both ways */

/* Starts and ends the library; counted, so calls pair up. After a fork nothing here works (rpc_usable is
 * false). */
void rpc_start(void);
void rpc_stop(void);
bool rpc_usable(void);

/* ---- server ---- */

struct rpc_server;
struct rpc_call; /* one call being answered */

/* Answers `call` once, at any time and from any thread, by rpc_reply or rpc_fail. `request` lives until then.
 */
typedef void (*rpc_handler)(void *context, struct rpc_call *call, const ProtobufCMessage *request);

struct rpc_service {
    const ProtobufCServiceDescriptor *descriptor;
    const rpc_handler *handlers; /* one per method, in the descriptor's order; all set */
    void *context;
};

struct rpc_server_options {
    const char *address;          /* "127.0.0.1:7070"; port 0: any free */
    const char *token_key;        /* NULL: no token is asked; else every call must carry a valid one
                                     (proto/rpc/token.h); health is open */
    struct base_mailbox *mailbox; /* NULL: handlers run on the completion-queue thread */
    const struct rpc_service *services;
    int service_count;
    size_t
        memory_max_bytes; /* of gRPC's own buffers, of all connections together; beyond it connections are refused and calls end
                                RESOURCE_EXHAUSTED. 0: 1 GiB */
};

enum base_code rpc_server_start(struct rpc_server **server, const struct rpc_server_options *options,
                                struct base_error *error);
const char *rpc_server_address(const struct rpc_server *server);      /* with the real port */
void rpc_server_set_serving(struct rpc_server *server, bool serving); /* health: all services */
/* Refuses new calls, waits up to grace_ms for those running, cancels the rest, frees everything; clears
 * *server. Handlers waiting in the mailbox must be answered by its owner meanwhile, or are cancelled. */
void rpc_server_stop(struct rpc_server **server, int64_t grace_ms);

void rpc_reply(struct rpc_call *call, const ProtobufCMessage *reply);
/* The code travels (as a grpc status and, exactly, in trailing metadata `millrace-code`), the text, too. */
void rpc_fail(struct rpc_call *call, enum base_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool rpc_call_cancelled(
    const struct rpc_call *call); /* the peer is gone or the deadline passed: still answer it */

/* ---- client ---- */

struct rpc_channel;

/* What is asked: `method` is a method of `service` ("Sync"). */
struct rpc_request {
    const ProtobufCServiceDescriptor *service;
    const char *method;
    const ProtobufCMessage *message;
    int64_t timeout_ms;
};

/* Exactly once a call. `reply` is valid during the callback only; NULL unless code is BASE_OK. */
typedef void (*rpc_done)(void *context, enum base_code code, const char *text, const ProtobufCMessage *reply);

struct rpc_channel_options {
    const char *target;    /* "host:port" */
    const char *token_key; /* NULL: no token is sent; else a fresh one goes with each call */
    bool wait_for_ready;   /* calls wait for a connection until their deadline; else they fail at once without
                              one */
    struct base_mailbox *mailbox;
};

/* Does not connect yet; reconnects by itself with backoff between 100 ms and 2 s. A call of a second or more that gets no answer in
 * its time takes the connection with it: the next one dials anew, and what else was under way ends UNAVAILABLE. */
enum base_code rpc_channel_open(struct rpc_channel **channel, const struct rpc_channel_options *options,
                                struct base_error *error);
/* Calls under way complete with BASE_CANCELLED before close returns or, with a mailbox, when its owner next
 * drains it. Calls that their callbacks start meanwhile complete so at once, on the spot. Clears *channel;
 * NULL is fine. */
void rpc_channel_close(struct rpc_channel **channel);

/* A server that cannot be reached completes the call at its
 * deadline with BASE_UNAVAILABLE (wait_for_ready) or at once (otherwise); a connection that breaks under a call,
 * at once with the same: the server may have seen it or not. BASE_TIMEOUT: connected, and no answer in time.
 * False: no memory; nothing was started, and `done` will not be called. */
__attribute__((warn_unused_result)) bool rpc_call_start(struct rpc_channel *channel,
                                                        const struct rpc_request *request, rpc_done done,
                                                        void *context);

/* Blocks until the answer; *reply is the caller's (protobuf_c_message_free_unpacked). Not from the mailbox's
 * owner of a channel that has one. */
enum base_code rpc_call_wait(struct rpc_channel *channel, const struct rpc_request *request,
                             ProtobufCMessage **reply, struct base_error *error);

#endif
