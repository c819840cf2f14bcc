/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/plan.h"

#include "base/philox.h"
#include "tests/unit/scheduler/plan_oracle.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SLOTS = SCHEDULER_PLAN_SLOTS };

static struct scheduler_plan_worker workers[SCHEDULER_PLAN_WORKERS];

static void equal_workers(int count)
{
    for (int i = 0; i < count; i++)
        workers[i] = (struct scheduler_plan_worker){.id = (uint64_t)i * 7 + 3, .weight = 4};
}

static int held(const uint64_t *slots, uint64_t id)
{
    int count = 0;
    for (int s = 0; s < SLOTS; s++)
        count += slots[s] == id;
    return count;
}

static int seconds_of(const struct scheduler_plan *plan, uint64_t home, uint64_t second)
{
    int count = 0;
    for (int s = 0; s < SLOTS; s++)
        count += plan->primary[s] == home && plan->secondary[s] == second;
    return count;
}

static int moved(const struct scheduler_plan *a, const struct scheduler_plan *b)
{
    int count = 0;
    for (int s = 0; s < SLOTS; s++)
        count += a->primary[s] != b->primary[s];
    return count;
}

static struct scheduler_plan fresh(int count)
{
    struct scheduler_plan none = {0}, plan;
    scheduler_plan_next(&none, workers, count, NULL, &plan);
    return plan;
}

static double total(int count)
{
    double sum = 0;
    for (int i = 0; i < count; i++)
        sum += workers[i].weight;
    return sum;
}

static int index_of(uint64_t id, int count)
{
    for (int i = 0; i < count; i++)
        if (workers[i].id == id)
            return i;
    return -1;
}

/* What every plan keeps, whatever came before. */
static void check(const struct scheduler_plan *plan, int count)
{
    static int primaries[SCHEDULER_PLAN_WORKERS];
    memset(primaries, 0, sizeof primaries);
    for (int s = 0; s < SLOTS; s++) {
        int home = index_of(plan->primary[s], count), second = index_of(plan->secondary[s], count);
        assert_true(count > 0 ? home >= 0 : plan->primary[s] == 0);
        assert_true(count > 1 ? second >= 0 && second != home : plan->secondary[s] == 0);
        if (count > 0)
            primaries[home]++;
    }
    for (int i = 0; i < count; i++) {
        double share = SLOTS * workers[i].weight / total(count);
        assert_true(primaries[i] <= ceil(share) + 1);
        assert_true(share < 1 || primaries[i] > 0);
        assert_true(primaries[i] >= floor(share) - fmax(2, share / 16));
    }
    struct scheduler_plan again;
    scheduler_plan_next(plan, workers, count, NULL, &again);
    assert_memory_equal(&again, plan, sizeof again);
}

static void check_seconds(const struct scheduler_plan *plan, int count)
{
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++) {
            double share =
                held(plan->primary, workers[i].id) * workers[j].weight / (total(count) - workers[i].weight);
            if (i != j)
                assert_true(fabs(seconds_of(plan, workers[i].id, workers[j].id) - share) <= 1);
        }
}

static void a_new_plan_interleaves_homes(void **state)
{
    (void)state;
    static const int counts[] = {1, 2, 3, 4, 5, 7, 16, 33, 100, 1000, 1024};
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        int w = counts[c];
        equal_workers(w);
        struct scheduler_plan plan = fresh(w);
        assert_int_equal(plan.version, 1);
        check(&plan, w);
        for (int s = 0; s < SLOTS; s++)
            for (int back = 1; back < w && back <= s; back++)
                assert_int_not_equal(plan.primary[s], plan.primary[s - back]);
        for (int i = 0; i < w; i++)
            assert_true(abs(held(plan.primary, workers[i].id) * w - SLOTS) < w);
        if (w <= 33)
            check_seconds(&plan, w);
    }
}

