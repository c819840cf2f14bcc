/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/scheduler/cluster_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct scheduler_cluster *cluster;
static struct base_error error;
static int64_t now;
static struct fake_worker a = {.id = 1, .incarnation = 1, .weight = 2, .bits = 0xaa},
                          b = {.id = 2, .incarnation = 1, .weight = 2, .bits = 0xaa},
                          c = {.id = 3, .incarnation = 1, .weight = 2, .bits = 0xaa};

static int setup(void **state)
{
    (void)state;
    now = 1000 * SECOND;
    error = (struct base_error){0};
    return scheduler_cluster_create(&cluster, NULL, &error);
}

static int teardown(void **state)
{
    (void)state;
    scheduler_cluster_destroy(cluster);
    cluster = NULL;
    return 0;
}

static void sync_worker(const struct fake_worker *worker)
{
    if (fixture_sync(cluster, now, worker, &error))
        fail_msg("%s", error.text);
}

static const struct scheduler_job *open_job(const struct scheduler_job_request *request)
{
    if (scheduler_cluster_job_open(cluster, now, request, &error))
        fail_msg("%s", error.text);
    return scheduler_cluster_job(cluster, request->job);
}

static void open_fails(const struct scheduler_job_request *request, enum base_code code, const char *says,
                       const char *and)
{
    error.text[0] = 0;
    assert_int_equal(scheduler_cluster_job_open(cluster, now, request, &error), code);
    if (!strstr(error.text, says) || !strstr(error.text, and))
        fail_msg("\"%s\" does not say %s and %s", error.text, says, and);
}

static enum base_code sync_job(const char *job, uint32_t rank, uint64_t generation, uint32_t epoch,
                               uint64_t position)
{
    struct scheduler_job_report report = {
        .job = job, .rank = rank, .generation = generation, .has_cursor = true, .at = {epoch, position}};
    return scheduler_cluster_job_sync(cluster, now, &report, &error);
}

static enum base_code close_job(const char *job, uint32_t rank, uint64_t generation)
{
    struct scheduler_job_report report = {.job = job, .rank = rank, .generation = generation};
    return scheduler_cluster_job_close(cluster, now, &report, &error);
}

static bool log_says(const char *what)
{
    char line[SCHEDULER_WORDS_CHARS];
    bool found = false;
    while (scheduler_cluster_take_line(cluster, line))
        found |= strstr(line, what) != NULL;
    return found;
}

static void two_workers_and_a_job(void **state)
{
    (void)state;
    struct scheduler_job_request request = fixture_request("first");
    sync_worker(&a);
    uint64_t before = scheduler_cluster_worker(cluster, 1)->revision;
    const struct scheduler_job *job = open_job(&request);
    assert_int_equal(job->state, SCHEDULER_JOB_PREPARING);
    assert_non_null(strstr(job->reason, "fingerprints of 1 of 1 workers"));
    assert_true(scheduler_cluster_worker(cluster, 1)->revision != before);
    assert_non_null(scheduler_cluster_probe_at(cluster, 1, 0));
    assert_null(scheduler_cluster_probe_at(cluster, 1, 1));
    before = job->revision;
    sync_worker(&a);
    job = scheduler_cluster_job(cluster, "first");
    assert_int_equal(job->state, SCHEDULER_JOB_RUNNING);
    assert_true(job->revision != before);
    assert_non_null(strstr(job->reason, "alone"));
    assert_int_equal(job->stream->plan.version, 1);
    assert_int_equal(fixture_held(job->stream, 1), SCHEDULER_PLAN_SLOTS);
    assert_ptr_equal(scheduler_cluster_served_at(cluster, 1, 0), job->stream);
    before = job->revision;
    sync_worker(&b); /* joins, probes, gets its share */
    assert_int_equal(job->stream->plan.version, 2);
    assert_int_equal(fixture_held(job->stream, 2), SCHEDULER_PLAN_SLOTS / 2);
    assert_true(job->revision != before);
    assert_int_equal(job->stream->jobs, 1);
    assert_true(scheduler_cluster_deadline_ns(cluster) > now);
}

