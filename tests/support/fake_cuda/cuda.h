/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA's driver API as far as gpu_ingest/cuda.cu uses it: for tests/support/fake_cuda.c. Names, types and values are NVIDIA's. */
#ifndef TESTS_SUPPORT_FAKE_CUDA_CUDA_H
#define TESTS_SUPPORT_FAKE_CUDA_CUDA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int CUdevice;
typedef struct fake_context *CUcontext;
typedef struct fake_stream *CUstream;
typedef enum { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1, CUDA_ERROR_UNKNOWN = 999 } CUresult;

#define cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2
#define cuCtxPushCurrent cuCtxPushCurrent_v2
#define cuCtxPopCurrent cuCtxPopCurrent_v2
#define cuMemcpyDtoH cuMemcpyDtoH_v2
#define cuMemcpyDtoHAsync cuMemcpyDtoHAsync_v2
#define cuStreamDestroy cuStreamDestroy_v2

CUresult cuInit(unsigned flags);
CUresult cuGetErrorString(CUresult status, const char **text);
CUresult cuDeviceGetCount(int *count);
CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUresult cuDeviceGetName(char *name, int bytes, CUdevice device);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuDevicePrimaryCtxRelease(CUdevice device);
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active);
CUresult cuCtxPushCurrent(CUcontext context);
CUresult cuCtxPopCurrent(CUcontext *context);
CUresult cuMemcpyDtoH(void *to, uint64_t from, size_t bytes);
CUresult cuMemcpyDtoHAsync(void *to, uint64_t from, size_t bytes, CUstream stream);
CUresult cuMemHostAlloc(void **memory, size_t bytes, unsigned flags);
CUresult cuMemFreeHost(void *memory);
CUresult cuStreamCreate(CUstream *stream, unsigned flags);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamDestroy(CUstream stream);

#ifdef __cplusplus
}
#endif

#endif
