/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_SCHEDULER_PLAN_ORACLE_H
#define TESTS_UNIT_SCHEDULER_PLAN_ORACLE_H

#include "scheduler/plan.h"

void plan_oracle_next(const struct scheduler_plan *previous, const struct scheduler_plan_worker *workers,
                      int count, struct scheduler_plan *next);

#endif
