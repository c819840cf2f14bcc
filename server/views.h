/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP port's paths; their context is the struct server. */
#ifndef SERVER_VIEWS_H
#define SERVER_VIEWS_H

#include "server/http/http.h"

extern const struct http_route server_routes[];
extern const int server_route_count;

#endif
