/* SPDX-License-Identifier: Apache-2.0 */
#include "base/budget.h"

void base_budget_init(struct base_budget *budget, const char *name, uint64_t limit_bytes)
{
    budget->name = name;
    budget->limit_bytes = limit_bytes;
    atomic_init(&budget->used_bytes, 0);
    atomic_init(&budget->peak_bytes, 0);
}

static void raise_peak(struct base_budget *budget, uint64_t used_bytes)
{
    uint64_t peak = atomic_load_explicit(&budget->peak_bytes, memory_order_relaxed);
    while (peak < used_bytes && !atomic_compare_exchange_weak(&budget->peak_bytes, &peak, used_bytes))
        continue;
}

bool base_budget_take(struct base_budget *budget, uint64_t bytes)
{
    uint64_t used = atomic_load_explicit(&budget->used_bytes, memory_order_relaxed);
    do {
        if (used > budget->limit_bytes || bytes > budget->limit_bytes - used)
            return false;
    } while (!atomic_compare_exchange_weak(&budget->used_bytes, &used, used + bytes));
    raise_peak(budget, used + bytes);
    return true;
}

void base_budget_give(struct base_budget *budget, uint64_t bytes)
{
    atomic_fetch_sub(&budget->used_bytes, bytes);
}
