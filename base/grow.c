/* SPDX-License-Identifier: Apache-2.0 */
#include "base/grow.h"

#include <stdlib.h>
#include <string.h>

bool base_grow(void *array, size_t count, size_t record_bytes)
{
    void *old = NULL;
    bool full = count == 0 || (count >= 4 && (count & (count - 1)) == 0); /* at 0, 4, 8, 16, ... */
    if (!full)
        return true;
    memcpy(&old, array, sizeof old);
    void *grown = reallocarray(old, count < 4 ? 4 : 2 * count, record_bytes);
    if (grown)
        memcpy(array, &grown, sizeof grown);
    return grown != NULL;
}
