/* SPDX-License-Identifier: Apache-2.0 */
#include "base/pool.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <time.h>

#include <cmocka.h>

enum { JOBS = 16 };

struct job {
    struct base_task task; /* first, so that a task is its job */
    int name;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool gate_open, gate_reached;
static int ran[JOBS + 1], ran_count;

static void set(bool *flag)
{
    pthread_mutex_lock(&lock);
    *flag = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static struct timespec in_ten_seconds(void)
{
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += 10;
    return deadline;
}

static void wait_for(const bool *flag)
{
    struct timespec deadline = in_ten_seconds();
    pthread_mutex_lock(&lock);
    while (!*flag && pthread_cond_timedwait(&changed, &lock, &deadline) == 0)
        continue;
    bool came = *flag;
    pthread_mutex_unlock(&lock);
    assert_true(came);
}

static void wait_until_ran(int count)
{
    struct timespec deadline = in_ten_seconds();
    pthread_mutex_lock(&lock);
    while (ran_count < count && pthread_cond_timedwait(&changed, &lock, &deadline) == 0)
        continue;
    int got = ran_count;
    pthread_mutex_unlock(&lock);
    assert_int_equal(got, count);
}

static void hold(struct base_task *task, int thread)
{
    (void)task, (void)thread;
    set(&gate_reached);
    wait_for(&gate_open);
}

static void note(struct base_task *task, int thread)
{
    (void)thread;
    pthread_mutex_lock(&lock);
    ran[ran_count++] = ((struct job *)task)->name;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* A pool of one thread that is held, so that what is posted stays queued until the gate opens. */
static struct base_pool *held_pool(struct base_task *holder)
{
    struct base_pool *pool = NULL;
    gate_open = gate_reached = false;
    ran_count = 0;
    *holder = (struct base_task){.run = hold};
    assert_int_equal(base_pool_start(&pool, &(struct base_pool_options){.name = "test", .threads = 1}, NULL),
                     BASE_OK);
    base_pool_post(pool, holder, 0);
    wait_for(&gate_reached);
    return pool;
}

static void lowest_key_first_equal_in_order(void **state)
{
    (void)state;
    static const int64_t keys[] = {5, 1, 5, -3, 9, 1, 5, INT64_MAX, INT64_MIN, 9};
    static const int expected[] = {8, 3, 1, 5, 0, 2, 6, 4, 9, 7};
    enum { N = sizeof keys / sizeof *keys };
    struct base_task holder;
    struct job jobs[N];
    struct base_pool *pool = held_pool(&holder);
    for (int i = 0; i < N; i++) {
        jobs[i] = (struct job){.task.run = note, .name = i};
        base_pool_post(pool, &jobs[i].task, keys[i]);
    }
    set(&gate_open);
    wait_until_ran(N);
    base_pool_stop(&pool);
    assert_null(pool);
    assert_memory_equal(ran, expected, sizeof expected);
}

static void rekey(void **state)
{
    (void)state;
    static const int expected[] = {5, 0, 1, 3, 4, 2, 6};
    struct base_task holder;
    struct job jobs[7];
    struct base_pool *pool = held_pool(&holder);
    for (int i = 0; i < 6; i++) {
        jobs[i] = (struct job){.task.run = note, .name = i};
        base_pool_post(pool, &jobs[i].task, i);
    }
    assert_true(base_pool_rekey(pool, &jobs[5].task, -1));  /* the tail to the head */
    assert_true(base_pool_rekey(pool, &jobs[2].task, 100)); /* the middle to the tail */
    assert_false(base_pool_rekey(pool, &holder, 0));        /* it runs */
    jobs[6] = (struct job){.task.run = note, .name = 6};
    base_pool_post(pool, &jobs[6].task, 101);
    set(&gate_open);
    wait_until_ran(7);
    assert_false(base_pool_rekey(pool, &jobs[0].task, 0)); /* it ran */
    base_pool_stop(&pool);
    assert_memory_equal(ran, expected, sizeof expected);
}

static void open_gate(struct base_task *task, int thread)
{
    (void)task, (void)thread;
    set(&gate_open);
}

static void *stop_in_thread(void *pool)
{
    base_pool_stop(pool);
    return NULL;
}

/* stop waits for the task that runs and leaves the queued ones alone. */
static void stop_runs_nothing_more(void **state)
{
    (void)state;
    struct base_task holder;
    struct job queued = {.task.run = note, .name = 1};
    struct base_pool *pool = held_pool(&holder);
    base_pool_post(pool, &queued.task, 0);
    pthread_t stopper;
    assert_int_equal(pthread_create(&stopper, NULL, stop_in_thread, &pool), 0);
    set(&gate_open);
    pthread_join(stopper, NULL);
    assert_null(pool);
    assert_true(ran_count <= 1); /* it may have begun before the stop */
    base_pool_stop(&pool);
    base_pool_stop(NULL);
}

static atomic_int runs, wrong_threads;

static void count(struct base_task *task, int thread)
{
    (void)task;
    atomic_fetch_add(&runs, 1);
    if (thread < 0 || thread >= 3)
        atomic_fetch_add(&wrong_threads, 1);
}

/* Posts, other keys and three threads at once: each task runs once. */
static void each_task_once(void **state)
{
    (void)state;
    enum { N = 2000 };
    static struct base_task tasks[N];
    struct base_task last = {.run = open_gate};
    struct base_pool *pool = NULL;
    struct base_pool_options options = {.name = "a name over twelve", .threads = 3, .idle = false};
    gate_open = false;
    assert_int_equal(base_pool_start(&pool, &options, NULL), BASE_OK);
    for (int i = 0; i < N; i++) {
        tasks[i].run = count;
        base_pool_post(pool, &tasks[i], i % 7);
        if (i % 3 == 0)
            base_pool_rekey(pool, &tasks[i / 2], i % 5);
    }
    base_pool_post(pool, &last, INT64_MAX);
    wait_for(&gate_open);
    base_pool_stop(&pool); /* waits for those that others still run */
    assert_int_equal(atomic_load(&runs), N);
    assert_int_equal(atomic_load(&wrong_threads), 0);
}

static int policy_seen;

static void see_policy(struct base_task *task, int thread)
{
    (void)task, (void)thread;
    struct sched_param parameters;
    pthread_getschedparam(pthread_self(), &policy_seen, &parameters);
    set(&gate_open);
}

static void idle_threads_are_idle(void **state)
{
    (void)state;
    struct base_task task = {.run = see_policy};
    struct base_pool *pool = NULL;
    gate_open = false;
    assert_int_equal(
        base_pool_start(&pool, &(struct base_pool_options){.name = "idle", .threads = 1, .idle = true}, NULL),
        BASE_OK);
    base_pool_post(pool, &task, 0);
    wait_for(&gate_open);
    base_pool_stop(&pool);
    assert_int_equal(policy_seen, SCHED_IDLE);
}

static void no_threads_is_an_error(void **state)
{
    (void)state;
    struct base_pool *pool = NULL;
    struct base_error error;
    assert_int_equal(
        base_pool_start(&pool, &(struct base_pool_options){.name = "none", .threads = 0}, &error),
        BASE_INVALID);
    assert_string_equal(error.text, "pool none: 0 threads");
    assert_null(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lowest_key_first_equal_in_order), cmocka_unit_test(rekey),
        cmocka_unit_test(stop_runs_nothing_more),          cmocka_unit_test(each_task_once),
        cmocka_unit_test(idle_threads_are_idle),           cmocka_unit_test(no_threads_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
