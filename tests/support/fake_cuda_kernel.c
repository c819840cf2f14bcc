/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a kernel of the fake CUDA, a thread after the other. */
#include "tests/support/fake_cuda/cuda_runtime_api.h"

#include <setjmp.h>
#include <stdbool.h>

struct fake_index fake_cuda_block, fake_cuda_thread, fake_cuda_grid_size, fake_cuda_block_size;
static jmp_buf barrier;
static unsigned phase, passed;
static bool stopped;

/* A block is run again from the start for each barrier: up to it, by all threads; what comes before a barrier must bear it. */
void fake_cuda_barrier(void)
{
    if (passed++ < phase)
        return;
    stopped = true;
    longjmp(barrier, 1);
}

static void run_thread(const struct fake_launch *launch, const void *argument, uint32_t index)
{
    passed = 0;
    fake_cuda_thread = (struct fake_index){index, 0, 0};
    if (setjmp(barrier) == 0)
        launch->call(launch->kernel, argument);
}

static void run_block(const struct fake_launch *launch, const void *argument, bool backwards)
{
    uint32_t threads = launch->block.x;
    phase = 0;
    do {
        stopped = false;
        for (uint32_t i = 0; i < threads; i++)
            run_thread(launch, argument, backwards ? threads - 1 - i : i);
        phase++;
    } while (stopped);
}

void fake_cuda_run(const struct fake_launch *launch, const void *argument, uint64_t chance)
{
    uint32_t blocks = launch->grid.x * launch->grid.y;
    fake_cuda_grid_size = launch->grid;
    fake_cuda_block_size = launch->block;
    for (uint32_t i = 0; i < blocks; i++) {
        uint32_t block = (uint32_t)((i + (chance >> 1)) % blocks);
        fake_cuda_block = (struct fake_index){block % launch->grid.x, block / launch->grid.x, 0};
        run_block(launch, argument, chance & 1);
    }
}
