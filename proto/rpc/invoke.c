/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One call from a channel. All its operations are one batch with one tag, so it ends once, whatever happens:
 *
 *   started --tag--> result read on the completion-queue thread --> callback there, or on the mailbox's owner
 * --> freed
 *
 * A call that cannot be sent gets an empty batch, whose tag comes at once: its callback runs where all others
 * do. From the tag on the channel is not touched: it may be closed before the mailbox's owner gets to the
 * callback.
 */
#include "proto/rpc/channel.h"

#include "base/clock.h"
#include "proto/rpc/code.h"
#include "proto/rpc/codec.h"
#include "proto/rpc/token.h"

#include <grpc/byte_buffer.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OP_COUNT 6
#define SILENT_MS                                                                                            \
    1000 /* without an answer for so long, and beyond what the call allowed: a dead connection, rather than a slow server */

struct rpc_invocation {
    struct rpc_tag ended;
    struct base_message message;
    struct rpc_channel *channel;
    struct rpc_invocation *next, **link; /* the channel's list, guarded by its lock */
    const ProtobufCServiceDescriptor *service;
    const ProtobufCMethodDescriptor *method;
    struct base_mailbox *mailbox;
    int64_t timeout_ms;
    rpc_done done;
    void *context;

    uint64_t connection; /* the channel's, when it was sent */
    grpc_call *grpc;
    grpc_byte_buffer *reply_bytes;
    grpc_metadata_array initial, trailing;
    grpc_status_code status;
    grpc_slice details;

    struct base_error result;
    ProtobufCMessage *reply;
    bool gives_reply; /* the callback takes it over */
};

#define INVOCATION_OF(pointer, member)                                                                       \
    ((struct rpc_invocation *)(void *)((char *)(pointer)-offsetof(struct rpc_invocation, member)))

/* ---- the list ---- */

static void link_invocation(struct rpc_channel *channel, struct rpc_invocation *invocation)
{
    invocation->next = channel->invocations;
    invocation->link = &channel->invocations;
    if (invocation->next)
        invocation->next->link = &invocation->next;
    channel->invocations = invocation;
}

static void unlink_invocation(struct rpc_channel *channel, struct rpc_invocation *invocation)
{
    pthread_mutex_lock(&channel->lock);
    *invocation->link = invocation->next;
    if (invocation->next)
        invocation->next->link = invocation->link;
    pthread_mutex_unlock(&channel->lock);
}

void rpc_invocations_cancel(struct rpc_invocation *first)
{
    for (; first; first = first->next)
        grpc_call_cancel(first->grpc, NULL);
}

/* ---- the end of a call ---- */

/* Everything of gRPC; afterwards the library may be stopped. */
static void drop_grpc(struct rpc_invocation *invocation)
{
    grpc_call_unref(invocation->grpc);
    grpc_byte_buffer_destroy(invocation->reply_bytes);
    grpc_metadata_array_destroy(&invocation->initial);
    grpc_metadata_array_destroy(&invocation->trailing);
    grpc_slice_unref(invocation->details);
}

static void run_callback(struct base_message *message)
{
    struct rpc_invocation *invocation = INVOCATION_OF(message, message);
    invocation->done(invocation->context, invocation->result.code, invocation->result.text,
                     invocation->reply);
    if (invocation->reply && !invocation->gives_reply)
        protobuf_c_message_free_unpacked(invocation->reply, NULL);
    free(invocation);
}

static void deliver(struct rpc_invocation *invocation)
{
    invocation->message.run = run_callback;
    if (invocation->mailbox)
        base_mailbox_post(invocation->mailbox, &invocation->message);
    else
        run_callback(&invocation->message);
}

/* gRPC's chain of causes, cut to the one that tells: "Connection refused". */
static const char *last_cause(const char *details)
{
    static const char before[] = "Failed to connect to remote host: ";
    const char *found = strstr(details, before);
    return found ? found + sizeof before - 1 : details;
}

static void read_failure(struct rpc_invocation *invocation)
{
    struct rpc_channel *channel = invocation->channel;
    struct base_error *result = &invocation->result;
    bool exact;
    enum base_code code = rpc_code_from_status(invocation->status, &invocation->trailing, &exact);
    char *details = grpc_slice_to_c_string(invocation->details);
    if (exact)
        base_error_set(result, code, "%s", details);
    else if (code == BASE_TIMEOUT &&
             grpc_channel_check_connectivity_state(channel->grpc, 0) != GRPC_CHANNEL_READY)
        base_error_set(result, BASE_UNAVAILABLE, "%s at %s: no connection within %lld ms",
                       invocation->method->name, channel->target, (long long)invocation->timeout_ms);
    else if (code == BASE_TIMEOUT) {
        base_error_set(result, code, "%s at %s: no answer within %lld ms", invocation->method->name,
                       channel->target, (long long)invocation->timeout_ms);
        if (invocation->timeout_ms >= SILENT_MS) /* keepalive would find out after 20 s */
            rpc_channel_renew(channel, invocation->connection);
    } else
        base_error_set(result, code, "%s at %s: %s", invocation->method->name, channel->target,
                       last_cause(details));
    gpr_free(details);
}

