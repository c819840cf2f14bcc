/* SPDX-License-Identifier: Apache-2.0 */
/* Names of workers to numbers without blocking the loop: a thread of its own asks libc, we look from time to time. */
#ifndef CLIENT_RESOLVE_H
#define CLIENT_RESOLVE_H

#include "base/address.h"

#define CLIENT_RESOLVE_POLL_MS 5

struct client_resolve;

/* True: `address` ("host:port") has a literal host and needs no resolving. */
bool client_resolve_literal(const char *address);
enum base_code client_resolve_start(struct client_resolve **resolve, const char *address,
                                    struct base_error *error);
/* BASE_OK: `numeric` is the address, to dial; BASE_BUSY: not yet; else: it failed. */
enum base_code client_resolve_poll(struct client_resolve *resolve, char numeric[BASE_ADDRESS_CHARS],
                                   struct base_error *error);
/* At any time; never blocks. NULL is fine. */
void client_resolve_end(struct client_resolve *resolve);

#endif
