/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/local.h"

#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BACKLOG = 64, TURN_MAX = 64 };

struct worker_local {
    int listen_fd, fd;
    struct event *acceptable;
    uint8_t name[WIRE_LOCAL_NAME_BYTES];
};

const uint8_t *worker_local_name(const struct worker_local *local)
{
    return local->name;
}

/* Who shares a namespace sees the same things there. */
static bool shares(pid_t pid, const char *kind)
{
    char path[64];
    struct stat mine, theirs;
    snprintf(path, sizeof path, "/proc/self/ns/%s", kind);
    bool known = stat(path, &mine) == 0;
    snprintf(path, sizeof path, "/proc/%d/ns/%s", (int)pid, kind);
    return known && stat(path, &theirs) == 0 && mine.st_ino == theirs.st_ino && mine.st_dev == theirs.st_dev;
}

static bool may_read(int peer)
{
    pid_t pid;
    return wire_local_is_ours(peer, &pid) && pid > 0 && shares(pid, "user") && shares(pid, "pid");
}

static void give(int peer, int fd)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    char byte = 0;
    struct iovec iov = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    (void)sendmsg(peer, &message, MSG_NOSIGNAL | MSG_DONTWAIT); /* who misses it goes on by its socket */
}

static void on_acceptable(evutil_socket_t listener, short what, void *context)
{
    (void)what;
    const struct worker_local *local = context;
    for (int i = 0; i < TURN_MAX; i++) { /* the rest comes round again */
        int peer = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (peer < 0)
            return;
        if (may_read(peer))
            give(peer, local->fd);
        close(peer);
    }
}

static bool listen_on(struct worker_local *local)
{
    struct sockaddr_un address;
    if (getrandom(local->name, sizeof local->name, 0) != (ssize_t)sizeof local->name)
        return false;
    socklen_t size = wire_local_address(local->name, &address);
    local->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    return local->listen_fd >= 0 && bind(local->listen_fd, (struct sockaddr *)&address, size) == 0 &&
           listen(local->listen_fd, BACKLOG) == 0;
}

enum base_code worker_local_start(struct worker_local **out, struct event_base *loop, int fd,
                                  struct base_error *error)
{
    struct worker_local *local = calloc(1, sizeof *local);
    if (!local)
        return base_error_set(error, BASE_NO_MEMORY, "no memory for the local socket");
    local->fd = fd;
    local->listen_fd = -1;
    *out = local;
    if (listen_on(local))
        local->acceptable = event_new(loop, local->listen_fd, EV_READ | EV_PERSIST, on_acceptable, local);
    if (local->acceptable && event_add(local->acceptable, NULL) == 0)
        return BASE_OK;
    base_error_errno(error, errno, "local socket");
    worker_local_stop(out);
    return BASE_UNAVAILABLE;
}

void worker_local_stop(struct worker_local **out)
{
    struct worker_local *local = *out;
    *out = NULL;
    if (!local)
        return;
    if (local->acceptable)
        event_free(local->acceptable);
    if (local->listen_fd >= 0)
        close(local->listen_fd);
    free(local);
}
