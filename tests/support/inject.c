/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/inject.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cmocka.h>

enum { BLOCKS = 1 << 17, EVENTS = 4096, EVERY = 200, SPARSE = 20, STRIDE = 16, FOREIGN = 10 };

static struct inject_plan plan;
static atomic_uint armed, calls, failed;
static atomic_bool
    event[EVENTS]; /* an eventfd's counter cannot be full here: its reads and writes do not fail */

void inject_start(const struct inject_plan *wanted)
{
    plan = *wanted;
    calls = failed = 0;
    armed = wanted->kinds;
}

bool inject_stop(void)
{
    armed = 0;
    return failed > 0;
}

struct inject_plan inject_pause(void)
{
    armed = calls = 0;
    return plan;
}

/* Whether this call fails; sets errno. */
static bool hit(unsigned kind)
{
    if (!(armed & kind))
        return false;
    unsigned n = ++calls;
    if (n < plan.first || (n > plan.first && !plan.on))
        return false;
    failed++;
    errno = plan.error;
    return true;
}

bool inject_hit(unsigned kind)
{
    return hit(kind);
}

static bool hit_on(int fd)
{
    return !(fd >= 0 && fd < EVENTS && event[fd]) && hit(INJECT_CALL);
}

/* How much of `size` bytes moves. */
static size_t cut(int fd, size_t size)
{
    bool whole = size < 2 || (fd >= 0 && fd < EVENTS && event[fd]) || !hit(INJECT_SHORT);
    return whole ? size : size / 2;
}

/* ---- live blocks: a table with open addressing; what libc or another library frees for us stays in it ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const void *blocks[BLOCKS]; /* NULL: never used; GONE: was used */
static long live;
static const char gone;
#define GONE ((const void *)&gone)

static size_t place_of(const void *block)
{
    return (size_t)((uintptr_t)block / 16 * UINT64_C(0x9e3779b97f4a7c15) >> 40) % BLOCKS;
}

static void *keep(void *block)
{
    if (!block)
        return NULL;
    pthread_mutex_lock(&lock);
    size_t at = place_of(block), first = BLOCKS;
    for (int i = 0; i < BLOCKS && blocks[at] && blocks[at] != block; i++, at = (at + 1) % BLOCKS)
        if (blocks[at] == GONE && first == BLOCKS)
            first = at;
    if (blocks[at] != block) { /* else: freed behind our back, and here again */
        blocks[first < BLOCKS ? first : at] = block;
        live++;
    }
    pthread_mutex_unlock(&lock);
    return block;
}

static void *forget(void *block)
{
    if (!block)
        return NULL;
    pthread_mutex_lock(&lock);
    size_t at = place_of(block);
    for (int i = 0; i < BLOCKS && blocks[at] && blocks[at] != block; i++)
        at = (at + 1) % BLOCKS;
    if (blocks[at] == block) {
        blocks[at] = GONE;
        live--;
    }
    pthread_mutex_unlock(&lock);
    return block;
}

long inject_live_blocks(void)
{
    pthread_mutex_lock(&lock);
    long count = live;
    pthread_mutex_unlock(&lock);
    return count;
}

int inject_open_descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = -1; /* its own */
    while (folder && readdir(folder))
        count++;
    if (folder)
        closedir(folder);
    return count;
}

/* ---- what stands before libc ---- */

/* A function of libc, by the name that --wrap leaves for it, and ours. */
#define WRAP(type, name, ...)                                                                                \
    type __real_##name(__VA_ARGS__);                                                                         \
    type __wrap_##name(__VA_ARGS__);                                                                         \
    type __wrap_##name(__VA_ARGS__)

/* NOLINTBEGIN(bugprone-reserved-identifier): the linker's names */
void *__real_realloc(void *block, size_t size);

WRAP(void *, malloc, size_t size)
{
    return hit(INJECT_MEMORY) ? NULL : keep(__real_malloc(size));
}

WRAP(void *, calloc, size_t count, size_t size)
{
    return hit(INJECT_MEMORY) ? NULL : keep(__real_calloc(count, size));
}

