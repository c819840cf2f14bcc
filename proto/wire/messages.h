/* SPDX-License-Identifier: Apache-2.0 */
/* Payloads of the small frames. write appends to a buffer; read checks outside bytes: all of them used,
 * nothing over. */
#ifndef PROTO_WIRE_MESSAGES_H
#define PROTO_WIRE_MESSAGES_H

#include "base/buffer.h"
#include "base/error.h"
#include "base/hash.h"
#include "scheduler/pipeline.h"

#define WIRE_TOKEN_CHARS 256
#define WIRE_NAME_CHARS 128
#define WIRE_FIELDS_MAX SCHEDULER_PIPELINE_FIELDS

struct wire_hello {
    uint16_t version_min, version_max;
    uint64_t features; /* WIRE_FEATURE_ */
    char token[WIRE_TOKEN_CHARS];
    char name[WIRE_NAME_CHARS]; /* program and host, for logs */
};
void wire_hello_write(const struct wire_hello *hello, struct base_buffer *out);
enum base_code wire_hello_read(const uint8_t *bytes, size_t size, struct wire_hello *hello,
                               struct base_error *error);
/* The highest version both speak; 0: none (UNSUPPORTED, naming both ranges). */
uint16_t wire_hello_agree(const struct wire_hello *mine, const struct wire_hello *theirs);

struct wire_open {
    uint8_t stream[BASE_SHA256_BYTES];
    uint8_t fingerprint[16];
    char job[WIRE_NAME_CHARS];
    uint32_t rank;
    int field_count; /* wanted; at least 1 */
    char fields[WIRE_FIELDS_MAX][24];
};
void wire_open_write(const struct wire_open *open, struct base_buffer *out);
enum base_code wire_open_read(const uint8_t *bytes, size_t size, struct wire_open *open,
                              struct base_error *error);

/* What the worker answers: block_rows and the specs of all made fields, so that both sides agree on the
 * layout. */
struct wire_opened {
    uint32_t requests_max; /* in flight on this handle */
    uint32_t block_rows;
    int field_count; /* all made fields, in order */
    struct scheduler_field fields[WIRE_FIELDS_MAX];
    uint8_t wanted; /* bit i: field i is sent */
};
void wire_opened_write(const struct wire_opened *opened, struct base_buffer *out);
enum base_code wire_opened_read(const uint8_t *bytes, size_t size, struct wire_opened *opened,
                                struct base_error *error);

/* GET and MARK: the rank's first position not yet received. */
struct wire_mark {
    uint32_t epoch;
    uint64_t position;
};
void wire_mark_write(const struct wire_mark *mark, struct base_buffer *out);
enum base_code wire_mark_read(const uint8_t *bytes, size_t size, struct wire_mark *mark,
                              struct base_error *error);

/* MOVED: the home's id. */
void wire_moved_write(uint64_t worker, struct base_buffer *out);
enum base_code wire_moved_read(const uint8_t *bytes, size_t size, uint64_t *worker, struct base_error *error);

#endif
