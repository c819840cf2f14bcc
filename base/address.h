/* SPDX-License-Identifier: Apache-2.0 */
/* "host:port", "[v6]:port": parsing, listening and dialling. Sockets are non-blocking and close-on-exec. */
#ifndef BASE_ADDRESS_H
#define BASE_ADDRESS_H

#include "base/error.h"

#include <stddef.h>

#define BASE_ADDRESS_CHARS 300

/* Splits; port 0..65535. Errors quote the text. */
enum base_code base_address_parse(const char *text, char host[256], uint16_t *port, struct base_error *error);
/* True for 127.0.0.0/8, ::1 and the name localhost. */
bool base_address_is_loopback(const char *host);

/* Resolves, binds (SO_REUSEADDR, never SO_REUSEPORT) and listens. *fd is the caller's. Port 0: any free one. */
enum base_code base_address_listen(const char *text, int *fd, struct base_error *error);
/* Starts a connect: *fd is non-blocking and may still be connecting (poll for writing, then base_address_connected).
 * Resolution is done here: call it off the loop when names may be slow; literals never block. */
enum base_code base_address_dial(const char *text, int *fd, struct base_error *error);
enum base_code base_address_connected(int fd, const char *text, struct base_error *error);
/* "127.0.0.1:4242" of a bound socket. */
enum base_code base_address_local(int fd, char *text, size_t text_bytes, struct base_error *error);

#endif
