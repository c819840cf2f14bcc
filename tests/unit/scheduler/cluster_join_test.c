/* SPDX-License-Identifier: Apache-2.0 */
/* Which stream a job gets, where in it it begins, and what it is told of that. */
#include "tests/unit/scheduler/cluster_scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void a_job_says_what_it_waits_for(void **state)
{
    (void)state;
    struct scheduler_job_request request = fixture_request("first");
    struct fake_worker blind = a, unable = b;
    blind.not_eligible = true;
    unable.cannot_make = true;
    const struct scheduler_job *job = scene_open_job(&request);
    assert_non_null(strstr(job->reason, "waits for a worker: none is ready"));
    scene_sync_worker(&blind);
    assert_non_null(strstr(job->reason, "none of 1 can; worker 1: /data: no such directory"));
    scene_sync_worker(&unable);
    assert_non_null(strstr(job->reason, "none of 1 can; worker 2: no decoder"));
    assert_int_equal(job->state, SCHEDULER_JOB_PREPARING);
    const char *why = NULL;
    uint8_t version[32];
    fixture_version(1, version);
    assert_false(scheduler_cluster_eligible(cluster, 1, version, &why));
    assert_string_equal(why, "/data: no such directory");
    scene_sync_worker(&c);
    assert_int_equal(job->state, SCHEDULER_JOB_RUNNING);
}

/* imagenet_eval's rows are as large; in the shuffled order of the other it is a sibling, in its own order it is not. */
static void siblings_are_said_while_they_are_read(void **state)
{
    (void)state;
    struct scheduler_job_request one = fixture_request("one"), two = fixture_request("two"),
                                 ordered = fixture_request("ordered");
    char name[13], want[64];
    two.sample_text = ordered.sample_text = fixture_sample_text("imagenet_eval");
    ordered.shuffle = false;
    scene_sync_worker(&a);
    scene_open_job(&one);
    scene_open_job(&ordered);
    scene_sync_worker(&a);
    const struct scheduler_job *first = scheduler_cluster_job(cluster, "one");
    assert_null(strstr(first->reason, "decoding"));
    uint64_t before = first->revision;
    const struct scheduler_job *second = scene_open_job(&two);
    scene_sync_worker(&a);
    assert_int_equal(second->state, SCHEDULER_JOB_RUNNING);
    base_hash_to_hex(second->stream->identity.hash, 6, name);
    snprintf(want, sizeof want, "alone; shares decoding with stream %s", name);
    assert_non_null(strstr(first->reason, want));
    assert_true(first->revision != before);
    base_hash_to_hex(first->stream->identity.hash, 6, name);
    snprintf(want, sizeof want, "alone; shares decoding with stream %s", name);
    assert_non_null(strstr(second->reason, want));
    assert_null(strstr(scheduler_cluster_job(cluster, "ordered")->reason, "decoding"));
    assert_int_equal(scene_close_job("two", 0, 1), BASE_OK);
    assert_null(strstr(first->reason, "decoding"));
}

/* Rows of 64 x 64 come in blocks of other rows than those of 224 x 224. */
static void other_blocks_are_said_while_they_are_read(void **state)
{
    (void)state;
    struct scheduler_job_request large = fixture_request("large"), small = fixture_request("small");
    char name[13], want[96];
    small.sample_text = fixture_sample_text("sample: Decode CenterCrop(size=64)");
    scene_sync_worker(&a);
    scene_open_job(&large);
    scene_sync_worker(&a);
    const struct scheduler_job *first = scheduler_cluster_job(cluster, "large");
    const struct scheduler_job *second = scene_open_job(&small);
    scene_sync_worker(&a);
    base_hash_to_hex(second->stream->identity.hash, 6, name);
    snprintf(want, sizeof want, "alone; shares no decoding with stream %s: its blocks have 128 rows, these 8",
             name);
    assert_non_null(strstr(first->reason, want));
    base_hash_to_hex(first->stream->identity.hash, 6, name);
    snprintf(want, sizeof want, "alone; shares no decoding with stream %s: its blocks have 8 rows, these 128",
             name);
    assert_non_null(strstr(second->reason, want));
    assert_int_equal(scene_close_job("small", 0, 1), BASE_OK);
    assert_null(strstr(first->reason, "decoding"));
}

