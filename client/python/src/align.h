/* SPDX-License-Identifier: Apache-2.0 */
/* Where arrays begin: at a cache line, which is what vector loads want. */
#ifndef CLIENT_PYTHON_ALIGN_H
#define CLIENT_PYTHON_ALIGN_H

#include <stddef.h>

#define PYTHON_ALIGN 64

static inline size_t python_align_up(size_t bytes)
{
    return (bytes + PYTHON_ALIGN - 1) / PYTHON_ALIGN * PYTHON_ALIGN;
}

#endif
