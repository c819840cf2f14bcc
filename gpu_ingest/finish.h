/* SPDX-License-Identifier: Apache-2.0 */
/* Finish and batch ops of a whole batch on the CPU: the arithmetic of kernels.h in loops. All pointers are of host memory. */
#ifndef GPU_INGEST_FINISH_H
#define GPU_INGEST_FINISH_H

#include "gpu_ingest/kernels.h"

void ingest_finish_run(const struct ingest_work *work);

#endif
