/* SPDX-License-Identifier: Apache-2.0 */
#include "client/src/resolve.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct client_resolve {
    struct gaicb request;
    struct addrinfo hints;
    char host[256], service[8], address[BASE_ADDRESS_CHARS];
};

bool client_resolve_literal(const char *address)
{
    char host[256];
    uint16_t port;
    struct in6_addr any; /* large enough for both */
    if (base_address_parse(address, host, &port, NULL) != BASE_OK)
        return true; /* dialling will say what is wrong with it */
    return inet_pton(AF_INET, host, &any) == 1 || inet_pton(AF_INET6, host, &any) == 1;
}

enum base_code client_resolve_start(struct client_resolve **out, const char *address,
                                    struct base_error *error)
{
    uint16_t port;
    struct client_resolve *resolve = calloc(1, sizeof *resolve);
    if (!resolve)
        return base_error_set(error, BASE_NO_MEMORY, "no memory to resolve %s", address);
    enum base_code code = base_address_parse(address, resolve->host, &port, error);
    if (code != BASE_OK) {
        free(resolve);
        return code;
    }
    snprintf(resolve->address, sizeof resolve->address, "%s", address);
    snprintf(resolve->service, sizeof resolve->service, "%u", port);
    resolve->hints = (struct addrinfo){.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    resolve->request = (struct gaicb){
        .ar_name = resolve->host, .ar_service = resolve->service, .ar_request = &resolve->hints};
    struct gaicb *list[1] = {&resolve->request};
    int failed = getaddrinfo_a(GAI_NOWAIT, list, 1, NULL);
    if (failed) {
        free(resolve);
        return base_error_set(error, BASE_UNAVAILABLE, "address \"%s\": %s", address, gai_strerror(failed));
    }
    *out = resolve;
    return BASE_OK;
}

enum base_code client_resolve_poll(struct client_resolve *resolve, char numeric[BASE_ADDRESS_CHARS],
                                   struct base_error *error)
{
    char host[NI_MAXHOST];
    int state = gai_error(&resolve->request);
    if (state == EAI_INPROGRESS)
        return BASE_BUSY;
    const struct addrinfo *found = state == 0 ? resolve->request.ar_result : NULL;
    if (found)
        state = getnameinfo(found->ai_addr, found->ai_addrlen, host, sizeof host, NULL, 0, NI_NUMERICHOST);
    if (!found || state != 0)
        return base_error_set(error, BASE_UNAVAILABLE, "address \"%s\": %s", resolve->address,
                              gai_strerror(state));
    bool v6 = found->ai_family == AF_INET6;
    snprintf(numeric, BASE_ADDRESS_CHARS, v6 ? "[%.255s]:%s" : "%.255s:%s", host, resolve->service);
    return BASE_OK;
}

void client_resolve_end(struct client_resolve *resolve)
{
    if (!resolve)
        return;
    if (gai_error(&resolve->request) == EAI_INPROGRESS && gai_cancel(&resolve->request) == EAI_NOTCANCELED)
        return; /* libc still writes to it and has no way to wait: a few hundred bytes are let go */
    if (resolve->request.ar_result)
        freeaddrinfo(resolve->request.ar_result);
    free(resolve);
}
