/* SPDX-License-Identifier: Apache-2.0 */
#include "base/hash.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdlib.h>
#define XXH_INLINE_ALL /* most of what is hashed is a few bytes, which cost less than the way to the library */
#include <xxhash.h>

#if defined(__x86_64__)
/* Of the library: the same hash with AVX2 or AVX-512 where the machine has it, 3x the speed. Its own header declares it
 * inline here. */
uint64_t XXH3_64bits_dispatch(const void *bytes, size_t size);
#else
#define XXH3_64bits_dispatch XXH3_64bits
#endif

enum { SHORT_BYTES = 240 }; /* up to here XXH3 has no loop for vectors */

/* libcrypto fails when memory is out or SHA-256 is disabled. Going on with a made-up digest could let a
 * forged token in, so the process ends here. */
static void must(bool done)
{
    if (!done)
        abort();
}

uint64_t base_hash_xxh3(const void *bytes, size_t size)
{
    return size <= SHORT_BYTES ? XXH3_64bits(bytes, size) : XXH3_64bits_dispatch(bytes, size);
}

void base_hash_sha256(const void *bytes, size_t size, uint8_t out[BASE_SHA256_BYTES])
{
    must(EVP_Digest(bytes, size, out, NULL, EVP_sha256(), NULL) == 1);
}

void base_hash_hmac_sha256(const void *key, size_t key_size, const void *bytes, size_t size,
                           uint8_t out[BASE_SHA256_BYTES])
{
    uint8_t short_key[BASE_SHA256_BYTES];
    if (key_size > 64) { /* HMAC's own rule for keys over a block; OpenSSL takes the size as an int */
        base_hash_sha256(key, key_size, short_key);
        key = short_key;
        key_size = sizeof short_key;
    }
    /* A NULL key would mean "the key of last time". */
    must(HMAC(EVP_sha256(), key_size ? key : "", (int)key_size, bytes, size, out, NULL) != NULL);
}

bool base_hash_equal(const uint8_t a[BASE_SHA256_BYTES], const uint8_t b[BASE_SHA256_BYTES])
{
    return CRYPTO_memcmp(a, b, BASE_SHA256_BYTES) == 0;
}

void base_hash_to_hex(const uint8_t *bytes, size_t size, char *out)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < size; i++) {
        out[2 * i] = digits[bytes[i] >> 4];
        out[2 * i + 1] = digits[bytes[i] & 15];
    }
    out[2 * size] = 0;
}

static int digit_of(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

bool base_hash_from_hex(const char *text, uint8_t *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        int high = digit_of(text[2 * i]);
        int low = high < 0 ? -1 : digit_of(text[2 * i + 1]);
        if (low < 0)
            return false;
        bytes[i] = (uint8_t)(high << 4 | low);
    }
    return text[2 * size] == 0;
}
