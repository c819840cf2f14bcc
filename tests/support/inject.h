/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Failures on demand: the n-th allocation, thread or system call that our code makes fails (and, if asked, all after it).
 * Linked into a test, `inject` stands before libc in every object of it by the linker's --wrap; shared libraries (cmocka, gRPC, libzstd)
 * call libc itself and are not touched. Any thread.
 *
 *   inject_each("mailbox", create_and_use, NULL)
 *     for each kind of failure, n = 1, 2, ... until no call was left to fail: run
 *       must return BASE_OK with what it should have done done, or a code with a text that says what failed,
 *       and leave neither memory nor a descriptor behind
 */
#ifndef TESTS_SUPPORT_INJECT_H
#define TESTS_SUPPORT_INJECT_H

#include "base/error.h"

/* Kinds, to be or-ed. */
enum {
    INJECT_MEMORY = 1, /* malloc and its like, strdup, asprintf, mmap: ENOMEM */
    INJECT_THREAD = 2, /* pthread_create: EAGAIN */
    INJECT_CALL = 4,   /* open, read, write, fsync, socket, ...: EIO; ENOSPC and all after it; EINTR */
    INJECT_SHORT = 8,  /* read, write, send, recv and theirs move half of the bytes */
    INJECT_ALL = 15,
    INJECT_FOREIGN =
        16, /* inject_each: other libraries free some blocks of ours, and close descriptors in their own time: neither
                            is counted after each run (LeakSanitizer does, and descriptors may not add up over all) */
    INJECT_SPARSE = 64, /* inject_each: a run is dear: not each n beyond the first few */
    INJECT_ONCE = 32,   /* inject_each: one call at a time fails, not all after it, too */
};

/* One failure in detail, for tests that drive by hand. */
struct inject_plan {
    unsigned kinds;
    unsigned first; /* the first call of these kinds that fails, from 1 */
    bool on;        /* all after it fail, too */
    int error;      /* errno; unused for INJECT_SHORT */
};
void inject_start(const struct inject_plan *plan);
bool inject_stop(void); /* true: a call failed since inject_start */
/* Stops what has not begun to fail yet; inject_start() with the result goes on. For what must come first in a run. */
struct inject_plan inject_pause(void);

/* Whether a call of this kind, made by a library on its own, fails now (errno says how): for hooks that such a library offers. */
bool inject_hit(unsigned kind);

/* Runs an operation from nothing to nothing. It calls inject_stop() itself once what is tested is over, and then checks and frees. */
typedef enum base_code (*inject_run)(void *context, struct base_error *error);
void inject_each(const char *name, unsigned kinds, inject_run run, void *context);

/* Blocks that our code has allocated and not freed; descriptors that are open. */
long inject_live_blocks(void);
int inject_open_descriptors(void);

#endif