static void shares_follow_weights(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) {
        int w = 1 + (int)base_philox_below(seed, 1, 0, 20);
        for (int i = 0; i < w; i++)
            workers[i] = (struct scheduler_plan_worker){
                1 + base_philox_below(seed, 2, (uint64_t)i, 1000) * 20 + (uint64_t)i,
                1. + (double)base_philox_below(seed, 3, (uint64_t)i, 64), 0};
        struct scheduler_plan plan = fresh(w);
        check(&plan, w);
        check_seconds(&plan, w);
        for (int i = 0; i < w; i++)
            assert_true(fabs(held(plan.primary, workers[i].id) - SLOTS * workers[i].weight / total(w)) <=
                        1.5);
    }
}

static void the_order_of_the_list_does_not_matter(void **state)
{
    (void)state;
    equal_workers(9);
    struct scheduler_plan plan = fresh(9), turned;
    for (int i = 0; i < 4; i++) {
        struct scheduler_plan_worker kept = workers[i];
        workers[i] = workers[8 - i];
        workers[8 - i] = kept;
    }
    turned = fresh(9);
    assert_memory_equal(&plan, &turned, sizeof plan);
}

static void a_death_moves_only_the_dead_ones_slots_and_spreads_them(void **state)
{
    (void)state;
    for (int w = 2; w <= 33; w++)
        for (int dead = 0; dead < w; dead += 1 + w / 5) {
            equal_workers(w);
            struct scheduler_plan before = fresh(w), after;
            uint64_t id = workers[dead].id;
            int lost = held(before.primary, id);
            workers[dead] = workers[w - 1];
            scheduler_plan_next(&before, workers, w - 1, NULL, &after);
            assert_int_equal(after.version, 2);
            check(&after, w - 1);
            assert_int_equal(moved(&before, &after), lost);
            for (int s = 0; s < SLOTS; s++)
                if (before.primary[s] == id)
                    assert_int_equal(after.primary[s], before.secondary[s]);
            for (int i = 0; i < w - 1; i++) {
                int gained = held(after.primary, workers[i].id) - held(before.primary, workers[i].id);
                assert_true(fabs(gained - (double)lost / (w - 1)) < 1);
            }
        }
}

static void a_join_moves_only_the_joiners_share(void **state)
{
    (void)state;
    for (int w = 1; w <= 64; w++) {
        equal_workers(w + 1);
        struct scheduler_plan before = fresh(w), after;
        scheduler_plan_next(&before, workers, w + 1, NULL, &after);
        check(&after, w + 1);
        int share = held(after.primary, workers[w].id);
        assert_true(abs(share - SLOTS / (w + 1)) <= 1);
        assert_int_equal(moved(&before, &after), share);
        int longest = 0, run = 0; /* the joiner is spread over the ring */
        for (int s = 0; s < SLOTS; s++) {
            run = after.primary[s] == workers[w].id ? 0 : run + 1;
            longest = run > longest ? run : longest;
        }
        assert_true(longest <= 3 * (w + 1));
    }
}

/* Joins, deaths and drains at random: what check() says holds, a death moves only the dead one's slots, a
 * join only the joiner's, versions rise exactly when something changes. */
static void random_histories_keep_every_promise(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct scheduler_plan plan = {0}, next;
        int count = 0;
        for (uint64_t step = 0; step < 60; step++) {
            bool joins = count == 0 || (count < 24 && base_philox_below(seed, 10, step, 2));
            uint64_t dead = 0;
            if (joins)
                workers[count++] = (struct scheduler_plan_worker){
                    step + 1, 1. + (double)base_philox_below(seed, 11, step, seed % 2 ? 1 : 8), 0};
            else {
                int at = (int)base_philox_below(seed, 12, step, (uint64_t)count);
                dead = workers[at].id;
                workers[at] = workers[--count];
            }
            scheduler_plan_next(&plan, workers, count, NULL, &next);
            assert_int_equal(next.version, plan.version + 1);
            check(&next, count);
            if (joins)
                assert_int_equal(moved(&plan, &next), held(next.primary, step + 1));
            else
                assert_int_equal(moved(&plan, &next), held(plan.primary, dead));
            plan = next;
        }
    }
}

