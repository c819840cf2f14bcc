/* SPDX-License-Identifier: Apache-2.0 */
/* Opening anything beneath the data roots, for the files of this folder. */
#ifndef WORKER_SOURCE_ROOTS_H
#define WORKER_SOURCE_ROOTS_H

#include "worker/source/source.h"

/* `flags` as for open(2), O_CLOEXEC is added. Links are followed while they stay beneath the roots. */
enum base_code source_roots_open_any(const struct source_roots *roots, const char *path, int flags, int *fd,
                                     struct base_error *error);

#endif
