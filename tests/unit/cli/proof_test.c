/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The proof against ledgers of every kind of life: those that must be proven, and those of which exactly one thing is wrong.
 * The ledgers are made here from the rules of delivery, not by the library.
 */
#include "client/cli/proof.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { ITEMS = 50, FILES = 8, E0 = 4 };
enum { DROP, PAD, EXACT };

static char folder[64], names[FILES][96];
static struct base_buffer files[FILES];
static int file_count;
static uint64_t generation;
static uint64_t salted = UINT64_MAX; /* a position whose content is another one */

static int begin(void **state)
{
    (void)state;
    for (int i = 0; i < FILES; i++)
        base_buffer_init(&files[i]);
    file_count = 0;
    generation = 1000;
    salted = UINT64_MAX;
    strcpy(folder, "/tmp/millrace-proof-XXXXXX");
    assert_non_null(mkdtemp(folder));
    return 0;
}

static int end(void **state)
{
    (void)state;
    for (int i = 0; i < FILES; i++) {
        base_buffer_fini(&files[i]);
        if (i < file_count)
            unlink(names[i]);
    }
    return rmdir(folder);
}

/* ---- lives ---- */

struct life {
    const char *job;
    uint32_t world, batch;
    uint8_t tail;
    uint32_t from_epoch; /* the job's */
    uint64_t from;
    uint32_t to_epoch; /* handed out until this cursor */
    uint64_t to;
    bool resumed, abandons;
    int lacking_rank;   /* - 1: a rank that writes nothing; 0: none */
    uint64_t leave_out; /* - 1: the position where a step begins that is not written; 0: none */
    uint64_t twice;     /* likewise: written twice */
    uint64_t lags[4];   /* ranks stop so many steps before the others */
};

static void put_start(struct base_buffer *out, const struct life *life, uint32_t rank)
{
    struct ledger_start start = {.rank = rank,
                                 .world = life->world,
                                 .batch = life->batch,
                                 .tail = life->tail,
                                 .resumed = life->resumed,
                                 .abandons = life->abandons,
                                 .uses_epoch = true,
                                 .generation = generation++,
                                 .items = ITEMS,
                                 .first_epoch = E0,
                                 .epoch = E0 + life->from_epoch,
                                 .position = life->from};
    snprintf(start.job, sizeof start.job, "%s", life->job);
    ledger_put_start(out, &start);
}

static void put_rows(struct base_buffer *out, struct ledger_batch *batch, uint64_t from, uint64_t to)
{
    uint8_t hashes[8 * ITEMS], valid[ITEMS / 8 + 1] = {0};
    batch->rows = (uint32_t)(to - from);
    for (uint64_t p = from; p < to; p++) {
        base_set_u64(hashes + 8 * (p - from), 1000 * batch->epoch + p + (p == salted ? 7 : 0));
        valid[(p - from) / 8] |= (uint8_t)(1 << (p - from) % 8);
    }
    batch->run_count = to > from;
    batch->runs[0] = (struct ledger_run){from, batch->rows};
    batch->hashes = hashes;
    batch->valid = valid;
    ledger_put_batch(out, batch);
}

/* The rank's part of the step at `at`: semantics.md. */
static void put_step(struct base_buffer *out, const struct life *life, uint32_t rank, uint32_t job_epoch,
                     uint64_t at)
{
    uint64_t whole = (uint64_t)life->world * life->batch, left = ITEMS - at,
             count = left < whole ? left : whole;
    uint64_t after = at + count, own = (uint64_t)rank * life->batch;
    bool ends = after == ITEMS || (life->tail == DROP && ITEMS - after < whole);
    struct ledger_batch batch = {.job_epoch = job_epoch,
                                 .epoch = E0 + job_epoch,
                                 .step = at / whole,
                                 .steps = ITEMS,
                                 .step_begin = at,
                                 .step_valid = count,
                                 .after_epoch = E0 + job_epoch + ends,
                                 .after_position = ends ? 0 : after};
    uint64_t from = own < count ? own : count, to = own + life->batch < count ? own + life->batch : count;
    if (life->tail == EXACT) {
        uint64_t share = count / life->world, more = count % life->world;
        from = rank * share + (rank < more ? rank : more);
        to = from + share + (rank < more);
    } else {
        batch.padding = (uint32_t)(life->batch - (to - from));
    }
    put_rows(out, &batch, at + from, at + to);
    if (life->twice == at + 1)
        put_rows(out, &batch, at + from, at + to);
}