static void a_silent_worker_is_lost_and_comes_back(void **state)
{
    (void)state;
    struct scheduler_job_request request = fixture_request("first");
    sync_worker(&a), sync_worker(&b);
    const struct scheduler_job *job = open_job(&request);
    sync_worker(&a), sync_worker(&b);
    uint32_t version = job->stream->plan.version;
    now += 9 * SECOND;
    sync_worker(&a);
    sync_job("first", 0, 1, 0, 0);
    assert_int_equal(scheduler_cluster_deadline_ns(cluster), now + SECOND);
    now += SECOND;
    scheduler_cluster_tick(cluster, now);
    assert_int_equal(scheduler_cluster_worker(cluster, 2)->state, SCHEDULER_WORKER_LOST);
    assert_int_equal(job->stream->plan.version, version + 1);
    assert_int_equal(fixture_held(job->stream, 2), 0);
    assert_null(scheduler_cluster_served_at(cluster, 2, 0));
    assert_true(log_says("worker 2 is lost"));
    sync_worker(&b);
    assert_int_equal(job->stream->plan.version, version + 2);
    assert_int_equal(fixture_held(job->stream, 2), SCHEDULER_PLAN_SLOTS / 2);
    assert_int_equal(scheduler_cluster_counts(cluster).workers_lost, 1);
    scheduler_cluster_worker_leave(cluster, now, 2, 0); /* of an earlier start: ignored */
    assert_non_null(scheduler_cluster_worker(cluster, 2));
    scheduler_cluster_worker_leave(cluster, now, 2, 1);
    assert_null(scheduler_cluster_worker(cluster, 2));
    assert_int_equal(fixture_held(job->stream, 1), SCHEDULER_PLAN_SLOTS);
}

static void a_draining_worker_serves_and_is_given_nothing(void **state)
{
    (void)state;
    struct scheduler_job_request request = fixture_request("first");
    sync_worker(&a), sync_worker(&b);
    const struct scheduler_job *job = open_job(&request);
    sync_worker(&a), sync_worker(&b);
    assert_int_equal(scheduler_cluster_worker_drain(cluster, now, 2, &error), BASE_OK);
    assert_int_equal(scheduler_cluster_worker_drain(cluster, now, 9, &error), BASE_NOT_FOUND);
    assert_int_equal(fixture_held(job->stream, 2), 0);
    assert_true(scheduler_cluster_worker(cluster, 2)->drain_ordered);
    assert_ptr_equal(scheduler_cluster_served_at(cluster, 2, 0), job->stream);
    sync_worker(&b); /* still drained */
    assert_int_equal(scheduler_cluster_worker(cluster, 2)->state, SCHEDULER_WORKER_DRAINING);
    struct fake_worker again = b;
    again.incarnation = 2;
    sync_worker(&again);
    assert_int_equal(scheduler_cluster_worker(cluster, 2)->state, SCHEDULER_WORKER_READY);
    assert_true(fixture_held(job->stream, 2) > 0);
    assert_int_equal(fixture_sync(cluster, now, &b, &error), BASE_CONFLICT); /* the earlier one is a zombie */
    again.draining = true;
    sync_worker(&again);
    assert_int_equal(fixture_held(job->stream, 2), 0);
}

static void a_plan_admits_one_fingerprint_only(void **state)
{
    (void)state;
    struct scheduler_job_request request = fixture_request("first");
    struct fake_worker odd = c;
    odd.bits = 0xbb;
    odd.weight = 3;
    sync_worker(&odd), sync_worker(&a), sync_worker(&b);
    const struct scheduler_job *job = open_job(&request);
    sync_worker(&odd); /* the first answer alone decides nothing yet */
    assert_int_equal(job->state, SCHEDULER_JOB_PREPARING);
    sync_worker(&a), sync_worker(&b);
    assert_int_equal(job->state, SCHEDULER_JOB_RUNNING);
    assert_int_equal(job->stream->identity.fingerprint[0], 0xaa); /* weight 4 against 3 */
    assert_int_equal(fixture_held(job->stream, 3), 0);
    assert_null(scheduler_cluster_served_at(cluster, 3, 0));
}

static void the_first_answers_decide_after_settling(void **state)
{
    (void)state;
    struct scheduler_job_request request = fixture_request("first");
    sync_worker(&a), sync_worker(&b);
    const struct scheduler_job *job = open_job(&request);
    sync_worker(&a); /* b is slow */
    assert_int_equal(job->state, SCHEDULER_JOB_PREPARING);
    assert_int_equal(scheduler_cluster_deadline_ns(cluster), now + SECOND);
    now += SECOND;
    scheduler_cluster_tick(cluster, now);
    assert_int_equal(job->state, SCHEDULER_JOB_RUNNING);
    assert_true(scheduler_cluster_deadline_ns(cluster) > now);
}

