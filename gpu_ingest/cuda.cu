/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backend on CUDA. One stream a lane takes copies and kernels in order; three events an entry, one a stage:
 *
 *   lane's stream:     [wait freed] copy in, labels, draws (copied) kernels (ready)
 *     finished on the CPU: [wait freed] copy of the stage (its copied) (ready)
 *   trainer's stream:                                         [wait ready] its work (freed)
 *
 * Contexts: the driver is loaded at run time, so that this library loads where there is none. The primary context of the
 * device asked for is retained, and pushed and popped around each call: the runtime then works on that device, no other gets
 * a context (cudaSetDevice, to go back to where the thread was, would make one there), and the caller's own is as before.
 * That context is the one that the runtime, and so the trainer's framework, uses as well.
 */
#include "gpu_ingest/backend.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

namespace
{

enum { THREADS = 256, PIXELS_A_THREAD = 16, GRID_MOST = 65535 /* of a grid's height */ };

struct driver {
    decltype(&cuInit) init;
    decltype(&cuGetErrorString) error_string;
    decltype(&cuDeviceGetCount) device_count;
    decltype(&cuDeviceGet) device_get;
    decltype(&cuDeviceGetName) device_name;
    decltype(&cuDevicePrimaryCtxRetain) retain;
    decltype(&cuDevicePrimaryCtxRelease) release;
    decltype(&cuCtxPushCurrent) push;
    decltype(&cuCtxPopCurrent) pop;
};

struct device {
    struct driver driver;
    int ordinal;
    CUdevice handle;
    CUcontext context;
};

struct entry {
    struct ingest_place place;
    cudaEvent_t copied, ready, freed[MR_STREAMS]; /* freed: but for the first made when they are needed */
    uint32_t released;                            /* so many of freed have been recorded */
};

/* Pinned memory in which the CPU finishes a batch, two in turn: one is written while the other is copied. */
struct stage {
    void *image, *label;
    cudaEvent_t copied;
    int used; /* copied has been recorded */
};

/* Of the batch that is being measured. */
struct meter {
    cudaEvent_t begun, copied, done;
    uint64_t copied_bytes;
};

struct lane {
    struct device *device;
    cudaStream_t stream;
    uint32_t ring;
    struct entry *entries;
    uint8_t *in; /* one will do: copies and kernels come in turn */
    int64_t *labels;
    struct mr_row_draw *draws;
    struct ingest_tables *tables;
    struct stage stages[2];
    uint32_t turn;
    struct meter meter;
};

/* ---- kernels ---- */

__global__ void images(struct ingest_work work)
{
    __shared__ struct ingest_tables tables;
    for (uint32_t i = threadIdx.x; i < INGEST_CHANNELS * 256; i += blockDim.x) {
        tables.values[i / 256][i % 256] = work.tables->values[i / 256][i % 256];
        tables.bits[i / 256][i % 256] = work.tables->bits[i / 256][i % 256];
    }
    __syncthreads();
    work.tables = &tables;
    uint32_t begin = blockIdx.x * blockDim.x + threadIdx.x, stride = gridDim.x * blockDim.x;
    for (uint32_t image = blockIdx.y; image < ingest_images(&work); image += gridDim.y)
        ingest_any_image(&work, work.dtype, work.channels_first, image, begin, stride);
}

__global__ void labels(struct ingest_work work)
{
    uint32_t row = blockIdx.x, count = work.classes > 0 ? work.classes : 1;
    for (uint32_t at = threadIdx.x; at < count; at += blockDim.x)
        ingest_label(&work, row, at);
}

/* ---- device ---- */

enum mr_code said(const struct device *device, cudaError_t status, const char *what, struct mr_error *error)
{
    if (status == cudaSuccess)
        return MR_OK;
    cudaGetLastError(); /* what does not last is not met again */
    return ingest_error_set(error, status == cudaErrorMemoryAllocation ? MR_NO_MEMORY : MR_IO,
                            "cuda:%d: %s: %s", device->ordinal, what, cudaGetErrorString(status));
}

enum mr_code driver_said(const struct driver *driver, CUresult status, enum mr_code code, int ordinal,
                         struct mr_error *error)
{
    const char *text = NULL;
    driver->error_string(status, &text);
    return ingest_error_set(error, code, "cuda:%d: %s", ordinal, text ? text : "the driver failed");
}

/* The thread works on the device until leave. */
enum mr_code enter(const struct device *device, struct mr_error *error)
{
    CUresult status = device->driver.push(device->context);
    return status == CUDA_SUCCESS ? MR_OK
                                  : driver_said(&device->driver, status, MR_IO, device->ordinal, error);
}

void leave(const struct device *device)
{
    CUcontext popped;
    device->driver.pop(&popped);
}

template <typename F> bool find(void *library, const char *name, F *function)
{
    *function = (F)dlsym(library, name);
    return *function != NULL;
}

/* The library stays loaded: threads of the driver's own live in it. */
enum mr_code load(struct driver *driver, struct mr_error *error)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return ingest_error_set(error, MR_NOT_FOUND, "cuda: no driver on this machine: %s", dlerror());
    if (find(library, "cuInit", &driver->init) && find(library, "cuGetErrorString", &driver->error_string) &&
        find(library, "cuDeviceGetCount", &driver->device_count) &&
        find(library, "cuDeviceGet", &driver->device_get) &&
        find(library, "cuDeviceGetName", &driver->device_name) &&
        find(library, "cuDevicePrimaryCtxRetain", &driver->retain) &&
        find(library, "cuDevicePrimaryCtxRelease_v2", &driver->release) &&
        find(library, "cuCtxPushCurrent_v2", &driver->push) &&
        find(library, "cuCtxPopCurrent_v2", &driver->pop))
        return MR_OK;
    return ingest_error_set(error, MR_NOT_FOUND, "cuda: the driver on this machine is too old");
}

