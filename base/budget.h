/* SPDX-License-Identifier: Apache-2.0 */
/* A byte budget taken at start: take fails at once when it is used up; the caller waits or refuses. Any thread. */
#ifndef BASE_BUDGET_H
#define BASE_BUDGET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct base_budget {
    const char *name; /* for errors and metrics */
    uint64_t limit_bytes;
    _Atomic uint64_t used_bytes, peak_bytes;
};

void base_budget_init(struct base_budget *budget, const char *name, uint64_t limit_bytes);
bool base_budget_take(struct base_budget *budget, uint64_t bytes);
void base_budget_give(struct base_budget *budget, uint64_t bytes);

#endif