static void a_job_says_what_it_waits_for(void **state)
{
    (void)state;
    struct scheduler_job_request request = fixture_request("first");
    struct fake_worker blind = a, unable = b;
    blind.not_eligible = true;
    unable.cannot_make = true;
    const struct scheduler_job *job = open_job(&request);
    assert_non_null(strstr(job->reason, "waits for a worker: none is ready"));
    sync_worker(&blind);
    assert_non_null(strstr(job->reason, "none of 1 can; worker 1: /data: no such directory"));
    sync_worker(&unable);
    assert_non_null(strstr(job->reason, "none of 1 can; worker 2: no decoder"));
    assert_int_equal(job->state, SCHEDULER_JOB_PREPARING);
    const char *why = NULL;
    uint8_t version[32];
    fixture_version(1, version);
    assert_false(scheduler_cluster_eligible(cluster, 1, version, &why));
    assert_string_equal(why, "/data: no such directory");
    sync_worker(&c);
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
    sync_worker(&a);
    open_job(&one);
    open_job(&ordered);
    sync_worker(&a);
    const struct scheduler_job *first = scheduler_cluster_job(cluster, "one");
    assert_null(strstr(first->reason, "decoding"));
    uint64_t before = first->revision;
    const struct scheduler_job *second = open_job(&two);
    sync_worker(&a);
    assert_int_equal(second->state, SCHEDULER_JOB_RUNNING);
    base_hash_to_hex(second->stream->identity.hash, 6, name);
    snprintf(want, sizeof want, "alone; shares decoding with stream %s", name);
    assert_non_null(strstr(first->reason, want));
    assert_true(first->revision != before);
    base_hash_to_hex(first->stream->identity.hash, 6, name);
    snprintf(want, sizeof want, "alone; shares decoding with stream %s", name);
    assert_non_null(strstr(second->reason, want));
    assert_null(strstr(scheduler_cluster_job(cluster, "ordered")->reason, "decoding"));
    assert_int_equal(close_job("two", 0, 1), BASE_OK);
    assert_null(strstr(first->reason, "decoding"));
}

/* Rows of 64 x 64 come in blocks of other rows than those of 224 x 224. */
static void other_blocks_are_said_while_they_are_read(void **state)
{
    (void)state;
    struct scheduler_job_request large = fixture_request("large"), small = fixture_request("small");
    char name[13], want[96];
    small.sample_text = fixture_sample_text("sample: Decode CenterCrop(size=64)");
    sync_worker(&a);
    open_job(&large);
    sync_worker(&a);
    const struct scheduler_job *first = scheduler_cluster_job(cluster, "large");
    const struct scheduler_job *second = open_job(&small);
    sync_worker(&a);
    base_hash_to_hex(second->stream->identity.hash, 6, name);
    snprintf(want, sizeof want, "alone; shares no decoding with stream %s: its blocks have 128 rows, these 8",
             name);
    assert_non_null(strstr(first->reason, want));
    base_hash_to_hex(first->stream->identity.hash, 6, name);
    snprintf(want, sizeof want, "alone; shares no decoding with stream %s: its blocks have 8 rows, these 128",
             name);
    assert_non_null(strstr(second->reason, want));
    assert_int_equal(close_job("small", 0, 1), BASE_OK);
    assert_null(strstr(first->reason, "decoding"));
}

static void jobs_share_unless_a_seed_is_given(void **state)
{
    (void)state;
    struct scheduler_job_request one = fixture_request("one"), two = fixture_request("two"),
                                 other = fixture_request("other");
    sync_worker(&a);
    open_job(&one);
    sync_worker(&a);
    two.batch = 16;
    two.world = 2;
    two.tail = SCHEDULER_TAIL_DROP;
    two.pipeline_text = "another finish section";
    const struct scheduler_job *second = open_job(&two);
    assert_int_equal(second->state, SCHEDULER_JOB_RUNNING);
    assert_ptr_equal(second->stream, scheduler_cluster_job(cluster, "one")->stream);
    assert_non_null(strstr(second->reason, "shares stream"));
    assert_non_null(strstr(second->reason, "with one"));
    assert_non_null(strstr(scheduler_cluster_job(cluster, "one")->reason, "with two"));
    assert_int_equal(second->stream->jobs, 2);
    assert_int_equal(scheduler_cluster_counts(cluster).jobs_shared, 1);
    other.has_seed = true;
    other.seed = 7;
    const struct scheduler_job *third = open_job(&other);
    sync_worker(&a);
    assert_true(third->stream && third->stream != second->stream);
    char name[13], want[64];
    base_hash_to_hex(second->stream->identity.hash, 6, name);
    snprintf(want, sizeof want, "differs from stream %s only in seed", name);
    assert_non_null(strstr(third->note, want));
    assert_true(log_says(want));
    assert_int_equal(scheduler_cluster_counts(cluster).near_misses, 1);
    assert_int_equal(scheduler_cluster_stream_count(cluster), 2);
    /* a validation stream uses no seed: an explicit one changes nothing */
    struct scheduler_job_request eval = fixture_request("eval"), seeded = fixture_request("seeded");
    eval.sample_text = seeded.sample_text = fixture_sample_text("imagenet_eval");
    eval.shuffle = seeded.shuffle = false;
    seeded.has_seed = true;
    open_job(&eval);
    sync_worker(&a);
    open_job(&seeded);
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
    sync_worker(&a);
    open_job(&one);
    sync_worker(&a);
    sync_job("one", 0, 1, 4, 500);
    const struct scheduler_job *second = open_job(&two);
    assert_int_equal(second->state, SCHEDULER_JOB_WAITING);
    assert_non_null(strstr(second->reason, "read by one"));
    uint64_t before = second->revision;
    sync_job("one", 0, 1, 4, 900);
    assert_int_equal(second->state, SCHEDULER_JOB_WAITING);
    assert_true(second->revision == before);
    sync_job("one", 0, 1, 5, 0);
    assert_int_equal(second->state, SCHEDULER_JOB_RUNNING);
    assert_true(second->revision != before);
    assert_true(second->first_epoch == 5 && second->start.epoch == 5 && second->start.position == 0);
    /* a worker tells of epoch 6 before any job does */
    const struct scheduler_job *third = open_job(&three);
    struct fake_worker teller = a;
    teller.front_stream = third->stream->identity.hash;
    teller.front_epoch = 5;
    sync_worker(&teller);
    assert_int_equal(third->state, SCHEDULER_JOB_WAITING);
    teller.front_epoch = 6;
    sync_worker(&teller);
    assert_int_equal(third->state, SCHEDULER_JOB_RUNNING);
    assert_int_equal(third->first_epoch, 6);
}

