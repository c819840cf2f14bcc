/* SPDX-License-Identifier: Apache-2.0 */
#include "client/src/resolve.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

/* Two hold it: who asked, and the thread, which cannot be called back from inside libc. The last one frees it. */
struct client_resolve {
    atomic_int holders;
    atomic_bool done; /* what follows is there to be read */
    enum base_code code;
    struct base_error error;
    char numeric[BASE_ADDRESS_CHARS];
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

static void let_go(struct client_resolve *resolve)
{
    if (atomic_fetch_sub(&resolve->holders, 1) == 1)
        free(resolve);
}

static void look_up(struct client_resolve *resolve)
{
    char host[NI_MAXHOST];
    struct addrinfo *found = NULL, hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    int failed = getaddrinfo(resolve->host, resolve->service, &hints, &found);
    if (!failed)
        failed = getnameinfo(found->ai_addr, found->ai_addrlen, host, sizeof host, NULL, 0, NI_NUMERICHOST);
    if (failed)
        resolve->code = base_error_set(&resolve->error, BASE_UNAVAILABLE, "address \"%s\": %s",
                                       resolve->address, gai_strerror(failed));
    else if (found->ai_family == AF_INET6)
        snprintf(resolve->numeric, sizeof resolve->numeric, "[%.255s]:%s", host, resolve->service);
    else
        snprintf(resolve->numeric, sizeof resolve->numeric, "%.255s:%s", host, resolve->service);
    if (found)
        freeaddrinfo(found);
}

static void *run(void *context)
{
    struct client_resolve *resolve = context;
    look_up(resolve);
    atomic_store(&resolve->done, true);
    let_go(resolve);
    return NULL;
}

static enum base_code start_thread(struct client_resolve *resolve, struct base_error *error)
{
    pthread_attr_t detached;
    pthread_t thread;
    sigset_t all, before;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the host program's */
    int failed = pthread_create(&thread, &detached, run, resolve);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&detached);
    return failed ? base_error_errno(error, failed, "resolving %s", resolve->address) : BASE_OK;
}

enum base_code client_resolve_start(struct client_resolve **out, const char *address,
                                    struct base_error *error)
{
    uint16_t port = 0;
    struct client_resolve *resolve = calloc(1, sizeof *resolve);
    if (!resolve)
        return base_error_set(error, BASE_NO_MEMORY, "no memory to resolve %s", address);
    atomic_store(&resolve->holders, 2);
    snprintf(resolve->address, sizeof resolve->address, "%s", address);
    enum base_code code = base_address_parse(address, resolve->host, &port, error);
    snprintf(resolve->service, sizeof resolve->service, "%u", port);
    if (code == BASE_OK)
        code = start_thread(resolve, error);
    if (code != BASE_OK) {
        free(resolve);
        return code;
    }
    *out = resolve;
    return BASE_OK;
}

enum base_code client_resolve_poll(struct client_resolve *resolve, char numeric[BASE_ADDRESS_CHARS],
                                   struct base_error *error)
{
    if (!atomic_load(&resolve->done))
        return BASE_BUSY;
    if (resolve->code != BASE_OK)
        return base_error_set(error, resolve->code, "%s", resolve->error.text);
    snprintf(numeric, BASE_ADDRESS_CHARS, "%s", resolve->numeric);
    return BASE_OK;
}

void client_resolve_end(struct client_resolve *resolve)
{
    if (resolve)
        let_go(resolve);
}
