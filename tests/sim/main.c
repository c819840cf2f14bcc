/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/sim.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { SHRINK_EVENTS = 10000000 };

static const char help[] =
    "usage: millrace-sim [OPTION]...\n"
    "Runs the product's machines on virtual time, one world a seed, with faults; prints the first broken "
    "invariant of\n"
    "each world that fails, and how to run that world again. docs/simulation.md says what is simulated.\n"
    "  --seeds N         so many worlds (1)\n"
    "  --first S         from this seed on (1)\n"
    "  --trace           with what happens in them\n"
    "  --faults N,N,...  only these faults, by number as --trace tells them; `none`\n"
    "  --workers N       so many workers, whatever the seed says\n"
    "  --jobs N          so many jobs\n"
    "  --epochs N        no job reads more epochs\n"
    "  --shrink N        makes so many of the worlds that fail as small as they still fail (1)\n"
    "  --stop-after N    ends when so many worlds have failed (never)\n"
    "Exits with 0 when no invariant was broken, 1 when one was, 2 when the command line is wrong.\n";

struct arguments {
    struct sim_history history; /* of the first seed; its faults are owned */
    uint64_t seeds, shrink, stop_after;
};

static bool read_number(const char *text, uint64_t *number)
{
    char *end;
    *number = text ? strtoull(text, &end, 10) : 0;
    return text && *text && *end == 0;
}

static bool read_count(const char *text, int *count)
{
    uint64_t number;
    bool right = read_number(text, &number) && number > 0 && number <= 100000;
    *count = right ? (int)number : 0;
    return right;
}

static bool read_faults(const char *text, struct sim_history *history)
{
    size_t room = text ? strlen(text) : 0;
    uint32_t *faults = malloc((room + 1) * sizeof *faults);
    char *end = NULL;
    if (!faults)
        abort();
    free((uint32_t *)(uintptr_t)history->faults);
    history->faults = faults;
    history->fault_count = 0;
    history->some = true;
    if (text && strcmp(text, "none") == 0)
        return true;
    for (const char *at = text; at && *at; at = *end == ',' ? end + 1 : end) {
        faults[history->fault_count++] = (uint32_t)strtoul(at, &end, 10);
        if (end == at || (*end != ',' && *end != 0))
            return false;
    }
    return room > 0;
}

static bool read_option(const char *name, const char *value, struct arguments *arguments)
{
    struct sim_history *history = &arguments->history;
    if (strcmp(name, "--seeds") == 0)
        return read_number(value, &arguments->seeds);
    if (strcmp(name, "--first") == 0)
        return read_number(value, &history->seed);
    if (strcmp(name, "--shrink") == 0)
        return read_number(value, &arguments->shrink);
    if (strcmp(name, "--stop-after") == 0)
        return read_number(value, &arguments->stop_after);
    if (strcmp(name, "--faults") == 0)
        return read_faults(value, history);
    if (strcmp(name, "--workers") == 0)
        return read_count(value, &history->workers);
    if (strcmp(name, "--jobs") == 0)
        return read_count(value, &history->jobs);
    return strcmp(name, "--epochs") == 0 && read_count(value, &history->epochs);
}

static bool read_arguments(int count, char **words, struct arguments *arguments)
{
    *arguments = (struct arguments){.history.seed = 1, .seeds = 1, .shrink = 1, .stop_after = UINT64_MAX};
    for (int i = 1; i < count; i++) {
        if (strcmp(words[i], "--trace") == 0)
            arguments->history.trace = true;
        else if (read_option(words[i], words[i + 1], arguments))
            i++;
        else
            return false;
    }
    return true;
}

/* ---- what is said ---- */

static void print_history(const struct sim_history *history)
{
    printf("millrace-sim --first %" PRIu64, history->seed);
    for (int i = 0; i < history->fault_count; i++)
        printf("%s%u", i == 0 ? " --faults " : ",", history->faults[i]);
    if (history->some && history->fault_count == 0)
        printf(" --faults none");
    if (history->workers > 0)
        printf(" --workers %d", history->workers);
    if (history->jobs > 0)
        printf(" --jobs %d", history->jobs);
    if (history->epochs > 0)
        printf(" --epochs %d", history->epochs);
    printf(" --trace\n");
}

static void print_failure(const struct sim_history *history, struct sim_result *result, bool shrink)
{
    struct sim_history smallest = *history;
    printf("seed %" PRIu64 " %s\n  again: ", history->seed, result->verdict);
    print_history(history);
    fflush(stdout);
    if (!shrink)
        return;
    smallest.faults = result->faults;
    smallest.fault_count = result->fault_count;
    result->faults = NULL;
    sim_shrink(&smallest, result, SHRINK_EVENTS);
    printf("  shrunk to %d faults, %d workers, %d jobs, %d epochs: %s\n  again: ", smallest.fault_count,
           result->workers, result->jobs, result->epochs, result->verdict);
    print_history(&smallest);
    fflush(stdout);
    free((uint32_t *)(uintptr_t)smallest.faults);
}

static void add_tally(struct sim_tally *sum, const struct sim_tally *tally)
{
    uint64_t *to = (uint64_t *)sum;
    const uint64_t *from = (const uint64_t *)tally;
    for (size_t i = 0; i < sizeof *sum / sizeof *to; i++)
        to[i] += from[i];
}

static void print_tally(const struct sim_tally *tally)
{
    printf("%" PRIu64 " blocks made, %" PRIu64 " of them again; remade:", tally->made, tally->made_again);
    for (int i = WORKER_CAUSE_FIRST + 1; i < WORKER_CAUSES; i++)
        printf(" %s %" PRIu64, worker_cause_name((enum worker_cause)i), tally->remade[i]);
    printf("; %" PRIu64 " beside a sibling's; %" PRIu64 " requests, %" PRIu64 " hedged, %" PRIu64
           " plan changes, %" PRIu64 " slots moved by load\n",
           tally->together, tally->requests, tally->hedged, tally->plan_changes, tally->reweighted);
}

int main(int count, char **words)
{
    struct arguments arguments;
    struct sim_tally tally = {0};
    uint64_t seeds = 0, events = 0, failed = 0;
    int64_t virtual_ns = 0, longest_ns = 0, cpu_ns = base_clock_thread_cpu_ns();
    if (!read_arguments(count, words, &arguments)) {
        fputs(help, stderr);
        return 2;
    }
    struct sim_history history = arguments.history;
    for (; seeds < arguments.seeds && failed < arguments.stop_after; seeds++, history.seed++) {
        struct sim_result result;
        sim_world_run(&history, &result);
        events += result.events;
        virtual_ns += result.virtual_ns;
        longest_ns = result.longest_ns > longest_ns ? result.longest_ns : longest_ns;
        add_tally(&tally, &result.tally);
        if (result.failed)
            print_failure(&history, &result, failed++ < arguments.shrink);
        free(result.faults);
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    double seconds = (double)(base_clock_thread_cpu_ns() - cpu_ns) / 1e9;
    print_tally(&tally);
    printf("%" PRIu64 " seeds, %" PRIu64 " failed, %" PRIu64
           " events in %.1f s of virtual time: %.0f events/s on one core, %.1f s, %.0f MB; longest without a "
           "step after "
           "the faults %.1f s\n",
           seeds, failed, events, (double)virtual_ns / 1e9, (double)events / seconds, seconds,
           (double)usage.ru_maxrss / 1024, (double)longest_ns / 1e9);
    free((uint32_t *)(uintptr_t)arguments.history.faults);
    return failed > 0;
}
