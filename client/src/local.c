/* SPDX-License-Identifier: Apache-2.0 */
#include "client/src/local.h"

#include "base/log.h"

#include <event2/event.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Little enough to lie in the cache still when it is verified. */
enum { STRIDE_BYTES = 128 * 1024 };

void client_local_init(struct client_local *local, void (*mapped)(void *context), void *context)
{
    *local = (struct client_local){.fd = -1, .mapped = mapped, .context = context};
}

static void hang_up(struct client_local *local)
{
    if (local->readable)
        event_free(local->readable);
    if (local->fd >= 0)
        close(local->fd);
    local->readable = NULL;
    local->fd = -1;
}

void client_local_fini(struct client_local *local)
{
    hang_up(local);
    if (local->memory)
        munmap((void *)(uintptr_t)local->memory, local->size_bytes);
    local->memory = NULL;
}

/* ---- asking ---- */

static int receive_descriptor(int fd)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    char byte;
    int got = -1;
    struct iovec iov = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    if (recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT) <= 0)
        return -1;
    const struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
        header->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(&got, CMSG_DATA(header), sizeof got);
    return got;
}

/* Memory that could become shorter would kill us while we read it. */
static bool map(struct client_local *local, int fd)
{
    struct stat stat;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &stat) != 0 || stat.st_size <= 0)
        return false;
    void *memory = wire_local_map(fd, (uint64_t)stat.st_size, PROT_READ);
    if (!memory)
        return false;
    local->memory = memory;
    local->size_bytes = (uint64_t)stat.st_size;
    return true;
}

static void on_readable(evutil_socket_t fd, short what, void *context)
{
    (void)what;
    struct client_local *local = context;
    int got = receive_descriptor(fd);
    bool mapped = got >= 0 && map(local, got);
    if (got >= 0)
        close(got);
    hang_up(local);
    base_log(BASE_LOG_DEBUG, mapped ? "local_mapped" : "local_refused", "bytes=%llu",
             (unsigned long long)local->size_bytes);
    if (mapped)
        local->mapped(local->context);
}

void client_local_ask(struct client_local *local, struct event_base *base,
                      const uint8_t name[WIRE_LOCAL_NAME_BYTES])
{
    struct sockaddr_un address;
    socklen_t size = wire_local_address(name, &address);
    if (local->fd >= 0 || local->memory)
        return;
    local->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (local->fd >= 0 && connect(local->fd, (struct sockaddr *)&address, size) == 0 &&
        wire_local_is_ours(local->fd, NULL))
        local->readable = event_new(base, local->fd, EV_READ | EV_PERSIST, on_readable, local);
    if (!local->readable || event_add(local->readable, NULL) != 0)
        hang_up(local);
}

/* ---- rows ---- */

/* Where the bytes from `offset` of the whole payload lie. */
static struct iovec source(const struct client_local *local, const struct wire_local_part *whole,
                           uint64_t offset)
{
    if (offset < whole->head_bytes)
        return (struct iovec){(void *)(uintptr_t)(whole->head + offset), whole->head_bytes - offset};
    offset -= whole->head_bytes;
    int i = 0;
    while (offset >= whole->runs[i].size)
        offset -= whole->runs[i++].size;
    return (struct iovec){(void *)(uintptr_t)(local->memory + whole->runs[i].offset + offset),
                          whole->runs[i].size - offset};
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

enum base_code client_local_read(const struct client_local *local, const struct wire_header *header,
                                 const uint8_t *payload, struct wire_local_part *lent,
                                 struct base_error *error)
{
    *lent = (struct wire_local_part){0};
    if (!local->memory)
        return base_error_set(error, BASE_CORRUPT, "DATA in memory that is not mapped here");
    return wire_local_read(payload, header->length, local->size_bytes, lent, error);
}

enum base_code client_local_take(const struct client_local *local, struct client_part *part, int64_t now_ns,
                                 const struct wire_header *header, const struct wire_local_part *lent,
                                 struct base_error *error)
{
    struct wire_header data = *header;
    struct iovec into = {0};
    enum base_code code = BASE_OK;
    data.length = lent->length;
    for (uint64_t offset = 0; code == BASE_OK && offset < data.length;) {
        if (into.iov_len == 0)
            code = client_part_sink(part, now_ns, &data, offset, &into, error);
        if (code != BASE_OK || part->scratch) /* nobody waits for it any more: not worth a copy */
            break;
        struct iovec from = source(local, lent, offset);
        size_t size = least(least(from.iov_len, into.iov_len), STRIDE_BYTES);
        memcpy(into.iov_base, from.iov_base, size);
        into.iov_base = (uint8_t *)into.iov_base + size;
        into.iov_len -= size;
        offset += size;
        code = client_part_placed(part, offset, error);
    }
    return code == BASE_OK ? client_part_done(part, now_ns, &data, error) : code;
}
