/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rpc/health.h"

#include "proto/rpc/codec.h"
#include "proto/rpc/server.h"
#include "proto/schema/health.pb-c.h"

#define STATUS(name) GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__##name

static void check(void *context, struct rpc_call *call, const ProtobufCMessage *request)
{
    const struct rpc_server *server = context;
    const Grpc__Health__V1__HealthCheckRequest *asked = (const void *)request;
    if (!rpc_server_has_service(server, asked->service)) {
        rpc_fail(call, BASE_NOT_FOUND, "no service of this name here");
        return;
    }
    Grpc__Health__V1__HealthCheckResponse reply = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    reply.status = rpc_server_is_serving(server) ? STATUS(SERVING) : STATUS(NOT_SERVING);
    rpc_reply(call, &reply.base);
}

static int current_status(const struct rpc_call *call)
{
    if (!call->watch.known)
        return STATUS(SERVICE_UNKNOWN);
    return rpc_server_is_serving(call->server) ? STATUS(SERVING) : STATUS(NOT_SERVING);
}

/* Sends what there is to say, unless something is under way. */
static void say(struct rpc_call *call)
{
    struct rpc_watch *watch = &call->watch;
    if (watch->sending || call->dead || !call->held || rpc_call_cancelled(call))
        return;
    int status = current_status(call);
    bool first = !watch->started;
    if (watch->ended) {
        rpc_call_send_status(call, NULL, first, BASE_UNAVAILABLE, "the server stops");
        return;
    }
    if (!first && status == watch->last_sent)
        return;
    Grpc__Health__V1__HealthCheckResponse reply = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    reply.status = (Grpc__Health__V1__HealthCheckResponse__ServingStatus)status;
    grpc_byte_buffer *bytes = NULL;
    if (rpc_codec_pack(&reply.base, &bytes, NULL))
        return;
    watch->started = watch->sending = true;
    watch->last_sent = status;
    rpc_call_send_message(call, bytes, first);
}

static void watch(void *context, struct rpc_call *call, const ProtobufCMessage *request)
{
    const Grpc__Health__V1__HealthCheckRequest *asked = (const void *)request;
    bool known = rpc_server_has_service(context, asked->service);
    pthread_mutex_lock(&call->lock);
    call->watch =
        (struct rpc_watch){.active = true, .known = known, .ended = rpc_server_is_stopping(context)};
    say(call);
    pthread_mutex_unlock(&call->lock);
}

void rpc_health_sent(struct rpc_call *call, bool ok)
{
    call->watch.sending = false;
    if (ok)
        say(call);
}

void rpc_health_push(struct rpc_call *call, bool end)
{
    call->watch.ended |= end;
    say(call);
}

const ProtobufCServiceDescriptor *const rpc_health_service = &grpc__health__v1__health__descriptor;
const rpc_handler rpc_health_handlers[RPC_HEALTH_METHODS] = {check, watch};
