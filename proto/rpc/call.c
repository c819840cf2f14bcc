/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rpc/call.h"

#include "base/clock.h"
#include "base/log.h"
#include "proto/rpc/code.h"
#include "proto/rpc/codec.h"
#include "proto/rpc/health.h"
#include "proto/rpc/metadata.h"
#include "proto/rpc/server.h"
#include "proto/rpc/token.h"

#include <grpc/byte_buffer.h>
#include <grpc/slice.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALL_OF(pointer, member)                                                                             \
    ((struct rpc_call *)(void *)((char *)(pointer)-offsetof(struct rpc_call, member)))

/* ---- life ---- */

static void fini_call(struct rpc_call *call)
{
    if (call->grpc)
        grpc_call_unref(call->grpc);
    if (call->request)
        protobuf_c_message_free_unpacked(call->request, NULL);
    grpc_byte_buffer_destroy(call->request_bytes);
    grpc_metadata_array_destroy(&call->metadata);
    grpc_call_details_destroy(&call->details);
    pthread_mutex_destroy(&call->lock);
}

static void free_call(struct rpc_call *call)
{
    fini_call(call);
    free(call);
}

static void arm(struct rpc_call *call, struct rpc_server *server, struct rpc_method *method);

/* A request that found no memory when it was to be armed takes the memory of a call that has ended. */
static void free_or_arm(struct rpc_call *call)
{
    struct rpc_method *method = call->method;
    int missing = atomic_load(&method->missing);
    while (missing > 0 && !atomic_compare_exchange_weak(&method->missing, &missing, missing - 1))
        continue;
    fini_call(call);
    if (missing > 0)
        arm(call, call->server, method);
    else
        free(call);
}

static bool is_finished(const struct rpc_call *call)
{
    return !call->held && !call->tags;
}

/* A tag came back, on the completion-queue thread, which outlives no server: the list may be touched. */
static void end_tag(struct rpc_call *call)
{
    call->tags--;
    bool finished = is_finished(call);
    pthread_mutex_unlock(&call->lock);
    if (!finished)
        return;
    rpc_server_unlink(call->server, call);
    free_or_arm(call);
}

void rpc_call_kill(struct rpc_call *call)
{
    pthread_mutex_lock(&call->lock);
    atomic_store(&call->cancelled, true);
    call->dead = true;
    grpc_call_unref(call->grpc);
    call->grpc = NULL;
    pthread_mutex_unlock(&call->lock);
}

/* ---- sending; the lock is held ---- */

static void start_batch(struct rpc_call *call, const grpc_op *ops, size_t count, struct rpc_tag *tag)
{
    rpc_tag_hand(tag);
    grpc_call_error result = grpc_call_start_batch(call->grpc, ops, count, tag, NULL);
    if (result == GRPC_CALL_OK)
        call->tags++;
    else
        base_log(BASE_LOG_ERROR, "rpc_batch_refused", "cause=\"%s\"", grpc_call_error_to_string(result));
}

static size_t put_payload(grpc_op *ops, grpc_byte_buffer *bytes, bool first)
{
    size_t count = 0;
    if (first)
        ops[count++].op = GRPC_OP_SEND_INITIAL_METADATA;
    if (bytes) {
        ops[count].op = GRPC_OP_SEND_MESSAGE;
        ops[count++].data.send_message.send_message = bytes;
    }
    return count;
}

void rpc_call_send_message(struct rpc_call *call, grpc_byte_buffer *bytes, bool first)
{
    grpc_op ops[2];
    memset(ops, 0, sizeof ops);
    start_batch(call, ops, put_payload(ops, bytes, first), &call->sent);
    grpc_byte_buffer_destroy(bytes);
}

void rpc_call_send_status(struct rpc_call *call, grpc_byte_buffer *bytes, bool first, enum base_code code,
                          const char *text)
{
    grpc_op ops[3];
    memset(ops, 0, sizeof ops);
    size_t count = put_payload(ops, bytes, first);
    char number[8];
    snprintf(number, sizeof number, "%d", (int)code);
    grpc_slice details = grpc_slice_from_copied_string(text);
    grpc_metadata exact = {.key = grpc_slice_from_static_string(RPC_CODE_KEY),
                           .value = grpc_slice_from_copied_string(number)};
    ops[count].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
    ops[count].data.send_status_from_server.status = rpc_code_to_status(code);
    ops[count].data.send_status_from_server.status_details = &details;
    ops[count].data.send_status_from_server.trailing_metadata = &exact;
    ops[count].data.send_status_from_server.trailing_metadata_count = code == BASE_OK ? 0 : 1;
    start_batch(call, ops, count + 1, &call->sent);
    call->held = false;
    grpc_slice_unref(details);
    grpc_slice_unref(exact.value);
    grpc_byte_buffer_destroy(bytes);
}

/* ---- answering ---- */

/* Takes `bytes`, which may be NULL. A dead call's answer only lets go of it. */
static void answer(struct rpc_call *call, grpc_byte_buffer *bytes, enum base_code code, const char *text)
{
    pthread_mutex_lock(&call->lock);
    if (!call->dead) {
        rpc_call_send_status(call, bytes, true, code, text);
        pthread_mutex_unlock(&call->lock);
        return;
    }
    call->held = false;
    bool finished = is_finished(call);
    pthread_mutex_unlock(&call->lock);
    grpc_byte_buffer_destroy(bytes);
    if (finished)
        free_call(call);
}

