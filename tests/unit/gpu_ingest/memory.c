/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/gpu_ingest/memory.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* CUDA's driver by hand: the tests build without its headers. */
typedef int (*driver_init)(unsigned);
typedef int (*driver_count)(int *);
typedef int (*driver_state)(int, unsigned *, int *);
typedef int (*driver_retain)(void **, int);
typedef int (*driver_push)(void *);
typedef int (*driver_pop)(void **);
typedef int (*driver_copy)(void *, uint64_t, size_t);
typedef int (*driver_copy_async)(void *, uint64_t, size_t, void *);
typedef int (*driver_stream_create)(void **, unsigned);
typedef int (*driver_stream)(void *);

static void *symbol(const char *name)
{
    static void *library; /* of the test program: loaded once */
    if (!library)
        library = dlopen("libcuda.so.1", RTLD_NOW);
    return library ? dlsym(library, name) : NULL;
}

static void must(int status, const char *what)
{
    if (status == 0)
        return;
    fprintf(stderr, "CUDA: %s failed with %d\n", what, status);
    abort();
}

int memory_devices(void)
{
    driver_init init = (driver_init)symbol("cuInit");
    driver_count count = (driver_count)symbol("cuDeviceGetCount");
    int devices = 0;
    return init && count && init(0) == 0 && count(&devices) == 0 ? devices : 0;
}

const char *memory_no_cuda(void)
{
#ifdef MILLRACE_CUDA
    if (!symbol("cuInit"))
        return "no CUDA driver";
    return memory_devices() > 0 ? NULL : "no CUDA device";
#else
    return "no CUDA backend in this build";
#endif
}

bool memory_context_lives(int ordinal)
{
    unsigned flags;
    int active = 0;
    must(((driver_state)symbol("cuDevicePrimaryCtxGetState"))(ordinal, &flags, &active), "state");
    return active != 0;
}

static bool on_host(const struct mr_device *device)
{
    return mr_device_backend(device) == MR_BACKEND_HOST;
}

/* Its context lives as long as the process; the device under test has it anyhow. */
static void enter(void)
{
    static void *context;
    if (!context)
        must(((driver_retain)symbol("cuDevicePrimaryCtxRetain"))(&context, 0), "retain");
    must(((driver_push)symbol("cuCtxPushCurrent_v2"))(context), "push");
}

static void leave(void)
{
    void *context;
    must(((driver_pop)symbol("cuCtxPopCurrent_v2"))(&context), "pop");
}

void memory_fetch(const struct mr_device *device, void *to, const void *from, size_t bytes)
{
    if (on_host(device)) {
        memcpy(to, from, bytes);
        return;
    }
    enter();
    must(((driver_copy)symbol("cuMemcpyDtoH_v2"))(to, (uintptr_t)from, bytes), "copy");
    leave();
}

void *memory_stream_create(const struct mr_device *device)
{
    void *stream = NULL;
    if (on_host(device))
        return NULL;
    enter();
    must(((driver_stream_create)symbol("cuStreamCreate"))(&stream, 1), "stream");
    leave();
    return stream;
}

void memory_stream_copy(const struct mr_device *device, void *stream, void *to, const void *from,
                        size_t bytes)
{
    if (on_host(device)) {
        memcpy(to, from, bytes);
        return;
    }
    enter();
    must(((driver_copy_async)symbol("cuMemcpyDtoHAsync_v2"))(to, (uintptr_t)from, bytes, stream), "copy");
    leave();
}

void memory_stream_wait(const struct mr_device *device, void *stream)
{
    if (on_host(device))
        return;
    enter();
    must(((driver_stream)symbol("cuStreamSynchronize"))(stream), "wait");
    leave();
}

void memory_stream_destroy(const struct mr_device *device, void *stream)
{
    if (on_host(device))
        return;
    enter();
    must(((driver_stream)symbol("cuStreamDestroy_v2"))(stream), "destroy");
    leave();
}
