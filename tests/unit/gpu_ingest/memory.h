/* SPDX-License-Identifier: Apache-2.0 */
/* What a test must be able to do with a device's memory and streams, through the driver that it finds at run time. */
#ifndef TESTS_UNIT_GPU_INGEST_MEMORY_H
#define TESTS_UNIT_GPU_INGEST_MEMORY_H

#include "gpu_ingest/include/millrace/ingest.h"

#include <stdbool.h>

int memory_devices(void); /* CUDA's */
/* Why the backend `cuda` cannot be tested here; NULL: it can. */
const char *memory_no_cuda(void);
bool memory_context_lives(int ordinal); /* the device has a primary context that is active */
/* Copies `bytes` from the device's memory. */
void memory_fetch(const struct mr_device *device, void *to, const void *from, size_t bytes);
/* A stream of device 0; NULL on the host. `memory_stream_copy` queues a copy to `to` on it, `memory_stream_wait` waits. */
void *memory_stream_create(const struct mr_device *device);
void memory_stream_copy(const struct mr_device *device, void *stream, void *to, const void *from,
                        size_t bytes);
void memory_stream_wait(const struct mr_device *device, void *stream);
void memory_stream_destroy(const struct mr_device *device, void *stream);

#endif