void rpc_reply(struct rpc_call *call, const ProtobufCMessage *reply)
{
    grpc_byte_buffer *bytes = NULL;
    struct base_error error;
    enum base_code code = rpc_codec_pack(reply, &bytes, &error);
    answer(call, bytes, code, code ? error.text : "");
}

void rpc_fail(struct rpc_call *call, enum base_code code, const char *format, ...)
{
    char text[BASE_ERROR_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    answer(call, NULL, code == BASE_OK ? BASE_INTERNAL : code, text);
}

bool rpc_call_cancelled(const struct rpc_call *call)
{
    return atomic_load(&call->cancelled);
}

/* ---- tags ---- */

static void on_sent(struct rpc_tag *tag, bool ok)
{
    struct rpc_call *call = CALL_OF(tag, sent);
    pthread_mutex_lock(&call->lock);
    if (call->watch.active)
        rpc_health_sent(call, ok);
    end_tag(call);
}

static void on_closed(struct rpc_tag *tag, bool ok)
{
    (void)ok;
    struct rpc_call *call = CALL_OF(tag, closed);
    pthread_mutex_lock(&call->lock);
    if (call->close_cancelled)
        atomic_store(&call->cancelled, true);
    if (call->watch.active)
        call->held = false; /* a watch has no other holder than its peer */
    end_tag(call);
}

/* Asks to be told when the peer has gone. */
static void watch_close(struct rpc_call *call)
{
    grpc_op op;
    memset(&op, 0, sizeof op);
    op.op = GRPC_OP_RECV_CLOSE_ON_SERVER;
    op.data.recv_close_on_server.cancelled = &call->close_cancelled;
    pthread_mutex_lock(&call->lock);
    if (!call->dead)
        start_batch(call, &op, 1, &call->closed);
    pthread_mutex_unlock(&call->lock);
}

static void run_handler(struct base_message *message)
{
    struct rpc_call *call = CALL_OF(message, message);
    if (rpc_call_cancelled(call))
        rpc_fail(call, BASE_CANCELLED,
                 "the caller has gone"); /* nobody waits: the handler's context may be gone as well */
    else
        call->handler(call->context, call, call->request);
}

static enum base_code check_token(const struct rpc_call *call, struct base_error *error)
{
    static const char scheme[] = "Bearer ";
    const char *key = rpc_server_token_key(call->server);
    char value[sizeof scheme + RPC_TOKEN_CHARS];
    if (!key || call->method->is_open)
        return BASE_OK;
    if (!rpc_metadata_find(&call->metadata, "authorization", value, sizeof value) ||
        strncmp(value, scheme, sizeof scheme - 1))
        return base_error_set(error, BASE_REFUSED, "a token is needed: this server has a secret");
    return rpc_token_check(key, value + sizeof scheme - 1, base_clock_wall_ns() / BASE_NS_PER_S, error);
}

static void dispatch(struct rpc_call *call)
{
    const struct rpc_method *method = call->method;
    struct base_error error;
    if (!method->descriptor) {
        rpc_fail(call, BASE_UNSUPPORTED, "no such method");
        return;
    }
    if (check_token(call, &error)) {
        rpc_fail(call, error.code, "%s", error.text);
        return;
    }
    enum base_code why;
    call->request = rpc_codec_unpack(method->descriptor->input, call->request_bytes, &why);
    if (!call->request) {
        bool starved = why == BASE_NO_MEMORY;
        rpc_fail(call, starved ? why : BASE_INVALID, "%s: %s", method->descriptor->name,
                 starved ? "no memory for the request" : "the request does not parse or is over a limit");
        return;
    }
    call->message.run = run_handler;
    struct base_mailbox *mailbox = method->is_inline ? NULL : rpc_server_mailbox(call->server);
    if (mailbox)
        base_mailbox_post(mailbox, &call->message);
    else
        run_handler(&call->message);
}

static void on_arrived(struct rpc_tag *tag, bool ok)
{
    struct rpc_call *call = CALL_OF(tag, arrived);
    if (!ok) { /* the server stops */
        free_call(call);
        return;
    }
    if (!rpc_call_arm(call->server, call->method)) {
        atomic_fetch_add(&call->method->missing, 1);
        base_log(BASE_LOG_ERROR, "rpc_no_memory", "method=%s",
                 call->method->descriptor ? call->method->descriptor->name : "*");
    }
    if (!rpc_server_link(call->server, call)) {
        free_call(call);
        return;
    }
    watch_close(call);
    dispatch(call);
}

static void arm(struct rpc_call *call, struct rpc_server *server, struct rpc_method *method)
{
    *call = (struct rpc_call){.arrived.run = on_arrived,
                              .closed.run = on_closed,
                              .sent.run = on_sent,
                              .server = server,
                              .method = method,
                              .handler = method->handler,
                              .context = method->context,
                              .held = true};
    pthread_mutex_init(&call->lock, NULL);
    grpc_metadata_array_init(&call->metadata);
    grpc_call_details_init(&call->details);
    if (!rpc_server_request(server, call))
        free_call(call);
}

bool rpc_call_arm(struct rpc_server *server, struct rpc_method *method)
{
    struct rpc_call *call = malloc(sizeof *call);
    if (call)
        arm(call, server, method);
    return call != NULL;
}
