/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/fake_cuda.h"

#include "tests/support/fake_cuda/cuda.h"
#include "tests/support/fake_cuda/cuda_runtime_api.h"
#include "tests/support/fake_cuda_memory.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEVICES = 2, DEPTH = 16 };
enum policy { POLICY_RANDOM, POLICY_LATE, POLICY_AT_ONCE, POLICIES };

/* One cudaEventRecord: what waits, waits for it and not for what the event records later. */
struct record {
    int refs;
    bool done;
    int64_t at_ns;
    struct fake_stream *stream;
};

struct fake_event {
    int device;
    bool timing;
    struct record *last; /* NULL: never */
};

enum kind { OP_COPY, OP_KERNEL, OP_RECORD, OP_WAIT };

struct op {
    struct op *next;
    enum kind kind;
    void *to;
    const void *from;
    size_t bytes;
    void *own; /* of a pageable source or an argument, as it was at the call */
    struct fake_launch launch;
    struct record *record;
};

struct fake_stream {
    struct fake_stream *next;
    int device;
    bool destroyed; /* gone when its work is done */
    struct op *head, **tail;
};

struct fake_context {
    int retained;
};

static struct {
    pthread_mutex_t mutex;
    bool started;
    uint64_t random;
    enum policy policy;
    struct fake_stream *streams; /* the devices' own as well */
    struct fake_stream own[DEVICES];
    struct fake_context contexts[DEVICES];
    int events;
    int64_t clock_ns, copy_ns_a_kib, kernel_ns;
    unsigned fail_in;
    bool loses, failed, lost, old;
} fake = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local int stack[DEPTH], depth;
static _Thread_local cudaError_t last_error;

static uint64_t chance(uint64_t below)
{
    fake.random ^= fake.random << 13;
    fake.random ^= fake.random >> 7;
    fake.random ^= fake.random << 17;
    return fake.random % below;
}

/* ---- what work touches ---- */

static bool touches(const struct op *op, const struct fake_region *region)
{
    uintptr_t begin = (uintptr_t)region->base, end = begin + region->mapped, word;
    if (op->kind == OP_COPY)
        return fake_memory_find(op->to) == region || (!op->own && fake_memory_find(op->from) == region);
    for (size_t at = 0; op->kind == OP_KERNEL && at + sizeof word <= op->launch.argument_bytes;
         at += sizeof word) {
        memcpy(&word, (const char *)op->own + at, sizeof word);
        if (word >= begin && word < end)
            return true;
    }
    return false;
}

static void give_up(void *memory, bool pinned)
{
    struct fake_region *region = fake_memory_find(memory);
    if (!memory)
        return;
    if (!region || region->base != memory || region->pinned != pinned)
        fake_cuda_wrong("memory is freed that was not allocated so");
    for (const struct fake_stream *stream = fake.streams; stream; stream = stream->next)
        for (const struct op *op = stream->head; op; op = op->next)
            if (touches(op, region))
                fake_cuda_wrong("memory is freed that work under way uses");
    fake_memory_give(region);
}

/* ---- streams ---- */

static void drop_record(struct record *record)
{
    if (record && --record->refs == 0)
        free(record);
}

static void drop_op(struct op *op)
{
    drop_record(op->record);
    free(op->own);
    free(op);
}

static void forget_stream(struct fake_stream *stream)
{
    struct fake_stream **at = &fake.streams;
    while (*at != stream)
        at = &(*at)->next;
    *at = stream->next;
    free(stream);
}

static void execute(const struct op *op)
{
    if (op->kind == OP_WAIT)
        return;
    if (op->kind == OP_RECORD) {
        op->record->done = true;
        op->record->at_ns = fake.clock_ns;
        return;
    }
    fake_memory_open(true);
    if (op->kind == OP_COPY) {
        memcpy(op->to, op->own ? op->own : op->from, op->bytes);
        fake.clock_ns += (int64_t)op->bytes * fake.copy_ns_a_kib / 1024;
    } else {
        fake_cuda_run(&op->launch, op->own, chance(UINT32_MAX));
        fake.clock_ns += fake.kernel_ns;
    }
    fake_memory_open(false);
}