static void next_starts_at_once_when_nobody_else_reads(void **state)
{
    (void)state;
    struct scheduler_job_request one = fixture_request("one"), two = fixture_request("two");
    one.join = two.join = SCHEDULER_JOIN_NEXT;
    sync_worker(&a);
    const struct scheduler_job *first = open_job(&one);
    sync_worker(&a);
    assert_true(first->state == SCHEDULER_JOB_RUNNING && first->first_epoch == 0);
    const struct scheduler_job *second = open_job(&two);
    assert_int_equal(second->state, SCHEDULER_JOB_WAITING);
    close_job("one", 0, 1);
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
    sync_worker(&a);
    open_job(&fast);
    sync_worker(&a);
    sync_job("fast", 0, 1, 9, 10);
    open_job(&slow);
    sync_job("slow", 0, 1, 1, 10);
    const struct scheduler_job *job = open_job(&late);
    close_job("fast", 0, 1);
    assert_int_equal(job->state, SCHEDULER_JOB_WAITING);
    sync_job("slow", 0, 1, 2, 0);
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
    sync_worker(&a);
    open_job(&one);
    sync_worker(&a);
    open_job(&ahead);
    sync_job("ahead", 0, 1, 7, 0); /* the lowest front counts */
    for (size_t i = 0; i < sizeof partials / sizeof partials[0]; i++) {
        struct scheduler_job_request late = fixture_request("late");
        late.join = SCHEDULER_JOIN_PARTIAL;
        late.world = partials[i].world;
        late.batch = partials[i].batch;
        late.tail = partials[i].tail;
        late.generation = i + 1;
        one.generation = i + 2; /* back to its start, then to its front */
        open_job(&one);
        sync_job("one", 0, i + 2, 3, partials[i].front);
        const struct scheduler_job *job = open_job(&late);
        assert_int_equal(job->state, SCHEDULER_JOB_RUNNING);
        assert_int_equal(job->start.epoch, partials[i].start.epoch);
        assert_int_equal(job->start.position, partials[i].start.position);
        assert_int_equal(job->first_epoch, job->start.epoch);
        assert_int_equal(job->short_first_epoch, job->start.position > 0);
        close_job("late", 0, i + 1);
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
    sync_worker(&a);
    open_job(&one);
    sync_worker(&a);
    struct scheduler_job_cursor cursor = cursor_of(scheduler_cluster_job(cluster, "one"), 3, 640);
    cursor.first_epoch = 2;
    one.resume = &cursor;
    one.generation = 2;
    one.world = 2;
    one.batch = 30;
    const struct scheduler_job *job = open_job(&one);
    assert_int_equal(job->state, SCHEDULER_JOB_RUNNING);
    assert_true(job->start.epoch == 3 && job->start.position == 640 && job->first_epoch == 2);
    one.rank = 1;
    open_job(&one);
    assert_int_equal(job->ranks_live, 2);
    one.generation = 3;
    cursor.at.position = 1000; /* the epoch's end is the next one's start */
    job = open_job(&one);
    assert_true(job->start.epoch == 4 && job->start.position == 0);
    assert_int_equal(job->ranks_live, 1);
}

static void cursors_that_do_not_fit_are_refused_naming_both(void **state)
{
    (void)state;
    struct scheduler_job_request one = fixture_request("one"), two = fixture_request("two");
    sync_worker(&a);
    open_job(&one);
    sync_worker(&a);
    struct scheduler_job_cursor good = cursor_of(scheduler_cluster_job(cluster, "one"), 3, 640),
                                cursor = good;
    two.resume = &cursor;
    fixture_version(2, cursor.dataset_version);
    open_fails(&two, BASE_CONFLICT, "d2d2d2d2d2d2", "d1d1d1d1d1d1");
    cursor = good;
    cursor.stream[0] ^= 1;
    open_fails(&two, BASE_CONFLICT, "cursor is of stream", "make stream");
    cursor = good;
    cursor.at.position = 1001;
    open_fails(&two, BASE_INVALID, "1001", "1000");
    cursor = good;
    cursor.at.epoch = UINT32_MAX;
    open_fails(&two, BASE_INVALID, "4294967295", "epoch");
    assert_null(scheduler_cluster_job(cluster, "two")); /* nothing is changed by these */

    memset(cursor.stream, 0, sizeof cursor.stream);
    cursor = good;
    memset(cursor.stream, 0, sizeof cursor.stream);
    memset(cursor.fingerprint, 0xcc, sizeof cursor.fingerprint);
    open_fails(&two, BASE_CONFLICT, "cccccccccccc", "aaaaaaaaaaaa");
    assert_int_equal(scheduler_cluster_job(cluster, "two")->state, SCHEDULER_JOB_REFUSED);
    assert_int_equal(sync_job("two", 0, 1, 3, 640), BASE_CONFLICT);
    two.accept_new_bits = true;
    two.generation = 2;
    const struct scheduler_job *job = open_job(&two);
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
    const struct scheduler_job *job = open_job(&one);
    assert_int_equal(job->state, SCHEDULER_JOB_PREPARING);
    uint64_t before = job->revision;
    sync_worker(&a);
    assert_int_equal(job->state, SCHEDULER_JOB_REFUSED);
    assert_true(job->revision != before);
    assert_int_equal(sync_job("one", 0, 1, 1, 0), BASE_CONFLICT);
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
    sync_worker(&a), sync_worker(&fresh);
    open_job(&one), open_job(&two);
    sync_worker(&fresh), sync_worker(&a);
    const struct scheduler_job *old = scheduler_cluster_job(cluster, "one"),
                               *new = scheduler_cluster_job(cluster, "two");
    assert_int_equal(old->stream->identity.fingerprint[0], 0xaa);
    assert_int_equal(fixture_held(old->stream, 1), SCHEDULER_PLAN_SLOTS);
    assert_int_equal(new->stream->identity.fingerprint[0], new->stream == old->stream ? 0xaa : 0xbb);
}

static void ranks_must_agree(void **state)
{
    (void)state;
    struct scheduler_job_request zero = fixture_request("one"), one;
    struct scheduler_job_cursor cursor = {.at = {1, 640}}, other = {.at = {1, 650}};
    fixture_version(1, cursor.dataset_version);
    fixture_version(1, other.dataset_version);
    zero.world = 4;
    zero.resume = &cursor;
    open_job(&zero);
    one = zero;
    one.rank = 1;
    one.generation = 2;
    one.resume = &other;
    open_fails(&one, BASE_CONFLICT, "position 650", "position 640");
    one = zero;
    one.rank = 1;
    one.batch = 11;
    open_fails(&one, BASE_CONFLICT, "batch 11", "batch 10");
    one = zero;
    one.rank = 1;
    one.pipeline_text = "other";
    open_fails(&one, BASE_CONFLICT, "pipeline other", "pipeline sample");
    one = zero;
    one.rank = 1;
    one.has_seed = true;
    open_fails(&one, BASE_CONFLICT, "seed 0", "stream candidate");
    one = zero;
    one.rank = 1;
    one.resume = NULL;
    open_fails(&one, BASE_CONFLICT, "join now", "cursor (epoch 1");
    assert_int_equal(scheduler_cluster_job(cluster, "one")->ranks_open, 1);
    one = zero;
    one.rank = 1;
    one.generation = 77;
    open_job(&one);
    assert_int_equal(scheduler_cluster_job(cluster, "one")->ranks_open, 2);
}

static void a_later_start_fences_off_the_earlier_one(void **state)
{
    (void)state;
    struct scheduler_job_request request = fixture_request("one");
    sync_worker(&a);
    request.world = 2;
    for (request.rank = 0; request.rank < 2; request.rank++)
        open_job(&request);
    sync_worker(&a);
    assert_int_equal(sync_job("one", 0, 1, 0, 100), BASE_OK);
    assert_int_equal(sync_job("one", 1, 1, 0, 80), BASE_OK);
    const struct scheduler_job *job = scheduler_cluster_job(cluster, "one");
    assert_int_equal(job->at.position, 80); /* the least of its ranks */
    request.rank = 1;
    request.generation = 5;
    job = open_job(&request);
    assert_true(job->at.position == 0 && job->ranks_live == 1);
    assert_int_equal(sync_job("one", 0, 1, 0, 120), BASE_CONFLICT); /* zombies */
    assert_int_equal(sync_job("one", 1, 1, 0, 120), BASE_CONFLICT);
    assert_int_equal(close_job("one", 1, 1), BASE_CONFLICT);
    request.rank = 0;
    request.generation = 1;
    open_fails(&request, BASE_CONFLICT, "rank 0", "later start");
    request.generation = 4;
    open_job(&request);
    assert_int_equal(job->ranks_live, 2);
    open_job(&request); /* the same call again */
    assert_int_equal(job->ranks_live, 2);
    assert_int_equal(sync_job("one", 0, 4, 0, 10), BASE_OK);
    assert_int_equal(sync_job("one", 2, 4, 0, 10), BASE_CONFLICT);
    assert_true(scheduler_cluster_counts(cluster).fenced >= 5);
}

/* Started again with a larger world while the leases of the killed one run. */
static void a_restart_in_another_shape_waits_for_leases_at_most(void **state)
{
    (void)state;
    struct scheduler_job_request request = fixture_request("one");
    open_job(&request);
    request.world = 3;
    request.generation = 2;
    request.rank = 2;
    open_fails(&request, BASE_UNAVAILABLE, "world 3", "world 1");
    request.rank = 0;
    open_job(&request); /* the rank that was there begins the new launch */
    request.rank = 2;
    open_job(&request);
    now += 10 * SECOND;
    scheduler_cluster_tick(cluster, now);
    assert_int_equal(scheduler_cluster_job(cluster, "one")->state, SCHEDULER_JOB_LOST);
    request.world = 5;
    request.rank = 4;
    open_job(&request);
    assert_int_equal(scheduler_cluster_job(cluster, "one")->shape.world, 5);
}

static void a_lost_job_comes_back_and_an_unread_stream_goes(void **state)
{
    (void)state;
    struct scheduler_job_request request = fixture_request("one");
    sync_worker(&a);
    open_job(&request);
    sync_worker(&a);
    const struct scheduler_job *job = scheduler_cluster_job(cluster, "one");
    sync_job("one", 0, 1, 2, 300);
    uint32_t version = job->stream->plan.version;
    now += 10 * SECOND;
    sync_worker(&a);
    assert_int_equal(job->state, SCHEDULER_JOB_LOST);
    assert_int_equal(job->stream->jobs, 0);
    assert_int_equal(sync_job("one", 0, 1, 2, 310), BASE_OK);
    assert_int_equal(job->state, SCHEDULER_JOB_RUNNING);
    for (int i = 0; i < 9; i++) {
        now += 9 * SECOND + 900 * MS;
        sync_worker(&a);
    }
    assert_int_equal(job->state, SCHEDULER_JOB_LOST);
    assert_null(job->stream);
    assert_int_equal(scheduler_cluster_stream_count(cluster), 0);
    assert_int_equal(sync_job("one", 0, 1, 2, 320),
                     BASE_OK); /* its stream is made again: the same bits, versions rise */
    assert_int_equal(job->state, SCHEDULER_JOB_PREPARING);
    sync_worker(&a);
    assert_int_equal(job->state, SCHEDULER_JOB_RUNNING);
    assert_true(job->stream->plan.version > version);
    assert_true(job->start.epoch == 0 && job->at.position == 320);
    now += 4000 * SECOND;
    scheduler_cluster_tick(cluster, now);
    scheduler_cluster_tick(cluster, now += 3600 * SECOND);
    assert_int_equal(scheduler_cluster_job_count(cluster), 0);
    assert_int_equal(scheduler_cluster_worker_count(cluster), 0);
    assert_int_equal(scheduler_cluster_deadline_ns(cluster), INT64_MAX);
    assert_int_equal(sync_job("one", 0, 1, 2, 320), BASE_NOT_FOUND);
}

static void what_is_to_be_stored_is_told(void **state)
{
    (void)state;
    struct scheduler_job_request request = fixture_request("one");
    uint8_t hash[32];
    char id[SCHEDULER_JOB_CHARS];
    bool gone = true;
    sync_worker(&a);
    const struct scheduler_job *job = open_job(&request);
    sync_worker(&a);
    assert_true(scheduler_cluster_take_stream(cluster, hash, &gone) && !gone);
    assert_memory_equal(hash, job->stream->identity.hash, sizeof hash);
    assert_false(scheduler_cluster_take_stream(cluster, hash, &gone));
    assert_true(scheduler_cluster_take_job(cluster, id, &gone) && !gone);
    assert_string_equal(id, "one");
    assert_false(scheduler_cluster_take_job(cluster, id, &gone));
    sync_job("one", 0, 1, 0, 10);
    assert_false(scheduler_cluster_take_job(cluster, id, &gone)); /* not more than once a second */
    now += SECOND;
    sync_job("one", 0, 1, 0, 20);
    assert_true(scheduler_cluster_take_job(cluster, id, &gone) && !gone);
    sync_worker(&b);
    assert_true(scheduler_cluster_take_stream(cluster, hash, &gone) && !gone);
    close_job("one", 0, 1);
    assert_true(scheduler_cluster_take_job(cluster, id, &gone) && gone);
    scheduler_cluster_tick(cluster, now += 60 * SECOND);
    assert_true(scheduler_cluster_take_stream(cluster, hash, &gone) && gone);
    assert_false(scheduler_cluster_take_job(cluster, id, &gone));
}

/* The server dies; its heir is loaded from the store; workers and ranks sync as if nothing had been. */
static void a_restart_goes_on(void **state)
{
    (void)state;
    struct scheduler_job_request request = fixture_request("one");
    struct scheduler_cluster_options options = {.first_revision = 1000000};
    sync_worker(&a), sync_worker(&b);
    request.world = 2;
    open_job(&request);
    request.rank = 1;
    request.generation = 2;
    const struct scheduler_job *job = open_job(&request);
    sync_worker(&a), sync_worker(&b);
    sync_job("one", 0, 1, 6, 440), sync_job("one", 1, 2, 6, 440);
    struct scheduler_stream identity = job->stream->identity;
    struct scheduler_plan plan = job->stream->plan;
    struct scheduler_cursor at = job->at;
    scheduler_cluster_destroy(cluster);
    assert_int_equal(scheduler_cluster_create(&cluster, &options, &error), BASE_OK);
    assert_int_equal(scheduler_cluster_load_stream(cluster, now, &identity, &plan, &error), BASE_OK);
    assert_int_equal(scheduler_cluster_load_stream(cluster, now, &identity, &plan, &error), BASE_EXISTS);
    request.rank = 0;
    struct scheduler_job_stored stored = {.at = at};
    memcpy(stored.stream, identity.hash, sizeof stored.stream);
    fixture_version(2, request.dataset_version); /* registered anew since: the job goes on with its own */
    assert_int_equal(scheduler_cluster_load_job(cluster, now, &request, &stored, &error), BASE_OK);
    fixture_version(1, request.dataset_version);
    assert_int_equal(scheduler_cluster_load_job(cluster, now, &request, &stored, &error), BASE_EXISTS);
    job = scheduler_cluster_job(cluster, "one");
    assert_int_equal(job->state, SCHEDULER_JOB_LOST);
    now += SECOND;
    assert_int_equal(sync_job("one", 1, 2, 6, 460), BASE_OK); /* jobs are there before workers */
    assert_int_equal(sync_job("one", 0, 1, 6, 460), BASE_OK);
    assert_int_equal(sync_job("one", 0, 2, 6, 480), BASE_CONFLICT); /* attached is attached */
    assert_int_equal(job->state, SCHEDULER_JOB_RUNNING);
    assert_true(job->at.epoch == 6 && job->at.position == 460);
    sync_worker(&b);
    assert_false(job->stream->planned);
    assert_non_null(strstr(job->reason, "restart"));
    sync_worker(&a);
    assert_true(job->stream->planned);
    assert_int_equal(job->stream->plan.version, plan.version + 1);
    assert_memory_equal(job->stream->plan.primary, plan.primary, sizeof plan.primary); /* nothing moved */
    request.generation = 9; /* a new launch does not begin at the stored cursor */
    job = open_job(&request);
    assert_true(job->start.epoch == 0 && job->start.position == 0);
}

/* Clients do better with the old plan than with one of nobody; and epochs of jobs long gone are no news. */
static void a_restart_without_workers_says_nothing(void **state)
{
    (void)state;
    struct scheduler_job_request request = fixture_request("one"), late = fixture_request("late");
    sync_worker(&a);
    struct scheduler_stream identity;
    const struct scheduler_plan without = {.version = 7}; /* as an older server stored it */
    {
        const struct scheduler_job *job = open_job(&request);
        sync_worker(&a);
        identity = job->stream->identity;
    }
    scheduler_cluster_destroy(cluster);
    assert_int_equal(scheduler_cluster_create(&cluster, NULL, &error), BASE_OK);
    assert_int_equal(scheduler_cluster_load_stream(cluster, now, &identity, &without, &error), BASE_OK);
    struct scheduler_job_stored stored = {.at = {2, 500}};
    memcpy(stored.stream, identity.hash, sizeof stored.stream);
    assert_int_equal(scheduler_cluster_load_job(cluster, now, &request, &stored, &error), BASE_OK);
    assert_int_equal(sync_job("one", 0, 1, 2, 500), BASE_OK);
    scheduler_cluster_tick(cluster, now += 5 * SECOND);
    const struct scheduler_job *job = scheduler_cluster_job(cluster, "one");
    assert_true(job->state == SCHEDULER_JOB_RUNNING && !job->stream->planned);
    assert_int_equal(job->stream->plan.version, 7);
    assert_true(scheduler_cluster_deadline_ns(cluster) > now);
    struct fake_worker teller = a;
    teller.front_stream = identity.hash;
    teller.front_epoch = 9;
    sync_worker(&teller);
    assert_true(job->stream->planned && job->stream->plan.version == 8);
    late.join = SCHEDULER_JOIN_NEXT;
    const struct scheduler_job *second = open_job(&late);
    assert_int_equal(second->state, SCHEDULER_JOB_WAITING);
    sync_job("one", 0, 1, 3, 0);
    assert_true(second->state == SCHEDULER_JOB_RUNNING && second->first_epoch == 3);
}

static void bad_requests_are_refused(void **state)
{
    (void)state;
    struct scheduler_job_request request = fixture_request("one"), good = request;
    request.job = "";
    open_fails(&request, BASE_INVALID, "id", "1 to 127");
    request.job = "a b";
    open_fails(&request, BASE_INVALID, "0x20", "offset 1");
    request = good, request.world = 0;
    open_fails(&request, BASE_INVALID, "rank 0 of 0", "world");
    request = good, request.rank = 1;
    open_fails(&request, BASE_INVALID, "rank 1 of 1", "");
    request = good, request.batch = 0;
    open_fails(&request, BASE_INVALID, "batch 0", "");
    request = good, request.batch = 1001, request.tail = SCHEDULER_TAIL_DROP;
    open_fails(&request, BASE_INVALID, "1000 items", "drop");
    request = good, request.items = 0;
    open_fails(&request, BASE_INVALID, "0 items", "one");
    request = good, request.sample_text = "sample: Decode";
    open_fails(&request, BASE_INVALID, "one", "size");
    assert_int_equal(scheduler_cluster_job_count(cluster), 0);
    struct fake_worker nobody = {.id = 0};
    assert_int_equal(fixture_sync(cluster, now, &nobody, &error), BASE_INVALID);
    open_job(&good);
    assert_int_equal(sync_job("one", 0, 1, 0, 1001), BASE_INVALID);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(two_workers_and_a_job),
        TEST(a_silent_worker_is_lost_and_comes_back),
        TEST(a_draining_worker_serves_and_is_given_nothing),
        TEST(a_plan_admits_one_fingerprint_only),
        TEST(the_first_answers_decide_after_settling),
        TEST(a_job_says_what_it_waits_for),
        TEST(jobs_share_unless_a_seed_is_given),
        TEST(siblings_are_said_while_they_are_read),
        TEST(other_blocks_are_said_while_they_are_read),
        TEST(next_waits_for_the_next_epoch),
        TEST(next_starts_at_once_when_nobody_else_reads),
        TEST(next_waits_for_those_who_are_left),
        TEST(partial_starts_at_the_live_front),
        TEST(a_cursor_resumes_where_it_was_saved),
        TEST(cursors_that_do_not_fit_are_refused_naming_both),
        TEST(a_late_refusal_reaches_the_sync),
        TEST(a_cursor_prefers_its_own_bits),
        TEST(ranks_must_agree),
        TEST(a_later_start_fences_off_the_earlier_one),
        TEST(a_restart_in_another_shape_waits_for_leases_at_most),
        TEST(a_lost_job_comes_back_and_an_unread_stream_goes),
        TEST(what_is_to_be_stored_is_told),
        TEST(a_restart_goes_on),
        TEST(a_restart_without_workers_says_nothing),
        TEST(bad_requests_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
