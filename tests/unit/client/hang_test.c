/* SPDX-License-Identifier: Apache-2.0 */
/* Whoever hangs, and wherever: a call returns by its deadline, and closing takes less than a second. */
#include "tests/unit/client/bench.h"

#include "base/address.h"
#include "base/clock.h"
#include "base/mailbox.h"
#include "client/src/job.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { TIMEOUT_MS = 100, LATE_MS = 500, CLOSE_MS = 1000 }; /* LATE: how late a busy machine may be */

/* ---- what hangs ---- */

/* A port where a connection never comes to stand: its queue is full, and a SYN is dropped. `deep`: it does, and nobody reads. */
struct hole {
    int listener, fillers[4];
    char address[64];
};

static void open_hole(struct hole *hole, bool deep)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    hole->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(hole->listener, (struct sockaddr *)&at, size), 0);
    assert_int_equal(listen(hole->listener, deep ? 64 : 0), 0);
    assert_int_equal(getsockname(hole->listener, (struct sockaddr *)&at, &size), 0);
    snprintf(hole->address, sizeof hole->address, "127.0.0.1:%d", ntohs(at.sin_port));
    for (int i = 0; i < 4; i++) {
        hole->fillers[i] = deep ? -1 : socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (!deep)
            (void)connect(hole->fillers[i], (struct sockaddr *)&at, size);
    }
}

static void close_hole(struct hole *hole)
{
    for (int i = 0; i < 4; i++)
        if (hole->fillers[i] >= 0)
            close(hole->fillers[i]);
    close(hole->listener);
}

/* ---- measuring ---- */

static int64_t since_ms(int64_t start_ns)
{
    return (base_clock_now_ns() - start_ns) / BASE_NS_PER_MS;
}

static void expect_within(const char *state, const char *call, int64_t start_ns, int64_t most_ms)
{
    int64_t took_ms = since_ms(start_ns);
    if (took_ms > most_ms)
        fail_msg("%s: %s took %lld ms, %lld were allowed", state, call, (long long)took_ms,
                 (long long)most_ms);
}

static void close_in_time(struct bench *bench, const char *state)
{
    int64_t start_ns = base_clock_now_ns();
    mr_job_close(&bench->job);
    expect_within(state, "mr_job_close", start_ns, CLOSE_MS);
    start_ns = base_clock_now_ns();
    assert_int_equal(mr_client_close(&bench->client), MR_OK);
    expect_within(state, "mr_client_close", start_ns, CLOSE_MS);
}

/* Every call on an open job. */
static void call_all(struct bench *bench, const char *state)
{
    struct mr_job_info info = {.size = sizeof info};
    struct mr_job_stats stats = {.size = sizeof stats};
    struct mr_batch *batch;
    struct mr_error error;
    struct mr_item item;
    int64_t start_ns = base_clock_now_ns();
    assert_int_equal(mr_job_info(bench->job, &info, &error), MR_OK);
    assert_int_equal(mr_job_stats(bench->job, &stats), MR_OK);
    assert_int_equal(mr_job_seek(bench->job, &info.cursor, &error), MR_OK);
    expect_within(state, "mr_job_info, _stats and _seek", start_ns, LATE_MS);
    for (int64_t timeout_ms = -1; timeout_ms <= TIMEOUT_MS; timeout_ms += TIMEOUT_MS + 1) {
        start_ns = base_clock_now_ns();
        if (mr_job_next(bench->job, &batch, timeout_ms, &error) == MR_OK)
            mr_batch_release(batch);
        expect_within(state, "mr_job_next", start_ns, timeout_ms + LATE_MS);
    }
    start_ns = base_clock_now_ns();
    mr_job_item(bench->job, 3, &item, TIMEOUT_MS, &error);
    expect_within(state, "mr_job_item", start_ns, TIMEOUT_MS + LATE_MS);
}

/* ---- an open job ---- */

enum server { HEARD, STOPPED, HUNG, SERVERS };

static void hang_server(struct bench *bench, enum server server)
{
    if (server == STOPPED)
        fake_stop_server(bench->fake);
    if (server == HUNG)
        fake_set_server(bench->fake, FAKE_SERVER_HUNG);
}