static void live_rank(struct base_buffer *out, const struct life *life, uint32_t rank)
{
    uint64_t whole = (uint64_t)life->world * life->batch, at = life->from;
    uint64_t to = life->to - life->lags[rank % 4] * whole;
    put_start(out, life, rank);
    for (uint32_t epoch = life->from_epoch; epoch < life->to_epoch || (epoch == life->to_epoch && at < to);) {
        if (life->leave_out != at + 1)
            put_step(out, life, rank, epoch, at);
        at += whole;
        if (at >= ITEMS || (life->tail == DROP && ITEMS - at < whole)) {
            at = 0;
            epoch++;
        }
    }
}

/* Each rank into the file `first` + its number. */
static void live(const struct life *life, int first)
{
    for (uint32_t rank = 0; rank < life->world; rank++)
        if (life->lacking_rank != (int)rank + 1) {
            live_rank(&files[first + (int)rank], life, rank);
            file_count = first + (int)rank >= file_count ? first + (int)rank + 1 : file_count;
        }
}

/* ---- proofs ---- */

static struct cli_proof prove(bool complete)
{
    const char *paths[FILES];
    int count = 0;
    struct cli_proof proof;
    struct base_error error;
    for (int i = 0; i < file_count; i++) {
        snprintf(names[i], sizeof names[i], "%s/%d.ledger", folder, i);
        FILE *file = fopen(names[i], "wb");
        assert_non_null(file);
        if (files[i].size) {
            fwrite(files[i].bytes, 1, files[i].size, file);
            paths[count++] = names[i];
        }
        fclose(file);
    }
    if (cli_proof_open(&proof, paths, (size_t)count, &error) != BASE_OK ||
        cli_proof_judge(&proof, complete, &error) != BASE_OK)
        fail_msg("%s", error.text);
    return proof;
}

static void expect_proven(bool complete)
{
    struct cli_proof proof = prove(complete);
    if (proof.violations)
        fail_msg("%s", proof.words[0]);
    cli_proof_close(&proof);
}

/* At least one violation, and each named one has one of the words (which are separated by |). */
static void expect_violated(bool complete, const char *words)
{
    struct cli_proof proof = prove(complete);
    assert_true(proof.violations > 0);
    for (int i = 0; i < proof.word_count; i++) {
        char list[256], *rest = NULL;
        bool found = false;
        snprintf(list, sizeof list, "%s", words);
        for (char *word = strtok_r(list, "|", &rest); word; word = strtok_r(NULL, "|", &rest))
            found = found || strstr(proof.words[i], word);
        if (!found)
            fail_msg("%s (expected: %s)", proof.words[i], words);
    }
    cli_proof_close(&proof);
}

static void test_whole_lives(void **state)
{
    (void)state;
    live(&(struct life){"a", 1, 7, EXACT, .to_epoch = 3}, 0);
    live(&(struct life){"b", 2, 4, PAD, .to_epoch = 2}, 1);
    live(&(struct life){"c", 3, 5, DROP, .to_epoch = 2}, 3);
    live(&(struct life){"d", 2, 16, EXACT, .to_epoch = 1}, 6);
    struct cli_proof proof = prove(true);
    if (proof.violations)
        fail_msg("%s", proof.words[0]);
    assert_int_equal(proof.epoch_count, 8);
    for (size_t i = 0; i < proof.epoch_count; i++) {
        bool drops = strcmp(proof.groups[proof.epochs[i].group].is.job, "c") == 0;
        assert_int_equal(proof.epochs[i].delivered, drops ? 45 : ITEMS);
        assert_int_equal(proof.epochs[i].state, CLI_PROOF_COMPLETE);
    }
    cli_proof_close(&proof);
}