static void read_result(struct rpc_invocation *invocation)
{
    if (invocation->status != GRPC_STATUS_OK) {
        read_failure(invocation);
        return;
    }
    enum base_code why;
    invocation->reply = rpc_codec_unpack(invocation->method->output, invocation->reply_bytes, &why);
    if (!invocation->reply)
        base_error_set(&invocation->result, why, "%s at %s: %s", invocation->method->name,
                       invocation->channel->target,
                       why == BASE_NO_MEMORY ? "no memory for the reply"
                                             : "the reply does not parse or is over a limit");
}

static void on_ended(struct rpc_tag *tag, bool ok)
{
    (void)ok;
    struct rpc_invocation *invocation = INVOCATION_OF(tag, ended);
    if (!invocation->result.code)
        read_result(invocation);
    unlink_invocation(invocation->channel, invocation);
    drop_grpc(invocation);
    deliver(invocation);
}

/* ---- the start of a call ---- */

/* Fills the metadata sent with each call; returns how many. */
static size_t make_metadata(const struct rpc_channel *channel, grpc_metadata *metadata)
{
    char value[16 + RPC_TOKEN_CHARS] = "Bearer ";
    if (!channel->token_key ||
        rpc_token_issue(channel->token_key, "control", base_clock_wall_ns() / BASE_NS_PER_S,
                        value + strlen(value), NULL))
        return 0;
    metadata->key = grpc_slice_from_static_string("authorization");
    metadata->value = grpc_slice_from_copied_string(value);
    return 1;
}

static void start_batch(struct rpc_invocation *invocation, grpc_byte_buffer *request)
{
    grpc_metadata metadata;
    size_t metadata_count = make_metadata(invocation->channel, &metadata);
    grpc_op ops[OP_COUNT];
    memset(ops, 0, sizeof ops);
    ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
    ops[0].flags = invocation->channel->wait_for_ready ? GRPC_INITIAL_METADATA_WAIT_FOR_READY : 0;
    ops[0].data.send_initial_metadata.count = metadata_count;
    ops[0].data.send_initial_metadata.metadata = &metadata;
    ops[1].op = GRPC_OP_SEND_MESSAGE;
    ops[1].data.send_message.send_message = request;
    ops[2].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
    ops[3].op = GRPC_OP_RECV_INITIAL_METADATA;
    ops[3].data.recv_initial_metadata.recv_initial_metadata = &invocation->initial;
    ops[4].op = GRPC_OP_RECV_MESSAGE;
    ops[4].data.recv_message.recv_message = &invocation->reply_bytes;
    ops[5].op = GRPC_OP_RECV_STATUS_ON_CLIENT;
    ops[5].data.recv_status_on_client.trailing_metadata = &invocation->trailing;
    ops[5].data.recv_status_on_client.status = &invocation->status;
    ops[5].data.recv_status_on_client.status_details = &invocation->details;
    grpc_call_error refused =
        grpc_call_start_batch(invocation->grpc, ops, OP_COUNT, &invocation->ended, NULL);
    if (refused) {
        base_error_set(&invocation->result, BASE_INTERNAL, "gRPC: %s", grpc_call_error_to_string(refused));
        grpc_call_start_batch(invocation->grpc, NULL, 0, &invocation->ended, NULL);
    }
    if (metadata_count)
        grpc_slice_unref(metadata.value);
}

static grpc_call *make_call(const struct rpc_invocation *invocation)
{
    char path[512];
    const char *method = invocation->method ? invocation->method->name : "";
    snprintf(path, sizeof path, "/%s/%s", invocation->service->name, method);
    grpc_slice slice = grpc_slice_from_copied_string(path);
    gpr_timespec deadline = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                         gpr_time_from_millis(invocation->timeout_ms, GPR_TIMESPAN));
    grpc_call *call = grpc_channel_create_call(invocation->channel->grpc, NULL, GRPC_PROPAGATE_DEFAULTS,
                                               invocation->channel->queue.queue, slice, NULL, deadline, NULL);
    grpc_slice_unref(slice);
    return call;
}