static bool runnable(const struct fake_stream *stream)
{
    return stream->head && (stream->head->kind != OP_WAIT || stream->head->record->done);
}

static void run_head(struct fake_stream *stream)
{
    struct op *op = stream->head;
    stream->head = op->next;
    if (!stream->head)
        stream->tail = &stream->head;
    execute(op);
    drop_op(op);
    if (!stream->head && stream->destroyed)
        forget_stream(stream);
}

/* One step towards the end of a stream: its own, or of the stream that it waits for. */
static void advance(struct fake_stream *stream)
{
    for (int hops = 0; !runnable(stream); hops++) {
        if (hops > 100)
            fake_cuda_wrong("streams wait in a circle");
        stream = stream->head->record->stream;
    }
    run_head(stream);
}

static struct fake_stream *any_stream(void)
{
    int count = 0;
    struct fake_stream *chosen = NULL;
    for (struct fake_stream *stream = fake.streams; stream; stream = stream->next)
        if (runnable(stream) && chance((uint64_t)++count) == 0)
            chosen = stream;
    return chosen;
}

/* A step towards what somebody waits for; or any other, which may come first. */
static void step(struct fake_stream *towards)
{
    struct fake_stream *other = fake.policy == POLICY_RANDOM && chance(2) ? any_stream() : NULL;
    if (other)
        run_head(other);
    else
        advance(towards);
}

static void force(const struct record *record)
{
    while (record && !record->done)
        step(record->stream);
}

static void force_stream(struct fake_stream *stream)
{
    while (stream->head)
        step(stream);
}

/* What happens meanwhile. */
static void tick(void)
{
    uint64_t steps = fake.policy == POLICY_RANDOM ? chance(4) : fake.policy == POLICY_LATE ? 0 : UINT64_MAX;
    struct fake_stream *stream;
    for (; steps > 0 && (stream = any_stream()) != NULL; steps--)
        run_head(stream);
}

static void lose_work(void)
{
    for (struct fake_stream *stream = fake.streams; stream; stream = stream->next) {
        for (struct op *op; (op = stream->head) != NULL; drop_op(op)) {
            stream->head = op->next;
            if (op->kind == OP_RECORD)
                op->record->done = true;
        }
        stream->tail = &stream->head;
    }
}

/* ---- calls ---- */

static void start(void)
{
    const char *seed = getenv("FAKE_CUDA_SEED");
    if (fake.started)
        return;
    fake.started = true;
    for (int i = 0; i < DEVICES; i++) {
        fake.own[i] = (struct fake_stream){.next = fake.streams, .device = i, .tail = &fake.own[i].head};
        fake.streams = &fake.own[i];
    }
    uint64_t number = seed ? strtoull(seed, NULL, 10) : 0;
    fake.random = number * 0x9e3779b97f4a7c15 + 1;
    fake.policy = (enum policy)(number % POLICIES);
}

enum call { CALL, CALL_ALLOCATE, CALL_FREE, CALL_DRIVER, CALL_PUSH };

/* Locks; what it returns is the call's end, if it is an error. */
static cudaError_t begin(enum call call)
{
    pthread_mutex_lock(&fake.mutex);
    start();
    if (call < CALL_DRIVER && depth == 0)
        fake_cuda_wrong("a runtime call without a context: it would make one on device 0");
    if (fake.lost)
        return call >= CALL_DRIVER ? cudaSuccess : cudaErrorIllegalAddress;
    if (call != CALL_FREE && call != CALL_PUSH && fake.fail_in > 0 && --fake.fail_in == 0) {
        fake.failed = true;
        fake.lost = fake.loses;
        if (!fake.lost)
            return call == CALL_ALLOCATE ? cudaErrorMemoryAllocation : cudaErrorUnknown;
        lose_work();
        return cudaErrorIllegalAddress;
    }
    tick();
    return cudaSuccess;
}

static CUresult driver_end(cudaError_t status)
{
    pthread_mutex_unlock(&fake.mutex);
    return (CUresult)status;
}