/* This build may have no code for a device that is older, nor its driver know this runtime: said now, not at the first batch. */
enum mr_code check_kernels(const struct device *device, const char *name, struct mr_error *error)
{
    struct cudaFuncAttributes attributes;
    enum mr_code code = enter(device, error);
    if (code != MR_OK)
        return code;
    cudaError_t status = cudaFuncGetAttributes(&attributes, (const void *)images);
    leave(device);
    if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInsufficientDriver)
        return ingest_error_set(error, MR_UNSUPPORTED, "%s: not with this build: %s", name,
                                cudaGetErrorString(status));
    return said(device, status, name, error);
}

enum mr_code open_device(struct device *device, int ordinal, char *name, struct mr_error *error)
{
    struct driver *driver = &device->driver;
    char model[200] = "";
    int count = 0;
    enum mr_code code = load(driver, error);
    if (code != MR_OK)
        return code;
    CUresult status = driver->init(0);
    if (status == CUDA_SUCCESS)
        status = driver->device_count(&count);
    if (status != CUDA_SUCCESS)
        return driver_said(driver, status, MR_NOT_FOUND, ordinal, error);
    if (ordinal >= count)
        return ingest_error_set(error, MR_NOT_FOUND, "cuda:%d: this machine has %d CUDA devices", ordinal,
                                count);
    device->ordinal = ordinal;
    status = driver->device_get(&device->handle, ordinal);
    if (status == CUDA_SUCCESS)
        status = driver->device_name(model, sizeof model, device->handle);
    if (status == CUDA_SUCCESS)
        status = driver->retain(&device->context, device->handle);
    if (status != CUDA_SUCCESS)
        return driver_said(driver, status, MR_IO, ordinal, error);
    snprintf(name, INGEST_NAME_CHARS, "cuda:%d %s", ordinal, model);
    code = check_kernels(device, name, error);
    if (code != MR_OK)
        driver->release(device->handle);
    return code;
}

enum mr_code cuda_open(void **out, int ordinal, char name[INGEST_NAME_CHARS], struct mr_error *error)
{
    struct device *device = (struct device *)calloc(1, sizeof *device);
    if (!device)
        return ingest_error_set(error, MR_NO_MEMORY, "cuda:%d: no memory", ordinal);
    enum mr_code code = open_device(device, ordinal, name, error);
    if (code != MR_OK)
        free(device);
    else
        *out = device;
    return code;
}

void cuda_close(void *handle)
{
    struct device *device = (struct device *)handle;
    device->driver.release(device->handle);
    free(device);
}

void *cuda_slot_allocate(void *handle, size_t bytes)
{
    const struct device *device = (const struct device *)handle;
    void *memory = NULL;
    if (enter(device, NULL) != MR_OK)
        return NULL;
    if (said(device, cudaHostAlloc(&memory, bytes > 0 ? bytes : 1, cudaHostAllocDefault), "", NULL) != MR_OK)
        memory = NULL;
    leave(device);
    return memory;
}

