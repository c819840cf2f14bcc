/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays that grow at their end: how much there is room for follows from how many there are, so nothing else is kept. */
#ifndef BASE_GROW_H
#define BASE_GROW_H

#include <stdbool.h>
#include <stddef.h>

/* Room for record number `count` of the array at *(T **)array (NULL: none yet; on the heap, the caller's), which grows by this
 * alone. False: no memory, and nothing has changed. */
bool base_grow(void *array, size_t count, size_t record_bytes);

#endif
