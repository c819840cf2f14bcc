/* SPDX-License-Identifier: Apache-2.0 */
/* usage: millrace-sim [--seeds N] [--first S] [--trace]: runs worlds S .. S+N-1; the first broken invariant of each is printed,
 * and how to run that world again. --trace: one world, with what happens in it. */
#include "tests/sim/sim.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct arguments {
    uint64_t first, seeds;
    bool trace;
};

static bool read_number(const char *text, uint64_t *number)
{
    char *end;
    *number = text ? strtoull(text, &end, 10) : 0;
    return text && *text && *end == 0;
}

static bool read_arguments(int count, char **words, struct arguments *arguments)
{
    *arguments = (struct arguments){.first = 1, .seeds = 1};
    for (int i = 1; i < count; i++) {
        if (strcmp(words[i], "--trace") == 0)
            arguments->trace = true;
        else if (strcmp(words[i], "--seeds") == 0 && read_number(words[i + 1], &arguments->seeds))
            i++;
        else if (strcmp(words[i], "--first") == 0 && read_number(words[i + 1], &arguments->first))
            i++;
        else
            return false;
    }
    return true;
}

int main(int count, char **words)
{
    struct arguments arguments;
    uint64_t events = 0, failed = 0, together = 0;
    int64_t virtual_ns = 0, cpu_ns = base_clock_thread_cpu_ns();
    if (!read_arguments(count, words, &arguments)) {
        fprintf(stderr, "usage: %s [--seeds N] [--first S] [--trace]\n", words[0]);
        return 2;
    }
    for (uint64_t seed = arguments.first; seed < arguments.first + arguments.seeds; seed++) {
        struct sim_result result;
        sim_world_run(seed, arguments.trace, &result);
        events += result.events;
        together += result.together;
        virtual_ns += result.virtual_ns;
        if (!result.failed)
            continue;
        failed++;
        printf("seed %" PRIu64 " %s\n  again: %s --first %" PRIu64 " --trace\n", seed, result.verdict,
               words[0], seed);
        fflush(stdout);
    }
    double seconds = (double)(base_clock_thread_cpu_ns() - cpu_ns) / 1e9;
    printf("%" PRIu64 " seeds, %" PRIu64 " failed, %" PRIu64 " blocks made beside a sibling's, %" PRIu64
           " events in %.1f s of virtual time: %.0f events/s on one core, %.1f s\n",
           arguments.seeds, failed, together, events, (double)virtual_ns / 1e9, (double)events / seconds,
           seconds);
    return failed > 0;
}