WRAP(void *, realloc, void *block, size_t size)
{
    return hit(INJECT_MEMORY) ? NULL : keep(__real_realloc(forget(block), size));
}

WRAP(void *, aligned_alloc, size_t alignment, size_t size)
{
    return hit(INJECT_MEMORY) ? NULL : keep(__real_aligned_alloc(alignment, size));
}

WRAP(void *, reallocarray, void *block, size_t count, size_t size)
{
    return hit(INJECT_MEMORY) ? NULL : keep(__real_reallocarray(forget(block), count, size));
}

WRAP(char *, strdup, const char *text)
{
    return hit(INJECT_MEMORY) ? NULL : keep(__real_strdup(text));
}

WRAP(void, free, void *block)
{
    __real_free(forget(block));
}

__attribute__((format(printf, 2, 3))) int __wrap_asprintf(char **text, const char *format, ...);
int __wrap_asprintf(char **text, const char *format, ...)
{
    if (hit(INJECT_MEMORY))
        return -1;
    va_list args;
    va_start(args, format);
    int size = vasprintf(text, format, args);
    va_end(args);
    if (size >= 0)
        keep(*text);
    return size;
}

WRAP(void *, mmap, void *address, size_t size, int protection, int flags, int fd, off_t at)
{
    return hit(INJECT_MEMORY) ? (void *)-1 : __real_mmap(address, size, protection, flags, fd, at);
}

WRAP(int, pthread_create, pthread_t *id, const pthread_attr_t *attributes, void *(*run)(void *),
     void *argument)
{
    return hit(INJECT_THREAD) ? errno : __real_pthread_create(id, attributes, run, argument);
}

WRAP(ssize_t, read, int fd, void *bytes, size_t size)
{
    return hit_on(fd) ? -1 : __real_read(fd, bytes, cut(fd, size));
}

WRAP(ssize_t, pread, int fd, void *bytes, size_t size, off_t at)
{
    return hit_on(fd) ? -1 : __real_pread(fd, bytes, cut(fd, size), at);
}

WRAP(ssize_t, write, int fd, const void *bytes, size_t size)
{
    return hit_on(fd) ? -1 : __real_write(fd, bytes, cut(fd, size));
}

WRAP(ssize_t, pwrite, int fd, const void *bytes, size_t size, off_t at)
{
    return hit_on(fd) ? -1 : __real_pwrite(fd, bytes, cut(fd, size), at);
}

WRAP(ssize_t, send, int fd, const void *bytes, size_t size, int flags)
{
    return hit_on(fd) ? -1 : __real_send(fd, bytes, cut(fd, size), flags);
}

WRAP(ssize_t, recv, int fd, void *bytes, size_t size, int flags)
{
    return hit_on(fd) ? -1 : __real_recv(fd, bytes, cut(fd, size), flags);
}

/* Half of the first part that is not empty. */
static struct msghdr shortened(const struct msghdr *message, struct iovec *part)
{
    struct msghdr less = *message;
    size_t i = 0;
    while (i + 1 < message->msg_iovlen && message->msg_iov[i].iov_len == 0)
        i++;
    if (i < message->msg_iovlen) {
        *part = message->msg_iov[i];
        size_t moved = cut(-1, part->iov_len);
        if (moved < part->iov_len) {
            part->iov_len = moved;
            less.msg_iov = part;
            less.msg_iovlen = 1;
        }
    }
    return less;
}

WRAP(ssize_t, sendmsg, int fd, const struct msghdr *message, int flags)
{
    if (hit_on(fd))
        return -1;
    struct iovec part;
    struct msghdr less = shortened(message, &part);
    return __real_sendmsg(fd, &less, flags);
}

WRAP(ssize_t, recvmsg, int fd, struct msghdr *message, int flags)
{
    if (hit_on(fd))
        return -1;
    struct iovec part;
    struct msghdr less = shortened(message, &part);
    return __real_recvmsg(fd, &less, flags);
}

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    return hit(INJECT_CALL) ? -1 : __real_open(path, flags, mode);
}