/* One step of a random history; weights 1 to `weights`. */
static int change_workers(uint64_t seed, uint64_t step, int count, int most, uint64_t weights)
{
    uint64_t what = base_philox_below(seed, 20, step, 16);
    int some = what > 13 ? 1 + (int)base_philox_below(seed, 21, step, (uint64_t)most / 3) : 1;
    for (int i = 0; i < some; i++) {
        uint64_t key = step * 1000 + (uint64_t)i;
        bool joins = count == 0 || (count < most && what % 2 == 0);
        if (what == 11 && count > 0) {
            workers[base_philox_below(seed, 22, key, (uint64_t)count)].weight =
                1. + (double)base_philox_below(seed, 23, key, weights);
        } else if (joins) {
            workers[count++] =
                (struct scheduler_plan_worker){key * 64 + base_philox_below(seed, 24, key, 64) + 1,
                                               1. + (double)base_philox_below(seed, 25, key, weights), 0};
        } else if (count > 0) {
            workers[base_philox_below(seed, 26, key, (uint64_t)count)] = workers[count - 1];
            count--;
        }
    }
    return count;
}

static void plans_are_what_they_were(void **state)
{
    (void)state;
    static const int most[] = {3, 8, 24, 60, 150, 700, 1024};
    int compared = 0;
    for (uint64_t seed = 1; seed <= 84; seed++) {
        struct scheduler_plan plan = {0}, next, oracle;
        int room = most[seed % 7], count = 0;
        uint64_t weights = seed % 3 == 0 ? 1 : seed % 3 == 1 ? 8 : 100;
        for (uint64_t step = 0; step < (room > 100 ? 6 : 60); step++) {
            if (step == 0 && room > 24)
                for (; count < room / 2; count++)
                    workers[count] = (struct scheduler_plan_worker){
                        (1ull << 40) + (uint64_t)count,
                        1. + (double)base_philox_below(seed, 27, (uint64_t)count, weights), 0};
            count = change_workers(seed, step, count, room, weights);
            scheduler_plan_next(&plan, workers, count, NULL, &next);
            plan_oracle_next(&plan, workers, count, &oracle);
            if (memcmp(&next, &oracle, sizeof next) != 0)
                fail_msg("seed %llu, step %llu, %d workers: another plan", (unsigned long long)seed,
                         (unsigned long long)step, count);
            plan = next;
            compared++;
        }
    }
    print_message("%d plans compared\n", compared);
}

/* Whoever dies, each of the others gets its weighted share of the slots, give or take two. */
static void check_deaths(const struct scheduler_plan *plan, int count)
{
    for (int dead = 0; dead < count; dead++)
        for (int i = 0; i < count; i++) {
            double share = held(plan->primary, workers[dead].id) * workers[i].weight /
                           (total(count) - workers[dead].weight);
            if (i != dead)
                assert_true(seconds_of(plan, workers[dead].id, workers[i].id) <= share + 2);
        }
}

static int moved_between_old(const struct scheduler_plan *a, const struct scheduler_plan *b, int count)
{
    int sum = 0;
    for (int s = 0; s < SLOTS; s++)
        sum += a->primary[s] != b->primary[s] && index_of(a->primary[s], count) >= 0 &&
               held(a->primary, b->primary[s]) > 0;
    return sum;
}