static void test_open_jobs(void **state)
{
    static const struct {
        const char *what;
        enum fake_manner manner;
        int hole; /* 1: no connection; 2: one that nobody reads */
    } cases[] = {
        {"workers are well", FAKE_GOOD, 0},
        {"workers cannot be connected to", FAKE_GOOD, 1},
        {"workers accept only", FAKE_GOOD, 2},
        {"workers never say HELLO", FAKE_MUTE, 0},
        {"workers never answer OPEN", FAKE_MUTE_OPEN, 0},
        {"workers answer nothing", FAKE_SILENT, 0},
        {"workers stop in a header", FAKE_HALF_HEADER, 0},
        {"workers stop in a part", FAKE_HALF_PART, 0},
        {"workers are slow", FAKE_SLOW, 0},
        {"workers are unavailable", FAKE_RETRY, 0},
        {"workers refuse", FAKE_REFUSE, 0},
    };
    (void)state;
    for (size_t i = 0; i < SERVERS * (sizeof cases / sizeof cases[0]); i++) {
        static const char *const servers[] = {"", ", the server is gone", ", the server hangs"};
        struct fake_options cluster = bench_fake_options();
        struct mr_job_options options = bench_job_options();
        struct bench bench = {0};
        struct hole hole;
        char text[128];
        size_t at = i / SERVERS;
        options.stall_ms = 200; /* so that workers are lost and dialled again meanwhile */
        snprintf(text, sizeof text, "%s%s", cases[at].what, servers[i % SERVERS]);
        bench_open_client(&bench, &cluster);
        if (cases[at].hole > 0)
            open_hole(&hole, cases[at].hole == 2);
        for (int worker = 1; worker <= 2; worker++) {
            fake_set_manner(bench.fake, worker, cases[at].manner, -1);
            if (cases[at].hole > 0)
                fake_set_address(bench.fake, worker, hole.address);
        }
        bench_open_job(&bench, &options);
        hang_server(&bench, (enum server)(i % SERVERS));
        call_all(&bench, text);
        close_in_time(&bench, text);
        fake_stop(bench.fake);
        if (cases[at].hole > 0)
            close_hole(&hole);
    }
}

/* The name of a bad item is asked of workers: nice to have, and no reason to be late. */
static void test_name_of_a_bad_item(void **state)
{
    struct fake_options cluster = bench_fake_options();
    struct mr_job_options options = bench_job_options();
    struct bench bench = {0};
    struct mr_batch *batch;
    struct mr_error error;
    (void)state;
    cluster.bad_status = MR_ROW_SUBSTITUTED;
    bench_open_client(&bench, &cluster);
    bench_open_job(&bench, &options);
    assert_int_equal(mr_job_next(bench.job, &batch, BENCH_WAIT_MS, &error), MR_BAD_SAMPLE);
    for (int worker = 1; worker <= 2; worker++)
        fake_set_manner(bench.fake, worker, FAKE_SILENT, -1);
    int64_t start_ns = base_clock_now_ns();
    assert_int_equal(mr_job_next(bench.job, &batch, 0, &error), MR_BAD_SAMPLE);
    expect_within("nobody tells names", "mr_job_next", start_ns, 300);
    assert_non_null(strstr(error.text, "(name not known)"));
    close_in_time(&bench, "nobody tells names");
    fake_stop(bench.fake);
}

/* ---- opening ---- */

