/* SPDX-License-Identifier: Apache-2.0 */
/* One cluster, its time, three workers of the same bits, and what happens to them in a line each: a call that should succeed and does not
 * fails the test. */
#ifndef TESTS_UNIT_SCHEDULER_CLUSTER_SCENE_H
#define TESTS_UNIT_SCHEDULER_CLUSTER_SCENE_H

#include "tests/unit/scheduler/cluster_fixture.h"

extern struct scheduler_cluster *cluster;
extern struct base_error error;
extern int64_t now;
extern struct fake_worker a, b, c;

int scene_setup(void **state);
int scene_teardown(void **state);
void scene_sync_worker(const struct fake_worker *worker);
const struct scheduler_job *scene_open_job(const struct scheduler_job_request *request);
/* Its error's text has both words. */
void scene_open_fails(const struct scheduler_job_request *request, enum base_code code, const char *says,
                      const char *and);
enum base_code scene_sync_job(const char *job, uint32_t rank, uint64_t generation, uint32_t epoch,
                              uint64_t position);
enum base_code scene_close_job(const char *job, uint32_t rank, uint64_t generation);
bool scene_log_says(const char *what); /* takes all lines */

#endif