/* openat2, for which libc has no name. */
long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);
long __wrap_syscall(long number, ...)
{
    long a[6];
    va_list args;
    va_start(args, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(args, long);
    va_end(args);
    return hit(INJECT_CALL) ? -1 : __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

WRAP(int, eventfd, unsigned count, int flags)
{
    int fd = hit(INJECT_CALL) ? -1 : __real_eventfd(count, flags);
    if (fd >= 0 && fd < EVENTS)
        event[fd] = true;
    return fd;
}

WRAP(int, close, int fd)
{
    if (fd >= 0 && fd < EVENTS)
        event[fd] = false;
    return __real_close(fd);
}

WRAP(int, fstat, int fd, struct stat *about)
{
    return hit(INJECT_CALL) ? -1 : __real_fstat(fd, about);
}

WRAP(int, stat, const char *path, struct stat *about)
{
    return hit(INJECT_CALL) ? -1 : __real_stat(path, about);
}

WRAP(int, fstatat, int fd, const char *path, struct stat *about, int flags)
{
    return hit(INJECT_CALL) ? -1 : __real_fstatat(fd, path, about, flags);
}

WRAP(int, fsync, int fd)
{
    return hit(INJECT_CALL) ? -1 : __real_fsync(fd);
}

WRAP(int, ftruncate, int fd, off_t size)
{
    return hit(INJECT_CALL) ? -1 : __real_ftruncate(fd, size);
}

WRAP(int, rename, const char *from, const char *to)
{
    return hit(INJECT_CALL) ? -1 : __real_rename(from, to);
}

WRAP(int, mkdir, const char *path, mode_t mode)
{
    return hit(INJECT_CALL) ? -1 : __real_mkdir(path, mode);
}

WRAP(int, mkostemp, char *name, int flags)
{
    return hit(INJECT_CALL) ? -1 : __real_mkostemp(name, flags);
}

WRAP(int, flock, int fd, int operation)
{
    return hit(INJECT_CALL) ? -1 : __real_flock(fd, operation);
}

WRAP(char *, realpath, const char *path, char *out)
{
    if (hit(INJECT_CALL))
        return NULL;
    char *real = __real_realpath(path, out);
    return out ? real : keep(real);
}

WRAP(DIR *, fdopendir, int fd)
{
    return hit(INJECT_CALL) ? NULL : __real_fdopendir(fd);
}

WRAP(struct dirent *, readdir, DIR *folder)
{
    return hit(INJECT_CALL) ? NULL : __real_readdir(folder);
}

WRAP(ssize_t, getrandom, void *bytes, size_t size, unsigned flags)
{
    return hit(INJECT_CALL) ? -1 : __real_getrandom(bytes, size, flags);
}

WRAP(int, socket, int domain, int type, int protocol)
{
    return hit(INJECT_CALL) ? -1 : __real_socket(domain, type, protocol);
}

WRAP(int, connect, int fd, const struct sockaddr *address, socklen_t size)
{
    return hit(INJECT_CALL) ? -1 : __real_connect(fd, address, size);
}

WRAP(int, bind, int fd, const struct sockaddr *address, socklen_t size)
{
    return hit(INJECT_CALL) ? -1 : __real_bind(fd, address, size);
}

WRAP(int, listen, int fd, int backlog)
{
    return hit(INJECT_CALL) ? -1 : __real_listen(fd, backlog);
}

WRAP(int, accept4, int fd, struct sockaddr *address, socklen_t *size, int flags)
{
    return hit(INJECT_CALL) ? -1 : __real_accept4(fd, address, size, flags);
}

/* A stream that is read through our own read: what libc reads for fread fails here, too. */
static ssize_t cookie_read(void *cookie, char *bytes, size_t size)
{
    int fd = fileno(cookie);
    return hit_on(fd) ? -1 : __real_read(fd, bytes, size);
}

static int cookie_close(void *cookie)
{
    return fclose(cookie);
}

WRAP(FILE *, fopen, const char *path, const char *mode)
{
    if (hit(INJECT_CALL))
        return NULL;
    FILE *file = __real_fopen(path, mode);
    if (!file || *mode != 'r')
        return file;
    return fopencookie(file, "r", (cookie_io_functions_t){.read = cookie_read, .close = cookie_close});
}
/* NOLINTEND(bugprone-reserved-identifier) */

/* ---- the driver ---- */

static const struct variant {
    struct inject_plan plan;
    const char *name;
} variants[] = {
    {{.kinds = INJECT_MEMORY, .error = ENOMEM}, "one allocation"},
    {{.kinds = INJECT_MEMORY, .error = ENOMEM, .on = true}, "allocations"},
    {{.kinds = INJECT_THREAD, .error = EAGAIN}, "one thread"},
    {{.kinds = INJECT_CALL, .error = EIO}, "one call (EIO)"},
    {{.kinds = INJECT_CALL, .error = ENOSPC, .on = true}, "calls (ENOSPC)"},
    {{.kinds = INJECT_CALL, .error = EINTR}, "one call (EINTR)"},
    {{.kinds = INJECT_SHORT}, "one short count"},
};

/* Fails the test when `code` is not what a failure, or its absence, must lead to. */
static void judge(const char *name, const struct variant *variant, unsigned n, enum base_code code,
                  bool failure, const struct base_error *error)
{
    if (code == BASE_OK) /* the run has checked what it got: a failure that was made up for */
        return;
    if (!failure)
        fail_msg("%s without a failure: %s: %s", name, base_error_name(code), error->text);
    if (error->code != code || !error->text[0])
        fail_msg("%s, %s failed from number %u: code %s, but the error says %s: \"%s\"", name, variant->name,
                 n, base_error_name(code), base_error_name(error->code), error->text);
    bool wrong = code == BASE_INTERNAL || strcmp(base_error_name(code), "unknown") == 0;
    if (variant->plan.kinds == INJECT_MEMORY && (code != BASE_NO_MEMORY || wrong))
        fail_msg("%s, %s failed from number %u: %s: %s", name, variant->name, n, base_error_name(code),
                 error->text);
}

static unsigned drive(const char *name, unsigned kinds, const struct variant *variant, inject_run run,
                      void *context)
{
    unsigned n = 1, runs = 0, every = kinds & INJECT_SPARSE ? SPARSE : EVERY;
    for (bool failure = true; failure; n += n < every ? 1 : (n + STRIDE) / STRIDE) {
        struct inject_plan now = variant->plan;
        struct base_error error = {BASE_OK, ""};
        long blocks_before = inject_live_blocks();
        int descriptors_before = inject_open_descriptors();
        now.first = n;
        inject_start(&now);
        enum base_code code = run(context, &error);
        failure = inject_stop();
        judge(name, variant, n, code, failure, &error);
        bool same = inject_live_blocks() == blocks_before && inject_open_descriptors() == descriptors_before;
        if (!same && !(kinds & INJECT_FOREIGN))
            fail_msg("%s, %s failed from number %u (%s): %ld blocks and %d descriptors are left", name,
                     variant->name, n, base_error_name(code), inject_live_blocks() - blocks_before,
                     inject_open_descriptors() - descriptors_before);
        runs++;
    }
    return runs - 1;
}

void inject_each(const char *name, unsigned kinds, inject_run run, void *context)
{
    struct base_error error = {BASE_OK, ""};
    inject_start(&(struct inject_plan){0});
    if (run(context, &error) != BASE_OK) /* once before, for what is made once in a process */
        fail_msg("%s without a failure: %s", name, error.text);
    unsigned runs = 0;
    int descriptors_before = inject_open_descriptors();
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
        if (variants[i].plan.kinds & kinds && !(variants[i].plan.on && kinds & INJECT_ONCE))
            runs += drive(name, kinds, &variants[i], run, context);
    print_message("           %s: %u failures\n", name, runs);
    assert_true(inject_open_descriptors() < descriptors_before + FOREIGN);
    assert_true(runs > 0); /* a test that injects nothing proves nothing */
}
