/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA's runtime API and what its compiler adds, as far as gpu_ingest/cuda.cu uses them: for tests/support/fake_cuda.c. Names, types
 * and values are NVIDIA's. */
#ifndef TESTS_SUPPORT_FAKE_CUDA_CUDA_RUNTIME_API_H
#define TESTS_SUPPORT_FAKE_CUDA_CUDA_RUNTIME_API_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoKernelImageForDevice = 209,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700,
    cudaErrorUnknown = 999
} cudaError_t;

typedef struct fake_stream *cudaStream_t;
typedef struct fake_event *cudaEvent_t;
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };

struct cudaFuncAttributes {
    int binaryVersion;
};

#define cudaHostAllocDefault 0u
#define cudaEventDefault 0u
#define cudaEventDisableTiming 2u
#define cudaStreamNonBlocking 1u

cudaError_t cudaGetLastError(void);
const char *cudaGetErrorString(cudaError_t status);
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function);
cudaError_t cudaMalloc(void **memory, size_t bytes);
cudaError_t cudaFree(void *memory);
cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void *memory);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);

/* ---- kernels: functions of one argument, called once a thread ---- */

struct fake_index {
    uint32_t x, y, z;
};
extern struct fake_index fake_cuda_block, fake_cuda_thread, fake_cuda_grid_size, fake_cuda_block_size;

struct fake_launch {
    void (*call)(void *kernel, const void *argument);
    void *kernel;
    const void *argument;
    size_t argument_bytes;
    struct fake_index grid, block;
};
cudaError_t fake_cuda_launch(const struct fake_launch *launch, cudaStream_t stream);
void fake_cuda_barrier(void);
/* Now; the order of blocks and threads is a matter of `chance`. */
void fake_cuda_run(const struct fake_launch *launch, const void *argument, uint64_t chance);

#ifdef __cplusplus
}

#define __global__
#define __shared__ static /* of one block: they run one after the other */
#define __syncthreads() fake_cuda_barrier()
#define blockIdx fake_cuda_block
#define threadIdx fake_cuda_thread
#define gridDim fake_cuda_grid_size
#define blockDim fake_cuda_block_size

struct dim3 {
    uint32_t x, y, z;
    constexpr dim3(uint32_t x_ = 1, uint32_t y_ = 1, uint32_t z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};

template <typename T>
cudaError_t cudaLaunchKernel(void (*kernel)(T), dim3 grid, dim3 block, void **args, size_t,
                             cudaStream_t stream)
{
    struct call {
        static void of(void *function, const void *argument)
        {
            ((void (*)(T))function)(*(const T *)argument);
        }
    };
    const fake_launch launch = {call::of,  (void *)kernel,           args[0],
                                sizeof(T), {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}};
    return fake_cuda_launch(&launch, stream);
}
#endif

#endif
