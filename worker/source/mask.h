/* SPDX-License-Identifier: Apache-2.0 */
/* The mask beside an item: the same name beneath another folder, its suffix replaced by .png. For the files of this folder. */
#ifndef WORKER_SOURCE_MASK_H
#define WORKER_SOURCE_MASK_H

#include "worker/source/source.h"

/* The mask as an entry of its own, to be opened beneath manifest_masks(). */
void source_mask_entry(const struct manifest_entry *item, struct manifest_entry *mask);
/* Size and time of the mask of item->name as it is now, into `item`. */
enum base_code source_mask_stat(const struct source_roots *roots, const char *masks,
                                struct manifest_item *item, struct base_error *error);

#endif
