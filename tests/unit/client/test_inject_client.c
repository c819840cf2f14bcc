/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client library while memory, threads and calls fail: a ledger holds what was appended and nothing half; a job opens or says
 * why not, its batches are what they should be, in order, and closing leaves nothing behind.
 */
#include "client/src/core.h"
#include "client/src/ledger.h"
#include "millrace/millrace.h"
#include "tests/support/inject.h"
#include "tests/unit/client/fake.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { BATCH = 5, STEPS = 3, WAIT_MS = 20000 };

static char folder[] = "/tmp/millrace-inject-client-XXXXXX", path[64];

/* ---- ledger ---- */

static enum base_code append(struct client_ledger *ledger, uint64_t step, struct base_error *error)
{
    struct mr_row rows[BATCH];
    uint8_t valid[BATCH] = {1, 1, 1, 1, 1};
    struct mr_batch batch = {.rows = BATCH,
                             .valid_rows = BATCH,
                             .valid = valid,
                             .row = rows,
                             .step = step,
                             .steps = STEPS,
                             .cursor = {.position = BATCH * (step + 1)}};
    for (uint64_t i = 0; i < BATCH; i++)
        rows[i] = (struct mr_row){.position = BATCH * step + i, .hash = 100 * step + i};
    return client_ledger_append(ledger, &batch, &(struct client_ledger_step){BATCH * step, BATCH, BATCH},
                                error);
}

/* Batches in the file, all of them whole and in order. */
static uint64_t read_ledger(enum base_code *code, struct base_error *error)
{
    struct ledger_reader reader;
    struct ledger_record record;
    uint64_t batches = 0;
    *code = ledger_reader_open(&reader, path, error);
    while (*code == BASE_OK) {
        *code = ledger_reader_next(&reader, &record, error);
        if (*code == BASE_OK && record.kind == LEDGER_BATCH)
            assert_int_equal(record.batch.step, batches++);
    }
    ledger_reader_close(&reader);
    return batches;
}

static enum base_code keep_ledger(void *context, struct base_error *error)
{
    (void)context;
    const struct ledger_start start = {.job = "night", .world = 1, .batch = BATCH, .items = 1000};
    struct client_ledger *ledger = NULL;
    enum base_code end;
    uint64_t done = 0;
    unlink(path);
    enum base_code code = client_ledger_open(&ledger, path, &start, error);
    while (done < STEPS && code == BASE_OK) {
        code = append(ledger, done, error);
        done += code == BASE_OK;
    }
    inject_stop();
    for (; ledger && done < STEPS; done++) /* the same call again: nothing counted as written */
        assert_int_equal(append(ledger, done, NULL), BASE_OK);
    client_ledger_close(&ledger);
    struct base_error ignored;
    assert_int_equal(read_ledger(&end, &ignored), done);
    assert_true(end == BASE_CLOSED || (end == BASE_NOT_FOUND && done == 0));
    return code;
}

static enum base_code reopen_and_read(void *context, struct base_error *error)
{
    (void)context;
    const struct ledger_start start = {
        .job = "night", .world = 1, .batch = BATCH, .items = 1000, .generation = 2};
    struct inject_plan plan = inject_pause();
    struct client_ledger *ledger = NULL;
    struct base_error first;
    enum base_code code = keep_ledger(NULL, &first), end;
    assert_int_equal(code, BASE_OK);
    assert_int_equal(truncate(path, 400), 0); /* within a record */
    inject_start(&plan);
    code = client_ledger_open(&ledger, path, &start, error);
    client_ledger_close(&ledger);
    uint64_t batches = 0;
    if (code == BASE_OK)
        batches = read_ledger(&code, error);
    inject_stop();
    assert_true(code != BASE_CLOSED || batches == 1 || batches == 2);
    struct base_error ignored;
    assert_true(read_ledger(&end, &ignored) >= 1);
    assert_int_equal(end, BASE_CLOSED); /* whole, or torn as it was */
    return code == BASE_CLOSED ? BASE_OK : code;
}

static void ledgers(void **state)
{
    (void)state;
    const unsigned kinds = INJECT_MEMORY | INJECT_CALL | INJECT_SHORT;
    inject_each("ledger: write", kinds, keep_ledger, NULL);
    inject_each("ledger: continue and read", INJECT_MEMORY | INJECT_CALL, reopen_and_read, NULL);
}

/* ---- the machine ---- */