static void test_opening(void **state)
{
    static const struct {
        const char *what;
        enum fake_server_manner manner;
        int hole; /* as above */
    } cases[] = {
        {"the server cannot be connected to", FAKE_SERVER_GOOD, 1},
        {"the server accepts only", FAKE_SERVER_GOOD, 2},
        {"the server answers nothing", FAKE_SERVER_HUNG, 0},
        {"the job has to wait", FAKE_SERVER_WAITING, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fake_options cluster = bench_fake_options();
        struct mr_job_options options = bench_job_options();
        struct bench bench = {0};
        struct mr_error error;
        struct hole hole;
        bench_open_client(&bench, &cluster);
        fake_set_server(bench.fake, cases[i].manner);
        if (cases[i].hole > 0) {
            open_hole(&hole, cases[i].hole == 2);
            struct mr_client_options where = {.size = sizeof where, .server = hole.address};
            assert_int_equal(mr_client_close(&bench.client), MR_OK);
            assert_int_equal(mr_client_open(&bench.client, &where, &error), MR_OK);
        }
        for (int64_t timeout_ms = -1; timeout_ms <= TIMEOUT_MS; timeout_ms += TIMEOUT_MS + 1) {
            int64_t start_ns = base_clock_now_ns();
            enum mr_code code = mr_job_open(&bench.job, bench.client, &options, timeout_ms, &error);
            if (code != MR_TIMEOUT || bench.job)
                fail_msg("%s: %s", cases[i].what, mr_code_name(code));
            expect_within(cases[i].what, "mr_job_open", start_ns, timeout_ms + LATE_MS);
        }
        close_in_time(&bench, cases[i].what);
        fake_stop(bench.fake);
        if (cases[i].hole > 0)
            close_hole(&hole);
    }
}

/* ---- closing while another thread is inside ---- */

struct inside {
    struct bench *bench;
    bool item;
    enum mr_code code;
    int64_t ended_ns;
};

static void *wait_inside(void *context)
{
    struct inside *inside = context;
    struct mr_batch *batch;
    struct mr_item item;
    inside->code = inside->item ? mr_job_item(inside->bench->job, 3, &item, 60000, NULL)
                                : mr_job_next(inside->bench->job, &batch, 60000, NULL);
    inside->ended_ns = base_clock_now_ns();
    return NULL;
}

static void await_inside(struct mr_job *job)
{
    for (bool inside = false; !inside; usleep(1000)) {
        pthread_mutex_lock(&job->mutex);
        inside = job->users > 0;
        pthread_mutex_unlock(&job->mutex);
    }
}

static void test_closing_under_a_call(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct fake_options cluster = bench_fake_options();
        struct mr_job_options options = bench_job_options();
        struct bench bench = {0};
        pthread_t thread;
        bench_open_client(&bench, &cluster);
        for (int worker = 1; worker <= 2; worker++)
            fake_set_manner(bench.fake, worker, i ? FAKE_MUTE : FAKE_SILENT, -1);
        bench_open_job(&bench, &options);
        struct inside inside = {.bench = &bench, .item = i == 1};
        struct mr_job *job = bench.job;
        assert_int_equal(pthread_create(&thread, NULL, wait_inside, &inside), 0);
        await_inside(job);
        assert_int_equal(mr_client_close(&bench.client), MR_BUSY);
        int64_t start_ns = base_clock_now_ns();
        mr_job_close(&job);
        expect_within("a call waits", "mr_job_close", start_ns, CLOSE_MS);
        pthread_join(thread, NULL);
        assert_int_equal(inside.code, MR_CLOSED);
        assert_true(inside.ended_ns - start_ns < CLOSE_MS * BASE_NS_PER_MS);
        bench.job = NULL;
        close_in_time(&bench, "a call has waited");
        fake_stop(bench.fake);
    }
}

/* ---- closing while another thread releases ---- */

/* Linked before the client's own (--wrap): a thread may be held up just before it wakes the loop. */
void __real_base_mailbox_post(struct base_mailbox *mailbox, struct base_message *message);
void __wrap_base_mailbox_post(struct base_mailbox *mailbox, struct base_message *message);

static _Thread_local bool held_up;
static atomic_bool at_post;

void __wrap_base_mailbox_post(struct base_mailbox *mailbox, struct base_message *message)
{
    if (held_up) {
        atomic_store(&at_post, true);
        usleep(100000);
    }
    __real_base_mailbox_post(mailbox, message);
}

static void *release_late(void *batch)
{
    held_up = true;
    mr_batch_release(batch);
    return NULL;
}

/* Any thread may close: the job must be there until the release has woken its loop. */
static void test_closing_under_a_release(void **state)
{
    struct fake_options cluster = bench_fake_options();
    struct mr_job_options options = bench_job_options();
    struct bench bench = {0};
    struct mr_batch *batch;
    pthread_t thread;
    (void)state;
    bench_open_client(&bench, &cluster);
    bench_open_job(&bench, &options);
    assert_int_equal(mr_job_next(bench.job, &batch, BENCH_WAIT_MS, NULL), MR_OK);
    assert_int_equal(pthread_create(&thread, NULL, release_late, batch), 0);
    while (!atomic_load(&at_post))
        usleep(1000);
    mr_job_close(&bench.job);
    pthread_join(thread, NULL);
    bench_close_all(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_jobs),
        cmocka_unit_test(test_name_of_a_bad_item),
        cmocka_unit_test(test_opening),
        cmocka_unit_test(test_closing_under_a_call),
        cmocka_unit_test(test_closing_under_a_release),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
