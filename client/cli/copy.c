/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/copy.h"

#include "base/address.h"
#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HEADER_BYTES = 64, CONNECT_MS = 5000, LARGE_PAGE_BYTES = 2 << 20 };

struct header {
    uint64_t bytes; /* of the payload; 0: the end */
    double cpu_s;   /* at the end: of the sender */
    uint8_t rest[HEADER_BYTES - 16];
};

struct cli_copy {
    pid_t pid;
    int fd;
};

double cli_copy_cpu_s(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static bool send_all(int fd, const void *head, size_t head_bytes, const void *body, size_t body_bytes)
{
    struct iovec parts[] = {{(void *)(uintptr_t)head, head_bytes}, {(void *)(uintptr_t)body, body_bytes}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    while (parts[0].iov_len + parts[1].iov_len > 0) {
        ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            return false;
        for (int i = 0; i < 2; i++) {
            size_t taken = (size_t)sent < parts[i].iov_len ? (size_t)sent : parts[i].iov_len;
            parts[i].iov_base = (char *)parts[i].iov_base + taken;
            parts[i].iov_len -= taken;
            sent -= (ssize_t)taken;
        }
    }
    return true;
}

static bool receive_all(int fd, void *bytes, size_t size)
{
    for (uint8_t *at = bytes; size > 0;) {
        ssize_t got = recv(fd, at, size, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        at += got;
        size -= (size_t)got;
    }
    return true;
}

/* Memory that is there, not only promised, and in large pages as staging and batch slots are. */
static uint8_t *touched(size_t size)
{
    size_t whole = (size + LARGE_PAGE_BYTES - 1) / LARGE_PAGE_BYTES * LARGE_PAGE_BYTES;
    uint8_t *memory = aligned_alloc(LARGE_PAGE_BYTES, whole);
    if (memory) {
        madvise(memory, whole, MADV_HUGEPAGE); /* a hint */
        memset(memory, 0x5A, whole);
    }
    return memory;
}

/* ---- the sender ---- */

static bool send_for(int fd, const struct cli_copy_work *work)
{
    uint8_t *set = touched(work->sent_set_bytes);
    if (!set)
        return false;
    double cpu_before = cli_copy_cpu_s();
    int64_t end_ns = base_clock_now_ns() + work->duration_ns;
    bool sent = true;
    for (size_t at = 0; sent && base_clock_now_ns() < end_ns; at += work->message_bytes) {
        if (at + work->message_bytes > work->sent_set_bytes)
            at = 0;
        struct header header = {.bytes = work->message_bytes};
        sent = send_all(fd, &header, sizeof header, set + at, work->message_bytes);
    }
    struct header end = {.cpu_s = cli_copy_cpu_s() - cpu_before};
    free(set);
    return sent && send_all(fd, &end, sizeof end, NULL, 0);
}

static _Noreturn void send_until_closed(const char *address, pid_t parent)
{
    struct cli_copy_work work;
    int fd;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent || base_address_dial(address, &fd, NULL))
        _exit(1);
    struct pollfd wait = {fd, POLLOUT, 0};
    if (poll(&wait, 1, CONNECT_MS) != 1 || base_address_connected(fd, address, NULL) ||
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK))
        _exit(1);
    while (receive_all(fd, &work, sizeof work) && send_for(fd, &work))
        ;
    _exit(0);
}

/* ---- the receiver ---- */

static enum base_code accept_sender(int listener, int *fd, struct base_error *error)
{
    struct pollfd wait = {listener, POLLIN, 0};
    if (poll(&wait, 1, CONNECT_MS) != 1)
        return base_error_set(error, BASE_TIMEOUT, "socket copy: the sender did not connect");
    *fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    return *fd >= 0 ? BASE_OK : base_error_errno(error, errno, "socket copy");
}

enum base_code cli_copy_start(struct cli_copy **copy, struct base_error *error)
{
    char address[BASE_ADDRESS_CHARS];
    int listener = -1;
    struct cli_copy *c = calloc(1, sizeof *c);
    if (!c)
        return base_error_set(error, BASE_NO_MEMORY, "no memory");
    c->fd = -1;
    enum base_code code = base_address_listen("127.0.0.1:0", &listener, error);
    if (code == BASE_OK)
        code = base_address_local(listener, address, sizeof address, error);
    pid_t parent = getpid();
    c->pid = code == BASE_OK ? fork() : 0;
    if (code == BASE_OK && c->pid == 0)
        send_until_closed(address, parent);
    if (code == BASE_OK)
        code = accept_sender(listener, &c->fd, error);
    if (listener >= 0)
        close(listener);
    if (code == BASE_OK)
        *copy = c;
    else
        cli_copy_stop(&c);
    return code;
}

void cli_copy_stop(struct cli_copy **copy)
{
    struct cli_copy *c = *copy;
    *copy = NULL;
    if (!c)
        return;
    if (c->fd >= 0)
        close(c->fd);
    if (c->pid > 0) {
        kill(c->pid, SIGKILL);
        waitpid(c->pid, NULL, 0);
    }
    free(c);
}

enum base_code cli_copy_run(struct cli_copy *copy, const struct cli_copy_work *work,
                            struct cli_copy_result *result, struct base_error *error)
{
    uint8_t *set = touched(work->received_set_bytes);
    if (!set)
        return base_error_set(error, BASE_NO_MEMORY, "socket copy: no memory");
    *result = (struct cli_copy_result){0};
    double cpu_before = 0;
    int64_t start_ns = 0;
    bool going = send_all(copy->fd, work, sizeof *work, NULL, 0);
    struct header header = {0};
    for (size_t at = 0; going; at += header.bytes) {
        going = receive_all(copy->fd, &header, sizeof header);
        if (!going || header.bytes == 0)
            break;
        if (start_ns == 0) { /* the sender had to take its memory first */
            start_ns = base_clock_now_ns();
            cpu_before = cli_copy_cpu_s();
        }
        if (at + header.bytes > work->received_set_bytes)
            at = 0;
        going = receive_all(copy->fd, set + at, header.bytes);
        result->bytes += header.bytes;
    }
    result->wall_s = (double)(base_clock_now_ns() - start_ns) / 1e9;
    result->receiver_cpu_s = cli_copy_cpu_s() - cpu_before;
    result->sender_cpu_s = header.cpu_s;
    free(set);
    return going ? BASE_OK : base_error_set(error, BASE_CLOSED, "socket copy: the sender went away");
}