/* Joins, deaths and new weights in any order, each change with at most 51 slots moved for weights alone. */
static void any_death_is_spread_after_any_history(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 30; seed++) {
        struct scheduler_plan plan = {0}, next;
        int count = 0;
        for (uint64_t step = 0; step < 60; step++) {
            count = change_workers(seed, step, count, 16, 40);
            int moves = 51;
            scheduler_plan_next(&plan, workers, count, &moves, &next);
            if (plan.version > 0 && count > 0)
                assert_true(moved_between_old(&plan, &next, count) <= 51);
            assert_true(moves >= 0);
            check_deaths(&next, count);
            plan = next;
        }
    }
}

/* A worker that proves half as fast gives its slots up in bounded steps, and joiners get theirs at once all the same. */
static void new_weights_move_slots_in_bounded_steps(void **state)
{
    (void)state;
    equal_workers(4);
    struct scheduler_plan plan = fresh(4), next;
    workers[1].weight /= 2;
    int steps = 0;
    for (; steps < 10; steps++) {
        int moves = 51;
        scheduler_plan_next(&plan, workers, 4, &moves, &next);
        if (next.version == plan.version)
            break;
        assert_int_equal(moved(&plan, &next), 51 - moves);
        plan = next;
    }
    assert_int_equal(steps, 3); /* 256 - 146 = 110 slots */
    check(&plan, 4);
    workers[0].weight /= 2;
    workers[4] = (struct scheduler_plan_worker){77, 4, 0};
    int moves = 0;
    scheduler_plan_next(&plan, workers, 5, &moves, &next);
    assert_true(held(next.primary, 77) >= SLOTS * 4 / 16);
    assert_int_equal(moved(&plan, &next), held(next.primary, 77));
}

static const uint8_t one_family[32] = {1, 2, 3}, other_family[32] = {3, 2, 1};

/* More workers than slots: each stream has its own 1024; who comes or goes changes one of them at most. */
static void streams_of_a_large_cluster_use_different_workers(void **state)
{
    (void)state;
    enum { MANY = 10000 };
    static struct scheduler_plan_worker all[MANY], again[MANY];
    double least, heavy = 0;
    for (int i = 0; i < MANY; i++)
        all[i] = again[i] = (struct scheduler_plan_worker){(uint64_t)i + 1, i % 2 ? 1 : 3, 0};
    assert_int_equal(scheduler_plan_admit(one_family, all, 500, &least), 500);
    assert_true(least == -(double)INFINITY && all[0].id == 1);
    assert_int_equal(scheduler_plan_admit(one_family, all, MANY, &least), SCHEDULER_PLAN_WORKERS);
    static bool in[MANY + 1];
    for (int i = 0; i < SCHEDULER_PLAN_WORKERS; i++) {
        in[all[i].id] = true;
        heavy += all[i].weight > 1;
        assert_true(scheduler_plan_score(one_family, &all[i]) >= least);
    }
    assert_true(heavy > 700 && heavy < 800); /* three quarters of the weight */
    scheduler_plan_admit(other_family, again, MANY, &least);
    int both = 0;
    for (int i = 0; i < SCHEDULER_PLAN_WORKERS; i++)
        both += in[again[i].id];
    assert_true(both < 250); /* 1024 x 1024 / 10000, more for the weights */
    uint64_t gone = all[7].id;
    all[7] = all[MANY - 1];
    assert_int_equal(scheduler_plan_admit(one_family, all, MANY - 1, &least), SCHEDULER_PLAN_WORKERS);
    int stayed = 0;
    for (int i = 0; i < SCHEDULER_PLAN_WORKERS; i++)
        stayed += in[all[i].id] && all[i].id != gone;
    assert_int_equal(stayed, SCHEDULER_PLAN_WORKERS - 1);
}

static void nobody_and_versions(void **state)
{
    (void)state;
    struct scheduler_plan none = {0}, plan;
    scheduler_plan_next(&none, workers, 0, NULL, &plan);
    assert_int_equal(plan.version, 0);
    equal_workers(2);
    none.version = 41; /* a stored high-water: the next version is above it */
    scheduler_plan_next(&none, workers, 2, NULL, &plan);
    assert_int_equal(plan.version, 42);
    scheduler_plan_next(&plan, workers, 0, NULL, &plan); /* in place */
    assert_int_equal(plan.version, 43);
    check(&plan, 0);
}

