/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/scheduler/cluster_scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

struct scheduler_cluster *cluster;
struct base_error error;
int64_t now;
struct fake_worker a = {.id = 1, .incarnation = 1, .weight = 2, .bits = 0xaa},
                   b = {.id = 2, .incarnation = 1, .weight = 2, .bits = 0xaa},
                   c = {.id = 3, .incarnation = 1, .weight = 2, .bits = 0xaa};

int scene_setup(void **state)
{
    (void)state;
    now = 1000 * SECOND;
    error = (struct base_error){0};
    return scheduler_cluster_create(&cluster, NULL, &error);
}

int scene_teardown(void **state)
{
    (void)state;
    scheduler_cluster_destroy(cluster);
    cluster = NULL;
    return 0;
}

void scene_sync_worker(const struct fake_worker *worker)
{
    if (fixture_sync(cluster, now, worker, &error))
        fail_msg("%s", error.text);
}

const struct scheduler_job *scene_open_job(const struct scheduler_job_request *request)
{
    if (scheduler_cluster_job_open(cluster, now, request, &error))
        fail_msg("%s", error.text);
    return scheduler_cluster_job(cluster, request->job);
}

void scene_open_fails(const struct scheduler_job_request *request, enum base_code code, const char *says,
                      const char *and)
{
    error.text[0] = 0;
    assert_int_equal(scheduler_cluster_job_open(cluster, now, request, &error), code);
    if (!strstr(error.text, says) || !strstr(error.text, and))
        fail_msg("\"%s\" does not say %s and %s", error.text, says, and);
}

enum base_code scene_sync_job(const char *job, uint32_t rank, uint64_t generation, uint32_t epoch,
                              uint64_t position)
{
    struct scheduler_job_report report = {
        .job = job, .rank = rank, .generation = generation, .has_cursor = true, .at = {epoch, position}};
    return scheduler_cluster_job_sync(cluster, now, &report, &error);
}

enum base_code scene_close_job(const char *job, uint32_t rank, uint64_t generation)
{
    struct scheduler_job_report report = {.job = job, .rank = rank, .generation = generation};
    return scheduler_cluster_job_close(cluster, now, &report, &error);
}

bool scene_log_says(const char *what)
{
    char line[SCHEDULER_WORDS_CHARS];
    bool found = false;
    while (scheduler_cluster_take_line(cluster, line))
        found |= strstr(line, what) != NULL;
    return found;
}