void cuda_slot_free(void *handle, void *memory)
{
    const struct device *device = (const struct device *)handle;
    if (enter(device, NULL) != MR_OK)
        return;
    said(device, cudaFreeHost(memory), "", NULL);
    leave(device);
}

/* ---- lane ---- */

cudaError_t take_entry(struct entry *entry, const struct ingest_plan *plan)
{
    cudaError_t status = cudaMalloc(&entry->place.image, plan->image_bytes);
    if (status == cudaSuccess)
        status = cudaMalloc(&entry->place.label, plan->label_bytes);
    if (status == cudaSuccess)
        status = cudaHostAlloc((void **)&entry->place.draws, plan->images * sizeof *entry->place.draws,
                               cudaHostAllocDefault);
    if (status == cudaSuccess)
        status = cudaEventCreateWithFlags(&entry->copied, cudaEventDisableTiming);
    if (status == cudaSuccess)
        status = cudaEventCreateWithFlags(&entry->ready, cudaEventDisableTiming);
    if (status == cudaSuccess)
        status = cudaEventCreateWithFlags(&entry->freed[0], cudaEventDisableTiming);
    return status;
}

cudaError_t take_stage(struct stage *stage, const struct ingest_plan *plan)
{
    cudaError_t status = cudaHostAlloc(&stage->image, plan->image_bytes, cudaHostAllocDefault);
    if (status == cudaSuccess)
        status = cudaHostAlloc(&stage->label, plan->label_bytes, cudaHostAllocDefault);
    if (status == cudaSuccess)
        status = cudaEventCreateWithFlags(&stage->copied, cudaEventDisableTiming);
    return status;
}

cudaError_t take_meter(struct meter *meter)
{
    cudaError_t status = cudaEventCreateWithFlags(&meter->begun, cudaEventDefault);
    if (status == cudaSuccess)
        status = cudaEventCreateWithFlags(&meter->copied, cudaEventDefault);
    if (status == cudaSuccess)
        status = cudaEventCreateWithFlags(&meter->done, cudaEventDefault);
    return status;
}

cudaError_t take_lane(struct lane *lane, const struct ingest_plan *plan)
{
    cudaError_t status = cudaStreamCreateWithFlags(&lane->stream, cudaStreamNonBlocking);
    if (status == cudaSuccess)
        status = cudaMalloc((void **)&lane->in, plan->in_bytes);
    if (status == cudaSuccess)
        status = cudaMalloc((void **)&lane->labels, plan->batch * sizeof *lane->labels);
    if (status == cudaSuccess)
        status = cudaMalloc((void **)&lane->draws, plan->images * sizeof *lane->draws);
    if (status == cudaSuccess)
        status = cudaMalloc((void **)&lane->tables, sizeof *lane->tables);
    if (status == cudaSuccess)
        status =
            cudaMemcpyAsync(lane->tables, plan->tables, sizeof *lane->tables, cudaMemcpyHostToDevice,
                            lane->stream); /* a plain cudaMemcpy may still be under way when kernels begin */
    for (uint32_t i = 0; i < lane->ring && status == cudaSuccess; i++)
        status = take_entry(&lane->entries[i], plan);
    for (int i = 0; i < 2 && plan->stages && status == cudaSuccess; i++)
        status = take_stage(&lane->stages[i], plan);
    if (status == cudaSuccess)
        status = take_meter(&lane->meter);
    return status;
}

void free_event(cudaEvent_t event)
{
    if (event)
        cudaEventDestroy(event);
}

/* Freeing NULL is fine. */
void free_stage(struct stage *stage)
{
    if (stage->used)
        cudaEventSynchronize(stage->copied);
    cudaFreeHost(stage->image);
    cudaFreeHost(stage->label);
    free_event(stage->copied);
    *stage = {};
}

void free_entry(struct entry *entry)
{
    for (uint32_t i = 0; i < entry->released; i++)
        cudaEventSynchronize(entry->freed[i]); /* the trainer's stream may still read */
    cudaFree(entry->place.image);
    cudaFree(entry->place.label);
    cudaFreeHost(entry->place.draws);
    free_event(entry->copied);
    free_event(entry->ready);
    for (cudaEvent_t freed : entry->freed)
        free_event(freed);
}