static void test_restarts_in_other_shapes(void **state)
{
    (void)state;
    live(&(struct life){"a", 2, 5, EXACT, .to_epoch = 1, .to = 40, .lags = {0, 1}}, 0);
    live(&(struct life){"a", 1, 8, EXACT, .from_epoch = 1, .from = 20, .to_epoch = 1, .to = 36,
                        .resumed = true},
         0);
    live(&(struct life){"a", 3, 4, EXACT, .from_epoch = 1, .from = 28, .to_epoch = 2, .to = 24,
                        .resumed = true},
         2);
    struct cli_proof proof = prove(false);
    if (proof.violations)
        fail_msg("%s", proof.words[0]);
    assert_int_equal(proof.epochs[1].delivered, ITEMS);
    assert_int_equal(proof.epochs[1].again, 15 + 8); /* 20 to 35 but what rank 1 had not; 28 to 36 */
    assert_int_equal(proof.epochs[2].state, CLI_PROOF_INCOMPLETE);
    cli_proof_close(&proof);
    expect_violated(true, "incomplete");
}

static void test_one_rank_alone_restarts_and_replicas(void **state)
{
    (void)state;
    struct life two = {"a", 2, 5, PAD, .to_epoch = 1, .lags = {0, 0}};
    live_rank(&files[0], &two, 0);
    two.to_epoch = 0;
    two.to = 30;
    live_rank(&files[1], &two, 1);
    two = (struct life){"a", 2, 5, PAD, .from_epoch = 0, .from = 20, .to_epoch = 1, .to = 0, .resumed = true};
    live_rank(&files[1], &two, 1);
    live_rank(&files[2], &(struct life){"a", 2, 5, PAD, .to_epoch = 1}, 0); /* a replica of rank 0 */
    file_count = 3;
    expect_proven(true);
}

static void test_joins_within_an_epoch(void **state)
{
    (void)state;
    live(&(struct life){"a", 1, 7, EXACT, .from_epoch = 0, .from = 13, .to_epoch = 2, .to = 0}, 0);
    expect_proven(true);
}

static void test_went_on_without_earlier_ledgers(void **state)
{
    (void)state;
    live(&(struct life){"a", 1, 5, EXACT, .from_epoch = 2, .from = 15, .to_epoch = 3, .to = 0,
                        .resumed = true},
         0);
    expect_violated(false, "epochs 0 to 1: missing|epoch 2 positions 0 to 14: missing");
}

/* A trainer breaks two epochs off, skips one, and goes back to one. */
static void test_epochs_that_were_abandoned(void **state)
{
    struct life life = {.job = "j", .world = 2, .batch = 3, .to_epoch = 0, .to = 12};
    const struct life more[] = {{.from_epoch = 1, .to_epoch = 1, .to = 6},
                                {.from_epoch = 3, .to_epoch = 4, .to = 6},
                                {.from_epoch = 3, .to_epoch = 4, .to = 6}};
    (void)state;
    live(&life, 0);
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++) {
        life.from_epoch = more[i].from_epoch, life.from = 0;
        life.to_epoch = more[i].to_epoch, life.to = more[i].to;
        life.resumed = life.abandons = true;
        live(&life, 0);
    }
    expect_proven(false);
    struct cli_proof proof = prove(false);
    assert_int_equal(proof.epochs[0].state, CLI_PROOF_ABANDONED);
    assert_int_equal(proof.epochs[0].abandoned, ITEMS - 12);
    assert_int_equal(proof.epochs[1].abandoned, ITEMS - 6);
    assert_int_equal(proof.epochs[2].state,
                     CLI_PROOF_COMPLETE); /* the job's epoch 3: nothing is there of 2 */
    cli_proof_close(&proof);
}

