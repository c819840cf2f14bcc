/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/orders.h"

#include <stdlib.h>
#include <string.h>

enum { HASH_BYTES = 32 };

void worker_orders_fini(struct worker_orders *orders)
{
    if (orders->whole)
        millrace__v1__worker_orders__free_unpacked(orders->whole, NULL);
    *orders = (struct worker_orders){0};
}

/* A reply lives only in its callback. */
static Millrace__V1__WorkerOrders *copy_of(const Millrace__V1__WorkerOrders *reply)
{
    size_t size = protobuf_c_message_get_packed_size(&reply->base);
    uint8_t *bytes = malloc(size + 1);
    if (bytes)
        protobuf_c_message_pack(&reply->base, bytes);
    Millrace__V1__WorkerOrders *copy = bytes ? millrace__v1__worker_orders__unpack(NULL, size, bytes) : NULL;
    free(bytes);
    return copy;
}

static bool is_of(const Millrace__V1__StreamOrder *order, const ProtobufCBinaryData *hash)
{
    return order && order->stream && order->stream->hash.len == hash->len &&
           memcmp(order->stream->hash.data, hash->data, hash->len) == 0;
}

/* The server names streams mostly in one order: the search goes on behind the one that was found last. */
static Millrace__V1__StreamOrder **find(const Millrace__V1__WorkerOrders *old,
                                        const ProtobufCBinaryData *hash, size_t *at)
{
    for (size_t i = 0; old && i < old->n_streams; i++) {
        *at = *at + 1 < old->n_streams ? *at + 1 : 0;
        if (is_of(old->streams[*at], hash))
            return &old->streams[*at];
    }
    return NULL;
}

static void want(struct worker_orders *orders, const ProtobufCBinaryData *hash)
{
    size_t at = orders->wanted_count;
    if (hash->len != HASH_BYTES || at == WORKER_ORDERS_WANTED)
        return;
    memcpy(orders->hashes[at], hash->data, HASH_BYTES);
    orders->wanted[at] = (ProtobufCBinaryData){HASH_BYTES, orders->hashes[at]};
    orders->wanted_count++;
}

/* A stream that has changed, but not its plan: the plan is the one from before. */
static void keep_plan(struct worker_orders *orders, Millrace__V1__StreamOrder *order, size_t *at)
{
    if (order->plan || order->plan_version == 0 || !order->stream)
        return;
    Millrace__V1__StreamOrder **before = find(orders->whole, &order->stream->hash, at);
    if (before && (*before)->plan && (*before)->plan->version == order->plan_version) {
        order->plan = (*before)->plan;
        (*before)->plan = NULL;
    } else {
        want(orders, &order->stream->hash);
    }
}

/* Those that are named only move over from the old orders; a place in a list that moved is empty. */
static void keep_streams(struct worker_orders *orders, Millrace__V1__WorkerOrders *next)
{
    size_t at = 0;
    orders->wanted_count = 0;
    for (size_t i = 0; i < next->n_streams; i++)
        keep_plan(orders, next->streams[i], &at);
    for (size_t i = 0; i < next->n_kept; i++) {
        Millrace__V1__StreamOrder **before = find(orders->whole, &next->kept[i], &at);
        if (before) {
            next->streams[next->n_streams++] = *before;
            *before = NULL;
        } else {
            want(orders, &next->kept[i]);
        }
    }
}

static void keep_all(struct worker_orders *orders, Millrace__V1__WorkerOrders *next)
{
    next->streams = orders->whole->streams;
    next->n_streams = orders->whole->n_streams;
    orders->whole->streams = NULL;
    orders->whole->n_streams = 0;
}

/* Room for those that will move over. */
static bool grow(Millrace__V1__WorkerOrders *next)
{
    size_t count = next->n_streams + next->n_kept;
    if (next->n_kept == 0)
        return true;
    Millrace__V1__StreamOrder **grown = realloc(next->streams, count * sizeof(Millrace__V1__StreamOrder *));
    if (grown)
        next->streams = grown;
    return grown != NULL;
}

static void free_old(Millrace__V1__WorkerOrders *old)
{
    size_t kept = 0;
    for (size_t i = 0; i < old->n_streams; i++)
        if (old->streams[i])
            old->streams[kept++] = old->streams[i];
    if (kept == 0) {
        free(old->streams); /* protobuf-c frees no empty list */
        old->streams = NULL;
    }
    old->n_streams = kept;
    millrace__v1__worker_orders__free_unpacked(old, NULL);
}

enum worker_orders_taken worker_orders_take(struct worker_orders *orders,
                                            const Millrace__V1__WorkerOrders *reply)
{
    Millrace__V1__WorkerOrders *old = orders->whole;
    if (old && (reply->revision < old->revision || reply->told < old->told))
        return WORKER_ORDERS_OLD;
    Millrace__V1__WorkerOrders *next = copy_of(reply);
    if (!next || !grow(next)) {
        if (next)
            millrace__v1__worker_orders__free_unpacked(next, NULL);
        return WORKER_ORDERS_NO_MEMORY;
    }
    if (old && next->streams_kept)
        keep_all(orders, next);
    else
        keep_streams(orders, next);
    if (old)
        free_old(old);
    orders->whole = next;
    return WORKER_ORDERS_TAKEN;
}
