/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a worker's state folder holds that nobody needs any more. Only names that this program gives are looked at:
 *   HEX64.manifest          a dataset version's
 *   HEX64.manifest.XXXXXX, order-N.new, order-N.new.XXXXXX   parts that a process which ended was writing
 */
#ifndef WORKER_SWEEP_H
#define WORKER_SWEEP_H

#include <stdbool.h>
#include <stdint.h>

/* Before anything is written. Returns how many it removed. */
int worker_sweep_parts(const char *state_dir);
/* Manifests of versions that nobody wants: as long as none is being made. */
int worker_sweep_manifests(const char *state_dir, bool (*wanted)(void *context, const uint8_t version[32]),
                           void *context);

#endif