void free_meter(struct meter *meter)
{
    free_event(meter->begun);
    free_event(meter->copied);
    free_event(meter->done);
}

void cuda_lane_destroy(void *handle)
{
    struct lane *lane = (struct lane *)handle;
    if (enter(lane->device, NULL) == MR_OK) {
        if (lane->stream)
            cudaStreamSynchronize(lane->stream);
        for (uint32_t i = 0; i < lane->ring; i++)
            free_entry(&lane->entries[i]);
        for (int i = 0; i < 2; i++)
            free_stage(&lane->stages[i]);
        free_meter(&lane->meter);
        cudaFree(lane->in);
        cudaFree(lane->labels);
        cudaFree(lane->draws);
        cudaFree(lane->tables);
        if (lane->stream)
            cudaStreamDestroy(lane->stream);
        cudaGetLastError();
        leave(lane->device);
    }
    free(lane->entries);
    free(lane);
}

enum mr_code cuda_lane_create(void **out, void *handle, const struct ingest_plan *plan,
                              struct mr_error *error)
{
    struct device *device = (struct device *)handle;
    struct lane *lane = (struct lane *)calloc(1, sizeof *lane);
    struct entry *entries = (struct entry *)calloc(plan->ring, sizeof *entries);
    char what[120];
    enum mr_code code = MR_NO_MEMORY;
    if (lane && entries)
        code = enter(device, error);
    else
        ingest_error_set(error, code, "cuda:%d: no memory for a lane", device->ordinal);
    if (code != MR_OK) {
        free(entries);
        free(lane);
        return code;
    }
    lane->device = device;
    lane->ring = plan->ring;
    lane->entries = entries;
    snprintf(what, sizeof what, "a ring of %u batches of %zu bytes", plan->ring,
             plan->image_bytes + plan->label_bytes);
    code = said(device, take_lane(lane, plan), what, error);
    leave(device);
    if (code == MR_OK)
        *out = lane;
    else
        cuda_lane_destroy(lane);
    return code;
}

struct ingest_place cuda_place(void *lane, uint32_t entry)
{
    return ((struct lane *)lane)->entries[entry].place;
}

/* ---- work ---- */

/* What follows on the lane's stream comes after the trainer's use of the entry. */
cudaError_t begin(struct lane *lane, struct entry *entry, bool measure)
{
    cudaError_t status = cudaSuccess;
    for (uint32_t i = 0; i < entry->released && status == cudaSuccess; i++)
        status = cudaStreamWaitEvent(lane->stream, entry->freed[i], 0);
    if (status == cudaSuccess && measure)
        status = cudaEventRecord(lane->meter.begun, lane->stream);
    return status;
}

size_t values_of(const struct ingest_work *work)
{
    return (size_t)ingest_images(work) * work->height * work->width * INGEST_CHANNELS;
}

/* The meter first: who has waited for the batch's event finds the meter's done. */
cudaError_t record(struct lane *lane, cudaEvent_t event, bool measure, cudaEvent_t meter)
{
    cudaError_t status = measure ? cudaEventRecord(meter, lane->stream) : cudaSuccess;
    return status == cudaSuccess ? cudaEventRecord(event, lane->stream) : status;
}

cudaError_t copied(struct lane *lane, cudaEvent_t event, bool measure, uint64_t bytes)
{
    if (measure)
        lane->meter.copied_bytes = bytes;
    return record(lane, event, measure, lane->meter.copied);
}

cudaError_t done(struct lane *lane, struct entry *entry, bool measure)
{
    return record(lane, entry->ready, measure, lane->meter.done);
}

cudaError_t copy(struct lane *lane, struct entry *entry, struct ingest_work *work, bool measure)
{
    size_t bytes = values_of(work);
    cudaError_t status = begin(lane, entry, measure);
    if (status == cudaSuccess && bytes > 0)
        status = cudaMemcpyAsync(lane->in, work->in, bytes, cudaMemcpyHostToDevice, lane->stream);
    if (status == cudaSuccess && work->labels && bytes > 0)
        status = cudaMemcpyAsync(lane->labels, work->labels, work->rows * sizeof *work->labels,
                                 cudaMemcpyHostToDevice, lane->stream);
    if (status == cudaSuccess && work->draws && bytes > 0)
        status = cudaMemcpyAsync(lane->draws, work->draws, ingest_images(work) * sizeof *work->draws,
                                 cudaMemcpyHostToDevice, lane->stream);
    if (status == cudaSuccess)
        status = copied(lane, entry->copied, measure, bytes);
    work->in = lane->in;
    work->labels = work->labels ? lane->labels : NULL;
    work->draws = work->draws ? lane->draws : NULL;
    work->tables = lane->tables;
    return status;
}