/* Without the flag the same is a loss. */
static void test_epochs_that_were_not(void **state)
{
    struct life life = {.job = "j", .world = 1, .batch = 3, .to_epoch = 0, .to = 12};
    (void)state;
    live(&life, 0);
    life = (struct life){
        .job = "j", .world = 1, .batch = 3, .from_epoch = 2, .to_epoch = 2, .to = 6, .resumed = true};
    live(&life, 0);
    expect_violated(false, "missing");
}

static void test_steps_left_out_and_doubled(void **state)
{
    (void)state;
    live(&(struct life){"a", 1, 5, EXACT, .to_epoch = 2, .leave_out = 21}, 0);
    expect_violated(false, "positions 20 to 24: missing|begins at position 25");
    live(&(struct life){"b", 1, 5, EXACT, .to_epoch = 1, .twice = 31}, 1);
    expect_violated(false, "job a|doubled|begins at position 30");
}

static void test_lacking_ranks(void **state)
{
    (void)state;
    live(&(struct life){"a", 2, 5, PAD, .to_epoch = 1, .lacking_rank = 1}, 0);
    expect_violated(false, "no ledger of rank 0 of 2|missing|uneven");
}

/* Tail exact: the last step has one position, rank 1 none of it. It must have had the step all the same. */
static void test_an_empty_step_is_a_step(void **state)
{
    (void)state;
    struct life life = {"a",           2,       7, EXACT, .from_epoch = 0, .from = 7,
                        .to_epoch = 1, .to = 14}; /* 7, 21, 35, 49 */
    live_rank(&files[0], &life, 0);
    life.leave_out = 50;
    live_rank(&files[1], &life, 1);
    file_count = 2;
    expect_violated(false, "uneven, the step at position 49|begins at position 0, after a batch");
}

static void test_contents_differ(void **state)
{
    (void)state;
    live(&(struct life){"a", 1, 5, EXACT, .to_epoch = 1}, 0);
    salted = 23;
    live(&(struct life){"b", 2, 4, EXACT, .to_epoch = 1}, 1);
    expect_violated(false, "epoch 0 position 23: differing");
}

static void test_contents_differ_after_a_restart(void **state)
{
    (void)state;
    live(&(struct life){"a", 1, 5, EXACT, .to_epoch = 0, .to = 30}, 0);
    salted = 23;
    live(&(struct life){"a", 1, 5, EXACT, .from_epoch = 0, .from = 20, .to_epoch = 1, .to = 0,
                        .resumed = true},
         0);
    expect_violated(false, "epoch 0 position 23: differing");
}

static void test_copies_are_refused(void **state)
{
    (void)state;
    const char *paths[2];
    struct cli_proof proof;
    struct base_error error;
    live(&(struct life){"a", 1, 5, EXACT, .to_epoch = 1}, 0);
    expect_proven(true);
    paths[0] = paths[1] = names[0];
    assert_int_equal(cli_proof_open(&proof, paths, 2, &error), BASE_INVALID);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_whole_lives),
        TEST(test_restarts_in_other_shapes),
        TEST(test_one_rank_alone_restarts_and_replicas),
        TEST(test_joins_within_an_epoch),
        TEST(test_went_on_without_earlier_ledgers),
        TEST(test_epochs_that_were_abandoned),
        TEST(test_epochs_that_were_not),
        TEST(test_steps_left_out_and_doubled),
        TEST(test_lacking_ranks),
        TEST(test_an_empty_step_is_a_step),
        TEST(test_contents_differ),
        TEST(test_contents_differ_after_a_restart),
        TEST(test_copies_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
