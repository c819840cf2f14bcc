/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hashes. XXH3-64 (xxHash) for rows and frames: fast, no security. SHA-256 and HMAC-SHA256 (OpenSSL's libcrypto) for
 * identities and tokens. Any thread.
 */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

#define BASE_SHA256_BYTES 32
#define BASE_SHA256_HEX_CHARS 64

uint64_t base_hash_xxh3(const void *bytes, size_t size);

void base_hash_sha256(const void *bytes, size_t size, uint8_t out[BASE_SHA256_BYTES]);
void base_hash_hmac_sha256(const void *key, size_t key_size, const void *bytes, size_t size,
                           uint8_t out[BASE_SHA256_BYTES]);

/* Compares in time that does not depend on the content. */
bool base_hash_equal(const uint8_t a[BASE_SHA256_BYTES], const uint8_t b[BASE_SHA256_BYTES]);

/* Lower-case hexadecimal, terminated: `out` has room for 2 * size + 1. */
void base_hash_to_hex(const uint8_t *bytes, size_t size, char *out);
/* False unless `text` is exactly 2 * size hexadecimal digits. */
bool base_hash_from_hex(const char *text, uint8_t *bytes, size_t size);

#endif