/* Sends the call; false when the channel closes. */
static bool send_invocation(struct rpc_invocation *invocation, grpc_byte_buffer *request)
{
    struct rpc_channel *channel = invocation->channel;
    grpc_metadata_array_init(&invocation->initial);
    grpc_metadata_array_init(&invocation->trailing);
    invocation->details = grpc_empty_slice();
    invocation->ended.run = on_ended;
    pthread_mutex_lock(&channel->lock);
    bool open = !channel->closing;
    if (open) {
        invocation->connection = channel->connection;
        invocation->grpc = make_call(invocation);
        link_invocation(channel, invocation);
        rpc_tag_hand(&invocation->ended);
        if (request)
            start_batch(invocation, request);
        else
            grpc_call_start_batch(invocation->grpc, NULL, 0, &invocation->ended, NULL);
    }
    pthread_mutex_unlock(&channel->lock);
    return open;
}

/* Finds the method and packs the request: on failure the result says why, and NULL is returned. */
static grpc_byte_buffer *prepare(struct rpc_invocation *invocation, const char *method,
                                 const ProtobufCMessage *request)
{
    invocation->method = protobuf_c_service_descriptor_get_method_by_name(invocation->service, method);
    if (!invocation->method) {
        base_error_set(&invocation->result, BASE_UNSUPPORTED, "%s has no method %s",
                       invocation->service->name, method);
        return NULL;
    }
    grpc_byte_buffer *buffer = NULL;
    if (invocation->timeout_ms <= 0)
        base_error_set(&invocation->result, BASE_TIMEOUT, "%s at %s: no time was left to ask", method,
                       invocation->channel->target);
    else if (request->descriptor != invocation->method->input)
        base_error_set(&invocation->result, BASE_INVALID, "%s takes a %s, not a %s", method,
                       invocation->method->input->name, request->descriptor->name);
    else
        rpc_codec_pack(request, &buffer, &invocation->result);
    return buffer;
}

static void invoke(struct rpc_invocation *invocation, const char *method, const ProtobufCMessage *request)
{
    if (!rpc_usable()) {
        base_error_set(&invocation->result, BASE_CLOSED, "gRPC does not survive a fork of its process");
        run_callback(&invocation->message);
        return;
    }
    grpc_byte_buffer *buffer = prepare(invocation, method, request);
    if (!send_invocation(invocation, buffer)) {
        base_error_set(&invocation->result, BASE_CANCELLED, "the channel is closed");
        deliver(invocation);
    }
    grpc_byte_buffer_destroy(buffer);
}

bool rpc_call_start(struct rpc_channel *channel, const struct rpc_request *request, rpc_done done,
                    void *context)
{
    struct rpc_invocation *invocation = calloc(1, sizeof *invocation);
    if (!invocation)
        return false;
    *invocation = (struct rpc_invocation){.channel = channel,
                                          .service = request->service,
                                          .mailbox = channel->mailbox,
                                          .timeout_ms = request->timeout_ms,
                                          .done = done,
                                          .context = context};
    invoke(invocation, request->method, request->message);
    return true;
}

/* ---- waiting for a call ---- */

struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_done;
    ProtobufCMessage *reply;
    struct base_error *error;
    enum base_code code;
};

static void wake(void *context, enum base_code code, const char *text, const ProtobufCMessage *reply)
{
    struct waiter *waiter = context;
    pthread_mutex_lock(&waiter->lock);
    waiter->is_done = true;
    waiter->code = code;
    waiter->reply = (ProtobufCMessage *)(uintptr_t)reply;
    if (code)
        base_error_set(waiter->error, code, "%s", text);
    pthread_cond_signal(&waiter->changed);
    pthread_mutex_unlock(&waiter->lock);
}

enum base_code rpc_call_wait(struct rpc_channel *channel, const struct rpc_request *request,
                             ProtobufCMessage **reply, struct base_error *error)
{
    *reply = NULL;
    if (rpc_usable() && rpc_queue_is_current(&channel->queue))
        return base_error_set(error, BASE_INTERNAL, "%s: a callback waits for its own thread",
                              request->method);
    struct rpc_invocation *invocation = calloc(1, sizeof *invocation);
    if (!invocation)
        return base_error_set(error, BASE_NO_MEMORY, "%s: no memory", request->method);
    struct waiter waiter = {
        .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .error = error};
    *invocation = (struct rpc_invocation){.channel = channel,
                                          .service = request->service,
                                          .timeout_ms = request->timeout_ms,
                                          .done = wake,
                                          .context = &waiter,
                                          .gives_reply = true};
    invoke(invocation, request->method, request->message);
    pthread_mutex_lock(&waiter.lock);
    while (!waiter.is_done) /* the call has a deadline, so this has */
        pthread_cond_wait(&waiter.changed, &waiter.lock);
    pthread_mutex_unlock(&waiter.lock);
    pthread_cond_destroy(&waiter.changed);
    pthread_mutex_destroy(&waiter.lock);
    *reply = waiter.reply;
    return waiter.code;
}