static void jobs_share_unless_a_seed_is_given(void **state)
{
    (void)state;
    struct scheduler_job_request one = fixture_request("one"), two = fixture_request("two"),
                                 other = fixture_request("other");
    scene_sync_worker(&a);
    scene_open_job(&one);
    scene_sync_worker(&a);
    two.batch = 16;
    two.world = 2;
    two.tail = SCHEDULER_TAIL_DROP;
    two.pipeline_text = "another finish section";
    const struct scheduler_job *second = scene_open_job(&two);
    assert_int_equal(second->state, SCHEDULER_JOB_RUNNING);
    assert_ptr_equal(second->stream, scheduler_cluster_job(cluster, "one")->stream);
    assert_non_null(strstr(second->reason, "shares stream"));
    assert_non_null(strstr(second->reason, "with one"));
    assert_non_null(strstr(scheduler_cluster_job(cluster, "one")->reason, "with two"));
    assert_int_equal(second->stream->jobs, 2);
    assert_int_equal(scheduler_cluster_counts(cluster).jobs_shared, 1);
    other.has_seed = true;
    other.seed = 7;
    const struct scheduler_job *third = scene_open_job(&other);
    scene_sync_worker(&a);
    assert_true(third->stream && third->stream != second->stream);
    char name[13], want[64];
    base_hash_to_hex(second->stream->identity.hash, 6, name);
    snprintf(want, sizeof want, "differs from stream %s only in seed", name);
    assert_non_null(strstr(third->note, want));
    assert_true(scene_log_says(want));
    assert_int_equal(scheduler_cluster_counts(cluster).near_misses, 1);
    assert_int_equal(scheduler_cluster_stream_count(cluster), 2);
    /* a validation stream uses no seed: an explicit one changes nothing */
    struct scheduler_job_request eval = fixture_request("eval"), seeded = fixture_request("seeded");
    eval.sample_text = seeded.sample_text = fixture_sample_text("imagenet_eval");
    eval.shuffle = seeded.shuffle = false;
    seeded.has_seed = true;
    scene_open_job(&eval);
    scene_sync_worker(&a);
    scene_open_job(&seeded);
    assert_ptr_equal(scheduler_cluster_job(cluster, "seeded")->stream,
                     scheduler_cluster_job(cluster, "eval")->stream);
    assert_string_equal(scheduler_cluster_job(cluster, "seeded")->note, "");
}

static void next_waits_for_the_next_epoch(void **state)
{
    (void)state;
    struct scheduler_job_request one = fixture_request("one"), two = fixture_request("two"),
                                 three = fixture_request("three");
    two.join = three.join = SCHEDULER_JOIN_NEXT;
    scene_sync_worker(&a);
    scene_open_job(&one);
    scene_sync_worker(&a);
    scene_sync_job("one", 0, 1, 4, 500);
    const struct scheduler_job *second = scene_open_job(&two);
    assert_int_equal(second->state, SCHEDULER_JOB_WAITING);
    assert_non_null(strstr(second->reason, "read by one"));
    uint64_t before = second->revision;
    scene_sync_job("one", 0, 1, 4, 900);
    assert_int_equal(second->state, SCHEDULER_JOB_WAITING);
    assert_true(second->revision == before);
    scene_sync_job("one", 0, 1, 5, 0);
    assert_int_equal(second->state, SCHEDULER_JOB_RUNNING);
    assert_true(second->revision != before);
    assert_true(second->first_epoch == 5 && second->start.epoch == 5 && second->start.position == 0);
    /* a worker tells of epoch 6 before any job does */
    const struct scheduler_job *third = scene_open_job(&three);
    struct fake_worker teller = a;
    teller.front_stream = third->stream->identity.hash;
    teller.front_epoch = 5;
    scene_sync_worker(&teller);
    assert_int_equal(third->state, SCHEDULER_JOB_WAITING);
    teller.front_epoch = 6;
    scene_sync_worker(&teller);
    assert_int_equal(third->state, SCHEDULER_JOB_RUNNING);
    assert_int_equal(third->first_epoch, 6);
}

static void next_starts_at_once_when_nobody_else_reads(void **state)
{
    (void)state;
    struct scheduler_job_request one = fixture_request("one"), two = fixture_request("two");
    one.join = two.join = SCHEDULER_JOIN_NEXT;
    scene_sync_worker(&a);
    const struct scheduler_job *first = scene_open_job(&one);
    scene_sync_worker(&a);
    assert_true(first->state == SCHEDULER_JOB_RUNNING && first->first_epoch == 0);
    const struct scheduler_job *second = scene_open_job(&two);
    assert_int_equal(second->state, SCHEDULER_JOB_WAITING);
    scene_close_job("one", 0, 1);
    assert_int_equal(first->state, SCHEDULER_JOB_CLOSED);
    assert_true(second->state == SCHEDULER_JOB_RUNNING && second->first_epoch == 0);
}