static cudaError_t end(cudaError_t status)
{
    pthread_mutex_unlock(&fake.mutex);
    if (status != cudaSuccess)
        last_error = status;
    return status;
}

static int current(void)
{
    return depth > 0 ? stack[depth - 1] : -1;
}

static struct fake_stream *stream_of(struct fake_stream *stream)
{
    struct fake_stream *at = fake.streams;
    if ((uintptr_t)stream <= 2) /* cudaStreamLegacy, cudaStreamPerThread: all threads' is one */
        return &fake.own[current()];
    while (at && at != stream)
        at = at->next;
    if (!at || at->destroyed)
        fake_cuda_wrong("a stream is used that is gone");
    return at;
}

static struct op *put(struct fake_stream *stream, enum kind kind)
{
    struct op *op = calloc(1, sizeof *op);
    if (!op)
        fake_cuda_wrong("no memory");
    op->kind = kind;
    *stream->tail = op;
    stream->tail = &op->next;
    return op;
}

static void *keep(const void *from, size_t bytes)
{
    void *kept = malloc(bytes + 1);
    if (!kept)
        fake_cuda_wrong("no memory");
    return memcpy(kept, from, bytes);
}

static cudaError_t put_copy(struct fake_stream *stream, void *to, const void *from, size_t bytes)
{
    if (!to || !from)
        return cudaErrorInvalidValue;
    fake_memory_check(to, bytes, "a copy to");
    fake_memory_check(from, bytes, "a copy from");
    struct op *op = put(stream, OP_COPY);
    op->to = to;
    op->from = from;
    op->bytes = bytes;
    if (!fake_memory_find(from))
        op->own = keep(from, bytes);
    if (!fake_memory_find(to))
        force_stream(stream);
    return cudaSuccess;
}

/* ---- the runtime ---- */

cudaError_t cudaGetLastError(void)
{
    cudaError_t status = last_error;
    last_error = cudaSuccess;
    return status;
}

