/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From one plan to the next, in four steps:
 *   1. keep     a slot whose home is still there keeps it
 *   2. adopt    a dead home's slot goes to its secondary, unless that would lift it over its cap
 *   3. fill     slots of nobody go one by one to the worker most behind its share; from nothing that interleaves the homes
 *   4. level    a worker over its cap gives, a joiner or one far below its share takes, each as few slots as will do
 * then secondaries anew: of each home's slots the others hold as many as their weights say, within one, so that a death spreads
 * evenly; whoever held one keeps it where that allows. share = 1024 x weight / sum; cap = share rounded up, plus 1.
 * Weights are whole numbers inside, so that equals are equal. Time is about (slots + workers) x log.
 */
#include "scheduler/plan.h"

#include "base/heap.h"
#include "base/philox.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = SCHEDULER_PLAN_SLOTS, WORKERS = SCHEDULER_PLAN_WORKERS, NOBODY = -1, PLACES = 4 * WORKERS };
enum { DOMAIN_ROTATE = 48, DOMAIN_RENDEZVOUS = 49 };

#define WEIGHT_UNIT 65536.0
#define WEIGHT_MOST (WEIGHT_UNIT * 16384)
#define NEED_UNIT 16777216.0

struct draft {
    int count;
    struct scheduler_plan_worker worker[WORKERS]; /* by id */
    int64_t weight[WORKERS], total;
    int least[WORKERS], most[WORKERS];    /* its share, rounded down and up */
    int held[WORKERS];                    /* slots as primary */
    bool new[WORKERS];                    /* held none before */
    int seconds[WORKERS];                 /* slots as secondary, so far */
    int primary[SLOTS], secondary[SLOTS]; /* indices, or NOBODY */
    int heavy[WORKERS];                   /* indices, the heaviest first */
    int16_t place[PLACES];                /* indices by hash of the id */
    struct base_heap_node *room[2 * WORKERS];
};

static int compare_workers(const void *a, const void *b)
{
    uint64_t x = ((const struct scheduler_plan_worker *)a)->id,
             y = ((const struct scheduler_plan_worker *)b)->id;
    return x < y ? -1 : x > y;
}

/* Most lists come in order. */
static void sort(void *list, int count, size_t size, int (*compare)(const void *, const void *))
{
    const char *at = list;
    for (int i = 1; i < count; i++, at += size)
        if (compare(at, at + size) > 0) {
            qsort(list, (size_t)count, size, compare);
            return;
        }
}

static uint32_t place_of(uint64_t id)
{
    return (uint32_t)(id * UINT64_C(0x9E3779B97F4A7C15) >> 32) % PLACES;
}

static int find(const struct draft *draft, uint64_t id)
{
    uint32_t at = place_of(id);
    while (draft->place[at] != NOBODY && draft->worker[draft->place[at]].id != id)
        at = (at + 1) % PLACES;
    return draft->place[at];
}

static void make_places(struct draft *draft)
{
    memset(draft->place, 0xff, sizeof draft->place); /* NOBODY */
    for (int i = 0; i < draft->count; i++) {
        uint32_t at = place_of(draft->worker[i].id);
        while (draft->place[at] != NOBODY)
            at = (at + 1) % PLACES;
        draft->place[at] = (int16_t)i;
    }
}

static int64_t whole_weight(double weight)
{
    double whole = weight * WEIGHT_UNIT;
    return whole >= WEIGHT_MOST ? (int64_t)WEIGHT_MOST : whole > 1 ? llround(whole) : 1;
}

struct by_weight {
    int64_t weight;
    int index;
};

