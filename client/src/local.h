/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The staging memory of a worker on this host, mapped for reading (proto/wire/local.h). Whatever keeps us from it, another host, another
 * user, an old kernel: nothing is lost, rows come by the connection's socket. Loop thread only.
 *
 *   closed --LOCAL: its Unix socket answers--> asking --descriptor, sealed--> mapped
 *      ^-------------- refused, or anything wrong -----+
 */
#ifndef CLIENT_LOCAL_H
#define CLIENT_LOCAL_H

#include "client/src/part.h"
#include "proto/wire/local.h"

struct event;
struct event_base;

struct client_local {
    int fd; /* of the Unix socket while asking, else -1 */
    struct event *readable;
    const uint8_t *memory; /* NULL: not mapped */
    uint64_t size_bytes;
    void (*mapped)(void *context); /* it is, from now on */
    void *context;
};

void client_local_init(struct client_local *local, void (*mapped)(void *context), void *context);
void client_local_fini(struct client_local *local);
void client_local_ask(struct client_local *local, struct event_base *base,
                      const uint8_t name[WIRE_LOCAL_NAME_BYTES]);

/* A DATA frame of rows that lie there: what it lends. CORRUPT, and a loan of 0, when it makes no sense. */
enum base_code client_local_read(const struct client_local *local, const struct wire_header *header,
                                 const uint8_t *payload, struct wire_local_part *lent,
                                 struct base_error *error);
/* Copied to where they go and verified, as if they had come by the socket. */
enum base_code client_local_take(const struct client_local *local, struct client_part *part, int64_t now_ns,
                                 const struct wire_header *header, const struct wire_local_part *lent,
                                 struct base_error *error);

#endif
