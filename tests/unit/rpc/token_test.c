/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rpc/token.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#define KEY "0123456789abcdef"
#define ORACLE "15dad24258fc8354b5e1e8b5d74196da48bedee3effdf19c32f820002f7a0fb0"

static void test_issue_and_check(void **state)
{
    (void)state;
    char token[RPC_TOKEN_CHARS];
    struct base_error error;
    assert_int_equal(rpc_token_issue(KEY, "job-7_A", 1000, token, NULL), BASE_OK);
    /* printf v1.job-7_A.87400 | openssl dgst -sha256 -hmac 0123456789abcdef */
    assert_string_equal(token, "v1.job-7_A.87400." ORACLE);
    assert_int_equal(rpc_token_check(KEY, token, 1000, &error), BASE_OK);
    assert_int_equal(rpc_token_check(KEY, token, 1000 + RPC_TOKEN_LIFE_S - 1, &error), BASE_OK);
    assert_int_equal(rpc_token_check(KEY, token, 1000 + RPC_TOKEN_LIFE_S, &error), BASE_REFUSED);
    assert_non_null(strstr(error.text, "expired"));
    assert_int_equal(rpc_token_check("another key here", token, 1000, &error), BASE_REFUSED);
    assert_non_null(strstr(error.text, "another secret"));
}

static void test_every_altered_byte_is_refused(void **state)
{
    (void)state;
    char token[RPC_TOKEN_CHARS];
    assert_int_equal(rpc_token_issue(KEY, "job", 1000, token, NULL), BASE_OK);
    for (size_t i = 0; token[i]; i++) {
        char old = token[i];
        token[i] = old == '1' ? '2' : '1';
        assert_int_equal(rpc_token_check(KEY, token, 1000, NULL), BASE_REFUSED);
        token[i] = 0; /* cut */
        assert_int_equal(rpc_token_check(KEY, token, 1000, NULL), BASE_REFUSED);
        token[i] = old;
    }
    strcat(token, "0");
    assert_int_equal(rpc_token_check(KEY, token, 1000, NULL), BASE_REFUSED);
}

static void test_malformed(void **state)
{
    (void)state;
    static const char *const rows[] = {"",
                                       ".",
                                       "v1",
                                       "v1.",
                                       "v1..",
                                       "v1...",
                                       "v1.job",
                                       "v1.job.",
                                       "v1.job.5",
                                       "v1.job..ab",
                                       "v2.job.5.ab",
                                       "v1.jo b.5.ab",
                                       "v1.job.-5." ORACLE,
                                       "v1.job.99999999999999999999." ORACLE,
                                       "v1.j.o.b.5." ORACLE,
                                       "v1..87400." ORACLE,
                                       "v1.job-7_A.87400.",
                                       "....",
                                       "v1.job.0x5." ORACLE};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_int_equal(rpc_token_check(KEY, rows[i], 0, NULL), BASE_REFUSED);
}

static void test_job_names(void **state)
{
    (void)state;
    char token[RPC_TOKEN_CHARS], job[130];
    memset(job, 'x', sizeof job);
    job[129] = 0;
    assert_int_equal(rpc_token_issue(KEY, job, INT64_C(99999999999), token, NULL), BASE_INVALID);
    job[128] = 0;
    assert_int_equal(rpc_token_issue(KEY, job, INT64_C(99999999999), token, NULL), BASE_OK);
    assert_int_equal(rpc_token_check(KEY, token, 0, NULL), BASE_OK);
    static const char *const bad[] = {"", "a b", "a.b", "a\n", "\xc3\xa9"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(rpc_token_issue(KEY, bad[i], 0, token, NULL), BASE_INVALID);
}

/* A token is one job's, whatever bytes are in the job's name. */
static void test_subjects(void **state)
{
    (void)state;
    static const char *const jobs[] = {"job", "job-1", "jo", "a b", "a.b", "a-b", "", "\xc3\xa9", "sha256-"};
    enum { JOBS = sizeof jobs / sizeof jobs[0] };
    for (int i = 0; i < JOBS; i++) {
        char subject[RPC_TOKEN_SUBJECT_CHARS], token[RPC_TOKEN_CHARS];
        rpc_token_subject(jobs[i], subject);
        assert_int_equal(rpc_token_issue(KEY, subject, 1000, token, NULL), BASE_OK);
        assert_int_equal(rpc_token_check(KEY, token, 1000, NULL), BASE_OK);
        for (int k = 0; k < JOBS; k++) {
            rpc_token_subject(jobs[k], subject);
            assert_int_equal(rpc_token_is_for(token, subject), i == k);
        }
    }
}

/* ---- the key's file ---- */

static enum base_code read_key(const char *content, size_t size, mode_t mode, char *key, size_t key_bytes,
                               struct base_error *error)
{
    char path[] = "/tmp/millrace-token-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, content, size) == (ssize_t)size);
    fchmod(fd, mode);
    close(fd);
    enum base_code code = rpc_token_read_key(path, key, key_bytes, error);
    unlink(path);
    return code;
}

static void test_key_file(void **state)
{
    (void)state;
    char key[5000];
    struct base_error error;
    assert_int_equal(read_key(" \n" KEY " x\r\n\n", strlen(KEY) + 7, 0600, key, sizeof key, &error), BASE_OK);
    assert_string_equal(key, KEY " x");
    assert_int_equal(read_key(KEY, 16, 0400, key, sizeof key, &error), BASE_OK);
    assert_int_equal(read_key(KEY, 15, 0600, key, sizeof key, &error), BASE_INVALID);
    assert_int_equal(read_key(KEY "                ", 20, 0600, key, 10, &error), BASE_TOO_LARGE);
    static const mode_t open_modes[] = {0640, 0604, 0620, 0602, 0666};
    for (size_t i = 0; i < sizeof open_modes / sizeof open_modes[0]; i++)
        assert_int_equal(read_key(KEY, 16, open_modes[i], key, sizeof key, &error), BASE_REFUSED);
    assert_int_equal(read_key("0123456789\0abcdef", 17, 0600, key, sizeof key, &error), BASE_INVALID);
    char *large = malloc(8000);
    memset(large, 'k', 8000);
    assert_int_equal(read_key(large, 4096, 0600, key, sizeof key, &error), BASE_OK);
    assert_int_equal(read_key(large, 4097, 0600, key, sizeof key, &error), BASE_INVALID);
    assert_int_equal(read_key(large, 8000, 0600, key, sizeof key, &error), BASE_INVALID);
    free(large);
    assert_int_equal(rpc_token_read_key("/nonexistent/secret", key, sizeof key, &error), BASE_NOT_FOUND);
    assert_non_null(strstr(error.text, "/nonexistent/secret"));
    assert_int_equal(rpc_token_read_key("/tmp", key, sizeof key, &error), BASE_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_issue_and_check), cmocka_unit_test(test_every_altered_byte_is_refused),
        cmocka_unit_test(test_malformed),       cmocka_unit_test(test_job_names),
        cmocka_unit_test(test_subjects),        cmocka_unit_test(test_key_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
