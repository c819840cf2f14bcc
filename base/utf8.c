/* SPDX-License-Identifier: Apache-2.0 */
#include "base/utf8.h"

/* The terminator ends a cut sequence by itself: it is no continuation byte. */
size_t base_utf8_size(const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    unsigned char least = 0x80, most = 0xbf;
    size_t size;
    if (at[0] < 0x80)
        return 1;
    if (at[0] >= 0xc2 && at[0] <= 0xdf)
        size = 2;
    else if (at[0] >= 0xe0 && at[0] <= 0xef)
        size = 3;
    else if (at[0] >= 0xf0 && at[0] <= 0xf4)
        size = 4;
    else
        return 0;
    if (at[0] == 0xe0)
        least = 0xa0;
    else if (at[0] == 0xed)
        most = 0x9f;
    else if (at[0] == 0xf0)
        least = 0x90;
    else if (at[0] == 0xf4)
        most = 0x8f;
    if (at[1] < least || at[1] > most)
        return 0;
    for (size_t i = 2; i < size; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    return size;
}

bool base_utf8_is_valid(const char *text)
{
    size_t size = 1;
    while (*text && (size = base_utf8_size(text)))
        text += size;
    return size > 0;
}

void base_utf8_put(struct base_buffer *out, const char *text)
{
    while (*text) {
        size_t size = base_utf8_size(text);
        if (size)
            base_buffer_put(out, text, size);
        else
            base_buffer_printf(out, "\\x%02x", (unsigned char)*text);
        text += size ? size : 1;
    }
}
