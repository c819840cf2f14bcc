/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA without a GPU, and without mercy: the library stands for driver (it is libcuda.so.1) and runtime, so that what is written
 * against CUDA runs in any test. It keeps what CUDA promises and nothing that CUDA does not:
 *
 *   a stream is a queue; its work runs when somebody waits for it, or in between as the seed says: at once, at random, or not before
 *     it must (and then nothing else runs)
 *   pinned memory is read and written when the work runs; pageable memory when the call is made
 *   device memory holds rubbish at first, cannot be touched from outside of work, and has a border that is looked at
 *   threads of a block run one after the other, from barrier to barrier, in an order that the seed says
 *
 * What a program must not do ends it, with a line that says what: work that uses memory or streams that are gone, a runtime call
 * without a context (the runtime would make one, on device 0), a border written to, waits in a circle, and, when the program ends,
 * memory, streams or events that are left (by failure of the program, not of a test).
 *
 * FAKE_CUDA_SEED in the environment: the seed at start (0). Two devices. Any thread.
 */
#ifndef TESTS_SUPPORT_FAKE_CUDA_H
#define TESTS_SUPPORT_FAKE_CUDA_H

#include <stdbool.h>
#include <stdint.h>

/* seed % 3: 0 at random, 1 as late as can be, 2 at once. */
void fake_cuda_start(uint64_t seed);
/* What work takes, of the clock that events read. */
void fake_cuda_costs(int64_t copy_ns_a_kib, int64_t kernel_ns);
/* The n-th call from now on fails, n from 1, 0: none; `lost`: that and every later one, and no work is done any more. Calls that
 * free, destroy, release, push or pop do not fail on their own. */
void fake_cuda_fail(unsigned n, bool lost);
bool fake_cuda_failed(void);  /* it has; the device is as new after this */
void fake_cuda_old(bool old); /* devices have no use for the code of this build */
/* Memory, streams and events that live. */
int fake_cuda_live(void);
int fake_cuda_current(void); /* the device of the thread's context; -1: none */

#endif