static int compare_weights(const void *a, const void *b)
{
    const struct by_weight *x = a, *y = b;
    if (x->weight != y->weight)
        return x->weight > y->weight ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

static void sort_by_weight(struct draft *draft)
{
    struct by_weight order[WORKERS];
    for (int i = 0; i < draft->count; i++)
        order[i] = (struct by_weight){draft->weight[i], i};
    sort(order, draft->count, sizeof *order, compare_weights);
    for (int i = 0; i < draft->count; i++)
        draft->heavy[i] = order[i].index; // cppcheck-suppress uninitvar
}

static void draft_init(struct draft *draft, const struct scheduler_plan_worker *workers, int count)
{
    draft->count = count > WORKERS ? WORKERS : count;
    draft->total = 0;
    memset(draft->held, 0, sizeof draft->held);
    memset(draft->seconds, 0, sizeof draft->seconds);
    if (draft->count > 0)
        memcpy(draft->worker, workers, (size_t)draft->count * sizeof *workers);
    sort(draft->worker, draft->count, sizeof *workers, compare_workers);
    make_places(draft);
    for (int i = 0; i < draft->count; i++) {
        draft->weight[i] = whole_weight(draft->worker[i].weight);
        draft->total += draft->weight[i];
    }
    for (int i = 0; i < draft->count; i++) {
        draft->least[i] = (int)(SLOTS * draft->weight[i] / draft->total);
        draft->most[i] = (int)((SLOTS * draft->weight[i] + draft->total - 1) / draft->total);
    }
    sort_by_weight(draft);
}

static int cap(const struct draft *draft, int worker)
{
    return draft->most[worker] + 1;
}

/* Slots over its share, times the total weight. */
static int64_t excess(const struct draft *draft, int worker)
{
    return draft->held[worker] * draft->total - SLOTS * draft->weight[worker];
}

static void give(struct draft *draft, int slot, int worker)
{
    if (draft->primary[slot] != NOBODY)
        draft->held[draft->primary[slot]]--;
    draft->primary[slot] = worker;
    draft->held[worker]++;
}

static void keep(struct draft *draft, const struct scheduler_plan *previous)
{
    for (int slot = 0; slot < SLOTS; slot++) {
        int home = find(draft, previous->primary[slot]);
        draft->primary[slot] = NOBODY;
        draft->secondary[slot] = find(draft, previous->secondary[slot]);
        if (home != NOBODY)
            give(draft, slot, home);
    }
    for (int i = 0; i < draft->count; i++)
        draft->new[i] = draft->held[i] == 0;
}

static void adopt(struct draft *draft)
{
    for (int slot = 0; slot < SLOTS; slot++) {
        int heir = draft->secondary[slot];
        if (draft->primary[slot] == NOBODY && heir != NOBODY && draft->held[heir] < cap(draft, heir))
            give(draft, slot, heir);
    }
}

/* ---- fill ---- */

/* Workers of one weight: whoever holds least is most behind. */
struct class
{
    int64_t weight;
    struct base_heap behind; /* by slots held */
};

static int make_classes(struct draft *draft, struct class *classes, struct base_heap_node *nodes)
{
    int count = 0, at = 0;
    while (at < draft->count) {
        struct class *class = &classes[count++];
        *class = (struct class){.weight = draft->weight[draft->heavy[at]],
                                .behind = {.nodes = draft->room + at, .room = draft->count - at}};
        for (; at < draft->count && draft->weight[draft->heavy[at]] == class->weight; at++) {
            int worker = draft->heavy[at];
            nodes[worker] = (struct base_heap_node){.tie = worker};
            base_heap_set(&class->behind, &nodes[worker], draft->held[worker]);
        }
    }
    return count;
}

/* Whoever is most behind what it should have of the slots given so far: the smooth weighted round robin. */
static struct class *most_behind(const struct draft *draft, struct class *classes, int count, int given)
{
    struct class *best = NULL;
    int64_t most = 0;
    int32_t tie = 0;
    for (int i = 0; i < count; i++) {
        const struct base_heap_node *first = base_heap_first(&classes[i].behind);
        int64_t behind = classes[i].weight * given - first->key * draft->total;
        if (best && (behind < most || (behind == most && first->tie > tie)))
            continue;
        best = &classes[i];
        most = behind;
        tie = first->tie;
    }
    return best;
}

static void fill(struct draft *draft)
{
    struct class classes[WORKERS];
    struct base_heap_node nodes[WORKERS];
    int given = 0, count = 0;
    for (int i = 0; i < draft->count; i++)
        given += draft->held[i];
    for (int slot = 0; slot < SLOTS; slot++) {
        if (draft->primary[slot] != NOBODY)
            continue;
        if (count == 0)
            count = make_classes(draft, classes, nodes);
        struct class *class = most_behind(draft, classes, count, ++given);
        struct base_heap_node *node = base_heap_first(&class->behind);
        give(draft, slot, node->tie);
        base_heap_set(&class->behind, node, draft->held[node->tie]);
    }
}

/* ---- level ---- */

/* Less than this calls for more slots. Wide enough that what a death leaves uneven moves nothing further. */
static bool starved(const struct draft *draft, int worker)
{
    int share = draft->least[worker], slack = share > 32 ? share : 32; /* in 16ths */
    return 16 * draft->held[worker] < 16 * share - slack || (draft->held[worker] == 0 && share >= 1);
}

/* How many slots each worker shall gain (or, below 0, lose), and how far the search for those that must has come: once one takes it
 * takes up to its share, once it gives it gives down to it. */
struct level {
    struct draft *draft;
    int *moves;
    int change[WORKERS];
    int taker, giver;           /* those before neither must take nor give */
    int last_taker, last_giver; /* who did, not having had to */
    struct base_heap over, under;
    struct base_heap_node overs[WORKERS], unders[WORKERS];
};

static bool may_take(const struct level *level, int worker)
{
    return level->draft->new[worker] || !level->moves || *level->moves > 0;
}

static bool takes(const struct level *level, int worker)
{
    const struct draft *draft = level->draft;
    return (starved(draft, worker) ||
            (level->change[worker] > 0 && draft->held[worker] < draft->least[worker])) &&
           may_take(level, worker);
}

static bool gives(const struct level *level, int worker)
{
    const struct draft *draft = level->draft;
    return draft->held[worker] > cap(draft, worker) ||
           (level->change[worker] < 0 && draft->held[worker] > draft->most[worker]);
}

static int next_taker(struct level *level)
{
    while (level->taker < level->draft->count && !takes(level, level->taker))
        level->taker++;
    if (level->taker < level->draft->count)
        return level->taker;
    return level->last_taker != NOBODY && takes(level, level->last_taker) ? level->last_taker : NOBODY;
}

static int next_giver(struct level *level)
{
    while (level->giver < level->draft->count && !gives(level, level->giver))
        level->giver++;
    if (level->giver < level->draft->count)
        return level->giver;
    return level->last_giver != NOBODY && gives(level, level->last_giver) ? level->last_giver : NOBODY;
}

static void level_count(struct level *level, int worker, int by)
{
    level->draft->held[worker] += by;
    level->change[worker] += by;
    int64_t more = excess(level->draft, worker);
    base_heap_set(&level->over, &level->overs[worker], -more);
    base_heap_set(&level->under, &level->unders[worker], more);
}

static bool level_init(struct level *level, struct draft *draft, int *moves)
{
    level->draft = draft;
    level->moves = moves;
    level->taker = level->giver = 0;
    level->last_taker = level->last_giver = NOBODY;
    memset(level->change, 0, sizeof level->change);
    if (next_taker(level) == NOBODY && next_giver(level) == NOBODY)
        return false;
    level->over = (struct base_heap){.nodes = draft->room, .room = WORKERS};
    level->under = (struct base_heap){.nodes = draft->room + WORKERS, .room = WORKERS};
    for (int i = 0; i < draft->count; i++) {
        level->overs[i] = level->unders[i] = (struct base_heap_node){.tie = i};
        level_count(level, i, 0);
    }
    return true;
}

static bool level_counts(struct level *level)
{
    bool any = false;
    for (;;) {
        int taker = next_taker(level), giver = next_giver(level);
        if (taker == NOBODY && giver == NOBODY)
            return any;
        if (taker == NOBODY)
            level->last_taker = taker = base_heap_first(&level->under)->tie;
        if (giver == NOBODY)
            level->last_giver = giver = base_heap_first(&level->over)->tie;
        if (taker == giver || !may_take(level, taker))
            return any;
        if (level->moves && !level->draft->new[taker])
            --*level->moves;
        level_count(level, taker, 1);
        level_count(level, giver, -1);
        any = true;
    }
}

/* The slot nearest to `ideal`, either way round, whose home still gives. */
static int nearest_given(const struct draft *draft, const int *change, int ideal)
{
    for (int distance = 0; distance < SLOTS; distance++) {
        int slot = (ideal + (distance % 2 ? -(distance + 1) / 2 : distance / 2) + SLOTS) % SLOTS;
        if (change[draft->primary[slot]] < 0)
            return slot;
    }
    return NOBODY;
}

/* A taker's slots are spread over the ring. */
static void level(struct draft *draft, int *moves)
{
    struct level level;
    if (!level_init(&level, draft, moves) || !level_counts(&level))
        return;
    for (int i = 0; i < draft->count; i++)
        draft->held[i] -= level.change[i]; /* as give() counts them again */
    for (int taker = 0; taker < draft->count; taker++) {
        int wanted = level.change[taker];
        for (int i = 0; i < wanted; i++) {
            int slot = nearest_given(draft, level.change, i * SLOTS / wanted);
            if (slot == NOBODY)
                return;
            level.change[draft->primary[slot]]++;
            level.change[taker]--;
            give(draft, slot, taker);
        }
    }
}

/* ---- secondaries ---- */

struct seconds {
    struct draft *draft;
    int first[WORKERS], next[SLOTS];   /* each home's slots, in their order */
    int quota[WORKERS];                /* how many of the home's slots each other shall be second for */
    int asked[SLOTS + 1], asked_count; /* whose quota is over 0, and the home when it was in the way */
    struct base_heap
        needy; /* furthest below their share as primaries, counting what a death would bring, then least often second */
    struct base_heap_node needs[WORKERS];
    double excess[WORKERS], step[WORKERS]; /* of needs: as primaries; for each slot that it is second for */
};

/* In NEED_UNITths: what is equal but for its last bits is equal. */
static int64_t need(const struct seconds *seconds, int worker)
{
    double least = seconds->excess[worker] + seconds->draft->seconds[worker] * seconds->step[worker];
    return (int64_t)((least + SLOTS) * NEED_UNIT + 0.5);
}

static void seconds_init(struct seconds *seconds, struct draft *draft)
{
    seconds->draft = draft;
    seconds->asked_count = 0;
    seconds->needy = (struct base_heap){.nodes = draft->room, .room = WORKERS};
    for (int i = 0; i < draft->count; i++) {
        seconds->first[i] = NOBODY;
        seconds->quota[i] = 0;
        seconds->excess[i] = (double)excess(draft, i) / (double)draft->total;
        seconds->step[i] = 1 / ((double)(SLOTS * draft->weight[i]) / (double)draft->total + 1);
        seconds->needs[i] = (struct base_heap_node){.tie = i};
        base_heap_set(&seconds->needy, &seconds->needs[i], need(seconds, i));
    }
    for (int slot = SLOTS - 1; slot >= 0; slot--) {
        seconds->next[slot] = seconds->first[draft->primary[slot]];
        seconds->first[draft->primary[slot]] = slot;
    }
}

/* Its share of the home's slots rounded down, and the rest one by one to the neediest. */
static void set_quotas(struct seconds *seconds, int home)
{
    const struct draft *draft = seconds->draft;
    int left = draft->held[home];
    int64_t others = draft->total - draft->weight[home];
    for (int i = 0; i < draft->count; i++) {
        int other = draft->heavy[i];
        int whole = (int)(draft->held[home] * draft->weight[other] / others);
        if (whole == 0)
            break;
        if (other == home)
            continue;
        seconds->quota[other] = whole;
        seconds->asked[seconds->asked_count++] = other;
        left -= whole;
    }
    while (left > 0 && seconds->needy.count > 0) {
        int other = base_heap_first(&seconds->needy)->tie;
        if (left > 1 || other == home)
            base_heap_remove(&seconds->needy, &seconds->needs[other]); /* one each */
        if (seconds->quota[other] == 0)
            seconds->asked[seconds->asked_count++] = other;
        if (other == home)
            continue;
        seconds->quota[other]++;
        left--;
    }
}

static void second(struct seconds *seconds, int slot, int worker)
{
    seconds->draft->secondary[slot] = worker;
    seconds->quota[worker]--;
    seconds->draft->seconds[worker]++;
}

/* The largest quota left; of equals the next after the home. */
static int largest_quota(const struct seconds *seconds, int home)
{
    int count = seconds->draft->count, best = NOBODY, best_step = 0;
    for (int i = 0; i < seconds->asked_count; i++) {
        int other = seconds->asked[i], step = (other - home - 1 + count) % count;
        if (seconds->quota[other] > 0 &&
            (best == NOBODY || seconds->quota[other] > seconds->quota[best] ||
             (seconds->quota[other] == seconds->quota[best] && step < best_step)))
            best = other, best_step = step;
    }
    return best;
}

static void second_slots(struct seconds *seconds, int home)
{
    struct draft *draft = seconds->draft;
    int open[SLOTS], opened = 0;
    for (int slot = seconds->first[home]; slot != NOBODY; slot = seconds->next[slot]) {
        int now = draft->secondary[slot];
        if (now != NOBODY && seconds->quota[now] > 0)
            second(seconds, slot, now);
        else
            open[opened++] = slot;
    }
    for (int i = 0; i < opened; i++) {
        int slot = open[i], best = largest_quota(seconds, home); // cppcheck-suppress uninitvar
        if (best == NOBODY)
            draft->secondary[slot] = NOBODY;
        else
            second(seconds, slot, best);
    }
}

static void assign_seconds(struct draft *draft)
{
    struct seconds seconds;
    seconds_init(&seconds, draft);
    for (int home = 0; home < draft->count; home++) {
        if (draft->held[home] == 0)
            continue;
        if (draft->count > 1)
            set_quotas(&seconds, home);
        second_slots(&seconds, home);
        for (int i = 0; i < seconds.asked_count; i++) {
            int other = seconds.asked[i];
            seconds.quota[other] = 0;
            base_heap_set(&seconds.needy, &seconds.needs[other], need(&seconds, other));
        }
        seconds.asked_count = 0;
    }
}

/* ---- the whole ---- */

void scheduler_plan_next(const struct scheduler_plan *previous, const struct scheduler_plan_worker *workers,
                         int count, int *moves, struct scheduler_plan *next)
{
    struct draft draft;
    struct scheduler_plan made;
    memset(&made, 0, sizeof made);
    draft_init(&draft, workers, count);
    keep(&draft, previous);
    if (draft.count > 0) {
        adopt(&draft);
        fill(&draft);
        level(&draft, moves);
        assign_seconds(&draft);
    }
    for (int slot = 0; slot < SLOTS; slot++) {
        int home = draft.primary[slot], second = draft.secondary[slot];
        made.primary[slot] = home == NOBODY ? SCHEDULER_PLAN_NOBODY : draft.worker[home].id;
        made.secondary[slot] = second == NOBODY ? SCHEDULER_PLAN_NOBODY : draft.worker[second].id;
    }
    bool same = memcmp(made.primary, previous->primary, sizeof made.primary) == 0 &&
                memcmp(made.secondary, previous->secondary, sizeof made.secondary) == 0;
    made.version = same ? previous->version : previous->version + 1;
    *next = made;
}

/* ---- more workers than slots ---- */

static uint64_t word_of(const uint8_t bytes[8])
{
    uint64_t word = 0;
    for (int i = 7; i >= 0; i--)
        word = word << 8 | bytes[i];
    return word;
}

/* The finalizer of splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t mix(uint64_t word)
{
    word = (word ^ word >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    word = (word ^ word >> 27) * UINT64_C(0x94D049BB133111EB);
    return word ^ word >> 31;
}

/* Of a number within (0, 1): rising, continuous, within 0.01 of the logarithm to base 2, and the same on all machines. */
static double rough_log(double number)
{
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    double power = (double)((int)(bits >> 52) - 1023), part;
    bits = (bits & UINT64_C(0xFFFFFFFFFFFFF)) | UINT64_C(1023) << 52;
    memcpy(&part, &bits, sizeof part); /* 1 to 2 */
    return power + (2 - part / 3) * part - 5. / 3;
}

double scheduler_plan_score(const uint8_t family[32], const struct scheduler_plan_worker *worker)
{
    uint64_t word = mix(mix(worker->id) + word_of(family));
    double uniform = ((double)(word >> 12) + 0.5) * 0x1p-52; /* within (0, 1) */
    return rough_log(uniform) / worker->weight;
}

struct scored {
    double score;
    struct scheduler_plan_worker worker;
};

static bool ahead(const struct scored *a, const struct scored *b)
{
    return a->score > b->score || (a->score == b->score && a->worker.id < b->worker.id);
}

/* Quickselect: the `wanted` that are ahead come first. */
static void select_first(struct scored *all, int count, int wanted)
{
    int low = 0, high = count - 1;
    while (low < high) {
        struct scored pivot = all[low + (high - low) / 2];
        int i = low, j = high;
        while (i <= j) {
            while (ahead(&all[i], &pivot))
                i++;
            while (ahead(&pivot, &all[j]))
                j--;
            if (i <= j) {
                struct scored kept = all[i];
                all[i++] = all[j];
                all[j--] = kept;
            }
        }
        if (wanted <= j + 1)
            high = j;
        else if (wanted >= i + 1)
            low = i;
        else
            return;
    }
}

int scheduler_plan_admit(const uint8_t family[32], struct scheduler_plan_worker *workers, int count,
                         double *least)
{
    *least = -INFINITY;
    struct scored *all = count > WORKERS ? malloc((size_t)count * sizeof *all) : NULL;
    if (!all) /* without memory the first ones do, too */
        return count < WORKERS ? count : WORKERS;
    for (int i = 0; i < count; i++)
        all[i] = (struct scored){scheduler_plan_score(family, &workers[i]), workers[i]};
    select_first(all, count, WORKERS);
    *least = all[0].score;
    for (int i = 0; i < WORKERS; i++) {
        workers[i] = all[i].worker;
        *least = all[i].score < *least ? all[i].score : *least;
    }
    free(all);
    return WORKERS;
}

uint32_t scheduler_plan_slot(const uint8_t family[32], bool uses_epoch, uint32_t epoch, uint64_t block)
{
    if (!uses_epoch)
        return (uint32_t)(block % SLOTS);
    return (uint32_t)((block + base_philox_word(word_of(family), DOMAIN_ROTATE, epoch)) % SLOTS);
}

static bool contains(const uint64_t *ids, int count, uint64_t id)
{
    for (int i = 0; i < count; i++)
        if (ids[i] == id)
            return true;
    return false;
}

int scheduler_plan_candidates(const struct scheduler_plan *plan, uint32_t slot, const uint64_t *workers,
                              int count, uint64_t *out, int most)
{
    uint64_t homes[2] = {plan->primary[slot], plan->secondary[slot]};
    int found = 0;
    for (int i = 0; i < 2 && found < most; i++)
        if (homes[i] != SCHEDULER_PLAN_NOBODY && contains(workers, count, homes[i]) &&
            !contains(out, found, homes[i]))
            out[found++] = homes[i];
    while (found < most) {
        uint64_t best = SCHEDULER_PLAN_NOBODY, best_score = 0;
        for (int i = 0; i < count; i++) {
            uint64_t score = base_philox_word(workers[i], DOMAIN_RENDEZVOUS, slot);
            if (workers[i] == SCHEDULER_PLAN_NOBODY || contains(out, found, workers[i]))
                continue;
            if (best == SCHEDULER_PLAN_NOBODY || score > best_score ||
                (score == best_score && workers[i] < best))
                best = workers[i], best_score = score;
        }
        if (best == SCHEDULER_PLAN_NOBODY)
            break;
        out[found++] = best;
    }
    return found;
}