static void blocks_map_to_slots(void **state)
{
    (void)state;
    uint8_t family[32] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, other[32] = {8, 2, 3, 4, 5, 6, 7, 8, 9};
    assert_int_equal(scheduler_plan_slot(family, false, 77, 1025), 1);
    int same = 0, alike = 0;
    for (uint32_t epoch = 0; epoch < 1024; epoch++) {
        uint32_t slot = scheduler_plan_slot(family, true, epoch, 0);
        assert_true(slot < SLOTS);
        assert_int_equal(scheduler_plan_slot(family, true, epoch, 1), (slot + 1) % SLOTS);
        same += slot == scheduler_plan_slot(family, true, epoch + 1, 0);
        alike += slot == scheduler_plan_slot(other, true, epoch, 0);
    }
    assert_true(same < 10 && alike < 10);
}

static void candidates_begin_with_the_homes_and_agree(void **state)
{
    (void)state;
    equal_workers(8);
    struct scheduler_plan plan = fresh(8);
    uint64_t ids[8], turned[8], out[8], again[8];
    int firsts[8] = {0};
    for (int i = 0; i < 8; i++)
        ids[i] = turned[7 - i] = workers[i].id;
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        assert_int_equal(scheduler_plan_candidates(&plan, slot, ids, 8, out, 8), 8);
        assert_int_equal(scheduler_plan_candidates(&plan, slot, turned, 8, again, 8), 8);
        assert_memory_equal(out, again, sizeof out);
        assert_true(out[0] == plan.primary[slot] && out[1] == plan.secondary[slot]);
        for (int i = 0; i < 8; i++)
            for (int j = 0; j < i; j++)
                assert_int_not_equal(out[i], out[j]);
        firsts[index_of(out[2], 8)]++;
        assert_int_equal(scheduler_plan_candidates(&plan, slot, ids, 8, again, 3), 3);
        assert_memory_equal(out, again, 3 * sizeof out[0]);
        /* without the primary, which died: the same order without it */
        int left = 0;
        for (int i = 0; i < 8; i++)
            if (ids[i] != out[0])
                turned[left++] = ids[i];
        assert_int_equal(scheduler_plan_candidates(&plan, slot, turned, 7, again, 8), 7);
        assert_memory_equal(out + 1, again, 7 * sizeof out[0]);
        for (int i = 0; i < 8; i++)
            turned[7 - i] = ids[i];
    }
    for (int i = 0; i < 8; i++)
        assert_true(firsts[i] > 80 && firsts[i] < 180); /* 128 expected */
    struct scheduler_plan nobody = {0};
    assert_int_equal(scheduler_plan_candidates(&nobody, 0, ids, 0, out, 8), 0);
    assert_int_equal(scheduler_plan_candidates(&nobody, 0, ids, 8, out, 8), 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_plan_interleaves_homes),
        cmocka_unit_test(shares_follow_weights),
        cmocka_unit_test(the_order_of_the_list_does_not_matter),
        cmocka_unit_test(a_death_moves_only_the_dead_ones_slots_and_spreads_them),
        cmocka_unit_test(a_join_moves_only_the_joiners_share),
        cmocka_unit_test(random_histories_keep_every_promise),
        cmocka_unit_test(plans_are_what_they_were),
        cmocka_unit_test(any_death_is_spread_after_any_history),
        cmocka_unit_test(new_weights_move_slots_in_bounded_steps),
        cmocka_unit_test(streams_of_a_large_cluster_use_different_workers),
        cmocka_unit_test(nobody_and_versions),
        cmocka_unit_test(blocks_map_to_slots),
        cmocka_unit_test(candidates_begin_with_the_homes_and_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
