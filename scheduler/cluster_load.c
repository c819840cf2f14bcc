/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slot moves by measured load. Once a minute at most, the time that blocks wait at each worker is compared with the middle one of all
 * workers. Only what held in every report of the minute counts, and only a clear difference: a worker whose queue was always longer
 * than twice the middle plus 20 ms is given less weight, one whose queue was always so much shorter more. Steps begin at a fifth and
 * halve with each change of direction down to nothing, so that a worker comes to rest at what it can do; a difference that stays for
 * some minutes makes them larger again. One weight for all streams: siblings with equal histories keep equal plans.
 */
#include "scheduler/cluster_state.h"

#include "base/clock.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#define BALANCE_NS (60 * BASE_NS_PER_S)
#define CLEAR_RATIO 2.0
#define CLEAR_MS 20.0
#define STEP_FIRST 0.2
#define STEP_LEAST 0.02
#define FACTOR_LEAST 0.125
#define FACTOR_MOST 8.0
#define FACTOR_UNIT 64.0 /* few different weights make plans faster */

enum { REPORTS_LEAST = 4, STEADY_MINUTES = 4, PEERS_LEAST = 2 };

void cluster_load_reset(struct cluster_load *load)
{
    *load = (struct cluster_load){.factor = 1, .step = STEP_FIRST, .fresh = true};
}

/* As the middle one of those with as many cores: machines of one kind come in groups, and a joiner to a slow one would have to be
 * found out, a fifth a minute. */
void cluster_load_begin(const struct scheduler_cluster *cluster, struct cluster_member *member)
{
    enum { BINS = (int)(FACTOR_MOST * FACTOR_UNIT) + 1 };
    int counts[BINS] = {0}, peers = 0, before = 0, bin = 0;
    member->load.fresh = false;
    for (int i = 0; i < cluster->member_count; i++) {
        const struct cluster_member *peer = cluster->members[i];
        if (peer == member || peer->view.state != SCHEDULER_WORKER_READY ||
            peer->view.weight != member->view.weight)
            continue;
        counts[(int)(peer->load.factor * FACTOR_UNIT)]++;
        peers++;
    }
    if (peers < PEERS_LEAST)
        return;
    while ((before += counts[bin]) <= (peers - 1) / 2)
        bin++;
    member->load.factor = bin / FACTOR_UNIT;
}

void cluster_load_take(struct cluster_load *load, const struct scheduler_worker_report *report)
{
    double ms = report->queue_ms;
    if (!(ms >= 0) || !isfinite(ms))
        return;
    load->least_ms = load->reports == 0 || ms < load->least_ms ? ms : load->least_ms;
    load->most_ms = load->reports == 0 || ms > load->most_ms ? ms : load->most_ms;
    load->reports++;
}

/* Seats that are in a plan: whoever is in none is idle whatever the others do, and says nothing of what is much. */
struct used {
    uint8_t seats[CLUSTER_SEATS / 8];
};

static void find_used(const struct scheduler_cluster *cluster, struct used *used)
{
    *used = (struct used){{0}};
    for (int i = 0; i < cluster->stream_count; i++)
        for (int byte = 0; byte < (cluster->seat_count + 7) / 8; byte++)
            used->seats[byte] |= cluster->streams[i]->chosen[byte];
}

static bool counts(const struct used *used, const struct cluster_member *member)
{
    return member->view.state == SCHEDULER_WORKER_READY && member->load.reports >= REPORTS_LEAST &&
           cluster_bit(used->seats, member->seat);
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Of the queues, each by the middle of what it reported; below 0: too few workers, or no memory. */
static double middle_ms(const struct scheduler_cluster *cluster, const struct used *used)
{
    double *all = malloc(((size_t)cluster->member_count + 1) * sizeof *all), middle = -1;
    int count = 0;
    for (int i = 0; all && i < cluster->member_count; i++)
        if (counts(used, cluster->members[i]))
            all[count++] = (cluster->members[i]->load.least_ms + cluster->members[i]->load.most_ms) / 2;
    if (count >= PEERS_LEAST) {
        qsort(all, (size_t)count, sizeof *all, compare_doubles);
        middle = all[(count - 1) / 2];
    }
    free(all);
    return middle;
}

/* -1: it shall get less, 1: more, 0: neither is clear. */
static int direction_of(const struct cluster_load *load, double middle)
{
    if (load->least_ms > CLEAR_RATIO * middle + CLEAR_MS)
        return -1;
    return middle > CLEAR_RATIO * load->most_ms + CLEAR_MS ? 1 : 0;
}

/* The next step's size; 0: it is at rest. */
static double next_step(struct cluster_load *load, int direction)
{
    if (load->direction == -direction) {
        load->step /= 2;
        load->steady = 0;
    } else if (load->step < STEP_FIRST && ++load->steady >= STEADY_MINUTES) {
        load->step *= 2;
        load->steady = 0;
    }
    load->direction = direction;
    return load->step < STEP_LEAST ? 0 : load->step;
}

static bool correct(struct cluster_load *load, double middle)
{
    int direction = direction_of(load, middle);
    double step = direction ? next_step(load, direction) : 0;
    double factor = direction > 0 ? load->factor / (1 - step) : load->factor * (1 - step);
    factor = round(factor * FACTOR_UNIT) / FACTOR_UNIT;
    factor = factor < FACTOR_LEAST ? FACTOR_LEAST : factor > FACTOR_MOST ? FACTOR_MOST : factor;
    if (!direction || factor == load->factor)
        return false;
    load->factor = factor;
    return true;
}

void cluster_load_balance(struct scheduler_cluster *cluster)
{
    if (cluster->now_ns < cluster->balance_ns)
        return;
    bool first = cluster->balance_ns == 0;
    cluster->balance_ns = cluster->now_ns + BALANCE_NS;
    struct used used;
    find_used(cluster, &used);
    double middle = first ? -1 : middle_ms(cluster, &used);
    for (int i = 0; i < cluster->stream_count; i++) {
        cluster->streams[i]->moves = SCHEDULER_MOVES_MOST;
        if (cluster->streams[i]->unfinished)
            cluster_plan_want(cluster, cluster->streams[i], false);
    }
    for (int i = 0; i < cluster->member_count; i++) {
        struct cluster_member *member = cluster->members[i];
        if (middle >= 0 && counts(&used, member) && correct(&member->load, middle)) {
            cluster_line(
                cluster,
                "worker %" PRIu64 ": its queue was %.0f to %.0f ms, the middle one %.0f ms: weight x %.2f",
                member->view.id, member->load.least_ms, member->load.most_ms, middle, member->load.factor);
            cluster_member_weigh(cluster, member);
        }
        member->load.reports = 0;
    }
}