/* A reader far ahead goes; who waits must not wait for the epoch after its. */
static void next_waits_for_those_who_are_left(void **state)
{
    (void)state;
    struct scheduler_job_request fast = fixture_request("fast"), slow = fixture_request("slow"),
                                 late = fixture_request("late");
    late.join = SCHEDULER_JOIN_NEXT;
    scene_sync_worker(&a);
    scene_open_job(&fast);
    scene_sync_worker(&a);
    scene_sync_job("fast", 0, 1, 9, 10);
    scene_open_job(&slow);
    scene_sync_job("slow", 0, 1, 1, 10);
    const struct scheduler_job *job = scene_open_job(&late);
    scene_close_job("fast", 0, 1);
    assert_int_equal(job->state, SCHEDULER_JOB_WAITING);
    scene_sync_job("slow", 0, 1, 2, 0);
    assert_true(job->state == SCHEDULER_JOB_RUNNING && job->first_epoch == 2);
}

static const struct {
    uint64_t front;
    uint32_t world, batch;
    enum scheduler_tail tail;
    struct scheduler_cursor start;
} partials[] = {
    {0, 1, 10, SCHEDULER_TAIL_EXACT, {3, 0}},     {1, 1, 10, SCHEDULER_TAIL_EXACT, {3, 10}},
    {500, 1, 10, SCHEDULER_TAIL_EXACT, {3, 500}}, {501, 2, 32, SCHEDULER_TAIL_PAD, {3, 512}},
    {961, 2, 32, SCHEDULER_TAIL_PAD, {4, 0}},     {960, 2, 32, SCHEDULER_TAIL_PAD, {3, 960}},
    {960, 2, 32, SCHEDULER_TAIL_DROP, {4, 0}},    {999, 1, 10, SCHEDULER_TAIL_EXACT, {4, 0}},
};

static void partial_starts_at_the_live_front(void **state)
{
    (void)state;
    struct scheduler_job_request one = fixture_request("one"), ahead = fixture_request("ahead");
    scene_sync_worker(&a);
    scene_open_job(&one);
    scene_sync_worker(&a);
    scene_open_job(&ahead);
    scene_sync_job("ahead", 0, 1, 7, 0); /* the lowest front counts */
    for (size_t i = 0; i < sizeof partials / sizeof partials[0]; i++) {
        struct scheduler_job_request late = fixture_request("late");
        late.join = SCHEDULER_JOIN_PARTIAL;
        late.world = partials[i].world;
        late.batch = partials[i].batch;
        late.tail = partials[i].tail;
        late.generation = i + 1;
        one.generation = i + 2; /* back to its start, then to its front */
        scene_open_job(&one);
        scene_sync_job("one", 0, i + 2, 3, partials[i].front);
        const struct scheduler_job *job = scene_open_job(&late);
        assert_int_equal(job->state, SCHEDULER_JOB_RUNNING);
        assert_int_equal(job->start.epoch, partials[i].start.epoch);
        assert_int_equal(job->start.position, partials[i].start.position);
        assert_int_equal(job->first_epoch, job->start.epoch);
        assert_int_equal(job->short_first_epoch, job->start.position > 0);
        scene_close_job("late", 0, i + 1);
        now += SECOND;
    }
}

static struct scheduler_job_cursor cursor_of(const struct scheduler_job *job, uint32_t epoch,
                                             uint64_t position)
{
    struct scheduler_job_cursor cursor = {.at = {epoch, position}, .first_epoch = job->first_epoch};
    memcpy(cursor.dataset_version, job->stream->identity.dataset_version, sizeof cursor.dataset_version);
    memcpy(cursor.fingerprint, job->stream->identity.fingerprint, sizeof cursor.fingerprint);
    memcpy(cursor.stream, job->stream->identity.hash, sizeof cursor.stream);
    return cursor;
}

static void a_cursor_resumes_where_it_was_saved(void **state)
{
    (void)state;
    struct scheduler_job_request one = fixture_request("one");
    scene_sync_worker(&a);
    scene_open_job(&one);
    scene_sync_worker(&a);
    struct scheduler_job_cursor cursor = cursor_of(scheduler_cluster_job(cluster, "one"), 3, 640);
    cursor.first_epoch = 2;
    one.resume = &cursor;
    one.generation = 2;
    one.world = 2;
    one.batch = 30;
    const struct scheduler_job *job = scene_open_job(&one);
    assert_int_equal(job->state, SCHEDULER_JOB_RUNNING);
    assert_true(job->start.epoch == 3 && job->start.position == 640 && job->first_epoch == 2);
    one.rank = 1;
    scene_open_job(&one);
    assert_int_equal(job->ranks_live, 2);
    one.generation = 3;
    cursor.at.position = 1000; /* the epoch's end is the next one's start */
    job = scene_open_job(&one);
    assert_true(job->start.epoch == 4 && job->start.position == 0);
    assert_int_equal(job->ranks_live, 1);
}