cudaError_t launch(struct lane *lane, const struct ingest_work *work)
{
    uint32_t plane = work->height * work->width, part = THREADS * PIXELS_A_THREAD;
    uint32_t threads = work->classes > 32 ? THREADS : 32;
    uint32_t count = ingest_images(work), high = GRID_MOST;
    dim3 grid((plane + part - 1) / part, count < high ? count : high);
    void *args[] = {const_cast<struct ingest_work *>(work)};
    if (work->rows == 0) /* a short tail: nothing to do, and a grid of 0 is an error */
        return cudaSuccess;
    cudaError_t status = cudaLaunchKernel(images, grid, dim3(THREADS), args, 0, lane->stream);
    if (status == cudaSuccess && work->labels)
        status = cudaLaunchKernel(labels, dim3(work->rows), dim3(threads), args, 0, lane->stream);
    return status;
}

enum mr_code cuda_submit(void *handle, uint32_t index, const struct ingest_work *given, bool measure,
                         struct mr_error *error)
{
    struct lane *lane = (struct lane *)handle;
    struct entry *entry = &lane->entries[index];
    struct ingest_work work = *given;
    enum mr_code code = enter(lane->device, error);
    if (code != MR_OK)
        return code;
    code = said(lane->device, copy(lane, entry, &work, measure), "copy", error);
    if (code == MR_OK)
        code = said(lane->device, launch(lane, &work), "kernel", error);
    if (code == MR_OK)
        code = said(lane->device, done(lane, entry, measure), "event", error);
    if (code != MR_OK)
        cudaStreamSynchronize(lane->stream); /* nothing reads the caller's batch after a failure */
    leave(lane->device);
    return code;
}

/* An event of an entry: waited for, or looked at. */
enum mr_code await(struct lane *lane, cudaEvent_t event, int wait, struct mr_error *error)
{
    enum mr_code code = enter(lane->device, error);
    if (code != MR_OK)
        return code;
    cudaError_t status = wait ? cudaEventSynchronize(event) : cudaEventQuery(event);
    if (status == cudaErrorNotReady) {
        cudaGetLastError();
        code = ingest_error_set(error, MR_BUSY, "cuda:%d: still copying", lane->device->ordinal);
    } else {
        code = said(lane->device, status, "copy or kernel", error);
    }
    leave(lane->device);
    return code;
}

enum mr_code cuda_stage(void *handle, uint32_t index, void **image, void **label, struct mr_error *error)
{
    struct lane *lane = (struct lane *)handle;
    const struct stage *stage = &lane->stages[lane->turn];
    (void)index;
    *image = stage->image;
    *label = stage->label;
    return stage->used ? await(lane, stage->copied, 1, error) : MR_OK;
}

cudaError_t copy_stage(struct lane *lane, struct entry *entry, const struct ingest_work *work, bool measure)
{
    struct stage *stage = &lane->stages[lane->turn];
    size_t image_bytes = values_of(work) * mr_dtype_bytes(work->dtype);
    size_t value_bytes = work->classes > 0 ? work->classes * sizeof(float) : sizeof(int64_t);
    size_t label_bytes = work->labels ? work->rows * value_bytes : 0;
    cudaError_t status = begin(lane, entry, measure);
    if (status == cudaSuccess && image_bytes > 0)
        status = cudaMemcpyAsync(entry->place.image, stage->image, image_bytes, cudaMemcpyHostToDevice,
                                 lane->stream);
    if (status == cudaSuccess && label_bytes > 0)
        status = cudaMemcpyAsync(entry->place.label, stage->label, label_bytes, cudaMemcpyHostToDevice,
                                 lane->stream);
    if (status == cudaSuccess)
        status = copied(lane, stage->copied, measure, image_bytes + label_bytes);
    return status;
}

