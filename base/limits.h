/* SPDX-License-Identifier: Apache-2.0 */
/* What this process may use: affinity and cgroup (v1 and v2) limits, not what the machine has. */
#ifndef BASE_LIMITS_H
#define BASE_LIMITS_H

#include <stdint.h>

int base_limits_cores(void);             /* affinity, then cpu.max rounded up; at least 1 */
uint64_t base_limits_memory_bytes(void); /* the least of physical memory and memory.max on the way up */
int base_limits_descriptors(void);       /* raises the soft limit to the hard one, returns it */
/* For a service with many threads, before it starts them: two malloc arenas, and large pieces go back at once. glibc's
 * own, up to eight a core and growing limits, let a worker's resident size creep by megabytes an hour. */
void base_limits_heap(void);

/* The same, read beneath other roots, so that tests can plant files ("" is the real root). */
int base_limits_cores_at(const char *root);
uint64_t base_limits_memory_bytes_at(const char *root);

#endif