static void cursors_that_do_not_fit_are_refused_naming_both(void **state)
{
    (void)state;
    struct scheduler_job_request one = fixture_request("one"), two = fixture_request("two");
    scene_sync_worker(&a);
    scene_open_job(&one);
    scene_sync_worker(&a);
    struct scheduler_job_cursor good = cursor_of(scheduler_cluster_job(cluster, "one"), 3, 640),
                                cursor = good;
    two.resume = &cursor;
    fixture_version(2, cursor.dataset_version);
    scene_open_fails(&two, BASE_CONFLICT, "d2d2d2d2d2d2", "d1d1d1d1d1d1");
    cursor = good;
    cursor.stream[0] ^= 1;
    scene_open_fails(&two, BASE_CONFLICT, "cursor is of stream", "make stream");
    cursor = good;
    cursor.at.position = 1001;
    scene_open_fails(&two, BASE_INVALID, "1001", "1000");
    cursor = good;
    cursor.at.epoch = UINT32_MAX;
    scene_open_fails(&two, BASE_INVALID, "4294967295", "epoch");
    assert_null(scheduler_cluster_job(cluster, "two")); /* nothing is changed by these */

    memset(cursor.stream, 0, sizeof cursor.stream);
    cursor = good;
    memset(cursor.stream, 0, sizeof cursor.stream);
    memset(cursor.fingerprint, 0xcc, sizeof cursor.fingerprint);
    scene_open_fails(&two, BASE_CONFLICT, "cccccccccccc", "aaaaaaaaaaaa");
    assert_int_equal(scheduler_cluster_job(cluster, "two")->state, SCHEDULER_JOB_REFUSED);
    assert_int_equal(scene_sync_job("two", 0, 1, 3, 640), BASE_CONFLICT);
    two.accept_new_bits = true;
    two.generation = 2;
    const struct scheduler_job *job = scene_open_job(&two);
    assert_int_equal(job->state, SCHEDULER_JOB_RUNNING);
    assert_non_null(strstr(job->reason, "bits are not the cursor's"));
    assert_int_equal(job->start.position, 640);
}

/* Opened while no worker has answered: the refusal comes when they have. */
static void a_late_refusal_reaches_the_sync(void **state)
{
    (void)state;
    struct scheduler_job_request one = fixture_request("one");
    struct scheduler_job_cursor cursor = {.at = {1, 0}};
    fixture_version(1, cursor.dataset_version);
    memset(cursor.fingerprint, 0xcc, sizeof cursor.fingerprint);
    one.resume = &cursor;
    const struct scheduler_job *job = scene_open_job(&one);
    assert_int_equal(job->state, SCHEDULER_JOB_PREPARING);
    uint64_t before = job->revision;
    scene_sync_worker(&a);
    assert_int_equal(job->state, SCHEDULER_JOB_REFUSED);
    assert_true(job->revision != before);
    assert_int_equal(scene_sync_job("one", 0, 1, 1, 0), BASE_CONFLICT);
    assert_non_null(strstr(error.text, "cccccccccccc"));
}

/* Old and new workers side by side: a cursor of the old bits goes on with the old workers. */
static void a_cursor_prefers_its_own_bits(void **state)
{
    (void)state;
    struct scheduler_job_request one = fixture_request("one"), two = fixture_request("two");
    struct fake_worker fresh = c;
    fresh.bits = 0xbb;
    fresh.weight = 50;
    struct scheduler_job_cursor cursor = {.at = {1, 0}};
    fixture_version(1, cursor.dataset_version);
    memset(cursor.fingerprint, 0xaa, sizeof cursor.fingerprint);
    one.resume = &cursor;
    scene_sync_worker(&a), scene_sync_worker(&fresh);
    scene_open_job(&one), scene_open_job(&two);
    scene_sync_worker(&fresh), scene_sync_worker(&a);
    const struct scheduler_job *old = scheduler_cluster_job(cluster, "one"),
                               *new = scheduler_cluster_job(cluster, "two");
    assert_int_equal(old->stream->identity.fingerprint[0], 0xaa);
    assert_int_equal(fixture_held(old->stream, 1), SCHEDULER_PLAN_SLOTS);
    assert_int_equal(new->stream->identity.fingerprint[0], new->stream == old->stream ? 0xaa : 0xbb);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, scene_setup, scene_teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_job_says_what_it_waits_for),
        TEST(siblings_are_said_while_they_are_read),
        TEST(other_blocks_are_said_while_they_are_read),
        TEST(jobs_share_unless_a_seed_is_given),
        TEST(next_waits_for_the_next_epoch),
        TEST(next_starts_at_once_when_nobody_else_reads),
        TEST(next_waits_for_those_who_are_left),
        TEST(partial_starts_at_the_live_front),
        TEST(a_cursor_resumes_where_it_was_saved),
        TEST(cursors_that_do_not_fit_are_refused_naming_both),
        TEST(a_late_refusal_reaches_the_sync),
        TEST(a_cursor_prefers_its_own_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