enum mr_code cuda_upload(void *handle, uint32_t index, const struct ingest_work *work, bool measure,
                         struct mr_error *error)
{
    struct lane *lane = (struct lane *)handle;
    struct entry *entry = &lane->entries[index];
    enum mr_code code = enter(lane->device, error);
    if (code != MR_OK)
        return code;
    code = said(lane->device, copy_stage(lane, entry, work, measure), "copy", error);
    if (code == MR_OK)
        code = said(lane->device, done(lane, entry, measure), "event", error);
    if (code != MR_OK)
        cudaStreamSynchronize(lane->stream); /* the stage is written again */
    lane->stages[lane->turn].used = code == MR_OK;
    lane->turn ^= 1;
    leave(lane->device);
    return code;
}

void cuda_unstage(void *handle)
{
    struct lane *lane = (struct lane *)handle;
    if (enter(lane->device, NULL) != MR_OK)
        return;
    for (int i = 0; i < 2; i++)
        free_stage(&lane->stages[i]);
    cudaGetLastError();
    leave(lane->device);
}

enum mr_code cuda_measured(void *handle, struct ingest_sample *sample)
{
    struct lane *lane = (struct lane *)handle;
    float copy_ms = 0, kernel_ms = 0;
    enum mr_code code = await(lane, lane->meter.done, 0, NULL);
    if (code != MR_OK)
        return code;
    code = enter(lane->device, NULL);
    if (code != MR_OK)
        return code;
    code =
        said(lane->device, cudaEventElapsedTime(&copy_ms, lane->meter.begun, lane->meter.copied), "", NULL);
    if (code == MR_OK)
        code = said(lane->device, cudaEventElapsedTime(&kernel_ms, lane->meter.copied, lane->meter.done), "",
                    NULL);
    leave(lane->device);
    sample->copy_ns = (int64_t)((double)copy_ms * 1e6);
    sample->kernel_ns = (int64_t)((double)kernel_ms * 1e6);
    sample->copied_bytes = lane->meter.copied_bytes;
    return code;
}

enum mr_code cuda_copied(void *handle, uint32_t index, int wait, struct mr_error *error)
{
    struct lane *lane = (struct lane *)handle;
    return await(lane, lane->entries[index].copied, wait, error);
}

enum mr_code cuda_wait(void *handle, uint32_t index, struct mr_error *error)
{
    struct lane *lane = (struct lane *)handle;
    return await(lane, lane->entries[index].ready, 1, error);
}

enum mr_code cuda_stream_wait(void *handle, uint32_t index, void *stream, struct mr_error *error)
{
    struct lane *lane = (struct lane *)handle;
    enum mr_code code = enter(lane->device, error);
    if (code != MR_OK)
        return code;
    code = said(lane->device, cudaStreamWaitEvent((cudaStream_t)stream, lane->entries[index].ready, 0),
                "the trainer's stream", error);
    leave(lane->device);
    return code;
}

cudaError_t record_freed(cudaEvent_t *freed, cudaStream_t stream)
{
    cudaError_t status = *freed ? cudaSuccess : cudaEventCreateWithFlags(freed, cudaEventDisableTiming);
    return status == cudaSuccess ? cudaEventRecord(*freed, stream) : status;
}

/* Events of a time before that are not recorded again are over: waiting for them costs nothing. */
enum mr_code cuda_release(void *handle, uint32_t index, void *const *streams, uint32_t count,
                          struct mr_error *error)
{
    struct lane *lane = (struct lane *)handle;
    struct entry *entry = &lane->entries[index];
    enum mr_code code = enter(lane->device, error);
    if (code != MR_OK)
        return code;
    for (uint32_t i = 0; i < count && code == MR_OK; i++) {
        code = said(lane->device, record_freed(&entry->freed[i], (cudaStream_t)streams[i]),
                    "the trainer's stream", error);
        if (code == MR_OK && entry->released <= i)
            entry->released = i + 1;
    }
    leave(lane->device);
    return code;
}

} // namespace

const struct ingest_backend ingest_cuda_backend = {
    MR_BACKEND_CUDA,   cuda_open,   cuda_close,  cuda_slot_allocate, cuda_slot_free, cuda_lane_create,
    cuda_lane_destroy, cuda_place,  cuda_submit, cuda_stage,         cuda_upload,    cuda_unstage,
    cuda_measured,     cuda_copied, cuda_wait,   cuda_stream_wait,   cuda_release,
};
