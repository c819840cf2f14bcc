/* SPDX-License-Identifier: Apache-2.0 */
#include "base/hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* FIPS 180-2's examples. */
static void sha256_known_answers(void **state)
{
    (void)state;
    static const struct {
        const char *text, *digest;
    } rows[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint8_t digest[BASE_SHA256_BYTES];
        char hex[BASE_SHA256_HEX_CHARS + 1];
        base_hash_sha256(rows[i].text, strlen(rows[i].text), digest);
        base_hash_to_hex(digest, sizeof digest, hex);
        assert_string_equal(hex, rows[i].digest);
    }
}

/* RFC 4231, test cases 1, 2, 6 (a key over a block) and an empty key. */
static void hmac_known_answers(void **state)
{
    (void)state;
    static const uint8_t key1[20] = {11, 11, 11, 11, 11, 11, 11, 11, 11, 11,
                                     11, 11, 11, 11, 11, 11, 11, 11, 11, 11};
    uint8_t key6[131];
    memset(key6, 0xaa, sizeof key6);
    const struct {
        const void *key;
        size_t key_size;
        const char *text, *digest;
    } rows[] = {
        {key1, 20, "Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
        {"Jefe", 4, "what do ya want for nothing?",
         "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
        {key6, 131, "Test Using Larger Than Block-Size Key - Hash Key First",
         "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
        {NULL, 0, "", "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint8_t digest[BASE_SHA256_BYTES];
        char hex[BASE_SHA256_HEX_CHARS + 1];
        base_hash_hmac_sha256(rows[i].key, rows[i].key_size, rows[i].text, strlen(rows[i].text), digest);
        base_hash_to_hex(digest, sizeof digest, hex);
        assert_string_equal(hex, rows[i].digest);
    }
}

/* Also pins that it is XXH3-64 with seed 0: rows' hashes are compared between builds. From xxhsum -H3. */
static void xxh3_known_answers(void **state)
{
    (void)state;
    assert_true(base_hash_xxh3("", 0) == UINT64_C(0x2d06800538d394c2));
    assert_true(base_hash_xxh3("abc", 3) == UINT64_C(0x78af5f94892f3950));
}

static void digests_compare(void **state)
{
    (void)state;
    uint8_t a[BASE_SHA256_BYTES] = {1}, b[BASE_SHA256_BYTES] = {1};
    assert_true(base_hash_equal(a, b));
    b[31] = 1;
    assert_false(base_hash_equal(a, b));
}

static void hex_is_strict(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool good;
    } rows[] = {
        {"00ffAb", true},  {"00ffa", false}, {"00ffab0", false}, {"00ffab00", false},
        {"00ffag", false}, {"", false},      {"0x00ff", false},  {" 0ffab", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint8_t bytes[3];
        assert_int_equal(base_hash_from_hex(rows[i].text, bytes, sizeof bytes), rows[i].good);
    }
    uint8_t bytes[3];
    assert_true(base_hash_from_hex("00ffAb", bytes, 3));
    char hex[7];
    base_hash_to_hex(bytes, 3, hex);
    assert_string_equal(hex, "00ffab");
    assert_true(base_hash_from_hex("", bytes, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sha256_known_answers), cmocka_unit_test(hmac_known_answers),
        cmocka_unit_test(xxh3_known_answers),   cmocka_unit_test(digests_compare),
        cmocka_unit_test(hex_is_strict),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