const char *cudaGetErrorString(cudaError_t status)
{
    static const struct {
        cudaError_t status;
        const char *text;
    } texts[] = {
        {cudaSuccess, "no error"},
        {cudaErrorInvalidValue, "invalid argument"},
        {cudaErrorMemoryAllocation, "out of memory"},
        {cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device"},
        {cudaErrorInvalidResourceHandle, "invalid resource handle"},
        {cudaErrorNotReady, "device not ready"},
        {cudaErrorIllegalAddress, "an illegal memory access was encountered"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (texts[i].status == status)
            return texts[i].text;
    return "unknown error";
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function)
{
    cudaError_t status = begin(CALL);
    (void)function;
    attributes->binaryVersion = 90;
    if (status == cudaSuccess && fake.old)
        status = cudaErrorNoKernelImageForDevice;
    return end(status);
}

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    cudaError_t status = begin(CALL_ALLOCATE);
    if (status == cudaSuccess)
        *memory = fake_memory_take(bytes, false, current());
    return end(status);
}

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned flags)
{
    cudaError_t status = begin(CALL_ALLOCATE);
    if (status == cudaSuccess && flags == cudaHostAllocDefault)
        *memory = fake_memory_take(bytes, true, current());
    return end(status);
}

cudaError_t cudaFree(void *memory)
{
    cudaError_t status = begin(CALL_FREE);
    give_up(memory, false);
    return end(status);
}

cudaError_t cudaFreeHost(void *memory)
{
    cudaError_t status = begin(CALL_FREE);
    give_up(memory, true);
    return end(status);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    cudaError_t status = begin(CALL);
    (void)kind;
    if (status == cudaSuccess)
        status = put_copy(stream_of(stream), to, from, bytes);
    return end(status);
}

cudaError_t fake_cuda_launch(const struct fake_launch *launch, cudaStream_t stream)
{
    cudaError_t status = begin(CALL);
    if (status != cudaSuccess)
        return end(status);
    if (launch->grid.x == 0 || launch->grid.y == 0 || launch->grid.y > 65535 || launch->block.x == 0 ||
        launch->block.x > 1024)
        return end(cudaErrorInvalidValue);
    struct op *op = put(stream_of(stream), OP_KERNEL);
    op->launch = *launch;
    op->own = keep(launch->argument, launch->argument_bytes);
    return end(cudaSuccess);
}

static struct fake_stream *make_stream(unsigned flags)
{
    struct fake_stream *stream = calloc(1, sizeof *stream);
    if (!stream)
        fake_cuda_wrong("no memory");
    if (flags != cudaStreamNonBlocking)
        fake_cuda_wrong("streams that wait for the default stream are not made here");
    *stream = (struct fake_stream){.next = fake.streams, .device = current(), .tail = &stream->head};
    return fake.streams = stream;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    cudaError_t status = begin(CALL_ALLOCATE);
    if (status == cudaSuccess)
        *stream = make_stream(flags);
    return end(status);
}

static void end_stream(struct fake_stream *stream)
{
    stream_of(stream)->destroyed = true;
    if (!stream->head)
        forget_stream(stream);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    cudaError_t status = begin(CALL_FREE);
    end_stream(stream);
    return end(status);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    cudaError_t status = begin(CALL);
    if (status == cudaSuccess)
        force_stream(stream_of(stream));
    return end(status);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    cudaError_t status = begin(CALL);
    (void)flags;
    if (status == cudaSuccess && event->last) {
        event->last->refs++;
        put(stream_of(stream), OP_WAIT)->record = event->last;
    }
    return end(status);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    cudaError_t status = begin(CALL_ALLOCATE);
    if (status != cudaSuccess)
        return end(status);
    *event = calloc(1, sizeof **event);
    if (!*event)
        fake_cuda_wrong("no memory");
    (*event)->device = current();
    (*event)->timing = !(flags & cudaEventDisableTiming);
    fake.events++;
    return end(cudaSuccess);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    cudaError_t status = begin(CALL_FREE);
    drop_record(event->last);
    free(event);
    fake.events--;
    return end(status);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    cudaError_t status = begin(CALL);
    if (status != cudaSuccess)
        return end(status);
    struct fake_stream *on = stream_of(stream);
    if (on->device != event->device)
        return end(cudaErrorInvalidResourceHandle);
    struct record *record = calloc(1, sizeof *record);
    if (!record)
        fake_cuda_wrong("no memory");
    *record = (struct record){.refs = 2, .stream = on};
    put(on, OP_RECORD)->record = record;
    drop_record(event->last);
    event->last = record;
    return end(cudaSuccess);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    cudaError_t status = begin(CALL);
    if (status == cudaSuccess && event->last && !event->last->done)
        status = cudaErrorNotReady;
    return end(status);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    cudaError_t status = begin(CALL);
    if (status == cudaSuccess)
        force(event->last);
    return end(status);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    cudaError_t status = begin(CALL);
    if (status != cudaSuccess)
        return end(status);
    if (!from->timing || !to->timing || !from->last || !to->last)
        return end(cudaErrorInvalidResourceHandle);
    if (!from->last->done || !to->last->done)
        return end(cudaErrorNotReady);
    *ms = (float)(to->last->at_ns - from->last->at_ns) / 1e6f;
    return end(cudaSuccess);
}

/* ---- the driver ---- */

CUresult cuInit(unsigned flags)
{
    (void)flags;
    return driver_end(begin(CALL_DRIVER));
}

CUresult cuGetErrorString(CUresult status, const char **text)
{
    *text = cudaGetErrorString((cudaError_t)status);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
    *count = DEVICES;
    return driver_end(begin(CALL_DRIVER));
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return driver_end(begin(CALL_DRIVER));
}

CUresult cuDeviceGetName(char *name, int bytes, CUdevice device)
{
    snprintf(name, (size_t)bytes, "Fake %d", device);
    return driver_end(begin(CALL_DRIVER));
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    cudaError_t status = begin(CALL_DRIVER);
    *context = &fake.contexts[device];
    if (status == cudaSuccess)
        fake.contexts[device].retained++;
    return driver_end(status);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    pthread_mutex_lock(&fake.mutex);
    if (--fake.contexts[device].retained < 0)
        fake_cuda_wrong("a context is released that was not retained");
    if (fake.contexts[device].retained == 0 && fake_memory_count(device) > 0)
        fake_cuda_wrong("the last hold of a context goes before its memory");
    return driver_end(cudaSuccess);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    pthread_mutex_lock(&fake.mutex);
    *flags = 0;
    *active = fake.contexts[device].retained > 0;
    return driver_end(cudaSuccess);
}

CUresult cuCtxPushCurrent(CUcontext context)
{
    cudaError_t status = begin(CALL_PUSH);
    if (context->retained == 0)
        fake_cuda_wrong("a context is used that is not retained");
    if (depth == DEPTH)
        fake_cuda_wrong("contexts are pushed and not popped");
    if (status == cudaSuccess)
        stack[depth++] = (int)(context - fake.contexts);
    return driver_end(status);
}

CUresult cuCtxPopCurrent(CUcontext *context)
{
    if (depth == 0)
        fake_cuda_wrong("more contexts are popped than pushed");
    *context = &fake.contexts[stack[--depth]];
    return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoH(void *to, uint64_t from, size_t bytes)
{
    cudaError_t status = begin(CALL);
    struct fake_stream *own = stream_of(NULL);
    if (status == cudaSuccess)
        status = put_copy(own, to, (const void *)(uintptr_t)from, bytes);
    force_stream(own);
    return driver_end(status);
}

CUresult cuMemcpyDtoHAsync(void *to, uint64_t from, size_t bytes, CUstream stream)
{
    return (CUresult)cudaMemcpyAsync(to, (const void *)(uintptr_t)from, bytes, cudaMemcpyDeviceToHost,
                                     stream);
}

CUresult cuMemHostAlloc(void **memory, size_t bytes, unsigned flags)
{
    return (CUresult)cudaHostAlloc(memory, bytes, flags);
}

CUresult cuMemFreeHost(void *memory)
{
    return (CUresult)cudaFreeHost(memory);
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    return (CUresult)cudaStreamCreateWithFlags(stream, flags);
}

CUresult cuStreamSynchronize(CUstream stream)
{
    return (CUresult)cudaStreamSynchronize(stream);
}

CUresult cuStreamDestroy(CUstream stream)
{
    return (CUresult)cudaStreamDestroy(stream);
}

/* ---- what tests say, while nothing runs ---- */

void fake_cuda_start(uint64_t seed)
{
    pthread_mutex_lock(&fake.mutex);
    start();
    fake.random = seed * 0x9e3779b97f4a7c15 + 1;
    fake.policy = (enum policy)(seed % POLICIES);
    fake.copy_ns_a_kib = fake.kernel_ns = 0;
    pthread_mutex_unlock(&fake.mutex);
}

void fake_cuda_costs(int64_t copy_ns_a_kib, int64_t kernel_ns)
{
    fake.copy_ns_a_kib = copy_ns_a_kib;
    fake.kernel_ns = kernel_ns;
}

void fake_cuda_fail(unsigned n, bool lost)
{
    fake.fail_in = n;
    fake.loses = lost;
    fake.failed = false;
}

void fake_cuda_old(bool old)
{
    fake.old = old;
}

bool fake_cuda_failed(void)
{
    pthread_mutex_lock(&fake.mutex);
    bool failed = fake.failed;
    fake.fail_in = 0;
    fake.failed = fake.lost = false;
    pthread_mutex_unlock(&fake.mutex);
    return failed;
}

int fake_cuda_live(void)
{
    pthread_mutex_lock(&fake.mutex);
    int live = fake.events + fake_memory_count(-1);
    for (const struct fake_stream *stream = fake.streams; stream; stream = stream->next)
        live += stream < fake.own || stream >= fake.own + DEVICES;
    pthread_mutex_unlock(&fake.mutex);
    return live;
}

int fake_cuda_current(void)
{
    return current();
}

__attribute__((destructor)) static void finish(void)
{
    int live = fake_cuda_live();
    if (live == 0)
        return;
    fprintf(stderr, "fake CUDA: %d of memory, streams and events are left\n", live);
    _exit(1);
}