static enum base_code grow_core(void *context, struct base_error *error)
{
    (void)context;
    static struct scheduler_plan plan;
    const struct client_core_options options = {
        .shape = {.positions = 1000, .world = 1, .batch = 10, .tail = SCHEDULER_TAIL_EXACT},
        .block_rows = 8,
        .look_ahead = 2,
        .stall_ns = 1,
        .unavailable_ns = 1,
    };
    struct client_core *core = NULL;
    uint64_t workers[100];
    for (uint64_t i = 0; i < 100; i++)
        workers[i] = i + 1;
    enum base_code code = client_core_create(&core, &options, error);
    for (int count = 1; count <= 100 && code == BASE_OK; count += 33) {
        plan.version = (uint32_t)count;
        code = client_core_plan(core, 1, &plan, workers, count, error);
        assert_true(code != BASE_OK || client_core_plan_version(core) == plan.version);
        if (code != BASE_OK) { /* the plan before stays, and it may be told again */
            inject_stop();
            assert_true(client_core_plan_version(core) < plan.version);
            assert_int_equal(client_core_plan(core, 1, &plan, workers, count, NULL), BASE_OK);
        }
    }
    inject_stop();
    client_core_destroy(core);
    return code;
}

static void machine(void **state)
{
    (void)state;
    inject_each("client's machine", INJECT_MEMORY, grow_core, NULL);
}

/* ---- the library, against a cluster in a process of its own, where nothing fails ---- */

static pid_t cluster;
static char server[128];

static void run_cluster(int out)
{
    const struct fake_options options = {
        .workers = 2, .items = 100, .pipeline = "sample: Decode RandomResizedCrop(size=32)"};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dprintf(out, "%s\n", fake_server(fake_start(&options)));
    for (;;)
        pause();
}

static enum base_code pass(enum mr_code code, const struct mr_error *why, struct base_error *error)
{
    return code == MR_OK ? BASE_OK : base_error_set(error, (enum base_code)code, "%s", why->text);
}

static enum base_code read_batches(struct mr_job *job, struct base_error *error)
{
    struct mr_error why;
    struct mr_batch *batch;
    uint64_t position = 0;
    enum mr_code code;
    while ((code = mr_job_next(job, &batch, WAIT_MS, &why)) == MR_OK || code == MR_IO) {
        if (code != MR_OK)
            continue; /* the ledger's batch is kept */
        const struct mr_field *label = mr_batch_field(batch, "label");
        for (uint32_t row = 0; row < batch->rows; row++, position++) {
            assert_int_equal(batch->row[row].position, position);
            assert_int_equal(((const int64_t *)label->data)[row], position % 1000);
        }
        mr_batch_release(batch);
    }
    if (code != MR_END)
        return pass(code, &why, error);
    assert_int_equal(position, 100);
    return BASE_OK;
}

static enum base_code train(void *context, struct base_error *error)
{
    (void)context;
    const struct mr_client_options where = {.size = sizeof where, .server = server};
    const struct mr_job_options options = {.size = sizeof options,
                                           .dataset = FAKE_DATASET,
                                           .batch = 30,
                                           .epochs = 1,
                                           .tail = MR_TAIL_EXACT,
                                           .stall_ms = 100,
                                           .ledger = path};
    struct mr_client *client = NULL;
    struct mr_job *job = NULL;
    struct mr_error why;
    unlink(path);
    enum base_code code = pass(mr_client_open(&client, &where, &why), &why, error);
    if (code == BASE_OK)
        code = pass(mr_job_open(&job, client, &options, WAIT_MS, &why), &why, error);
    assert_int_equal(job != NULL, code == BASE_OK && client);
    if (code == BASE_OK)
        code = read_batches(job, error);
    mr_job_close(&job);
    assert_int_equal(mr_client_close(&client), MR_OK);
    inject_stop();
    return code;
}

static void library(void **state)
{
    (void)state;
    inject_each("client library", INJECT_ALL | INJECT_ONCE | INJECT_FOREIGN | INJECT_SPARSE, train, NULL);
}

static int set_up(void **state)
{
    (void)state;
    int ends[2];
    if (!mkdtemp(folder) || pipe(ends) != 0)
        return -1;
    snprintf(path, sizeof path, "%s/one.ledger", folder);
    cluster = fork();
    if (cluster == 0)
        run_cluster(ends[1]);
    close(ends[1]);
    FILE *said = fdopen(ends[0], "r");
    bool ready = cluster > 0 && said && fscanf(said, "%127s", server) == 1;
    if (said)
        fclose(said);
    return ready ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    kill(cluster, SIGKILL);
    waitpid(cluster, NULL, 0);
    unlink(path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ledgers), cmocka_unit_test(machine),
                                       cmocka_unit_test(library)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
