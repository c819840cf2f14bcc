/* SPDX-License-Identifier: Apache-2.0 */
#include "base/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HOST_BYTES = 256, BACKLOG = 1024 };

static bool parse_port(const char *text, uint16_t *port)
{
    unsigned value = 0;
    size_t digits = strspn(text, "0123456789");
    if (!digits || digits > 5 || text[digits])
        return false;
    for (size_t i = 0; i < digits; i++)
        value = value * 10 + (unsigned)(text[i] - '0');
    *port = (uint16_t)value;
    return value <= UINT16_MAX;
}

enum base_code base_address_parse(const char *text, char host[256], uint16_t *port, struct base_error *error)
{
    const char *start = text, *colon = strrchr(text, ':'), *end = colon;
    if (strstr(text, "://"))
        return base_error_set(error, BASE_INVALID, "address \"%s\": host:port is needed, not a URL", text);
    if (!colon)
        return base_error_set(error, BASE_INVALID, "address \"%s\": no port, host:port is needed", text);
    if (*text == '[') {
        if (colon == text || colon[-1] != ']')
            return base_error_set(error, BASE_INVALID, "address \"%s\": \"]:port\" is missing", text);
        start++;
        end--;
    } else if (memchr(text, ':', (size_t)(colon - text))) {
        return base_error_set(error, BASE_INVALID, "address \"%s\": IPv6 needs brackets: [::1]:port", text);
    }
    size_t size = (size_t)(end - start);
    if (!size || size >= HOST_BYTES)
        return base_error_set(error, BASE_INVALID, "address \"%.300s\": the host is %s", text,
                              size ? "too long" : "empty");
    if (!parse_port(colon + 1, port))
        return base_error_set(error, BASE_INVALID, "address \"%s\": the port is not 0 to 65535", text);
    memcpy(host, start, size);
    host[size] = 0;
    return BASE_OK;
}

bool base_address_is_loopback(const char *host)
{
    struct in_addr v4;
    struct in6_addr v6;
    if (strcasecmp(host, "localhost") == 0)
        return true;
    if (inet_pton(AF_INET, host, &v4) == 1)
        return ntohl(v4.s_addr) >> 24 == 127;
    if (inet_pton(AF_INET6, host, &v6) != 1)
        return false;
    return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
}

static enum base_code resolve(const char *text, int flags, struct addrinfo **found, struct base_error *error)
{
    char host[HOST_BYTES], service[8];
    uint16_t port = 0;
    enum base_code code = base_address_parse(text, host, &port, error);
    if (code)
        return code;
    snprintf(service, sizeof service, "%u", port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV};
    int why = getaddrinfo(host, service, &hints, found);
    if (!why)
        return BASE_OK;
    /* A name that is unknown now may be known later: its host may not have started yet. */
    return base_error_set(error, why == EAI_MEMORY ? BASE_NO_MEMORY : BASE_UNAVAILABLE, "address \"%s\": %s",
                          text, why == EAI_SYSTEM ? strerror(errno) : gai_strerror(why));
}

static int open_socket(const struct addrinfo *at)
{
    return socket(at->ai_family, at->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, at->ai_protocol);
}

static int try_listen(const struct addrinfo *at)
{
    int fd = open_socket(at);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

static int try_dial(const struct addrinfo *at)
{
    int fd = open_socket(at);
    if (fd < 0)
        return -1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    if (connect(fd, at->ai_addr, at->ai_addrlen) == 0 || errno == EINPROGRESS)
        return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

/* The first of the resolved addresses that works. */
static enum base_code open_first(const char *text, int flags, int (*try)(const struct addrinfo *), int *fd,
                                 struct base_error *error)
{
    struct addrinfo *found;
    enum base_code code = resolve(text, flags, &found, error);
    if (code)
        return code;
    int why = 0;
    *fd = -1;
    for (struct addrinfo *at = found; at && *fd < 0; at = at->ai_next) {
        *fd = try(at);
        why = errno;
    }
    freeaddrinfo(found);
    return *fd < 0
               ? base_error_errno(error, why, "%s %s", try == try_listen ? "listen on" : "connect to", text)
               : BASE_OK;
}

enum base_code base_address_listen(const char *text, int *fd, struct base_error *error)
{
    return open_first(text, AI_PASSIVE, try_listen, fd, error);
}

enum base_code base_address_dial(const char *text, int *fd, struct base_error *error)
{
    return open_first(text, 0, try_dial, fd, error);
}

enum base_code base_address_connected(int fd, const char *text, struct base_error *error)
{
    int why = 0;
    socklen_t size = sizeof why;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &size) < 0)
        why = errno;
    return why ? base_error_errno(error, why, "connect to %s", text) : BASE_OK;
}

enum base_code base_address_local(int fd, char *text, size_t text_bytes, struct base_error *error)
{
    struct sockaddr_storage name = {0};
    socklen_t size = sizeof name;
    char host[HOST_BYTES], port[8];
    if (getsockname(fd, (struct sockaddr *)&name, &size) < 0)
        return base_error_errno(error, errno, "getsockname of descriptor %d", fd);
    int why = getnameinfo((struct sockaddr *)&name, size, host, sizeof host, port, sizeof port,
                          NI_NUMERICHOST | NI_NUMERICSERV);
    if (why)
        return base_error_set(error, BASE_INTERNAL, "address of descriptor %d: %s", fd, gai_strerror(why));
    int chars = snprintf(text, text_bytes, name.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
    if (chars < 0 || (size_t)chars >= text_bytes)
        return base_error_set(error, BASE_TOO_LARGE, "address of descriptor %d does not fit %zu bytes", fd,
                              text_bytes);
    return BASE_OK;
}
