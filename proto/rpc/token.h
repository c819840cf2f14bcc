/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tokens: "v1.JOB.EXPIRY.HEX", HMAC-SHA256 over job and expiry, keyed from a secret file. Verified off line
 * by anyone who holds the key, and so honoured while the server is away. Carried in gRPC metadata
 * ("authorization: Bearer TOKEN") and in HELLO.
 */
#ifndef PROTO_RPC_TOKEN_H
#define PROTO_RPC_TOKEN_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

#define RPC_TOKEN_CHARS 256
#define RPC_TOKEN_LIFE_S 86400
#define RPC_TOKEN_SUBJECT_CHARS 129

/* Reads the key (16..4096 bytes, surrounding white space dropped) from a file that others may not write or
 * read. */
enum base_code rpc_token_read_key(const char *path, char *key, size_t key_bytes, struct base_error *error);
/* `job` has letters, digits, '-', '_' only. `now_s` is wall-clock seconds. */
enum base_code rpc_token_issue(const char *key, const char *job, int64_t now_s, char token[RPC_TOKEN_CHARS],
                               struct base_error *error);
/* What a token may be issued for in the name of `job`, which may have any bytes: the name itself if it has a token's letters only, else
 * a hash of it. */
void rpc_token_subject(const char *job, char subject[RPC_TOKEN_SUBJECT_CHARS]);
/* Whether a token that was checked was issued for this subject. */
bool rpc_token_is_for(const char *token, const char *subject);
enum base_code rpc_token_check(const char *key, const char *token, int64_t now_s, struct base_error *error);

#endif
